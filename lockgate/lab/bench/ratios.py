"""How fast one side is beside another, in one run.

A ratio is the quotient of the two medians exactly as they are shown, so a reader of the table can check it. A run that
delivered less or more than expected is reported as WRONG, however fast it was.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Protocol

from lockgate.columns import AFTER_FIRST, columns
from lockgate.lab.bench.settings import SIDES


class Measured(Protocol):
    """A side of the measurement: a guarantee, or something to compare with."""

    @property
    def name(self) -> str:
        """For programs."""

    @property
    def label(self) -> str:
        """For people."""


@dataclass(frozen=True)
class Timing:
    """One run of one side."""

    side: str
    repeat: int  # 0 is the warm-up
    seconds: float  # from the start of the run until it has caught up and its output is visible
    events_per_second: int
    epoch_events_per_second: int  # in the median epoch: without start and end
    epoch_count: int
    delivered_count: int
    cpu_us_per_event: float | None = None  # of the driver and its workers; None if it was not measured


@dataclass(frozen=True)
class Throughput:
    """All sides, measured in turn."""

    expected_count: int
    client: Mapping[str, Mapping[str, str]]  # what each side was set to
    timings: tuple[Timing, ...]
    delivered: str = "records"
    counted: str = "by reading them back"
    sides: tuple[Measured, ...] = SIDES  # the one to compare with first

    @property
    def holds(self) -> bool:
        """Did every run deliver exactly the expected rows?"""
        return all(timing.delivered_count == self.expected_count for timing in self.timings)

    def of(self, side: Measured) -> tuple[Timing, ...]:
        """The timings of a side that count: without the warm-up."""
        return tuple(one for one in self.timings if one.side == side.name and one.repeat > 0)

    def median(self, side: Measured) -> int:
        """Events per second of a side, whole runs."""
        return median_of([timing.events_per_second for timing in self.of(side)])

    def median_epoch(self, side: Measured) -> int:
        """Events per second of a side inside epochs."""
        return median_of([timing.epoch_events_per_second for timing in self.of(side)])

    @cached_property
    def ratio(self) -> float:
        """How much faster the second side is, in whole runs; below 1 it is slower."""
        return quotient(self.median(self.sides[1]), self.median(self.sides[0]))

    @cached_property
    def ratio_epoch(self) -> float:
        """The same for median epochs."""
        return quotient(self.median_epoch(self.sides[1]), self.median_epoch(self.sides[0]))

    @cached_property
    def ratios(self) -> dict[str, dict[str, float]]:
        """How much faster each side is than each of those before it, in whole runs."""
        return self._in_pairs(lambda side, other: quotient(self.median(side), self.median(other)))

    @cached_property
    def ratios_cpu(self) -> dict[str, dict[str, float]] | None:
        """How much less processor time each side takes than each of those before it; other processes do not matter."""
        costs = {side.name: self.median_cpu(side) for side in self.sides}
        known = {name: cost for name, cost in costs.items() if cost is not None}
        if len(known) < len(costs):
            return None
        return self._in_pairs(lambda side, other: quotient(known[other.name], known[side.name]))

    def median_cpu(self, side: Measured) -> float | None:
        """Processor time of a side, in microseconds an event."""
        costs = [one.cpu_us_per_event for one in self.of(side) if one.cpu_us_per_event is not None]
        return round(statistics.median(costs), 1) if costs else None

    def _in_pairs(self, ratio: Callable[[Measured, Measured], float]) -> dict[str, dict[str, float]]:
        return {
            side.name: {other.name: ratio(side, other) for other in self.sides[:index]}
            for index, side in enumerate(self.sides)
            if index
        }

    def as_json(self) -> dict[str, Any]:
        """The facts as plain data."""
        return {
            "expected_count": self.expected_count,
            "holds": self.holds,
            "client": {name: dict(given) for name, given in self.client.items()},
            "timings": [asdict(timing) for timing in self.timings],
            "events_per_second_median": {side.name: self.median(side) for side in self.sides},
            "epoch_events_per_second_median": {side.name: self.median_epoch(side) for side in self.sides},
            "ratio": self.ratio,
            "ratio_epoch": self.ratio_epoch,
            "ratios": self.ratios,
            "cpu_us_per_event_median": {side.name: self.median_cpu(side) for side in self.sides},
            "ratios_cpu": self.ratios_cpu,
        }

    def lines(self) -> list[str]:
        """A table for people."""
        repeats = sorted({timing.repeat for timing in self.timings})
        shown = ["warm-up" if repeat == 0 else f"repeat {repeat}" for repeat in repeats]
        rows = [["events/s", *shown, "median"]]
        for label, name, of in (
            ("", "events_per_second", self.median),
            (", in an epoch", "epoch_events_per_second", self.median_epoch),
        ):
            for side in self.sides:
                by_repeat = {one.repeat: getattr(one, name) for one in self.timings if one.side == side.name}
                told = [f"{by_repeat[repeat]:,}" for repeat in repeats]
                rows.append([f"{side.label}{label}", *told, f"{of(side):,}"])
        for side in self.sides if self.ratios_cpu is not None else ():
            costs = {one.repeat: f"{one.cpu_us_per_event:.1f}" for one in self.timings if one.side == side.name}
            spent = [costs[repeat] for repeat in repeats]
            rows.append([f"{side.label}, us of processor an event", *spent, f"{self.median_cpu(side):.1f}"])
        told = [
            f"{side.label}: {' '.join(f'{name}={text}' for name, text in self.client[side.name].items())}"
            for side in self.sides
        ]
        lines = [*columns(rows, right=AFTER_FIRST), *self._ratio_lines(), *told]
        if self.holds:
            return [*lines, f"every run delivered {self.expected_count:,} {self.delivered}, counted {self.counted}"]
        wrong = [
            f"{timing.side} repeat {timing.repeat}: {timing.delivered_count:,}"
            for timing in self.timings
            if timing.delivered_count != self.expected_count
        ]
        return [*lines, f"WRONG: {self.expected_count:,} {self.delivered} were expected; {'; '.join(wrong)}"]

    def _ratio_lines(self) -> list[str]:
        if len(self.sides) == 2:
            return [f"ratio of the medians: {self.ratio:.2f} (whole runs), {self.ratio_epoch:.2f} (epochs)"]
        rows = [["ratio of the medians to", *(side.label for side in self.sides[:-1])]]
        for label, ratios in (("", self.ratios), (", processor time", self.ratios_cpu)):
            for side in self.sides[1:] if ratios is not None else ():
                told = [f"{ratio:.2f}" for ratio in (ratios or {})[side.name].values()]
                rows.append([f"{side.label}{label}", *told, *[""] * (len(self.sides) - 1 - len(told))])
        return columns(rows, right=AFTER_FIRST)


@dataclass(frozen=True)
class Lap:
    """One run of one side of a contest, without the epochs that filled its state."""

    side: str
    repeat: int  # 0 is the warm-up
    seconds: float
    cpu_seconds: float  # of the driver and all its processes
    events_per_second: int
    cpu_us_per_event: float
    rows_count: int  # of all results
    digest: int


@dataclass(frozen=True)
class Contest:
    """Two queries, measured in turn: the one to compare with first."""

    name: str
    sides: tuple[str, str]
    laps: tuple[Lap, ...]
    is_alike: bool = True  # must both give exactly the same rows?

    @property
    def holds(self) -> bool:
        """Did every run give the expected rows?"""
        found = {(None if self.is_alike else lap.side, lap.rows_count, lap.digest) for lap in self.laps}
        return len(found) == (1 if self.is_alike else len(self.sides))

    def median(self, side: str) -> int:
        """Events per second of a side."""
        return median_of([lap.events_per_second for lap in self._of(side)])

    def median_cpu(self, side: str) -> float:
        """Microseconds of processor time for an event."""
        return round(statistics.median(lap.cpu_us_per_event for lap in self._of(side)), 1)

    @property
    def ratio(self) -> float:
        """How much faster the second side is; below 1 it is slower."""
        return quotient(self.median(self.sides[1]), self.median(self.sides[0]))

    @property
    def ratio_cpu(self) -> float:
        """The same for the processor time: how much less of it the second side needs."""
        return quotient(self.median_cpu(self.sides[0]), self.median_cpu(self.sides[1]))

    def as_json(self) -> dict[str, Any]:
        """The facts as plain data."""
        return {
            "name": self.name,
            "holds": self.holds,
            "laps": [asdict(lap) for lap in self.laps],
            "events_per_second_median": {side: self.median(side) for side in self.sides},
            "cpu_us_per_event_median": {side: self.median_cpu(side) for side in self.sides},
            "ratio": self.ratio,
            "ratio_cpu": self.ratio_cpu,
        }

    def lines(self) -> list[str]:
        """A table for people."""
        repeats = sorted({lap.repeat for lap in self.laps})
        shown = ["warm-up" if repeat == 0 else f"repeat {repeat}" for repeat in repeats]
        rows = [[self.name, *shown, "median"]]
        for side in self.sides:
            speeds = {lap.repeat: f"{lap.events_per_second:,}" for lap in self.laps if lap.side == side}
            rows.append([f"{side}, events/s", *(speeds[repeat] for repeat in repeats), f"{self.median(side):,}"])
        for side in self.sides:
            costs = {lap.repeat: f"{lap.cpu_us_per_event:.1f}" for lap in self.laps if lap.side == side}
            told = [costs[repeat] for repeat in repeats]
            rows.append([f"{side}, us of processor an event", *told, f"{self.median_cpu(side):.1f}"])
        ratio = f"ratio of the medians: {self.ratio:.2f} (time), {self.ratio_cpu:.2f} (processor time)"
        wrong = "WRONG: " + "; ".join(
            f"{lap.side} repeat {lap.repeat} gave {lap.rows_count:,} rows with digest {lap.digest}" for lap in self.laps
        )
        rows_told = "every run of both sides gave the same rows" if self.is_alike else "every run gave the same rows"
        return [*columns(rows, right=AFTER_FIRST), ratio, rows_told if self.holds else wrong]

    def _of(self, side: str) -> list[Lap]:
        return [lap for lap in self.laps if lap.side == side and lap.repeat > 0]


def median_of(figures: Sequence[int]) -> int:
    """The median, as it is shown.

    >>> median_of([3, 1, 2]), median_of([1, 2])
    (2, 2)
    """
    return round(statistics.median(figures))


def quotient(one: float, other: float) -> float:
    """The quotient of two figures as they are shown; 0 by 0 is 0."""
    return round(one / other, 3) if other else 0.0
