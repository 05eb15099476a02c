"""What was measured, as facts for programs and as tables for people.

A ratio is the quotient of the two medians exactly as they are shown, so whoever reads the table can check it. A run
that delivered less or more than it had to is told as WRONG, however fast it was.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Protocol

from lockgate.bench.settings import SIDES, Settings


class Measured(Protocol):
    """Whoever is measured: a guarantee, or something beside the guarantees."""

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
    cpu_us_per_event: float | None = None  # of the driver and its workers; None where it was not measured


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
        """Did every run deliver what it had to, neither less nor more?"""
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
        """How much less processor time each side takes than each of those before it; others who run do not matter."""
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
        lines = [*align(rows), *self._ratio_lines(), *told]
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
        return [line.rstrip() for line in align(rows)]


@dataclass(frozen=True)
class Spread:
    """Milliseconds of something that was done many times."""

    p50_ms: float
    max_ms: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """The middle and the worst of some durations."""
        return cls(p50_ms=round(statistics.median(seconds) * 1000, 1), max_ms=round(max(seconds) * 1000, 1))

    def __str__(self) -> str:
        return f"{self.p50_ms:.1f} / {self.max_ms:.1f}"


@dataclass(frozen=True)
class TransactionCost:
    """What an epoch pays beside its records."""

    partitions: int
    transactions: int
    begin: Spread  # fence older writers, read the ledger
    add: Spread  # the output partitions; tasks do it, while others compute
    end: Spread  # source offsets, marker, the decision
    complete: Spread  # until readers see it
    begin_and_end: Spread


@dataclass(frozen=True)
class TaskMemory:
    """The largest Python worker while epochs of one size were written."""

    rows_per_epoch: int
    epoch_count: int
    workers: int
    peak_bytes: int


@dataclass(frozen=True)
class LatenessPoint:
    """What one lateness costs and saves."""

    lateness_s: int
    late_count: int
    event_count: int
    wait_s_p50: float  # from the end of a window until its result is out

    @property
    def late_share(self) -> float:
        """The share of events that came too late for their window."""
        return self.late_count / self.event_count


@dataclass(frozen=True)
class LatenessAhead:
    """What becomes of a partition beside one that is ahead."""

    ahead_s: int
    lateness_s: int
    late_count: int
    event_count: int  # of the slow partition

    @property
    def late_share(self) -> float:
        """The share of the slow partition's events that came too late."""
        return self.late_count / self.event_count


@dataclass(frozen=True)
class Lateness:
    """Late events against the wait for results, and the effect of a fast partition on a slow one."""

    points: tuple[LatenessPoint, ...]
    aheads: tuple[LatenessAhead, ...]

    def lines(self) -> list[str]:
        """Two tables for people."""
        curve = [
            [f"{one.lateness_s} s", str(one.late_count), f"{one.late_share:.1%}", f"{one.wait_s_p50:.1f} s"]
            for one in self.points
        ]
        beside = [
            [f"{one.ahead_s} s", f"{one.lateness_s} s", str(one.late_count), f"{one.late_share:.1%}"]
            for one in self.aheads
        ]
        return [
            *align([["lateness", "late", "share", "wait p50"], *curve]),
            "",
            "a partition beside one that is ahead of it",
            *align([["ahead", "lateness", "late", "share"], *beside]),
        ]


@dataclass(frozen=True)
class Lap:
    """One run of one side of a contest, without the epochs that filled its state."""

    side: str
    repeat: int  # 0 is the warm-up
    seconds: float
    cpu_seconds: float  # of the driver and all its processes
    events_per_second: int
    cpu_us_per_event: float
    rows_count: int  # of all that came out
    digest: int


@dataclass(frozen=True)
class Contest:
    """Two queries, measured in turn: the one to compare with first."""

    name: str
    sides: tuple[str, str]
    laps: tuple[Lap, ...]
    is_alike: bool = True  # must both give the very same rows?

    @property
    def holds(self) -> bool:
        """Did every run give the rows that it had to?"""
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
        return [*align(rows), ratio, rows_told if self.holds else wrong]

    def _of(self, side: str) -> list[Lap]:
        return [lap for lap in self.laps if lap.side == side and lap.repeat > 0]


@dataclass(frozen=True)
class MemoryAt:
    """The resident memory of a job's processes at one look."""

    share: float  # of the backlog that was done
    driver_bytes: int  # Python: the driver, and who watches it
    jvm_bytes: int
    workers_bytes: int  # Python workers, and what they are forked from

    @property
    def total_bytes(self) -> int:
        """All of them."""
        return self.driver_bytes + self.jvm_bytes + self.workers_bytes


@dataclass(frozen=True)
class Backlog:
    """A job that was far behind, until it had caught up."""

    events: int
    delivered_count: int
    seconds: float  # from the end of the first epoch to that of the last
    events_per_second: int
    epoch_count: int
    epoch_ms_target: int
    epoch_ms_median: int
    epoch_ms_max: int
    epoch_ms_max_warm: int  # without the first two, in which everything is new
    at: tuple[MemoryAt, ...]
    peak: MemoryAt
    first_half_bytes_max: int
    last_half_bytes_max: int
    tolerance: float

    @property
    def holds(self) -> bool:
        """Is every event out once?"""
        return self.delivered_count == self.events

    @property
    def is_flat(self) -> bool:
        """Did it take no more memory in the second half than in the first?"""
        return is_flat(self.first_half_bytes_max, self.last_half_bytes_max, self.tolerance)

    def as_json(self) -> dict[str, Any]:
        """The facts as plain data."""
        return {**asdict(self), "holds": self.holds, "is_flat": self.is_flat}

    def lines(self) -> list[str]:
        """Two tables for people, and what they come to."""
        looks = [
            *((f"{look.share:.0%} done", look) for look in self.at),
            (f"most, {self.peak.share:.0%} done", self.peak),
        ]
        rows = [
            [
                name,
                *(
                    f"{part / 2**20:,.0f}"
                    for part in (one.total_bytes, one.jvm_bytes, one.driver_bytes, one.workers_bytes)
                ),
            ]
            for name, one in looks
        ]
        first, last = (part / 2**20 for part in (self.first_half_bytes_max, self.last_half_bytes_max))
        compared = f"at most {first:,.0f} MiB in the first half, {last:,.0f} MiB in the last"
        flat = f"{'flat' if self.is_flat else 'NOT FLAT'}: {compared}; tolerated: {self.tolerance:.0%} more"
        speed = f"{self.events_per_second:,} events/s in {self.seconds:.0f} s; {self.epoch_count} epochs"
        longest = f"longest {self.epoch_ms_max:,} ms, {self.epoch_ms_max_warm:,} ms without the first two"
        epochs = f"median {self.epoch_ms_median:,} ms, {longest}; epoch={self.epoch_ms_target:,} ms"
        out = f"every event is out once: {self.delivered_count:,} records, counted by reading them back"
        wrong = f"WRONG: {self.events:,} records were expected, {self.delivered_count:,} are out"
        return [
            *align([["MiB", "all", "JVM", "Python, driver", "Python, workers"], *rows]),
            flat,
            f"{speed}, {epochs}",
            out if self.holds else wrong,
        ]


def is_flat(first_half: int, last_half: int, tolerance: float) -> bool:
    """Does the second half of a backlog take no more memory than the first, but for a little?

    >>> is_flat(1000, 1090, 0.1), is_flat(1000, 700, 0.1), is_flat(1000, 1110, 0.1)
    (True, True, False)
    """
    return last_half <= first_half * (1 + tolerance)


@dataclass(frozen=True)
class Machine:
    """Where it was measured."""

    cores: int
    memory_bytes: int
    load_before: float  # of the last minute; what else runs makes figures small and the spread large
    python: str
    spark: str
    java: str
    kafka: str | None = None  # where it was measured, too
    postgres: str | None = None

    def line(self) -> str:
        """The machine in one line."""
        systems = {"Spark": self.spark, "Kafka": self.kafka, "PostgreSQL": self.postgres}
        versions = {**systems, "Python": self.python, "Java": self.java}
        return (
            f"{self.cores} cores, {self.memory_bytes / 2**30:.0f} GiB, load {self.load_before:.1f} before; "
            + ", ".join(f"{name} {version}" for name, version in versions.items() if version is not None)
        )


@dataclass(frozen=True)
class Report:
    """What was measured, as facts."""

    settings: Settings
    machine: Machine
    event_bytes: int = 0
    throughput: Throughput | None = None
    transactions: tuple[TransactionCost, ...] = ()
    memory: tuple[TaskMemory, ...] = ()
    table: Throughput | None = None
    lateness: Lateness | None = None
    windows: Contest | None = None
    state: tuple[Contest, ...] = ()
    keys: Contest | None = None
    at_most_once: Throughput | None = None
    acks: Throughput | None = None
    backlog: Backlog | None = None

    @property
    def holds(self) -> bool:
        """Did both sides deliver what they had to?"""
        compared = (self.throughput, self.table, self.windows, *self.state, self.keys, self.at_most_once, self.acks)
        return all(part.holds for part in (*compared, self.backlog) if part is not None)

    def as_json(self) -> dict[str, Any]:
        """The facts as plain data."""
        return {
            "command": self.settings.command,
            "settings": asdict(self.settings),
            "machine": asdict(self.machine),
            "event_bytes": self.event_bytes,
            "throughput": None if self.throughput is None else self.throughput.as_json(),
            "transactions": [asdict(cost) for cost in self.transactions],
            "memory": [asdict(one) for one in self.memory],
            "table": None if self.table is None else self.table.as_json(),
            "lateness": None if self.lateness is None else asdict(self.lateness),
            "windows": None if self.windows is None else self.windows.as_json(),
            "state": [contest.as_json() for contest in self.state],
            "keys": None if self.keys is None else self.keys.as_json(),
            "at_most_once": None if self.at_most_once is None else self.at_most_once.as_json(),
            "acks": None if self.acks is None else self.acks.as_json(),
            "backlog": None if self.backlog is None else self.backlog.as_json(),
            "holds": self.holds,
        }

    def lines(self) -> list[str]:
        """The facts as tables for people."""
        asked = self.settings
        size = f" of {self.event_bytes} bytes" if self.event_bytes else ""
        lines = [
            f"{asked.events:,} events{size} in {asked.partitions} partitions, {asked.rows_per_epoch:,} rows an epoch",
            f"machine: {self.machine.line()}",
            f"command: {self.settings.command}",
        ]
        if self.throughput is not None:
            lines += ["", "THROUGHPUT", *self.throughput.lines()]
        if self.transactions:
            head = ["partitions", "begin", "add", "end", "complete", "begin + end"]
            rows = [
                [str(one.partitions), *map(str, (one.begin, one.add, one.end, one.complete, one.begin_and_end))]
                for one in self.transactions
            ]
            count = self.transactions[0].transactions
            lines += ["", f"TRANSACTIONS, ms: p50 / max of {count}", *align([head, *rows])]
        if self.memory:
            rows = [
                [f"{one.rows_per_epoch:,}", str(one.epoch_count), str(one.workers), f"{one.peak_bytes / 2**20:.0f} MiB"]
                for one in self.memory
            ]
            head = ["rows an epoch", "epochs", "workers", "largest worker"]
            lines += ["", "MEMORY of a task (resident, peak)", *align([head, *rows])]
        if self.table is not None:
            lines += ["", "TABLE: events as rows into PostgreSQL", *self.table.lines()]
        if self.lateness is not None:
            count = self.lateness.points[0].event_count
            title = f"LATENESS: late events against the wait for results, {count:,} events of its own"
            lines += ["", title, *self.lateness.lines()]
        if self.windows is not None:
            lines += ["", "WINDOWS: native, against the same query by hand", *self.windows.lines()]
        if self.state:
            lines += ["", "STATE in Python, against transformWithState by hand"]
            lines += ["\n".join(contest.lines()) for contest in self.state]
        if self.keys is not None:
            lines += ["", "KEYS: few against many", *self.keys.lines()]
        if self.at_most_once is not None:
            lines += [
                "",
                "AT MOST ONCE, against the plain pipeline by hand and what promises more",
                *self.at_most_once.lines(),
            ]
        if self.acks is not None:
            lines += ["", "AT LEAST ONCE, by acknowledgement against by checkpoint", *self.acks.lines()]
        if self.backlog is not None:
            lines += ["", "BACKLOG: the resident memory of a job that is far behind", *self.backlog.lines()]
        return lines


def median_of(figures: Sequence[int]) -> int:
    """The median, as it is shown.

    >>> median_of([3, 1, 2]), median_of([1, 2])
    (2, 2)
    """
    return round(statistics.median(figures))


def quotient(one: float, other: float) -> float:
    """Of two figures as they are shown; nothing by nothing is nothing."""
    return round(one / other, 3) if other else 0.0


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows in columns: the first to the left, the others to the right.

    >>> align([["side", "events/s"], ["one", "7"]])
    ['side  events/s', 'one          7']
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            text.rjust(width) if column else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
