"""Read the sources of a plan: the place where each starts, and the rows that it gives.

Nothing is skipped silently: without `start` a run starts with the oldest event. Only an at-most-once run starts with
the next one: it remembers nothing of the run before, and must not repeat a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockgate.connectors.rejects import JSON_OPTIONS, Rejects, original
from lockgate.connectors.returned import parse_returned
from lockgate.dataflow.endpoints import ORIGINAL, Reading
from lockgate.dataflow.schema import quote
from lockgate.dataflow.steps import Read
from lockgate.guarantees import Guarantee, Mode
from lockgate.planner.logical import Node, is_operator
from lockgate.planner.plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_from(
    planned: Plan,
    node: Node,
    start: str | None,
    rows_per_epoch: int,
    rejects: Rejects | None = None,
    returned: DataFrame | None = None,
    rows_first: int | None = None,
) -> Reading:
    """The way in which a source of the plan is read."""
    step = node.step
    is_at_most_once = planned.job.guarantee is Guarantee.AT_MOST_ONCE
    if start is None:
        can_skip = isinstance(step, Read) and step.source.ability.can_skip_history
        start = "latest" if can_skip and is_at_most_once else "earliest"
    return Reading(
        name=node.name,
        job=planned.job.name,
        origin=step.origin,
        start=start,
        rows_per_epoch=rows_per_epoch,
        rows_first=rows_first,
        is_real_time=planned.job.mode is Mode.REAL_TIME,
        # A dead letter names the position of its event, which must be unique.
        is_order_needed=rejects is not None
        or any(is_operator(planned.logical, other) for other in planned.logical.nodes),
        rejects=rejects,
        returned=returned,
        is_at_most_once=is_at_most_once,
    )


def read_source(step: Read, spark: SparkSession, reading: Reading) -> DataFrame:
    """The rows of a source, and those that return; with their original bytes, if dead letters need them."""
    from pyspark.sql import functions as F

    frame = step.source.read(spark, reading)
    if not isinstance(reading.rejects, Rejects):
        return frame
    columns = step.source.columns(reading.where)
    if ORIGINAL not in frame.columns:
        frame = frame.withColumn(ORIGINAL, original(F.to_json(F.struct(*map(quote, columns.names)), JSON_OPTIONS)))
    if reading.returned is not None and not step.source.has_bytes:
        back = parse_returned(reading.returned, columns, reading)
        frame = frame.unionByName(back, allowMissingColumns=True)
    return reading.rejects.count(frame)
