"""Decide whether a job restarts after its process has ended, and when.

    it was done, or was stopped           no
    a person has to decide                no: another driver took over, the ledger is lost, the plan is refused, ...
    a service does not answer             yes, if the job has run, or has a history; otherwise the address may be wrong
    its code or its sink fails on a row   a few times, then no: it would fail forever
    the same failure again and again      many times, then no; fewer times for a run until it is caught up
    anything else                         yes

While no epoch gets done, the time between two starts grows, up to a minute. So a job that dies at once waits longer and
longer. A job that ran for a minute and was killed from outside restarts at once, because a pause would only take time
away before the next kill. In any case there is a limit of restarts per hour. A job that waits for a broker through a
long outage stays below it.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta

from lockgate.errors import (
    BadMachine,
    CheckpointDamaged,
    EpochFailed,
    EpochTooLong,
    Fenced,
    FunctionFailed,
    InvariantBroken,
    LedgerMismatch,
    LockgateError,
    RecordsGone,
    Refused,
    RowRefused,
    SourceChanged,
    TimeRefused,
    TooManyLetters,
    TopicGone,
    UnparsableValue,
    Unreachable,
    UnusableTime,
)

RESTARTS_PER_HOUR = 100
ROW_FAILURES_MAX = 3
"""How often a job may fail on its rows without an epoch in between: a service that its code uses may recover."""

SAME_FAILURES_MAX = 30
SAME_FAILURES_MAX_TO_THE_END = 3

PERSON = "a person has to decide"
_HOUR = timedelta(hours=1).total_seconds()
_PAUSE_FIRST_SECONDS = 1.0
_PAUSE_MAX_SECONDS = 60.0
_FOR_A_PERSON = (
    Fenced,
    LedgerMismatch,
    CheckpointDamaged,
    TopicGone,
    RecordsGone,
    SourceChanged,
    EpochTooLong,
    TimeRefused,
    TooManyLetters,
    InvariantBroken,
)
_OF_A_ROW = (UnparsableValue, UnusableTime, FunctionFailed, RowRefused)


@dataclass(frozen=True)
class Ended:
    """How the process of a job ended, or how it would end if it died now."""

    why: str  # in a line
    place: str | None = None  # where the next run continues, in words; None if it ended before it knew
    epochs: int = 0  # how many epochs it has done
    final: str = ""  # why there is no restart
    is_of_a_row: bool = False
    is_passing: bool = False  # do such failures usually pass?
    is_refused: bool = False  # did it end before anything ran?
    has_past: bool = False  # has the job done an epoch before, under any supervisor?

    @classmethod
    def by(cls, error: LockgateError, before: Ended) -> Ended:
        """The end with this error; `before` is how it would have ended before the error."""
        is_away = isinstance(error, Unreachable | BadMachine)
        is_final = isinstance(error, _FOR_A_PERSON) or (isinstance(error, Refused) and not is_away)
        return cls(
            why=error.what.splitlines()[0],
            place=before.place,
            epochs=before.epochs,
            final=before.final or (PERSON if is_final else ""),
            is_of_a_row=isinstance(error, _OF_A_ROW),
            is_passing=is_away or isinstance(error, EpochFailed),
            is_refused=isinstance(error, Refused),
            has_past=before.has_past,
        )


@dataclass(frozen=True)
class GiveUp:
    """Why the job does not restart."""

    why: str


@dataclass
class Restarts:
    """The restarts of one job so far."""

    per_hour: int = RESTARTS_PER_HOUR
    same_failures_max: int = SAME_FAILURES_MAX
    rng: random.Random = field(default_factory=random.Random)
    count: int = 0
    place: str | None = None  # where it continues, from the last process that knew it
    _at: deque[float] = field(default_factory=deque)
    _in_a_row: int = 0  # without an epoch in between
    _of_rows: int = 0  # failures on rows, without an epoch in between
    _same: int = 0  # failures like the last one, without an epoch in between
    _last: str = ""

    @property
    def has_run(self) -> bool:
        """Has a process of the job ever known where it continues?"""
        return self.place is not None

    def after(self, ended: Ended, now: float, *, lived: float = 0.0) -> float | GiveUp:
        """How many seconds to wait before the next start, or why there is none; `lived` is how long the process ran."""
        self.place = ended.place if ended.place is not None else self.place
        if ended.final:
            return GiveUp(ended.final)
        # After a power cut a broker may start later than this machine: the address was right before.
        is_waited_for = self.has_run or (ended.has_past and ended.is_passing)
        if ended.is_refused and not is_waited_for:
            return GiveUp(PERSON)
        is_same = ended.why == self._last and not ended.epochs
        self._last = ended.why
        self._in_a_row = 0 if ended.epochs else self._in_a_row + 1
        self._of_rows = ended.is_of_a_row + (0 if ended.epochs else self._of_rows)
        self._same = 0 if ended.is_passing else 1 + (self._same if is_same else 0)
        if self._of_rows >= ROW_FAILURES_MAX:
            return GiveUp(f"it failed on its events {self._of_rows} times in a row")
        if self._same >= self.same_failures_max:
            return GiveUp(f"it failed in the same way {self._same} times in a row")
        while self._at and now - self._at[0] >= _HOUR:
            self._at.popleft()
        if len(self._at) >= self.per_hour:
            return GiveUp(f"it restarted {len(self._at)} times within an hour")
        self._at.append(now)
        self.count += 1
        apart = min(_PAUSE_MAX_SECONDS, _PAUSE_FIRST_SECONDS * 2.0 ** min(self._in_a_row, 16))
        # Jobs that one outage ended do not all restart at once.
        chance = self.rng.uniform(0.5, 1.0)
        return max(_PAUSE_FIRST_SECONDS * chance, apart * chance - lived)
