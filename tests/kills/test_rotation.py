"""A job that lives for months: Kafka changes the producer id after 32,766 epochs, and nothing is lost over it."""

import pytest

from lockgate.commit.ledger import Entry
from lockgate.connectors.kafka.ledgertopic import LedgerTopic, transactional_id
from lockgate.connectors.kafka.settings import read_settings
from lockgate.connectors.kafka.transaction import Transactions
from lockgate.connectors.kafka.wire import Connection
from lockgate.lab.services.stack import Stack

LAST_EPOCH = 32_766


@pytest.mark.prove
def test_the_producer_id_is_rotated_and_the_ledger_continues(own_stack: Stack) -> None:
    servers = own_stack.status().kafka.servers
    assert servers is not None
    connection = Connection(read_settings(servers, {}, where="test"), where="test")
    try:
        ledger = LedgerTopic(connection, "long-lived", where="test")
        ledger.ensure([])
        transactions = Transactions(connection, transactional_id("long-lived"), timeout_ms=60_000, where="test")
        committed = -1
        producer = first = transactions.begin()
        for number in range(LAST_EPOCH + 20):
            # Around the change every producer epoch has a transaction of its own, as each epoch of a job has.
            if number < 5 or number > LAST_EPOCH - 10:
                assert (entry.epoch if (entry := ledger.read()) else -1) == committed
                transactions.add(producer, [ledger.place])
                ledger.write(Entry(run="run", query="query", epoch=number, digest="digest", at="now"), producer)
                transactions.end(producer, is_commit=True)
                committed = number
            before, producer = producer, transactions.begin()
            assert producer != before
        assert producer.id != first.id
        entry = ledger.read()
        assert entry is not None
        assert entry.epoch == committed == LAST_EPOCH + 19
    finally:
        connection.close()
