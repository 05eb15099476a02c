"""Notes of the files that a job has read, in its checkpoint: Spark's log has no sizes.

    described/files/epochs/N    the files of epoch N: path, bytes, modified_ms; a line of JSON each
    described/files/known       those of many epochs, with the epoch

After many epochs their notes are merged into the second file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.checkpoints.tree import Tree
from lockgate.connectors.files.listing import Facts
from lockgate.untrusted import Unreadable, read_object, take

UNKNOWN_BYTES = -1
"""Of a file that was read before sizes were noted."""

_EPOCHS = "described/files/epochs"
_KNOWN = "described/files/known"
_NOTES_MAX = 100


@dataclass(frozen=True, slots=True)
class Known:
    """A file that was read."""

    facts: Facts
    epoch: int

    def is_like(self, now: Facts) -> bool:
        """Is the file that exists now the same one?"""
        same_bytes = self.facts.bytes in (UNKNOWN_BYTES, now.bytes)
        return same_bytes and self.facts.modified_ms == now.modified_ms


class FileNotes:
    """The notes in a checkpoint."""

    def __init__(self, checkpoint: Checkpoint, tree: Tree) -> None:
        self._checkpoint = checkpoint
        self._tree = tree
        self._count = 0  # of epochs with a note of their own

    @property
    def are_due(self) -> bool:
        """Are there so many that they are to be merged?"""
        return self._count >= _NOTES_MAX

    def exist(self) -> bool:
        """Has the checkpoint notes of files?"""
        return self._checkpoint.read(_KNOWN) is not None or bool(self._checkpoint.epochs(_EPOCHS))

    def begin(self) -> None:
        """From now on a file without a note was not read."""
        self._tree.write(_KNOWN, b"")

    def load(self, newest: int) -> dict[str, Known]:
        """The notes up to an epoch; later epochs were rolled back, so their notes are removed."""
        known = self._read(_KNOWN)
        found = {path: one for path, one in known.items() if one.epoch <= newest}
        if len(found) < len(known):
            self._tree.write(_KNOWN, as_lines(found))
        numbers = self._checkpoint.epochs(_EPOCHS)
        for number in numbers:
            if number > newest:
                self._tree.remove(f"{_EPOCHS}/{number}")
            else:
                found |= self.of(number)
        self._count = len(numbers)
        return found

    def of(self, epoch: int) -> dict[str, Known]:
        """The files of an epoch, if it has a note of its own."""
        return self._read(f"{_EPOCHS}/{epoch}")

    def merge(self, known: Mapping[str, Known], epoch: int) -> None:
        """Replace the notes of all epochs but this one by one note of these files."""
        self._tree.write(_KNOWN, as_lines({path: one for path, one in known.items() if one.epoch != epoch}))
        for number in self._checkpoint.epochs(_EPOCHS):
            if number != epoch:
                self._tree.remove(f"{_EPOCHS}/{number}")
        self._count = 0

    def write(self, epoch: int, known: Mapping[str, Known]) -> None:
        """Note the files of an epoch."""
        self._tree.write(f"{_EPOCHS}/{epoch}", as_lines(known))
        self._count += 1

    def _read(self, name: str) -> dict[str, Known]:
        try:
            return read_lines(self._checkpoint.read(name) or b"")
        except Unreadable as error:
            raise self._checkpoint.damaged(name, str(error)) from None


def read_lines(content: bytes) -> dict[str, Known]:
    """The files in a note; Unreadable if it is not a note."""
    found = {}
    for line in content.splitlines():
        told = read_object(line)
        facts = Facts(take(told, "bytes", int), take(told, "modified_ms", int))
        found[take(told, "path", str)] = Known(facts, take(told, "epoch", int))
    return found


def as_lines(known: Mapping[str, Known]) -> bytes:
    """The note of these files."""
    lines = (
        json.dumps({"path": path, "bytes": one.facts.bytes, "modified_ms": one.facts.modified_ms, "epoch": one.epoch})
        for path, one in known.items()
    )
    return "".join(f"{line}\n" for line in lines).encode()


def as_time(modified_ms: int) -> str:
    """A time in UTC, for people."""
    return datetime.fromtimestamp(modified_ms / 1000, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def describe_change(before: Facts, now: Facts) -> str:
    """Describe how a file has changed.

    >>> describe_change(Facts(10, 0), Facts(12, 1500))
    'it had 10 bytes of 1970-01-01T00:00:00.000Z, and now has 12 bytes of 1970-01-01T00:00:01.500Z'
    """
    had = "was" if before.bytes == UNKNOWN_BYTES else f"had {before.bytes} bytes"
    return f"it {had} of {as_time(before.modified_ms)}, and now has {now.bytes} bytes of {as_time(now.modified_ms)}"
