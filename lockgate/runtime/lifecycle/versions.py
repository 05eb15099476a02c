"""Which versions of a checkpoint's state can be loaded, and which files that takes (stores.py says how).

Files of one version that carry different ids, of several tries, belong together here: all are kept, or none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from lockgate.errors import CheckpointDamaged
from lockgate.runtime.lifecycle.logs import read_offsets
from lockgate.runtime.lifecycle.stores import StateFile, Store, read_snapshot
from lockgate.runtime.lifecycle.tree import Tree

PARTITIONS = "spark.sql.shuffle.partitions"


def partitions_of(offsets: bytes | None) -> int | None:
    """How many partitions the state had in an epoch, as its offsets say; None where they do not."""
    try:
        return int(read_offsets(offsets or b"").conf[PARTITIONS])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def holds_epoch(stores: Iterable[Store], epoch: int, partitions: int | None, by_key: Collection[int]) -> bool:
    """Is there all the state that a query needs to go on behind an epoch?

    Args:
        by_key: the operators that are known to have all partitions; others may take all rows together.
    """
    needed = _of(stores, partitions)
    return _has_all(needed, partitions, by_key) and not any(store.chain(epoch + 1).missing for store in needed)


def _has_all(stores: Iterable[Store], partitions: int | None, by_key: Collection[int]) -> bool:
    """Is no store gone as a whole? Spark numbers operators without a gap, and each keeps all of its partitions."""
    found: dict[int, dict[str, set[int]]] = {}
    for store in stores:
        found.setdefault(store.operator, {}).setdefault(store.name, set()).add(store.partition)
    if {*found} != {*range(len(found))}:
        return False
    for operator, names in found.items():
        present = set().union(*names.values())
        is_one = present == {0} and operator not in by_key
        wanted = present if is_one or partitions is None else {*range(partitions)}
        if any(one != wanted for one in names.values()):
            return False
    return True


def files_of_epoch(tree: Tree, stores: Iterable[Store], epoch: int, partitions: int | None) -> list[str]:
    """The files of the state behind one epoch, and no others."""
    found: list[str] = []
    for store in _of(stores, partitions):
        files = store.chain(epoch + 1).files
        found += [*(file.name for file in files), *named_by(tree, store, files)]
    return found


def named_by(tree: Tree, store: Store, files: Iterable[StateFile]) -> set[str]:
    """The files that the snapshots of RocksDB among some files of a store list."""
    wanted = {one for file in files if file.name.endswith(".zip") for one in _listed_in(tree, file.name)}
    return {entry.name for name, entry in store.named.items() if name in wanted}


def _of(stores: Iterable[Store], partitions: int | None) -> list[Store]:
    return [store for store in stores if partitions is None or store.partition < partitions]


def _listed_in(tree: Tree, name: str) -> Iterable[str]:
    try:
        return read_snapshot(tree.read(name) or b"").files
    except (ValueError, TypeError, AttributeError) as error:
        raise CheckpointDamaged(
            f"the snapshot {name} cannot be read: {error}",
            where=f"checkpoint {tree.root}",
            fix="put it back from a copy of the checkpoint; or go back to an epoch that does not need it",
        ) from None
