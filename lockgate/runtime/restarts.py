"""Whether a job whose process has ended is started again, and when.

    it was done, or was stopped          no
    a person has to decide               no: another driver took over, the ledger or a file is lost, the plan is refused
    its code fails on an event           a few times, then no: it would fail for ever
    anything else                        yes, after a pause; longer ones while it gets nowhere, up to a minute

However good the reasons are, there is a limit per hour. A job that waits for a broker that is away for long stays below
it, because its pauses are long; one that dies after every other epoch does not.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta

from lockgate.errors import (
    BadJob,
    CheckpointDamaged,
    EpochTooLong,
    Fenced,
    FunctionFailed,
    InvariantBroken,
    LedgerMismatch,
    LockgateError,
    OverClaim,
    Refused,
    TooManyLetters,
    TopicGone,
    UnparsableValue,
    UnusableTime,
)

RESTARTS_PER_HOUR = 100
SAME_EVENT_MAX = 3
"""So often a job may fail on its own events without an epoch in between: what its code asks for may be there again."""

_HOUR = timedelta(hours=1).total_seconds()
_PAUSE_FIRST_SECONDS = 1.0
_PAUSE_MAX_SECONDS = 60.0
_FOR_A_PERSON = (
    BadJob,
    OverClaim,
    Fenced,
    LedgerMismatch,
    CheckpointDamaged,
    TopicGone,
    EpochTooLong,
    TooManyLetters,
    InvariantBroken,
)
_OF_AN_EVENT = (UnparsableValue, UnusableTime, FunctionFailed)


@dataclass(frozen=True)
class Ended:
    """How the process of a job ended."""

    why: str  # in a line
    place: str | None = None  # where the next one goes on, in words; None where it never got so far as to know
    epochs: int = 0  # how many it has done
    final: str = ""  # why it is not to be started again
    is_of_an_event: bool = False

    @classmethod
    def by(cls, error: LockgateError, place: str | None, epochs: int) -> Ended:
        """The end that an error is; what is refused before anything ran at all is refused for ever."""
        is_final = isinstance(error, _FOR_A_PERSON) or (isinstance(error, Refused) and place is None)
        return cls(
            why=error.what.splitlines()[0],
            place=place,
            epochs=epochs,
            final="a person has to decide" if is_final else "",
            is_of_an_event=isinstance(error, _OF_AN_EVENT),
        )


@dataclass(frozen=True)
class GiveUp:
    """Why it is not started again."""

    why: str


@dataclass
class Restarts:
    """The restarts of one job so far."""

    per_hour: int = RESTARTS_PER_HOUR
    rng: random.Random = field(default_factory=random.Random)
    count: int = 0
    _at: deque[float] = field(default_factory=deque)
    _in_a_row: int = 0  # without an epoch in between
    _failed: int = 0  # on its own events, without an epoch in between

    def after(self, ended: Ended, now: float) -> float | GiveUp:
        """How many seconds to wait before the next start, or why there is none."""
        if ended.final:
            return GiveUp(ended.final)
        self._in_a_row = 0 if ended.epochs else self._in_a_row + 1
        self._failed = ended.is_of_an_event + (0 if ended.epochs else self._failed)
        if self._failed >= SAME_EVENT_MAX:
            return GiveUp(f"it has failed on its events {self._failed} times in a row")
        while self._at and now - self._at[0] >= _HOUR:
            self._at.popleft()
        if len(self._at) >= self.per_hour:
            return GiveUp(f"it was started again {len(self._at)} times within an hour")
        self._at.append(now)
        self.count += 1
        pause = min(_PAUSE_MAX_SECONDS, _PAUSE_FIRST_SECONDS * 2.0 ** min(self._in_a_row, 16))
        # Jobs that one outage has ended do not come back all at once.
        return pause * self.rng.uniform(0.5, 1.0)
