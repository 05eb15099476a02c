"""Show and repair a ledger, without Spark, beside a driver that may run.

To read it changes nothing and fences no writer. To replace its entry is compare and swap: a statement about doubled and
lost rows is true only for the entry that the operator saw. A running driver stops when it next reads the ledger,
because the run id is no longer its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from lockgate.commit.ledger import Entry
from lockgate.errors import Failed, InvariantBroken
from lockgate.escaping import escape


class MendableLedger(ABC):
    """The ledger of one job in one system."""

    where: str
    name: str  # its kind and place, for people
    option: str  # the option of a command that says where it is
    facts: Mapping[str, str]  # the same for programs
    missing: str  # what does not exist if the job has no ledger

    @property
    def exists(self) -> bool:
        """Is there a ledger of this job?"""
        try:
            return self.peek() is not None
        except InvariantBroken:
            return True

    @abstractmethod
    def peek(self) -> Entry | None:
        """Its entry; None if it has none, InvariantBroken if it cannot be read and may be replaced."""

    @abstractmethod
    def replace(self, seen: Entry | None, entry: Entry) -> None:
        """Replace the entry that was seen; Failed if the ledger has another entry by now."""

    def salvage(self, broken: InvariantBroken) -> tuple[Entry | None, str]:
        """What remains of a ledger that cannot be read, and what the operator gives up with the rest."""
        return None, broken.what

    def waiting(self) -> Sequence[str]:
        """What is staged in the system and not published."""
        return ()

    def refuse_driver(self) -> None:  # noqa: B027 - most systems cannot tell
        """Raise Refused if a driver of the job visibly runs."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Close what is open."""


def read_if_possible(read: Callable[[], Entry | None]) -> Entry | None:
    """The entry of a ledger; None if it cannot be read: to write a new entry is the fix."""
    try:
        return read()
    except InvariantBroken:
        return None


def moved(current: Entry | None, where: str) -> Failed:
    """The error for a ledger that has another entry than the operator saw."""
    now_at = "nothing" if current is None else f"epoch {current.epoch}, run {current.run}"
    return Failed(
        f"the ledger has moved since it was looked at, to {now_at}; nothing was written",
        where=where,
        fix="a driver of this job runs: stop it, then look again",
    )


def look(ledger: MendableLedger) -> tuple[Entry | None, str | None]:
    """The ledger's entry, and what is wrong with it."""
    if not ledger.exists:
        return None, f"the ledger is gone ({ledger.missing}); it is re-created"
    try:
        entry = ledger.peek()
    except InvariantBroken as broken:
        return ledger.salvage(broken)
    return entry, "the ledger is empty" if entry is None else None


def gone(ledger: MendableLedger, job: str) -> Failed:
    """The error for a job that has no ledger in this place."""
    return Failed(
        f"job {job!r} has no ledger: {ledger.missing}",
        where=ledger.where,
        fix="check the job's name and the place; the first exactly-once run makes it. If it was deleted:"
        f" lockgate ledger set {job} --epoch N --checkpoint PLACE {ledger.option}",
    )


def keep_staged(before: Entry | None, entry: Entry) -> Entry:
    """The entry with what followers have still to publish of its epoch: only the ledger remembers the names."""
    if before is None or (before.epoch, before.digest) != (entry.epoch, entry.digest):
        return entry
    return replace(entry, staged=before.staged)


def short(entry: Entry | None) -> str:
    """An entry in a few words."""
    if entry is None:
        return "nothing at all"
    if entry.epoch is None:
        return "no epoch is committed"
    return f"epoch {entry.epoch} is committed, digest {escape(str(entry.digest)[:12])}"
