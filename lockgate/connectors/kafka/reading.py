"""Read the committed records of a topic without Spark and without a consumer group.

Records of an open transaction are visible only after its commit, aborted ones never. A batch that cannot be read is
skipped with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from lockgate.commit.permits import Place
from lockgate.connectors.kafka.batches import Batch, read_batches
from lockgate.connectors.kafka.errorcodes import Code, name_of
from lockgate.connectors.kafka.rights import Operation
from lockgate.connectors.kafka.settings import ClientSettings
from lockgate.connectors.kafka.topics import PATIENCE_SECONDS, asked
from lockgate.connectors.kafka.wire import Connection, Fetched, Unanswered
from lockgate.errors import Failed, Refused
from lockgate.untrusted import Unreadable

log = logging.getLogger(__name__)

T = TypeVar("T")


def read_committed(settings: ClientSettings, topic: str, *, where: str) -> Iterator[bytes]:
    """The values of all records that are committed now, partition by partition, without tombstones."""
    with _connected(settings, where) as connection:
        shape = asked(lambda: connection.shapes([topic], is_fresh=True, needs=Operation.READ), where).get(topic)
        if shape is None:
            raise Refused(
                f"topic {topic!r} does not exist at {settings.servers}",
                where=where,
                fix="run the job once, which creates it; or correct the topic or the servers",
            )
        for partition in range(shape.partitions):
            yield from _read_partition(connection, (topic, partition), where)


def _read_partition(connection: Connection, place: Place, where: str) -> Iterator[bytes]:
    position = asked(partial(_look, connection, place, connection.start_offset), where)
    end = None
    while end is None or position < end:
        fetched = asked(partial(_look, connection, place, partial(_fetch, connection, position)), where)
        end = fetched.last_stable_offset if end is None else end  # of the first fetch: a live topic has no end
        after = position
        try:
            for batch, is_committed in read_batches(fetched):
                after = max(after, batch.last_offset + 1)
                yield from _values(batch if is_committed else (), place, position, end)
        except Unreadable as error:
            # Only a broken broker or disk causes this. The beginning of the next batch is unknown.
            raise Failed(
                f"a piece of the topic cannot be read: {error}",
                where=f"topic {place[0]!r}, partition {place[1]}, from offset {after} on; {where}",
                fix="look at the broker's log and its disk",
            ) from None
        if after == position:
            return  # retention or compaction removed the rest
        position = after


def _values(batch: Batch | tuple[()], place: Place, position: int, end: int) -> Iterator[bytes]:
    """The values of a batch, up to a record that cannot be read.

    Any producer to the topic can send such a batch. The other batches must stay readable.
    """
    try:
        for record in batch:
            if position <= record.offset < end and record.value is not None:
                yield record.value
    except Unreadable as error:
        log.warning("topic %s, partition %d: a batch is skipped, because %s", *place, error)


def _fetch(connection: Connection, offset: int, place: Place, *, leader: int) -> tuple[int, Fetched]:
    fetched = connection.fetch(place, offset, leader=leader)
    return fetched.code, fetched


def _look(connection: Connection, place: Place, ask: Callable[..., tuple[int, T]]) -> T:
    """The answer of a partition's leader; Unanswered if it does not answer, or if another broker leads."""
    topic, partition = place
    try:
        shape = connection.shapes([topic]).get(topic)
        if shape is None or shape.leaders[partition] < 0:
            raise Unanswered(f"{topic}-{partition} has no leader")
        code, answer = ask(place, leader=shape.leaders[partition])
        if code != Code.NONE:
            raise Unanswered(f"{topic}-{partition}: {name_of(code)}")
    except Unanswered:
        connection.shapes([topic], is_fresh=True)
        raise
    return answer


def read_starts(connection: Connection, topics: Iterable[str], *, where: str) -> dict[Place, int]:
    """The offset of the first record that is left in each partition of those topics that exist."""
    wanted = sorted(topics)

    def look() -> dict[Place, int]:
        led: dict[int, list[Place]] = {}
        for name, shape in connection.shapes(wanted).items():
            for partition, leader in enumerate(shape.leaders):
                led.setdefault(leader, []).append((name, partition))
        found: dict[Place, int] = {}
        try:
            for leader, places in led.items():
                answers = connection.start_offsets(places, leader=leader) if leader >= 0 else {}
                for topic, partition in places:
                    code, offset = answers.get((topic, partition), (Code.LEADER_NOT_AVAILABLE, -1))
                    if code != Code.NONE:
                        raise Unanswered(f"{topic}-{partition}: {name_of(code)}")
                    found[topic, partition] = offset
        except Unanswered:
            connection.shapes(wanted, is_fresh=True)  # another broker may lead now
            raise
        return found

    return asked(look, where)


@contextmanager
def _connected(settings: ClientSettings, where: str) -> Iterator[Connection]:
    connection = Connection(settings, where=where)
    try:
        yield connection
    finally:
        connection.close()


def read_extents(
    settings: ClientSettings, places: Iterable[Place], *, where: str, seconds: float = PATIENCE_SECONDS
) -> dict[Place, tuple[int, int] | None]:
    """The first offset of each partition and the one after its last; None if the partition does not exist."""
    with _connected(settings, where) as connection:
        wanted = list(places)
        ask = partial(asked, where=where, seconds=seconds)
        shapes = ask(lambda: connection.shapes({topic for topic, _ in wanted}, is_fresh=True))

        def look(place: Place) -> tuple[int, int] | None:
            shape = shapes.get(place[0])
            if shape is None or place[1] >= shape.partitions:
                return None
            start = ask(partial(_look, connection, place, connection.start_offset))
            return start, ask(partial(_look, connection, place, connection.end_offset))

        return {place: look(place) for place in wanted}
