"""The marker: a small file in the root of a checkpoint that names its job. Without it nothing is deleted.

    {"job": "payments", "made": "2026-01-31T12:00:00.000+00:00", "format": 1}

A run writes it when it creates its checkpoint. If the checkpoint has no marker, the run writes one after an epoch is
done: that shows that the checkpoint belongs to the job. Commands that only look never write it. Spark ignores the file.

A wrong path on a command line must not destroy a directory. So a command that deletes or moves first calls
`require_marker`. That also refuses what cannot be a checkpoint: the root of a file system, a home, a link. A reset,
which moves the old files aside, calls `refuse_unmarked`.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from urllib.parse import urlparse

from lockgate.checkpoints.tree import LocalTree, Tree
from lockgate.connectors.files.filesystem import NotAFile
from lockgate.errors import Refused
from lockgate.untrusted import Unreadable, read_object, take

log = logging.getLogger(__name__)

FILE = "lockgate.json"
FORMAT = 1
RESCALING = "rescaling.json"
PARTS = frozenset(
    {FILE, RESCALING, "metadata", "offsets", "commits", "sources", "state"}
    | {"tables", "initial", "native", "described", "waiting", "returns", "tries.json"}
)
"""What one of our checkpoints has in its root: Spark's files, and the files of a run beside them."""


@dataclass(frozen=True)
class Marker:
    """The content of the file."""

    job: str
    made: str

    def to_bytes(self) -> bytes:
        """The bytes of the file."""
        return json.dumps({"job": self.job, "made": self.made, "format": FORMAT}).encode()


def write_marker(tree: Tree, job: str, now: datetime) -> None:
    """Mark a checkpoint as this job's."""
    tree.write(FILE, Marker(job, now.isoformat(timespec="milliseconds")).to_bytes())


def read_marker(tree: Tree) -> Marker | None:
    """The marker of a checkpoint; None if there is none, Refused if it cannot be read."""
    try:
        content = tree.read(FILE)
        return None if content is None else parse_marker(content)
    except (ValueError, NotAFile) as error:
        raise Refused(
            f"the marker {FILE} cannot be read: {error}",
            where=f"checkpoint {tree.root}",
            fix="find out whose directory it is; remove the marker, and a run of that job writes a new one",
        ) from None


def parse_marker(content: bytes) -> Marker:
    """A marker from its bytes; ValueError if they are not a marker."""
    try:
        told = read_object(content)
        kind = take(told, "format", int)
        job, made = take(told, "job", str), take(told, "made", str)
    except Unreadable as error:
        raise Unreadable(f"it does not name the job of this checkpoint: {error}") from None
    if kind != FORMAT:
        raise Unreadable(f"it has format {kind!r}, and this version of Lockgate knows {FORMAT}")
    return Marker(job, made)


def is_marked(tree: Tree, job: str) -> bool:
    """Does the marker of a checkpoint name this job?"""
    marker = read_marker(tree)
    return marker is not None and marker.job == job


def refuse_other_job(tree: Tree, job: str) -> None:
    """Refuse to run on a checkpoint whose marker names another job; an unreadable marker does not stop a run."""
    try:
        marker = read_marker(tree)
    except Refused as error:
        log.warning("job %s: %s; fix: %s", job, error.what, error.fix)
        return
    if marker is not None and marker.job != job:
        raise Refused(
            f"{tree.root} is the checkpoint of job {marker.job!r}, and not of {job!r}",
            where=f"checkpoint {tree.root}",
            fix="name another place: --checkpoint PLACE; if the job was renamed, continue from a copy: "
            "lockgate checkpoints savepoint with its old name, then restore",
        )


def mark_if_new(tree: Tree, job: str, now: datetime) -> bool:
    """Mark a place that has no files yet. Returns whether the place has a marker, new or old."""
    if tree.exists(FILE):
        return True
    if tree.exists() and tree.entries():
        return False
    write_marker(tree, job, now)
    return True


def mark_if_missing(tree: Tree, job: str, now: datetime) -> None:
    """Mark a checkpoint in which an epoch of this job is done; the marker of another job stays as it is."""
    try:
        if read_marker(tree) is None:
            write_marker(tree, job, now)
    except (OSError, Refused) as error:  # no reason for an epoch to fail; the next run tries again
        log.warning("job %s: the checkpoint could not be marked as its own: %s", job, error)


def require_marker(tree: Tree, job: str) -> Marker:
    """Refuse to change a directory that is not shown to be the checkpoint of this job."""
    refuse_no_checkpoint(tree)
    where = f"directory {tree.root}"
    marker = read_marker(tree)
    if marker is None:
        above = _marked_above(tree)
        raise Refused(
            f"{tree.root} carries no marker ({FILE}), so its job is unknown; nothing is removed there",
            where=where,
            fix=f"it is a part of the checkpoint {above}: name that one"
            if above is not None
            else "name the checkpoint of the job; the next run of the job adds a missing marker",
        )
    if marker.job != job:
        raise Refused(
            f"{tree.root} is the checkpoint of job {marker.job!r}, and not of {job!r}",
            where=where,
            fix="name the job whose checkpoint it is, or another place: --checkpoint PLACE",
        )
    return marker


def refuse_no_checkpoint(tree: Tree) -> None:
    """Refuse a place that cannot be a checkpoint, even with a marker."""
    what = _never(tree)
    if what is not None:
        leads_to = tree.path.resolve() if isinstance(tree, LocalTree) and tree.path.is_symlink() else None
        raise Refused(
            f"{tree.root} is {what}, not a checkpoint",
            where=f"directory {tree.root}",
            fix="name the checkpoint itself" if leads_to is None else f"name the target of the link: {leads_to}",
        )


def refuse_unmarked(tree: Tree, job: str) -> None:
    """Refuse a reset if the place has files without this job's marker: the reset would move them aside."""
    if tree.exists() and not is_marked(tree, job) and tree.entries():
        raise Refused(
            f"{tree.root} carries no marker of job {job!r} ({FILE}), so its job is unknown; --new-life would move it"
            " aside",
            where=f"checkpoint {tree.root}",
            fix="name another place: --checkpoint PLACE; or move it aside yourself",
        )


def _never(tree: Tree) -> str | None:
    """Why a place cannot be a checkpoint; None if it can."""
    if isinstance(tree, LocalTree):
        if tree.path.is_symlink():
            return "a link"
        path = tree.path.resolve()
        home = Path.home().resolve()
        if path == Path(path.anchor):
            return "the root of a file system"
        return "a home, or above one" if path == home or path in home.parents or path.parent == Path("/home") else None
    remote = PurePosixPath(urlparse(tree.root).path or "/")
    if remote == PurePosixPath("/"):
        return "the root of a file system"
    return "a home, or above one" if PurePosixPath("/user") in (remote, remote.parent) else None


def _marked_above(tree: Tree) -> str | None:
    """The nearest directory above it that has a marker."""
    if not isinstance(tree, LocalTree):
        return None
    return next((str(above) for above in tree.path.resolve().parents if (above / FILE).is_file()), None)
