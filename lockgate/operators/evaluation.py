"""What is computed from the rows of a window: aggregates, kept as folds, or the result of a user's function.

An evaluation keeps plain data that grows with the rows. What is kept of two groups can be merged, for sessions that
meet and for the slices of a sliding window. Nothing that was passed in is changed in place, so a repeated step finds
what it found before.

    Folds     one row for each window; keeps what its folds keep, not the rows themselves
    Whole     any number of rows for each window; keeps every row until the window is done

Rows come epoch by epoch, and it is chance which epoch a row is in. So rows that are ordered by time are also ordered by
source position within one time, and a replay gives what the live run gave.

A row is (number, time, *values of `reads`, and what else the operator reads).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from lockgate.operators.contract import Key, StepFailed, Values
from lockgate.operators.fold import Fold

TIME = 1
"""The place of the time in a row; what an evaluation reads follows it."""

WholeFunction = Callable[[Key, list[Values]], Iterable[Values]]


class Evaluation(ABC):
    """What is kept of the rows of a window, and the result that they give."""

    reads: tuple[str, ...]
    """The columns that it reads, beside the time."""

    columns: tuple[str, ...]
    """What it gives: name and type of each column, as DDL."""

    @abstractmethod
    def take(self, kept: Any, rows: Sequence[Values]) -> Any:
        """What is kept together with these rows; `kept` is None if there is nothing yet."""

    @abstractmethod
    def merge(self, parts: Sequence[Any]) -> Any:
        """What is kept of several groups that become one, in their order."""

    @abstractmethod
    def results(self, key: Key, kept: Any) -> Iterable[Values]:
        """The result over all rows that were taken, as of now."""


@dataclass(frozen=True)
class Aggregate:
    """One aggregate: the column that it gives, as DDL, its fold, and the column that feeds it; None counts rows."""

    column: str
    fold: Fold
    read: str | None


@dataclass(frozen=True)
class Folds(Evaluation):
    """Aggregates. `identity` is a column that distinguishes events, for the folds that need one."""

    aggregates: tuple[Aggregate, ...]
    identity: str | None = None
    reads: tuple[str, ...] = field(init=False)
    columns: tuple[str, ...] = field(init=False)
    _feeds: tuple[tuple[Fold, int, int | None], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        named = [aggregate.read for aggregate in self.aggregates] + [self.identity]
        reads = tuple(dict.fromkeys(name for name in named if name is not None))
        # A count of rows is fed with their number, which is never null.
        places: dict[str | None, int] = {None: 0, **{name: TIME + 1 + at for at, name in enumerate(reads)}}
        object.__setattr__(self, "reads", reads)
        object.__setattr__(self, "columns", tuple(aggregate.column for aggregate in self.aggregates))
        object.__setattr__(
            self,
            "_feeds",
            tuple(
                (
                    aggregate.fold,
                    places[aggregate.read],
                    places[self.identity] if aggregate.fold.needs_identity else None,
                )
                for aggregate in self.aggregates
            ),
        )

    def take(self, kept: Any, rows: Sequence[Values]) -> Any:
        """Add the rows to every fold."""
        grown = []
        for at, (fold, value_at, identity_at) in enumerate(self._feeds):
            value = fold.empty() if kept is None else kept[at]
            add = fold.add
            for row in rows:
                try:
                    value = add(value, row[value_at], 0 if identity_at is None else row[identity_at])
                except StepFailed as failed:
                    raise StepFailed(failed.reason, row[0]) from failed
            grown.append(value)
        return grown

    def merge(self, parts: Sequence[Any]) -> Any:
        """Merge fold by fold."""
        merged = parts[0]
        for part in parts[1:]:
            merged = [fold.merge(one, two) for (fold, _, _), one, two in zip(self._feeds, merged, part, strict=True)]
        return merged

    def results(self, key: Key, kept: Any) -> Iterable[Values]:
        """One row: the result of every fold."""
        return [tuple(fold.result(value) for (fold, _, _), value in zip(self._feeds, kept, strict=True))]


@dataclass(frozen=True)
class Whole(Evaluation):
    """A function of the key and all rows of a window, each the values of `values`; it may raise `StepFailed`.

    With `place`, a column that sorts as source positions do, rows are in the order of their time and place. Without it
    they are in the order of arrival.
    """

    function: WholeFunction
    values: tuple[str, ...]
    columns: tuple[str, ...]
    place: str | None = None
    reads: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads", (*self.values, *((self.place,) if self.place else ())))

    def take(self, kept: Any, rows: Sequence[Values]) -> Any:
        """Keep the rows, each with its time, and with its place if that is read."""
        end = TIME + 1 + len(self.reads)
        return [*(kept or ()), *([*row[TIME:end]] for row in rows)]

    def merge(self, parts: Sequence[Any]) -> Any:
        """All rows of all groups."""
        return parts[0] if len(parts) == 1 else [row for part in parts for row in part]

    def results(self, key: Key, kept: Any) -> Iterable[Values]:
        """The result of the function."""
        return self.function(key, self.rows(kept))

    def rows(self, kept: Any) -> list[Values]:
        """The rows that are kept, in their order."""
        if self.place is None:
            return [tuple(row[1:]) for row in kept]
        return [tuple(row[1:-1]) for row in sorted(kept, key=itemgetter(0, -1))]


def time_of(row: Values) -> int:
    """The time of a row; StepFailed if it has none."""
    time: int | None = row[TIME]
    if time is None:
        raise StepFailed("its time is null, so it belongs to no window", row[0])
    return time
