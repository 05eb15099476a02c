"""A command writes the ledger instead of the driver: to repair it, or for a reset.

Fence first, then read, then write. Otherwise a running driver could commit between the read and the write, and what the
command reported about doubled and lost rows would no longer be true. A running driver stops at its next epoch, because
the run id in the ledger is not its own.
"""

from __future__ import annotations

from lockgate.commit.ledger import Entry
from lockgate.commit.repair import moved, read_if_possible
from lockgate.connectors.kafka.ledgertopic import LedgerTopic, transactional_id
from lockgate.connectors.kafka.topics import refuse_old_broker, transaction_timeout_ms
from lockgate.connectors.kafka.transaction import Transactions
from lockgate.connectors.kafka.wire import Connection
from lockgate.errors import EpochFailed

_TRIES = 3


def replace_entry(ledger: LedgerTopic, transactions: Transactions, seen: Entry | None, entry: Entry) -> None:
    """Write an entry in place of the one that was seen; Failed if the ledger has changed since."""
    for tries in range(1, _TRIES + 1):
        producer = transactions.begin()
        current = read_if_possible(ledger.read)
        if current == entry:
            break  # the result of the last try was unknown, and it is committed
        if current != seen:
            raise moved(current, ledger.where)
        try:
            transactions.add(producer, [ledger.place])
            ledger.write(entry, producer)
            transactions.end(producer, is_commit=True)
        except EpochFailed:
            if tries == _TRIES:
                raise
        else:
            break
    transactions.wait_until_complete()


def open_transactions(connection: Connection, job: str, where: str) -> Transactions:
    """The transactions of a job, for a command that writes instead of its driver."""
    refuse_old_broker(connection, where=where)
    timeout_ms = transaction_timeout_ms(connection, where=where)
    return Transactions(connection, transactional_id(job), timeout_ms=timeout_ms, where=where)
