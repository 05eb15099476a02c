"""Time in Spark's native form: watermarks, events with an unusable time, late events, and time that moves in silence.

One operator computes a watermark. The steps around it are in this order:

    check       stops the job, or makes a dead letter, for an event without a time, with one beyond the years that
                people and Python know, or with one too far ahead of the epoch's clock. After the watermark it would be
                too late: one bad clock would have closed all windows
    beats       rows with nothing but a time, from a source of their own; they move the watermark of a stream that is
                silent, and end right after it
    watermark   Spark's own
    wall        a filter that Spark may not move: if Spark evaluated a user's filter before the watermark, the watermark
                would stand still whenever all rows of an epoch are filtered away

The clock of an epoch (`current_timestamp()`) is logged with its offsets, and so is the position in the source of beats.
So a repeated epoch has the same time.

Late events of a native window are those that Spark drops: their window ended at or before the watermark of the epoch
before. Nothing inside a query knows that watermark. So all events pass, with the end of their window in a hidden
column, and the run removes those in time (`runtime.late`).
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lockgate.connectors.rejects import Guard
from lockgate.dataflow.duration import as_people_text, as_spark_text
from lockgate.dataflow.endpoints import POSITION, Sink, SinkAbility
from lockgate.dataflow.eventtime import EventTime
from lockgate.dataflow.schema import quote
from lockgate.dataflow.windows import SessionWindow, SlidingWindow, TimeWindow
from lockgate.errors import step_in
from lockgate.guarantees import Delivery
from lockgate.planner.flow import MISSED

if TYPE_CHECKING:
    from datetime import timedelta

    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger(__name__)

UNTIL_MS = "until_ms"
"""The name in the offsets of beats, by which their source is recognised."""

_BEAT = "__beat"
_FIRST, _LAST = "TIMESTAMP '0001-01-01 00:00:00Z'", "TIMESTAMP '9999-12-31 23:59:59.999999Z'"


def with_watermark(
    frame: DataFrame, time: EventTime, *, hidden: Sequence[str], guard: Guard, beats: DataFrame | None
) -> DataFrame:
    """The frame with a watermark; `beats` are those of `read_beats`, if time has to move in silence."""
    from pyspark.sql import functions as F

    if time.is_arrival:
        frame = frame.withColumn(time.column, F.current_timestamp())
    else:
        frame = _without_unusable(frame, time, hidden, guard)
    columns = frame.columns
    is_event = F.lit(True)
    if beats is not None:
        frame = frame.withColumn(_BEAT, F.lit(False)).unionByName(_as_beats(frame, time, beats))
        is_event = ~F.col(_BEAT)
    timed = frame.withWatermark(time.column, as_spark_text(time.lateness))
    # In one expression with a function that is not deterministic: Spark moves the parts of a condition separately.
    wall = F.when(F.spark_partition_id() >= 0, is_event).otherwise(F.lit(False))
    return timed.where(wall).select(*map(quote, columns))


def _without_unusable(frame: DataFrame, time: EventTime, hidden: Sequence[str], guard: Guard) -> DataFrame:
    from pyspark.sql import functions as F

    at = F.col(quote(time.column))
    reason = F.when(at.isNull(), F.lit(f"{time.column} is null, and an event without a time is in no window"))
    far = F.concat(
        F.lit(f"{time.column} is "),
        at.cast("string"),
        F.lit(", which is not within the years 1 to 9999: are these milliseconds, read as seconds?"),
    )
    reason = reason.when(~at.between(F.expr(_FIRST), F.expr(_LAST)), far)
    if time.max_ahead is not None:
        told = F.concat(
            F.lit(f"{time.column} is "),
            at.cast("string"),
            F.lit(f", more than {as_people_text(time.max_ahead)} ahead of the epoch's clock, "),
            F.current_timestamp().cast("string"),
        )
        reason = reason.when(at > F.current_timestamp() + F.expr(_interval(time.max_ahead)), told)
    row = F.to_json(F.struct(*(F.col(quote(name)) for name in frame.columns if name not in hidden)))
    part, place = _place(frame)
    return guard.keep(frame, reason, shown=row, part=part, at=place)


def _place(frame: DataFrame) -> tuple[Column, Column]:
    """The origin of a row, from columns that cost nothing until a row has to be named.

    POSITION has it for every row, but is computed row by row as soon as it is used.
    """
    from pyspark.sql import functions as F

    nowhere = F.lit(-1).cast("bigint")
    names = set(frame.columns)
    if {"_topic", "_partition", "_offset"} <= names:
        partition = F.col("_partition").cast("string")
        return F.concat(F.lit("topic "), F.col("_topic"), F.lit(", partition "), partition), F.col("_offset")
    if "_file" in names:
        return F.concat(F.lit("file "), F.col("_file")), nowhere
    if POSITION in names:
        position = F.col(POSITION)
        return F.concat_ws(", ", position["source"], position["part"]), position["at"]
    return F.lit("an unknown place"), nowhere


def _as_beats(frame: DataFrame, time: EventTime, beats: DataFrame) -> DataFrame:
    """Beats in the columns of a stream: all null, except the time that moves the watermark to where it should be."""
    from pyspark.sql import functions as F

    until = F.timestamp_millis(F.col(UNTIL_MS))
    at = F.current_timestamp() if time.is_arrival else until + F.expr(_interval(time.lateness))
    return beats.select(
        *(
            (at if field.name.lower() == time.column.lower() else F.lit(None)).cast(field.dataType).alias(field.name)
            for field in frame.schema.fields
        ),
        F.lit(True).alias(_BEAT),
    )


def _interval(duration: timedelta) -> str:
    return f"INTERVAL '{as_spark_text(duration).split()[0]}' MICROSECOND"


# Beats


def new_pulse() -> Path:
    """The path of this run's own file, which says how far time has moved; it does not exist before that."""
    return Path(tempfile.gettempdir()) / f"lockgate-pulse-{uuid4().hex}"


def write_pulse(pulse: Path, until_ms: int) -> None:
    """Write how far time has moved."""
    aside = pulse.with_suffix(".new")
    aside.write_text(str(until_ms))
    aside.replace(pulse)


def read_beats(spark: SparkSession, pulse: Path) -> DataFrame:
    """The stream of beats: one row whenever the pulse has moved, with the new watermark.

    An offset is that watermark itself, so a repeated epoch needs only Spark's own log. Spark asks for the newest offset
    in a process beside the driver, which reads the file of the pulse.
    """
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

    name = f"lockgate_beats_{pulse.name.rsplit('-', 1)[-1]}"

    class Beat(InputPartition):
        def __init__(self, until_ms: int) -> None:
            self.until_ms = until_ms

    class Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
        def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
            return {UNTIL_MS: 0}

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            pass  # a run that ends has no silence to wait for, and no pulse

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
            return ReadAllAvailable()

        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
            try:
                return {UNTIL_MS: max(start[UNTIL_MS], int(pulse.read_text()))}
            except FileNotFoundError:
                return start

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
            return [Beat(end[UNTIL_MS])] if end[UNTIL_MS] > start[UNTIL_MS] else []

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            assert isinstance(partition, Beat)
            yield (partition.until_ms,)

    class Beats(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> str:
            return f"{UNTIL_MS} BIGINT"

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
            return Reader()

    spark.dataSource.register(Beats)
    return spark.readStream.format(name).load()


# Windows, and the events that missed them


def window_of(window: TimeWindow, column: str) -> Column:
    """The windows of a row, as Spark's struct of start and end; a row of several windows becomes several rows."""
    from pyspark.sql import functions as F

    if isinstance(window, SessionWindow):
        return F.session_window(F.col(quote(column)), as_spark_text(window.gap))
    every = as_spark_text(window.every) if isinstance(window, SlidingWindow) else None
    return F.window(quote(column), as_spark_text(window.size), every)


def late_candidates(frame: DataFrame, window: TimeWindow, time: EventTime) -> DataFrame:
    """All rows, each with the window that it would miss if it were late, and the end of that window in MISSED.

    A session has no end before it is over. So an event is late for it if its own [time, time + gap) has ended.
    """
    from pyspark.sql import functions as F

    at = F.col(quote(time.column))
    if isinstance(window, SessionWindow):
        missed = F.struct(at.alias("start"), (at + F.expr(_interval(window.gap))).alias("end"))
    else:
        missed = window_of(window, time.column)
    columns = [F.col(quote(name)) for name in frame.columns]
    return frame.select(*columns, missed.alias("__window")).select(
        *columns,
        F.col("__window.start").alias("window_start"),
        F.col("__window.end").alias("window_end"),
        F.col("__window.end").alias(MISSED),
    )


@dataclass(frozen=True)
class LateLog(Sink):
    """Late events in the log: one warning for each epoch, with their number and one of them."""

    where: str

    @property
    def ability(self) -> SinkAbility:
        return SinkAbility(
            delivery=Delivery.PLAIN, reason="a repeated epoch warns again", cure="declare late=Late.TO_SIDE_OUTPUT"
        )

    def columns_needed(self) -> Sequence[str]:
        return ()

    def write(self, rows: DataFrame, epoch: int) -> None:
        from pyspark.sql import functions as F

        text = F.to_json(F.struct("*"))
        counted = rows.agg(F.count(F.lit(1)).alias("count"), F.min(text).alias("example")).head()
        if counted is not None and counted["count"]:
            log.warning(
                "%s: epoch %d: %d late, one is %s",
                self.where,
                epoch,
                counted["count"],
                counted["example"],
                extra={"epoch": epoch, "step": step_in(self.where)},
            )
