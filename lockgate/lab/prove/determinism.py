"""Has a job one answer? If it has none, an undisturbed run cannot be compared with a disturbed one.

Spark repeats an epoch with the same rows, and Lockgate computes the same from them. Still a job may keep every promise
and give other rows in another run, because epochs end at other places or clocks differ. Comparing such rows proves
nothing, so the verdict is unknown. Here are the reasons, in words.

    the clock            processing time, timers and lifetimes by it, `current_timestamp()`, `idle=`, deadlines
    chance               functions that are declared so, `rand()`, `uuid()`
    closed boxes         a transform may do anything
    the ends of epochs   early results, timers by event time, what a function reads of the watermark, events that may
                         or may not be late
    order                streams that meet before a step that depends on order, and arrive in any order
    rounding             deviations and correlations of fractions depend on the order of addition
    the guarantee        state that a restart forgets (at-most-once), or an event that reaches it twice
"""

from __future__ import annotations

import dis
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, partialmethod
from itertools import pairwise
from types import CodeType, FunctionType, MethodType
from typing import Any, TypeGuard

from lockgate.dataflow.aggregates import Aggregate
from lockgate.dataflow.fanout import FanOut
from lockgate.dataflow.steps import (
    Detect,
    Join,
    Merge,
    Process,
    Read,
    Rolling,
    Timed,
    Transform,
    WindowAggregate,
    WindowApply,
    Windowed,
    Write,
)
from lockgate.dataflow.windows import CountWindow, UntilWindow
from lockgate.guarantees import Guarantee, Mode
from lockgate.operators.keyedstate import states_of
from lockgate.operators.process import StatefulFunction
from lockgate.planner.forms import has_late_events
from lockgate.planner.logical import LogicalGraph, Node
from lockgate.planner.nondeterminism import expressions_of, is_nondeterministic
from lockgate.planner.physical import has_state
from lockgate.planner.plan import Plan
from lockgate.planner.sql import find_nondeterministic
from lockgate.planner.sqltext import read_text

_QUOTED_NAME = re.compile("`[^`]*`")
_CLOCK = re.compile(
    r"\b(current_timestamp|current_date|current_time|curdate|localtimestamp|now\s*\(|unix_timestamp\s*\(\s*\)"
    r"|to_unix_timestamp\s*\(\s*\))",
    re.IGNORECASE,
)
_ROUNDING = re.compile(
    r"\b(std|stddev\w*|var_\w+|variance|corr|covar_\w+|skewness|kurtosis|regr_\w+)\s*\(", re.IGNORECASE
)
_BY_EPOCH = {
    "after": "sets timers by the clock",
    "processing_time": "reads the clock of its epoch",
    "at": "sets timers, which are due when an epoch ends, behind all of its events",
    "watermark": "reads the watermark, which moves when epochs end",
    "is_late": "asks whether an event is late, which depends on where epochs end",
}
"""What a stateful function may ask of its context, and why its answer is none of the events alone."""


@dataclass(frozen=True)
class Reason:
    """Why the answer of a job cannot be computed by an undisturbed run."""

    what: str
    where: str

    def __str__(self) -> str:
        return f"{self.what} ({self.where})"


def find_reasons(planned: Plan, *, unsure_count: int = 0) -> tuple[Reason, ...]:
    """All reasons why another run of the job over the same events may give other rows; none where it gives the same.

    Args:
        unsure_count: how many of the events may or may not be late, as epochs end (`Workload.unsure_count`).
    """
    graph = planned.logical
    found = [
        Reason(f"{node.kind} {node.name!r} {what}", node.where) for node in graph.nodes for what in _why(graph, node)
    ]
    where = f"job {planned.job.name!r}, declared at {planned.job.origin}"
    found += [Reason(what, where) for what in _why_job(planned)]
    if unsure_count and any(has_late_events(node.step) or isinstance(node.step, Join) for node in graph.nodes):
        found.append(Reason(f"{unsure_count} of the events may or may not be late, as epochs end", where))
    return tuple(dict.fromkeys(found))


def order_keys(graph: LogicalGraph, node: Node) -> tuple[str, ...] | None:
    """The columns of whose rows a step must have the order; None where it takes them in any, () where it is of all."""
    step = node.step
    if isinstance(step, Rolling | Process | WindowApply):
        return step.keys
    if isinstance(step, Windowed) and isinstance(step.window, CountWindow | UntilWindow):
        return step.keys
    if isinstance(step, WindowAggregate) and any(
        isinstance(one, Aggregate) and not one.is_native for one in step.aggregates.values()
    ):
        return step.keys
    if isinstance(step, Detect):
        return None if graph.node(node.inputs[0]).flow.time is not None else step.keys
    if isinstance(step, Write) and step.sink.location is not None and step.sink.location.replaced_by:
        return step.sink.location.replaced_by  # the last row of a key replaces those before it
    return None


def _why(graph: LogicalGraph, node: Node) -> Iterator[str]:
    step = node.step
    for sql in expressions_of(node):
        code = _QUOTED_NAME.sub(" ", read_text(sql).code)
        clock, rounding = _CLOCK.search(code), _ROUNDING.search(code)
        if clock is not None:
            yield f"asks for the clock, by {clock[1].rstrip('(').strip()} in {sql!r}"
        elif (cause := find_nondeterministic(sql)) is not None:
            yield f"is not deterministic, by {cause.lower()} in {sql!r}"
        if rounding is not None:
            yield f"gives fractions that depend on the order of its rows, by {rounding[1]} in {sql!r}"
    if isinstance(step, Transform):
        yield "is a function of a whole DataFrame, which may use anything"
    elif isinstance(step, FanOut):
        yield "has a deadline, so its results depend on the clock"
    elif is_nondeterministic(node) and not any(find_nondeterministic(sql) for sql in expressions_of(node)):
        yield "is declared not to be deterministic"
    if isinstance(step, Timed) and step.time.is_arrival:
        yield "tells the time by the clock"
    elif isinstance(step, Timed) and step.time.idle is not None:
        yield "lets time go on by the clock where its inputs are silent (idle=)"
    if isinstance(step, Windowed) and step.trigger is not None and step.trigger.every is not None:
        yield "emits early results, which depend on where epochs end"
    if isinstance(step, Process):
        yield from _why_function(step.function)
    if order_keys(graph, node) is not None and _ways_before(graph, node) > 1:
        yield "goes by the order of its rows, and streams come to it that have none between them"


def _why_function(function: StatefulFunction) -> Iterator[str]:
    if any(state.ttl_us is not None for state in states_of(function).values()):
        yield "forgets states by the clock (ttl=)"
    asked = _asked_of_context(function)
    yield from (why for name, why in _BY_EPOCH.items() if name in asked)


def _asked_of_context(function: StatefulFunction) -> set[str]:
    """The names that a function asks its context for; a column may have the same names, and is none of them.

    If the context is handed on (to a helper, into a variable, by a decorator), every name in the code that may receive
    it counts as asked.
    """
    asked: set[str] = set()
    for name in ("process", "on_timer"):
        for method in (names[name] for names in _namespaces(function) if name in names):
            found = _asked_of(method.__code__.co_varnames[2:3], method.__code__) if _is_plain(method) else None
            if found is None:
                return _names_within(function)
            asked |= found
    return asked


def _namespaces(function: StatefulFunction) -> Iterator[Mapping[str, Any]]:
    """What the user has written: for this object, and in its classes."""
    yield vars(function)
    for one in type(function).__mro__:
        if one is StatefulFunction:
            return
        yield vars(one)


def _is_plain(method: object) -> TypeGuard[FunctionType]:
    """Is its third parameter the context, and is its code all that runs?"""
    return isinstance(method, FunctionType) and method.__code__.co_argcount >= 3 and not hasattr(method, "__wrapped__")


def _names_within(function: StatefulFunction) -> set[str]:
    """All names in the code that a function may run, as far as it is the user's; all of a context if some is hidden."""
    waiting = [one for names in _namespaces(function) for one in names.values()]
    entries = [names[name] for names in _namespaces(function) for name in ("process", "on_timer") if name in names]
    if not all(map(_code_behind, entries)):
        return {*_BY_EPOCH}
    found: dict[CodeType, set[str]] = {}
    while waiting:
        for one in _code_behind(waiting.pop()):
            if one.__code__ not in found and (one.__module__ or "").split(".")[0] not in sys.stdlib_module_names:
                found[one.__code__] = _names(one.__code__)
                waiting += [*_cells(one), *(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]
                waiting += [one.__globals__[name] for name in found[one.__code__] if name in one.__globals__]
    return set().union(*found.values())


def _code_behind(value: object) -> list[FunctionType]:
    """The functions that run if this is called; none if it is no function, or one without Python code."""
    if isinstance(value, staticmethod | classmethod | MethodType):
        return _code_behind(value.__func__)
    if isinstance(value, partial | partialmethod):
        given = (value.func, *value.args, *value.keywords.values())
        return [one for each in given for one in _code_behind(each)]
    if isinstance(value, FunctionType):
        return [value, *_code_behind(getattr(value, "__wrapped__", None))]
    called = next((vars(one)["__call__"] for one in type(value).__mro__ if "__call__" in vars(one)), None)
    return [called] if isinstance(called, FunctionType) else []


def _cells(function: FunctionType) -> Iterator[object]:
    """What a function has of the function around it."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # of one that is still empty
            yield cell.cell_contents


def _asked_of(variable: Sequence[str], code: CodeType) -> set[str] | None:
    """The attributes of a variable that code reads, code inside of it too; None where it does more with it."""
    asked: set[str] = set()
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "PRECALL", "EXTENDED_ARG")]
    for step, after in pairwise(steps):
        loaded = _loaded(step)
        if not {*loaded} & {*variable}:
            continue
        is_shared = bool({*variable} & {*code.co_cellvars, *code.co_freevars})
        if step.opname == "LOAD_CLOSURE" or (is_shared and step.opname.startswith("LOAD_FAST")):
            continue  # it is handed to code inside, which is looked at below
        is_handed_on = bool({*loaded[:-1]} & {*variable})
        if is_handed_on or after.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
            return None
        asked.add(after.argval)
    for inner in (one for one in code.co_consts if isinstance(one, CodeType)):
        if {*variable} & {*inner.co_freevars}:
            found = _asked_of(variable, inner)
            if found is None:
                return None
            asked |= found
    return asked


def _loaded(step: dis.Instruction) -> tuple[object, ...]:
    """What an instruction puts on the stack, the top last; newer Pythons have some for two variables."""
    told = step.argval if isinstance(step.argval, tuple) else (step.argval,)
    if step.opname == "STORE_FAST_LOAD_FAST":  # Python 3.13
        return told[1:]
    return told if step.opname.startswith("LOAD_") else ()


def _names(code: CodeType) -> set[str]:
    """All names and texts in code: one of them may be what `getattr` asks for."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    texts = {one for one in code.co_consts if isinstance(one, str)}
    return texts.union(code.co_names, *map(_names, inner))


def _ways_before(graph: LogicalGraph, node: Node) -> int:
    """How many streams come together before a step; what a join gives has no order of its own at all."""
    waiting, sources = list(node.inputs), set[str]()
    is_joined = False
    while waiting:
        one = graph.node(waiting.pop())
        if isinstance(one.step, Read):
            sources.add(one.name)
        is_joined = is_joined or isinstance(one.step, Join) or (isinstance(one.step, Merge) and len(one.inputs) > 1)
        waiting += one.inputs
    return max(len(sources), 2 if is_joined else 1)


def _why_job(planned: Plan) -> Iterator[str]:
    job = planned.job
    if not any(has_state(node) for node in planned.logical.nodes):
        return
    if job.guarantee is Guarantee.AT_MOST_ONCE:
        yield "an at-most-once job has nothing of its state after a restart, so its results restart from nothing"
    if job.tracking is not None:
        yield "an event that is tried again (tracking=) reaches its state behind others, or twice"
    if job.mode is Mode.REAL_TIME:
        yield "in real-time mode an epoch may hold other rows after a restart, so an event can reach its state twice"
