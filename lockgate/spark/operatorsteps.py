"""Operators as steps of a query: what each is over the rows of a frame, and the sides by which rows leave it.

Results leave by side 0. Late events and matches that time out leave by sides of their own, and each has a step in the
plan. Only sides that a step or an output uses are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lockgate.dataflow.endpoints import ORIGINAL, POSITION
from lockgate.dataflow.schema import quote
from lockgate.dataflow.state import check_travels
from lockgate.dataflow.steps import Detect, Keyed, LateEvents, Process, TimedOut, WindowApply
from lockgate.errors import BadJob, InvariantBroken
from lockgate.operators.patternmatching import LATE
from lockgate.operators.process import ProcessOperator
from lockgate.planner.logical import LogicalGraph, Node, is_operator
from lockgate.planner.passes import computes_once, is_side_of_operator, logs_late_events, sides_of
from lockgate.spark.bucket import Place
from lockgate.spark.context import TASK, Context
from lockgate.spark.keyed import SIDE, apply_operator, side_column, state_name
from lockgate.spark.keys import Begun, keyed_frame
from lockgate.spark.nondeterminism import mark
from lockgate.spark.stateful import Described, describe, folds_of, side_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def describe_operator(node: Node, frame: DataFrame, context: Context) -> Described:
    """The operator of a step; refuses keys, functions and rows that no operator can use."""
    before = context.fed(node)
    if POSITION not in frame.columns:
        raise BadJob(
            f"the rows have lost their place before {node.kind} {node.name!r}, so they have no order",
            where=node.where,
            fix=f"keep the column {POSITION} in the transform before it",
        )
    _refuse_nested_keys(node, frame)
    step = _keyed(node)
    for function in [step.function] if isinstance(step, Process | WindowApply) else folds_of(step):
        check_travels(function, node.where)
    shown = (
        before.columns.names
        if before.columns
        else [name for name in frame.columns if name not in (*before.hidden, ORIGINAL)]
    )
    return describe(step, frame, columns=shown, time=before.time)


def _refuse_nested_keys(node: Node, frame: DataFrame) -> None:
    from pyspark.sql.types import ArrayType, MapType, NullType, StructType

    for name in _keyed(node).keys:
        kind = frame.select(quote(name)).schema[0].dataType
        if isinstance(kind, ArrayType | MapType | NullType | StructType):
            raise BadJob(
                f"{node.kind} {node.name!r} is keyed by {name!r}, which is a {kind.simpleString()}",
                where=node.where,
                fix=f'make a plain value of it first: .select(..., key="to_json({name})"), or key_by its fields',
            )


def _keyed(node: Node) -> Keyed:
    if not isinstance(node.step, Keyed):
        raise InvariantBroken("an operator without keys", where=node.where, fix="report this")
    return node.step


def apply_to_sides(
    node: Node, frame: DataFrame, described: Described, begun: Sequence[Begun] | None, context: Context
) -> dict[str, DataFrame]:
    """The frame of all used sides of a step, and that of its results.

    Args:
        begun: the initial states of the step's keys; None if it has none.
    """
    graph = context.graph
    numbers = wanted_sides(graph, node)
    if isinstance(described.operator, ProcessOperator):
        described.operator.timeout_seconds = context.timeout_seconds
    rows = apply_operator(
        frame.drop(TASK),
        described.operator,
        place=Place(
            step=node.name,
            steps=frozenset(one.name for one in graph.nodes if is_operator(graph, one)),
            is_known=state_name(node.name) in context.kept,
        ),
        where=node.where,
        keys=_keyed(node).keys,
        reads=described.reads,
        partitions=context.planned.physical.state_partitions,
        declared=described.declared,
        encoding=described.encoding,
        checkpoint=context.checkpoint,
        sides=numbers,
        dropped=None if late_number(node) in numbers else context.dropped[node.name],
        initial=None if begun is None else keyed_frame(frame.sparkSession, begun, described.keys, where=node.where),
        rejects=context.rejects,
        crashes=context.crashes,
    )
    rows = mark(rows, node.name) if computes_once(context.graph, node) else rows
    return {sides_of(node.name): rows, node.name: rows_of_side(rows, 0) if 0 in numbers else rows}


def wanted_sides(graph: LogicalGraph, node: Node) -> list[int]:
    """The sides of an operator that other steps or outputs use."""
    users = [other for other in graph.nodes if node.name in other.inputs]
    numbers = {side_number(graph, other) if is_side_of_operator(graph, other) else 0 for other in users}
    return sorted(numbers | {late_number(node)} if logs_late_events(graph, node) else numbers)


def side_number(graph: LogicalGraph, node: Node) -> int:
    """The side of the operator before it that a step takes."""
    step, before = node.step, graph.node(node.inputs[0]).step
    if not isinstance(step, LateEvents | TimedOut) or not isinstance(before, Keyed):
        raise InvariantBroken("a side of nothing", where=node.where, fix="report this")
    return side_of(before, step)


def late_number(node: Node) -> int:
    """The side of an operator by which late events leave."""
    return LATE if isinstance(node.step, Detect) else 1


def rows_of_side(frame: DataFrame, number: int) -> DataFrame:
    """The rows that leave by a side; if an operator has only one, its columns have their plain names."""
    if SIDE not in frame.columns:
        return frame
    return frame.where(f"{SIDE} = {number}").select(f"{side_column(number)}.*")
