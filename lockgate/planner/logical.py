"""The logical graph: what a job asks for, walked back from its outputs, with a name and columns for every step.

Everything that cannot mean anything is refused here, with the author's own line, before a JVM or a broker is touched:
no source, no sink, a cycle (in the graph, or through a topic), a name used twice, a column that does not exist, a
window or a join without time. Columns are followed as far as SQL can be parsed; behind a `transform` they are unknown
(None), and Spark's analyser takes over.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch

from lockgate.dataflow.endpoints import POSITION
from lockgate.dataflow.eventtime import EventTime, Late
from lockgate.dataflow.exchange import Strategy
from lockgate.dataflow.job import Job
from lockgate.dataflow.origin import Origin
from lockgate.dataflow.schema import Column, Schema, parse_ddl
from lockgate.dataflow.steps import (
    Exchanged,
    FlatMap,
    Join,
    LateEvents,
    Map,
    Merge,
    Part,
    Read,
    Rolling,
    Select,
    Step,
    Timed,
    Transform,
    Where,
    WindowAggregate,
    Write,
)
from lockgate.dataflow.stream import Output
from lockgate.errors import BadJob
from lockgate.guarantees import Mode
from lockgate.planner.sql import read_expression, read_fold

KINDS: dict[type[Step], str] = {
    Read: "source",
    Where: "where",
    Select: "select",
    Map: "map",
    FlatMap: "flat_map",
    Transform: "transform",
    Part: "part",
    Merge: "merge",
    Join: "join",
    Timed: "event_time",
    Exchanged: "exchange",
    Rolling: "rolling",
    WindowAggregate: "window",
    LateEvents: "late",
    Write: "sink",
}
_JOINS = ("inner", "left", "right", "full")


@dataclass(frozen=True)
class Flow:
    """What leaves a step: the columns in sight, the hidden ones, and the time that is told by one of them."""

    columns: Schema | None
    hidden: tuple[str, ...]
    time: EventTime | None
    timed_at: Origin | None = None  # where event time was told, also where no column tells it any more
    is_broadcast: bool = False  # does every event come several times, once for each task?


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


def build_logical(job: Job) -> LogicalGraph:
    """The logical graph of a job; raises BadJob where it cannot mean anything."""
    _refuse_what_is_not_here_yet(job)
    steps = _walk(job)
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
            if not step.inputs and not isinstance(step, Read):
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
    is_broadcast = any(before.flow.is_broadcast for before in inputs)
    if is_broadcast and isinstance(step, Rolling | WindowAggregate | Join):
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
        _require_columns(step.condition, inputs[0], where)
    return inputs[0]


@_flow.register
def _(step: Part, inputs: list[Flow], where: str) -> Flow:
    _require_columns(step.condition, inputs[0], where)
    return inputs[0]


@_flow.register
def _(step: Select, inputs: list[Flow], where: str) -> Flow:
    flow = inputs[0]
    for name in step.columns:
        _require_column(name, flow, where)
    for index, sql in enumerate(step.expressions.values()):
        # Spark lets an expression use those before it.
        _require_columns(sql, flow, where, beside=tuple(step.expressions)[:index])
    known = flow.columns.find if flow.columns else lambda name: None
    columns = Schema(
        columns=(
            *(known(name) or Column(name=name) for name in step.columns),
            *(Column(name=name) for name in step.expressions),
        )
    )
    kept = flow.time if flow.time and flow.time.column.lower() in map(str.lower, step.columns) else None
    return Flow(columns=columns, hidden=_still_hidden(flow, columns), time=kept)


@_flow.register(Map)
@_flow.register(FlatMap)
def _(step: Map | FlatMap, inputs: list[Flow], where: str) -> Flow:
    columns = parse_ddl(step.schema, where)
    # Spark forgets a watermark at a Python function, so event time has to be told behind it.
    return Flow(columns=columns, hidden=_still_hidden(inputs[0], columns), time=None)


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
    hidden = tuple(dict.fromkeys(name for flow in inputs for name in flow.hidden))
    columns = first.columns if all(flow.columns for flow in inputs) else None
    times = {flow.time.column.lower() if flow.time else None for flow in inputs}
    if len(times) > 1:
        raise BadJob(
            "streams are merged of which only some, or in different columns, tell the event time",
            where=where,
            fix="call .event_time(...) with the same column on every stream before the merge, or once behind it",
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
        for name in step.on:
            _require_column(name, flow, where)
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
def _(step: Timed, inputs: list[Flow], where: str) -> Flow:
    _refuse_time_options_not_here_yet(step.time, where)
    _require_column(step.time.column, inputs[0], where)
    column = inputs[0].columns.find(step.time.column) if inputs[0].columns else None
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
    return Flow(columns=inputs[0].columns, hidden=inputs[0].hidden, time=step.time)


@_flow.register
def _(step: Exchanged, inputs: list[Flow], where: str) -> Flow:
    if step.exchange is not None:
        for name in step.exchange.keys:
            _require_column(name, inputs[0], where)
        if step.exchange.strategy is Strategy.BY_KEY and not step.exchange.keys:
            raise BadJob("an exchange by key names no column", where=where, fix='exchange.by_key("ip")')
    return inputs[0]


@_flow.register
def _(step: Rolling, inputs: list[Flow], where: str) -> Flow:
    flow = inputs[0]
    for name in step.keys:
        _require_column(name, flow, where)
    for name, sql in step.aggregates.items():
        _require_columns(sql, flow, where)
        if read_fold(sql) is None:
            raise BadJob(
                f"rolling cannot keep {name}={sql!r}",
                where=where,
                fix="use sum(x), min(x), max(x), avg(x), count(x) or count(*), one for each name",
            )
    if not _has_position(flow):
        raise BadJob(
            "the rows of a key have lost their order before a rolling aggregate",
            where=where,
            fix="put the rolling step before the window or the join that ends the events",
        )
    if flow.columns is None:
        return Flow(columns=None, hidden=flow.hidden, time=None)
    columns = _extended(flow.columns.columns, step.aggregates, where)
    return Flow(columns=columns, hidden=_still_hidden(flow, columns), time=None)


@_flow.register
def _(step: WindowAggregate, inputs: list[Flow], where: str) -> Flow:
    flow = inputs[0]
    if flow.time is None:
        raise BadJob(
            "a window over event time is asked for, but no column tells the time",
            where=where,
            fix='.event_time("at", lateness="10 seconds") right before the window: a map, a rolling or another window'
            " ends it, and so does a select without the column",
        )
    for name in step.keys:
        _require_column(name, flow, where)
    for name, sql in step.aggregates.items():
        _require_columns(sql, flow, where)
        facts = read_expression(sql)
        if facts is not None and facts.is_distinct:
            raise BadJob(
                f"{name}={sql!r} counts distinct values, which Spark cannot do in a stream",
                where=where,
                fix="use approx_count_distinct(...)",
            )
        if facts is not None and not facts.is_aggregate and not _may_be_aggregate(sql):
            raise BadJob(
                f"{name}={sql!r} is no aggregate: a window has many rows and must make one value of them",
                where=where,
                fix=f"use an aggregate, e.g. max({sql}) or count(*), or make {name!r} part of key_by",
            )
    known = flow.columns.find if flow.columns else lambda name: None
    times = (Column(name="window_start", type="TIMESTAMP"), Column(name="window_end", type="TIMESTAMP"))
    base = (*(known(name) or Column(name=name) for name in step.keys), *times)
    columns = _extended(base, step.aggregates, where)
    return Flow(columns=columns, hidden=(), time=None)


@_flow.register
def _(step: LateEvents, inputs: list[Flow], where: str) -> Flow:
    raise BadJob(
        "late events cannot be sent to an output in this version of Lockgate",
        where=where,
        fix="leave the late output away, and declare late=Late.DROP",
    )


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
        _require_column(name, flow, where)
    for sql in step.sink.expressions():
        _require_columns(sql, Flow(columns=flow.columns, hidden=(), time=None), where)
    return flow


def _can_meet(one: str, two: str) -> bool:
    numbers = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL")
    return one.upper() == two.upper() or (one.upper().startswith(numbers) and two.upper().startswith(numbers))


def _still_hidden(flow: Flow, columns: Schema) -> tuple[str, ...]:
    return tuple(name for name in flow.hidden if columns.find(name) is None)


def _has_position(flow: Flow) -> bool:
    return POSITION in flow.hidden


def _extended(base: Iterable[Column], aggregates: Iterable[str], where: str) -> Schema:
    columns = [*base, *(Column(name=name) for name in aggregates)]
    names = [column.name.lower() for column in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadJob(f"column {', '.join(twice)} would exist twice", where=where, fix="give the aggregate another name")
    return Schema(columns=tuple(columns))


def _may_be_aggregate(sql: str) -> bool:
    """A function that sqlglot does not know as an aggregate may be one of Spark's; Spark will say."""
    facts = read_expression(sql)
    return facts is None or bool(facts.functions)


# Columns that must exist


def _require_columns(sql: str, flow: Flow, where: str, beside: Sequence[str] = ()) -> None:
    facts = read_expression(sql)
    others = {name.lower() for name in beside}
    for name in sorted(facts.columns) if facts else ():
        if name.lower() not in others:
            _require_column(name, flow, where, sql=sql)


def _require_column(name: str, flow: Flow, where: str, sql: str | None = None) -> None:
    if flow.columns is None or flow.columns.find(name) or name.lower() in flow.hidden:
        return
    known = [*flow.columns.names, *flow.hidden]
    close = difflib.get_close_matches(name.lower(), [one.lower() for one in known], n=1)
    inside = f" in {sql!r}" if sql and sql != name else ""
    raise BadJob(
        f"column {name!r}{inside} does not exist",
        where=where,
        fix=(f"did you mean {close[0]!r}? " if close else "") + f"the columns here are {', '.join(flow.columns.names)}",
    )


# Refusals that look at the whole job


def _refuse_what_is_not_here_yet(job: Job) -> None:
    where = f"job {job.name!r}, declared at {job.origin}"
    if job.tracking is not None:
        raise BadJob(
            "tracking by acknowledgement is not part of this version of Lockgate",
            where=where,
            fix="leave tracking= away: events are tracked by checkpoint",
        )
    if job.dead_letters is not None:
        raise BadJob(
            "dead letters are not part of this version of Lockgate",
            where=where,
            fix="leave dead_letters= away: a row that does not parse stops the job and is named, nothing is lost",
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


def _refuse_time_options_not_here_yet(time: EventTime, where: str) -> None:
    asked = {
        f"late=Late.{time.late.name}": time.late is not Late.DROP,
        "allowed=": time.allowed is not None,
        "idle=": time.idle is not None,
        "max_ahead=": time.max_ahead is not None,
    }
    for option, is_asked in asked.items():
        if is_asked:
            raise BadJob(
                f"{option} is not part of this version of Lockgate",
                where=where,
                fix="late events are dropped: declare late=Late.DROP and leave the other options away",
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


def _refuse_unfit_for_real_time(graph: LogicalGraph) -> None:
    if graph.job.mode is not Mode.REAL_TIME:
        return
    for node in graph.nodes:
        step = node.step
        why = None
        if isinstance(step, Read) and not step.source.is_fit_for_real_time:
            why = f"it cannot read from a {type(step.source).__name__}"
        elif isinstance(step, Write) and not step.sink.is_fit_for_real_time:
            why = f"it cannot write to a {type(step.sink).__name__}"
        elif isinstance(step, Map | FlatMap | Rolling) or (isinstance(step, Where) and callable(step.condition)):
            why = "it runs no Python functions"
        elif isinstance(step, Join):
            why = "it joins no streams"
        if why is not None:
            raise BadJob(
                f"{node.kind} {node.name!r} cannot run in real-time mode: {why}",
                where=node.where,
                fix="declare mode=Mode.MICRO_BATCH, or express the step in SQL between Kafka topics",
            )
    if len(graph.of_kind("sink")) > 1:
        raise BadJob(
            f"job {graph.job.name!r} has several outputs, and real-time mode writes to one",
            where=f"job {graph.job.name!r}, declared at {graph.job.origin}",
            fix="make one job for each output, or declare mode=Mode.MICRO_BATCH",
        )
