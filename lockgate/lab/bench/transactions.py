"""Transactions: the cost of an epoch beside its records, with few and with many partitions.

An epoch is committed as the coordinator does it, step by step and with one record in every partition, without Spark.
The first ones only warm up.

    begin      fence older writers, read the ledger
    add        the output partitions
    (write)    one record in each: not counted
    end        source offsets, marker, the decision
    complete   until readers see it
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from lockgate.commit.ledger import Entry
from lockgate.commit.permits import Place
from lockgate.connectors.kafka.ledgertopic import LedgerTopic, ledger_topic, transactional_id
from lockgate.connectors.kafka.topics import transaction_timeout_ms
from lockgate.connectors.kafka.transaction import Transactions
from lockgate.lab.bench.report import Spread, TransactionCost
from lockgate.lab.bench.settings import WHERE
from lockgate.lab.bench.site import Site

MANY_PARTITIONS = 64
TRANSACTIONS = 30
_WARM_UP_TRANSACTIONS = 5


def measure_transactions(site: Site) -> tuple[TransactionCost, ...]:
    """The cost with the requested number of partitions, and with many."""
    return tuple(_measure(site, count) for count in sorted({site.settings.partitions, MANY_PARTITIONS}))


def _measure(site: Site, partitions: int) -> TransactionCost:
    site.tell(f"measuring {TRANSACTIONS} transactions over {partitions} partitions")
    name = f"{site.name}-transactions-{partitions}"
    topic = f"{name}-out"
    site.make(topic, partitions)
    site.note(ledger_topic(name))
    timeout_ms = transaction_timeout_ms(site.connection, where=WHERE)
    ledger = LedgerTopic(site.connection, name, where=WHERE)
    ledger.ensure([topic])
    transactions = Transactions(site.connection, transactional_id(name), timeout_ms=timeout_ms, where=WHERE)
    places = [(topic, number) for number in range(partitions)]
    laps = []
    for epoch in range(_WARM_UP_TRANSACTIONS + TRANSACTIONS):
        site.go_on()
        laps.append(_transact(site, transactions, ledger, places, epoch))
    site.require(topic, len(laps) * partitions)
    site.delete(topic, ledger.name)
    begin, add, end, complete = zip(*laps[_WARM_UP_TRANSACTIONS:], strict=True)
    return TransactionCost(
        partitions=partitions,
        transactions=TRANSACTIONS,
        begin=Spread.of(begin),
        add=Spread.of(add),
        end=Spread.of(end),
        complete=Spread.of(complete),
        begin_and_end=Spread.of([one + other for one, other in zip(begin, end, strict=True)]),
    )


def _transact(
    site: Site, transactions: Transactions, ledger: LedgerTopic, places: Sequence[Place], epoch: int
) -> tuple[float, float, float, float]:
    """One epoch as the coordinator commits it, with one record in every partition; returns its laps in seconds."""
    import pyarrow as pa

    from lockgate.connectors.kafka.encode import Records
    from lockgate.connectors.kafka.writer import Writer

    record = Records(keys=pa.array([b"key"], pa.binary()), values=pa.array([b"value"], pa.binary()))
    began = time.perf_counter()
    producer = transactions.begin()
    ledger.read()
    begun = time.perf_counter()
    transactions.add(producer, places)
    added = time.perf_counter()
    writer = Writer(site.connection, transactional_id=transactions.id, producer=producer, where=WHERE)
    for place in places:
        writer.write(place, record, max_message_bytes=1_000_000, now_ms=int(time.time() * 1000))
    writer.finish()
    written = time.perf_counter()
    transactions.add(producer, [ledger.place])
    transactions.add_offsets(producer, transactions.id, dict.fromkeys(places[: site.settings.partitions], epoch))
    ledger.write(Entry(run="bench", query=None, epoch=epoch, digest="0" * 64, at=str(epoch)), producer)
    transactions.end(producer, is_commit=True)
    ended = time.perf_counter()
    transactions.wait_until_complete()
    return begun - began, added - begun, ended - written, time.perf_counter() - ended
