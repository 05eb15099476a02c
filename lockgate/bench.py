"""What exactly-once costs, measured on this machine: throughput, the price of a transaction, the memory of a task.

Figures of two runs on two days cannot be compared, so nothing here is a bar by itself: the same job over the same input
is run under both guarantees in turn, in one Spark driver, and what counts is the quotient of the two medians.

    throughput     at-least-once (Spark's own Kafka writer) against end-to-end exactly-once; each run with a fresh
                   checkpoint and a fresh topic. The order is turned round with every repeat, and the first repeat only
                   warms up. What came out is read back and counted: a side that loses or doubles has no speed.
    transactions   what an epoch pays beside its records, at few and at many partitions
    memory         the largest Python worker, by the size of the epoch; each size in a driver of its own, because a
                   worker keeps the memory that an earlier run made it take

Whatever it makes (topics, ledgers, checkpoints, services) it takes away again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shlex
import shutil
import signal
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockgate.commit.ledger import Entry
from lockgate.dataflow.job import Job
from lockgate.dataflow.stream import stream
from lockgate.errors import Failed, Refused
from lockgate.guarantees import Guarantee
from lockgate.kafka.ledgertopic import LedgerTopic, ledger_topic, transactional_id
from lockgate.kafka.settings import BATCH_BYTES, read_settings
from lockgate.kafka.topics import describe_outputs, make_topic, transaction_timeout_ms
from lockgate.kafka.transaction import Transactions
from lockgate.kafka.wire import Connection, Fetched, Place, Unanswered, disconnect_all
from lockgate.runtime.progress import Progress
from lockgate.runtime.run import ROWS_PER_EPOCH, Run, run
from lockgate.services.stack import Stack
from lockgate.sinks.kafka import KafkaSink
from lockgate.sources.kafka import KafkaSource
from lockgate.spark.jars import connector_jars
from lockgate.spark.session import SessionPlan, open_session

if TYPE_CHECKING:
    from lockgate.kafka.encode import Records

EVENTS = 2_000_000
PARTITIONS = 4
REPEATS = 3
PARTS = ("throughput", "transactions", "memory")
JOBS = ("parse", "pass")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SIDES = (Guarantee.AT_LEAST_ONCE, Guarantee.END_TO_END_EXACTLY_ONCE)

SPARK_WRITER = {"linger.ms": "20", "batch.size": "262144"}
"""Java's defaults send 16 KiB at a time; these let Spark's own writer fill larger batches. A guess at its best. The
transactional writer sends what an epoch has in large batches by itself, and refuses linger.ms, which it has no use for.
"""

MANY_PARTITIONS = 64
TRANSACTIONS = 30
EPOCH_SIZES = (50_000, 200_000, 800_000)
LIMIT_CENTS = 10_000
"""Nine payments of ten are at least so large."""

PREFIX = "lockgate-bench-"
WHERE = "lockgate bench"
_CARDS = 10_000
_BEGAN_MS = int(datetime(2026, 1, 1, tzinfo=timezone.utc).timestamp() * 1000)
_CHUNK = 200_000
_WARM_UP_TRANSACTIONS = 5
_LOOK_SECONDS = 0.05
_SILENCE_SECONDS = 60.0

Tell = Callable[[str], None]
GoOn = Callable[[], None]


@dataclass(frozen=True)
class Settings:
    """What is to be measured."""

    events: int = EVENTS
    partitions: int = PARTITIONS
    rows_per_epoch: int = ROWS_PER_EPOCH
    codec: str = "none"
    repeats: int = REPEATS
    job: str = "parse"
    is_keyed: bool = True
    is_exchanged: bool = False
    parts: tuple[str, ...] = PARTS
    seed: int = 7

    def __post_init__(self) -> None:
        for name in ("events", "partitions", "rows_per_epoch", "repeats"):
            if getattr(self, name) < 1:
                raise Refused(
                    f"{name.replace('_', ' ')}: {getattr(self, name)} is too few",
                    where=f"--{name.replace('_', '-')}",
                    fix="ask for at least one",
                )
        if self.is_exchanged and (self.job != "parse" or not self.is_keyed):
            raise Refused(
                "only rows whose key is a part of their value can be made to need an exchange",
                where="--exchange",
                fix="leave it away, or measure --job parse --keyed",
            )

    @property
    def command(self) -> str:
        """The command that measures the same again."""
        words = ["lockgate", "bench", "--events", self.events, "--partitions", self.partitions]
        words += ["--rows-per-epoch", self.rows_per_epoch, "--codec", self.codec, "--repeats", self.repeats]
        words += ["--job", self.job, "--keyed" if self.is_keyed else "--no-key"]
        words += ["--exchange"] if self.is_exchanged else []
        words += ["--seed", self.seed]
        words += ["--part", self.parts[0]] if len(self.parts) == 1 else []
        return shlex.join(map(str, words))

    def client(self, side: Guarantee) -> dict[str, str]:
        """The client's settings of a side: the same codec, and for Spark's writer what makes it fast."""
        return {"compression.type": self.codec, **(SPARK_WRITER if side is Guarantee.AT_LEAST_ONCE else {})}

    def epoch_sizes(self) -> tuple[int, ...]:
        """The sizes of epochs whose memory is compared: sixteen times as many rows in the last as in the first."""
        if self.events >= EPOCH_SIZES[-1]:
            return EPOCH_SIZES
        return tuple(max(1, self.events // part) for part in (16, 4, 1))


def job(settings: Settings, side: Guarantee, *, servers: str, payments: str, out: str, name: str) -> Job:
    """The job that both sides run: payments of some size from one topic into another."""
    client = settings.client(side)
    key = "card" if settings.is_keyed else None
    if settings.job == "pass":
        source = KafkaSource(topic=payments, servers=servers, key="card STRING", value="value BINARY", format="bytes")
        rows = stream("payments", source).select(*(["card", "value"] if key else ["value"]))
        sink = KafkaSink(topic=out, servers=servers, key=key, format="bytes", client=client)
    else:
        value = "id BIGINT, cents INT, at BIGINT, shop STRING"
        if settings.is_exchanged:
            # Nobody can tell that rows are partitioned by a column of their value.
            source = KafkaSource(topic=payments, servers=servers, value=f"card STRING, {value}")
        else:
            source = KafkaSource(topic=payments, servers=servers, key="card STRING", value=value)
        chosen = stream("payments", source).where(f"cents >= {LIMIT_CENTS}")
        rows = chosen.select("id", "card", "cents", "at", "shop")
        sink = KafkaSink(topic=out, servers=servers, key=key, client=client)
    return Job(name, rows.to("out", sink), guarantee=side)


# -- the input -------------------------------------------------------------------------------------------------------


class Payments:
    """The events: JSON of about 90 bytes, keyed by card; a function of the seed."""

    def __init__(self, settings: Settings) -> None:
        import numpy as np

        rng = np.random.default_rng(settings.seed)
        self.count = settings.events
        self._cards = rng.integers(0, _CARDS, size=self.count)
        self._cents = rng.integers(0, 100_000, size=self.count)
        self._partition_of = _partitions_of_cards(settings.partitions)

    def expected_count(self, settings: Settings) -> int:
        """How many records the job must write."""
        return self.count if settings.job == "pass" else int((self._cents >= LIMIT_CENTS).sum())

    def records(self, start: int, stop: int) -> Iterator[tuple[int, Records]]:
        """Some of the events as the records of each partition, where Java's partitioner would put them."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        from lockgate.kafka.encode import Records

        def text(numbers: Any, width: int = 0) -> Any:
            shown = pc.cast(pa.array(numbers), pa.string())
            return pc.utf8_lpad(shown, width=width, padding="0") if width else shown

        cards, numbers = self._cards[start:stop], np.arange(start, stop)
        keys = pc.binary_join_element_wise("card-", text(cards, 4), "")
        parts = [
            *('{"id":', text(numbers), ',"card":"', keys, '","cents":', text(self._cents[start:stop])),
            *(',"at":', text(_BEGAN_MS + numbers), ',"shop":"shop-', text(cards * 31 % 997, 4), '"}'),
        ]
        values = pc.binary_join_element_wise(*parts, "").cast(pa.binary())
        partitions = self._partition_of[cards]
        for partition in np.unique(partitions).tolist():
            own = pa.array(np.flatnonzero(partitions == partition))
            yield partition, Records(keys=keys.cast(pa.binary()).take(own), values=values.take(own))


def _partitions_of_cards(partitions: int) -> Any:
    import numpy as np
    from kafka.partitioner.default import murmur2

    hashes = [murmur2(f"card-{card:04}".encode()) & 0x7FFFFFFF for card in range(_CARDS)]
    return np.array(hashes, dtype=np.int64) % partitions


# -- what is told ----------------------------------------------------------------------------------------------------


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


@dataclass(frozen=True)
class Throughput:
    """Both sides, measured in turn."""

    expected_count: int
    client: Mapping[str, Mapping[str, str]]
    timings: tuple[Timing, ...]

    @property
    def holds(self) -> bool:
        """Did every run deliver what it had to, neither less nor more?"""
        return all(timing.delivered_count == self.expected_count for timing in self.timings)

    def of(self, side: Guarantee) -> tuple[Timing, ...]:
        """The timings of a side that count: without the warm-up."""
        return tuple(one for one in self.timings if one.side == side.name and one.repeat > 0)

    def median(self, side: Guarantee) -> int:
        """Events per second of a side, whole runs."""
        return median_of([timing.events_per_second for timing in self.of(side)])

    def median_epoch(self, side: Guarantee) -> int:
        """Events per second of a side inside epochs."""
        return median_of([timing.epoch_events_per_second for timing in self.of(side)])

    @cached_property
    def ratio(self) -> float:
        """How much faster exactly-once is, in whole runs; below 1 it is slower."""
        return quotient(self.median(SIDES[1]), self.median(SIDES[0]))

    @cached_property
    def ratio_epoch(self) -> float:
        """The same for median epochs."""
        return quotient(self.median_epoch(SIDES[1]), self.median_epoch(SIDES[0]))

    def as_json(self) -> dict[str, Any]:
        """The facts as plain data."""
        return {
            "expected_count": self.expected_count,
            "holds": self.holds,
            "client": {name: dict(given) for name, given in self.client.items()},
            "timings": [asdict(timing) for timing in self.timings],
            "events_per_second_median": {side.name: self.median(side) for side in SIDES},
            "epoch_events_per_second_median": {side.name: self.median_epoch(side) for side in SIDES},
            "ratio": self.ratio,
            "ratio_epoch": self.ratio_epoch,
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
            for side in SIDES:
                by_repeat = {one.repeat: getattr(one, name) for one in self.timings if one.side == side.name}
                told = [f"{by_repeat[repeat]:,}" for repeat in repeats]
                rows.append([f"{side.label}{label}", *told, f"{of(side):,}"])
        told = [
            f"{side.label}: acks=all{''.join(f' {name}={text}' for name, text in self.client[side.name].items())}"
            for side in SIDES
        ]
        lines = [*table(rows), f"ratio of the medians: {self.ratio:.2f} (whole runs), {self.ratio_epoch:.2f} (epochs)"]
        lines += told
        if self.holds:
            return [*lines, f"every run delivered {self.expected_count:,} records, counted by reading them back"]
        wrong = [
            f"{timing.side} repeat {timing.repeat}: {timing.delivered_count:,}"
            for timing in self.timings
            if timing.delivered_count != self.expected_count
        ]
        return [*lines, f"WRONG: {self.expected_count:,} records were expected; {'; '.join(wrong)}"]


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
class Machine:
    """Where it was measured."""

    cores: int
    memory_bytes: int
    load_before: float  # of the last minute; what else runs makes figures small and the spread large
    python: str
    spark: str
    kafka: str
    java: str

    def line(self) -> str:
        """The machine in one line."""
        return (
            f"{self.cores} cores, {self.memory_bytes / 2**30:.0f} GiB, load {self.load_before:.1f} before;"
            f" Spark {self.spark}, Kafka {self.kafka}, Python {self.python}, Java {self.java}"
        )


@dataclass(frozen=True)
class Report:
    """What was measured, as facts."""

    settings: Settings
    machine: Machine
    event_bytes: int
    throughput: Throughput | None
    transactions: tuple[TransactionCost, ...]
    memory: tuple[TaskMemory, ...]

    @property
    def holds(self) -> bool:
        """Did both sides deliver what they had to?"""
        return self.throughput is None or self.throughput.holds

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
            lines += ["", f"TRANSACTIONS, ms: p50 / max of {count}", *table([head, *rows])]
        if self.memory:
            rows = [
                [f"{one.rows_per_epoch:,}", str(one.epoch_count), str(one.workers), f"{one.peak_bytes / 2**20:.0f} MiB"]
                for one in self.memory
            ]
            head = ["rows an epoch", "epochs", "workers", "largest worker"]
            lines += ["", "MEMORY of a task (resident, peak)", *table([head, *rows])]
        return lines


def median_of(figures: Sequence[int]) -> int:
    """The median, as it is shown.

    >>> median_of([3, 1, 2]), median_of([1, 2])
    (2, 2)
    """
    return round(statistics.median(figures))


def quotient(one: int, other: int) -> float:
    """Of two figures as they are shown; nothing by nothing is nothing."""
    return round(one / other, 3) if other else 0.0


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows in columns: the first to the left, the others to the right.

    >>> table([["side", "events/s"], ["one", "7"]])
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


# -- the measurement -------------------------------------------------------------------------------------------------


def measure(
    settings: Settings,
    home: Path,
    *,
    servers: str | None,
    now: datetime,
    tell: Tell,
    go_on: GoOn = lambda: None,
) -> Report:
    """Fill a topic, measure the parts that are asked for, and take away what was made.

    Args:
        home: a directory for checkpoints, the log and, without `servers`, a Kafka of its own.
        now: names the topics.
        go_on: called often; what it raises ends the measurement.
    """
    load = os.getloadavg()[0]
    with _alone(home), _kafka(home, servers, tell) as found:
        bench = _Bench(settings, home, servers=found, name=f"{PREFIX}{now:%Y%m%d-%H%M%S}", tell=tell, go_on=go_on)
        try:
            return bench.measure(load)
        finally:
            bench.close()


class _Bench:
    def __init__(self, settings: Settings, home: Path, *, servers: str, name: str, tell: Tell, go_on: GoOn) -> None:
        self._settings = settings
        self._servers = servers
        self._name = name
        self._tell = tell
        self._go_on = go_on
        self._checkpoints = home / "checkpoints"
        self._log = home / "bench.spark.log"
        client = {"compression.type": settings.codec}
        self._connection = Connection(read_settings(servers, client, where=WHERE), where=WHERE)
        self._made: list[str] = []
        self._runs = 0
        self._payments = Payments(settings)

    def close(self) -> None:
        """Take away what was made."""
        self._delete(*self._made)
        self._connection.close()
        disconnect_all()
        shutil.rmtree(self._checkpoints, ignore_errors=True)

    def measure(self, load: float) -> Report:
        machine = _look_at_machine(self._connection, load)
        payments, event_bytes = f"{self._name}-payments", 0
        throughput, costs, memory = None, [], []
        parts = self._settings.parts
        if {"throughput", "memory"} & set(parts):
            event_bytes = self._fill(payments)
        if "throughput" in parts:
            throughput = self._throughput(payments)
        if "transactions" in parts:
            costs = [self._transactions(count) for count in sorted({self._settings.partitions, MANY_PARTITIONS})]
        if "memory" in parts:
            memory = [self._memory(payments, size) for size in self._settings.epoch_sizes()]
        return Report(
            settings=self._settings,
            machine=machine,
            event_bytes=event_bytes,
            throughput=throughput,
            transactions=tuple(costs),
            memory=tuple(memory),
        )

    # -- topics

    def _make(self, topic: str, partitions: int) -> None:
        self._made.append(topic)
        make_topic(self._connection, topic, partitions=partitions, where=WHERE)

    def _delete(self, *topics: str) -> None:
        from kafka.errors import KafkaError

        try:
            there = self._connection.topic_names() & set(topics)
            if there:
                self._connection.admin.delete_topics(sorted(there))
        except (Unanswered, KafkaError) as error:
            self._tell(f"not deleted: {', '.join(topics)} ({error})")
        else:
            self._made = [topic for topic in self._made if topic not in topics]

    def _fill(self, topic: str) -> int:
        """Send the events with the product's own encoder; how large one is, on average."""
        from lockgate.kafka.writer import Writer

        self._make(topic, self._settings.partitions)
        limit = describe_outputs(self._connection, [topic], where=WHERE)[topic].max_message_bytes
        timeout_ms = transaction_timeout_ms(self._connection, where=WHERE)
        transactions = Transactions(self._connection, f"{self._name}-fill", timeout_ms=timeout_ms, where=WHERE)
        places = [(topic, number) for number in range(self._settings.partitions)]
        began, size = time.monotonic(), 0
        for start in range(0, self._settings.events, _CHUNK):
            self._go_on()
            stop = min(self._settings.events, start + _CHUNK)
            producer = transactions.begin()
            transactions.add(producer, places)
            writer = Writer(self._connection, transactional_id=transactions.id, producer=producer, where=WHERE)
            for partition, records in self._payments.records(start, stop):
                size += records.values.nbytes - 4 * len(records)  # without Arrow's own offsets
                now_ms = int(time.time() * 1000)
                writer.write((topic, partition), records, max_message_bytes=limit, now_ms=now_ms)
            writer.finish()
            transactions.end(producer, is_commit=True)
            self._tell(f"sent {stop:,} of {self._settings.events:,} events")
        transactions.wait_until_complete()
        self._tell(f"sent in {time.monotonic() - began:.1f} s")
        self._require(topic, self._settings.events)
        return round(size / self._settings.events)

    def _require(self, topic: str, expected: int) -> None:
        there = self._count(topic)
        if there != expected:
            raise Failed(
                f"{expected:,} events were sent, but topic {topic!r} holds {there:,}",
                where=f"Kafka at {self._servers}",
                fix="see the broker's log, then run it again",
            )

    def _count(self, topic: str) -> int:
        """The committed records of a topic, read back by nobody who wrote them."""
        shape = self._connection.shapes([topic], is_fresh=True)[topic]
        return sum(
            count_committed(self._connection, (topic, number), leader=leader, go_on=self._go_on)
            for number, leader in enumerate(shape.leaders)
        )

    # -- throughput

    def _throughput(self, payments: str) -> Throughput:
        timings = []
        with _driver(self._log, self._tell):
            for repeat in range(self._settings.repeats + 1):
                # In turn, so that neither always finds the warmer JVM.
                for side in SIDES if repeat % 2 == 0 else SIDES[::-1]:
                    timing = self._time(payments, side, repeat)
                    timings.append(timing)
                    told = "warm-up" if repeat == 0 else f"repeat {repeat} of {self._settings.repeats}"
                    self._tell(
                        f"{told}, {side.label}: {timing.events_per_second:,} events/s ({timing.seconds:.1f} s),"
                        f" {timing.epoch_events_per_second:,} in the median of {timing.epoch_count} epochs"
                    )
        clients = {side.name: self._settings.client(side) for side in SIDES}
        clients[SIDES[1].name] |= {"batch.size": f"{BATCH_BYTES} (its own)"}
        return Throughput(
            expected_count=self._payments.expected_count(self._settings), client=clients, timings=tuple(timings)
        )

    def _time(self, payments: str, side: Guarantee, repeat: int) -> Timing:
        with self._output() as (name, out):
            began = time.monotonic()
            epochs = self._run(payments, side, name=name, out=out, rows_per_epoch=self._settings.rows_per_epoch)
            seconds = time.monotonic() - began
            return Timing(
                side=side.name,
                repeat=repeat,
                seconds=round(seconds, 3),
                events_per_second=round(self._settings.events / seconds),
                epoch_events_per_second=median_of([round(epoch.events_per_second) for epoch in epochs] or [0]),
                epoch_count=len(epochs),
                delivered_count=self._count(out),
            )

    @contextlib.contextmanager
    def _output(self) -> Iterator[tuple[str, str]]:
        """A name for a job and a fresh topic for it, both gone afterwards."""
        self._runs += 1
        name = f"{self._name}-{self._runs}"
        out = f"{name}-out"
        self._make(out, self._settings.partitions)
        self._made.append(ledger_topic(name))
        try:
            yield name, out
        finally:
            shutil.rmtree(self._checkpoints / name, ignore_errors=True)
            self._delete(out, ledger_topic(name))

    def _run(self, payments: str, side: Guarantee, *, name: str, out: str, rows_per_epoch: int) -> list[Progress]:
        started = run(
            job(self._settings, side, servers=self._servers, payments=payments, out=out, name=name),
            checkpoint=str(self._checkpoints / name),
            until_caught_up=True,
            rows_per_epoch=rows_per_epoch,
            log_file=self._log,
            wait=False,
        )
        return watch(started, self._go_on)

    # -- transactions

    def _transactions(self, partitions: int) -> TransactionCost:
        self._tell(f"measuring {TRANSACTIONS} transactions over {partitions} partitions")
        name = f"{self._name}-transactions-{partitions}"
        topic = f"{name}-out"
        self._make(topic, partitions)
        self._made.append(ledger_topic(name))
        timeout_ms = transaction_timeout_ms(self._connection, where=WHERE)
        ledger = LedgerTopic(self._connection, name, where=WHERE)
        ledger.ensure([topic])
        transactions = Transactions(self._connection, transactional_id(name), timeout_ms=timeout_ms, where=WHERE)
        places = [(topic, number) for number in range(partitions)]
        laps = []
        for epoch in range(_WARM_UP_TRANSACTIONS + TRANSACTIONS):
            self._go_on()
            laps.append(self._transact(transactions, ledger, places, epoch))
        self._require(topic, len(laps) * partitions)
        self._delete(topic, ledger.name)
        begin, add, end, complete = zip(*laps[_WARM_UP_TRANSACTIONS:], strict=True)
        return TransactionCost(
            partitions=partitions,
            transactions=TRANSACTIONS,
            begin=Spread.of(begin),
            add=Spread.of(add),
            end=Spread.of(end),
            complete=Spread.of(complete),
            begin_and_end=Spread.of([one + other for one, other in zip(begin, end, strict=True)]),
        )

    def _transact(
        self, transactions: Transactions, ledger: LedgerTopic, places: Sequence[Place], epoch: int
    ) -> tuple[float, float, float, float]:
        """One epoch as the coordinator commits it, with one record in every partition: its laps in seconds."""
        import pyarrow as pa

        from lockgate.kafka.encode import Records
        from lockgate.kafka.writer import Writer

        record = Records(keys=pa.array([b"key"], pa.binary()), values=pa.array([b"value"], pa.binary()))
        began = time.perf_counter()
        producer = transactions.begin()
        ledger.read()
        begun = time.perf_counter()
        transactions.add(producer, places)
        added = time.perf_counter()
        writer = Writer(self._connection, transactional_id=transactions.id, producer=producer, where=WHERE)
        for place in places:
            writer.write(place, record, max_message_bytes=1_000_000, now_ms=int(time.time() * 1000))
        writer.finish()
        written = time.perf_counter()
        transactions.add(producer, [ledger.place])
        transactions.add_offsets(producer, transactions.id, dict.fromkeys(places[: self._settings.partitions], epoch))
        ledger.write(Entry(run="bench", query=None, epoch=epoch, digest="0" * 64, at=str(epoch)), producer)
        transactions.end(producer, is_commit=True)
        ended = time.perf_counter()
        transactions.wait_until_complete()
        return begun - began, added - begun, ended - written, time.perf_counter() - ended

    # -- memory

    def _memory(self, payments: str, rows_per_epoch: int) -> TaskMemory:
        with _driver(self._log, self._tell) as spark, self._output() as (name, out):
            with _Peaks(spark.sparkContext._gateway.proc.pid) as peaks:
                epochs = self._run(payments, SIDES[1], name=name, out=out, rows_per_epoch=rows_per_epoch)
            peak = max(peaks.by_worker.values(), default=0)
            self._tell(f"{rows_per_epoch:,} rows an epoch: the largest worker took {peak / 2**20:.0f} MiB")
            return TaskMemory(
                rows_per_epoch=rows_per_epoch,
                epoch_count=len(epochs),
                workers=len(peaks.by_worker),
                peak_bytes=peak,
            )


class _Peaks:
    """Looks at the Python workers of a driver while something runs: the most memory that each has had."""

    def __init__(self, driver: int) -> None:
        self.by_worker: dict[int, int] = {}
        self._driver = driver
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="lockgate-memory", daemon=True)

    def __enter__(self) -> _Peaks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        import psutil

        while not self._is_over.wait(_LOOK_SECONDS):
            with contextlib.suppress(psutil.Error):
                for daemon in psutil.Process(self._driver).children():
                    for worker in daemon.children():  # the daemon itself only makes workers
                        taken = worker.memory_info().rss
                        self.by_worker[worker.pid] = max(taken, self.by_worker.get(worker.pid, 0))


def watch(started: Run, go_on: GoOn) -> list[Progress]:
    """Wait for the end of a run, noticing it at once; the progress of each of its epochs."""
    epochs = []
    try:
        while started.is_running:
            go_on()
            news = started.progress()
            epochs += [news] if news is not None else []
            time.sleep(_LOOK_SECONDS)
        started.wait(on_progress=epochs.append)
    except BaseException:
        started.stop()
        raise
    return [epoch for epoch in epochs if epoch.events_per_second]


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


# -- the surroundings ------------------------------------------------------------------------------------------------


def _look_at_machine(connection: Connection, load: float) -> Machine:
    import psutil
    import pyspark

    from lockgate.spark.java import find_java

    return Machine(
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=int(psutil.virtual_memory().total),
        load_before=round(load, 2),
        python=platform.python_version(),
        spark=pyspark.__version__,
        kafka=".".join(map(str, connection.broker_version)),
        java=str(find_java().version),
    )


@contextlib.contextmanager
def _alone(home: Path) -> Iterator[None]:
    """One measurement at a time in a directory; two would measure each other."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                "a measurement is running here already",
                where=str(home),
                fix="wait for its end: two would measure each other",
            ) from None
        yield


@contextlib.contextmanager
def _kafka(home: Path, servers: str | None, tell: Tell) -> Iterator[str]:
    """The servers to measure: the given ones, or a Kafka of our own that is gone with its data afterwards."""
    if servers is not None:
        yield servers
        return
    root = home / "services"
    stack = Stack(root, brokers=1)
    try:
        stack.up(fresh=True, postgres=False, progress=tell)
        yield stack.status().kafka.servers or ""
    finally:
        stack.down(progress=tell)
        shutil.rmtree(root, ignore_errors=True)


@contextlib.contextmanager
def _driver(log: Path, tell: Tell) -> Iterator[Any]:
    """A Spark driver of our own: a warm one of somebody else's would help the side that goes first."""
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        raise Refused(
            "this process has a Spark driver already", where=WHERE, fix="stop it, or measure in a process of its own"
        )
    tell("starting Spark")
    on_interrupt = signal.getsignal(signal.SIGINT)
    spark = open_session(SessionPlan(app=WHERE, master=None, jars=connector_jars(), log_file=log.resolve()))
    if threading.current_thread() is threading.main_thread():
        # A new driver takes Ctrl-C for itself; whoever measures has decided about that already.
        signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield spark
    finally:
        spark.sparkContext.stop()
