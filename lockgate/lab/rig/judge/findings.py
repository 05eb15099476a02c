"""What a checker has found.

HOLDS           looked at, with enough to go by, and nothing is wrong
BROKEN          something is wrong that was promised not to happen
UNKNOWN         there was not enough to go by; never counts as holding
NOT_PROMISED    whatever was found, the declared guarantee allows it; it is counted, and decides nothing

Several of them together, as those of a trial or of all trials:

    any broken     -> broken
    any unknown    -> unknown, and so is nothing at all
    else           -> holds
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from lockgate.lab.rig.history import Content, Read, Trace


class Outcome(Enum):
    """How a check ended, and a trial, and a proof; the last one is for checks alone."""

    HOLDS = "holds"
    BROKEN = "broken"
    UNKNOWN = "unknown"
    NOT_PROMISED = "not promised"


_ABOUT_THE_TRIAL = ("tried", "recovery")  # that they hold says nothing of the guarantee


def combine(outcomes: Iterable[Outcome]) -> Outcome:
    """The outcome of several; one that is not promised decides nothing."""
    found = set(outcomes)
    if Outcome.BROKEN in found:
        return Outcome.BROKEN
    return Outcome.HOLDS if Outcome.HOLDS in found and Outcome.UNKNOWN not in found else Outcome.UNKNOWN


def outcome_of(checks: Mapping[str, Outcome]) -> Outcome:
    """The outcome of a trial, from those of its checkers by name."""
    outcome = combine(checks.values())
    told = combine(one for name, one in checks.items() if name not in _ABOUT_THE_TRIAL)
    return told if outcome is Outcome.HOLDS else outcome


@dataclass(frozen=True)
class Subject:
    """The one row that shows what is wrong."""

    output: str
    content: Content
    trace: Trace | None  # None: its origin is not known
    reads: tuple[Read, ...] = ()  # none where it was lost


@dataclass(frozen=True)
class Finding:
    """The end of one check over all outputs."""

    checker: str
    outcome: Outcome
    count: int = 0  # of what was found, whether it was promised not to happen or not
    reason: str = ""  # why it is broken or unknown
    subject: Subject | None = None


class Tally:
    """What a checker comes across, output by output: broken outweighs unknown, unknown outweighs holds."""

    def __init__(self, checker: str) -> None:
        self._checker = checker
        self._count = 0
        self._has_held = False
        self._broken: tuple[str, Subject | None] | None = None
        self._unknown: str | None = None

    def hold(self) -> None:
        """An output was looked at; what is wrong with it is noted separately."""
        self._has_held = True

    def break_(self, reason: str, subject: Subject | None, *, count: int = 1) -> None:
        """Something is wrong that was promised not to happen."""
        self._count += count
        self._broken = self._broken or (reason, subject)

    def note(self, count: int) -> None:
        """So much of it was found where it is allowed."""
        self._count += count

    def doubt(self, reason: str) -> None:
        """There is not enough to go by."""
        self._unknown = self._unknown or reason

    def finding(self) -> Finding:
        """All of it together."""
        if self._broken is not None:
            reason, subject = self._broken
            return Finding(self._checker, Outcome.BROKEN, self._count, reason, subject)
        if self._unknown is not None:
            return Finding(self._checker, Outcome.UNKNOWN, self._count, self._unknown)
        return Finding(self._checker, Outcome.HOLDS if self._has_held else Outcome.NOT_PROMISED, self._count)
