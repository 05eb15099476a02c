"""Whether a job whose process has ended is started again, and when.

    it was done, or was stopped           no
    a person has to decide                no: another driver took over, the ledger is lost, the plan is refused, ...
    what it needs does not answer         yes, once it has run, or has a past; before that the address may be wrong
    its code or its sink fails on a row   a few times, then no: it would fail for ever
    the same failure again and again      many times, then no; a run that is to end has less patience
    anything else                         yes

What is limited is how often a job is started: while no epoch gets done, two starts are further and further apart, up to
a minute. So one that dies at once is waited for longer and longer; one that has worked for a minute and is killed by
somebody else is started at once, since a pause would only take from the time it has until the next kill. However good
the reasons are, there is a limit per hour. A job that waits for a broker that is away for long stays below it.
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
"""So often a job may fail on its rows without an epoch in between: what its code asks for may be there again."""

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
    place: str | None = None  # where the next one goes on, in words; None where it never got so far as to know
    epochs: int = 0  # how many it has done
    final: str = ""  # why it is not to be started again
    is_of_a_row: bool = False
    is_passing: bool = False  # is it the nature of such a failure to pass?
    is_refused: bool = False  # did nothing run at all?
    has_past: bool = False  # has the job got through an epoch before, whoever looked after it then?

    @classmethod
    def by(cls, error: LockgateError, before: Ended) -> Ended:
        """The end that an error is, of one that would have ended so before it."""
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
    """Why it is not started again."""

    why: str


@dataclass
class Restarts:
    """The restarts of one job so far."""

    per_hour: int = RESTARTS_PER_HOUR
    same_failures_max: int = SAME_FAILURES_MAX
    rng: random.Random = field(default_factory=random.Random)
    count: int = 0
    place: str | None = None  # where it goes on, as the last one knew that told it
    _at: deque[float] = field(default_factory=deque)
    _in_a_row: int = 0  # without an epoch in between
    _of_rows: int = 0  # failures on rows, without an epoch in between
    _same: int = 0  # failures like the last one, without an epoch in between
    _last: str = ""

    @property
    def has_run(self) -> bool:
        """Did it ever get so far as to know where it goes on?"""
        return self.place is not None

    def after(self, ended: Ended, now: float, *, lived: float = 0.0) -> float | GiveUp:
        """How many seconds to wait before the next start, or why there is none; `lived` is for how long it ran."""
        self.place = ended.place if ended.place is not None else self.place
        if ended.final:
            return GiveUp(ended.final)
        # After a power cut a broker may come back later than this machine: the address was right before.
        is_waited_for = self.has_run or (ended.has_past and ended.is_passing)
        if ended.is_refused and not is_waited_for:
            return GiveUp(PERSON)
        is_same = ended.why == self._last and not ended.epochs
        self._last = ended.why
        self._in_a_row = 0 if ended.epochs else self._in_a_row + 1
        self._of_rows = ended.is_of_a_row + (0 if ended.epochs else self._of_rows)
        self._same = 0 if ended.is_passing else 1 + (self._same if is_same else 0)
        if self._of_rows >= ROW_FAILURES_MAX:
            return GiveUp(f"it has failed on its events {self._of_rows} times in a row")
        if self._same >= self.same_failures_max:
            return GiveUp(f"it has failed in the same way {self._same} times in a row")
        while self._at and now - self._at[0] >= _HOUR:
            self._at.popleft()
        if len(self._at) >= self.per_hour:
            return GiveUp(f"it was started again {len(self._at)} times within an hour")
        self._at.append(now)
        self.count += 1
        apart = min(_PAUSE_MAX_SECONDS, _PAUSE_FIRST_SECONDS * 2.0 ** min(self._in_a_row, 16))
        # Jobs that one outage has ended do not come back all at once.
        chance = self.rng.uniform(0.5, 1.0)
        return max(_PAUSE_FIRST_SECONDS * chance, apart * chance - lived)
