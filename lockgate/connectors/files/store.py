"""A directory as a resource: the files of an epoch are written anywhere, and count once a manifest names them.

    data/<job>/<epoch>-<token>/[column=value/]part-*     what was staged; a new directory for every try
    data/<job>/<epoch>-<token>/_files.json               which files, of what size: what is published under that name
    _lockgate/<job>/<sequence>.json                      the manifests: the ledger, and the files that count

    stage     Spark writes the files; they are made durable, then listed
    publish   look at the newest manifest, then create the next one: only one writer can
    remove    delete directories of this job that no manifest names

Readers use manifests, so a directory that none names is not visible, and one manifest shows all files of an epoch.
It is safe to remove directories after the claim of the ledger: then no other driver can publish what was staged before.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockgate.commit.ledger import Entry
from lockgate.commit.resource import Resource
from lockgate.connectors.files.confined import LeadsOutside, is_inside
from lockgate.connectors.files.filesystem import System
from lockgate.connectors.files.manifest import DATA, DataFile, Group, group_of, row_bytes_of
from lockgate.connectors.files.manifestlog import MANIFESTS, ManifestLog
from lockgate.connectors.files.rows import ddl_of, write_rows
from lockgate.errors import EpochFailed, InvariantBroken, Moved, Refused
from lockgate.untrusted import Unreadable, excerpt, read_object, take

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

COMPACTED = "compact-"
"""How the names of the directories of compactions begin; they are no leftovers of the job."""

ROW_BYTES = 100.0
"""Bytes of a row, until an epoch was measured."""

_FILES = "_files.json"
_FILES_BYTES_MAX = 256 << 20
_TRIES = 100
_TELLING_BYTES = 64 << 10  # a smaller file is mostly header and footer, and says little about a row


@dataclass(frozen=True)
class Written:
    """The content of a staged directory: its files, and how long a row is, if that could be measured."""

    group: Group
    row_bytes: float | None


class FileStore(Resource):
    """The files of one output of a job."""

    def __init__(self, system: System, job: str, *, kind: str, partition_by: tuple[str, ...], roll_bytes: int) -> None:
        self.where = f"files of job {job!r} in {system.root}"
        self._system = system
        self._job = job
        self._kind = kind
        self._partition_by = partition_by
        self._roll_bytes = roll_bytes
        self._log = ManifestLog(system, job)

    def read(self) -> Entry | None:
        with _translated_errors(self.where):
            history = self._log.read()
            # A driver may have died right after it put this manifest in place: it must survive before we act on it.
            self._log.settle()
            return history.entry

    def stage(self, rows: Mapping[str, DataFrame], epoch: int) -> str:
        (frame,) = rows.values()
        with _translated_errors(self.where):
            row_bytes = self._log.read().row_bytes or ROW_BYTES
        directory = self.fresh_directory(epoch)
        write_rows(
            frame,
            self._system.uri(directory),
            kind=self._kind,
            partition_by=self._partition_by,
            rows_per_file=rows_within(self._roll_bytes, row_bytes),
        )
        return self.seal(directory, ddl_of(frame))

    def fresh_directory(self, epoch: int) -> str:
        """A directory that was never used, and never will be by another try."""
        return f"{DATA}/{self._job}/{epoch}-{secrets.token_hex(8)}"

    def seal(self, directory: str, schema: str) -> str:
        """Make the content of a directory durable; return the name under which it can be published."""
        with _translated_errors(self.where):
            return seal(
                self._system,
                directory,
                Group(kind=self._kind, schema=schema, partition_by=self._partition_by, files=()),
            )

    def publish(self, staged: str | None, entry: Entry, *, after: Entry | None) -> None:
        if staged is not None and not directory_of(staged).startswith(f"{DATA}/{self._job}/"):
            raise _no_name("it names a directory of another job", staged)
        with _translated_errors(self.where):
            for _ in range(_TRIES):
                history = self._log.read()
                if history.entry != after:
                    raise Moved(
                        f"the ledger of job {self._job!r} says {_shown(history.entry)}, and not {_shown(after)}",
                        where=self.where,
                        fix="another driver of the job has committed; nothing was changed",
                    )
                written = None if staged is None else unseal(self._system, staged, self.where)
                if written is not None and staged is not None and directory_of(staged) in history.directories:
                    raise InvariantBroken(
                        f"what was staged in {directory_of(staged)} is committed already, and would be visible twice",
                        where=self.where,
                        fix="nothing was changed; run the job again, and report this",
                    )
                groups = () if written is None else (written.group,)
                row_bytes = None if written is None else written.row_bytes
                if self._log.add(history.next_manifest(entry, groups, row_bytes)):
                    return
                # Taken: by a compaction, which does not change the ledger, or by another driver, which does.
        raise EpochFailed(
            f"the next manifest was taken {_TRIES} times",
            where=self.where,
            fix="run fewer compactions of this directory at the same time; the epoch is repeated",
        )

    def leftovers(self) -> Collection[str]:
        with _translated_errors(self.where):
            # Directories before manifests: one that is published in between is not among them.
            folder = f"{DATA}/{self._job}"
            names = [name for name in self._system.names(folder) if not name.startswith(COMPACTED)]
            named = self._log.read().directories
            staged = (directory for name in names if (directory := f"{folder}/{name}") not in named)
            return (*staged, *self._log.asides())

    def remove(self, leftovers: Collection[str]) -> None:
        with _translated_errors(self.where):
            named = self._log.read().directories  # a leftover may have been published since
            for name in leftovers:
                if name.startswith(f"{self._log.folder}/"):
                    self._system.delete(name)
                elif name not in named:
                    remove_directory(self._system, name)


def rows_within(roll_bytes: int, row_bytes: float) -> int:
    """After how many rows a file is cut; approximate, because rows have different sizes."""
    return max(1, min(int(roll_bytes / row_bytes), (1 << 63) - 1))


def seal(system: System, directory: str, alike: Group) -> str:
    """List the files of a written directory, and make all of it durable; return the name for publishing it."""
    files = tuple(
        DataFile(path=path, bytes=size, rows=_count_rows(system, path, alike.kind))
        for path, size in sorted(system.files(directory).items())
    )
    filled = tuple(file for file in files if file.rows != 0 and file.bytes)  # Spark writes a file for no rows, too
    group = Group(kind=alike.kind, schema=alike.schema, partition_by=alike.partition_by, files=filled)
    facts = {**group.as_facts(), "row_bytes": _measure(system, group)}
    content = json.dumps(facts).encode()
    system.write(f"{directory}/{_FILES}", content)
    system.sync(directory)
    # The list stays beside the files: the name goes into the ledger of another system, and must be short there.
    return json.dumps({"directory": directory, "files": len(filled), "digest": hashlib.sha256(content).hexdigest()})


def unseal(system: System, staged: str, where: str) -> Written:
    """The content that was sealed under a name; raises EpochFailed unless every file is there, complete."""
    directory = directory_of(staged)
    content = system.read(f"{directory}/{_FILES}", limit=_FILES_BYTES_MAX + 1)
    if content is None:
        raise _gone(f"what was staged in {directory} was removed", where)
    try:
        if hashlib.sha256(content).hexdigest() != take(read_object(staged), "digest", str):
            raise Unreadable("it is not the one that was staged")
        facts = read_object(content, bytes_max=_FILES_BYTES_MAX)
        group, row_bytes = group_of(facts, directory), row_bytes_of(facts)
    except Unreadable as error:
        raise _gone(f"the list {directory}/{_FILES} cannot be used: {error}", where) from None
    found = {} if system.find_link([directory]) else system.files(directory)
    for file in group.files:
        if found.get(file.path) != file.bytes:
            there = "is gone" if file.path not in found else f"has {found[file.path]} bytes, not {file.bytes}"
            raise _gone(f"the staged file {file.path} {there}", where)
    return Written(group=group, row_bytes=row_bytes)


def directory_of(staged: str) -> str:
    """The directory of a name."""
    try:
        directory = take(read_object(staged), "directory", str)
        folder, _, name = directory.rpartition("/")
        if not (is_inside(directory) and folder.startswith(f"{DATA}/") and folder.count("/") == 1 and name):
            raise Unreadable(f"{excerpt(directory)} is not the directory of an epoch")
    except Unreadable as error:
        raise _no_name(str(error), staged) from None
    return directory


def _no_name(why: str, staged: str) -> InvariantBroken:
    return InvariantBroken(
        f"this is not a name under which files are staged ({why}): {excerpt(staged)}",
        where="a ledger that names what is staged",
        fix="it belongs to another kind of sink; was the job changed under the same name?",
    )


def remove_directory(system: System, directory: str) -> None:
    """Remove what was staged; after the first step it cannot be published any more."""
    with suppress(LeadsOutside):  # the directory is a link: it is removed, and its target stays
        system.delete(f"{directory}/{_FILES}")
    try:
        system.delete(directory)
    except (
        OSError
    ) as error:  # a task that outlived its driver writes there; no reader sees it, the next run tries again
        log.info("%s/%s is not removed yet: %s", system.root, directory, error)


def check_place(system: System, where: str) -> None:
    """Refuse a directory with other files in it, or one in which a file can be put in place twice."""
    try:
        names = [name for name in system.names("") if not name.startswith((".", "_"))]
        if foreign := [name for name in names if name != DATA or not system.exists(MANIFESTS)]:
            raise Refused(
                f"{system.root} has files in it that no manifest names, such as {foreign[0]!r}: readers would see them"
                " twice, or never",
                where=where,
                fix="name a new directory; or move these files to another one, and let readers read both",
            )
        probe = f"{MANIFESTS}/.probe-{secrets.token_hex(8)}"
        wins = [system.publish(probe, b"first"), system.publish(probe, b"second")]
        is_first = system.read(probe) == b"first"
        system.delete(probe)
    except OSError as error:
        raise Refused(
            f"{system.root} cannot be used: {error}",
            where=where,
            fix="name a directory that may be written to, on a disk that knows hard links or on an HDFS that answers",
        ) from error
    if wins != [True, False] or not is_first:
        raise Refused(
            f"{system.root} lets a file be replaced by a rename or a link, so two drivers could both commit an epoch",
            where=where,
            fix="name a directory on a local disk or on hdfs://; or declare Guarantee.AT_LEAST_ONCE",
        )


@contextmanager
def _translated_errors(where: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EpochFailed(
            f"the file system failed: {error}",
            where=where,
            fix="see that the disk has room and may be written to, and that HDFS answers; the ledger is read before"
            " anything is repeated",
        ) from error


def _gone(what: str, where: str) -> EpochFailed:
    return EpochFailed(what, where=where, fix="nothing was changed; the epoch is staged again")


def _shown(entry: Entry | None) -> str:
    return "nothing" if entry is None else f"epoch {entry.epoch} by run {entry.run}"


def _count_rows(system: System, path: str, kind: str) -> int | None:
    return system.parquet_rows(path) if kind == "parquet" else None


def _measure(system: System, group: Group) -> float | None:
    """Bytes of a row, to cut the files of the next epoch."""
    largest = max(group.files, key=lambda file: file.bytes, default=None)
    if largest is None:
        return None
    if largest.rows is None:
        head = system.read(largest.path, limit=_TELLING_BYTES) or b""
        return len(head) / lines if (lines := head.count(b"\n")) else None
    return largest.bytes / largest.rows if largest.bytes >= _TELLING_BYTES else None
