"""The contract of a keyed operator: what it receives, what it returns, and what it may rely on.

An operator is a function of a key's state, its new rows and the time. It does no I/O and asks no clock, so a repeated
epoch gives the same rows. Recovery depends on that. The code that runs an operator keeps the state, gives the time and
calls `step`:

    once a key and epoch    for every key that has rows in the epoch, or asked to be called by now
    rows                    those of this key in this epoch, in the order of their source positions
    state                   what the last step returned; None if there is nothing yet
    time                    microseconds since 1970, as plain numbers: `Clock`

State is plain data (None, bool, int, float, str, bytes, Decimal, datetime, date, and lists, tuples, dicts and sets of
these, see `encoding`): it is stored for months and read by later versions. What is read back equals what was returned.
Lists are the cheapest containers to store, so an operator keeps its own parts in them.
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

    `before` is the watermark that the epochs before this one have acted on. An event is late if what it belongs to
    ended at or before it. `now` is the watermark that this epoch acts on, after its rows. Both are 0 while the time is
    unknown. `wall` is when the epoch was planned; a repeat has the same.
    """

    before: int
    now: int
    wall: int


@dataclass(frozen=True)
class Side:
    """One kind of rows that an operator gives: its columns as DDL, after those of the key.

    With `keeps_row` each of its rows is an input row, with all its columns unchanged and these columns beside them. The
    operator then gives (number, *columns), with the number of the input row. Without `adds_key` it has only its own
    columns.
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
    """What the user's own code raised, and on which row if it was one; final if it must not be retried."""

    def __init__(self, reason: str, number: int | None = None, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.number = number
        self.is_final = is_final


Watch = Callable[[Key, int | None], None]
"""Receives what the user's code gets next: a key, and the number of a row if it gets only that row. It may raise
StepFailed; then the code does not get it."""


class Operator(ABC):
    """What happens to the events of a key. Pickle carries it to the workers."""

    reads: tuple[str, ...]
    """The columns that it reads: a row is (number, *values of these)."""

    sides: tuple[Side, ...]
    """What it gives; the first side is the result."""

    time: Time = Time.NONE

    @abstractmethod
    def step(self, key: Key, state: Any, rows: Sequence[Values], clock: Clock) -> Outcome:
        """Take the rows of an epoch, and the time, for one key."""

    def watch_rows(self, watch: Watch | None) -> None:
        """Report single rows from now on, or stop. An operator that gives the user's code no single rows has none to
        report; the caller of `step` reports keys."""
        return
