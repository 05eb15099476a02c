"""Count the committed records of a topic, independently of their writers.

Counted is what a reader of committed records sees: no control records and no records of aborted transactions. A partial
batch is read again. The headers of the batches are enough, so no record is decoded, and no report of a side is trusted.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from lockgate.commit.permits import Place
from lockgate.connectors.kafka.batches import read_batches
from lockgate.connectors.kafka.wire import Connection, Fetched
from lockgate.errors import Failed
from lockgate.lab.bench.settings import WHERE

GoOn = Callable[[], None]
"""Called often; what it raises ends the measurement."""

_SILENCE_SECONDS = 60.0


def count_committed(connection: Connection, place: Place, *, leader: int, go_on: GoOn = lambda: None) -> int:
    """The number of committed records of a partition, by the headers of its batches."""
    _, end = connection.end_offset(place, leader=leader)
    position = count = 0
    heard = time.monotonic()
    while position < end:
        go_on()
        fetched = connection.fetch(place, position, leader=leader, max_bytes=8 << 20)
        found, position_then = count_records(fetched)
        count += found
        if position_then > position:
            position, heard = position_then, time.monotonic()
        elif time.monotonic() - heard > _SILENCE_SECONDS:
            raise Failed(
                f"topic {place[0]!r}, partition {place[1]} cannot be read to its end: it stays at {position} of {end}",
                where=WHERE,
                fix="see the broker's log; `lockgate transactions list` shows transactions that hold readers back",
            )
        else:
            time.sleep(0.01)
    return count


def count_records(fetched: Fetched) -> tuple[int, int]:
    """The committed records in a piece of a partition, and the offset to read on from (0: it was empty)."""
    count = position = 0
    for batch, is_committed in read_batches(fetched):
        position = batch.last_offset + 1
        count += batch.records_count if is_committed else 0
    return count, position
