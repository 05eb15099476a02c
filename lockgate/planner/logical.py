"""The logical graph: what a job asks for, walked back from its outputs, with a name and columns for every step.

Everything that cannot mean anything is refused here, with the author's own line, before a JVM or a broker is touched:
no source, no sink, a cycle (in the graph, or through a topic), a name used twice, a column that does not exist, a
window or a join without time. Columns are followed as far as SQL can be parsed; behind a `transform` they are unknown
(None), and Spark's analyser takes over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import singledispatch

from lockgate.dataflow.deadletters import LETTER, NAME
from lockgate.dataflow.endpoints import POSITION
from lockgate.dataflow.eventtime import ARRIVED, EventTime, Late
from lockgate.dataflow.exchange import Strategy
from lockgate.dataflow.fanout import MARKS, FanOut, Partial
from lockgate.dataflow.job import Job
from lockgate.dataflow.origin import Origin
from lockgate.dataflow.schema import Column, Schema, parse_ddl
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
    Step,
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
from lockgate.dataflow.stream import Output
from lockgate.dataflow.table import ReadTable
from lockgate.errors import BadJob
from lockgate.guarantees import Guarantee, Mode
from lockgate.planner.flow import (
    MISSED,
    Flow,
    can_see,
    extended,
    has_position,
    require_column,
    require_columns,
    still_hidden,
)
from lockgate.planner.forms import has_late_events, why_operator
from lockgate.planner.keyed import keyed_flow

KINDS: dict[type[Step], str] = {
    Read: "source",
    ReadTable: "table",
    Where: "where",
    Select: "select",
    Map: "map",
    FlatMap: "flat_map",
    Transform: "transform",
    FanOut: "fan_out",
    Part: "part",
    Merge: "merge",
    Join: "join",
    TableJoin: "table_join",
    Timed: "event_time",
    Exchanged: "exchange",
    Rolling: "rolling",
    WindowAggregate: "window",
    WindowApply: "window",
    Process: "process",
    Detect: "detect",
    LateEvents: "late",
    TimedOut: "timed_out",
    Letters: "dead_letters",
    Write: "sink",
}
_WHY_PYTHON: dict[type[Step], str] = {
    Rolling: "Spark has no aggregate as of every event",
    Process: "a function of the author's keeps the state",
    Detect: "Spark has no patterns over a stream",
}
_JOINS = ("inner", "left", "right", "full")


@dataclass(frozen=True, eq=False)
class Node:
    """A step with its name in this job and what leaves it."""

    name: str
    kind: str
    step: Step
    inputs: tuple[str, ...]
    flow: Flow

    @property
    def where(self) -> str:
        """The step as errors name it."""
        return _where(self.kind, self.name, self.step.origin)


@dataclass(frozen=True, eq=False)
class LogicalGraph:
    """All steps of a job, every one behind those that feed it."""

    job: Job
    nodes: tuple[Node, ...]

    def node(self, name: str) -> Node:
        """The node of that name."""
        return next(node for node in self.nodes if node.name == name)

    def of_kind(self, kind: str) -> tuple[Node, ...]:
        """The nodes of a kind, e.g. all sinks."""
        return tuple(node for node in self.nodes if node.kind == kind)


def why_python(graph: LogicalGraph, node: Node) -> str | None:
    """Why a keyed step runs in Python; None where Spark has it natively."""
    step = node.step
    if isinstance(step, Windowed):
        return why_operator(step, graph.node(node.inputs[0]).flow.time)
    return _WHY_PYTHON[type(step)]


def is_operator(graph: LogicalGraph, node: Node) -> bool:
    """Is it a keyed step that runs in Python?"""
    return isinstance(node.step, Keyed) and why_python(graph, node) is not None


def build_logical(job: Job) -> LogicalGraph:
    """The logical graph of a job; raises BadJob where it cannot mean anything."""
    _refuse_what_contradicts(job)
    steps = _walk(job)
    steps += _letters(job, steps)
    names = _name(job, steps)
    nodes: list[Node] = []
    by_step: dict[Step, Node] = {}
    for step in steps:
        kind = KINDS[type(step)]
        where = _where(kind, names[step], step.origin)
        inputs = [by_step[before] for before in step.inputs]
        node = Node(
            name=names[step],
            kind=kind,
            step=step,
            inputs=tuple(before.name for before in inputs),
            flow=_carry(_flow(step, [before.flow for before in inputs], where), inputs, step, where),
        )
        nodes.append(node)
        by_step[step] = node
    graph = LogicalGraph(job=job, nodes=tuple(nodes))
    _refuse_loops_outside(graph)
    _refuse_unfit_for_real_time(graph)
    _refuse_silence_without_idle(graph)
    _refuse_late_events_that_nobody_takes(graph)
    _refuse_letters_that_nobody_takes(graph)
    return graph


# The walk


def _walk(job: Job) -> list[Step]:
    """All steps, inputs first; refuses a job without sinks, steps without a source, and cycles."""
    if not job.outputs:
        raise BadJob(
            f"job {job.name!r} has no sink: nothing it computes would go anywhere",
            where=f"declared at {job.origin}",
            fix='end a stream with .to("name", sink) and give the result to Job(...)',
        )
    for output in job.outputs:
        if not isinstance(output, Output):
            raise BadJob(
                f"job {job.name!r} is given a {type(output).__name__}, which ends in no sink",
                where=f"declared at {job.origin}",
                fix='end the stream with .to("name", sink)',
            )
    ordered: list[Step] = []
    done: set[Step] = set()
    for output in job.outputs:
        # Depth first with our own stack: a long chain of steps must not exhaust Python's.
        open_steps: list[tuple[Step, list[Step]]] = [(output.step, list(output.step.inputs))]
        on_path: set[Step] = {output.step}
        while open_steps:
            step, waiting = open_steps[-1]
            if not step.inputs and not isinstance(step, Read | ReadTable):
                raise BadJob(
                    f"job {job.name!r} has a {KINDS[type(step)]} step without a source",
                    where=f"step declared at {step.origin}",
                    fix="begin with stream(name, source)",
                )
            if not waiting:
                open_steps.pop()
                on_path.discard(step)
                if step not in done:
                    done.add(step)
                    ordered.append(step)
                continue
            before = waiting.pop(0)
            if before in on_path:
                raise BadJob(
                    f"job {job.name!r} has a cycle: a {KINDS[type(before)]} step feeds itself",
                    where=f"step declared at {before.origin}",
                    fix="let every step read from steps that were described before it",
                )
            if before in done:
                continue
            on_path.add(before)
            open_steps.append((before, list(before.inputs)))
    return ordered


def _letters(job: Job, steps: Sequence[Step]) -> list[Step]:
    """The way of events that cannot be used: from every step that may find one so into the sink that is asked for."""
    if job.dead_letters is None:
        return []
    letters = Letters(inputs=tuple(step for step in steps if may_reject(step)), origin=job.origin)
    # Exactly-once alone is a word about state, which letters have none of: they are told apart by their id.
    declared = Guarantee.AT_LEAST_ONCE if job.guarantee is Guarantee.EXACTLY_ONCE else None
    return [
        letters,
        Write(inputs=(letters,), origin=job.origin, name=NAME, sink=job.dead_letters.sink, guarantee=declared),
    ]


def may_reject(step: Step) -> bool:
    """Can a step find that it cannot use an event?"""
    if isinstance(step, Where):
        return callable(step.condition)
    return isinstance(step, Read | Map | FlatMap | FanOut | Timed | Keyed)


def _name(job: Job, steps: Sequence[Step]) -> dict[Step, str]:
    """A name for every step: the author's, or its kind with a number."""
    names: dict[Step, str] = {}
    owners: dict[str, Step] = {}
    for step in steps:
        if step.name is None:
            continue
        other = owners.setdefault(step.name, step)
        if other is not step:
            raise BadJob(
                f"job {job.name!r} uses the name {step.name!r} twice",
                where=f"{KINDS[type(other)]} declared at {other.origin}, {KINDS[type(step)]} declared at {step.origin}",
                fix="give each source, output and named step a name of its own: state and metrics go by it",
            )
        names[step] = step.name
    taken = set(owners)
    numbers: dict[str, int] = {}
    for step in steps:
        if step in names:
            continue
        base = step.part if isinstance(step, Part) else KINDS[type(step)]
        name = base
        while name in taken:
            numbers[base] = numbers.get(base, 1) + 1
            name = f"{base}-{numbers[base]}"
        taken.add(name)
        names[step] = name
    return names


def _where(kind: str, name: str, origin: Origin) -> str:
    return f"{kind} {name!r}, declared at {origin}"


# What leaves a step


def _carry(flow: Flow, inputs: list[Node], step: Step, where: str) -> Flow:
    """What stays true of a flow: whether time was told, and whether events come several times."""
    told = step.origin if isinstance(step, Timed) else next((i.flow.timed_at for i in inputs if i.flow.timed_at), None)
    _refuse_behind_late_events(inputs, step, where)
    is_broadcast = any(before.flow.is_broadcast for before in inputs)
    if is_broadcast and isinstance(step, Keyed | Join):
        raise BadJob(
            "every event comes several times behind a broadcast, and would count several times in this step",
            where=where,
            fix="put the broadcast behind the step, or use another exchange",
        )
    if isinstance(step, Exchanged) and step.exchange is not None and step.exchange.strategy is Strategy.BROADCAST:
        is_broadcast = True
    return replace(flow, timed_at=told, is_broadcast=is_broadcast)


@singledispatch
def _flow(step: Step, inputs: list[Flow], where: str) -> Flow:
    raise TypeError(f"no rule for the columns of {type(step).__name__}")


@_flow.register
def _(step: Read, inputs: list[Flow], where: str) -> Flow:
    columns = step.source.columns(where)
    hidden = tuple(step.source.hidden_columns())
    for name in hidden:
        if columns.find(name):
            raise BadJob(
                f"column {name!r} of source {step.name!r} has the name of a column that every such source adds",
                where=where,
                fix=f"rename it; the added ones are {', '.join(hidden)}",
            )
    return Flow(columns=columns, hidden=hidden, time=None)


@_flow.register
def _(step: Where, inputs: list[Flow], where: str) -> Flow:
    if isinstance(step.condition, str):
        require_columns(step.condition, inputs[0], where)
    return inputs[0]


@_flow.register
def _(step: Part, inputs: list[Flow], where: str) -> Flow:
    require_columns(step.condition, inputs[0], where)
    return inputs[0]


@_flow.register
def _(step: Select, inputs: list[Flow], where: str) -> Flow:
    flow = inputs[0]
    for name in step.columns:
        require_column(name, flow, where)
    for index, sql in enumerate(step.expressions.values()):
        # Spark lets an expression use those before it.
        require_columns(sql, flow, where, beside=tuple(step.expressions)[:index])
    known = flow.columns.find if flow.columns else lambda name: None
    columns = Schema(
        columns=(
            *(known(name) or Column(name=name) for name in step.columns),
            *(Column(name=name) for name in step.expressions),
        )
    )
    hidden = still_hidden(flow, columns)
    in_reach = {name.lower() for name in (*step.columns, *hidden)}
    kept = flow.time if flow.time and flow.time.column.lower() in in_reach else None
    return Flow(columns=columns, hidden=hidden, time=kept)


@_flow.register(Map)
@_flow.register(FlatMap)
def _(step: Map | FlatMap, inputs: list[Flow], where: str) -> Flow:
    columns = parse_ddl(step.schema, where)
    # Spark forgets a watermark at a Python function, so event time has to be told behind it.
    return Flow(columns=columns, hidden=still_hidden(inputs[0], columns), time=None)


@_flow.register
def _(step: FanOut, inputs: list[Flow], where: str) -> Flow:
    flow = inputs[0]
    if flow.columns is None:
        return Flow(columns=None, hidden=flow.hidden, time=None)
    made = (*step.scores(where).columns, *parse_ddl(MARKS, where).columns)
    columns = extended((*flow.columns.columns, *made), (), where)
    return Flow(columns=columns, hidden=still_hidden(flow, columns), time=None)  # as behind any Python function


@_flow.register
def _(step: Transform, inputs: list[Flow], where: str) -> Flow:
    return Flow(columns=None, hidden=inputs[0].hidden, time=inputs[0].time)


@_flow.register
def _(step: Merge, inputs: list[Flow], where: str) -> Flow:
    first = inputs[0]
    for other in inputs[1:]:
        if first.columns is None or other.columns is None:
            continue
        here, there = set(map(str.lower, first.columns.names)), set(map(str.lower, other.columns.names))
        if here != there:
            raise BadJob(
                f"streams with different columns are merged: ({first.columns}) and ({other.columns})",
                where=where,
                fix=f"select the same columns on both sides first; they differ in {', '.join(sorted(here ^ there))}",
            )
        for column in first.columns.columns:
            other_type = getattr(other.columns.find(column.name), "type", None)
            if column.type and other_type and not _can_meet(column.type, other_type):
                raise BadJob(
                    f"column {column.name!r} is {column.type} in one stream of a merge and {other_type} in another",
                    where=where,
                    fix=f'make them alike first: .select(..., {column.name}="cast({column.name} AS ...)")',
                )
    # A place that only some rows have orders none of them.
    is_placed = all(has_position(flow) for flow in inputs)
    hidden = tuple(dict.fromkeys(name for flow in inputs for name in flow.hidden if name != POSITION or is_placed))
    columns = first.columns if all(flow.columns for flow in inputs) else None
    times = {flow.time.column.lower() if flow.time else None for flow in inputs}
    if len(times) > 1:
        raise BadJob(
            "streams are merged of which only some, or in different columns, tell the event time",
            where=where,
            fix="call .event_time(...) with the same column on every stream before the merge, or once behind it",
        )
    if len({(flow.time.late, flow.time.allowed) for flow in inputs if flow.time}) > 1:
        raise BadJob(
            "streams are merged that say different things of their late events",
            where=where,
            fix="declare the same late= and allowed= on every stream before the merge",
        )
    return Flow(columns=columns, hidden=hidden, time=first.time)


@_flow.register
def _(step: Join, inputs: list[Flow], where: str) -> Flow:
    left, right = inputs
    if step.how not in _JOINS:
        raise BadJob(f"how={step.how!r} is not a join", where=where, fix=f"how= one of {', '.join(_JOINS)}")
    if step.within is None:
        raise BadJob(
            "a join of two streams has no bound in time, so its state would grow for ever",
            where=where,
            fix='say how far apart two events may be: within="10 minutes"',
        )
    for side, flow in (("left", left), ("right", right)):
        if flow.time is None:
            raise BadJob(
                f"the {side} side of a join tells no event time, so its bound means nothing",
                where=where,
                fix=".event_time(column, lateness=...) on both streams before the join",
            )
        if flow.time.late is not Late.DROP:
            raise BadJob(
                f"late=Late.{flow.time.late.name} means nothing to a join, which drops late events and counts them",
                where=where,
                fix="declare late=Late.DROP on both streams before the join",
            )
        for name in step.on:
            require_column(name, flow, where)
    if left.columns is None or right.columns is None:
        return Flow(columns=None, hidden=(), time=left.time)
    on = {name.lower() for name in step.on}
    twice = [name for name in right.columns.names if name.lower() not in on and left.columns.find(name)]
    if twice:
        raise BadJob(
            f"both sides of a join have a column {', '.join(twice)}",
            where=where,
            fix=f"rename it on one side first: .select(..., {twice[0]}_right={twice[0]!r})",
        )
    keys = tuple(left.columns.find(name) or Column(name=name) for name in step.on)
    rest = (column for flow in (left, right) if flow.columns for column in flow.columns.columns)
    columns = Schema(columns=(*keys, *(column for column in rest if column.name.lower() not in on)))
    # A key column may be the time itself; an outer join can leave the left time empty.
    return Flow(columns=columns, hidden=(), time=left.time if step.how in ("inner", "left") else None)


@_flow.register
def _(step: ReadTable, inputs: list[Flow], where: str) -> Flow:
    return Flow(columns=step.rows.columns(where), hidden=(), time=None)


@_flow.register
def _(step: TableJoin, inputs: list[Flow], where: str) -> Flow:
    flow, rows = inputs
    if step.how not in ("inner", "left"):
        raise BadJob(
            f"how={step.how!r} is not a join with a table: its rows come only with an event",
            where=where,
            fix='how="inner", or how="left" to keep events that meet no row',
        )
    for name in step.on:
        require_column(name, flow, where)
        require_column(name, rows, where)
    if flow.columns is None or rows.columns is None:
        return Flow(columns=None, hidden=flow.hidden, time=flow.time)
    on = {name.lower() for name in step.on}
    rest = tuple(column for column in rows.columns.columns if column.name.lower() not in on)
    twice = [column.name for column in rest if can_see(column.name, flow)]
    if twice:
        raise BadJob(
            f"both the stream and the table have a column {', '.join(twice)}",
            where=where,
            fix="rename it in a select before the join, or leave it out of the schema of the table",
        )
    return Flow(columns=Schema(columns=(*flow.columns.columns, *rest)), hidden=flow.hidden, time=flow.time)


@_flow.register
def _(step: Timed, inputs: list[Flow], where: str) -> Flow:
    _refuse_endless_corrections(step.time, where)
    column = inputs[0].columns.find(step.time.column) if inputs[0].columns else None
    if not step.time.is_arrival:
        require_column(step.time.column, inputs[0], where)
    elif column is not None:
        raise BadJob(
            f"column {column.name!r} has the name of the column that processing time adds",
            where=where,
            fix="rename it in a select before .processing_time()",
        )
    if column is not None and column.type is not None and column.type.upper() not in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        raise BadJob(
            f"event time cannot be told by column {column.name!r} of type {column.type}",
            where=where,
            fix=f'make it a TIMESTAMP: in the schema, or .select(..., {column.name}="to_timestamp({column.name})")',
        )
    if inputs[0].timed_at is not None:
        raise BadJob(
            "event time is told twice on one way, and Spark keeps one watermark for it",
            where=f"{where}; told first at {inputs[0].timed_at}",
            fix="call .event_time(...) once: behind the last map or rolling, and before the first window or join",
        )
    hidden = (*inputs[0].hidden, ARRIVED) if step.time.is_arrival else inputs[0].hidden
    return Flow(columns=inputs[0].columns, hidden=hidden, time=step.time)


@_flow.register
def _(step: Exchanged, inputs: list[Flow], where: str) -> Flow:
    if step.exchange is not None:
        for name in step.exchange.keys:
            require_column(name, inputs[0], where)
        if step.exchange.strategy is Strategy.BY_KEY and not step.exchange.keys:
            raise BadJob("an exchange by key names no column", where=where, fix='exchange.by_key("ip")')
    return inputs[0]


@_flow.register(Keyed)
@_flow.register(LateEvents)
@_flow.register(TimedOut)
def _(step: Keyed | LateEvents | TimedOut, inputs: list[Flow], where: str) -> Flow:
    return keyed_flow(step, inputs[0], where)


@_flow.register
def _(step: Letters, inputs: list[Flow], where: str) -> Flow:
    return Flow(columns=parse_ddl(LETTER, where), hidden=(), time=None)


@_flow.register
def _(step: Write, inputs: list[Flow], where: str) -> Flow:
    flow = inputs[0]
    for name in step.sink.columns_needed():
        if flow.columns and not flow.columns.find(name) and name.lower() in flow.hidden:
            raise BadJob(
                f"column {name!r} is hidden: a sink gets it only where a select names it",
                where=where,
                fix=f".select({', '.join(map(repr, (*flow.columns.names, name.lower())))}) before the sink",
            )
        require_column(name, flow, where)
    for sql in step.sink.expressions():
        require_columns(sql, Flow(columns=flow.columns, hidden=(), time=None), where)
    return flow


def _can_meet(one: str, two: str) -> bool:
    numbers = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL")
    return one.upper() == two.upper() or (one.upper().startswith(numbers) and two.upper().startswith(numbers))


# Refusals that look at the whole job


def _refuse_what_contradicts(job: Job) -> None:
    where = f"job {job.name!r}, declared at {job.origin}"
    if job.dead_letters is not None and job.mode is Mode.REAL_TIME:
        raise BadJob(
            "dead letters are written with the rows of their epoch, and real-time mode has no such moment",
            where=where,
            fix="declare mode=Mode.MICRO_BATCH, or leave dead_letters= away",
        )
    if job.tracking is not None and job.dead_letters is None:
        raise BadJob(
            "nobody takes the events that fail at every attempt",
            where=where,
            fix="say where they go: dead_letters=KafkaSink(...), or any other sink",
        )
    if job.tracking is not None and job.guarantee is not Guarantee.AT_LEAST_ONCE:
        raise BadJob(
            f"tracking by acknowledgement gives at-least-once: an event that is tried again may have been out in part,"
            f" but {job.guarantee.label} is declared",
            where=where,
            fix="declare Guarantee.AT_LEAST_ONCE; or leave tracking= away: events are tracked by checkpoint",
        )
    for output in job.outputs:
        if not isinstance(output, Output):
            continue
        lower = output.step.guarantee
        if lower is not None and lower > job.guarantee:
            raise BadJob(
                f"output {output.step.name!r} declares {lower.label}, more than its job's {job.guarantee.label}",
                where=f"output {output.step.name!r}, declared at {output.step.origin}",
                fix="declare the stronger guarantee for the job; an output may only be lower",
            )


def _refuse_endless_corrections(time: EventTime, where: str) -> None:
    if time.late is Late.CORRECT and time.allowed is None:
        raise BadJob(
            "late=Late.CORRECT does not say for how long results are corrected, and kept for that",
            where=where,
            fix='say so: allowed="1 hour"',
        )


def _refuse_behind_late_events(inputs: list[Node], step: Step, where: str) -> None:
    """Events in time pass these steps beside the late ones, so nothing may count them or call functions on them."""
    is_function = isinstance(step, Map | FlatMap | FanOut | Transform) or (
        isinstance(step, Where) and callable(step.condition)
    )
    if not is_function and not isinstance(step, Keyed | Join):
        return
    if any(MISSED in before.flow.hidden for before in inputs):
        raise BadJob(
            "late events can pass where, select, split, merge and exchange in SQL on their way to a sink, nothing else",
            where=where,
            fix="write them to a sink first, and go on from there in a job of their own",
        )


def _refuse_silence_without_idle(graph: LogicalGraph) -> None:
    """The least watermark counts, so one stream whose time stands still in silence would hold back all others."""
    timed = [(node, node.step.time) for node in graph.nodes if isinstance(node.step, Timed)]
    speaking = [node for node, time in timed if time.idle is not None]
    for node, time in timed:
        if speaking and time.idle is None:
            raise BadJob(
                "time goes on in silence for one stream of the job and not for this one, which would hold it back",
                where=f"{node.where}; {speaking[0].where}",
                fix="declare idle= here too",
            )


def _refuse_late_events_that_nobody_takes(graph: LogicalGraph) -> None:
    """What is declared of late events has to mean something to a step behind it, or they would be lost in silence."""
    for node in graph.nodes:
        late = node.step.time.late if isinstance(node.step, Timed) else Late.DROP
        if late is Late.DROP:
            continue
        behind = _timed_by(graph, node)
        closing = [other for other in behind if has_late_events(other.step)]
        if not closing:
            raise BadJob(
                f"late=Late.{late.name} means nothing here: no window by time and no pattern is behind it, and for all"
                " other steps no event is late",
                where=node.where,
                fix="leave late= away",
            )
        taken = {name for other in graph.nodes if isinstance(other.step, LateEvents) for name in other.inputs}
        if late is Late.TO_SIDE_OUTPUT and not taken & {other.name for other in closing}:
            raise BadJob(
                "late events go to a side output that nobody takes: they would be lost",
                where=f"{node.where}; {closing[0].where}",
                fix='take them: counts.late.to("late", sink), where counts is the result of the step; or declare'
                " late=Late.DROP, which counts them, or late=Late.LOG",
            )


def _timed_by(graph: LogicalGraph, timed: Node) -> list[Node]:
    """The steps that go by the time that is told here."""
    reached = {timed.name}
    found: list[Node] = []
    for node in graph.nodes:
        before = [graph.node(name) for name in node.inputs if name in reached]
        if any(one.flow.time is not None for one in before):
            reached.add(node.name)
            found.append(node)
    return found


def _refuse_letters_that_nobody_takes(graph: LogicalGraph) -> None:
    for node in graph.nodes:
        is_letter = isinstance(node.step, FanOut) and node.step.partial is Partial.DEAD_LETTER
        if is_letter and graph.job.dead_letters is None:
            raise BadJob(
                "events of which a score is missing become dead letters, and the job has no sink for these",
                where=node.where,
                fix="say where they go: Job(..., dead_letters=KafkaSink(...)), or declare partial=Partial.PUBLISH",
            )


def _refuse_loops_outside(graph: LogicalGraph) -> None:
    read = {place: node for node in graph.nodes if isinstance(node.step, Read) for place in node.step.source.places}
    for node in graph.nodes:
        if not isinstance(node.step, Write):
            continue
        for place in node.step.sink.places & read.keys():
            raise BadJob(
                f"job {graph.job.name!r} has a cycle: it reads {place[1]}, which it writes",
                where=f"{read[place].where}; {node.where}",
                fix="write to another place",
            )


def _unfit_time(time: EventTime) -> str | None:
    if time.late is not Late.DROP:
        return f"its epochs cannot be cut at the watermark, as late=Late.{time.late.name} needs"
    if time.idle is not None or time.max_ahead is not None:
        return "its epochs are long, and idle=, max_ahead= and processing time go by the clock of an epoch"
    return None


def _refuse_unfit_for_real_time(graph: LogicalGraph) -> None:
    if graph.job.mode is not Mode.REAL_TIME:
        return
    for node in graph.nodes:
        step = node.step
        why, fix = None, "declare mode=Mode.MICRO_BATCH, or express the step in SQL between Kafka topics"
        if isinstance(step, Read) and not step.source.is_fit_for_real_time:
            why = f"it cannot read from a {type(step.source).__name__}"
        elif isinstance(step, Write) and not step.sink.is_fit_for_real_time:
            why = f"it cannot write to a {type(step.sink).__name__}"
        elif isinstance(step, Map | FlatMap) or (isinstance(step, Where) and callable(step.condition)):
            why = "it runs no Python functions"
        elif isinstance(step, FanOut):
            why = "it runs no Python functions"
            fix = (
                "declare mode=Mode.MICRO_BATCH, where the deadline counts from the moment at which a task gives the"
                " event to its functions; or write each function that SQL can say as a real-time job of its own, with"
                " a topic for its scores, and join these by the event's id"
            )
        elif isinstance(step, Keyed) and (reason := why_python(graph, node)) is not None:
            why = f"it runs no Python, and {reason}"
        elif isinstance(step, TableJoin):
            why = "it runs no Python workers, which hold the table"
        elif isinstance(step, Join):
            why = "it joins no streams"
        elif isinstance(step, Timed):
            why = _unfit_time(step.time)
        if why is not None:
            raise BadJob(
                f"{node.kind} {node.name!r} cannot run in real-time mode: {why}",
                where=node.where,
                fix=fix,
            )
    if len(graph.of_kind("sink")) > 1:
        raise BadJob(
            f"job {graph.job.name!r} has several outputs, and real-time mode writes to one",
            where=f"job {graph.job.name!r}, declared at {graph.job.origin}",
            fix="make one job for each output, or declare mode=Mode.MICRO_BATCH",
        )
