"""What may go from a checkpoint: epochs that nobody wants to go back to, and what crashes left behind.

    offsets, commits     of epochs before the oldest one that is kept; one more of the offsets, which it begins behind
    state                versions before the snapshot that the oldest kept epoch is loaded from; all of a partition
                         that no epoch has any more
    snapshots of tables  that no kept epoch has seen
    leftovers            files that were being written when a process died; at least a day old, so that nobody writes
                         them still
    earlier lives        checkpoints that --new-life has put aside, told apart: nothing of them is needed, but they are
                         the only way back; and what is left of a restore that was killed

What a restart needs is kept in any case. Names that are not known are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from lockgate.errors import InvariantBroken, Refused
from lockgate.files.system import ASIDE
from lockgate.runtime.checksums import checksum_of, is_checksum
from lockgate.runtime.lifecycle.history import History
from lockgate.runtime.lifecycle.marker import PARTS, is_marked
from lockgate.runtime.lifecycle.stores import Store
from lockgate.runtime.lifecycle.tree import Entry, Tree
from lockgate.runtime.lifecycle.versions import refuse_torn, whole_chain

LEFT_AFTER = timedelta(days=1)
"""A file that was being written this long ago was left by a process that died."""

_TEMPORARY = re.compile(r"\.+.+\.[0-9a-f]{8}-[0-9a-f-]{27}\.(tmp|TID[0-9.]+\.tmp)(\.crc)?")
_LIFE = re.compile(r"\.before-\d{8}T\d{6}Z|\.restoring-[0-9a-f]{8}")


@dataclass(frozen=True)
class Part:
    """Files of one kind that may go."""

    what: str
    files: tuple[str, ...]
    bytes: int


@dataclass(frozen=True)
class Cleaning:
    """What a checkpoint would lose, and what it keeps."""

    kept: tuple[int, ...]  # epochs that can still be gone back to
    parts: tuple[Part, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """All files that go."""
        return tuple(name for part in self.parts for name in part.files)

    @property
    def bytes(self) -> int:
        """What they take."""
        return sum(part.bytes for part in self.parts)


@dataclass(frozen=True)
class Life:
    """A checkpoint that was put aside, or one that was being restored by a process that died."""

    name: str
    bytes: int
    trouble: str | None  # why it is not removed


def plan_cleaning(history: History, keep: int, now: datetime) -> Cleaning:
    """What may go where so many epochs are to be kept."""
    if keep < 1:
        raise Refused(f"--keep is {keep}", where="command line", fix="keep one epoch at least: a restart needs it")
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


def find_lives(parent: Tree, name: str, job: str) -> list[Life]:
    """The checkpoints of earlier lives, and of restores that were killed, beside a checkpoint of this name."""
    found = []
    for folder in parent.folders():
        if folder.startswith(name) and _LIFE.fullmatch(folder.removeprefix(name)):
            entries = parent.entries(folder)
            found.append(Life(folder, sum(entry.bytes for entry in entries), _trouble(parent, folder, job, entries)))
    return found


def remove_all(tree: Tree, names: Iterable[str]) -> None:
    """Remove files, and the checksums beside them."""
    for name in names:
        tree.remove(name)
        tree.remove(checksum_of(name))


def is_leftover(name: str, history: History) -> bool:
    """Was this file being written, or is it the checksum of one that is gone?"""
    folder, slash, file = name.rpartition("/")
    if file.startswith(ASIDE) or _TEMPORARY.fullmatch(file):
        return True
    return is_checksum(name) and f"{folder}{slash}{file[1:-4]}" not in history.entries


def _old_state(history: History, store: Store, oldest: int) -> tuple[list[str], set[str]]:
    """The files of versions that are not needed, and what the others name."""
    chain = whole_chain(history.listings, store, oldest + 1)
    if chain is None:
        raise InvariantBroken(
            f"epoch {oldest} is to be kept, and its state in {store.folder} is not whole",
            where=f"checkpoint {history.tree.root}",
            fix="nothing was removed; look what is wrong: lockgate checkpoints verify",
        )
    kept = [file for file in store.files if file.version >= chain.base]
    refuse_torn(history.listings, store, kept)
    still_named = history.listings.named_by(store, kept)
    dropped = [file for file in store.files if file.version < chain.base]
    gone = sorted(history.listings.named_by(store, dropped) - still_named)
    return [*(file.name for file in dropped), *gone], still_named


def _old_tables(history: History, oldest: int) -> list[str]:
    """Notes and snapshots of tables that no epoch from the oldest on can see."""
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
    """Why a directory is not removed, although it is called like a checkpoint that was put aside."""
    life = parent.below(folder)
    if not is_marked(life, job):
        return f"it carries no marker of job {job!r}"
    tops = {entry.name.split("/")[1] for entry in entries}
    others = sorted(top for top in tops if top not in PARTS and not top.startswith("."))
    return f"it holds other things, too: {', '.join(others[:3])}" if others else None
