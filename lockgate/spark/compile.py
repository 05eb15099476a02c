"""Compile a plan to one DataFrame: the query whose epochs carry all outputs of a job.

One query is one DataFrame, one output mode and one watermark. So several outputs are tagged rows of one DataFrame, and
every epoch separates them again:

    sources.py         the rows of each source
    steps.py           the rows of each step that is no operator of ours
    operatorsteps.py   operators, and the sides by which rows leave them
    branching.py       outputs that share the rows of one step: the parts of a split, the sides of an operator
    tagging.py         all outputs in one frame; outputs that share a step are made in one pass over its rows

Other branches over one source are computed side by side, and each reads it once.

A step that is not deterministic must not be computed side by side (planner/passes.py). If it has several branches, the
query ends there: its rows are one more tag of the frame. Every epoch keeps them, and `finish` applies the steps below
to them, by the same code, over a batch.

Spark analyses every step here, before anything runs: what the planner could not check (a column after a `transform`,
SQL that only Spark can parse) is refused with the user's own line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from lockgate.commit.resource import TransactionSink
from lockgate.connectors.rejects import Rejects
from lockgate.connectors.returned import read_returned
from lockgate.dataflow.endpoints import ORIGINAL
from lockgate.dataflow.fanout import FanOut
from lockgate.dataflow.schema import quote
from lockgate.dataflow.steps import DeadLetterStep, Read, Timed, Write
from lockgate.dataflow.table import ReadTable
from lockgate.errors import BadJob
from lockgate.guarantees import Guarantee
from lockgate.operators.contract import Time
from lockgate.planner.flow import MISSED
from lockgate.planner.logical import LogicalGraph, Node, is_operator
from lockgate.planner.passes import (
    computes_once,
    fed_by,
    is_side_of_operator,
    logs_late_events,
    share_passes,
    sides_of,
    steps_before,
)
from lockgate.planner.physical import has_state, is_exact
from lockgate.planner.plan import Plan
from lockgate.serving.rpc import Address
from lockgate.spark.branching import Branch, branch_of
from lockgate.spark.context import Context
from lockgate.spark.counting import count_outputs, count_step
from lockgate.spark.fanout import Tallies
from lockgate.spark.keys import Begun
from lockgate.spark.nondeterminism import mark, refuse_hidden_nondeterminism, require_once
from lockgate.spark.operatorsteps import (
    apply_to_sides,
    describe_operator,
    late_number,
    rows_of_side,
    side_number,
    wanted_sides,
)
from lockgate.spark.sources import read_from, read_source
from lockgate.spark.stateful import Described
from lockgate.spark.steps import late_rows, no_letters, step_rows
from lockgate.spark.tagging import MARKS, TAG, CompiledOutput, Tags, Written, open_tag, tag_passes, without_refused
from lockgate.spark.timing import LateLog, new_pulse, read_beats

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

Keep = Callable[["DataFrame"], "DataFrame"]
"""Computes rows once and keeps them for as long as the epoch is written."""

Finish = Callable[["DataFrame", Keep], "DataFrame"]
"""Computes the rows of all outputs from those of an epoch, if the query ends before its outputs."""

Initial = Callable[[Node, Described], "Sequence[Begun] | None"]
"""The initial states of a step's keys for the first epoch; None if it has none."""


@dataclass(frozen=True)
class Compiled:
    """The query of a job, not yet started."""

    frame: DataFrame
    finish: Finish | None  # None if the frame has the rows of all outputs
    outputs: tuple[CompiledOutput, ...]
    operators: Mapping[str, Described]  # by the name of their step
    pulse: Path | None  # in this file the run says how far time has moved in silence; None if it does not
    runs_without_rows: bool  # does Spark run epochs without events, too, because a step uses the clock?
    dropped: Mapping[str, Accumulator[int]]  # how many late events each operator has dropped, in all passes together
    parts: tuple[tuple[str, ...], ...]  # the steps of each part of the query, in the order in which Spark numbers them
    rejects: Rejects | None  # takes events that cannot be used; None if they stop the job
    letters: CompiledOutput | None  # the output for dead letters: the run adds its rows, the query has none
    stateful: tuple[str, ...]  # the steps with state, in the order in which Spark reports them
    counted: tuple[CompiledOutput, ...]  # the outputs whose rows are counted at the end of the query
    tallies: Tallies | None  # the counts of fan-outs; None if there are none

    def count_dropped(self) -> int:
        """The number of late events that operators dropped, as reported so far; every pass drops the same ones."""
        return sum(dropped.value // self.stateful.count(step) for step, dropped in self.dropped.items())


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
    """The DataFrame of a plan; raises BadJob for errors that only Spark can find.

    Args:
        tables: workers ask here for the snapshots of tables.
        crashes: workers report here what they process, in case they die with it.
        initial: gives the initial states of a step's keys.
        kept: the names of states that the checkpoint has.
        checkpoint: the place of events that are returned into the job.
        before: the same plan, compiled earlier in this run, which keeps its pulse and its counts.
        is_counting: count rows for metrics.
    """
    spark.conf.set("spark.sql.shuffle.partitions", planned.physical.state_partitions)
    if before is None:
        pulse, dropped, rejects, tallies = _begin_counts(planned, spark)
    else:
        pulse, dropped, rejects, tallies = before.pulse, before.dropped, before.rejects, before.tallies
    context = Context(
        planned=planned,
        spark=spark,
        tables=tables,
        crashes=crashes,
        kept=kept,
        checkpoint=checkpoint,
        beats=None if pulse is None else read_beats(spark, pulse),
        dropped=dropped,
        rejects=rejects,
        tallies=tallies,
    )
    query = _Compiler(context, start, rows_per_epoch, rows_first, initial, is_counting).compile_query()
    return Compiled(
        frame=query.frame(),
        finish=query.finish if query.ends else None,
        outputs=query.outputs,
        operators=query.operators,
        pulse=pulse,
        runs_without_rows=any(one.operator.time in (Time.WALL, Time.BOTH) for one in query.operators.values()),
        dropped=dropped,
        parts=tuple(steps_before(context.graph, end) for end in query.last_steps),
        rejects=rejects,
        letters=next((one for one, made in zip(query.outputs, query.written, strict=True) if made.is_letters), None),
        stateful=tuple(step for end in query.last_steps for step in _reported(end, context.graph)),
        counted=query.counted,
        tallies=tallies,
    )


def _begin_counts(
    planned: Plan, spark: SparkSession
) -> tuple[Path | None, Mapping[str, Accumulator[int]], Rejects | None, Tallies | None]:
    """What a run keeps when it compiles its plan again: the pulse, and the counts of what steps drop or reject."""
    steps = [node.step for node in planned.logical.nodes]
    is_silent = any(isinstance(step, Timed) and step.time.idle is not None for step in steps)
    operators = [node.name for node in planned.logical.nodes if is_operator(planned.logical, node)]
    return (
        new_pulse() if is_silent else None,
        {name: spark.sparkContext.accumulator(0) for name in operators},
        None if planned.job.dead_letters is None else Rejects(spark),
        Tallies(spark) if any(isinstance(step, FanOut) for step in steps) else None,
    )


@dataclass(frozen=True)
class _Compiler:
    """Makes frames from steps."""

    context: Context
    start: str | None
    rows_per_epoch: int
    rows_first: int | None
    initial: Initial | None
    is_counting: bool
    keep: Keep | None = None  # for steps below the end of the query, one of which must be computed once, too

    def compile_query(self) -> _Query:
        """The steps of the query."""
        graph, cuts = self.context.graph, self.context.planned.cuts
        frames: dict[str, DataFrame] = {}
        operators: dict[str, Described] = {}
        written: list[Written] = []
        for node in graph.nodes:
            if node.name not in cuts.below:
                written += self._compile(node, frames, operators)
        ends = {name: frames[sides_of(name) if self._is_cut_operator(name) else name] for name in cuts.ends}
        # The steps after the end of the query are compiled now too, over no rows, so that their errors are found now.
        below, _ = self.compile_below({name: _empty(rows) for name, rows in ends.items()})
        return _Query(self, frames, operators, ends, [*written, *below], len(written))

    def compile_below(self, rows: Mapping[str, DataFrame]) -> tuple[list[Written], dict[str, DataFrame]]:
        """The steps after the end of the query, over the rows of an epoch that were kept."""
        graph, cuts = self.context.graph, self.context.planned.cuts
        frames: dict[str, DataFrame] = {}
        written: list[Written] = []
        for name, found in rows.items():
            frames[name] = found
            if self._is_cut_operator(name):
                node = graph.node(name)
                frames[sides_of(name)] = found
                if 0 in wanted_sides(graph, node):
                    results = rows_of_side(found, 0)
                    frames[name] = count_step(results, name) if self.is_counting else results
                if logs_late_events(graph, node):
                    written.append(self._late_log(node, frames, found))
        for node in graph.nodes:
            if node.name in cuts.below:
                written += self._compile(node, frames, {})
                if node.name in cuts.branches and self.keep is not None:
                    frames[node.name] = self.keep(frames[node.name])
        return written, frames

    def _is_cut_operator(self, name: str) -> bool:
        """Is it an operator whose rows are kept with all its sides?"""
        graph = self.context.graph
        return name in self.context.planned.cuts.branches and is_operator(graph, graph.node(name))

    def _compile(self, node: Node, frames: dict[str, DataFrame], operators: dict[str, Described]) -> list[Written]:
        """Add the frame of a step to the frames; returns the outputs that end in it."""
        from pyspark.errors import PySparkException

        if isinstance(node.step, ReadTable):
            return []  # the driver reads it, and not as a frame
        inputs = [frames[name] for name in fed_by(self.context.graph, node)]
        if self.keep is None:  # at the start; an epoch compiles the same steps again
            refuse_hidden_nondeterminism(node, inputs)
        try:
            if is_operator(self.context.graph, node):
                self._operate(node, inputs[0], frames, operators)
            else:
                rows = self._rows(node, inputs, frames)
                frames[node.name] = mark(rows, node.name) if computes_once(self.context.graph, node) else rows
            is_cut = MISSED in frames[node.name].columns  # only the run knows which of these rows are late
            if self.is_counting and not is_cut and not isinstance(node.step, DeadLetterStep | Write):
                frames[node.name] = count_step(frames[node.name], node.name)
            frames[node.name].schema  # noqa: B018 - asks Spark's analyser now, while the step is known
            if isinstance(node.step, Write):
                return [self._written(node, node.step, frames[node.name])]
            if logs_late_events(self.context.graph, node) and not self._is_cut_operator(node.name):
                return [self._late_log(node, frames, inputs[0])]
            return []
        except PySparkException as error:
            raise BadJob(
                f"Spark refuses {node.kind} {node.name!r}: {str(error).splitlines()[0]}",
                where=node.where,
                fix=f"the columns that reach this step are {', '.join(inputs[0].columns) if inputs else 'none'}",
            ) from error

    def _operate(
        self, node: Node, frame: DataFrame, frames: dict[str, DataFrame], operators: dict[str, Described]
    ) -> None:
        operators[node.name] = described = describe_operator(node, frame, self.context)
        begun = None if self.initial is None else self.initial(node, described)
        frames.update(apply_to_sides(node, frame, described, begun, self.context))

    def _rows(self, node: Node, inputs: list[DataFrame], frames: Mapping[str, DataFrame]) -> DataFrame:
        graph = self.context.graph
        if is_side_of_operator(graph, node):
            return rows_of_side(frames[sides_of(node.inputs[0])], side_number(graph, node))
        if isinstance(node.step, Read):
            return self._read(node, node.step)
        if isinstance(node.step, DeadLetterStep):
            return no_letters(self.context.spark)
        return step_rows(node, inputs, self.context)

    def _read(self, node: Node, step: Read) -> DataFrame:
        context = self.context
        returned = None
        if context.rejects is not None and context.checkpoint is not None:
            returned = read_returned(context.spark, context.checkpoint, node.name)
        reading = read_from(
            context.planned, node, self.start, self.rows_per_epoch, context.rejects, returned, self.rows_first
        )
        return read_source(step, context.spark, reading)

    def _written(self, node: Node, step: Write, rows: DataFrame) -> Written:
        graph = self.context.graph
        is_tracked = self.context.planned.job.guarantee is not Guarantee.AT_MOST_ONCE
        sink = step.sink if is_tracked else step.sink.untracked()
        sink.check_rows(rows.drop(*MARKS), node.where)
        is_letters = isinstance(graph.node(node.inputs[0]).step, DeadLetterStep)
        exact, branch = is_exact(graph, node), branch_of(graph, node)
        return Written(node.name, node.where, sink, rows, exact, branch, node.name, is_letters)

    def _late_log(self, node: Node, frames: Mapping[str, DataFrame], fed: DataFrame) -> Written:
        """A step's late events as an output to the log."""
        flow = self.context.fed(node)
        branch, end = None, node.inputs[0]
        if is_operator(self.context.graph, node):
            number, end = late_number(node), node.name
            rows, branch = rows_of_side(frames[sides_of(end)], number), Branch(sides_of(end), side=number)
        else:
            rows = late_rows(fed, node, flow.time)
        hidden = {*flow.hidden, ORIGINAL} - {MISSED}
        shown = rows.select(*(quote(name) for name in rows.columns if name not in hidden))
        return Written(f"late for {node.name}", node.where, LateLog(node.where), shown, False, branch, end)


@dataclass(frozen=True)
class _Query:
    """The compiled steps of a query: how their rows become those of its outputs, at its end or in every epoch."""

    compiler: _Compiler
    frames: Mapping[str, DataFrame]
    operators: Mapping[str, Described]
    ends: Mapping[str, DataFrame]  # the rows that steps below the end of the query need
    written: Sequence[Written]  # all outputs: those of the query, then those below its end
    in_query: int  # how many outputs end in the query itself

    @property
    def outputs(self) -> tuple[CompiledOutput, ...]:
        """All outputs, with the tags of their rows."""
        is_tagged = len(self.written) > 1
        return tuple(
            CompiledOutput(one.name, one.where, one.sink, tag if is_tagged else None, one.is_exact)
            for tag, one in enumerate(self.written)
        )

    @property
    def counted(self) -> tuple[CompiledOutput, ...]:
        """The outputs whose rows are counted."""
        if not self.compiler.is_counting:
            return ()
        return tuple(one for one, made in zip(self.outputs, self.written, strict=True) if _is_counted(made))

    @property
    def last_steps(self) -> list[str]:
        """The last step of each part of the query, in the order in which Spark numbers the parts."""
        return [*(self.written[tags[0]].end for tags in self._passes[0]), *self.ends]

    @property
    def _passes(self) -> tuple[list[list[int]], list[list[int]]]:
        """The passes of the query, and those below its end, each with the tags of its outputs."""
        shared = share_passes([None if one.branch is None else one.branch.base for one in self.written])
        inside = [tags for tags in shared if tags[0] < self.in_query and not self.written[tags[0]].is_letters]
        return inside, [tags for tags in shared if tags[0] >= self.in_query]

    def frame(self) -> DataFrame:
        """The frame that Spark runs."""
        planned, rejects = self.compiler.context.planned, self.compiler.context.rejects
        passes, _ = self._passes
        if self.ends:
            frame = self._cut_off(passes, rejects)
            require_once(self.finish(_empty(frame), lambda rows: _empty(require_once(rows, planned))), planned)
        elif len(self.written) == 1:
            frame = self._refuse_and_count(self.written[0].frame)
        else:
            tags = Tags.of(self.written)
            frame = self._refuse_and_count(_union(tag_passes(self.frames, self.written, passes, tags, rejects)))
        return require_once(frame, planned)

    def finish(self, rows: DataFrame, keep: Keep) -> DataFrame:
        """The rows of all outputs from those of an epoch, if the query ends before some of them."""
        compiler = replace(self.compiler, keep=keep)
        opened = {name: open_tag(rows, len(self.written) + place) for place, name in enumerate(self.ends)}
        below, frames = compiler.compile_below(opened)
        if len(self.written) == 1:
            return self._refuse_and_count(below[0].frame)
        passes, passes_below = self._passes
        found = [*self.written[: self.in_query], *below]
        tags = Tags.of(found).without(MISSED)
        through = [tags.pass_on(rows, range(self.in_query))] if passes else []
        made = tag_passes(frames, found, passes_below, tags, compiler.context.rejects)
        return self._refuse_and_count(_union([*through, *made]))

    def _cut_off(self, passes: list[list[int]], rejects: Rejects | None) -> DataFrame:
        """The query that ends before some of its outputs: the rows for these get tags after those of all outputs."""
        ends = {len(self.written) + place: rows for place, rows in enumerate(self.ends.values())}
        tags = Tags.of(self.written[: self.in_query], ends)
        tagged = tag_passes(self.frames, self.written, passes, tags, rejects)
        return _union([*tagged, *(tags.tag_kept(rows, tag) for tag, rows in ends.items())])

    def _refuse_and_count(self, frame: DataFrame) -> DataFrame:
        rejects, counted = self.compiler.context.rejects, self.counted
        if rejects is not None:
            frame = without_refused(frame, self.outputs, rejects)
        return count_outputs(frame, TAG, [output.tag for output in counted]) if counted else frame


def _empty(rows: DataFrame) -> DataFrame:
    """No rows, with the columns of these."""
    from pyspark.sql import functions as F

    columns = [field for field in rows.schema.fields if field.name != MISSED]
    return rows.sparkSession.range(0).select(*(F.lit(None).cast(one.dataType).alias(one.name) for one in columns))


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda one, two: one.union(two), frames)


def _is_counted(one: Written) -> bool:
    """Are its rows counted in the query? Transactions count theirs, late ones are cut off later, dead letters added."""
    by_itself = one.is_exact and isinstance(one.sink, TransactionSink)
    return not (by_itself or one.is_letters or MISSED in one.frame.columns or isinstance(one.sink, LateLog))


def _reported(name: str, graph: LogicalGraph) -> Iterator[str]:
    """The steps with state that lead to a step, from the last one back, in the order of Spark's reports."""
    node = graph.node(name)
    if has_state(node):
        yield name
    for before in fed_by(graph, node):
        yield from _reported(before, graph)
