"""A contest: two queries over the same rows in turn, in one driver; the result is the quotient of their medians.

The clock is read at the end of every epoch. The first epochs of a run do not count: they fill the state, and Java
compiles its code then. A contest measures both wall time and the processor time of the driver and all its processes:
other work on the machine stretches the first and hardly the second.

The results are not stored, but counted and hashed: if two queries do not give exactly the same rows, their speeds
cannot be compared.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lockgate.connectors.files.source import BYTES_PER_ROW, FileSource
from lockgate.connectors.position import position
from lockgate.dataflow.endpoints import POSITION, Reading, Sink, SinkAbility
from lockgate.dataflow.job import Job
from lockgate.errors import Failed
from lockgate.guarantees import Delivery
from lockgate.lab.bench.counting import GoOn
from lockgate.lab.bench.ratios import Contest, Lap
from lockgate.lab.bench.runs import watch
from lockgate.lab.bench.settings import WHERE, Settings
from lockgate.lab.bench.site import Tell
from lockgate.planner.physical import STATE_PARTITIONS
from lockgate.runtime.run import run
from lockgate.spark.session import SessionPlan, open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VALUE = "number BIGINT, card STRING, cents INT, at TIMESTAMP"
_BEGAN_MS = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
_LOOK_SECONDS = 0.05


# The input


@dataclass(frozen=True)
class Cards:
    """Payments by card in files, a millisecond apart: first every card once, then cards at random."""

    path: Path
    keys: int
    events: int  # that are timed
    fill_epochs: int  # that are not timed
    limit: int  # of a file source, so that an epoch has the requested number of rows

    @property
    def source(self) -> NumberedFiles:
        """The files as a source of a job."""
        return NumberedFiles(path=str(self.path), value=VALUE, format="parquet")

    def read(self, spark: SparkSession) -> DataFrame:
        """The files as a stream of Spark's own."""
        return (
            spark.readStream.schema(VALUE)
            .option("maxBytesPerTrigger", self.limit * BYTES_PER_ROW)
            .parquet(str(self.path))
        )


def write_cards(settings: Settings, keys: int, path: Path) -> Cards:
    """Write the payments, several files to an epoch."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    per_file = max(1, settings.rows_per_epoch // settings.partitions)
    per_epoch = per_file * settings.partitions
    fill_epochs = -(-keys // per_epoch)
    filling = fill_epochs * per_epoch
    rng = np.random.default_rng(settings.seed)
    cards = np.concatenate([rng.permutation(filling) % keys, rng.integers(0, keys, size=settings.events)])
    cents = rng.integers(0, 100_000, size=len(cards)).astype(np.int32)
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    sizes = []
    for number, start in enumerate(range(0, len(cards), per_file)):
        numbers = np.arange(start, min(len(cards), start + per_file))
        text = pc.utf8_lpad(pc.cast(pa.array(cards[numbers]), pa.string()), width=7, padding="0")
        table = pa.table(
            {
                "number": numbers,
                "card": pc.binary_join_element_wise("card-", text, ""),
                "cents": cents[numbers],
                "at": pa.array((_BEGAN_MS + numbers) * 1000, pa.timestamp("us", tz="UTC")),
            }
        )
        file = path / f"{start:012}.parquet"
        # Of one size for the same number of rows, because an epoch over files is limited by bytes.
        pq.write_table(table, file, compression="none", use_dictionary=False)
        os.utime(file, (number, number))  # Spark takes the oldest first
        sizes.append(file.stat().st_size)
    return Cards(
        path=path,
        keys=keys,
        events=settings.events,
        fill_epochs=fill_epochs,
        limit=-(-max(sizes) * settings.partitions // BYTES_PER_ROW),
    )


@dataclass(frozen=True)
class NumberedFiles(FileSource):
    """Files whose rows have their position, as records of a log do; a FileSource has to count lines first."""

    def read(self, spark: SparkSession, reading: Reading) -> DataFrame:
        from pyspark.sql import functions as F

        rows = super().read(spark, replace(reading, is_order_needed=False))
        place = position(source=reading.name, part=F.lit("payments"), at=F.col("number"))
        return rows.withColumn(POSITION, place)


# The results


class Mark(NamedTuple):
    """The clocks at the end of an epoch, and its rows."""

    seconds: float
    cpu_seconds: float
    rows_count: int
    digest: int


@dataclass(frozen=True)
class StopwatchSink(Sink):
    """Counts rows, drops them, and reads the clocks."""

    marks: list[Mark] = field(default_factory=list, repr=False, compare=False)

    @property
    def ability(self) -> SinkAbility:
        return SinkAbility(delivery=Delivery.PLAIN, reason="it keeps nothing", cure="write to a sink that does")

    def columns_needed(self) -> Sequence[str]:
        return ()

    def write(self, rows: DataFrame, epoch: int) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        seen = Observation()
        count, digest = F.count(F.lit(1)), F.bit_xor(F.xxhash64(*sorted(rows.columns)))
        counted = rows.observe(seen, count.alias("count"), digest.alias("digest"))
        counted.write.format("noop").mode("overwrite").save()
        found = seen.get
        self.marks.append(Mark(time.monotonic(), cpu_seconds(), found["count"], found["digest"] or 0))


def cpu_seconds() -> float:
    """The processor time of this process and its descendants, including ended ones."""
    import psutil

    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # one that ended just now: its parent has its time
            spent = process.cpu_times()
            total += spent.user + spent.system + spent.children_user + spent.children_system
    return total


# Both in turn


@dataclass(frozen=True)
class Side:
    """One of the two: a job of ours, or a function that makes a plain Spark query."""

    name: str
    cards: Cards
    job: Callable[[Cards, Sink], Job] | None = None
    query: Callable[[DataFrame], DataFrame] | None = None


@dataclass
class Arena:
    """The place of contests."""

    settings: Settings
    home: Path
    tell: Tell
    go_on: GoOn
    _count: int = 0
    _cards: dict[int, Cards] = field(default_factory=dict)

    def cards(self, keys: int) -> Cards:
        """Payments of this many cards, written once."""
        if keys not in self._cards:
            self._cards[keys] = write_cards(self.settings, keys, self.home / "payments" / str(keys))
        return self._cards[keys]

    @property
    def log(self) -> Path:
        """Spark's log."""
        return self.home / "bench.spark.log"

    def hold(self, name: str, sides: tuple[Side, Side], *, is_alike: bool = True) -> Contest:
        """Let the sides run in turn, as often as requested; the first time does not count.

        Args:
            is_alike: must both give exactly the same rows?
        """
        laps = []
        for repeat in range(self.settings.repeats + 1):
            for side in sides if repeat % 2 == 0 else sides[::-1]:
                lap = self._lap(side, repeat)
                laps.append(lap)
                told = "warm-up" if repeat == 0 else f"repeat {repeat} of {self.settings.repeats}"
                self.tell(
                    f"{name}, {told}, {side.name}: {lap.events_per_second:,} events/s,"
                    f" {lap.cpu_us_per_event:.1f} us of processor time an event"
                )
        return Contest(name=name, sides=(sides[0].name, sides[1].name), laps=tuple(laps), is_alike=is_alike)

    def _lap(self, side: Side, repeat: int) -> Lap:
        self._count += 1
        checkpoint = self.home / "checkpoints" / f"contest-{self._count}"
        sink = StopwatchSink()
        try:
            if side.job is not None:
                self._run_job(side.job(side.cards, sink), side.cards, checkpoint)
            elif side.query is not None:
                self._run_query(side.query, side.cards, checkpoint, sink)
        finally:
            shutil.rmtree(checkpoint, ignore_errors=True)
        return lap_of(side, repeat, sink.marks)

    def _run_job(self, job: Job, cards: Cards, checkpoint: Path) -> None:
        started = run(
            job,
            checkpoint=str(checkpoint),
            until_caught_up=True,
            rows_per_epoch=cards.limit,
            log_file=self.log,
            wait=False,
        )
        watch(started, self.go_on)

    def _run_query(
        self, make: Callable[[DataFrame], DataFrame], cards: Cards, checkpoint: Path, sink: StopwatchSink
    ) -> None:
        """Run a query as a user would, with the settings of a job's own session."""
        spark = open_session(SessionPlan(app=WHERE, master=None, jars=(), log_file=self.log.resolve()))
        spark.conf.set("spark.sql.shuffle.partitions", STATE_PARTITIONS)
        query = (
            make(cards.read(spark))
            .writeStream.foreachBatch(sink.write)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            while query.isActive:
                self.go_on()
                time.sleep(_LOOK_SECONDS)
        finally:
            query.stop()
        error = query.exception()
        if error is not None:
            raise Failed(
                f"the query to compare with stopped: {str(error).splitlines()[0]}", where=WHERE, fix=f"see {self.log}"
            )


def lap_of(side: Side, repeat: int, marks: Sequence[Mark]) -> Lap:
    """The speed from the end of the fill epochs to the end of the run, and all rows."""
    begin, end = marks[side.cards.fill_epochs - 1], marks[-1]
    seconds, cpu = end.seconds - begin.seconds, end.cpu_seconds - begin.cpu_seconds
    digest = 0
    for mark in marks:
        digest ^= mark.digest
    return Lap(
        side=side.name,
        repeat=repeat,
        seconds=round(seconds, 3),
        cpu_seconds=round(cpu, 2),
        events_per_second=round(side.cards.events / seconds),
        cpu_us_per_event=round(cpu * 1e6 / side.cards.events, 2),
        rows_count=sum(mark.rows_count for mark in marks),
        digest=digest,
    )
