"""Which versions of a checkpoint's state can be loaded, and from which files (stores.py says how).

A version is complete if all changes since a snapshot exist, and all tables that the snapshot lists. If the newest
snapshot lacks a table, an older snapshot and more changes give the same state. Commands that remove or copy files
follow this rule. Otherwise they could remove the last way to load the state, and keep a snapshot that does not load.

Several tries of one version leave files with different ids. Here they belong together: all stay, or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lockgate.checkpoints.logs import read_offsets
from lockgate.checkpoints.operators import Operator
from lockgate.checkpoints.stores import Chain, StateFile, Store, read_snapshot
from lockgate.checkpoints.tree import Tree
from lockgate.errors import CheckpointDamaged

PARTITIONS = "spark.sql.shuffle.partitions"


@dataclass(frozen=True)
class Listings:
    """The lists in RocksDB's snapshots of a checkpoint; each snapshot is read once."""

    tree: Tree
    _known: dict[str, Mapping[str, int] | None] = field(default_factory=dict)

    def of(self, file: StateFile) -> Mapping[str, int] | None:
        """The sizes of the files that a snapshot lists, by name; None if it cannot be read."""
        if not file.name.endswith(".zip"):
            return {}
        if file.name not in self._known:
            try:
                self._known[file.name] = read_snapshot(self.tree.read(file.name) or b"").files
            except (ValueError, TypeError, AttributeError):
                self._known[file.name] = None
        return self._known[file.name]

    def named_by(self, store: Store, files: Iterable[StateFile]) -> set[str]:
        """The existing files of a store that at least one of these snapshots lists."""
        wanted = {name for file in files for name in self.of(file) or ()}
        return {entry.name for name, entry in store.named.items() if name in wanted}

    def why_torn(self, store: Store, file: StateFile) -> str | None:
        """Why a snapshot cannot be loaded; None if all that it lists exists, or if the file is not a snapshot."""
        listed = self.of(file)
        if listed is None:
            return "it cannot be read"
        for name, size in listed.items():
            entry = store.named.get(name)
            if entry is None:
                return f"it lists {name}, which is missing"
            if entry.bytes != size:
                return f"it lists {name} with {size:,} bytes, but the file has {entry.bytes:,}"
        return None


def partitions_of(offsets: bytes | None) -> int | None:
    """How many partitions the state had in an epoch, according to its offsets; None if they do not say."""
    try:
        return int(read_offsets(offsets or b"").conf[PARTITIONS])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def whole_chain(listings: Listings, store: Store, version: int, *, has_families: bool = False) -> Chain | None:
    """The newest complete snapshot, and all changes since; None if a version cannot be loaded.

    Args:
        has_families: the store has several kinds of rows. Only a snapshot distinguishes them, so changes alone are
            not enough.
    """
    for chain in store.chains(version):
        is_told = chain.base > 0 or version == 0 or not has_families
        if is_told and not chain.missing and not any(listings.why_torn(store, file) for file in chain.files):
            return chain
    return None


def holds_epoch(
    listings: Listings,
    stores: Iterable[Store],
    epoch: int,
    partitions: int | None,
    operators: Mapping[int, Operator],
) -> bool:
    """Does the checkpoint have all the state that a query needs to continue after an epoch?

    Args:
        operators: they say which operators must have all partitions; others may take all rows into one.
    """
    needed = stores_of(stores, partitions)
    return _has_all(needed, partitions, operators) and all(
        whole_chain(listings, store, epoch + 1, has_families=operators[store.operator].has_families) is not None
        for store in needed
    )


def _has_all(stores: Iterable[Store], partitions: int | None, operators: Mapping[int, Operator]) -> bool:
    """Does every store exist? Spark numbers operators without a gap, and each keeps all of its partitions."""
    found: dict[int, dict[str, set[int]]] = {}
    for store in stores:
        found.setdefault(store.operator, {}).setdefault(store.name, set()).add(store.partition)
    if {*found} != {*range(len(found))}:
        return False
    for operator, names in found.items():
        present = set().union(*names.values())
        is_one = present == {0} and not operators[operator].is_by_key
        wanted = present if is_one or partitions is None else {*range(partitions)}
        if any(one != wanted for one in names.values()):
            return False
    return True


def files_of_epoch(listings: Listings, stores: Iterable[Store], epoch: int, partitions: int | None) -> list[str]:
    """The files of the state after one epoch, and no others; CheckpointDamaged if it is not complete."""
    found: list[str] = []
    for store in stores_of(stores, partitions):
        chain = whole_chain(listings, store, epoch + 1)
        if chain is None:
            raise CheckpointDamaged(
                f"the state after epoch {epoch} cannot be loaded: files of {store.folder} are missing",
                where=f"checkpoint {listings.tree.root}",
                fix="find out what is wrong: lockgate checkpoints verify",
            )
        found += [*(file.name for file in chain.files), *listings.named_by(store, chain.files)]
    return found


def refuse_torn(listings: Listings, store: Store, files: Iterable[StateFile]) -> None:
    """Refuse to remove anything if a snapshot that stays cannot be loaded."""
    for file in files:
        if why := listings.why_torn(store, file):
            raise CheckpointDamaged(
                f"the snapshot {file.name} cannot be loaded: {why}; nothing is removed",
                where=f"checkpoint {listings.tree.root}",
                fix="restore what is missing from a copy of the checkpoint; or remove only this snapshot: an older"
                " one and the changes since hold the same state",
            )


def stores_of(stores: Iterable[Store], partitions: int | None) -> list[Store]:
    """The stores of a state with this number of partitions."""
    return [store for store in stores if partitions is None or store.partition < partitions]
