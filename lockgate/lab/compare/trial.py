"""One contender on trial: an undisturbed run, and a run with faults.

    undisturbed    all events are sent before, and the job runs until it has caught up: throughput, rows for the answer
    with faults    events arrive at a steady rate: latency; the driver is killed with all its processes, and restarted

Every contender is killed by the same rule, in the middle of an epoch (lab/rig/troubles/midepoch.py).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from lockgate.errors import Failed
from lockgate.lab.compare.contenders import Contender
from lockgate.lab.compare.counting import Row
from lockgate.lab.compare.feed import bounds_of, may_be_sent
from lockgate.lab.rig.drivers import Driver, Drivers, Line
from lockgate.lab.rig.faults import Kind
from lockgate.lab.rig.feed import Event, Feed
from lockgate.lab.rig.history import Fact, Gap, Read
from lockgate.lab.rig.readers.group import Readers
from lockgate.lab.rig.readers.topics import Topics
from lockgate.lab.rig.trial import GoOn, Trial
from lockgate.lab.rig.troubles.midepoch import Cut, Hit, MidEpoch
from lockgate.lab.rig.troubles.scene import Scene

OUT_PARTITIONS = 4
_LOOK_SECONDS = 0.02
_ROWS_PATIENCE_SECONDS = 30.0  # a job may give no rows for a long time; then the kill does not wait for rows
_QUIET_SECONDS = 10.0
_FIRST_EPOCH_SECONDS = 60.0  # the first epoch of a start loads classes, and reports nothing before its end


@dataclass(frozen=True)
class Peace:
    """The result of an undisturbed run."""

    rows: tuple[Row, ...]
    events_per_second: float


@dataclass(frozen=True)
class Faults:
    """The result of a run with faults."""

    rows: tuple[Row, ...]
    latencies_ms: tuple[int, ...]  # of events, before the first kill
    epochs_ms: tuple[int, ...]  # of every epoch with events except the first of a start
    restarts_seconds: tuple[float, ...]  # from each kill to the first new row that a reader saw
    sent_at_kills: tuple[int, ...]


@dataclass(frozen=True)
class Runner:
    """A contender with what its runs need; `outputs` are the user's topics and ours."""

    name: str  # of the job
    contender: Contender
    drivers: Drivers
    servers: str
    outputs: Mapping[str, str]
    letters: str | None  # the user's topic of dead letters
    names: Mapping[str, str]  # ours, in this run -> the user's
    tell: Callable[[str], None]
    go_on: GoOn

    def in_peace(self, *, rows_per_epoch: int) -> Peace:
        """Run over existing events."""
        # A concurrent reader would take processor time from the job.
        with Trial(self.drivers, Readers(()), Feed("", (), {}), limit=lambda driver: 0, go_on=self.go_on) as trial:
            trial.catch_up("--rows-per-epoch", str(rows_per_epoch))
        rows = _reads(self._readers().after(self.drivers.clock))
        return Peace(_rows(rows), events_per_second(self.drivers.lines))

    def under_faults(
        self, events: Sequence[Event], inputs: Mapping[str, str], *, rate: float, kills: int, has_rest: bool
    ) -> Faults:
        """Run while events arrive, and kill.

        Args:
            has_rest: results wait for event time, or events for a retry, and come in epochs without new events.
        """
        drivers, feed = self.drivers, Feed(self.servers, events, inputs, rate=rate)
        pace = Pace(drivers, feed, len(events), kills)
        with Trial(drivers, self._readers(), feed, pace.limit, self.go_on, look_seconds=_LOOK_SECONDS) as trial:
            topics = [*self.outputs.values()]
            scene = Scene(self.name, drivers, self.servers, random.Random(), lambda: feed.sent, topics)
            trouble = MidEpoch(pace.cuts(len(topics)), scene, lambda fault: self._report_kill(feed))
            trial.disturb([trouble])
            trial.run(pace.is_done)
            drivers.kill()
            if has_rest and drivers.checkpoint is not None:
                trial.catch_up()
            seen = _reads(trial.readers.finish_along(drivers.clock))
        restarts = (self._seconds_to_rows(hit, seen) for hit in trouble.hits)
        return Faults(
            rows=_rows(seen),
            latencies_ms=latencies_ms(feed.sent_at, drivers.lines),
            epochs_ms=epochs_ms(drivers.lines),
            restarts_seconds=tuple(seconds for seconds in restarts if seconds is not None),
            sent_at_kills=tuple(hit.sent for hit in trouble.hits),
        )

    def _readers(self) -> Readers:
        letters = frozenset() if self.letters is None else frozenset({self.letters})
        return Readers((Topics(self.servers, self.outputs, inputs={}),), letters, self.names)

    def _report_kill(self, feed: Feed) -> None:
        self.tell(f"{self.contender.label}: killed (-9) after {feed.sent:,} events were sent, and restarted")

    def _seconds_to_rows(self, hit: Hit, seen: Iterable[Read]) -> float | None:
        """The time until a row arrived that was not there before the kill; None if none arrived."""
        new = (one.at_seconds for one in seen if one.offset >= hit.ends[self.outputs[one.output], one.partition])
        first = min(new, default=None)
        return None if first is None else first - (hit.at - self.drivers.began)


class Pace:
    """When events may be sent, when kills are due, and when the job is done."""

    def __init__(self, drivers: Drivers, feed: Feed, total: int, kills: int) -> None:
        self._drivers, self._feed, self._total, self._kills = drivers, feed, total, kills
        self._bounds = bounds_of(total, kills)
        self._is_measured = False
        self._all_sent_at = 0.0

    def cuts(self, topics: int) -> list[Cut]:
        """The kills; one record of each partition may be the end of a transaction and not a row."""
        rows = topics * OUT_PARTITIONS + 1
        return [Cut(Kind.KILL_JOB, rows, partial(self._is_due, one), _ROWS_PATIENCE_SECONDS) for one in self._bounds]

    def limit(self, driver: Driver) -> int:
        """How many events may be sent by now."""
        lines = self._drivers.lines
        self._is_measured = self._is_measured or bool(latencies_ms(self._feed.sent_at, lines))
        return may_be_sent(
            self._total,
            self._kills,
            killed=sum(not one.is_running for one in self._drivers.all),
            is_up=driver.is_up and driver.is_running,
            is_warm=any(line.events_total for line in lines),
            is_measured=self._is_measured,
        )

    def is_done(self) -> bool:
        """Is every event in a completed epoch?"""
        if self._feed.sent < self._total:
            return False
        self._all_sent_at = self._all_sent_at or time.monotonic()
        if self._drivers.checkpoint is not None:
            return self._drivers.consumed() >= self._total
        # Its position is unknown: its lag is 0, or it started after the last event and reports nothing.
        last = self._drivers.lines[-1] if self._drivers.lines else None
        has_spoken = last is not None and last.start == len(self._drivers.all) - 1
        if last is not None and has_spoken and last.lag:
            return False
        heard = max(self._all_sent_at, last.heard if last else 0.0)
        return time.monotonic() - heard > (_QUIET_SECONDS if has_spoken else _FIRST_EPOCH_SECONDS)

    def _is_due(self, bound: int) -> bool:
        driver = self._drivers.running
        return driver is not None and driver.is_up and self._feed.sent >= bound


def _reads(facts: Sequence[Fact]) -> list[Read]:
    """The rows of a reader; Failed if it missed some."""
    gap = next((fact for fact in facts if isinstance(fact, Gap)), None)
    if gap is not None:
        raise Failed(
            f"not everything could be read: {gap.reason}", where="the comparison's topics", fix="compare again"
        )
    return [fact for fact in facts if isinstance(fact, Read)]


def _rows(reads: Iterable[Read]) -> tuple[Row, ...]:
    return tuple((read.output, read.key, read.value) for read in reads)


def latencies_ms(sent_at: Sequence[float], lines: Sequence[Line]) -> tuple[int, ...]:
    """The time of each event from sending until the end of its epoch was reported, in the order of the events.

    Of the first start only, so before the first kill, and without events that were sent before the end of its first
    epoch. Epochs take events in the order in which they were sent.
    """
    found: list[int] = []
    done, began = 0, float("inf")
    for line in lines:
        if line.start == 0 and line.taken > done:
            began = min(began, line.heard)
            found += [round(1000 * (line.heard - at)) for at in sent_at[done : line.taken] if at >= began]
            done = line.taken
    return tuple(found)


def epochs_ms(lines: Sequence[Line]) -> tuple[int, ...]:
    """How long the epochs with events took, without the first of each start, which loads classes and catches up."""
    return tuple(line.epoch_ms for _, line in _later(lines))


def events_per_second(lines: Sequence[Line]) -> float:
    """Events of all epochs except the first of each start, divided by the time of these epochs."""
    later = _later(lines)
    milliseconds = sum(line.epoch_ms for _, line in later)
    return 1000 * sum(count for count, _ in later) / milliseconds if milliseconds else 0.0


def _later(lines: Sequence[Line]) -> list[tuple[int, Line]]:
    """The epochs with events, except the first of each start, with their numbers of events."""
    found: list[tuple[int, Line]] = []
    start, total = -1, 0
    for line in lines:
        if line.start == start and line.events_total > total:
            found.append((line.events_total - total, line))
        if line.events_total:
            start, total = line.start, line.events_total
    return found
