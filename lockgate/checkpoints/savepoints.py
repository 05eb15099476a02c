"""A savepoint: a copy of a checkpoint at one epoch. A job can continue from it in another place.

    savepoint.json      what it is: job, epoch, offsets, ledger, versions; SHA-256 and size of every file
    checkpoint/...      the files that a run needs to continue after that epoch, and no others

The copy is written under another name and moved into place as a whole, so a savepoint under its own name is complete.
Files of a finished epoch do not change any more, so a savepoint may be taken while the job runs. If the job has
removed a file in the meantime, the copy starts over with a newer epoch.

Spark keeps absolute paths of the schemas of its state. `lay_out` rewrites them for the new place. Sources of files
keep absolute paths of the files that they have read. These stay, so the files must have the same paths (positions.py).
"""

from __future__ import annotations

import hashlib
import json
import platform
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.metadata import version
from typing import Any
from uuid import uuid4

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.checkpoints.checksums import is_checksum
from lockgate.checkpoints.cleaning import is_leftover
from lockgate.checkpoints.history import History, look_at
from lockgate.checkpoints.tree import Tree
from lockgate.checkpoints.versions import files_of_epoch
from lockgate.commit.ledger import Entry, entry_from
from lockgate.connectors.files.confined import is_inside
from lockgate.connectors.files.filesystem import NotAFile
from lockgate.connectors.returned import FOLDER
from lockgate.errors import CheckpointDamaged, Failed, InvariantBroken, Refused
from lockgate.untrusted import Unreadable, as_list, as_object, as_type, excerpt, read_object, take, take_nullable

FILE = "savepoint.json"
FILES = "checkpoint"
FORMAT = 1
_LOOKS = 5
_BYTES_MAX = 256 << 20
_STATE_NOTES = ("/_metadata/", "/_stateSchema/")
_SCHEMAS = "/_metadata/v2/"


@dataclass(frozen=True)
class SavedFile:
    """A file as it was copied."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Savepoint:
    """What a savepoint says about itself."""

    job: str
    epoch: int  # the last finished one
    query: str
    digest: str  # of offsets/<epoch>
    made: str
    offsets: Mapping[str, Mapping[str, int]]  # after the epoch, of Kafka sources
    ledger: Mapping[str, Any] | None  # the deciding ledger as it fits the copy; None if the job has none
    versions: Mapping[str, str]
    files: tuple[SavedFile, ...] = ()

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def places(self) -> dict[tuple[str, int], int]:
        """The offsets by topic and partition."""
        return {(topic, int(at)): offset for topic, ends in self.offsets.items() for at, offset in ends.items()}

    def entry(self, run: str, query: str, now: datetime) -> Entry:
        """The ledger entry after which this savepoint continues."""
        told: Mapping[str, Any] = {} if self.ledger is None else self.ledger
        return Entry(
            run=run,
            query=query,
            epoch=told.get("epoch", self.epoch),
            digest=told.get("digest", self.digest),
            at=now.isoformat(timespec="milliseconds"),
        )

    def as_facts(self) -> dict[str, Any]:
        """As plain data."""
        return {"format": FORMAT, **asdict(self)}


def take_savepoint(
    tree: Tree, checkpoint: Checkpoint, place: Tree, *, job: str, ledger: Entry | None, now: datetime, is_live: bool
) -> Savepoint:
    """Copy a checkpoint at its last epoch to a place that does not exist yet.

    Args:
        ledger: the entry of the deciding ledger; Spark may not have logged its epoch yet.
    """
    refuse_taken(place)
    parent, name = place.parent()
    aside = f"{name}.part-{secrets.token_hex(4)}"
    for look in range(1, _LOOKS + 1):
        try:
            made = _copy(look_at(tree), checkpoint, parent.below(aside), job=job, ledger=ledger, now=now)
            parent.move(aside, name)
        except (FileNotFoundError, CheckpointDamaged) as error:
            parent.remove(aside)
            # A listing takes time: of a live job it may have a commit without its offsets.
            if isinstance(error, CheckpointDamaged) and (not is_live or look == _LOOKS):
                raise
            if not is_live or look == _LOOKS:
                raise Failed(
                    f"a file disappeared while the checkpoint was copied: {error}",
                    where=f"checkpoint {tree.root}",
                    fix="let the job keep more epochs (lockgate run --keep-epochs), or stop it first",
                ) from None
        except BaseException:
            parent.remove(aside)
            raise
        else:
            return made
    raise AssertionError


def refuse_taken(place: Tree) -> None:
    """Refuse a place that exists."""
    if place.exists():
        raise Refused(f"{place.root} exists already", where="command line", fix="name a place that does not exist")


def read_savepoint(place: Tree) -> Savepoint:
    """What a savepoint says about itself, after every file was compared with its hash."""
    where = f"savepoint {place.root}"
    try:
        content = place.read(FILE)
    except NotAFile as error:
        raise Refused(f"{FILE} cannot be read: {error}", where=where, fix="restore it from a copy") from None
    if content is None:
        raise Refused(
            f"there is no {FILE}, so this is not a savepoint", where=where, fix="name the place of a savepoint"
        )
    try:
        saved = _savepoint_of(read_object(content, bytes_max=_BYTES_MAX), where)
    except (ValueError, InvariantBroken) as error:
        told = error.what if isinstance(error, InvariantBroken) else str(error)
        raise Refused(f"{FILE} cannot be read: {told}", where=where, fix="restore it from a copy") from None
    files = saved.files
    names = {entry.name.removeprefix(f"{FILES}/") for entry in place.entries(FILES) if not is_checksum(entry.name)}
    listed = {file.name for file in files}
    if names != listed:
        odd = sorted(names ^ listed)
        raise Refused(
            f"{len(odd)} files are missing, or exist and are not listed, e.g. {odd[0]}",
            where=where,
            fix="restore the savepoint from a copy",
        )
    for file in files:
        data = place.read(f"{FILES}/{file.name}") or b""
        if (len(data), hashlib.sha256(data).hexdigest()) != (file.bytes, file.sha256):
            raise Refused(
                f"the file {file.name} changed after it was saved ({len(data)} bytes)",
                where=where,
                fix="restore the savepoint from a copy",
            )
    return saved


def _savepoint_of(told: Mapping[str, Any], where: str) -> Savepoint:
    """A savepoint from plain data; Unreadable if the data is not what `as_facts` gives."""
    if take(told, "format", int) != FORMAT:
        raise Unreadable(f"this version of Lockgate knows format {FORMAT}")
    ledger = take_nullable(told, "ledger", dict)
    if ledger is not None:
        entry_from(ledger, where)
    return Savepoint(
        job=take(told, "job", str),
        epoch=take(told, "epoch", int),
        query=take(told, "query", str),
        digest=take(told, "digest", str),
        made=take(told, "made", str),
        offsets={
            topic: {str(int(at)): as_type(end, int, topic) for at, end in as_object(ends).items()}
            for topic, ends in take(told, "offsets", dict).items()
        },
        ledger=ledger,
        versions={name: as_type(one, str, name) for name, one in take(told, "versions", dict).items()},
        files=tuple(_saved_file_of(as_object(one)) for one in take(told, "files", list)),
    )


def _saved_file_of(told: Mapping[str, Any]) -> SavedFile:
    name = take(told, "name", str)
    if not is_inside(name):
        raise Unreadable(f"{excerpt(name)} is outside a checkpoint")
    return SavedFile(name, take(told, "bytes", int), take(told, "sha256", str))


def lay_out(saved: Savepoint, place: Tree, aside: Tree, *, root: str, query: str) -> None:
    """Write the files of a savepoint as a checkpoint for this root, under this query's id."""
    for file in saved.files:
        data = place.read(f"{FILES}/{file.name}")
        if data is None or hashlib.sha256(data).hexdigest() != file.sha256:
            raise Failed(
                f"the file {file.name} changed while it was copied",
                where=f"savepoint {place.root}",
                fix="restore the savepoint from a copy",
            )
        if file.name == "metadata":
            data = json.dumps({"id": query}).encode()
        elif _SCHEMAS in file.name:
            try:
                data = _with_root(data, root)
            except ValueError as error:
                raise Refused(
                    f"the file {file.name} does not say where the schemas of its state are: {error}",
                    where=f"savepoint {place.root}",
                    fix="restore the savepoint from a copy",
                ) from None
        aside.write(file.name, data)


def new_query() -> str:
    """A new id for a query; Spark keeps it in the checkpoint."""
    return str(uuid4())


def _copy(
    history: History, checkpoint: Checkpoint, aside: Tree, *, job: str, ledger: Entry | None, now: datetime
) -> Savepoint:
    epoch = history.last
    where = f"checkpoint {checkpoint.root}"
    digest, query = checkpoint.digest(epoch), checkpoint.query()
    if digest is None or query is None:
        raise FileNotFoundError(f"offsets/{epoch}, or metadata")
    # The next epoch may be committed although Spark has not logged it. Its offsets go along, so that a run can see it.
    is_next_out = ledger is not None and ledger.epoch == epoch + 1 and ledger.digest == checkpoint.digest(epoch + 1)
    entry = None
    if ledger is not None:
        entry = ledger if is_next_out else Entry(ledger.run, query, epoch, digest, ledger.at)
    _refuse_waiting(history, epoch, where)
    files = []
    for name in _names(history, epoch, last_planned=epoch + 1 if is_next_out else epoch):
        data = checkpoint.read(name)
        if data is None:
            raise FileNotFoundError(name)
        aside.write(f"{FILES}/{name}", data)
        files.append(SavedFile(name, len(data), hashlib.sha256(data).hexdigest()))
    offsets: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(checkpoint.kafka_offsets(epoch).items()):
        offsets.setdefault(topic, {})[str(partition)] = offset
    saved = Savepoint(
        job=job,
        epoch=epoch,
        query=query,
        digest=digest,
        made=now.isoformat(timespec="milliseconds"),
        offsets=offsets,
        ledger=None if entry is None else entry.as_facts(),
        versions={"lockgate": version("lockgate"), "spark": version("pyspark"), "python": platform.python_version()},
        files=tuple(files),
    )
    aside.write(FILE, json.dumps(saved.as_facts(), indent=1).encode())
    return saved


def _names(history: History, epoch: int, *, last_planned: int) -> list[str]:
    """The files that a run needs to continue after an epoch."""
    found = ["metadata"]
    found += [f"offsets/{number}" for number in history.planned if epoch - 1 <= number <= last_planned]
    found += [f"commits/{number}" for number in history.committed if epoch - 1 <= number <= epoch]
    found += files_of_epoch(history.listings, history.stores, epoch, history.partitions(epoch))
    for name in history.entries:
        file = name.rpartition("/")[2]
        if is_checksum(name) or is_leftover(name, history):
            continue
        is_note = "/epochs/" in name or _SCHEMAS in name
        is_later = is_note and file.isdecimal() and int(file) > last_planned
        is_state_note = name.startswith("state/") and any(one in name for one in _STATE_NOTES)
        if (is_state_note or name.startswith(("sources/", "native/", "described/", "tables/"))) and not is_later:
            found.append(name)
    return sorted(found)


def _refuse_waiting(history: History, epoch: int, where: str) -> None:
    """Refuse if events wait for a retry: they belong to no epoch, so a copy of an epoch cannot hold them."""
    waiting = [name for name in history.entries if name.startswith(("waiting/", f"{FOLDER}/"))]
    if [name for name in waiting if not is_checksum(name)] or any(
        f"/{FOLDER}/" in path for path in history.unread(epoch)
    ):
        raise Refused(
            "events wait for a retry, or were sent back from the dead letters and are not read yet",
            where=where,
            fix="run the job with --until-caught-up, so that nothing waits, then take the savepoint",
        )


def _with_root(data: bytes, root: str) -> bytes:
    """The notes about a step's state, with the new paths of its schemas."""
    head, _, body = data.decode().partition("\n")
    told = read_object(body)
    for store in map(as_object, as_list(told.get("stateStoreInfo", []))):
        if "stateSchemaFilePaths" in store:
            paths = [as_type(path, str, "path") for path in take(store, "stateSchemaFilePaths", list)]
            names = [path.rpartition("/state/")[2] for path in paths]
            if not all(map(is_inside, names)):
                raise Unreadable(f"{excerpt(paths)} is outside a checkpoint")
            store["stateSchemaFilePaths"] = [f"{root.rstrip('/')}/state/{name}" for name in names]
    return f"{head}\n{json.dumps(told, separators=(',', ':'))}".encode()
