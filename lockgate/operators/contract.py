"""The contract of a keyed operator: what it is given, what it gives back, and what it may rely on.

An operator is a function of a key's state, its new rows and the time. It does no I/O and asks no clock, so the same
epoch gives the same rows again whenever it is repeated; all that is said of recovery rests on that. Whoever runs it
keeps the state, tells the time and calls `step`:

    once a key and epoch    for every key that has rows in the epoch, or asked to be woken by now
    rows                    those of this key in this epoch, in the order of their source positions
    state                   what the last step returned; None where there is nothing yet
    time                    microseconds since 1970, as plain numbers: `Clock`

State is plain data (None, bool, int, float, str, bytes, Decimal, datetime, date, and tuples, lists and dicts of these):
it is stored for months and read by later versions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

Key = tuple[Any, ...]
Values = tuple[Any, ...]


class Time(Enum):
    """Which time moves an operator that has no rows."""

    NONE = "none"
    EVENT = "event"
    WALL = "processing"
    BOTH = "event and processing"


@dataclass(frozen=True, slots=True)
class Clock:
    """The time of an epoch.

    `before` is the watermark that the epochs before this one have acted on, so an event is late where what it belongs
    to ended at or before it. `now` is the watermark that this epoch acts on, once its rows are in. Both are 0 while
    nobody knows the time. `wall` is when the epoch was planned, and the same when it is repeated.
    """

    before: int
    now: int
    wall: int


@dataclass(frozen=True)
class Side:
    """One kind of rows that an operator gives: its columns as DDL, behind those of the key.

    With `keeps_row` every row of it is a row that came in, all its columns untouched, with these columns beside them;
    the operator then gives (number, *columns), with the number that the row came with. Without `adds_key` it has no
    columns but its own.
    """

    name: str
    columns: str
    keeps_row: bool = False
    adds_key: bool = True


class Outcome(NamedTuple):
    """What a step gives back."""

    state: Any  # None: forget the key
    rows: Sequence[tuple[int, Values]] = ()  # (index of the side, values)
    wake: int | None = None  # call again when the watermark is at this or later, also without rows
    wake_wall: int | None = None  # the same, by processing time


class StepFailed(Exception):
    """What the author's own code raised, and on which row if it was one; final where it must not be tried again."""

    def __init__(self, reason: str, number: int | None = None, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.number = number
        self.is_final = is_final


Watch = Callable[[Key, int | None], None]
"""Is told what the author's code gets next: a key, and the number of a row where it is that row alone. It may raise
StepFailed, and the code does not get it."""


class Operator(ABC):
    """What happens to the events of a key. It travels to the workers by pickle."""

    reads: tuple[str, ...]
    """The columns that it looks at: a row is (number, *values of these)."""

    sides: tuple[Side, ...]
    """What it gives; the first is the result proper."""

    time: Time = Time.NONE

    @abstractmethod
    def step(self, key: Key, state: Any, rows: Sequence[Values], clock: Clock) -> Outcome:
        """Take the rows of an epoch, and whatever the time brings, for one key."""

    def tell_rows(self, watch: Watch | None) -> None:
        """Tell of single rows from now on, or no more. Who gives the author's code no single rows has none to tell of;
        of keys tells whoever calls `step`."""
        return
