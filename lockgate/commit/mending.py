"""A ledger as a person meets it: to be looked at and mended, without Spark, beside a driver that may run.

Looking changes nothing and shuts nobody out. To replace what it says is to compare and swap: what a person was told
about doubled and lost rows is true only of the ledger that was looked at. A driver that runs stops at its next look,
because the run id is not its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from lockgate.commit.ledger import Entry
from lockgate.errors import Failed, InvariantBroken


class MendableLedger(ABC):
    """The ledger of one job in one system."""

    where: str
    name: str  # what it is and where it lies, for people
    option: str  # how a command is told where it lies
    facts: Mapping[str, str]  # the same for programs
    missing: str  # what is not there where the job has no ledger

    @property
    def exists(self) -> bool:
        """Is there a ledger of this job?"""
        try:
            return self.peek() is not None
        except InvariantBroken:
            return True

    @abstractmethod
    def peek(self) -> Entry | None:
        """What it says; None where it says nothing, InvariantBroken where that cannot be read and may be replaced."""

    @abstractmethod
    def replace(self, seen: Entry | None, entry: Entry) -> None:
        """Write an entry in place of the one that was seen; Failed where the ledger says something else by now."""

    def waiting(self) -> Sequence[str]:
        """What is staged in the system and not published."""
        return ()

    def refuse_driver(self) -> None:  # noqa: B027 - most systems cannot tell
        """Raise Refused where a driver of the job is seen to run."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Let go of what is held open."""


def read_if_possible(read: Callable[[], Entry | None]) -> Entry | None:
    """What a ledger says; None where it cannot be read: nor could it before, and to write is the cure."""
    try:
        return read()
    except InvariantBroken:
        return None


def moved(current: Entry | None, where: str) -> Failed:
    """The ledger says something else than a person was told."""
    now_at = "nothing" if current is None else f"epoch {current.epoch}, run {current.run}"
    return Failed(
        f"the ledger has moved since it was looked at, to {now_at}; nothing was written",
        where=where,
        fix="a driver of this job runs: stop it, then look again",
    )
