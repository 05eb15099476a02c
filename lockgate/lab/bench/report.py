"""The report of a benchmark, as facts for programs and as tables for people (ratios.py has the comparisons)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lockgate.columns import AFTER_FIRST, columns
from lockgate.lab.bench.ratios import Contest, Throughput
from lockgate.lab.bench.settings import Settings


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
    """The cost and benefit of one lateness."""

    lateness_s: int
    late_count: int
    event_count: int
    wait_s_p50: float  # from the end of a window until its result is written

    @property
    def late_share(self) -> float:
        """The share of events that were late for their window."""
        return self.late_count / self.event_count


@dataclass(frozen=True)
class LatenessAhead:
    """The late events of a partition beside one that is ahead."""

    ahead_s: int
    lateness_s: int
    late_count: int
    event_count: int  # of the slow partition

    @property
    def late_share(self) -> float:
        """The share of the slow partition's events that were late."""
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
            *columns([["lateness", "late", "share", "wait p50"], *curve], right=AFTER_FIRST),
            "",
            "a partition beside one that is ahead of it",
            *columns([["ahead", "lateness", "late", "share"], *beside], right=AFTER_FIRST),
        ]


@dataclass(frozen=True)
class MemoryAt:
    """The resident memory of a job's processes at one moment."""

    share: float  # of the backlog that was done
    driver_bytes: int  # Python: the driver and its supervisor
    jvm_bytes: int
    workers_bytes: int  # Python workers, and the process that forks them

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
        """Was every event committed once?"""
        return self.delivered_count == self.events

    @property
    def is_flat(self) -> bool:
        """Did it take no more memory in the second half than in the first?"""
        return is_flat(self.first_half_bytes_max, self.last_half_bytes_max, self.tolerance)

    def as_json(self) -> dict[str, Any]:
        """The facts as plain data."""
        return {**asdict(self), "holds": self.holds, "is_flat": self.is_flat}

    def lines(self) -> list[str]:
        """Two tables for people, and their summary."""
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
        out = f"every event was committed once: {self.delivered_count:,} records, counted by reading them back"
        wrong = f"WRONG: {self.events:,} records were expected, {self.delivered_count:,} are committed"
        return [
            *columns([["MiB", "all", "JVM", "Python, driver", "Python, workers"], *rows], right=AFTER_FIRST),
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
    load_before: float  # of the last minute; other work makes figures small and the spread large
    python: str
    spark: str
    java: str
    kafka: str | None = None  # the Kafka of the measurement
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
    """The measurements, as facts."""

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
        """Did both sides deliver the expected rows?"""
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
            lines += ["", f"TRANSACTIONS, ms: p50 / max of {count}", *columns([head, *rows], right=AFTER_FIRST)]
        if self.memory:
            rows = [
                [f"{one.rows_per_epoch:,}", str(one.epoch_count), str(one.workers), f"{one.peak_bytes / 2**20:.0f} MiB"]
                for one in self.memory
            ]
            head = ["rows an epoch", "epochs", "workers", "largest worker"]
            lines += ["", "MEMORY of a task (resident, peak)", *columns([head, *rows], right=AFTER_FIRST)]
        if self.table is not None:
            lines += ["", "TABLE: events as rows into PostgreSQL", *self.table.lines()]
        if self.lateness is not None:
            count = self.lateness.points[0].event_count
            title = f"LATENESS: late events against the wait for results, {count:,} events of its own"
            lines += ["", title, *self.lateness.lines()]
        if self.windows is not None:
            lines += ["", "WINDOWS: native, against the hand-written query", *self.windows.lines()]
        if self.state:
            lines += ["", "STATE in Python, against hand-written transformWithState"]
            lines += ["\n".join(contest.lines()) for contest in self.state]
        if self.keys is not None:
            lines += ["", "KEYS: few against many", *self.keys.lines()]
        if self.at_most_once is not None:
            lines += [
                "",
                "AT MOST ONCE, against the hand-written pipeline and stronger guarantees",
                *self.at_most_once.lines(),
            ]
        if self.acks is not None:
            lines += ["", "AT LEAST ONCE, by acknowledgement against by checkpoint", *self.acks.lines()]
        if self.backlog is not None:
            lines += ["", "BACKLOG: the resident memory of a job that is far behind", *self.backlog.lines()]
        return lines
