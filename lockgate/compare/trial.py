"""One contender on trial: a run in peace, and a run under faults.

    in peace        all events are there, the job runs until it has caught up: throughput, and rows for the answer
    under faults    events come at a steady rate: latency; the driver is killed with all its processes, and started

The driver is killed when rows have come into the output (committed or not) since the kill was due, so mostly in the
midst of an epoch. It is seen from outside, by the same rule for every guarantee. A reader of committed records, apart
from Spark, reads along, and tells what came out and when.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lockgate.compare.counting import Row
from lockgate.compare.driver import Driver, Line
from lockgate.compare.feed import bounds_of, may_be_sent
from lockgate.compare.letters import Letters
from lockgate.demo.reader import read_records
from lockgate.errors import Failed
from lockgate.kafka.topics import asked
from lockgate.kafka.wire import Connection
from lockgate.lab.rig.feed import Event, Feed

GoOn = Callable[[], None]
Place = tuple[str, int]

_LOOK_SECONDS = 0.02
_ROWS_PATIENCE_SECONDS = 30.0  # a job may give no rows for a long time; then it is killed without
_QUIET_SECONDS = 10.0
_FIRST_EPOCH_SECONDS = 60.0  # the first epoch of a start loads classes, and nothing is heard before its end
_PATIENCE_SECONDS = 300.0


@dataclass(frozen=True)
class Peace:
    """What a run in peace has shown."""

    rows: tuple[Row, ...]
    events_per_second: float


@dataclass(frozen=True)
class Faults:
    """What a run under faults has shown."""

    rows: tuple[Row, ...]
    latencies_ms: tuple[int, ...]  # of events, before the first kill
    epochs_ms: tuple[int, ...]  # of every epoch with events but the first of a start
    restarts_seconds: tuple[float, ...]  # from each kill to the first new row that a reader saw
    sent_at_kills: tuple[int, ...]


@dataclass
class _Seen:
    place: Place
    offset: int
    heard: float
    row: Row


class _Reader(threading.Thread):
    """Reads along, and then to the end."""

    def __init__(self, servers: str, topics: Mapping[str, str]) -> None:
        super().__init__(name="lockgate-compare-reader", daemon=True)
        self.seen: list[_Seen] = []
        self._servers = servers
        self._theirs = {ours: theirs for theirs, ours in topics.items()}
        self._is_complete = threading.Event()
        self._failure: Exception | None = None

    def run(self) -> None:
        try:
            for record in read_records(self._servers, [*self._theirs], is_complete=self._is_complete.is_set):
                row = (self._theirs[record.topic], record.key, record.value)
                self.seen.append(_Seen((record.topic, record.partition), record.offset, time.monotonic(), row))
        except Exception as failure:  # noqa: BLE001 - raised in the thread that asks
            self._failure = failure

    def finish(self) -> list[_Seen]:
        """All that was committed."""
        self._is_complete.set()
        self.join()
        if self._failure is not None:
            raise self._failure
        return self.seen


@dataclass
class Trial:
    """A contender while it is on trial; `outputs` are the author's topics and ours."""

    driver: Driver
    servers: str
    connection: Connection
    outputs: Mapping[str, str]
    letters: Letters
    tell: Callable[[str], None]
    go_on: GoOn
    _kills: list[_Kill] = field(default_factory=list)

    def in_peace(self, *, rows_per_epoch: int) -> Peace:
        """Run over what is there."""
        self._catch_up("--rows-per-epoch", str(rows_per_epoch), *self._from_the_beginning())
        reader = _Reader(self.servers, self.outputs)
        reader.start()
        return Peace(self._rows(reader.finish()), events_per_second(self.driver.lines))

    def under_faults(
        self, events: Sequence[Event], topics: Mapping[str, str], *, rate: float, kills: int, has_rest: bool
    ) -> Faults:
        """Run while events come, and kill.

        Args:
            has_rest: results wait for event time, or events for another attempt, and come in epochs without new ones.
        """
        reader = _Reader(self.servers, self.outputs)
        feed = Feed(self.servers, events, topics, rate=rate)
        try:
            reader.start()
            self.driver.start(*self._from_the_beginning())
            self._run(feed, len(events), kills)
            self.driver.kill()
            if has_rest and self.driver.is_tracked:
                self._catch_up()
            seen = reader.finish()
        finally:
            feed.close()
        return Faults(
            rows=self._rows(seen),
            latencies_ms=latencies_ms(feed.sent_at, self.driver.lines),
            epochs_ms=epochs_ms(self.driver.lines),
            restarts_seconds=tuple(
                seconds for kill in self._kills if (seconds := kill.seconds_to_rows(seen)) is not None
            ),
            sent_at_kills=tuple(kill.sent for kill in self._kills),
        )

    def _rows(self, seen: Sequence[_Seen]) -> tuple[Row, ...]:
        return tuple(self.letters.reduce(one.row) for one in seen)

    def _run(self, feed: Feed, total: int, kills: int) -> None:
        bounds = bounds_of(total, kills)
        driver = self.driver
        is_up = is_warm = is_measured = False
        due_at, before, all_sent_at = 0.0, 0, 0.0
        changed, last = time.monotonic(), (0, 0, 0)
        while True:
            self.go_on()
            driver.look()
            is_up = is_up or driver.is_up
            is_warm = is_warm or any(line.events_total for line in driver.lines)
            is_measured = is_measured or bool(latencies_ms(feed.sent_at, driver.lines))
            killed = len(self._kills)
            limit = may_be_sent(total, kills, killed=killed, is_up=is_up, is_warm=is_warm, is_measured=is_measured)
            feed.send(limit)
            now = time.monotonic()
            if (standing := (feed.sent, len(driver.lines), driver.starts)) != last:
                changed, last = now, standing
            if is_up and killed < kills and feed.sent >= bounds[killed]:
                ends = self._ends()
                if not due_at:
                    due_at, before = now, sum(ends.values())
                # More than one record a partition: the end of a transaction is a record too, but not a row.
                if sum(ends.values()) - before > len(ends) or now - due_at > _ROWS_PATIENCE_SECONDS:
                    self._kill(feed.sent)
                    is_up, due_at = False, 0.0
            elif killed == kills and feed.sent == total:
                all_sent_at = all_sent_at or now
                if self._is_done(total, all_sent_at):
                    return
            if now - changed > _PATIENCE_SECONDS:
                raise Failed(
                    f"Nothing has happened for {_PATIENCE_SECONDS:.0f} s: {feed.sent:,} events are sent,"
                    f" {driver.events_committed:,} are in committed epochs.",
                    where=f"{driver.contender.label}, {driver.words}",
                    fix="see what the job waits for, then compare again",
                )
            time.sleep(_LOOK_SECONDS)

    def _is_done(self, total: int, all_sent_at: float) -> bool:
        if self.driver.is_tracked:
            return self.driver.events_committed >= total
        # Nothing tells how far it is: its lag is 0, or it has begun behind the last event, and it has nothing to say.
        last = self.driver.lines[-1] if self.driver.lines else None
        has_spoken = last is not None and last.start == self.driver.starts
        if last is not None and has_spoken and last.lag:
            return False
        heard = max(all_sent_at, last.heard if last else 0.0)
        return time.monotonic() - heard > (_QUIET_SECONDS if has_spoken else _FIRST_EPOCH_SECONDS)

    def _kill(self, sent: int) -> None:
        self.driver.kill()
        at = time.monotonic()
        self._kills.append(_Kill(sent=sent, at=at, ends=self._ends()))
        self.tell(f"{self.driver.contender.label}: killed (-9) after {sent:,} events were sent, and started again")
        self.driver.start()

    def _catch_up(self, *options: str) -> None:
        self.driver.start("--until-caught-up", *options)
        while not self.driver.look():
            self.go_on()
            time.sleep(_LOOK_SECONDS)

    def _from_the_beginning(self) -> tuple[str, ...]:
        """At-most-once begins with what comes next, unless told otherwise; the first start is no fault yet."""
        return () if self.driver.is_tracked else ("--from", "earliest")

    def _ends(self) -> dict[Place, int]:
        """How many records are in each partition of the output, committed or not."""
        topics = [*self.outputs.values()]
        shapes = asked(lambda: self.connection.shapes(topics), "the comparison's topics")
        places = [(topic, number, leader) for topic in topics for number, leader in enumerate(shapes[topic].leaders)]
        return asked(
            lambda: {(t, n): self.connection.end_offset((t, n), leader=leader)[1] for t, n, leader in places},
            "the comparison's topics",
        )


@dataclass(frozen=True)
class _Kill:
    sent: int
    at: float
    ends: Mapping[Place, int]  # of the output, when all writers were dead

    def seconds_to_rows(self, seen: Sequence[_Seen]) -> float | None:
        """How long it took until a row came that was not there before; None where none came."""
        new = (one.heard for one in seen if one.offset >= self.ends[one.place])
        first = min(new, default=None)
        return None if first is None else first - self.at


def latencies_ms(sent_at: Sequence[float], lines: Sequence[Line]) -> tuple[int, ...]:
    """How long each event took, from being sent until the end of its epoch was heard, in the order of the events.

    Of the first start alone, so before the first kill; without events that were sent before its first epoch had ended.
    Events are taken in the order in which they were sent.
    """
    found: list[int] = []
    done, began = 0, float("inf")
    for line in lines:
        if line.start == 1 and line.taken > done:
            began = min(began, line.heard)
            found += [round(1000 * (line.heard - at)) for at in sent_at[done : line.taken] if at >= began]
            done = line.taken
    return tuple(found)


def epochs_ms(lines: Sequence[Line]) -> tuple[int, ...]:
    """How long the epochs with events took; the first of each start loads classes, and catches up."""
    return tuple(line.epoch_ms for _, line in _later(lines))


def events_per_second(lines: Sequence[Line]) -> float:
    """Events of all epochs but the first of each start, by the time that these epochs took."""
    later = _later(lines)
    milliseconds = sum(line.epoch_ms for _, line in later)
    return 1000 * sum(count for count, _ in later) / milliseconds if milliseconds else 0.0


def _later(lines: Sequence[Line]) -> list[tuple[int, Line]]:
    """The epochs with events but the first of each start, with the number of their events."""
    found: list[tuple[int, Line]] = []
    start, total = 0, 0
    for line in lines:
        if line.start == start and line.events_total > total:
            found.append((line.events_total - total, line))
        if line.events_total:
            start, total = line.start, line.events_total
    return found
