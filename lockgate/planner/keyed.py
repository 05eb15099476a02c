"""What leaves the steps that keep state for a key: rolling aggregates, windows, functions with state, patterns.

Steps that depend on the order of events need their source positions, so they stand before the window or the join that
ends them. Late and timed-out events leave by a side of the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch

from lockgate.dataflow.aggregates import Aggregate
from lockgate.dataflow.eventtime import Late
from lockgate.dataflow.schema import Column, Schema, parse_ddl
from lockgate.dataflow.steps import (
    Aggregates,
    Detect,
    Keyed,
    LateEvents,
    Process,
    Rolling,
    Step,
    TimedOut,
    WindowAggregate,
    WindowApply,
    Windowed,
)
from lockgate.dataflow.windows import SessionWindow, SlidingWindow, TimeWindow, UntilWindow
from lockgate.errors import BadJob
from lockgate.operators.aggregatefolds import First, Last
from lockgate.planner.flow import (
    MISSED,
    Flow,
    can_see,
    extended,
    has_position,
    may_be_aggregate,
    require_column,
    require_columns,
    still_hidden,
)
from lockgate.planner.forms import has_revisions, why_operator
from lockgate.planner.sql import read_expression, read_fold

_SPAN = (Column(name="window_start", type="TIMESTAMP"), Column(name="window_end", type="TIMESTAMP"))
_REVISION = (Column(name="revision", type="INT"), Column(name="is_final", type="BOOLEAN"))
_MATCH = (Column(name="match_start", type="TIMESTAMP"), Column(name="match_end", type="TIMESTAMP"))
_FOLDS = "sum(x), min(x), max(x), avg(x), count(x) or count(*)"


@singledispatch
def keyed_flow(step: Step, flow: Flow, where: str) -> Flow:
    """What leaves a keyed step, or the side of one."""
    raise TypeError(f"no rule for the columns of {type(step).__name__}")


@keyed_flow.register
def _(step: Rolling, flow: Flow, where: str) -> Flow:
    _require_keys(step, flow, where)
    _require_order(flow, where)
    _require_folds(step.aggregates, flow, where, of="rolling")
    if flow.columns is None:
        return Flow(columns=None, hidden=flow.hidden, time=None)
    columns = extended(flow.columns.columns, step.aggregates, where)
    return Flow(columns=columns, hidden=still_hidden(flow, columns), time=None)


@keyed_flow.register
def _(step: WindowAggregate, flow: Flow, where: str) -> Flow:
    _check_window(step, flow, where)
    if why_operator(step, flow.time) is not None:
        _require_folds(step.aggregates, flow, where, of="such a window")
        _refuse_order(step, where)
    else:
        _require_aggregates(step.aggregates, flow, where)
    columns = extended((*_keys(step, flow), *_span(step, flow)), step.aggregates, where)
    return Flow(columns=columns, hidden=(), time=None, fed_by=flow)


@keyed_flow.register
def _(step: WindowApply, flow: Flow, where: str) -> Flow:
    _check_window(step, flow, where)
    given = parse_ddl(step.schema, where)
    columns = extended((*_keys(step, flow), *_span(step, flow)), given.names, where)
    typed = (*columns.columns[: -len(given.columns)], *given.columns)
    return Flow(columns=Schema(columns=typed), hidden=(), time=None, fed_by=flow)


@keyed_flow.register
def _(step: Process, flow: Flow, where: str) -> Flow:
    _require_keys(step, flow, where)
    _require_order(flow, where)
    if flow.columns is None:
        raise _unknown(where)
    return Flow(columns=parse_ddl(step.function.schema, where), hidden=(), time=None)


@keyed_flow.register
def _(step: Detect, flow: Flow, where: str) -> Flow:
    _require_keys(step, flow, where)
    _require_order(flow, where)
    if flow.columns is None:
        raise _unknown(where)
    for condition in step.pattern.conditions:
        require_columns(condition, flow, where)
    if flow.time is not None and flow.time.late is Late.CORRECT:
        raise BadJob(
            "late=Late.CORRECT means nothing to a pattern: a match that is committed cannot be taken back",
            where=where,
            fix="declare late=Late.TO_SIDE_OUTPUT, or raise lateness=",
        )
    columns = extended((*_keys(step, flow), *_MATCH), _stages(step), where)
    return Flow(columns=columns, hidden=(), time=None, fed_by=flow)


@keyed_flow.register
def _(step: LateEvents, flow: Flow, where: str) -> Flow:
    before, fed_by = step.inputs[0], flow.fed_by
    if fed_by is None or fed_by.time is None or fed_by.time.late not in (Late.TO_SIDE_OUTPUT, Late.CORRECT):
        declared = "" if fed_by is None or fed_by.time is None else f", but late=Late.{fed_by.time.late.name} for them"
        raise BadJob(
            f"late events are asked for{declared}",
            where=where,
            fix="declare .event_time(..., late=Late.TO_SIDE_OUTPUT) before the step, or remove .late",
        )
    is_window = isinstance(before, Windowed)
    if isinstance(before, Windowed) and not isinstance(before.window, TimeWindow):
        raise BadJob(
            f"no event is late for a window that is {before.window}: it ends with an event",
            where=where,
            fix="remove .late",
        )
    is_native = isinstance(before, Windowed) and why_operator(before, fed_by.time) is None
    hidden = (*fed_by.hidden, MISSED) if is_native else fed_by.hidden
    if fed_by.columns is None:
        return Flow(columns=None, hidden=hidden, time=None)
    times = _SPAN if is_window else ()
    for column in times:
        if fed_by.columns.find(column.name):
            raise BadJob(
                f"late events come with the column {column.name!r} of the window they missed, and have one already",
                where=where,
                fix="rename it in a select before the window",
            )
    return Flow(columns=Schema(columns=(*fed_by.columns.columns, *times)), hidden=hidden, time=None)


@keyed_flow.register
def _(step: TimedOut, flow: Flow, where: str) -> Flow:
    before, fed_by = step.inputs[0], flow.fed_by
    if not isinstance(before, Detect) or fed_by is None:
        raise TypeError("only patterns time out")
    base = (*_keys(before, fed_by), *_MATCH, Column(name="reached", type="STRING"))
    return Flow(columns=extended(base, _stages(before), where), hidden=(), time=None)


# What they have in common


def _require_keys(step: Keyed, flow: Flow, where: str) -> None:
    for name in step.keys:
        require_column(name, flow, where)


def _require_order(flow: Flow, where: str) -> None:
    if not has_position(flow):
        raise BadJob(
            "the rows of a key have lost their order before a step that depends on it",
            where=where,
            fix="put the step before the window or the join that ends the events",
        )


def _check_window(step: Windowed, flow: Flow, where: str) -> None:
    _require_keys(step, flow, where)
    if isinstance(step.window, TimeWindow):
        _require_time(flow, where)
    elif isinstance(step.window, UntilWindow):
        require_columns(step.window.condition, flow, where)
    time = flow.time
    if step.trigger is not None and step.trigger.on_late and (time is None or time.late is not Late.CORRECT):
        raise BadJob(
            "a result for every late event is asked for, but late events do not correct results",
            where=where,
            fix=".event_time(..., late=Late.CORRECT, allowed=...) before the window, or remove on_late=",
        )
    if why_operator(step, time) is not None:
        _require_order(flow, where)
        if isinstance(step, WindowApply) and flow.columns is None:
            raise _unknown(where)


def _require_time(flow: Flow, where: str) -> None:
    is_in_reach = flow.columns is None or flow.time is None or can_see(flow.time.column, flow)
    if flow.time is None or not is_in_reach:
        raise BadJob(
            "a window over event time is asked for, but no column has the time",
            where=where,
            fix='.event_time("at", lateness="10 seconds") right before the window: a map, a rolling or another window'
            " ends it, and so does a select without the column",
        )


def _require_folds(aggregates: Aggregates, flow: Flow, where: str, of: str) -> None:
    """Refuse aggregates that cannot be kept as folds, event by event."""
    for name, one in aggregates.items():
        if isinstance(one, Aggregate):
            require_columns(one.argument or "1", flow, where)
            continue
        require_columns(one, flow, where)
        if read_fold(one) is None:
            raise BadJob(
                f"{of} cannot keep {name}={one!r}",
                where=where,
                fix=f"use {_FOLDS}, one for each name, or a function of yours: lockgate.aggregates, lockgate.synopses",
            )


def _refuse_order(step: WindowAggregate, where: str) -> None:
    """A window that merges slices has the order of their times, and not the order of arrival."""
    for name, one in step.aggregates.items():
        is_ordered = isinstance(one, Aggregate) and isinstance(one.fold, First | Last)
        if is_ordered and isinstance(step.window, SessionWindow | SlidingWindow):
            raise BadJob(
                f"{name} is the first or last by the order of the source, which a window that is {step.window} loses",
                where=where,
                fix=".apply(function, schema): its rows come in the order of their times",
            )


def _require_aggregates(aggregates: Aggregates, flow: Flow, where: str) -> None:
    """Refuse what is no aggregate of Spark's SQL."""
    for name, sql in _texts(aggregates).items():
        require_columns(sql, flow, where)
        facts = read_expression(sql)
        if facts is not None and facts.is_distinct:
            raise BadJob(
                f"{name}={sql!r} counts distinct values, which Spark cannot do in a stream",
                where=where,
                fix="use approx_count_distinct(...), or synopses.distinct(...)",
            )
        if facts is not None and not facts.is_aggregate and not may_be_aggregate(sql):
            raise BadJob(
                f"{name}={sql!r} is no aggregate: a window has many rows and must make one value of them",
                where=where,
                fix=f"use an aggregate, e.g. max({sql}) or count(*), or make {name!r} part of key_by",
            )


def _texts(aggregates: Aggregates) -> Mapping[str, str]:
    return {name: one for name, one in aggregates.items() if isinstance(one, str)}


def _keys(step: Keyed, flow: Flow) -> tuple[Column, ...]:
    known = flow.columns.find if flow.columns else lambda name: None
    return tuple(known(name) or Column(name=name) for name in step.keys)


def _span(step: Windowed, flow: Flow) -> tuple[Column, ...]:
    return (*_SPAN, *(_REVISION if has_revisions(step, flow.time) else ()))


def _stages(step: Detect) -> tuple[str, ...]:
    return tuple(stage.name for stage in step.pattern.stages if not stage.is_negated)


def _unknown(where: str) -> BadJob:
    return BadJob(
        "the columns after a transform are not known before the job runs, and this step passes them to Python",
        where=where,
        fix="name them in a select between the two",
    )
