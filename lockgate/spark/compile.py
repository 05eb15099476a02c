"""From a plan to one DataFrame: the query whose epochs carry all outputs of a job.

One query is one DataFrame, one output mode and one watermark, so several outputs are tagged rows of one DataFrame and
are told apart again in every epoch. The parts of a split are tagged in one pass over the rows; other branches over one
source are computed side by side, and read it once each.

Every step is analysed by Spark here, before anything runs: what the planner could not check (a column behind a
`transform`, SQL that only Spark can parse) is refused with the author's own line.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from lockgate.dataflow.duration import as_spark_text
from lockgate.dataflow.endpoints import POSITION, Reading, Sink
from lockgate.dataflow.eventtime import EventTime
from lockgate.dataflow.exchange import Strategy
from lockgate.dataflow.schema import quote
from lockgate.dataflow.steps import (
    Exchanged,
    FlatMap,
    Join,
    Map,
    Merge,
    Part,
    Read,
    Rolling,
    Select,
    Timed,
    Transform,
    Where,
    WindowAggregate,
    Write,
)
from lockgate.dataflow.windows import SessionWindow, SlidingWindow, Window
from lockgate.errors import BadJob, InvariantBroken
from lockgate.guarantees import Guarantee, Mode
from lockgate.planner.logical import Node
from lockgate.planner.physical import is_exact
from lockgate.planner.plan import Plan
from lockgate.planner.sql import read_expression
from lockgate.spark.functions import RowStep, apply_rows
from lockgate.spark.rolling import apply_rolling

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TAG = "__output"
TASK = "__task"
"""Hidden column behind a broadcast: which of the tasks a copy of the row is for."""


@dataclass(frozen=True)
class CompiledOutput:
    """An output of the query: its name, its sink, and the tag of its rows (None where it is the only one)."""

    name: str
    where: str
    sink: Sink
    tag: int | None
    is_exact: bool  # is it written in transactions?

    @property
    def struct(self) -> str | None:
        """The column of a tagged frame that holds this output's rows, as structs."""
        return None if self.tag is None else _column(self.tag)

    def rows_of(self, frame: DataFrame) -> DataFrame:
        """This output's rows of a frame that holds all outputs."""
        if self.tag is None:
            return frame
        return frame.where(f"{TAG} = {self.tag}").select(f"{_column(self.tag)}.*")


@dataclass(frozen=True)
class Compiled:
    """The query of a job, not yet started."""

    frame: DataFrame
    outputs: tuple[CompiledOutput, ...]


def read_from(planned: Plan, node: Node, start: str | None, rows_per_epoch: int) -> Reading:
    """How a source of the plan is read.

    Nothing is skipped in silence, so without a word a run begins with the oldest. Only an at-most-once run begins with
    what comes next: it remembers nothing of the run before, and must not repeat a row.
    """
    step = node.step
    if start is None:
        is_tracked = planned.job.guarantee is not Guarantee.AT_MOST_ONCE
        can_skip = isinstance(step, Read) and step.source.ability.can_skip_history
        start = "latest" if can_skip and not is_tracked else "earliest"
    return Reading(
        name=node.name,
        origin=step.origin,
        start=start,
        rows_per_epoch=rows_per_epoch,
        is_real_time=planned.job.mode is Mode.REAL_TIME,
        is_order_needed=any(isinstance(other.step, Rolling) for other in planned.logical.nodes),
    )


def compile_plan(planned: Plan, spark: SparkSession, *, start: str | None, rows_per_epoch: int) -> Compiled:
    """The DataFrame of a plan; raises BadJob for what only Spark could find to be wrong."""
    from pyspark.errors import PySparkException

    spark.conf.set("spark.sql.shuffle.partitions", planned.physical.state_partitions)
    frames: dict[str, DataFrame] = {}
    written: list[tuple[Node, Write, DataFrame]] = []
    for node in planned.logical.nodes:
        inputs = [frames[name] for name in node.inputs]
        try:
            frames[node.name] = _compile_step(node, inputs, planned, spark, start, rows_per_epoch)
            frames[node.name].schema  # noqa: B018 - asks Spark's analyser now, while the step is known
            if isinstance(node.step, Write):
                node.step.sink.check_rows(frames[node.name], node.where)
                written.append((node, node.step, frames[node.name]))
        except PySparkException as error:
            raise BadJob(
                f"Spark refuses {node.kind} {node.name!r}: {str(error).splitlines()[0]}",
                where=node.where,
                fix=f"the columns that reach this step are {', '.join(inputs[0].columns) if inputs else 'none'}",
            ) from error
    outputs = tuple(
        CompiledOutput(
            name=node.name,
            where=node.where,
            sink=step.sink,
            tag=None if len(written) == 1 else tag,
            is_exact=is_exact(planned.logical, node),
        )
        for tag, (node, step, _) in enumerate(written)
    )
    if len(written) == 1:
        return Compiled(frame=written[0][2], outputs=outputs)
    return Compiled(frame=_tagged(planned, frames, [node for node, _, _ in written]), outputs=outputs)


def _tagged(planned: Plan, frames: dict[str, DataFrame], outputs: list[Node]) -> DataFrame:
    """All outputs in one frame: a tag, and a struct for each output that is null in the rows of the others."""
    from pyspark.sql import functions as F

    shapes = [frames[node.name].schema for node in outputs]

    def tag_columns(made: dict[int, Column]) -> list[Column]:
        return [made.get(tag, F.lit(None)).cast(shape).alias(_column(tag)) for tag, shape in enumerate(shapes)]

    tagged: list[DataFrame] = []
    splits: dict[str, dict[int, _Branch]] = {}
    for tag, node in enumerate(outputs):
        branch = _branch(planned, node)
        if branch is not None:
            splits.setdefault(branch.base, {})[tag] = branch
        else:
            tagged.append(frames[node.name].select(F.lit(tag).alias(TAG), *tag_columns({tag: F.struct("*")})))
    for base, parts in splits.items():
        # One pass over the rows: each is tagged with every part whose condition holds.
        marks = F.array(*(F.when(branch.condition(), F.lit(tag)) for tag, branch in parts.items()))
        marked = frames[base].select(F.explode(F.array_compact(marks)).alias(TAG), "*")
        made = {
            tag: F.when(F.col(TAG) == tag, F.struct(*branch.columns(frames[outputs[tag].name].columns)))
            for tag, branch in parts.items()
        }
        tagged.append(marked.select(TAG, *tag_columns(made)))
    return reduce(lambda one, two: one.union(two), tagged)


@dataclass(frozen=True)
class _Branch:
    """A part of a split that goes to its sink by conditions and at most one select, all native."""

    base: str
    conditions: tuple[str, ...]
    select: Select | None

    def condition(self) -> Column:
        from pyspark.sql import functions as F

        return reduce(lambda one, two: one & two, (F.expr(condition) for condition in self.conditions))

    def columns(self, names: list[str]) -> list[Column]:
        from pyspark.sql import functions as F

        sql = self.select.expressions if self.select is not None else {}
        return [F.expr(sql[name]).alias(name) if name in sql else F.col(quote(name)) for name in names]


def _branch(planned: Plan, output: Node) -> _Branch | None:
    """The branch of a split that ends in this output, or None where more than a select stands between."""
    conditions: list[str] = []
    select: Select | None = None
    if isinstance(output.step, Write) and output.step.sink.expressions():
        return None  # the sink's own SQL speaks of the output's columns, which have no names inside a struct
    node = planned.logical.node(output.inputs[0])
    if isinstance(node.step, Select):
        expressions = node.step.expressions
        # An expression that uses another one of the same select has no place in a struct.
        if any({name.lower() for name in expressions} & _names(sql) for sql in expressions.values()):
            return None
        select, node = node.step, planned.logical.node(node.inputs[0])
    while isinstance(node.step, Where) and isinstance(node.step.condition, str):
        conditions.append(node.step.condition)
        node = planned.logical.node(node.inputs[0])
    if not isinstance(node.step, Part):
        return None
    return _Branch(base=node.inputs[0], conditions=(node.step.condition, *reversed(conditions)), select=select)


def _names(sql: str) -> set[str]:
    facts = read_expression(sql)
    return {name.lower() for name in facts.columns} if facts is not None else set()


def _column(tag: int) -> str:
    return f"output_{tag}"


def _compile_step(
    node: Node, inputs: list[DataFrame], planned: Plan, spark: SparkSession, start: str | None, rows_per_epoch: int
) -> DataFrame:
    from pyspark.sql import functions as F

    step = node.step
    if isinstance(step, Read):
        return step.source.read(spark, read_from(planned, node, start, rows_per_epoch))
    frame = inputs[0]
    before = planned.logical.node(node.inputs[0]).flow
    hidden = [name for name in (*before.hidden, TASK) if name in frame.columns]
    if isinstance(step, Where):
        if isinstance(step.condition, str):
            return frame.where(step.condition)
        return apply_rows(frame, RowStep(step.condition, "where", node.where, ()), "", hidden)
    if isinstance(step, Part):
        return frame.where(step.condition)
    if isinstance(step, Select):
        chosen = [F.col(quote(name)) for name in step.columns]
        chosen += [F.expr(sql).alias(name) for name, sql in step.expressions.items()]
        names = {name.lower() for name in (*step.columns, *step.expressions)}
        return frame.select(*chosen, *(name for name in hidden if name.lower() not in names))
    if isinstance(step, Map | FlatMap):
        columns = node.flow.columns.names if node.flow.columns else ()
        kept = [name for name in hidden if name.lower() not in {column.lower() for column in columns}]
        return apply_rows(frame, RowStep(step.function, node.kind, node.where, columns), step.schema, kept)
    if isinstance(step, Transform):
        return _transformed(frame, step, node)
    if isinstance(step, Merge):
        return _merged(inputs, planned, node)
    if isinstance(step, Join):
        return _joined(inputs[0], inputs[1], step, planned, node)
    if isinstance(step, Timed):
        return frame.withWatermark(step.time.column, as_spark_text(step.time.lateness))
    if isinstance(step, Exchanged):
        return _exchanged(frame, step, planned.physical.state_partitions)
    if isinstance(step, Rolling):
        if POSITION not in frame.columns:
            raise BadJob(
                f"the rows have lost their place before rolling {node.name!r}, so they have no order",
                where=node.where,
                fix=f"keep the column {POSITION} in the transform before it",
            )
        return apply_rolling(frame, step.keys, step.aggregates, node.where)
    if isinstance(step, WindowAggregate):
        return _windowed(frame, step, before.time)
    if isinstance(step, Write):
        shown = before.columns.names if before.columns else [name for name in frame.columns if name not in hidden]
        return step.sink.prepare(frame.select(*map(quote, shown)))
    raise InvariantBroken(f"no form of {type(step).__name__} in Spark", where=node.where, fix="report this")


def _merged(inputs: list[DataFrame], planned: Plan, node: Node) -> DataFrame:
    """One frame of all rows; hidden columns that a source does not have are null, others must be the same."""
    hidden = {TASK, *(name for before in node.inputs for name in planned.logical.node(before).flow.hidden)}
    shown = [sorted(name.lower() for name in frame.columns if name not in hidden) for frame in inputs]
    if any(names != shown[0] for names in shown):
        raise BadJob(
            f"streams with different columns are merged: {' and '.join(', '.join(names) for names in shown)}",
            where=node.where,
            fix="select the same columns on both sides first",
        )
    return reduce(lambda one, two: one.unionByName(two, allowMissingColumns=True), inputs)


def _transformed(frame: DataFrame, step: Transform, node: Node) -> DataFrame:
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
            fix="mend the function; it is called once, with a DataFrame, before anything runs",
        ) from error
    if not isinstance(result, DataFrame):
        raise BadJob(
            f"the function of transform {node.name!r} returned {type(result).__name__}, not a DataFrame",
            where=node.where,
            fix="return the DataFrame that is to go on",
        )
    return result


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

    if time is None:
        raise InvariantBroken("a window without time", where=f"declared at {step.origin}", fix="report this")
    keys: list[Column] = [F.col(quote(name)) for name in step.keys]
    if isinstance(step.window, SessionWindow) and not keys:
        # Spark has no sessions without a key, and sees through a literal; it cannot see through this one.
        frame, keys = frame.withColumn("__all", F.spark_partition_id() * 0), [F.col("__all")]
    aggregates = [F.expr(sql).alias(name) for name, sql in step.aggregates.items()]
    grouped = frame.groupBy(*keys, _window(step.window, time.column).alias("__window")).agg(*aggregates)
    return grouped.select(
        *map(quote, step.keys),
        F.col("__window.start").alias("window_start"),
        F.col("__window.end").alias("window_end"),
        *map(quote, step.aggregates),
    )


def _window(window: Window, column: str) -> Column:
    from pyspark.sql import functions as F

    if isinstance(window, SessionWindow):
        return F.session_window(F.col(quote(column)), as_spark_text(window.gap))
    every = as_spark_text(window.every) if isinstance(window, SlidingWindow) else None
    return F.window(quote(column), as_spark_text(window.size), every)


def _joined(left: DataFrame, right: DataFrame, step: Join, planned: Plan, node: Node) -> DataFrame:
    from pyspark.sql import functions as F

    flows = [planned.logical.node(name).flow for name in node.inputs]
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
        if step.how in ("inner", "left"):
            return one.alias(name)
        return two.alias(name) if step.how == "right" else F.coalesce(one, two).alias(name)

    def in_sight(frame: DataFrame, hidden: tuple[str, ...]) -> list[str]:
        return [name for name in frame.columns if name.lower() not in on and name not in hidden and name != TASK]

    return joined.select(
        *(key(name) for name in step.on),
        *(F.col(quote(name)) for name in in_sight(left, flows[0].hidden)),
        *(F.col(quote(f"__right_{name}")).alias(name) for name in in_sight(right, flows[1].hidden)),
    )
