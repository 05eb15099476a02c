"""The committed records of a topic, read by ourselves, without Spark and without a consumer group.

What is in a transaction that is still open comes when it is over, and what was aborted never.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from lockgate.commit.permits import Place
from lockgate.errors import Refused
from lockgate.kafka.codes import Code, name_of
from lockgate.kafka.settings import ClientSettings
from lockgate.kafka.topics import PATIENCE_SECONDS, asked
from lockgate.kafka.wire import Connection, Fetched, Unanswered, read_batches

T = TypeVar("T")


def read_committed(settings: ClientSettings, topic: str, *, where: str) -> Iterator[bytes]:
    """The values of all records that are committed now, partition by partition; tombstones are passed over."""
    with _connected(settings, where) as connection:
        shape = asked(lambda: connection.shapes([topic], is_fresh=True), where).get(topic)
        if shape is None:
            raise Refused(
                f"topic {topic!r} does not exist at {settings.servers}",
                where=where,
                fix="run the job once, which makes it; or correct the topic or the servers",
            )
        for partition in range(shape.partitions):
            yield from _read_partition(connection, (topic, partition), where)


def _read_partition(connection: Connection, place: Place, where: str) -> Iterator[bytes]:
    position = asked(partial(_look, connection, place, connection.start_offset), where)
    end = None
    while end is None or position < end:
        fetched = asked(partial(_look, connection, place, partial(_fetch, connection, position)), where)
        end = fetched.last_stable_offset if end is None else end  # as of the first look: a live topic has no end
        after = position
        for batch, is_committed in read_batches(fetched):
            for record in batch if is_committed else ():
                if position <= record.offset < end and record.value is not None:
                    yield bytes(record.value)
            after = max(after, batch.last_offset + 1)
        if after == position:
            return  # what stood from here to the end was removed by retention or compaction
        position = after


def _fetch(connection: Connection, offset: int, place: Place, *, leader: int) -> tuple[int, Fetched]:
    fetched = connection.fetch(place, offset, leader=leader)
    return fetched.code, fetched


def _look(connection: Connection, place: Place, ask: Callable[..., tuple[int, T]]) -> T:
    """What the leader of a partition says; Unanswered where it is not to be had, or another one leads."""
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
    """The offset of the first record that each partition of these topics still has, of those that exist."""
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
    """The first offset of each partition that is still there, and the one behind the last; None where it is not."""
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
