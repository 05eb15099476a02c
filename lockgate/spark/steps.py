"""The frame of each step that is no operator of ours: Spark's own expressions, or a function over rows in Python.

SQL of the user is tried row by row if dead letters are declared, so that a row on which it fails is put aside
(spark/trials.py). Late events of a native window are among those in time, and only the end of the query knows which
ones. SQL that fails there stops the job, because a dead letter might be of an event that is in its window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from lockgate.connectors.rejects import Guard, Rejects
from lockgate.dataflow.deadletters import LETTER
from lockgate.dataflow.duration import as_spark_text
from lockgate.dataflow.endpoints import ORIGINAL, PLACE, Sink
from lockgate.dataflow.eventtime import EventTime
from lockgate.dataflow.exchange import Strategy
from lockgate.dataflow.fanout import FanOut, Partial
from lockgate.dataflow.joinkind import JoinKind
from lockgate.dataflow.schema import parse_ddl, quote
from lockgate.dataflow.state import check_travels
from lockgate.dataflow.steps import (
    Exchanged,
    FlatMap,
    Join,
    LateEvents,
    Map,
    Merge,
    Part,
    Select,
    TableJoin,
    Timed,
    Transform,
    Where,
    WindowAggregate,
    Write,
)
from lockgate.dataflow.table import ReadTable
from lockgate.dataflow.windows import SessionWindow, TimeWindow
from lockgate.errors import BadJob, InvariantBroken
from lockgate.planner.derive import needs_same_rows
from lockgate.planner.flow import MISSED, Flow
from lockgate.planner.forms import as_sql
from lockgate.planner.logical import LogicalGraph, Node
from lockgate.planner.nondeterminism import feeds_state
from lockgate.planner.passes import is_computed_once
from lockgate.spark.context import TASK, Context
from lockgate.spark.fanout import STAMP, FanOutStep, apply_fan_out
from lockgate.spark.functions import RowStep, apply_rows
from lockgate.spark.nondeterminism import count_marks, find_nondeterminism, find_unplanned
from lockgate.spark.tablejoin import join_table, schema_of
from lockgate.spark.tagging import mark_columns
from lockgate.spark.timing import late_candidates, window_of, with_watermark
from lockgate.spark.trials import select_tried, where_tried

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def step_rows(node: Node, inputs: list[DataFrame], context: Context) -> DataFrame:
    """The rows of a step over those of its inputs."""
    step, frame, before = node.step, inputs[0], context.fed(node)
    hidden = [name for name in (*before.hidden, TASK, ORIGINAL) if name in frame.columns]
    if isinstance(step, Where):
        if isinstance(step.condition, str):
            return _filtered(frame, step.condition, node, context.rejects)
        return apply_rows(frame, _row_step(step.condition, (), node, context), "", hidden, context.rejects)
    if isinstance(step, Part):
        return _filtered(frame, step.condition, node, context.rejects)
    if isinstance(step, Select):
        return _selected(frame, step, node, hidden, context.rejects)
    if isinstance(step, Map | FlatMap):
        columns = node.flow.columns.names if node.flow.columns else ()
        kept = [name for name in hidden if name.lower() not in {column.lower() for column in columns}]
        rows = _row_step(step.function, columns, node, context)
        return apply_rows(frame, rows, step.schema, kept, context.rejects)
    if isinstance(step, FanOut):
        return _fanned_out(frame, step, node, context)
    if isinstance(step, Transform):
        return _transformed(frame, step, node, context)
    if isinstance(step, Merge):
        return _merged(inputs, node, context.graph)
    if isinstance(step, Join):
        return _joined(inputs[0], inputs[1], step, node, context.graph)
    if isinstance(step, TableJoin):
        return _joined_with_table(frame, step, node, context)
    if isinstance(step, Timed):
        guard = Guard(node.name, node.where, "time", context.rejects)
        return with_watermark(frame, step.time, hidden=hidden, guard=guard, beats=context.beats)
    if isinstance(step, Exchanged):
        return _exchanged(frame, step, context.planned.physical.state_partitions)
    if isinstance(step, WindowAggregate):
        return _windowed(frame, step, before.time)
    if isinstance(step, LateEvents):
        window = context.graph.node(node.inputs[0])
        return late_rows(frame, window, context.fed(window).time)
    if isinstance(step, Write):
        return _prepared(frame, step.sink, before, hidden, context.rejects)
    raise InvariantBroken(f"no form of {type(step).__name__} in Spark", where=node.where, fix="report this")


def _row_step(function: Callable[..., Any], columns: tuple[str, ...], node: Node, context: Context) -> RowStep:
    """The part of a function over rows that a worker receives."""
    puts_aside = context.rejects is not None
    return RowStep(
        function, node.kind, node.name, node.where, columns, puts_aside, context.timeout_seconds, context.crashes
    )


def _prepared(frame: DataFrame, sink: Sink, before: Flow, hidden: Sequence[str], rejects: Rejects | None) -> DataFrame:
    """The rows of an output as its sink takes them, with the hidden columns that the end of the query needs."""
    shown = before.columns.names if before.columns else [name for name in frame.columns if name not in hidden]
    wanted = [MISSED] if MISSED in hidden else []
    wanted += [] if rejects is None and not sink.wants_place else [PLACE]
    wanted += [] if rejects is None else [ORIGINAL]
    return sink.prepare(frame.select(*map(quote, shown), *mark_columns(frame, wanted)))


def _filtered(frame: DataFrame, condition: str, node: Node, rejects: Rejects | None) -> DataFrame:
    kept = frame.where(condition)
    if rejects is None or MISSED in frame.columns:
        return kept
    kept.schema  # noqa: B018 - Spark's analyser refuses the SQL as the user wrote it, before it is tried
    return where_tried(frame, condition, step=node.name, rejects=rejects)


def _selected(frame: DataFrame, step: Select, node: Node, hidden: Sequence[str], rejects: Rejects | None) -> DataFrame:
    from pyspark.sql import functions as F

    names = {name.lower() for name in (*step.columns, *step.expressions)}
    beside = [name for name in hidden if name.lower() not in names]
    made = [F.expr(sql).alias(name) for name, sql in step.expressions.items()]
    rows = frame.select(*map(quote, step.columns), *made, *beside)
    if rejects is None or MISSED in frame.columns:
        return rows
    rows.schema  # noqa: B018 - as above
    return select_tried(frame, step.columns, step.expressions, step=node.name, kept=beside, rejects=rejects)


def _merged(inputs: list[DataFrame], node: Node, graph: LogicalGraph) -> DataFrame:
    """One frame of all rows; hidden columns that a source does not have are null, others must be the same."""
    hidden = {TASK, ORIGINAL, *(name for before in node.inputs for name in graph.node(before).flow.hidden)}
    shown = [sorted(name.lower() for name in frame.columns if name not in hidden) for frame in inputs]
    if any(names != shown[0] for names in shown):
        raise BadJob(
            f"streams with different columns are merged: {' and '.join(', '.join(names) for names in shown)}",
            where=node.where,
            fix="select the same columns on both sides first",
        )
    return reduce(lambda one, two: one.unionByName(two, allowMissingColumns=True), inputs)


def _fanned_out(frame: DataFrame, step: FanOut, node: Node, context: Context) -> DataFrame:
    if context.tallies is None:
        raise InvariantBroken("a fan-out without counts", where=node.where, fix="report this")
    functions = dict(step.functions)
    for function in functions.values():
        check_travels(function, node.where)
    fan = FanOutStep(
        name=node.name,
        where=node.where,
        functions=functions,
        deadline_seconds=step.deadline.total_seconds(),
        in_flight=step.in_flight,
        goes_on_partial=step.partial is Partial.PUBLISH,
        identity=context.tallies.identity,
        tallies=context.tallies.told,
        puts_aside=context.rejects is not None,
        crashes=context.crashes,
        has_stamps=STAMP in context.fed(node).hidden,
    )
    return apply_fan_out(frame, fan, step.schema, context.rejects)


def _transformed(frame: DataFrame, step: Transform, node: Node, context: Context) -> DataFrame:
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame

    try:
        result = step.function(frame)
    except PySparkException:
        raise
    except Exception as error:
        raise BadJob(
            f"the function of transform {node.name!r} failed: {type(error).__name__}: {error}",
            where=node.where,
            fix="fix the function; it is called once, with a DataFrame, before anything runs",
        ) from error
    if not isinstance(result, DataFrame):
        raise BadJob(
            f"the function of transform {node.name!r} returned {type(result).__name__}, not a DataFrame",
            where=node.where,
            fix="return the DataFrame that the next step gets",
        )
    _refuse_other_stream(result, frame, node)
    _refuse_repeated_nondeterminism(result, node, context.graph)
    if step.is_deterministic:
        _refuse_undeclared_chance(result, frame, node, context)
    return result


def _refuse_other_stream(result: DataFrame, frame: DataFrame, node: Node) -> None:
    other = find_unplanned(result, frame, is_stream=True)
    if other is not None:
        raise BadJob(
            f"transform {node.name!r} reads a stream that is no source of the job: {other}. Nothing is known of it: can"
            " it be replayed, and is it the same after a restart?",
            where=node.where,
            fix='read it with stream("name", source), and merge or join it',
        )


def _refuse_undeclared_chance(result: DataFrame, frame: DataFrame, node: Node, context: Context) -> None:
    stored = find_unplanned(result, frame, is_stream=False)
    if stored is not None:
        raise BadJob(
            f"transform {node.name!r} reads files or a table, which may change before an epoch is repeated: {stored}."
            " Its guarantee would be derived wrongly",
            where=node.where,
            fix='join a table of the job, whose snapshot a repeated epoch sees again: .join(table("name", ...), on=...)'
            "; or declare .transform(..., deterministic=False)",
        )
    # The order of rows decides which rows these steps keep. It does no harm if each epoch has one result, and nothing
    # compares it with that of a replay.
    graph, is_once = context.graph, is_computed_once(context.graph, node, context.planned.cuts)
    is_harmless = is_once and not feeds_state(graph, node) and not needs_same_rows(graph, node)
    chance = find_nondeterminism(result, frame, feeds_state=not is_harmless)
    if chance is not None:
        raise BadJob(
            f"transform {node.name!r} is not deterministic, by {chance}, and is not declared so: its guarantee would be"
            " derived wrongly",
            where=node.where,
            fix="declare it: .transform(..., deterministic=False); or derive random values from the event, and do not"
            " let rows depend on the order in which others arrive; or write its rows to a topic, and continue from"
            " there in a job of its own",
        )


def _refuse_repeated_nondeterminism(result: DataFrame, node: Node, graph: LogicalGraph) -> None:
    for name, times in count_marks(result).items():
        if times > 1:
            before = graph.node(name)
            raise BadJob(
                f"transform {node.name!r} uses the rows of {before.kind} {name!r} {times} times, which is not"
                " deterministic: Spark would compute it for each use, and each would have other values",
                where=node.where,
                fix="use the rows once in the transform, and split them outside of it: .where(...), .split(...);"
                f" or write those of {name!r} to a topic first, and continue from there in a second job",
            )


def _exchanged(frame: DataFrame, step: Exchanged, state_partitions: int) -> DataFrame:
    from pyspark.sql import functions as F

    tasks = step.tasks if step.tasks is not None else state_partitions
    strategy = step.exchange.strategy if step.exchange is not None else Strategy.RANDOM
    if strategy is Strategy.FORWARD:
        return frame if step.tasks is None else frame.coalesce(step.tasks)
    if strategy is Strategy.RANDOM:
        return frame.repartition(tasks)
    if strategy is Strategy.BY_KEY and step.exchange is not None:
        return frame.repartition(tasks, *map(quote, step.exchange.keys))
    copies = F.explode(F.sequence(F.lit(0), F.lit(tasks - 1)))
    return frame.drop(TASK).withColumn(TASK, copies).repartitionById(tasks, F.col(TASK))


def _windowed(frame: DataFrame, step: WindowAggregate, time: EventTime | None) -> DataFrame:
    from pyspark.sql import functions as F

    if time is None or not isinstance(step.window, TimeWindow):
        raise InvariantBroken("a native window without time", where=f"declared at {step.origin}", fix="report this")
    keys: list[Column] = [F.col(quote(name)) for name in step.keys]
    if isinstance(step.window, SessionWindow) and not keys:
        # Spark has no sessions without a key, and sees through a literal; it cannot see through this one.
        frame, keys = frame.withColumn("__all", F.spark_partition_id() * 0), [F.col("__all")]
    aggregates = [F.expr(as_sql(one)).alias(name) for name, one in step.aggregates.items()]
    grouped = frame.groupBy(*keys, window_of(step.window, time.column).alias("__window")).agg(*aggregates)
    return grouped.select(
        *map(quote, step.keys),
        F.col("__window.start").alias("window_start"),
        F.col("__window.end").alias("window_end"),
        *map(quote, step.aggregates),
    )


def late_rows(frame: DataFrame, window: Node, time: EventTime | None) -> DataFrame:
    """The rows that may be late for a native window, and some that are not: the end of the query cuts them off."""
    step = window.step
    if not isinstance(step, WindowAggregate) or not isinstance(step.window, TimeWindow) or time is None:
        raise InvariantBroken("late events of no native window", where=window.where, fix="report this")
    return late_candidates(frame, step.window, time)


def _joined_with_table(frame: DataFrame, step: TableJoin, node: Node, context: Context) -> DataFrame:
    table = context.graph.node(node.inputs[1])
    if context.tables is None or not isinstance(table.step, ReadTable):
        raise InvariantBroken("a table without a reader", where=node.where, fix="report this")
    schema = schema_of(table.step.rows)
    return join_table(
        frame, schema, table_server=context.tables, table=table.name, on=step.on, how=step.how, where=node.where
    )


def _joined(left: DataFrame, right: DataFrame, step: Join, node: Node, graph: LogicalGraph) -> DataFrame:
    from pyspark.sql import functions as F

    flows = [graph.node(name).flow for name in node.inputs]
    left_time, right_time = flows[0].time, flows[1].time
    if left_time is None or right_time is None or step.within is None:
        raise InvariantBroken("a join without time", where=node.where, fix="report this")
    # Every column of the right side gets a name of its own, so that nothing is ambiguous.
    renamed = right.select(*(F.col(quote(name)).alias(f"__right_{name}") for name in right.columns))
    bound = f"INTERVAL '{as_spark_text(step.within).split()[0]}' MICROSECOND"
    here, there = quote(left_time.column), quote(f"__right_{right_time.column}")
    conditions = [F.col(quote(name)) == F.col(quote(f"__right_{name}")) for name in step.on]
    conditions.append(F.expr(f"{there} >= {here} - {bound} AND {there} <= {here} + {bound}"))
    joined = left.join(renamed, reduce(lambda one, two: one & two, conditions), step.how)
    on = {name.lower() for name in step.on}

    def key(name: str) -> Column:
        one, two = F.col(quote(name)), F.col(quote(f"__right_{name}"))
        if step.how in (JoinKind.INNER, JoinKind.LEFT):
            return one.alias(name)
        return two.alias(name) if step.how is JoinKind.RIGHT else F.coalesce(one, two).alias(name)

    def in_sight(frame: DataFrame, hidden: tuple[str, ...]) -> list[str]:
        return [name for name in frame.columns if name.lower() not in on and name not in (*hidden, TASK, ORIGINAL)]

    return joined.select(
        *(key(name) for name in step.on),
        *(F.col(quote(name)) for name in in_sight(left, flows[0].hidden)),
        *(F.col(quote(f"__right_{name}")).alias(name) for name in in_sight(right, flows[1].hidden)),
    )


def no_letters(spark: SparkSession) -> DataFrame:
    """A frame with the columns of dead letters and no row."""
    from pyspark.sql import functions as F

    columns = parse_ddl(LETTER, "dead letters").columns
    return spark.range(0).select(*(F.lit(None).cast(column.type or "string").alias(column.name) for column in columns))
