"""What came out, read back by nobody who wrote it.

Only what a reader of committed records sees is counted: control records and the records of aborted transactions are
not, and half a batch is read again. The headers of the batches say enough, so no record is decoded and no side is
believed.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

from lockgate.bench.settings import WHERE
from lockgate.commit.permits import Place
from lockgate.errors import Failed
from lockgate.kafka.wire import Connection, Fetched

GoOn = Callable[[], None]
"""Called often; what it raises ends the measurement."""

_SILENCE_SECONDS = 60.0
_BATCH = struct.Struct(">qi9xhi16xq6xi")  # base offset, length, attributes, last offset delta, producer, records
_FRAME_BYTES = 12
_CONTROL = 0x20


def count_committed(connection: Connection, place: Place, *, leader: int, go_on: GoOn = lambda: None) -> int:
    """The records of a partition that a reader of committed records sees, by the headers of its batches."""
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
    aborted = sorted(fetched.aborted, key=lambda one: one[1])
    now_aborted: set[int] = set()
    count = position = at = 0
    while at + _BATCH.size <= len(fetched.records):
        base, length, attributes, last, producer, records = _BATCH.unpack_from(fetched.records, at)
        at += _FRAME_BYTES + length
        if at > len(fetched.records):
            break  # a broker may send the beginning of a batch only
        while aborted and aborted[0][1] <= base + last:
            now_aborted.add(aborted.pop(0)[0])
        position = base + last + 1
        if attributes & _CONTROL:
            now_aborted.discard(producer)
        elif producer not in now_aborted:
            count += records
    return count, position
