"""Several functions over one event, side by side, joined when all have answered or the deadline is over.

    launch    every function gets the event and a thread of its own; the deadline of the event starts here
    land      the scores that came in time, and for each of the others the reason why it is missing

Several events are in flight at once, each with its own deadline. They land in the order in which they were launched.

A thread cannot be ended from outside: a call that is cut off continues, and its answer is dropped. So a function has at
most twice as many calls as there may be events in flight. While hanging calls take all of them, the function is
skipped. When the first of them returns, it is called again.

What counts is when a function returned, not when the task looked: an answer after its deadline is missing.
"""

from __future__ import annotations

import math
import reprlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any, Protocol

_IDLE_SECONDS = 10.0  # after which an unused thread ends
_STEP = math.log(1.02)  # latencies are exact to 2 %
_REASON_MAX = 400  # characters


class Ending(Enum):
    """How a function's call for an event ended."""

    ANSWERED = "answered"
    TIMED_OUT = "timed_out"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Score:
    """What a function gave for an event, or why it gave nothing."""

    ending: Ending
    value: Any = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Joined:
    """The scores of an event, by the names of the functions, and how long they took together."""

    scores: Mapping[str, Score]
    seconds: float

    @property
    def missing(self) -> dict[str, str]:
        """The functions without a score, with the reasons."""
        return {name: score.reason or "" for name, score in self.scores.items() if score.ending is not Ending.ANSWERED}


class FanOutClock(Protocol):
    """What time it is, in seconds, and how to wait for more of it."""

    def now(self) -> float:
        """The time, from any start."""

    def wait(self, changed: threading.Condition, seconds: float) -> None:
        """Wait for a change, or until so much time has passed."""


class MachineClock:
    """The clock of the machine."""

    def now(self) -> float:
        """As the protocol says."""
        return time.monotonic()

    def wait(self, changed: threading.Condition, seconds: float) -> None:
        """As the protocol says."""
        changed.wait(seconds)


class FanOutMachine:
    """Calls functions side by side. A process has one for each step; its threads outlive tasks."""

    def __init__(
        self,
        functions: Mapping[str, Callable[[Any], Any]],
        *,
        deadline_seconds: float,
        in_flight: int,
        clock: FanOutClock | None = None,
    ) -> None:
        self._deadline_seconds, self._in_flight = deadline_seconds, in_flight
        self._clock = clock or MachineClock()
        self._changed = threading.Condition()  # guards all that threads share
        self._lanes = [
            _Lane(name, function, 2 * in_flight, self._changed, self._clock) for name, function in functions.items()
        ]

    @property
    def has_threads(self) -> bool:
        """Does a call run, or do threads wait for the next one? Idle threads end after a while."""
        with self._changed:
            return any(lane.threads for lane in self._lanes)

    @property
    def running(self) -> dict[str, int]:
        """How many calls of each function have not returned, also those that were cut off."""
        with self._changed:
            return {lane.name: lane.running for lane in self._lanes}

    def join(self, rows: Iterable[Any]) -> Iterator[Joined]:
        """The scores of every row, in their order."""
        flights: deque[_Flight] = deque()
        for row in rows:
            if len(flights) == self._in_flight:
                yield self._land(flights.popleft())
            flights.append(self._launch(row))
        while flights:
            yield self._land(flights.popleft())

    def _launch(self, row: Any) -> _Flight:
        with self._changed:
            now = self._clock.now()
            flight = _Flight(began=now, due=now + self._deadline_seconds, open=len(self._lanes))
            for lane in self._lanes:
                lane.take(flight, row)
            return flight

    def _land(self, flight: _Flight) -> Joined:
        with self._changed:
            while flight.open and (left := flight.due - self._clock.now()) > 0:
                self._clock.wait(self._changed, left)
            answers = dict(flight.answers)
        cut = Score(Ending.TIMED_OUT, reason=f"it took longer than {self._deadline_seconds * 1000:g} ms")
        late = (flight.due + 1, cut)
        told = {lane.name: answers.get(lane.name, late) for lane in self._lanes}
        scores = {name: score if at <= flight.due else cut for name, (at, score) in told.items()}
        is_cut = any(score is cut for score in scores.values())
        ended = self._clock.now() if is_cut else max(at for at, _ in told.values())
        return Joined(scores, ended - flight.began)


@dataclass
class _Flight:
    """An event whose functions run."""

    began: float
    due: float
    open: int  # functions that have not answered
    answers: dict[str, tuple[float, Score]] = field(default_factory=dict)  # when, and what

    def put(self, name: str, at: float, score: Score) -> None:
        self.answers[name] = at, score
        self.open -= 1


class _Lane:
    """A function and the threads that call it: as many as were ever needed at once, until they are idle."""

    def __init__(
        self,
        name: str,
        function: Callable[[Any], Any],
        calls_max: int,
        changed: threading.Condition,
        clock: FanOutClock,
    ) -> None:
        self.name = name
        self.running = 0
        self._function, self._calls_max, self._changed, self._clock = function, calls_max, changed, clock
        self.threads = 0
        self._calls: SimpleQueue[tuple[_Flight, Any]] = SimpleQueue()

    def take(self, flight: _Flight, row: Any) -> None:
        """Let a thread call the function; the lock is held."""
        if self.running >= self._calls_max:
            reason = f"{self.running} calls of it have not come back, and it is not called before one of them has"
            flight.put(self.name, flight.began, Score(Ending.SKIPPED, reason=reason))
            return
        if self.running == self.threads:
            # Daemons: a process does not wait for a call that never returns.
            threading.Thread(target=self._serve, name=f"lockgate-fan-out-{self.name}", daemon=True).start()
            self.threads += 1
        self.running += 1
        self._calls.put((flight, row))

    def _serve(self) -> None:
        while True:
            try:
                flight, row = self._calls.get(timeout=_IDLE_SECONDS)
            except Empty:
                with self._changed:
                    if not self._calls.empty():
                        continue  # it came just now, and needs this thread
                    self.threads -= 1
                    return
            try:
                score = Score(Ending.ANSWERED, self._function(row))
            except BaseException as error:  # noqa: BLE001 - sys.exit raises one that is no Exception
                score = Score(Ending.FAILED, reason=describe_error(error))
            at = self._clock.now()
            with self._changed:
                self.running -= 1
                flight.put(self.name, at, score)
                if flight.open == 0:
                    self._changed.notify_all()


def describe_error(error: BaseException) -> str:
    """An error as a reason."""
    try:
        return as_reason(f"{type(error).__name__}: {error}")
    except BaseException:  # noqa: BLE001 - the text of an error is computed by its class, which may raise anything
        return as_reason(type(error).__name__)


def describe_misfit(value: Any, kind: Any, error: BaseException) -> str:
    """Why a value is no score: it does not have the type of its column."""
    try:
        shown = _BRIEF.repr(value)
    except BaseException:  # noqa: BLE001 - as above
        shown = f"a value of type {type(value).__name__} that cannot be shown"
    try:
        why = (str(error).splitlines() or [""])[0]
    except BaseException:  # noqa: BLE001 - as above
        why = type(error).__name__
    return as_reason(f"{shown} is not of type {kind}: {why}")


def as_reason(text: str) -> str:
    """A text for a result, a dead letter and their topics: shortened, and with characters that can be written."""
    cut = text if len(text) <= _REASON_MAX else f"{text[:_REASON_MAX]}…"
    return cut.encode(errors="backslashreplace").decode()


_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = _REASON_MAX // 2


@dataclass
class Tally:
    """How many events, and calls of each function, ended how; and how long events took."""

    events: int = 0
    partial: int = 0
    endings: dict[str, Counter[str]] = field(default_factory=dict)  # by function
    latencies: Counter[int] = field(default_factory=Counter)  # events by the logarithm of their microseconds
    began: float = 0.0  # when the task began that counts, in seconds since 1970
    waits: Counter[int] = field(default_factory=Counter)  # as latencies: how long they had waited when it began
    ages: Counter[int] = field(default_factory=Counter)  # as latencies: from arrival until the results were written

    def count(self, joined: Joined) -> None:
        """Add an event."""
        self.events += 1
        self.partial += bool(joined.missing)
        for name, score in joined.scores.items():
            self.endings.setdefault(name, Counter())[score.ending.value] += 1
        self.latencies[_bucket(joined.seconds)] += 1

    def arrive(self, arrived: float) -> None:
        """Note when an event arrived, in seconds since 1970. A time in the future counts as the start of the task."""
        self.waits[_bucket(self.began - arrived)] += 1

    def publish(self, now: float) -> Tally:
        """The same after the results of the task are written, with the ages of events with a known arrival."""
        ages = Counter[int]()
        for bucket, count in self.waits.items():
            # The clock of the task cancels out: now, less the arrival, remains.
            ages[_bucket(_seconds(bucket) + now - self.began)] += count
        return replace(self, waits=Counter(), ages=ages)

    def add(self, other: Tally) -> None:
        """Add the counts of another one."""
        self.events += other.events
        self.partial += other.partial
        for name, endings in other.endings.items():
            self.endings.setdefault(name, Counter()).update(endings)
        self.latencies.update(other.latencies)
        self.ages.update(other.ages)

    def report(self) -> dict[str, Any]:
        """As plain data, under the names of `lockgate run --json`."""
        return {
            "events": self.events,
            "partial": self.partial,
            "functions": {
                name: {ending.value: endings[ending.value] for ending in Ending}
                for name, endings in self.endings.items()
            },
            **{f"latency_ms_{name}": _quantile_ms(self.latencies, share) for name, share in _QUANTILES.items()},
            "stamped": self.ages.total(),
            **{f"end_to_end_ms_{name}": _quantile_ms(self.ages, share) for name, share in _QUANTILES.items()},
        }


_QUANTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999}


def _bucket(seconds: float) -> int:
    return round(math.log(max(seconds * 1e6, 1.0)) / _STEP)


def _seconds(bucket: int) -> float:
    return math.exp(bucket * _STEP) / 1e6


def _quantile_ms(counts: Counter[int], share: float) -> float | None:
    rank, seen = math.ceil(share * counts.total()), 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= rank:
            return round(_seconds(bucket) * 1000, 3)
    return None
