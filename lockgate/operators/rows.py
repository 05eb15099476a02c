"""Rows as a user's function gets them, and the rows that it returns.

An input row is Spark's own `Row`, so it reads as in every other function of a job. Its class is made once for a stream,
and a row costs no more than a tuple. An output row is checked here, while it is known from which event it came. If
Arrow refuses it later, in a batch of thousands, that event cannot be found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from types import GeneratorType
from typing import TYPE_CHECKING, Any, NamedTuple

from lockgate.operators.contract import StepFailed, Values
from lockgate.operators.statetypes import Convert, Type, converter, read_type

if TYPE_CHECKING:
    from pyspark.sql import Row


def row_maker(names: Sequence[str]) -> Callable[[Sequence[Any]], Row]:
    """A function that makes a `Row` with these names from values in their order."""
    from pyspark.sql import Row

    # Columns called count or index are columns, and not methods of a tuple.
    taken = set(dir(Row)) - {"count", "index"}
    columns = {name: property(itemgetter(place)) for place, name in enumerate(names) if name not in taken}
    made = type("Row", (Row,), {**columns, "__slots__": (), "__fields__": list(names)})
    return partial(tuple.__new__, made)


class Given(NamedTuple):
    """A column of what a function returns."""

    name: str
    type: str  # as Spark writes it
    is_nullable: bool


class Results:
    """Reads what a function returned: rows as dicts, tuples or Rows."""

    def __init__(self, columns: Sequence[Given], function: str) -> None:
        self._function = function
        self._names = tuple(column.name for column in columns)
        self._by_name = itemgetter(*self._names) if len(columns) > 1 else lambda one: (one[self._names[0]],)
        kinds = [_type_of(column) for column in columns]
        self._checks = [_check(column, kind) for column, kind in zip(columns, kinds, strict=True)]
        # Most rows have these classes and are within these bounds, so they need no conversion.
        self._exact = tuple(_exact(kind) for kind in kinds)
        self._bounds = [(place, kind.bound) for place, kind in enumerate(kinds) if kind and kind.bound]

    def rows(self, made: Any) -> Iterable[Any]:
        """The rows that a call returned, still as the user gave them."""
        if type(made) is GeneratorType or type(made) is list:
            return made
        if made is None:
            return ()
        if isinstance(made, str | bytes | Mapping) or not isinstance(made, Iterable):
            raise StepFailed(f"{self._function} gives an iterable of rows, or yields them, not {type(made).__name__}")
        return made

    def values(self, one: Any) -> Values:
        """One row as the values of its columns."""
        values = self._as_tuple(one)
        if tuple(map(type, values)) == self._exact:
            for place, bound in self._bounds:
                if not -bound <= values[place] < bound:
                    break
            else:
                return values
        return tuple([check(value) for value, check in zip(values, self._checks, strict=True)])

    def _as_tuple(self, one: Any) -> Values:
        if type(one) is not dict and hasattr(one, "asDict"):  # a Row
            one = one.asDict()
        if type(one) is dict or isinstance(one, Mapping):
            if len(one) == len(self._names):
                try:
                    return self._by_name(one)
                except KeyError:
                    pass
            missing = sorted(set(self._names) - set(one))
            told = f"lacks {missing}" if missing else f"has {sorted(set(one) - set(self._names))} beside it"
            raise StepFailed(f"the result {told}; its schema has {', '.join(self._names)}")
        if isinstance(one, tuple | list) and len(one) == len(self._names):
            return tuple(one)
        raise StepFailed(f"{one!r} is not a dict or tuple of ({', '.join(self._names)})")


def _type_of(column: Given) -> Type | None:
    try:
        return read_type(column.type)
    except ValueError:
        return None  # a type of Spark that state cannot have: Arrow checks its values


def _exact(kind: Type | None) -> type | None:
    return int if kind and kind.bound else kind.exact if kind else None


def _check(column: Given, kind: Type | None) -> Convert:
    convert = converter(kind) if kind else _as_it_is

    def check(value: Any) -> Any:
        if value is None:
            if column.is_nullable:
                return None
            raise StepFailed(f"{column.name} is NOT NULL, and the result has None for it")
        try:
            return convert(value)
        except ValueError as error:
            raise StepFailed(f"{column.name}: {error}") from None

    return check


def _as_it_is(value: Any) -> Any:
    return value
