"""Fan-out: several functions over the same event, side by side, joined when its time is over.

A result is worth little behind its deadline, and most of it is worth more than nothing. So a function that has not
answered in time is left out, and so is one that fails: what is there goes on, marked as partial, or the event becomes a
dead letter. What is in a result hangs on time, therefore a fan-out is never deterministic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from types import MappingProxyType
from typing import Any

from lockgate.dataflow.duration import Duration, as_duration
from lockgate.dataflow.origin import caller
from lockgate.dataflow.schema import Schema, parse_ddl
from lockgate.dataflow.steps import RowFunction, Step
from lockgate.errors import BadJob

IN_FLIGHT = 8
"""Events of a task whose functions run at the same time, unless the author says otherwise."""

MARKS = "is_partial BOOLEAN, missing ARRAY<STRING>, why_missing ARRAY<STRING>"
"""What stands beside the scores: whether some are missing, which, and why each of them is."""

_EXAMPLE = (
    '.fan_out(deadline="20 milliseconds", schema="amount DOUBLE, place DOUBLE", amount=by_amount, place=by_place)'
)


class Partial(Enum):
    """What becomes of an event of which some scores are missing."""

    PUBLISH = "publish"
    DEAD_LETTER = "dead letter"


@dataclass(frozen=True, eq=False, kw_only=True)
class FanOut(Step):
    """Every event with its columns, the values that functions give for it in time, and which of these are missing."""

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
    schema: str,
    partial: Partial,
    in_flight: int,
) -> FanOut:
    """The step that was asked for; refuses what cannot mean anything."""
    origin = caller()
    where = f"declared at {origin}"
    if not functions or not all(map(callable, functions.values())):
        wrong = [f"{name}={function!r}" for name, function in functions.items() if not callable(function)]
        raise BadJob(
            f"fan_out takes functions of a row, at least one, not {', '.join(wrong) or 'none'}",
            where=where,
            fix=_EXAMPLE,
        )
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


def _check_scores(scores: Schema, functions: Mapping[str, Any], where: str) -> None:
    """Refuse a schema that is not that of the functions."""
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
            fix="leave NOT NULL away; partial=Partial.DEAD_LETTER lets no event pass of which a score is missing",
        )
    taken = [name for name in scores.names if name.lower() in parse_ddl(MARKS, where).names]
    if taken:
        raise BadJob(
            f"{', '.join(taken)} is the name of a column that every fan-out adds",
            where=where,
            fix="give the function another name",
        )
