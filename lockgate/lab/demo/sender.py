"""Send the payments of a show fast, in one transaction: all of them or none.

A sender that retries after an error could send a payment twice, and the show would count its own copies.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from lockgate.connectors.kafka.encode import Records
from lockgate.connectors.kafka.topics import describe_outputs
from lockgate.connectors.kafka.transaction import Transactions
from lockgate.connectors.kafka.wire import Connection
from lockgate.connectors.kafka.writer import Writer
from lockgate.errors import Failed
from lockgate.lab.demo.payments import Payments

_TIMEOUT_MS = 120_000
_PARTS = 10


def send(connection: Connection, topic: str, payments: Payments, *, partitions: int) -> Iterator[int]:
    """Send all payments, spread over the partitions by their number; yields how many were sent so far."""
    where = f"the demo's topic {topic!r}"
    transactions = Transactions(connection, f"{topic}-sender", timeout_ms=_TIMEOUT_MS, where=where)
    most = describe_outputs(connection, [topic], where=where)[topic].max_message_bytes
    producer = transactions.begin()
    places = [(topic, partition) for partition in range(partitions)]
    transactions.add(producer, places)
    writer = Writer(connection, transactional_id=transactions.id, producer=producer, where=where)
    part = -(-payments.count // (_PARTS * partitions)) * partitions  # so that a number stays with its partition
    for first in range(0, payments.count, part):
        last = min(payments.count, first + part)
        for number, place in enumerate(places[: last - first]):
            keys, values = payments.sent(first + number, last, step=partitions)
            writer.write(
                place,
                Records(keys=keys, values=values),
                max_message_bytes=most,
                now_ms=int(time.time() * 1000),
            )
        yield last
    written = sum(one.records for one in writer.finish())
    if written != payments.count:
        raise Failed(
            f"{payments.count:,} payments were to be sent, but {written:,} were.", where=where, fix="run the demo again"
        )
    transactions.end(producer, is_commit=True)
    transactions.wait_until_complete()
