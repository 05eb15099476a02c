"""The snapshots of a table in a checkpoint, and which epoch used which.

    tables/<name>/<digest>.parquet    a snapshot, immutable
    tables/<name>/epochs/<number>     a note: this epoch and later ones use that snapshot

An epoch uses the snapshot of the newest note at or before its number. A note is written once and never changed:

    a new epoch            may use a newer snapshot; the note is written before its first row
    a repeated epoch       uses the same snapshot again: that of its own note, or of the note before. In the second
                           case it writes its own note, so that a driver believed dead cannot write another one

The clock decides nothing. A snapshot is removed when no epoch in the checkpoint uses it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from lockgate.connectors.files.filesystem import ASIDE, System
from lockgate.errors import Failed

_DIGITS = 16


@dataclass(frozen=True)
class Snapshot:
    """A table as one read found it: Parquet, and a name derived from its bytes."""

    digest: str
    content: bytes


def take_snapshot(content: bytes) -> Snapshot:
    """A snapshot from bytes; the same bytes are the same snapshot."""
    return Snapshot(digest=hashlib.sha256(content).hexdigest()[:_DIGITS], content=content)


class SnapshotLog:
    """The snapshots and notes of one table; `system` is the root of the checkpoint."""

    def __init__(self, system: System, table: str, *, where: str) -> None:
        self._system = system
        self._folder = f"tables/{table}"
        self._where = where

    def choose(self, epoch: int, newest: Snapshot, *, is_repeat: bool) -> Snapshot:
        """Choose the snapshot that the epoch uses, and write the note if it needs one."""
        known = [number for number in self.noted() if number <= epoch]
        before = self._note(known[-1]) if known else None
        if known and known[-1] == epoch:
            return self._read(str(before), newest)
        wanted = str(before) if is_repeat and before is not None else newest.digest
        if wanted == before and not is_repeat:
            return newest
        if wanted == newest.digest:
            self._system.publish(self._file(wanted), newest.content)  # if it exists already, it has the same bytes
        if not self._system.publish(f"{self._folder}/epochs/{epoch}", wanted.encode()):
            wanted = self._note(epoch)  # another driver was first
        return self._read(wanted, newest)

    def expire(self, oldest: int) -> None:
        """Remove what neither `oldest` nor a later epoch can use."""
        numbers = self.noted()
        first = max((number for number in numbers if number <= oldest), default=oldest)
        kept = {self._file(self._note(number)) for number in numbers if number >= first}
        # Notes first, the oldest of them first: at every moment the rest is still correct.
        for number in numbers:
            if number < first:
                self._system.delete(f"{self._folder}/epochs/{number}")
        for name in self._system.names(self._folder):
            place = f"{self._folder}/{name}"
            if (name.endswith(".parquet") and place not in kept) or name.startswith(ASIDE):
                self._system.delete(place)

    def noted(self) -> list[int]:
        """The epochs that have their own note."""
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
            f"{what} is not in the checkpoint any more, so it is unknown which rows of the table the epoch used",
            where=f"{self._where}, {self._system.uri(self._folder)}",
            fix="restore the whole checkpoint from a copy, or start from the beginning: lockgate run --new-life",
        )
