"""From a plan to one DataFrame: the query whose epochs carry all outputs of a job.

One query is one DataFrame, one output mode and one watermark, so several outputs are tagged rows of one DataFrame and
are told apart again in every epoch. The parts of a split, and what leaves one operator, are tagged in one pass over the
rows; other branches over one source are computed side by side, and read it once each.

A step that is not deterministic must not be computed side by side (planner/passes.py). If it has several branches, the
query ends there: its rows are one more tag of the frame. In every epoch they are kept, and `finish` applies the steps
below to them, by the same code, over a batch.

Every step is analysed by Spark here, before anything runs: what the planner could not check (a column behind a
`transform`, SQL that only Spark can parse) is refused with the author's own line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from lockgate.dataflow.aggregates import Aggregate
from lockgate.dataflow.deadletters import LETTER
from lockgate.dataflow.duration import as_spark_text
from lockgate.dataflow.endpoints import ORIGINAL, ORIGINAL_DDL, PLACE, POSITION, POSITION_DDL, Reading, Sink
from lockgate.dataflow.eventtime import EventTime
from lockgate.dataflow.exchange import Strategy
from lockgate.dataflow.fanout import FanOut, Partial
from lockgate.dataflow.schema import parse_ddl, quote
from lockgate.dataflow.state import check_travels
from lockgate.dataflow.steps import (
    Detect,
    Exchanged,
    FlatMap,
    Join,
    Keyed,
    LateEvents,
    Letters,
    Map,
    Merge,
    Part,
    Process,
    Read,
    Rolling,
    Select,
    TableJoin,
    Timed,
    TimedOut,
    Transform,
    Where,
    WindowAggregate,
    WindowApply,
    Windowed,
    Write,
)
from lockgate.dataflow.table import ReadTable
from lockgate.dataflow.windows import SessionWindow, TimeWindow
from lockgate.errors import BadJob, InvariantBroken
from lockgate.guarantees import Guarantee, Mode
from lockgate.operators.contract import Time
from lockgate.operators.pattern import LATE
from lockgate.operators.process import ProcessOperator
from lockgate.planner.chance import expressions_of, feeds_state, is_wild
from lockgate.planner.flow import MISSED
from lockgate.planner.forms import as_sql
from lockgate.planner.logical import LogicalGraph, Node, is_operator
from lockgate.planner.passes import (
    computes_once,
    fed_by,
    is_side_of_operator,
    logs_late_events,
    share_passes,
    sides_of,
    steps_before,
    way_of,
)
from lockgate.planner.physical import has_state, is_exact
from lockgate.planner.plan import Plan
from lockgate.serving.door import Address
from lockgate.sinks.kafka import KafkaSink
from lockgate.sources.rejects import JSON_OPTIONS, Guard, Rejects, original
from lockgate.sources.returned import parse_returned, read_returned
from lockgate.spark.chance import count_marks, find_chance, find_chance_in_sql, mark
from lockgate.spark.counting import count_outputs, count_step
from lockgate.spark.fanout import STAMP, FanOutStep, Tallies, apply_fan_out
from lockgate.spark.functions import RowStep, apply_rows
from lockgate.spark.keyed import SIDE, Place, apply_operator, side_column, state_name
from lockgate.spark.keys import Begun, keyed_frame
from lockgate.spark.stateful import Described, describe, side_of
from lockgate.spark.tables import join_table, schema_of
from lockgate.spark.timing import LateLog, late_candidates, new_pulse, read_beats, tell_time, window_of
from lockgate.spark.trials import Trial, attempt, can_fail, row_as_json, select_tried, where_tried

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

Keep = Callable[["DataFrame"], "DataFrame"]
"""Computes rows once and keeps them for as long as the epoch is written."""

Finish = Callable[["DataFrame", Keep], "DataFrame"]
"""Makes the rows of all outputs of the rows of an epoch, where the query ends before its outputs."""

Initial = Callable[[Node, Described], "Sequence[Begun] | None"]
"""What the keys of a step begin with in the first epoch; None where they begin with nothing."""

TAG = "__output"
_MARKS = {MISSED: "timestamp", PLACE: POSITION_DDL, ORIGINAL: ORIGINAL_DDL}
"""What stands beside the rows of an output until the end of the query, and its type."""

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
        beside = [PLACE] if self.sink.wants_place and PLACE in frame.columns else []
        return frame.where(f"{TAG} = {self.tag}").select(f"{_column(self.tag)}.*", *beside)


@dataclass(frozen=True)
class Compiled:
    """The query of a job, not yet started."""

    frame: DataFrame
    finish: Finish | None  # None where the frame has the rows of all outputs
    outputs: tuple[CompiledOutput, ...]
    operators: Mapping[str, Described]  # by the name of their step
    pulse: Path | None  # where the run says that time goes on in silence; None where it does not
    runs_without_rows: bool  # does Spark run epochs whether events come or not, because a step goes by the clock?
    dropped: Mapping[str, Accumulator[int]]  # how many late events each operator has dropped, in all passes together
    parts: tuple[tuple[str, ...], ...]  # the steps of each part of the query, in the order in which Spark numbers them
    rejects: Rejects | None  # takes events that cannot be used; None where they stop the job
    letters: CompiledOutput | None  # the output that they go to: the query has none of its rows, the run adds them
    stateful: tuple[str, ...]  # the steps with state, in the order in which Spark reports them
    counted: tuple[CompiledOutput, ...]  # the outputs whose rows are counted at the end of the query
    tallies: Tallies | None  # what fan-outs count; None where there are none

    def count_dropped(self) -> int:
        """How many late events operators have dropped, as far as tasks have told; every pass drops the same ones."""
        return sum(dropped.value // self.stateful.count(step) for step, dropped in self.dropped.items())


@dataclass(frozen=True)
class _Written:
    """The rows of an output, and where they branch off from rows that others go on with too."""

    name: str
    where: str
    sink: Sink
    frame: DataFrame
    is_exact: bool
    branch: _Branch | None
    end: str  # the last step that its rows go through
    is_letters: bool = False

    @property
    def columns(self) -> list[str]:
        return [name for name in self.frame.columns if name not in _MARKS]


def read_from(
    planned: Plan,
    node: Node,
    start: str | None,
    rows_per_epoch: int,
    rejects: Rejects | None = None,
    returned: DataFrame | None = None,
    rows_first: int | None = None,
) -> Reading:
    """How a source of the plan is read.

    Nothing is skipped in silence, so without a word a run begins with the oldest. Only an at-most-once run begins with
    what comes next: it remembers nothing of the run before, and must not repeat a row.
    """
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
        # A letter names the place of its event, which has to be one of its own.
        is_order_needed=rejects is not None
        or any(is_operator(planned.logical, other) for other in planned.logical.nodes),
        rejects=rejects,
        returned=returned,
        is_at_most_once=is_at_most_once,
    )


def compile_plan(
    planned: Plan,
    spark: SparkSession,
    *,
    start: str | None,
    rows_per_epoch: int,
    rows_first: int | None = None,
    tables: Address | None = None,
    crashes: Address | None = None,
    initial: Initial | None = None,
    kept: frozenset[str] = frozenset(),
    checkpoint: str | None = None,
    before: Compiled | None = None,
    is_counting: bool = False,
) -> Compiled:
    """The DataFrame of a plan; raises BadJob for what only Spark could find to be wrong.

    Workers ask for the snapshots of tables at `tables`, and tell at `crashes` what they may die with. What the keys of
    a step begin with is asked of `initial`. States of the names in `kept` are in the checkpoint; events that come once
    more lie beside it. Where a run has compiled its plan `before`, and goes on with what comes next, it goes on with
    the pulse and the counts that it has. Rows are counted for metrics where `is_counting` says so.
    """
    spark.conf.set("spark.sql.shuffle.partitions", planned.physical.state_partitions)
    graph = planned.logical
    pulse = new_pulse() if _goes_on_in_silence(planned) else None
    dropped: Mapping[str, Accumulator[int]] = {
        node.name: spark.sparkContext.accumulator(0)
        for node in planned.logical.nodes
        if is_operator(planned.logical, node)
    }
    rejects = None if planned.job.dead_letters is None else Rejects(spark)
    has_fan_out = any(isinstance(node.step, FanOut) for node in graph.nodes)
    tallies = Tallies(spark) if has_fan_out else None
    if before is not None:
        pulse, dropped, rejects, tallies = before.pulse, before.dropped, before.rejects, before.tallies
    compiler = _Compiler(
        planned=planned,
        spark=spark,
        start=start,
        rows_per_epoch=rows_per_epoch,
        rows_first=rows_first,
        tables=tables,
        crashes=crashes,
        initial=initial,
        kept=kept,
        checkpoint=checkpoint,
        is_counting=is_counting,
        beats=None if pulse is None else read_beats(spark, pulse),
        dropped=dropped,
        rejects=rejects,
        tallies=tallies,
    )
    query = compiler.compile_query()
    # The steps behind the end of the query are compiled now too, over no rows: what is wrong with them is refused.
    in_query = len(query.written)
    written = [*query.written, *compiler.compile_below({name: _empty(rows) for name, rows in query.ends.items()})[0]]
    outputs = tuple(
        CompiledOutput(
            name=one.name,
            where=one.where,
            sink=one.sink,
            tag=None if len(written) == 1 else tag,
            is_exact=one.is_exact,
        )
        for tag, one in enumerate(written)
    )
    counted = tuple(output for output, one in zip(outputs, written, strict=True) if is_counting and _is_counted(one))
    shared = share_passes([None if one.branch is None else one.branch.base for one in written])
    passes = [tags for tags in shared if tags[0] < in_query and not written[tags[0]].is_letters]
    passes_below = [tags for tags in shared if tags[0] >= in_query]

    def refuse_and_count(frame: DataFrame, rejects: Rejects | None) -> DataFrame:
        if rejects is not None:
            frame = _without_refused(frame, outputs, rejects)
        return count_outputs(frame, TAG, [output.tag for output in counted]) if counted else frame

    def finish(rows: DataFrame, keep: Keep) -> DataFrame:
        mine = replace(compiler, rejects=None if rejects is None else rejects.in_epoch(), keep=keep)
        opened = {name: _opened(rows, len(written) + place) for place, name in enumerate(query.ends)}
        below, frames = mine.compile_below(opened)
        if len(written) == 1:
            return refuse_and_count(below[0].frame, mine.rejects)
        found = [*query.written, *below]
        tags = _Tags.of(found).without(MISSED)
        through = [tags.pass_on(rows, range(in_query))] if passes else []
        return refuse_and_count(
            _union([*through, *_tagged(frames, found, passes_below, tags, mine.rejects)]), mine.rejects
        )

    if query.ends:
        frame = _cut_off(query, written, passes, rejects)
        _require_once(finish(_empty(frame), lambda rows: _empty(_require_once(rows, planned))), planned)
    elif len(written) == 1:
        frame = refuse_and_count(written[0].frame, rejects)
    else:
        frame = refuse_and_count(_union(_tagged(query.frames, written, passes, _Tags.of(written), rejects)), rejects)
    _require_once(frame, planned)
    ends = [*(written[tags[0]].end for tags in passes), *query.ends]
    return Compiled(
        frame=frame,
        finish=finish if query.ends else None,
        outputs=outputs,
        operators=query.operators,
        pulse=pulse,
        runs_without_rows=any(one.operator.time in (Time.WALL, Time.BOTH) for one in query.operators.values()),
        dropped=dropped,
        parts=tuple(steps_before(graph, end) for end in ends),
        rejects=rejects,
        letters=next((output for output, one in zip(outputs, written, strict=True) if one.is_letters), None),
        stateful=tuple(step for end in ends for step in _reported(end, planned)),
        counted=counted,
        tallies=tallies,
    )


@dataclass(frozen=True)
class _Query:
    """The steps of the query: their frames, the outputs that need no more, and the rows that steps below need."""

    frames: Mapping[str, DataFrame]
    written: Sequence[_Written]
    operators: Mapping[str, Described]
    ends: Mapping[str, DataFrame]


@dataclass(frozen=True)
class _Compiler:
    """Makes frames of steps; the fields are the arguments of `compile_plan`, and what it makes of them."""

    planned: Plan
    spark: SparkSession
    start: str | None
    rows_per_epoch: int
    rows_first: int | None
    tables: Address | None
    crashes: Address | None
    initial: Initial | None
    kept: frozenset[str]
    checkpoint: str | None
    is_counting: bool
    beats: DataFrame | None
    dropped: Mapping[str, Accumulator[int]]
    rejects: Rejects | None
    tallies: Tallies | None
    keep: Keep | None = None  # for steps below the end of the query, of which one has to be computed once too

    def compile_query(self) -> _Query:
        """The steps of the query."""
        graph, cuts = self.planned.logical, self.planned.cuts
        frames: dict[str, DataFrame] = {}
        operators: dict[str, Described] = {}
        written: list[_Written] = []
        for node in graph.nodes:
            if node.name not in cuts.below:
                written += self._compile(node, frames, operators)
        ends = {name: frames[sides_of(name) if self._is_cut_operator(name) else name] for name in cuts.ends}
        return _Query(frames, written, operators, ends)

    def compile_below(self, rows: Mapping[str, DataFrame]) -> tuple[list[_Written], dict[str, DataFrame]]:
        """The steps behind the end of the query, over the rows of an epoch that were kept."""
        graph = self.planned.logical
        frames: dict[str, DataFrame] = {}
        written: list[_Written] = []
        for name, found in rows.items():
            frames[name] = found
            if self._is_cut_operator(name):
                node = graph.node(name)
                frames[sides_of(name)] = found
                if 0 in _wanted_sides(node, self.planned):
                    results = _side(found, 0)
                    frames[name] = count_step(results, name) if self.is_counting else results
                if logs_late_events(graph, node):
                    written.append(_late_log(node, frames, found, self.planned))
        for node in graph.nodes:
            if node.name in self.planned.cuts.below:
                written += self._compile(node, frames, {})
                if node.name in self.planned.cuts.branches and self.keep is not None:
                    frames[node.name] = self.keep(frames[node.name])
        return written, frames

    def _is_cut_operator(self, name: str) -> bool:
        """Is it an operator whose rows are kept with all its sides?"""
        graph = self.planned.logical
        return name in self.planned.cuts.branches and is_operator(graph, graph.node(name))

    def _compile(self, node: Node, frames: dict[str, DataFrame], operators: dict[str, Described]) -> list[_Written]:
        """Add the frame of a step to the frames; gives the outputs that end in it."""
        from pyspark.errors import PySparkException

        planned, spark, rejects, crashes = self.planned, self.spark, self.rejects, self.crashes
        if isinstance(node.step, ReadTable):
            return []  # it is read by the driver, and not as a frame
        written: list[_Written] = []
        inputs = [frames[name] for name in fed_by(planned.logical, node)]
        if self.keep is None:  # at the start; an epoch asks for the same steps again
            _refuse_hidden_chance(node, inputs)
        try:
            if is_operator(planned.logical, node):
                operators[node.name] = described = _described(node, inputs[0], planned)
                begin = None if self.initial is None else self.initial(node, described)
                frames.update(
                    _operated(node, inputs[0], planned, described, self.dropped, begin, self.kept, rejects, crashes)
                )
            elif is_side_of_operator(planned.logical, node):
                frames[node.name] = _side(frames[sides_of(node.inputs[0])], _side_number(node, planned))
            elif isinstance(node.step, Read):
                back = None
                if rejects is not None and self.checkpoint is not None:
                    back = read_returned(spark, self.checkpoint, node.name)
                reading = read_from(planned, node, self.start, self.rows_per_epoch, rejects, back, self.rows_first)
                frames[node.name] = _read(node.step, spark, reading)
            elif isinstance(node.step, Letters):
                frames[node.name] = _no_letters(spark)
            elif isinstance(node.step, FanOut) and self.tallies is not None:
                frames[node.name] = _fanned_out(inputs[0], node.step, node, planned, self.tallies, rejects, crashes)
            else:
                frames[node.name] = _compile_step(node, inputs, planned, self.beats, self.tables, rejects, crashes)
            if computes_once(node) and not is_operator(planned.logical, node):
                frames[node.name] = mark(frames[node.name], node.name)
            is_cut = MISSED in frames[node.name].columns  # only the run knows which of these rows are late
            if self.is_counting and not is_cut and not isinstance(node.step, Letters | Write):
                frames[node.name] = count_step(frames[node.name], node.name)
            frames[node.name].schema  # noqa: B018 - asks Spark's analyser now, while the step is known
            if isinstance(node.step, Write):
                is_tracked = planned.job.guarantee is not Guarantee.AT_MOST_ONCE
                sink = node.step.sink if is_tracked else node.step.sink.untracked()
                sink.check_rows(frames[node.name].drop(*_MARKS), node.where)
                exact = is_exact(planned.logical, node)
                branch = _branch(planned, node)
                rows = frames[node.name]
                is_letters = isinstance(planned.logical.node(node.inputs[0]).step, Letters)
                written.append(_Written(node.name, node.where, sink, rows, exact, branch, node.name, is_letters))
            elif logs_late_events(planned.logical, node) and not self._is_cut_operator(node.name):
                written.append(_late_log(node, frames, inputs[0], planned))
        except PySparkException as error:
            raise BadJob(
                f"Spark refuses {node.kind} {node.name!r}: {str(error).splitlines()[0]}",
                where=node.where,
                fix=f"the columns that reach this step are {', '.join(inputs[0].columns) if inputs else 'none'}",
            ) from error
        return written


def _cut_off(query: _Query, written: Sequence[_Written], passes: list[list[int]], rejects: Rejects | None) -> DataFrame:
    """The query that ends before some of its outputs: the rows that these need are tagged behind all outputs."""
    ends = {len(written) + place: rows for place, rows in enumerate(query.ends.values())}
    tags = _Tags.of(query.written, ends)
    tagged = _tagged(query.frames, written, passes, tags, rejects)
    return _union([*tagged, *(tags.tag(rows, tag, _kept_columns(rows)) for tag, rows in ends.items())])


def _kept_columns(rows: DataFrame) -> list[str]:
    """What is kept of rows: all but what says whether they are late, which is known when they are kept."""
    return [name for name in rows.columns if name != MISSED]


def _opened(rows: DataFrame, tag: int) -> DataFrame:
    """The rows of a tag, with the columns that they had before."""
    return rows.where(f"{TAG} = {tag}").select(f"{_column(tag)}.*")


def _empty(rows: DataFrame) -> DataFrame:
    """No rows, with the columns of these."""
    from pyspark.sql import functions as F

    columns = [field for field in rows.schema.fields if field.name != MISSED]
    return rows.sparkSession.range(0).select(*(F.lit(None).cast(one.dataType).alias(one.name) for one in columns))


def _require_once(frame: DataFrame, planned: Plan) -> DataFrame:
    """The planner sees to it that a step which gives other values each time is computed once. Was it?"""
    is_needed = any(map(computes_once, planned.logical.nodes))
    for name, times in count_marks(frame).items() if is_needed else ():
        if times > 1:
            node = planned.logical.node(name)
            raise InvariantBroken(
                f"{node.kind} {name!r} is compiled {times} times, and each would give other values",
                where=node.where,
                fix="report this",
            )
    return frame


def _refuse_hidden_chance(node: Node, inputs: Sequence[DataFrame]) -> None:
    """The plan takes a step for deterministic by the text of its SQL. Spark's analyser knows what the text means."""
    step = node.step
    if not isinstance(step, Where | Part | Select | Rolling | Windowed) or is_wild(node):
        return
    sql = (
        step.expressions if isinstance(step, Select) else {f"_{at}": one for at, one in enumerate(expressions_of(node))}
    )
    asked = {name: one for name, one in sql.items() if one}
    chance = find_chance_in_sql(inputs[0], asked) if asked else None
    if chance is not None:
        raise BadJob(
            f"{node.kind} {node.name!r} is not deterministic, by {chance}: its guarantee would be derived wrongly",
            where=node.where,
            fix="derive such values from the event; or write them so that the plan knows them: a function with its"
            " brackets, as in current_user(), a moment with its cast, as in CAST('now' AS TIMESTAMP)",
        )


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda one, two: one.union(two), frames)


def _is_counted(one: _Written) -> bool:
    """Are its rows counted in the query? Transactions count their own, late ones are cut off later, letters added."""
    by_itself = one.is_exact and isinstance(one.sink, KafkaSink)
    return not (by_itself or one.is_letters or MISSED in one.frame.columns or isinstance(one.sink, LateLog))


def _reported(name: str, planned: Plan) -> Iterator[str]:
    """The steps with state that lead to a step, from the last one back, as Spark goes through a query."""
    node = planned.logical.node(name)
    if has_state(node):
        yield name
    for before in fed_by(planned.logical, node):
        yield from _reported(before, planned)


def _goes_on_in_silence(planned: Plan) -> bool:
    return any(isinstance(node.step, Timed) and node.step.time.idle is not None for node in planned.logical.nodes)


def _late_log(node: Node, frames: dict[str, DataFrame], fed: DataFrame, planned: Plan) -> _Written:
    """A step's late events as an output to the log."""
    flow = planned.logical.node(node.inputs[0]).flow
    branch, end = None, node.inputs[0]
    if is_operator(planned.logical, node):
        number, end = _late_number(node), node.name
        rows, branch = _side(frames[sides_of(node.name)], number), _Branch(sides_of(node.name), side=number)
    else:
        rows = _late(fed, node, flow.time)
    hidden = {*flow.hidden, ORIGINAL} - {MISSED}
    shown = [quote(name) for name in rows.columns if name not in hidden]
    return _Written(f"late for {node.name}", node.where, LateLog(node.where), rows.select(*shown), False, branch, end)


# Operators, whose rows may leave by several sides


def _side_number(node: Node, planned: Plan) -> int:
    step, before = node.step, planned.logical.node(node.inputs[0]).step
    if not isinstance(step, LateEvents | TimedOut) or not isinstance(before, Keyed):
        raise InvariantBroken("a side of nothing", where=node.where, fix="report this")
    return side_of(before, step)


def _late_number(node: Node) -> int:
    return LATE if isinstance(node.step, Detect) else 1


def _side(frame: DataFrame, number: int) -> DataFrame:
    if SIDE not in frame.columns:
        return frame
    return frame.where(f"{SIDE} = {number}").select(f"{side_column(number)}.*")


def _wanted_sides(node: Node, planned: Plan) -> list[int]:
    """The sides of an operator that anybody wants."""
    users = [other for other in planned.logical.nodes if node.name in other.inputs]
    numbers = {_side_number(other, planned) if is_side_of_operator(planned.logical, other) else 0 for other in users}
    return sorted(numbers | {_late_number(node)} if logs_late_events(planned.logical, node) else numbers)


def _described(node: Node, frame: DataFrame, planned: Plan) -> Described:
    """The operator of a step."""
    before = planned.logical.node(node.inputs[0]).flow
    if POSITION not in frame.columns:
        raise BadJob(
            f"the rows have lost their place before {node.kind} {node.name!r}, so they have no order",
            where=node.where,
            fix=f"keep the column {POSITION} in the transform before it",
        )
    _refuse_nested_keys(node, frame)
    for function in _functions(_keyed(node)):
        check_travels(function, node.where)
    shown = (
        before.columns.names
        if before.columns
        else [name for name in frame.columns if name not in (*before.hidden, ORIGINAL)]
    )
    return describe(_keyed(node), frame, columns=shown, time=before.time)


def _functions(step: Keyed) -> list[object]:
    """What the author wrote in Python for a step."""
    if isinstance(step, Process | WindowApply):
        return [step.function]
    aggregates = step.aggregates.values() if isinstance(step, Rolling | WindowAggregate) else ()
    return [one.fold for one in aggregates if isinstance(one, Aggregate)]


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


def _operated(
    node: Node,
    frame: DataFrame,
    planned: Plan,
    described: Described,
    dropped: Mapping[str, Accumulator[int]],
    begin: Sequence[Begun] | None,
    kept: frozenset[str],
    rejects: Rejects | None,
    crashes: Address | None,
) -> dict[str, DataFrame]:
    """The frame of all sides of a step that anybody wants, and that of its results."""
    numbers = _wanted_sides(node, planned)
    if isinstance(described.operator, ProcessOperator):
        described.operator.timeout_seconds = _timeout_seconds(planned)
    rows = apply_operator(
        frame.drop(TASK),
        described.operator,
        place=Place(
            step=node.name,
            steps=frozenset(one.name for one in planned.logical.nodes if is_operator(planned.logical, one)),
            is_known=state_name(node.name) in kept,
        ),
        where=node.where,
        keys=_keyed(node).keys,
        reads=described.reads,
        partitions=planned.physical.state_partitions,
        declared=described.declared,
        sides=numbers,
        dropped=None if _late_number(node) in numbers else dropped[node.name],
        initial=None if begin is None else keyed_frame(frame.sparkSession, begin, described.keys, where=node.where),
        rejects=None if rejects is None else rejects.told,
        crashes=crashes,
    )
    rows = mark(rows, node.name) if computes_once(node) else rows
    return {sides_of(node.name): rows, node.name: _side(rows, 0) if 0 in numbers else rows}


def _late(frame: DataFrame, window: Node, time: EventTime | None) -> DataFrame:
    step = window.step
    if not isinstance(step, WindowAggregate) or not isinstance(step.window, TimeWindow) or time is None:
        raise InvariantBroken("late events of no native window", where=window.where, fix="report this")
    return late_candidates(frame, step.window, time)


@dataclass(frozen=True)
class _Tags:
    """All outputs in one frame: a tag, and a struct for each output that is null in the rows of the others.

    Beside the tag stand MISSED, where some of them are late events, and where events came from, for letters.
    """

    shapes: Mapping[int, StructType]
    marks: Mapping[str, str]  # what stands beside the tag, and its type

    @classmethod
    def of(cls, outputs: Sequence[_Written], ends: Mapping[int, DataFrame] | None = None) -> _Tags:
        """Those of outputs, and of rows that are kept for more outputs."""
        kept = {} if ends is None else ends
        shapes = {tag: one.frame.drop(*_MARKS).schema for tag, one in enumerate(outputs)}
        shapes |= {tag: rows.select(*map(quote, _kept_columns(rows))).schema for tag, rows in kept.items()}
        wanted = {name for one in outputs for name in one.frame.columns}
        wanted |= {name for rows in kept.values() for name in rows.columns if name == MISSED}
        return cls(shapes, {name: kind for name, kind in _MARKS.items() if name in wanted})

    def without(self, mark: str) -> _Tags:
        """The same without one of the marks."""
        return replace(self, marks={name: kind for name, kind in self.marks.items() if name != mark})

    def tag(self, frame: DataFrame, tag: int, names: Sequence[str]) -> DataFrame:
        """All rows of a frame as those of one output."""
        from pyspark.sql import functions as F

        row = F.struct(*map(quote, names))
        return frame.select(F.lit(tag).alias(TAG), *self.marks_of(frame), *self.columns({tag: row}))

    def pass_on(self, frame: DataFrame, tags: range) -> DataFrame:
        """The rows of these outputs, which are tagged already."""
        from pyspark.sql import functions as F

        rows = frame.where(F.col(TAG).isin(list(tags)))
        return rows.select(TAG, *self.marks_of(rows), *self.columns({tag: F.col(_column(tag)) for tag in tags}))

    def marks_of(self, frame: DataFrame) -> list[Column]:
        """What stands beside the tag."""
        return [_mark(frame, name).cast(kind).alias(name) for name, kind in self.marks.items()]

    def columns(self, made: Mapping[int, Column]) -> list[Column]:
        """The structs of all outputs, of which some are made."""
        from pyspark.sql import functions as F

        shapes = self.shapes.items()
        return [made.get(tag, F.lit(None)).cast(shape).alias(_column(tag)) for tag, shape in shapes]


def _tagged(
    frames: Mapping[str, DataFrame],
    outputs: Sequence[_Written],
    passes: list[list[int]],
    tags: _Tags,
    rejects: Rejects | None,
) -> list[DataFrame]:
    """The outputs of each pass in one frame."""
    from pyspark.sql import functions as F

    tagged: list[DataFrame] = []
    for members in passes:
        first = outputs[members[0]]
        if len(members) == 1 or first.branch is None:
            tagged.append(tags.tag(first.frame, members[0], first.columns))
            continue
        # One pass over the rows: each is tagged with every part whose condition holds.
        parts = {tag: branch for tag in members if (branch := outputs[tag].branch) is not None}
        opened = frames[first.branch.base]
        if rejects is not None and MISSED not in opened.columns:
            parts = {tag: replace(branch, is_tried=branch.can_fail(opened)) for tag, branch in parts.items()}
        for tag, branch in parts.items():
            opened = branch.open(opened, tag, outputs[tag].columns)
        marks = F.array(*(F.when(branch.condition(tag), F.lit(tag)) for tag, branch in parts.items()))
        marked = opened.select(F.explode(F.array_compact(marks)).alias(TAG), "*")
        tried = [tag for tag, branch in parts.items() if branch.is_tried]
        if rejects is not None and tried:
            # Only the part is put aside that failed: the row goes on to the others.
            failed = F.coalesce(*(F.when(F.col(TAG) == tag, F.col(_failed(tag))) for tag in tried))
            marked = rejects.watch(
                marked,
                failed["reason"],
                step=failed["step"],
                shown=failed["shown"],
                position=failed["position"],
                original=failed["original"],
            )
        rows = {tag: F.when(F.col(TAG) == tag, branch.row(tag, outputs[tag].columns)) for tag, branch in parts.items()}
        tagged.append(marked.select(TAG, *tags.marks_of(marked), *tags.columns(rows)))
    return tagged


def _mark(frame: DataFrame, name: str) -> Column:
    """What stands beside the rows under this name, as far as they still have it."""
    from pyspark.sql import functions as F

    column = POSITION if name == PLACE and PLACE not in frame.columns else name
    return F.col(column) if column in frame.columns else F.lit(None)


def _without_refused(frame: DataFrame, outputs: Sequence[CompiledOutput], rejects: Rejects) -> DataFrame:
    """The tagged rows without those that their sink would refuse."""
    from pyspark.sql import functions as F

    reason: Column = F.lit(None).cast("string")
    names: Column = F.lit(None).cast("string")
    shown: Column = F.lit(None).cast("string")
    for output in outputs:
        looks = [output.sink.refusal, *([output.sink.refusal_if_exact] if output.is_exact else [])]
        reasons = [look(frame, within=output.struct, where=output.where) for look in looks]
        if known := [one for one in reasons if one is not None]:
            told = F.coalesce(*known)
            is_its = F.col(TAG) == F.lit(output.tag)
            reason = F.when(is_its, told).otherwise(reason)
            names = F.when(is_its, F.lit(output.name)).otherwise(names)
            shown = F.when(is_its, F.to_json(F.col(str(output.struct)))).otherwise(shown)
    if MISSED in frame.columns:
        reason = F.when(F.col(MISSED).isNull(), reason)  # beside late events stand those in time, which do not leave
    if any(output.sink.wants_place for output in outputs):
        placed = frame.withColumn(POSITION, F.col(PLACE))  # sinks go on with theirs
    else:
        placed = frame.withColumnRenamed(PLACE, POSITION)
    return rejects.watch(placed, reason, step=names, shown=shown).drop(POSITION, ORIGINAL)


@dataclass(frozen=True)
class _Sql:
    """SQL of the author's: a condition, or what makes a column of that name."""

    step: str
    text: str
    name: str | None = None


@dataclass(frozen=True)
class _Branch:
    """A part of a split, or a step's side, that goes to its sink by conditions and at most one select, all native."""

    base: str
    conditions: tuple[_Sql, ...] = ()
    select: Select | None = None
    side: int | None = None
    select_step: str = ""
    is_tried: bool = False  # are rows put aside that its SQL fails on?

    def open(self, frame: DataFrame, tag: int, names: list[str]) -> DataFrame:
        """The frame with what the tag needs: of a side its rows, since its columns have names only while it is open."""
        from pyspark.sql import functions as F

        if self.is_tried:
            return self._open_tried(frame, tag, names)
        if self.side is None:
            return frame
        opened = self._seen(frame)
        # In a `when`, so that nothing is computed for rows of another side, which are null here.
        is_here = F.when(F.col(SIDE) == self.side, self._holds()).otherwise(F.lit(False))
        row = F.when(is_here, F.struct(*self._columns(names)))
        return opened.select(*frame.columns, row.alias(_row(tag)))

    def condition(self, tag: int) -> Column:
        """Is a row of the frame one of this branch?"""
        from pyspark.sql import functions as F

        if self.is_tried:
            return F.col(_row(tag)).isNotNull() | F.col(_failed(tag)).isNotNull()
        return self._holds() if self.side is None else F.col(_row(tag)).isNotNull()

    def row(self, tag: int, names: list[str]) -> Column:
        """The row of the output, as a struct."""
        from pyspark.sql import functions as F

        is_open = self.is_tried or self.side is not None
        return F.col(_row(tag)) if is_open else F.struct(*self._columns(names))

    def can_fail(self, frame: DataFrame) -> bool:
        """May its SQL fail on rows of the frame?"""
        seen = self._seen(frame)
        return any(can_fail(seen, one.text) for one in (*self.conditions, *self._made()))

    def _open_tried(self, frame: DataFrame, tag: int, names: list[str]) -> DataFrame:
        """The frame with the row of the output, and with why there is none: SQL that failed, and the step it is of."""
        from pyspark.sql import functions as F

        opened = self._seen(frame)
        shown = row_as_json(opened if self.side is None else opened.drop(*frame.columns))
        holds = F.lit(True) if self.side is None else F.col(SIDE) == self.side
        failures: list[Column] = []
        values: dict[str, Column] = {}
        for place, one in enumerate((*self.conditions, *self._made())):
            if not can_fail(opened, one.text):
                if one.name is None:
                    holds = holds & F.coalesce(F.expr(one.text), F.lit(False))
                continue
            trial = Trial(f"__trial_{place}", one.text if one.name is None else f"{one.name} = {one.text}")
            opened = opened.select("*", attempt(one.text, only=holds).alias(trial.column))
            told = F.struct(
                F.lit(one.step).alias("step"),
                trial.reason.alias("reason"),
                shown.alias("shown"),
                _mark(opened, POSITION).cast(POSITION_DDL).alias("position"),
                _mark(opened, ORIGINAL).cast(ORIGINAL_DDL).alias("original"),
            )
            failures.append(F.when(holds & trial.failed, told))
            if one.name is None:
                holds = holds & trial.holds
            else:
                values[one.name] = trial.value
        failed = F.coalesce(*failures)
        columns = [values[name].alias(name) if name in values else column for name, column in self._named(names)]
        row = F.when(holds & failed.isNull(), F.struct(*columns))
        return opened.select(*map(quote, frame.columns), row.alias(_row(tag)), failed.alias(_failed(tag)))

    def _seen(self, frame: DataFrame) -> DataFrame:
        """The frame with the columns that its SQL speaks of."""
        return frame if self.side is None else frame.select("*", f"{side_column(self.side)}.*")

    def _made(self) -> list[_Sql]:
        """What its select makes."""
        made = {} if self.select is None else self.select.expressions
        return [_Sql(self.select_step, sql, name) for name, sql in made.items()]

    def _holds(self) -> Column:
        from pyspark.sql import functions as F

        return reduce(lambda one, two: one & two, (F.expr(one.text) for one in self.conditions), F.lit(True))

    def _columns(self, names: list[str]) -> list[Column]:
        return [column for _, column in self._named(names)]

    def _named(self, names: list[str]) -> list[tuple[str, Column]]:
        from pyspark.sql import functions as F

        sql = self.select.expressions if self.select is not None else {}
        return [(name, F.expr(sql[name]).alias(name) if name in sql else F.col(quote(name))) for name in names]


def _branch(planned: Plan, output: Node) -> _Branch | None:
    """The branch that ends in this output, or None where more than conditions and a select stand between."""
    way = way_of(planned.logical, output)
    if way is None:
        return None
    # Where an operator has one side alone, its columns have names as they are.
    has_sides = way.is_by_side and len(_wanted_sides(way.base, planned)) > 1
    side = 0 if way.side is None else _side_number(way.side, planned)
    select = None if way.select is None else way.select.step
    if any(map(computes_once, [*way.conditions, *([] if way.select is None else [way.select])])):
        raise InvariantBroken("SQL that gives other values each time in a pass", where=output.where, fix="report this")
    return _Branch(
        base=way.shared,
        conditions=tuple(_Sql(node.name, _condition(node)) for node in way.conditions),
        select=select if isinstance(select, Select) else None,
        side=side if has_sides else None,
        select_step="" if way.select is None else way.select.name,
    )


def _condition(node: Node) -> str:
    if not isinstance(node.step, Where | Part) or not isinstance(node.step.condition, str):
        raise InvariantBroken("a condition that is not SQL", where=node.where, fix="report this")
    return node.step.condition


def _row(tag: int) -> str:
    return f"__row_{tag}"


def _failed(tag: int) -> str:
    return f"__failed_{tag}"


def _column(tag: int) -> str:
    return f"output_{tag}"


def _read(step: Read, spark: SparkSession, reading: Reading) -> DataFrame:
    """The rows of a source, and those that come once more; with what they were made of, where letters need it."""
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


def _timeout_seconds(planned: Plan) -> float | None:
    """How long a function of the author's may take for an event."""
    tracking = planned.job.tracking
    return None if tracking is None else tracking.timeout.total_seconds()


def _no_letters(spark: SparkSession) -> DataFrame:
    """A frame of the columns of letters, without any."""
    from pyspark.sql import functions as F

    columns = parse_ddl(LETTER, "dead letters").columns
    return spark.range(0).select(*(F.lit(None).cast(column.type or "string").alias(column.name) for column in columns))


def _compile_step(
    node: Node,
    inputs: list[DataFrame],
    planned: Plan,
    beats: DataFrame | None,
    tables: Address | None,
    rejects: Rejects | None,
    crashes: Address | None,
) -> DataFrame:
    step = node.step
    frame = inputs[0]
    before = planned.logical.node(node.inputs[0]).flow
    hidden = [name for name in (*before.hidden, TASK, ORIGINAL) if name in frame.columns]
    told = None if rejects is None else rejects.told
    timeout = _timeout_seconds(planned)
    if isinstance(step, Where):
        if isinstance(step.condition, str):
            return _filtered(frame, step.condition, node, rejects)
        test = RowStep(step.condition, "where", node.name, node.where, (), told, timeout, crashes)
        return apply_rows(frame, test, "", hidden)
    if isinstance(step, Part):
        return _filtered(frame, step.condition, node, rejects)
    if isinstance(step, Select):
        return _selected(frame, step, node, hidden, rejects)
    if isinstance(step, Map | FlatMap):
        columns = node.flow.columns.names if node.flow.columns else ()
        kept = [name for name in hidden if name.lower() not in {column.lower() for column in columns}]
        rows = RowStep(step.function, node.kind, node.name, node.where, columns, told, timeout, crashes)
        return apply_rows(frame, rows, step.schema, kept)
    if isinstance(step, Transform):
        return _transformed(frame, step, node, planned.logical)
    if isinstance(step, Merge):
        return _merged(inputs, planned, node)
    if isinstance(step, Join):
        return _joined(inputs[0], inputs[1], step, planned, node)
    if isinstance(step, TableJoin):
        return _joined_with_table(frame, step, tables, planned, node)
    if isinstance(step, Timed):
        guard = Guard(node.name, node.where, "time", rejects)
        return tell_time(frame, step.time, hidden=hidden, guard=guard, beats=beats)
    if isinstance(step, Exchanged):
        return _exchanged(frame, step, planned.physical.state_partitions)
    if isinstance(step, WindowAggregate):
        return _windowed(frame, step, before.time)
    if isinstance(step, LateEvents):
        window = planned.logical.node(node.inputs[0])
        return _late(frame, window, planned.logical.node(window.inputs[0]).flow.time)
    if isinstance(step, Write):
        shown = before.columns.names if before.columns else [name for name in frame.columns if name not in hidden]
        wanted = [MISSED] if MISSED in hidden else []
        wanted += [] if rejects is None and not step.sink.wants_place else [PLACE]
        wanted += [] if rejects is None else [ORIGINAL]
        marks = [_mark(frame, name).cast(_MARKS[name]).alias(name) for name in wanted]
        return step.sink.prepare(frame.select(*map(quote, shown), *marks))
    raise InvariantBroken(f"no form of {type(step).__name__} in Spark", where=node.where, fix="report this")


# SQL of the author's. Beside late events of a native window stand those in time, and which ones is known only at the
# end: SQL that fails there stops the job, since a letter might be of an event that is in its window.


def _filtered(frame: DataFrame, condition: str, node: Node, rejects: Rejects | None) -> DataFrame:
    kept = frame.where(condition)
    if rejects is None or MISSED in frame.columns:
        return kept
    kept.schema  # noqa: B018 - what Spark's analyser refuses is refused as the author wrote it, before it is tried
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


def _merged(inputs: list[DataFrame], planned: Plan, node: Node) -> DataFrame:
    """One frame of all rows; hidden columns that a source does not have are null, others must be the same."""
    hidden = {TASK, ORIGINAL, *(name for before in node.inputs for name in planned.logical.node(before).flow.hidden)}
    shown = [sorted(name.lower() for name in frame.columns if name not in hidden) for frame in inputs]
    if any(names != shown[0] for names in shown):
        raise BadJob(
            f"streams with different columns are merged: {' and '.join(', '.join(names) for names in shown)}",
            where=node.where,
            fix="select the same columns on both sides first",
        )
    return reduce(lambda one, two: one.unionByName(two, allowMissingColumns=True), inputs)


def _fanned_out(
    frame: DataFrame,
    step: FanOut,
    node: Node,
    planned: Plan,
    tallies: Tallies,
    rejects: Rejects | None,
    crashes: Address | None,
) -> DataFrame:
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
        identity=tallies.identity,
        tallies=tallies.told,
        rejects=None if rejects is None else rejects.told,
        crashes=crashes,
        has_stamps=STAMP in planned.logical.node(node.inputs[0]).flow.hidden,
    )
    return apply_fan_out(frame, fan, step.schema)


def _transformed(frame: DataFrame, step: Transform, node: Node, graph: LogicalGraph) -> DataFrame:
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
    for name, times in count_marks(result).items():
        if times > 1:
            before = graph.node(name)
            raise BadJob(
                f"transform {node.name!r} uses the rows of {before.kind} {name!r} {times} times, which is not"
                " deterministic: Spark would compute it for each use, and each would have other values",
                where=node.where,
                fix="use the rows once in the transform, and split them outside of it: .where(...), .split(...);"
                f" or write those of {name!r} to a topic first, and go on from there in a second job",
            )
    is_remembered = feeds_state(graph, node)
    if step.is_deterministic and (chance := find_chance(result, frame, feeds_state=is_remembered)) is not None:
        raise BadJob(
            f"transform {node.name!r} is not deterministic, by {chance}, and is not declared so: its guarantee would be"
            " derived wrongly",
            where=node.where,
            fix="declare it: .transform(..., deterministic=False); or derive random values from the event, and let no"
            " rows depend on the order in which others come",
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


def _joined_with_table(
    frame: DataFrame, step: TableJoin, tables: Address | None, planned: Plan, node: Node
) -> DataFrame:
    table = planned.logical.node(node.inputs[1])
    if tables is None or not isinstance(table.step, ReadTable):
        raise InvariantBroken("a table that nobody reads", where=node.where, fix="report this")
    schema = schema_of(table.step.rows)
    return join_table(frame, schema, door=tables, table=table.name, on=step.on, how=step.how, where=node.where)


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
        return [name for name in frame.columns if name.lower() not in on and name not in (*hidden, TASK, ORIGINAL)]

    return joined.select(
        *(key(name) for name in step.on),
        *(F.col(quote(name)) for name in in_sight(left, flows[0].hidden)),
        *(F.col(quote(f"__right_{name}")).alias(name) for name in in_sight(right, flows[1].hidden)),
    )
