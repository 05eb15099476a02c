"""The snapshots of a table in a checkpoint, and which epoch saw which.

    tables/<name>/<digest>.parquet    a snapshot, immutable
    tables/<name>/epochs/<number>     from this epoch on, that snapshot

An epoch sees what the newest note at or before it says. Notes are put in place once and never changed, and this decides
what an epoch sees:

    an epoch that nobody has planned before   may see a newer snapshot; the note comes before its first row
    an epoch that is repeated                 sees what it saw: its own note, or else the one before it, which is then
                                              noted, so that a driver believed dead cannot put another one there

No clock has a say. A snapshot is removed when the checkpoint has no epoch left that saw it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from lockgate.errors import Failed
from lockgate.files.system import ASIDE, System

_DIGITS = 16


@dataclass(frozen=True)
class Snapshot:
    """A table as it was read once: Parquet, and the name that its bytes give it."""

    digest: str
    content: bytes


def take_snapshot(content: bytes) -> Snapshot:
    """The snapshot that these bytes are; the same bytes are the same snapshot."""
    return Snapshot(digest=hashlib.sha256(content).hexdigest()[:_DIGITS], content=content)


class SnapshotLog:
    """The snapshots and notes of one table; `system` is the root of the checkpoint."""

    def __init__(self, system: System, table: str, *, where: str) -> None:
        self._system = system
        self._folder = f"tables/{table}"
        self._where = where

    def choose(self, epoch: int, newest: Snapshot, *, is_repeat: bool) -> Snapshot:
        """What the epoch sees, noted where it has to be."""
        known = [number for number in self.noted() if number <= epoch]
        before = self._note(known[-1]) if known else None
        if known and known[-1] == epoch:
            return self._read(str(before), newest)
        wanted = str(before) if is_repeat and before is not None else newest.digest
        if wanted == before and not is_repeat:
            return newest
        if wanted == newest.digest:
            self._system.publish(self._file(wanted), newest.content)  # there already: the same bytes
        if not self._system.publish(f"{self._folder}/epochs/{epoch}", wanted.encode()):
            wanted = self._note(epoch)  # another driver was first
        return self._read(wanted, newest)

    def expire(self, oldest: int) -> None:
        """Remove what no epoch from `oldest` on can see."""
        numbers = self.noted()
        first = max((number for number in numbers if number <= oldest), default=oldest)
        kept = {self._file(self._note(number)) for number in numbers if number >= first}
        # Notes first, and the oldest of them first: what is left is as good as before at every moment.
        for number in numbers:
            if number < first:
                self._system.delete(f"{self._folder}/epochs/{number}")
        for name in self._system.names(self._folder):
            place = f"{self._folder}/{name}"
            if (name.endswith(".parquet") and place not in kept) or name.startswith(ASIDE):
                self._system.delete(place)

    def noted(self) -> list[int]:
        """The epochs that have a note of their own."""
        return sorted(int(name) for name in self._system.names(f"{self._folder}/epochs") if name.isdecimal())

    def _note(self, epoch: int) -> str:
        content = self._system.read(f"{self._folder}/epochs/{epoch}")
        if content is None:
            raise self._gone(f"the note of epoch {epoch}")
        return content.decode()

    def _read(self, digest: str, newest: Snapshot) -> Snapshot:
        if digest == newest.digest:
            return newest
        content = self._system.read(self._file(digest))
        if content is None:
            raise self._gone(f"snapshot {digest}")
        return Snapshot(digest=digest, content=content)

    def _file(self, digest: str) -> str:
        return f"{self._folder}/{digest}.parquet"

    def _gone(self, what: str) -> Failed:
        return Failed(
            f"{what} is not in the checkpoint any more, so nobody knows what the epoch saw of the table",
            where=f"{self._where}, {self._system.uri(self._folder)}",
            fix="bring the whole checkpoint back from a copy, or begin again: lockgate run --new-life",
        )
