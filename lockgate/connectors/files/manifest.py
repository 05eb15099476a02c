"""Manifests: which files count. Pure: what one says, and what all of them together say.

A manifest is JSON and is never changed once it is in place. It is a contract between versions of Lockgate and with
readers that do not have Lockgate. Its place is `_lockgate/<job>/<sequence, 20 digits>.json`:

    format       1
    sequence     1, 2, 3, ... without a gap; the writer that creates a number has won it
    is_snapshot  true: `groups` is all that counts; false: it is added to what the manifests before it say
    entry        the ledger (lockgate.commit.ledger): which epoch is committed
    groups       files that were written alike: `kind` (parquet, json, csv), `schema` (Spark DDL), `partition_by`, and
                 `files`, each [path below the root, bytes, rows or null]
    replaced     in a snapshot: files that do not count any more and are not deleted yet, each [path, since when]
    row_bytes    how many bytes a row took lately, or null

The newest manifest alone is the ledger. What counts is the newest snapshot and every manifest after it.

Every program that may write to the directory may write a manifest, and a compaction deletes files that one calls
replaced. So the reader refuses a path that does not lie in a directory of this job, data/<job>/<directory>/.

A file also has the values of its partition columns, under their names with two underscores before them: the name of a
directory cannot distinguish an empty text from null. The names of directories are for people and for tools that prune.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from lockgate.commit.ledger import Entry, entry_from
from lockgate.connectors.files.confined import is_inside
from lockgate.errors import InvariantBroken
from lockgate.untrusted import Unreadable, as_object, as_type, excerpt, read_object, take

FORMAT = 1

DATA = "data"
"""The folder of the files of all jobs; each job has a folder with its name in it."""

BYTES_MAX = 1 << 30  # a snapshot names every file that counts, with about a hundred bytes each

SNAPSHOT_EVERY = 50
"""At most this many manifests are read to know which files count."""

NULL = "__HIVE_DEFAULT_PARTITION__"
"""The name that Spark and Hive give to the directory of null, and of the empty text."""


@dataclass(frozen=True)
class DataFile:
    """A file that counts; `rows` if known."""

    path: str
    bytes: int
    rows: int | None = None

    @property
    def directory(self) -> str:
        """The directory of the staging, or the compaction, that wrote it."""
        return "/".join(self.path.split("/")[:3])

    @property
    def partition(self) -> str:
        """The part of the path that names the values of its partition columns; empty if there are none."""
        return "/".join(self.path.split("/")[3:-1])


def partition_values(path: str) -> dict[str, str | None]:
    """The values in a path, as text; None for null, and for an empty text, which share a directory.

    >>> partition_values("data/job/0-ab/day=2026-01-01/city=S%C3%A3o%2FRio/part-0.json")["day"]
    '2026-01-01'
    """
    pairs = [part.partition("=") for part in path.split("/")[3:-1]]
    return {_plain(name): None if value == NULL else _plain(value) for name, _, value in pairs}


def _plain(text: str) -> str:
    """Spark escapes one character at a time, as %XX, and does not escape what is not ASCII."""
    return re.sub(r"%([0-9A-Fa-f]{2})", lambda found: chr(int(found[1], 16)), text)


@dataclass(frozen=True)
class Group:
    """Files that were written alike, so that they can be read together."""

    kind: str
    schema: str
    partition_by: tuple[str, ...]
    files: tuple[DataFile, ...]

    @property
    def likeness(self) -> tuple[str, str, tuple[str, ...]]:
        """What two groups must share to be one."""
        return (self.kind, self.schema, self.partition_by)

    def as_facts(self) -> dict[str, Any]:
        """The group as plain data."""
        files = [[file.path, file.bytes, file.rows] for file in self.files]
        return {"kind": self.kind, "schema": self.schema, "partition_by": list(self.partition_by), "files": files}


def group_of(facts: Mapping[str, Any], folder: str) -> Group:
    """The group in plain data, of files below a folder; Unreadable if there is none."""
    return Group(
        kind=take(facts, "kind", str),
        schema=take(facts, "schema", str),
        partition_by=tuple(as_type(name, str, "partition_by") for name in take(facts, "partition_by", list)),
        files=tuple(_file_of(one, folder) for one in take(facts, "files", list)),
    )


def _file_of(facts: object, folder: str) -> DataFile:
    match facts:
        case [path, size, rows]:
            return DataFile(
                path=_path_below(path, folder),
                bytes=as_type(size, int, "bytes"),
                rows=None if rows is None else as_type(rows, int, "rows"),
            )
    raise Unreadable(f"{excerpt(facts)} is not a file: a list of its path, its bytes and its rows")


def _replaced_of(facts: object, folder: str) -> Replaced:
    match facts:
        case [path, since]:
            moment = as_type(since, str, "since")
            if datetime.fromisoformat(moment).tzinfo is None:
                raise Unreadable(f"{excerpt(moment)} has no time zone")
            return Replaced(path=_path_below(path, folder), since=moment)
    raise Unreadable(f"{excerpt(facts)} is not a replaced file: a list of its path, and since when")


def _path_below(path: object, folder: str) -> str:
    name = as_type(path, str, "path")
    if not (is_inside(name) and name.startswith(f"{folder}/")):
        raise Unreadable(f"the path {excerpt(name)} does not lie in {folder}")
    return name


def row_bytes_of(facts: Mapping[str, Any]) -> float | None:
    """How many bytes a row took, according to plain data."""
    if "row_bytes" not in facts:
        raise Unreadable("'row_bytes' is missing")
    value = facts["row_bytes"]
    return None if value is None else float(as_type(value, (int, float), "row_bytes"))


@dataclass(frozen=True)
class Replaced:
    """A file that does not count any more; readers that started before may still read it."""

    path: str
    since: str


@dataclass(frozen=True)
class Manifest:
    """What one manifest says."""

    sequence: int
    entry: Entry
    groups: tuple[Group, ...] = ()
    is_snapshot: bool = False
    replaced: tuple[Replaced, ...] = ()
    row_bytes: float | None = None

    @property
    def paths(self) -> Iterator[str]:
        """Every file that it names."""
        yield from (file.path for group in self.groups for file in group.files)
        yield from (one.path for one in self.replaced)

    def to_bytes(self) -> bytes:
        """The manifest as it is written."""
        facts = {
            "format": FORMAT,
            "sequence": self.sequence,
            "is_snapshot": self.is_snapshot,
            "entry": self.entry.as_facts(),
            "row_bytes": self.row_bytes,
            "groups": [group.as_facts() for group in self.groups],
            "replaced": [[one.path, one.since] for one in self.replaced],
        }
        return json.dumps(facts).encode()


class NewerFormat(InvariantBroken):
    """The manifest is not damaged; another version of Lockgate reads it."""


def manifest_of(content: bytes, job: str, where: str) -> Manifest:
    """The manifest of a job, from its bytes."""
    try:
        facts = read_object(content, bytes_max=BYTES_MAX)
        kind = take(facts, "format", int)
        if kind != FORMAT:
            raise NewerFormat(
                f"the manifest has format {excerpt(kind)}; this version of Lockgate knows {FORMAT}",
                where=where,
                fix="use the version of Lockgate that wrote it, or a newer one",
            )
        folder = f"{DATA}/{job}"
        return Manifest(
            sequence=take(facts, "sequence", int),
            entry=entry_from(take(facts, "entry", dict), where),
            groups=tuple(group_of(as_object(one), folder) for one in take(facts, "groups", list)),
            is_snapshot=take(facts, "is_snapshot", bool),
            replaced=tuple(_replaced_of(one, folder) for one in take(facts, "replaced", list)),
            row_bytes=row_bytes_of(facts),
        )
    except ValueError as error:
        raise damaged(str(error), content, job, where) from None


def damaged(why: str, content: bytes, job: str, where: str) -> InvariantBroken:
    """The error for a manifest that is not as it was written."""
    return InvariantBroken(
        f"the manifest cannot be read ({why}): {excerpt(content)}",
        where=where,
        fix="manifests are never changed once in place: bring it back from a copy, or, if another program put it"
        f" there, move it away; the data files are untouched. {go_on(job)}",
    )


def go_on(job: str) -> str:
    """What a person without a copy of a manifest can do."""
    return (
        f"Without a copy: lockgate ledger set {job} --epoch N --checkpoint PLACE --files DIR continues from the"
        " manifests before it, and says first what that gives up"
    )


@dataclass(frozen=True)
class History:
    """What all manifests up to one say together; sequence 0 is before the first."""

    sequence: int = 0
    entry: Entry | None = None
    groups: tuple[Group, ...] = ()
    replaced: tuple[Replaced, ...] = ()
    row_bytes: float | None = None

    @property
    def files(self) -> tuple[DataFile, ...]:
        """The files that count."""
        return tuple(file for group in self.groups for file in group.files)

    @property
    def directories(self) -> frozenset[str]:
        """The directories with a file that counts, or that did and is not deleted yet."""
        gone = (DataFile(path=one.path, bytes=0) for one in self.replaced)
        return frozenset(file.directory for file in (*self.files, *gone))

    def followed_by(self, manifest: Manifest) -> History:
        """What they say together with one more."""
        if manifest.is_snapshot:
            groups, replaced = manifest.groups, manifest.replaced
        else:
            groups, replaced = merge_groups((*self.groups, *manifest.groups)), self.replaced
        return History(
            sequence=manifest.sequence,
            entry=manifest.entry,
            groups=groups,
            replaced=replaced,
            row_bytes=manifest.row_bytes,
        )

    def next_manifest(self, entry: Entry, groups: Sequence[Group], row_bytes: float | None) -> Manifest:
        """The manifest that adds these files, or says everything if a snapshot is due."""
        kept = self.row_bytes if row_bytes is None else row_bytes
        added = Manifest(sequence=self.sequence + 1, entry=entry, groups=tuple(groups), row_bytes=kept)
        if added.sequence % SNAPSHOT_EVERY != 0:
            return added
        return replace(added, is_snapshot=True, groups=merge_groups((*self.groups, *groups)), replaced=self.replaced)


def merge_groups(groups: Iterable[Group]) -> tuple[Group, ...]:
    """The same files, grouped by how they were written; the group that was added to last comes last."""
    merged: dict[tuple[str, str, tuple[str, ...]], Group] = {}
    for group in groups:
        known = merged.pop(group.likeness, None)
        merged[group.likeness] = group if known is None else replace(known, files=known.files + group.files)
    return tuple(merged.values())
