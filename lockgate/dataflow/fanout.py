"""Fan-out: several functions over the same event, side by side, joined when its time is over.

A result is worth little after its deadline, and a part of it is worth more than nothing. So a function that fails, or
has not answered in time, is missing in the result. The event continues with the other scores, marked as partial, or
becomes a dead letter. What is in a result depends on time, so a fan-out is never deterministic.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from types import MappingProxyType, NoneType, SimpleNamespace, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from lockgate.dataflow.duration import Duration, as_duration
from lockgate.dataflow.origin import caller
from lockgate.dataflow.schema import Schema, parse_ddl, quote
from lockgate.dataflow.steps import RowFunction, Step
from lockgate.errors import BadJob

IN_FLIGHT = 8
"""Events of a task whose functions run at the same time, by default."""

MARKS = "is_partial BOOLEAN, missing ARRAY<STRING>, why_missing ARRAY<STRING>"
"""The columns beside the scores: whether some are missing, which ones, and why each of them is."""

_TYPES = {float: "DOUBLE", int: "BIGINT", str: "STRING", bool: "BOOLEAN"}
_SCORE = "DOUBLE"  # what a function without an annotation gives

_EXAMPLE = (
    '.fan_out(deadline="20 milliseconds", schema="amount DOUBLE, place DOUBLE", amount=by_amount, place=by_place)'
)


class Partial(Enum):
    """What happens to an event if a fan-out lacks some of its values.

    | member | the event |
    |---|---|
    | `PUBLISH` | goes on, with nulls, `is_partial`, `missing` and `why_missing` |
    | `DEAD_LETTER` | becomes a dead letter |

    >>> scored = orders.fan_out(deadline="20ms", score=lambda row: row.amount / 1000, partial=Partial.DEAD_LETTER)
    """

    PUBLISH = "publish"
    DEAD_LETTER = "dead letter"


@dataclass(frozen=True, eq=False, kw_only=True)
class FanOut(Step):
    """Every event with its columns, the values that functions gave for it in time, and which of them are missing."""

    functions: Mapping[str, RowFunction]
    schema: str
    deadline: timedelta
    partial: Partial
    in_flight: int

    def scores(self, where: str) -> Schema:
        """The columns that its functions give."""
        return parse_ddl(self.schema, where)


def describe_fan_out(
    before: Step,
    functions: Mapping[str, Any],
    *,
    deadline: Duration,
    schema: str | None,
    partial: Partial,
    in_flight: int,
) -> FanOut:
    """The described step; refuses what has no meaning."""
    origin = caller()
    where = f"declared at {origin}"
    if not functions or not all(map(callable, functions.values())):
        wrong = [f"{name}={function!r}" for name, function in functions.items() if not callable(function)]
        raise BadJob(
            f"fan_out takes functions of a row, at least one, not {', '.join(wrong) or 'none'}",
            where=where,
            fix=_EXAMPLE,
        )
    _refuse_async(functions, where)
    if schema is None:
        schema = ", ".join(f"{quote(name)} {_type_of(name, one, where)}" for name, one in functions.items())
    if not isinstance(schema, str):
        raise BadJob(f"schema= takes the types of the scores as DDL, not {schema!r}", where=where, fix=_EXAMPLE)
    _check_scores(parse_ddl(schema, where), functions, where)
    if not isinstance(partial, Partial):
        raise BadJob(f"partial= takes a Partial, not {partial!r}", where=where, fix="partial=Partial.PUBLISH")
    if not isinstance(in_flight, int) or isinstance(in_flight, bool) or in_flight < 1:
        raise BadJob(f"in_flight= takes a whole number above zero, not {in_flight!r}", where=where, fix="in_flight=8")
    return FanOut(
        inputs=(before,),
        origin=origin,
        functions=MappingProxyType(dict(functions)),
        schema=schema,
        deadline=as_duration(deadline, of="the deadline of a fan-out"),
        partial=partial,
        in_flight=in_flight,
    )


def _refuse_async(functions: Mapping[str, Any], where: str) -> None:
    """Refuse a function that only makes a coroutine when it is called, which is no score."""
    for name, function in functions.items():
        forms = (function, type(function).__call__)
        if any(inspect.iscoroutinefunction(form) or inspect.isasyncgenfunction(form) for form in forms):
            raise BadJob(
                f"function {name!r} is async: a call of it gives a coroutine, for which nothing waits",
                where=where,
                fix=f"write it with def, and a client that waits for its answer: {name} has a thread of its own, and"
                " the others do not wait for it",
            )


def _type_of(name: str, function: Callable[..., Any], where: str) -> str:
    """The type of a function's column, by the annotation of what it returns."""
    told = _annotation(function)
    options = [one for one in get_args(told) if one is not NoneType]
    is_optional = get_origin(told) in (Union, UnionType) and len(options) == 1
    kind = options[0] if is_optional else told
    if kind is Any or kind is inspect.Signature.empty:
        return _SCORE
    for known, ddl in _TYPES.items():
        if kind is known:
            return ddl
    shown = told if isinstance(told, str) else inspect.formatannotation(told)
    raise BadJob(
        f"function {name!r} returns {shown}, which does not say the type of its column",
        where=where,
        fix=f'say it: schema="{name} {_SCORE}, ...", with all functions; or let it return float, int, str or bool',
    )


def _annotation(function: Callable[..., Any]) -> Any:
    """The type that a function declares for its result; its text, if that names no type."""
    try:
        told = inspect.signature(function).return_annotation
    except (TypeError, ValueError):
        return inspect.Signature.empty  # a function of C without a signature
    if not isinstance(told, str):
        return told
    while isinstance(function, functools.partial):
        function = function.func
    code: Any = function if hasattr(function, "__globals__") else type(function).__call__
    alone = SimpleNamespace(
        __annotations__={"return": told}
    )  # its parameters may name types that exist for type checkers only
    try:
        return get_type_hints(alone, globalns=getattr(inspect.unwrap(code), "__globals__", {}))["return"]
    except Exception:  # noqa: BLE001 - the annotation is the user's own code
        return told


def _check_scores(scores: Schema, functions: Mapping[str, Any], where: str) -> None:
    """Refuse a schema that does not fit the functions."""
    without_type = [name for name in functions if name not in scores.names]
    without_function = [name for name in scores.names if name not in functions]
    if without_type or without_function:
        told = [
            *(f"function {name!r} has no type in the schema" for name in without_type),
            *(f"column {name!r} of the schema has no function" for name in without_function),
        ]
        raise BadJob(
            "; ".join(told),
            where=where,
            fix=f"name each function as its column, e.g. {_EXAMPLE}",
        )
    strict = [column.name for column in scores.columns if not column.is_nullable]
    if strict:
        raise BadJob(
            f"{', '.join(strict)} is NOT NULL, and a score that is missing is null",
            where=where,
            fix="remove NOT NULL; with partial=Partial.DEAD_LETTER no event with a missing score passes",
        )
    taken = [name for name in scores.names if name.lower() in parse_ddl(MARKS, where).names]
    if taken:
        raise BadJob(
            f"{', '.join(taken)} is the name of a column that every fan-out adds",
            where=where,
            fix="give the function another name",
        )
