"""Compare at-most-once with the plain pipeline and with stronger guarantees: is the weakest promise the fastest?

All sides read the whole topic, in one driver and in turn. The plain pipeline has the same steps as a good engineer
writes them with Spark alone: Spark's own defaults and writer, a checkpoint, and acknowledgements of all replicas. It
does not check what it parses.

The driver tries no task twice, because an at-most-once job refuses any other driver. The other sides run there, too:
retries cost nothing if no task fails (a failure would end the measurement). A second driver would be another JVM with
other compiled code, and that would be measured.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockgate.errors import Failed
from lockgate.guarantees import Guarantee
from lockgate.lab.bench.contest import cpu_seconds
from lockgate.lab.bench.payments import Payments
from lockgate.lab.bench.ratios import Throughput
from lockgate.lab.bench.runs import Runs
from lockgate.lab.bench.settings import LIMIT_CENTS, VALUE, WHERE, Settings
from lockgate.lab.bench.throughput import Delivered, clients, time_in_turn
from lockgate.runtime.progress import Progress, Watcher

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class _Plain:
    name: str = "PLAIN"
    label: str = "plain pipeline"


PLAIN = _Plain()
_SIDE = Guarantee.AT_MOST_ONCE
SIDES = (PLAIN, _SIDE, Guarantee.AT_LEAST_ONCE, Guarantee.END_TO_END_EXACTLY_ONCE)


def measure_at_most_once(runs: Runs, payments: Payments) -> Throughput:
    """Time all sides with Kafka, as often as requested."""
    settings = runs.site.settings

    with runs.driver(are_tasks_retried=False) as session:
        plain = type(session)(session.sparkContext).newSession()  # without the settings of our own sessions

        def deliver(which: Guarantee | _Plain) -> Delivered:
            with runs.output() as (name, out):
                began, spent = time.monotonic(), cpu_seconds()
                if isinstance(which, Guarantee):
                    epochs = runs.run(which, name=name, out=out, rows_per_epoch=settings.rows_per_epoch)
                else:
                    epochs = _run_plain(plain, runs, name=name, out=out)
                seconds, cpu = time.monotonic() - began, cpu_seconds() - spent
                return Delivered(seconds=seconds, epochs=epochs, count=runs.site.count(out), cpu_seconds=cpu)

        timings = time_in_turn(settings, deliver, runs.site.tell, sides=SIDES)
    return Throughput(
        expected_count=payments.expected_count(settings),
        client={
            PLAIN.name: {"acks": "all", **settings.client(Guarantee.AT_LEAST_ONCE)},
            _SIDE.name: {"acks": "1", "retries": "0", **settings.client(_SIDE)},
            **clients(settings),
        },
        timings=timings,
        sides=SIDES,
    )


def pipeline(records: DataFrame, settings: Settings) -> DataFrame:
    """The steps of the job, from Kafka's records to records for Kafka."""
    from pyspark.sql import functions as F

    key = [F.col("card").alias("key")] if settings.is_keyed else []
    card = F.col("key").cast("string").alias("card")
    if settings.job == "pass":
        return records.select(card, "value").select(*key, "value")
    ddl = f"card STRING, {VALUE}" if settings.is_exchanged else VALUE
    parsed = F.from_json(F.col("value").cast("string"), ddl).alias("parsed")
    rows = records.select(*([] if settings.is_exchanged else [card]), parsed).select(
        *([] if settings.is_exchanged else ["card"]), "parsed.*"
    )
    value = F.to_json(F.struct("id", "card", "cents", "at", "shop")).alias("value")
    return rows.where(F.col("cents") >= LIMIT_CENTS).select(*key, value)


def _run_plain(spark: SparkSession, runs: Runs, *, name: str, out: str) -> list[Progress]:
    """Run it until it has caught up; the progress of each of its epochs."""
    site = runs.site
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", site.servers)
        .option("subscribe", runs.payments)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", site.settings.rows_per_epoch)
        .load()
    )
    checkpoint = runs.checkpoints / name
    writer = (
        pipeline(records, site.settings)
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", site.servers)
        .option("topic", out)
        .option("checkpointLocation", str(checkpoint))
    )
    for setting, text in site.settings.client(Guarantee.AT_LEAST_ONCE).items():
        writer = writer.option(f"kafka.{setting}", text)
    query = writer.trigger(availableNow=True).start()
    try:
        while query.isActive:
            site.go_on()
            time.sleep(_LOOK_SECONDS)
    finally:
        query.stop()
        shutil.rmtree(checkpoint, ignore_errors=True)
    error = query.exception()
    if error is not None:
        told = str(error).splitlines()[0]
        raise Failed(f"the plain pipeline stopped: {told}", where=WHERE, fix=f"see {runs.log}")
    watcher = Watcher()
    epochs = [watcher.take(_facts(report)) for report in query.recentProgress]
    return [epoch for epoch in epochs if epoch is not None and epoch.events_per_second]


def _facts(report: Any) -> dict[str, Any]:
    """Spark's report as plain data; its form differs between releases."""
    return dict(report) if isinstance(report, dict) else dict(json.loads(report.json))
