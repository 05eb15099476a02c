"""What a checkpoint holds, according to its files: of our queries or of other ones, stopped or running.

    offsets/  commits/    the epochs: planned, and committed
    state/                what steps keep for their keys, a version after every epoch
    sources/              the notes of sources: the files that they have read, where topics began
    metadata              Spark's id of the query
    lockgate.json         the marker: the job that it belongs to, and since when
    tables/  initial/  native/  described/  waiting/  returns/  tries.json    what our runs keep beside them

A running driver adds and removes files at the same time; a file that is gone when it is read counts as never listed. A
file that cannot be parsed is reported as a problem of its epoch; the rest is reported nevertheless.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any, TypeVar

from lockgate.checkpoints.checkpoint import ACCEPTED, digest_of, parse_accepted
from lockgate.checkpoints.checksums import is_checksum
from lockgate.checkpoints.logs import Ended, Offset, Places, Planned, read_commit, read_offsets, read_source_log
from lockgate.checkpoints.marker import FILE as MARKER
from lockgate.checkpoints.marker import PARTS, Marker, parse_marker
from lockgate.checkpoints.operators import Operator, Read, read_operator
from lockgate.checkpoints.stores import Snapshot, StateFile, Store, find_stores, read_snapshot
from lockgate.checkpoints.tree import Entry, Tree
from lockgate.checkpoints.versions import PARTITIONS
from lockgate.connectors.files.filesystem import ASIDE
from lockgate.errors import Refused
from lockgate.untrusted import as_list, as_object, read_json, read_object, take

Parsed = TypeVar("Parsed")

PROVIDER = "spark.sql.streaming.stateStore.providerClass"

_FIRST_ROW: Places = {("", 0): 0}


@dataclass(frozen=True)
class EpochFacts:
    """An epoch of which the checkpoint has offsets or a commit."""

    number: int
    planned: Planned | None
    ended: Ended | None
    is_committed: bool
    digest: str | None  # SHA-256 of its offsets, as in the ledger
    problem: str | None  # why its files cannot be read
    bytes: int  # of its own files: in the logs, and of the state's version that it left

    @property
    def at(self) -> datetime | None:
        """The time when it was planned, by the clock of its driver."""
        return None if self.planned is None or self.planned.at_ms is None else as_time(self.planned.at_ms)

    @property
    def watermark(self) -> datetime | None:
        """The watermark that it used; None if there was none yet."""
        return None if self.planned is None or self.planned.watermark_ms <= 0 else as_time(self.planned.watermark_ms)

    @property
    def partitions(self) -> int | None:
        """The number of partitions of its state."""
        told = {} if self.planned is None else self.planned.conf
        return int(told[PARTITIONS]) if told.get(PARTITIONS, "").isdecimal() else None


@dataclass(frozen=True)
class StateSize:
    """The state after an epoch."""

    bytes: int  # of the files from which it is loaded
    rows: int | None  # known only if all of it is in new snapshots


@dataclass(frozen=True)
class Reach:
    """What an epoch read from one partition of a source; `first` is None if it is not known any more."""

    topic: str
    partition: int
    first: int | None
    end: int


@dataclass(frozen=True)
class CheckpointFacts:
    """A checkpoint as one look found it."""

    root: str
    query: str | None
    marker: Marker | None
    epochs: tuple[EpochFacts, ...]
    operators: tuple[Operator, ...]
    stores: tuple[Store, ...]
    entries: tuple[Entry, ...]
    begins: Mapping[str, Places]  # where sources began, by number
    read: Read = field(compare=False)
    _snapshots: dict[str, Snapshot | None] = field(default_factory=dict, compare=False)

    @cached_property
    def by_number(self) -> dict[int, EpochFacts]:
        """The epochs by their numbers."""
        return {epoch.number: epoch for epoch in self.epochs}

    @property
    def committed(self) -> EpochFacts | None:
        """The newest committed epoch."""
        return next((epoch for epoch in reversed(self.epochs) if epoch.is_committed), None)

    @property
    def bytes(self) -> int:
        """The size of all its files."""
        return sum(entry.bytes for entry in self.entries)

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by part; "others" are unknown files, and files that were never finished."""
        found: dict[str, int] = {}
        for entry in self.entries:
            part = entry.name.split("/", 1)[0]
            if is_checksum(part):
                part = part[1:-4]
            known = part if part in PARTS else "others"
            found[known] = found.get(known, 0) + entry.bytes
        return found

    def reaches(self, number: int, offset: Offset) -> tuple[Reach, ...]:
        """What an epoch read from a source, by partition; nothing if the source does not count."""
        places = offset.places or {}
        before = self._before(number, offset.source)
        # A new partition begins at Kafka's first offset, which the checkpoint does not have.
        return tuple(
            Reach(topic, partition, None if before is None else before.get((topic, partition)), end)
            for (topic, partition), end in sorted(places.items())
        )

    def events(self, number: int, offset: Offset) -> int | None:
        """How many events an epoch read from a source; None if that is not known.

        For Kafka this counts offsets, which include the ends of transactions.
        """
        reaches = self.reaches(number, offset)
        known = [one.end - one.first for one in reaches if one.first is not None]
        return sum(known) if known and len(known) == len(reaches) else None

    def state_of(self, number: int) -> StateSize | None:
        """The size of the state after an epoch; None if there is none, or if it cannot be loaded any more."""
        needed = self.needed(number)
        if not needed:
            return None
        files: dict[str, int] = {}
        rows: int | None = 0
        for store in needed:
            chain = store.chain(number + 1, self.ids(store))
            if chain.missing:
                return None
            files.update({file.name: file.bytes for file in chain.files})
            listed = [snapshot for file in chain.files if (snapshot := self.snapshot(file)) is not None]
            for snapshot in listed:
                files.update({f"{store.folder}/{name}": size for name, size in snapshot.files.items()})
            known = listed[0].rows if chain.base == number + 1 and listed else None
            rows = None if rows is None or known is None else rows + known
        return StateSize(bytes=sum(files.values()), rows=rows)

    def needed(self, number: int) -> list[Store]:
        """The stores that have the state after an epoch."""
        epoch = self.by_number.get(number)
        count = None if epoch is None else epoch.partitions
        return [store for store in self.stores if count is None or store.partition < count]

    def ids(self, store: Store) -> dict[int, frozenset[str]]:
        """The ids of the files that count in a store, by version, as far as the log of commits has them."""
        found = {}
        for epoch in self.epochs:
            partitions = () if epoch.ended is None else epoch.ended.ids.get(store.operator, ())
            if store.partition < len(partitions):
                found[epoch.number + 1] = partitions[store.partition]
        return found

    def snapshot(self, file: StateFile) -> Snapshot | None:
        """What a snapshot of RocksDB lists; None if it is another file, or is damaged."""
        if not file.name.endswith(".zip"):
            return None
        if file.name not in self._snapshots:
            content = self.read(file.name)
            try:
                self._snapshots[file.name] = None if content is None else read_snapshot(content)
            except ValueError:
                self._snapshots[file.name] = None
        return self._snapshots[file.name]

    def chosen(self, number: int | None) -> EpochFacts:
        """The epoch of a number, or the newest one; Refused if there is none."""
        where = f"checkpoint {self.root}"
        if not self.epochs:
            raise Refused("no epoch is planned yet", where=where, fix="let the job run first")
        epoch = self.epochs[-1] if number is None else self.by_number.get(number)
        if epoch is None:
            first, last = self.epochs[0].number, self.epochs[-1].number
            raise Refused(
                f"the checkpoint has no epoch {number}", where=where, fix=f"it has the epochs {first} to {last}"
            )
        return epoch

    def as_facts(self) -> dict[str, Any]:
        """The checkpoint as plain data, without its epochs."""
        return {
            "checkpoint": self.root,
            "marker": None if self.marker is None else asdict(self.marker),
            "query": self.query,
            "operators": [asdict(operator) for operator in self.operators],
            "bytes": self.bytes,
            "files": len(self.entries),
            "bytes_by_part": self.parts,
        }

    def epoch_as_facts(self, epoch: EpochFacts, *, is_full: bool = False) -> dict[str, Any]:
        """An epoch as plain data; in full with its settings, and with the files of its state."""
        state = self.state_of(epoch.number)
        offsets = () if epoch.planned is None else epoch.planned.offsets
        told: dict[str, Any] = {
            "epoch": epoch.number,
            "planned_at": as_iso(epoch.at),
            "is_committed": epoch.is_committed,
            "watermark": as_iso(epoch.watermark),
            "digest": epoch.digest,
            "problem": epoch.problem,
            "partitions": epoch.partitions,
            "state_bytes": None if state is None else state.bytes,
            "state_rows": None if state is None else state.rows,
            "bytes": epoch.bytes,
            "sources": [self._offset_as_facts(epoch.number, offset) for offset in offsets],
        }
        if is_full:
            told["conf"] = {} if epoch.planned is None else dict(epoch.planned.conf)
            told["state"] = [self.store_as_facts(store, epoch.number + 1) for store in self.needed(epoch.number)]
        return told

    def store_as_facts(self, store: Store, version: int) -> dict[str, Any]:
        """The files from which a version of a store is loaded, as plain data."""
        chain = store.chain(version, self.ids(store))
        listed = [snapshot for file in chain.files if (snapshot := self.snapshot(file)) is not None]
        named = {name: count for snapshot in listed for name, count in snapshot.files.items()}
        return {
            "operator": store.operator,
            "partition": store.partition,
            "store": store.name,
            "version": version,
            "snapshot": chain.base or None,
            "changes": sorted({file.version for file in chain.files if not file.is_snapshot}),
            "missing": list(chain.missing),
            "bytes": sum(file.bytes for file in chain.files) + sum(named.values()),
            "files": [file.name for file in chain.files],
            "snapshot_files": sorted(named),
        }

    def _offset_as_facts(self, number: int, offset: Offset) -> dict[str, Any]:
        return {
            "source": offset.source,
            "name": name_of(offset),
            "offset": offset.told,
            "events": self.events(number, offset),
            "partitions": [asdict(one) for one in self.reaches(number, offset)],
        }

    def _before(self, number: int, source: str) -> Places | None:
        if number == 0:
            return self.begins.get(source, _FIRST_ROW)
        epoch = self.by_number.get(number - 1)
        for offset in () if epoch is None or epoch.planned is None else epoch.planned.offsets:
            if offset.source == source:
                return offset.places or {}
        return None


def as_time(ms: int) -> datetime:
    """A time from milliseconds since 1970, as Spark notes it."""
    return datetime.fromtimestamp(ms / 1000, tz=UTC)


def as_iso(time: datetime | None) -> str | None:
    """A time in plain data."""
    return None if time is None else time.isoformat(timespec="milliseconds")


def name_of(offset: Offset) -> str:
    """The name of a source for users: its topics, otherwise its number in the query."""
    topics = {topic for topic, _ in offset.places or () if topic}
    return ", ".join(sorted(topics)) or f"source {offset.source}"


def look_at(tree: Tree) -> CheckpointFacts:
    """What a checkpoint holds now; Refused if there is none."""
    entries = tree.entries()
    where = f"directory {tree.root}"
    if not entries and not tree.exists():
        raise Refused(
            f"{tree.root} does not exist", where=where, fix="name the place of a checkpoint: --checkpoint PLACE"
        )
    names = {entry.name for entry in entries}
    logged = {log: _numbers(names, log) for log in ("offsets", "commits")}
    read = partial(_read, tree)
    query = read_query(read("metadata") or b"")
    if query is None and not any(logged.values()) and not {"metadata", MARKER} & _with_checksums(names):
        raise Refused(
            f"{tree.root} is not a checkpoint: it has neither offsets nor commits nor metadata of a query",
            where=where,
            fix="name the directory that a query uses as its checkpoint; a job of Lockgate keeps it in"
            " .lockgate/checkpoints/JOB",
        )
    stores = tuple(find_stores(entries))
    return CheckpointFacts(
        root=tree.root,
        query=query,
        marker=_read_marker(read(MARKER)),
        epochs=_read_epochs(tree, entries, logged, stores),
        operators=_read_operators(read, names, stores),
        stores=stores,
        entries=tuple(entries),
        begins=_read_begins(read, names),
        read=read,
    )


def read_query(content: bytes) -> str | None:
    """Spark's id of the query from the content of `metadata`; None if it cannot be read."""
    try:
        return take(read_object(content), "id", str)
    except ValueError:
        return None


def _read_marker(content: bytes | None) -> Marker | None:
    """The marker; None if there is none, or if it cannot be read."""
    try:
        return None if content is None else parse_marker(content)
    except ValueError:
        return None


def is_unfinished(name: str) -> bool:
    """Is a file still being written, or left by a process that died? No reader uses it."""
    file = name.rpartition("/")[2]
    return file.endswith((".tmp", ".tmp.crc")) or file.startswith((ASIDE, f".{ASIDE}"))


def _with_checksums(names: Iterable[str]) -> set[str]:
    """The names in the root, and names of which only the checksum is left."""
    return {name.removeprefix(".").removesuffix(".crc") for name in names if "/" not in name}


def _numbers(names: Iterable[str], log: str) -> set[int]:
    return {
        int(file) for folder, _, file in (name.rpartition("/") for name in names) if folder == log and file.isdecimal()
    }


def _read_epochs(
    tree: Tree, entries: Iterable[Entry], logged: Mapping[str, set[int]], stores: Iterable[Store]
) -> tuple[EpochFacts, ...]:
    sizes = {entry.name: entry.bytes for entry in entries}
    left: dict[int, int] = {}
    for file in (file for store in stores for file in store.files):
        left[file.version] = left.get(file.version, 0) + file.bytes
    newest = max(logged["commits"], default=-1)
    accepted = _try(parse_accepted, tree, ACCEPTED, [])[1] or []
    epochs = []
    for number in sorted(logged["offsets"] | logged["commits"]):
        problems: list[str] = []
        offsets, planned = _try(read_offsets, tree, f"offsets/{number}", problems)
        _, ended = _try(read_commit, tree, f"commits/{number}", problems)
        if offsets is None and ended is None and not problems:
            continue  # both are gone since the listing
        epochs.append(
            EpochFacts(
                number=number,
                planned=planned,
                ended=ended,
                is_committed=number <= newest,
                digest=None if offsets is None else digest_of(offsets, number, accepted),
                problem="; ".join(problems) or None,
                bytes=sum(sizes.get(f"{log}/{number}", 0) for log in logged) + left.get(number + 1, 0),
            )
        )
    return tuple(epochs)


def _try(
    parse: Callable[[bytes], Parsed], tree: Tree, name: str, problems: list[str]
) -> tuple[bytes | None, Parsed | None]:
    """The bytes of a file and their parsed content, as far as they can be read."""
    content = None
    try:
        content = tree.read(name)
        return content, None if content is None else parse(content)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        problems.append(f"{name} cannot be read: {error}")
        return content, None


def _read(tree: Tree, name: str) -> bytes | None:
    """The bytes of a file; None if it is missing or cannot be read. `verify` reports the second case."""
    try:
        return tree.read(name)
    except OSError:
        return None


def _read_operators(read: Read, names: set[str], stores: Iterable[Store]) -> tuple[Operator, ...]:
    numbers = {store.operator for store in stores}
    numbers |= {int(found[1]) for name in names if (found := re.match(r"state/(\d+)/_metadata/", name))}
    operators = [read_operator(read, names, number) for number in sorted(numbers)]
    native = [one for one in operators if not one.has_families]
    noted = _native_steps(read("native/steps.json"))
    # The notes have the order of Spark's numbers.
    named = dict(zip((one.id for one in native), noted, strict=True)) if len(noted) == len(native) else {}
    return tuple(replace(one, steps=(named[one.id],)) if one.id in named else one for one in operators)


def _native_steps(content: bytes | None) -> list[str]:
    try:
        return [take(as_object(one), "step", str) for one in as_list(read_json(content or b"[]"))]
    except ValueError:
        return []


def _read_begins(read: Read, names: set[str]) -> dict[str, Places]:
    """Where sources began: Kafka's connector notes it, and sources that count rows begin with the first."""
    found: dict[str, Places] = {}
    for name in sorted(names):
        if (match := re.fullmatch(r"sources/(\d+)/0", name)) is None:
            continue
        try:
            told = read_source_log(read(name) or b"")
        except ValueError:
            continue
        places = Offset(match[1], told[0]).places if len(told) == 1 else None
        if places is not None:
            found[match[1]] = places
    return found
