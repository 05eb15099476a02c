"""Rows and flows: what a reference of a spec gives, and how each column behaves if events repeat or get lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Undetermined(Exception):
    """The docs do not say, or this interpreter cannot say, what a job has to give here."""


class Effect(Enum):
    """What a column holds if the state behind it has counted an event twice, or not at all."""

    EVENT = "the same"  # it is the event's own, or names the group
    SPAN = "the same if events repeat, another if one is lost"  # the bounds of a session
    COUNT = "a number of events"
    GROWS = "never less if events repeat"
    SHRINKS = "never more if events repeat"
    OTHER = "anything"


Place = tuple[Any, ...]
"""The source position of a row: source, partition, number; then which of the rows of a flat_map it is."""


@dataclass(frozen=True, eq=False)
class Row:
    """A row, which exists if all of its guards are true."""

    values: Mapping[str, Any]
    epoch: int = 0
    place: Place | None = None
    time: int | None = None
    guards: tuple[Any, ...] = ()
    can_be_late: bool = True
    came: float | None = None  # of a row without a place: the time of its output; between two epochs if time closed it

    @property
    def out(self) -> float | None:
        """The epoch in which it is written; None if nothing says it."""
        return self.came if self.place is None else self.epoch


@dataclass(frozen=True)
class Letter:
    """An event that a step cannot use. `place` is its source position, and which row of it; None if it has none."""

    step: str
    place: Place | None
    is_stateful: bool = False  # does the step stand behind state?


@dataclass(frozen=True)
class Flow:
    """All rows of a reference.

    `is_stateful`: a step with state stands before it. `is_grouped`: a row speaks of many events. `is_loose`: which rows
    there are depends on what the state has counted; `is_loose_if_lost`: only if events are lost.
    """

    rows: tuple[Row, ...]
    effects: Mapping[str, Effect]
    is_stateful: bool = False
    is_grouped: bool = False
    is_loose: bool = False
    is_loose_if_lost: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.effects)


def by_key(rows: Iterable[Row], keys: tuple[str, ...]) -> dict[tuple[Any, ...], list[Row]]:
    """The rows of each key; null is a key like others."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.values[name] for name in keys), []).append(row)
    return groups
