"""What a checkpoint holds, told from its files alone: of a query of ours or of anybody's, stopped or running.

    offsets/  commits/    the epochs: planned, and committed
    state/                what steps keep for their keys, a version behind every epoch
    sources/              what sources remember: the files that are read, where topics began
    metadata              Spark's id of the query
    lockgate.json         the marker: whose it is, and since when
    tables/  initial/  native/  described/  waiting/  returns/  tries.json    what a run of ours keeps beside them

A driver that runs adds and removes files meanwhile; what is gone by the time it is read counts as never listed. A file
that cannot be read as what it should be is told as a problem of its epoch, and the rest is told nevertheless.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import TypeVar

from lockgate.errors import Refused
from lockgate.files.system import ASIDE
from lockgate.runtime.checkpoints import ACCEPTED, digest_of, parse_accepted
from lockgate.runtime.checksums import is_checksum
from lockgate.runtime.lifecycle.logs import Ended, Offset, Places, Planned, read_commit, read_offsets, read_source_log
from lockgate.runtime.lifecycle.marker import FILE as MARKER
from lockgate.runtime.lifecycle.marker import PARTS, Marker, parse_marker
from lockgate.runtime.lifecycle.operators import Operator, Read, read_operator
from lockgate.runtime.lifecycle.stores import Snapshot, StateFile, Store, find_stores, read_snapshot
from lockgate.runtime.lifecycle.tree import Entry, Tree
from lockgate.runtime.lifecycle.versions import PARTITIONS
from lockgate.untrusted import as_list, as_object, read_json, read_object, take

Parsed = TypeVar("Parsed")

PROVIDER = "spark.sql.streaming.stateStore.providerClass"

_FIRST_ROW: Places = {("", 0): 0}


@dataclass(frozen=True)
class EpochFacts:
    """An epoch that the checkpoint has offsets of, or a commit."""

    number: int
    planned: Planned | None
    ended: Ended | None
    is_committed: bool
    digest: str | None  # SHA-256 of its offsets, as the ledger knows it
    problem: str | None  # why its files cannot be read
    bytes: int  # of its own files: in the logs, and the version of the state that it left

    @property
    def at(self) -> datetime | None:
        """When it was planned, by the clock of its driver."""
        return None if self.planned is None or self.planned.at_ms is None else as_time(self.planned.at_ms)

    @property
    def watermark(self) -> datetime | None:
        """The watermark that it acted on; None where there was none yet."""
        return None if self.planned is None or self.planned.watermark_ms <= 0 else as_time(self.planned.watermark_ms)

    @property
    def partitions(self) -> int | None:
        """Into how many partitions its state is divided."""
        told = {} if self.planned is None else self.planned.conf
        return int(told[PARTITIONS]) if told.get(PARTITIONS, "").isdecimal() else None


@dataclass(frozen=True)
class StateSize:
    """The state behind an epoch."""

    bytes: int  # of the files that it is loaded from
    rows: int | None  # known only where all of it was just put into snapshots


@dataclass(frozen=True)
class Reach:
    """What an epoch read of one partition of a source; `first` is None where that is not known any more."""

    topic: str
    partition: int
    first: int | None
    end: int


@dataclass(frozen=True)
class CheckpointFacts:
    """A checkpoint as it was found at one moment."""

    root: str
    query: str | None
    marker: Marker | None
    epochs: tuple[EpochFacts, ...]
    operators: tuple[Operator, ...]
    stores: tuple[Store, ...]
    entries: tuple[Entry, ...]
    begins: Mapping[str, Places]  # where sources began, by their numbers
    read: Read = field(compare=False)
    _snapshots: dict[str, Snapshot | None] = field(default_factory=dict, compare=False)

    @cached_property
    def by_number(self) -> dict[int, EpochFacts]:
        """The epochs by their numbers."""
        return {epoch.number: epoch for epoch in self.epochs}

    @property
    def committed(self) -> EpochFacts | None:
        """The newest epoch that is committed."""
        return next((epoch for epoch in reversed(self.epochs) if epoch.is_committed), None)

    @property
    def bytes(self) -> int:
        """Of all its files."""
        return sum(entry.bytes for entry in self.entries)

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by what they are for; "others" are files that no checkpoint has, and those that were never finished."""
        found: dict[str, int] = {}
        for entry in self.entries:
            part = entry.name.split("/", 1)[0]
            if is_checksum(part):
                part = part[1:-4]
            known = part if part in PARTS else "others"
            found[known] = found.get(known, 0) + entry.bytes
        return found

    def reaches(self, number: int, offset: Offset) -> tuple[Reach, ...]:
        """What an epoch read of a source, partition by partition; nothing where the source does not count."""
        places = offset.places or {}
        before = self._before(number, offset.source)
        # A partition that was not there before begins where Kafka begins it, which the checkpoint does not tell.
        return tuple(
            Reach(topic, partition, None if before is None else before.get((topic, partition)), end)
            for (topic, partition), end in sorted(places.items())
        )

    def events(self, number: int, offset: Offset) -> int | None:
        """How many events an epoch read of a source; None where that is not known.

        Of Kafka it is the offsets that are counted, and these count the ends of transactions, too.
        """
        reaches = self.reaches(number, offset)
        known = [one.end - one.first for one in reaches if one.first is not None]
        return sum(known) if known and len(known) == len(reaches) else None

    def state_of(self, number: int) -> StateSize | None:
        """The size of the state behind an epoch; None where there is none, or where it cannot be loaded any more."""
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
        """The stores which have the state behind an epoch."""
        epoch = self.by_number.get(number)
        count = None if epoch is None else epoch.partitions
        return [store for store in self.stores if count is None or store.partition < count]

    def ids(self, store: Store) -> dict[int, frozenset[str]]:
        """The ids of the files that count in a store, by version, where the log of commits tells them."""
        found = {}
        for epoch in self.epochs:
            partitions = () if epoch.ended is None else epoch.ended.ids.get(store.operator, ())
            if store.partition < len(partitions):
                found[epoch.number + 1] = partitions[store.partition]
        return found

    def snapshot(self, file: StateFile) -> Snapshot | None:
        """What a snapshot of RocksDB lists; None where it is another file, or is not whole."""
        if not file.name.endswith(".zip"):
            return None
        if file.name not in self._snapshots:
            content = self.read(file.name)
            try:
                self._snapshots[file.name] = None if content is None else read_snapshot(content)
            except ValueError:
                self._snapshots[file.name] = None
        return self._snapshots[file.name]

    def _before(self, number: int, source: str) -> Places | None:
        if number == 0:
            return self.begins.get(source, _FIRST_ROW)
        epoch = self.by_number.get(number - 1)
        for offset in () if epoch is None or epoch.planned is None else epoch.planned.offsets:
            if offset.source == source:
                return offset.places or {}
        return None


def as_time(ms: int) -> datetime:
    """Milliseconds since 1970, as Spark notes times."""
    return datetime.fromtimestamp(ms / 1000, tz=UTC)


def name_of(offset: Offset) -> str:
    """What people call a source: its topics, else its number in the query."""
    topics = {topic for topic, _ in offset.places or () if topic}
    return ", ".join(sorted(topics)) or f"source {offset.source}"


def look_at(tree: Tree) -> CheckpointFacts:
    """What a checkpoint holds now; Refused where there is none."""
    entries = tree.entries()
    where = f"directory {tree.root}"
    if not entries and not tree.exists():
        raise Refused(
            f"there is nothing at {tree.root}", where=where, fix="name the place of a checkpoint: --checkpoint PLACE"
        )
    names = {entry.name for entry in entries}
    logged = {log: _numbers(names, log) for log in ("offsets", "commits")}
    read = partial(_read, tree)
    query = read_query(read("metadata") or b"")
    if query is None and not any(logged.values()) and not {"metadata", MARKER} & _with_checksums(names):
        raise Refused(
            f"{tree.root} is no checkpoint: it has neither offsets nor commits nor metadata of a query",
            where=where,
            fix="name the directory that a query was given as its checkpoint; one of Lockgate's jobs keeps it in"
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
    """Spark's id of the query, out of the file that has it; None where it cannot be read."""
    try:
        return take(read_object(content), "id", str)
    except ValueError:
        return None


def _read_marker(content: bytes | None) -> Marker | None:
    """What the marker says; None where there is none, and where it cannot be read."""
    try:
        return None if content is None else parse_marker(content)
    except ValueError:
        return None


def is_unfinished(name: str) -> bool:
    """Is a file still being written, or left behind by somebody who was? Nobody reads it."""
    file = name.rpartition("/")[2]
    return file.endswith((".tmp", ".tmp.crc")) or file.startswith((ASIDE, f".{ASIDE}"))


def _with_checksums(names: Iterable[str]) -> set[str]:
    """The files of the root that are there, or that have left their checksums there."""
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
            continue  # gone since they were listed
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
    """The bytes of a file and what they say, as far as they can be read."""
    content = None
    try:
        content = tree.read(name)
        return content, None if content is None else parse(content)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        problems.append(f"{name} cannot be read: {error}")
        return content, None


def _read(tree: Tree, name: str) -> bytes | None:
    """The bytes of a file; None, too, where it cannot be read: to say so is for those who verify."""
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
    # They are noted in the order in which Spark numbers them.
    named = dict(zip((one.id for one in native), noted, strict=True)) if len(noted) == len(native) else {}
    return tuple(replace(one, steps=(named[one.id],)) if one.id in named else one for one in operators)


def _native_steps(content: bytes | None) -> list[str]:
    try:
        return [take(as_object(one), "step", str) for one in as_list(read_json(content or b"[]"))]
    except ValueError:
        return []


def _read_begins(read: Read, names: set[str]) -> dict[str, Places]:
    """Where sources began: Kafka's connector notes it, and those that count rows began with the first."""
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
