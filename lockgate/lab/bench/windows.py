"""Windows: a count and a sum for each card and minute, as a job and as the hand-written query.

Both are native: the job must become what an engineer would have written, and nothing more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockgate.connectors.files.source import FileSource
from lockgate.dataflow import windows
from lockgate.dataflow.endpoints import Sink
from lockgate.dataflow.job import Job
from lockgate.dataflow.stream import stream
from lockgate.guarantees import Guarantee
from lockgate.lab.bench.contest import VALUE, Arena, Cards, Side
from lockgate.lab.bench.ratios import Contest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEYS = 10_000
_SIZE, _LATENESS = "1 minute", "10 seconds"


def measure_windows(arena: Arena) -> Contest:
    """Hold the contest."""
    cards = arena.cards(KEYS)
    sides = (Side("hand-written", cards, query=by_hand), Side("Lockgate", cards, job=job))
    return arena.hold(f"windows of {_SIZE}, {KEYS:,} keys", sides)


def job(cards: Cards, sink: Sink) -> Job:
    """As a job."""
    payments = stream("payments", FileSource(path=str(cards.path), value=VALUE, format="parquet"))
    counts = (
        payments.event_time("at", lateness=_LATENESS)
        .key_by("card")
        .window(windows.tumbling(_SIZE))
        .aggregate(payments="count(*)", cents="sum(cents)")
    )
    return Job("bench-windows", counts.to("out", sink), guarantee=Guarantee.AT_LEAST_ONCE)


def by_hand(payments: DataFrame) -> DataFrame:
    """As a query of Spark's own."""
    from pyspark.sql import functions as F

    counts = (
        payments.withWatermark("at", _LATENESS)
        .groupBy("card", F.window("at", _SIZE))
        .agg(F.count("*").alias("payments"), F.sum("cents").alias("cents"))
    )
    window = (F.col(f"window.{side}").alias(f"window_{side}") for side in ("start", "end"))
    return counts.select("card", *window, "payments", "cents")
