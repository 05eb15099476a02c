"""What may be removed from a checkpoint: old epochs, and files that crashes left.

    offsets, commits     of epochs before the oldest one that is kept; the offsets of the epoch before it stay, too
    state                versions before the snapshot that the oldest kept epoch is loaded from; all of a partition
                         that no epoch has any more
    snapshots of tables  that no kept epoch has seen
    leftovers            files that were being written when a process died; at least a day old, so that no process
                         still writes them
    before resets        checkpoints that --new-life has put aside, listed separately: the job does not need them, but
                         they are the only way back; and the rest of a restore that was killed

Everything that a restart needs stays. Files with unknown names stay, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from lockgate.checkpoints.checksums import checksum_of, is_checksum
from lockgate.checkpoints.history import History, look_at
from lockgate.checkpoints.marker import PARTS, is_marked, require_marker
from lockgate.checkpoints.stores import Store
from lockgate.checkpoints.tree import Entry, Tree
from lockgate.checkpoints.versions import refuse_torn, whole_chain
from lockgate.connectors.files.filesystem import ASIDE
from lockgate.errors import InvariantBroken, Refused

if TYPE_CHECKING:  # a driver that cleans up while it runs needs none of what a command needs
    from lockgate.checkpoints.subject import Subject

LEFT_AFTER = timedelta(days=1)
"""After this time a file that was being written counts as left by a process that died."""

_TEMPORARY = re.compile(r"\.+.+\.[0-9a-f]{8}-[0-9a-f-]{27}\.(tmp|TID[0-9.]+\.tmp)(\.crc)?")
_LIFE = re.compile(r"\.before-\d{8}T\d{6}Z|\.restoring-[0-9a-f]{8}")


@dataclass(frozen=True)
class Part:
    """Files of one kind that may be removed."""

    what: str
    files: tuple[str, ...]
    bytes: int


@dataclass(frozen=True)
class Cleaning:
    """What would be removed from a checkpoint, and what stays."""

    kept: tuple[int, ...]  # the epochs to which the job can still go back
    parts: tuple[Part, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """All files to remove."""
        return tuple(name for part in self.parts for name in part.files)

    @property
    def bytes(self) -> int:
        """The size of these files."""
        return sum(part.bytes for part in self.parts)


@dataclass(frozen=True)
class OldCheckpoint:
    """A checkpoint that was put aside, or one that a killed process was restoring."""

    name: str
    bytes: int
    trouble: str | None  # why it stays


def plan_cleaning(history: History, keep: int, now: datetime) -> Cleaning:
    """What may be removed if this number of epochs is kept."""
    if keep < 1:
        raise Refused(f"--keep is {keep}", where="command line", fix="keep at least one epoch: a restart needs it")
    last = history.last
    kept = history.reachable[-keep:]
    oldest = kept[0]
    logs = [f"offsets/{epoch}" for epoch in history.planned if epoch < oldest - 1]
    logs += [f"commits/{epoch}" for epoch in history.committed if epoch < oldest]
    counts = {epoch: history.partitions(epoch) for epoch in history.planned if epoch >= oldest}
    state: list[str] = []
    named: set[str] = set()
    for store in history.stores:
        # After a rescaling some epochs have fewer partitions than others.
        users = [epoch for epoch, count in counts.items() if count is None or store.partition < count]
        if not users:
            state += [*(file.name for file in store.files), *(entry.name for entry in store.named.values())]
        elif users[0] in kept:
            old, still_named = _old_state(history, store, users[0])
            state += old
            named |= still_named
        else:
            named.update(entry.name for entry in store.named.values())
    orphans = [entry.name for store in history.stores for entry in store.named.values() if entry.name not in named]
    orphans += [name for name in history.entries if is_leftover(name, history)]
    old_enough = [name for name in orphans if now - history.entries[name].modified >= LEFT_AFTER]
    assert last in kept
    parts = (
        ("offsets and commits", logs),
        ("state", state),
        ("snapshots of tables", _old_tables(history, oldest)),
        ("leftovers of processes that died", sorted({*old_enough} - {*state})),
    )
    return Cleaning(tuple(kept), tuple(_part(what, names, history) for what, names in parts if names))


def clean(
    subject: Subject, keep: int, now: datetime, *, removes: bool, removes_old: bool
) -> tuple[Cleaning, list[OldCheckpoint]]:
    """What may be removed from a stopped job's checkpoint, and the checkpoints beside it; removed if that is wanted."""
    with subject.lock_exclusively():
        require_marker(subject.tree, subject.job)
        if subject.ledger is not None:  # a driver on another machine, or a query of write_stream, holds no lock
            with subject.ledger.opened() as ledger:
                ledger.refuse_driver()
        cleaning = plan_cleaning(look_at(subject.tree), keep, now)
        parent, name = subject.tree.parent()
        lives = find_old_checkpoints(parent, name, subject.job)
        if removes:
            remove_all(subject.tree, cleaning.files)
        for life in lives if removes_old else ():
            if life.trouble is None:
                require_marker(parent.below(life.name), subject.job)
                parent.remove(life.name)
    return cleaning, lives


def find_old_checkpoints(parent: Tree, name: str, job: str) -> list[OldCheckpoint]:
    """The checkpoints that resets put aside, and those of killed restores, beside a checkpoint of this name."""
    found = []
    for folder in parent.folders():
        if folder.startswith(name) and _LIFE.fullmatch(folder.removeprefix(name)):
            entries = parent.entries(folder)
            found.append(
                OldCheckpoint(folder, sum(entry.bytes for entry in entries), _trouble(parent, folder, job, entries))
            )
    return found


def remove_all(tree: Tree, names: Iterable[str]) -> None:
    """Remove files, and the checksums beside them."""
    for name in names:
        tree.remove(name)
        tree.remove(checksum_of(name))


def is_leftover(name: str, history: History) -> bool:
    """Is this file an unfinished one, or the checksum of a file that is gone?"""
    folder, slash, file = name.rpartition("/")
    if file.startswith(ASIDE) or _TEMPORARY.fullmatch(file):
        return True
    return is_checksum(name) and f"{folder}{slash}{file[1:-4]}" not in history.entries


def _old_state(history: History, store: Store, oldest: int) -> tuple[list[str], set[str]]:
    """The files of versions that are not needed, and the files that the other versions name."""
    chain = whole_chain(history.listings, store, oldest + 1)
    if chain is None:
        raise InvariantBroken(
            f"epoch {oldest} is to be kept, but its state in {store.folder} is not complete",
            where=f"checkpoint {history.tree.root}",
            fix="nothing was removed; find out what is wrong: lockgate checkpoints verify",
        )
    kept = [file for file in store.files if file.version >= chain.base]
    refuse_torn(history.listings, store, kept)
    still_named = history.listings.named_by(store, kept)
    dropped = [file for file in store.files if file.version < chain.base]
    gone = sorted(history.listings.named_by(store, dropped) - still_named)
    return [*(file.name for file in dropped), *gone], still_named


def _old_tables(history: History, oldest: int) -> list[str]:
    """Notes and snapshots of tables that neither the oldest kept epoch nor a later one uses."""
    found: list[str] = []
    for table in sorted({name.split("/")[1] for name in history.entries if name.startswith("tables/")}):
        folder = f"tables/{table}"
        notes = sorted(
            int(name.rpartition("/")[2])
            for name in history.entries
            if name.startswith(f"{folder}/epochs/") and name.rpartition("/")[2].isdecimal()
        )
        first = max((number for number in notes if number <= oldest), default=oldest)
        seen = {
            f"{folder}/{(history.tree.read(f'{folder}/epochs/{number}') or b'').decode()}.parquet"
            for number in notes
            if number >= first
        }
        found += [f"{folder}/epochs/{number}" for number in notes if number < first]
        found += [
            name
            for name in history.entries
            if name.startswith(f"{folder}/") and name.endswith(".parquet") and name not in seen
            if not name.rpartition("/")[2].startswith(".")
        ]
    return found


def _part(what: str, names: Iterable[str], history: History) -> Part:
    files = tuple(names)
    return Part(what, files, sum(history.entries[name].bytes for name in files))


def _trouble(parent: Tree, folder: str, job: str, entries: Iterable[Entry]) -> str | None:
    """Why a directory stays, although it has the name of a checkpoint that was put aside."""
    life = parent.below(folder)
    if not is_marked(life, job):
        return f"it carries no marker of job {job!r}"
    tops = {entry.name.split("/")[1] for entry in entries}
    others = sorted(top for top in tops if top not in PARTS and not top.startswith("."))
    return f"it holds other files, too: {', '.join(others[:3])}" if others else None
