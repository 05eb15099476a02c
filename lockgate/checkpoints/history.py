"""The history in a checkpoint: its epochs, and to which of them a stopped job can go back.

To continue after epoch N, Spark needs the offsets of N and of the epoch before it, the commit of N, and the state that
N left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import unquote

from lockgate.checkpoints.operators import Operator, read_operator
from lockgate.checkpoints.stores import Store, find_stores
from lockgate.checkpoints.tree import Entry, Tree
from lockgate.checkpoints.versions import Listings, holds_epoch, partitions_of
from lockgate.connectors.files.filesystem import NotAFile
from lockgate.errors import CheckpointDamaged, Refused
from lockgate.untrusted import read_object


@dataclass(frozen=True)
class History:
    """The files of a checkpoint, as one look found them."""

    tree: Tree
    entries: Mapping[str, Entry]

    @cached_property
    def planned(self) -> list[int]:
        """The epochs that have offsets."""
        return self._numbers("offsets")

    @cached_property
    def committed(self) -> list[int]:
        """The epochs that Spark has logged as done."""
        return self._numbers("commits")

    @cached_property
    def stores(self) -> list[Store]:
        """The stores of the state."""
        return find_stores(self.entries.values())

    @cached_property
    def reachable(self) -> list[int]:
        """The epochs after which a stopped job can continue."""
        planned = {*self.planned}
        return [
            epoch
            for epoch in self.committed
            if epoch in planned
            and (epoch == 0 or epoch - 1 in planned)
            and holds_epoch(self.listings, self.stores, epoch, self.partitions(epoch), self.operators)
        ]

    @cached_property
    def operators(self) -> dict[int, Operator]:
        """The operators with state, as far as Spark has noted them."""
        numbers = {store.operator for store in self.stores}
        return {number: read_operator(self.tree.read, self.entries, number) for number in numbers}

    @cached_property
    def listings(self) -> Listings:
        """What the snapshots of the state list."""
        return Listings(self.tree)

    @property
    def last(self) -> int:
        """The last epoch that is done; Refused if there is none, or if a restart could not continue after it."""
        if not self.committed:
            raise Refused(
                "no epoch is done in this checkpoint",
                where=f"checkpoint {self.tree.root}",
                fix="name the checkpoint of a job that has run: --checkpoint PLACE",
            )
        if self.committed[-1] not in self.reachable:
            raise CheckpointDamaged(
                f"files of epoch {self.committed[-1]}, the last one that is done, are missing",
                where=f"checkpoint {self.tree.root}",
                fix="find out what is wrong: lockgate checkpoints verify; then go back to an epoch that is complete"
                f" ({_epochs_text(self.reachable)}): lockgate checkpoints rollback --to N",
            )
        return self.committed[-1]

    def partitions(self, epoch: int) -> int | None:
        """How many partitions the state had in an epoch; None if that is not known."""
        return partitions_of(self._offsets(epoch))

    def unread(self, epoch: int) -> dict[str, int]:
        """The files that sources of files have planned after an epoch, with the number of the source."""
        lines = (self._offsets(epoch) or b"").decode().splitlines()[2:]
        found: dict[str, int] = {}
        for number, line in enumerate(lines):
            read = _log_offset(line)
            if read is not None:
                found |= {path: number for path, batch in self.source_files(number).items() if batch > read}
        return found

    def _offsets(self, epoch: int) -> bytes | None:
        try:
            return self.tree.read(f"offsets/{epoch}")
        except NotAFile as error:
            raise CheckpointDamaged(
                f"the checkpoint's file offsets/{epoch} is damaged: {error}",
                where=f"checkpoint {self.tree.root}",
                fix="restore it from a copy of the checkpoint",
            ) from None

    def source_files(self, number: int) -> dict[str, int]:
        """The files in the log of a source, with their place in it; none if it is not a source of files."""
        found: dict[str, int] = {}
        for name in self.entries:
            folder, _, file = name.rpartition("/")
            if folder == f"sources/{number}" and file.removesuffix(".compact").isdecimal():
                for line in (self.tree.read(name) or b"").decode(errors="replace").splitlines()[1:]:
                    told = _as_object(line)
                    if "path" in told and "batchId" in told:
                        found[unquote(str(told["path"]))] = int(str(told["batchId"]))
        return found

    def _numbers(self, log: str) -> list[int]:
        names = (name.split("/") for name in self.entries)
        return sorted(int(parts[1]) for parts in names if parts[0] == log and len(parts) == 2 and parts[1].isdecimal())


def look_at(tree: Tree) -> History:
    """The history of a checkpoint as it is now."""
    return History(tree, {entry.name: entry for entry in tree.entries()})


def refuse_unreachable(history: History, epoch: int) -> None:
    """Refuse an epoch after which a job cannot continue, and name the epochs that it can continue after."""
    if epoch in history.reachable:
        return
    where = f"checkpoint {history.tree.root}"
    if not history.reachable:
        raise Refused("there is no epoch to go back to", where=where, fix="start from the beginning: --new-life")
    oldest, newest = history.reachable[0], history.reachable[-1]
    what = (
        f"epoch {epoch} is not done yet"
        if epoch > max(history.committed)
        else f"the checkpoint has lost parts of epoch {epoch}"
    )
    raise Refused(
        what,
        where=where,
        fix=f"go back to epoch {oldest}, the oldest one that is complete"
        + (f", or to a later one, up to {newest}" if newest > oldest else "")
        + "; --keep-epochs of `lockgate run` says how many are kept",
    )


def _epochs_text(epochs: list[int]) -> str:
    return "none is" if not epochs else f"from {epochs[0]} to {epochs[-1]}"


def _log_offset(line: str) -> int | None:
    offset = _as_object(line).get("logOffset")
    return offset if isinstance(offset, int) else None


def _as_object(line: str) -> dict[str, object]:
    try:
        return read_object(line)
    except ValueError:
        return {}
