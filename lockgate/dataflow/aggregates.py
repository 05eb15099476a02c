"""Aggregates by functions of the user, beside those that are SQL text.

    combine        two values make one, associative and commutative: one value is kept, as for a sum
    history        any function of all values: all of them are kept, and the plan says so
    first, last    by the order of the source, which SQL cannot promise in a stream

An aggregate is a description. The fold says how values are kept, SQL says which values, and Spark gives the types.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockgate.dataflow.origin import caller
from lockgate.dataflow.schema import parse_ddl
from lockgate.errors import BadJob
from lockgate.operators.aggregatefolds import Combine, First, History, Last
from lockgate.operators.fold import Fold

__all__ = ["combine", "first", "history", "last"]


@dataclass(frozen=True)
class Aggregate:
    """One aggregate that is not written as SQL.

    The type of the result is `type` as DDL, or else that of the SQL aggregate `typed_by`. If it `is_native`, that SQL
    gives the very same result, and Spark can run it without Python. Values are cast to the type `takes`, if any.
    """

    fold: Fold
    argument: str | None  # SQL; None if only the number of rows counts
    label: str  # for the plan
    type: str | None = None
    typed_by: str | None = None
    takes: str | None = None
    is_native: bool = False
    is_deterministic: bool = True

    @property
    def is_bounded(self) -> bool:
        """Is what it keeps bounded, however many events come?"""
        return self.fold.is_bounded

    def __str__(self) -> str:
        return self.label


def combine(argument: str, function: Callable[[Any, Any], Any], type: str, *, deterministic: bool = True) -> Aggregate:
    """Combine values two by two, with an associative and commutative function. One value is kept.

    Args:
        argument: SQL for the value of an event.
        function: takes two values and returns one.
        type: the type of the values and of the result, as Spark writes it.
        deterministic: False if the function can return something else for the same values.

    >>> print(combine("amount", max, "DOUBLE"))
    combine(amount)
    """
    example = 'aggregates.combine("amount", lambda a, b: max(a, b), "DOUBLE")'
    require_sql(argument, of="combine", example=example)
    _require_function(function, of="combine", example=example)
    _require_type(type, of="combine", example=example)
    return Aggregate(
        fold=Combine(function),
        argument=argument,
        label=f"combine({argument})",
        type=type,
        takes=type,
        is_deterministic=deterministic,
    )


def history(argument: str, function: Callable[[list[Any]], Any], type: str, *, deterministic: bool = True) -> Aggregate:
    """Apply a function to the list of all values, in the order of the source. All values are kept.

    The result is null if there are no values.

    Args:
        argument: SQL for the value of an event.
        function: takes the list and returns the result.
        type: the type of the result, as Spark writes it.
        deterministic: False if the function can return something else for the same values.

    >>> from statistics import median
    >>> print(history("amount", median, "DOUBLE"))
    history(amount), keeps history
    """
    example = 'aggregates.history("amount", lambda values: statistics.median(values), "DOUBLE")'
    require_sql(argument, of="history", example=example)
    _require_function(function, of="history", example=example)
    _require_type(type, of="history", example=example)
    return Aggregate(
        fold=History(function),
        argument=argument,
        label=f"history({argument}), keeps history",
        type=type,
        is_deterministic=deterministic,
    )


def first(argument: str) -> Aggregate:
    """Take the first value that is not null, in the order of the source.

    Args:
        argument: SQL for the value of an event.

    >>> print(first("status"))
    first(status)
    """
    require_sql(argument, of="first", example='aggregates.first("status")')
    return Aggregate(fold=First(), argument=argument, label=f"first({argument})", typed_by=f"first({argument})")


def last(argument: str) -> Aggregate:
    """Take the last value that is not null, in the order of the source.

    Args:
        argument: SQL for the value of an event.

    >>> print(last("status"))
    last(status)
    """
    require_sql(argument, of="last", example='aggregates.last("status")')
    return Aggregate(fold=Last(), argument=argument, label=f"last({argument})", typed_by=f"last({argument})")


def require_sql(argument: object, of: str, example: str) -> None:
    """Refuse what is no SQL text."""
    if not (isinstance(argument, str) and argument.strip()):
        raise BadJob(
            f"{of} takes what it is about as SQL text, not {argument!r}", where=f"declared at {caller()}", fix=example
        )


def _require_function(function: object, of: str, example: str) -> None:
    if not callable(function):
        raise BadJob(f"{of} takes a function, not {function!r}", where=f"declared at {caller()}", fix=example)


def _require_type(type: object, of: str, example: str) -> None:
    if not (isinstance(type, str) and _is_type(type)):
        raise BadJob(
            f"{of} takes the type of its result as Spark writes it, not {type!r}",
            where=f"declared at {caller()}",
            fix=example,
        )


def _is_type(text: str) -> bool:
    try:
        columns = parse_ddl(f"value {text}", where="").columns
    except BadJob:
        return False
    return len(columns) == 1 and columns[0].is_nullable  # NOT NULL is no part of a type
