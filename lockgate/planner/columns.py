"""What leaves each step: its columns, the hidden ones, and the time; refused if a step does not fit what it gets.

A column must exist where a step names it, streams that meet must have the same columns, and what a step adds must not
have a name twice. Steps that keep state for a key have their rules in keyed.py.
"""

from __future__ import annotations

from functools import singledispatch

from lockgate.dataflow.deadletters import LETTER
from lockgate.dataflow.endpoints import POSITION
from lockgate.dataflow.eventtime import ARRIVED, Late
from lockgate.dataflow.exchange import Strategy
from lockgate.dataflow.fanout import MARKS, FanOut
from lockgate.dataflow.joinkind import JoinKind
from lockgate.dataflow.schema import Column, Schema, parse_ddl
from lockgate.dataflow.steps import (
    DeadLetterStep,
    Exchanged,
    FlatMap,
    Join,
    Keyed,
    LateEvents,
    Map,
    Merge,
    Part,
    Read,
    Select,
    Step,
    TableJoin,
    Timed,
    TimedOut,
    Transform,
    Where,
    Write,
)
from lockgate.dataflow.table import ReadTable
from lockgate.errors import BadJob
from lockgate.planner.flow import Flow, can_see, extended, has_position, require_column, require_columns, still_hidden
from lockgate.planner.keyed import keyed_flow
from lockgate.planner.sql import find_over_rows


@singledispatch
def step_flow(step: Step, inputs: list[Flow], where: str) -> Flow:
    """What leaves a step; BadJob if the step and what flows into it do not fit."""
    raise TypeError(f"no rule for the columns of {type(step).__name__}")


@step_flow.register
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


@step_flow.register
def _(step: Where, inputs: list[Flow], where: str) -> Flow:
    if isinstance(step.condition, str):
        require_columns(step.condition, inputs[0], where)
        _refuse_over_rows(step.condition, "condition", where)
    return inputs[0]


@step_flow.register
def _(step: Part, inputs: list[Flow], where: str) -> Flow:
    require_columns(step.condition, inputs[0], where)
    _refuse_over_rows(step.condition, "condition", where)
    return inputs[0]


@step_flow.register
def _(step: Select, inputs: list[Flow], where: str) -> Flow:
    flow = inputs[0]
    for name in step.columns:
        require_column(name, flow, where)
    for index, sql in enumerate(step.expressions.values()):
        # Spark lets an expression use those before it.
        require_columns(sql, flow, where, beside=tuple(step.expressions)[:index])
    for name, sql in step.expressions.items():
        _refuse_over_rows(sql, name, where)
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


@step_flow.register(Map)
@step_flow.register(FlatMap)
def _(step: Map | FlatMap, inputs: list[Flow], where: str) -> Flow:
    columns = parse_ddl(step.schema, where)
    # Spark forgets a watermark at a Python function, so event time must be declared after it.
    return Flow(columns=columns, hidden=still_hidden(inputs[0], columns), time=None)


@step_flow.register
def _(step: FanOut, inputs: list[Flow], where: str) -> Flow:
    flow = inputs[0]
    if flow.columns is None:
        return Flow(columns=None, hidden=flow.hidden, time=None)
    made = (*step.scores(where).columns, *parse_ddl(MARKS, where).columns)
    columns = extended((*flow.columns.columns, *made), (), where)
    return Flow(columns=columns, hidden=still_hidden(flow, columns), time=None)  # as after any Python function


@step_flow.register
def _(step: Transform, inputs: list[Flow], where: str) -> Flow:
    return Flow(columns=None, hidden=inputs[0].hidden, time=inputs[0].time)


@step_flow.register
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
    # A place that only some rows have gives no order.
    is_placed = all(has_position(flow) for flow in inputs)
    hidden = tuple(dict.fromkeys(name for flow in inputs for name in flow.hidden if name != POSITION or is_placed))
    columns = first.columns if all(flow.columns for flow in inputs) else None
    times = {flow.time.column.lower() if flow.time else None for flow in inputs}
    if len(times) > 1:
        raise BadJob(
            "streams are merged of which only some, or in different columns, have the event time",
            where=where,
            fix="call .event_time(...) with the same column on every stream before the merge, or once after it",
        )
    if len({(flow.time.late, flow.time.allowed) for flow in inputs if flow.time}) > 1:
        raise BadJob(
            "streams are merged that declare different things for their late events",
            where=where,
            fix="declare the same late= and allowed= on every stream before the merge",
        )
    return Flow(columns=columns, hidden=hidden, time=first.time)


@step_flow.register
def _(step: Join, inputs: list[Flow], where: str) -> Flow:
    left, right = inputs
    if step.within is None:
        raise BadJob(
            "a join of two streams has no bound in time, so its state would grow forever",
            where=where,
            fix='say how far apart two events may be: within="10 minutes"',
        )
    for side, flow in (("left", left), ("right", right)):
        if flow.time is None:
            raise BadJob(
                f"the {side} side of a join has no event time, so its bound means nothing",
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
    return Flow(columns=columns, hidden=(), time=left.time if step.how in (JoinKind.INNER, JoinKind.LEFT) else None)


@step_flow.register
def _(step: ReadTable, inputs: list[Flow], where: str) -> Flow:
    return Flow(columns=step.rows.columns(where), hidden=(), time=None)


@step_flow.register
def _(step: TableJoin, inputs: list[Flow], where: str) -> Flow:
    flow, rows = inputs
    if step.how not in (JoinKind.INNER, JoinKind.LEFT):
        raise BadJob(
            f"how={step.how.value!r} is not a join with a table: its rows come only with an event",
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
            fix="rename it in a select before the join, or remove it from the schema of the table",
        )
    return Flow(columns=Schema(columns=(*flow.columns.columns, *rest)), hidden=flow.hidden, time=flow.time)


@step_flow.register
def _(step: Timed, inputs: list[Flow], where: str) -> Flow:
    if step.time.late is Late.CORRECT and step.time.allowed is None:
        raise BadJob(
            "late=Late.CORRECT does not say for how long results are kept and corrected",
            where=where,
            fix='say so: allowed="1 hour"',
        )
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
            f"column {column.name!r} of type {column.type} cannot be the event time",
            where=where,
            fix=f'make it a TIMESTAMP: in the schema, or .select(..., {column.name}="to_timestamp({column.name})")',
        )
    if inputs[0].timed_at is not None:
        raise BadJob(
            "event time is declared twice on one way, and Spark keeps one watermark for it",
            where=f"{where}; declared first at {inputs[0].timed_at}",
            fix="call .event_time(...) once: after the last map or rolling, and before the first window or join",
        )
    hidden = (*inputs[0].hidden, ARRIVED) if step.time.is_arrival else inputs[0].hidden
    return Flow(columns=inputs[0].columns, hidden=hidden, time=step.time)


@step_flow.register
def _(step: Exchanged, inputs: list[Flow], where: str) -> Flow:
    if step.exchange is not None:
        for name in step.exchange.keys:
            require_column(name, inputs[0], where)
        if step.exchange.strategy is Strategy.BY_KEY and not step.exchange.keys:
            raise BadJob("an exchange by key names no column", where=where, fix='exchange.by_key("ip")')
    return inputs[0]


@step_flow.register(Keyed)
@step_flow.register(LateEvents)
@step_flow.register(TimedOut)
def _(step: Keyed | LateEvents | TimedOut, inputs: list[Flow], where: str) -> Flow:
    return keyed_flow(step, inputs[0], where)


@step_flow.register
def _(step: DeadLetterStep, inputs: list[Flow], where: str) -> Flow:
    return Flow(columns=parse_ddl(LETTER, where), hidden=(), time=None)


@step_flow.register
def _(step: Write, inputs: list[Flow], where: str) -> Flow:
    flow = inputs[0]
    for name in step.sink.columns_needed():
        if flow.columns and not flow.columns.find(name) and name.lower() in flow.hidden:
            raise BadJob(
                f"column {name!r} is hidden: a sink gets it only if a select names it",
                where=where,
                fix=f".select({', '.join(map(repr, (*flow.columns.names, name.lower())))}) before the sink",
            )
        require_column(name, flow, where)
    for sql in step.sink.expressions():
        require_columns(sql, Flow(columns=flow.columns, hidden=(), time=None), where)
    return flow


def _refuse_over_rows(sql: str, name: str, where: str) -> None:
    """Refuse SQL that looks at several rows, in a step that gets them one by one."""
    if (function := find_over_rows(sql)) is None:
        return
    raise BadJob(
        f"{name}={sql!r} looks at several rows with {function}, but this step gets rows one by one: a stream has no end"
        " at which a result over all rows could be made",
        where=where,
        fix='for a result per window: .key_by(...).window(windows.tumbling("1 minute")).aggregate(n="count(*)");'
        ' for one as of every event: .key_by(...).rolling(n="count(*)")',
    )


def _can_meet(one: str, two: str) -> bool:
    numbers = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL")
    return one.upper() == two.upper() or (one.upper().startswith(numbers) and two.upper().startswith(numbers))
