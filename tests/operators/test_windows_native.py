"""The operator's windows are Spark's own: the same windows, closed by the same watermark, without the late rows."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lockgate import Guarantee, Job, MemorySink, MemorySource, stream, windows
from lockgate.dataflow.windows import TimeWindow
from lockgate.operators.aggregatefolds import History
from lockgate.operators.contract import Clock, Values
from lockgate.operators.evaluation import Aggregate, Folds
from lockgate.operators.windows import Aligned, Sessions, TimeWindows
from support.runs import run_to_the_end

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = 1_000_000
VALUES = Folds((Aggregate("v ARRAY<INT>", History(sorted), "v"),))
SHAPES: dict[str, tuple[TimeWindow, Aligned | Sessions]] = {
    "window(at, '7 seconds')": (windows.tumbling("7 seconds"), Aligned(7 * SECOND, 7 * SECOND)),
    "window(at, '10 seconds', '4 seconds')": (
        windows.sliding("10 seconds", every="4 seconds"),
        Aligned(10 * SECOND, 4 * SECOND),
    ),
    "session_window(at, '5 seconds')": (windows.session(gap="5 seconds"), Sessions(5 * SECOND)),
}


def micros(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)


@pytest.mark.parametrize("sql", SHAPES)
def test_a_batch_is_cut_into_the_windows_that_spark_cuts_it_into(sql: str, spark: SparkSession) -> None:
    rng = random.Random(6)
    # Around 1970, some to the microsecond and some on the edges of windows.
    times = [rng.randrange(-400 * SECOND, 400 * SECOND) for _ in range(150)]
    times += [rng.randrange(-99, 99) * SECOND for _ in range(150)]
    rows = [(number, time, number) for number, time in enumerate(times)]
    frame = spark.createDataFrame([(time, number) for number, time, _ in rows], "us BIGINT, v INT").select(
        F.timestamp_micros("us").alias("at"), "v"
    )
    native = (
        frame.groupBy(F.expr(sql).alias("w"))
        .agg(F.sort_array(F.collect_list("v")).alias("v"))
        .select(F.unix_micros("w.start"), F.unix_micros("w.end"), "v")
        .collect()
    )
    outcome = TimeWindows("at", SHAPES[sql][1], VALUES).step((), None, rows, Clock(before=-(2**62), now=2**62, wall=0))
    assert outcome.state is None
    assert Counter((start, end, tuple(v)) for _, (start, end, v) in outcome.rows) == Counter(
        (start, end, tuple(v)) for start, end, v in native
    )


@pytest.mark.prove
@pytest.mark.parametrize(("window", "shape"), SHAPES.values(), ids=SHAPES)
def test_a_stream_gives_what_native_windows_give(window: TimeWindow, shape: Aligned | Sessions, tmp_path: Path) -> None:
    rng = random.Random(7)
    per_epoch, lateness = 15, 5
    seconds = [at // 2 - rng.choice((0, 0, 1, 2, 9, 20, 40)) + 100 for at in range(60)]
    sink = MemorySink()
    events = [("a", number, EPOCH + timedelta(seconds=at)) for number, at in enumerate(seconds)]
    counts = (
        stream("events", MemorySource(events, value="k STRING, v INT, at TIMESTAMP", per_epoch=per_epoch))
        .event_time("at", lateness=timedelta(seconds=lateness))
        .key_by("k")
        .window(window)
        .aggregate(v="sort_array(collect_list(v))")
    )
    job = Job("native", counts.to("out", sink), guarantee=Guarantee.AT_LEAST_ONCE)
    run_to_the_end(job, tmp_path)

    rows = [(number, at * SECOND, number) for number, at in enumerate(seconds)]
    found: list[Values] = []
    late: list[Values] = []
    operator, state, before, now = TimeWindows("at", shape, VALUES), None, 0, 0
    for begin in range(0, len(rows) + per_epoch, per_epoch):
        epoch = rows[begin : begin + per_epoch]
        outcome = operator.step(("a",), state, epoch, Clock(before=before, now=now, wall=0))
        state = outcome.state
        found += [values for side, values in outcome.rows if side == 0]
        late += [values for side, values in outcome.rows if side == 1]
        before, now = now, max([now, *(time - lateness * SECOND for _, time, _ in epoch)])
    assert late, "a test without late rows would show little"

    def plain(row: Any) -> tuple[Any, ...]:
        return micros(row.window_start), micros(row.window_end), tuple(row.v)

    assert Counter(map(plain, sink.rows)) == Counter((start, end, tuple(v)) for start, end, v in found)
