"""The marker: a small file in the root of a checkpoint which says whose it is. Nothing is deleted where it is not.

    {"job": "payments", "made": "2026-01-31T12:00:00.000+00:00", "format": 1}

A run writes it when it makes its checkpoint; into one that was made without, when an epoch has gone through: then it is
shown to be the job's own. Commands that only look never write it. Spark does not mind a file beside its own.

A wrong path on a command line must not cost anybody a directory. So whoever deletes, or moves, asks `require_marker`
first, which also refuses what no checkpoint can be: the root of a file system, a home, a link. A new life, which moves
what is there aside, asks `refuse_unmarked`.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from urllib.parse import urlparse

from lockgate.errors import Refused
from lockgate.runtime.lifecycle.tree import LocalTree, Tree
from lockgate.untrusted import Unreadable, read_object, take

log = logging.getLogger(__name__)

FILE = "lockgate.json"
FORMAT = 1
RESCALING = "rescaling.json"
PARTS = frozenset(
    {FILE, RESCALING, "metadata", "offsets", "commits", "sources", "state"}
    | {"tables", "initial", "native", "described", "waiting", "returns", "tries.json"}
)
"""What a checkpoint of ours has in its root: Spark's own, and what a run keeps beside it."""


@dataclass(frozen=True)
class Marker:
    """What the file says."""

    job: str
    made: str

    def to_bytes(self) -> bytes:
        """As it is written."""
        return json.dumps({"job": self.job, "made": self.made, "format": FORMAT}).encode()


def write_marker(tree: Tree, job: str, now: datetime) -> None:
    """Say that a checkpoint is this job's."""
    tree.write(FILE, Marker(job, now.isoformat(timespec="milliseconds")).to_bytes())


def read_marker(tree: Tree) -> Marker | None:
    """What the marker says; None where there is none, Refused where it cannot be read."""
    content = tree.read(FILE)
    try:
        return None if content is None else parse_marker(content)
    except ValueError as error:
        raise Refused(
            f"the marker {FILE} cannot be read: {error}",
            where=f"checkpoint {tree.root}",
            fix="look whose directory it is; a run of its job writes the marker anew where it is not there",
        ) from None


def parse_marker(content: bytes) -> Marker:
    """What the bytes of a marker say; ValueError where they say nothing."""
    try:
        told = read_object(content)
        kind = take(told, "format", int)
        job, made = take(told, "job", str), take(told, "made", str)
    except Unreadable as error:
        raise Unreadable(f"it does not say whose checkpoint this is: {error}") from None
    if kind != FORMAT:
        raise Unreadable(f"it has format {kind!r}, and this version of Lockgate knows {FORMAT}")
    return Marker(job, made)


def is_marked(tree: Tree, job: str) -> bool:
    """Does a checkpoint say that it is this job's?"""
    marker = read_marker(tree)
    return marker is not None and marker.job == job


def refuse_other_job(tree: Tree, job: str) -> None:
    """Refuse to run on a checkpoint that says it is another job's; one that cannot be read ends no run."""
    try:
        marker = read_marker(tree)
    except Refused as error:
        log.warning("job %s: %s; fix: %s", job, error.what, error.fix)
        return
    if marker is not None and marker.job != job:
        raise Refused(
            f"{tree.root} is the checkpoint of job {marker.job!r}, and not of {job!r}",
            where=f"checkpoint {tree.root}",
            fix="name another place: --checkpoint PLACE; a job that is called otherwise now goes on from a copy: "
            "lockgate checkpoints savepoint with its old name, then restore",
        )


def mark_if_new(tree: Tree, job: str, now: datetime) -> bool:
    """Mark a place where nothing is yet; is it marked, now or before?"""
    if tree.exists(FILE):
        return True
    if tree.exists() and tree.entries():
        return False
    write_marker(tree, job, now)
    return True


def mark_if_missing(tree: Tree, job: str, now: datetime) -> None:
    """Mark a checkpoint which has gone through an epoch of this job's; one that says that it is another's stays so."""
    try:
        if read_marker(tree) is None:
            write_marker(tree, job, now)
    except (OSError, Refused) as error:  # an epoch does not fail because of it, and the next run tries again
        log.warning("job %s: the checkpoint could not be marked as its own: %s", job, error)


def require_marker(tree: Tree, job: str) -> Marker:
    """Refuse to change a directory that is not shown to be the checkpoint of this job."""
    refuse_no_checkpoint(tree)
    where = f"directory {tree.root}"
    marker = read_marker(tree)
    if marker is None:
        above = _marked_above(tree)
        raise Refused(
            f"{tree.root} carries no marker ({FILE}), so nobody can tell whose it is; nothing is removed there",
            where=where,
            fix=f"it is a part of the checkpoint {above}: name that"
            if above is not None
            else "name the checkpoint of the job; one that was made without a marker gets it at the next run",
        )
    if marker.job != job:
        raise Refused(
            f"{tree.root} is the checkpoint of job {marker.job!r}, and not of {job!r}",
            where=where,
            fix="name the job whose checkpoint it is, or another place: --checkpoint PLACE",
        )
    return marker


def refuse_no_checkpoint(tree: Tree) -> None:
    """Refuse a place that can be no checkpoint, whatever it carries."""
    what = _never(tree)
    if what is not None:
        leads_to = tree.path.resolve() if isinstance(tree, LocalTree) and tree.path.is_symlink() else None
        raise Refused(
            f"{tree.root} is {what}, and no checkpoint",
            where=f"directory {tree.root}",
            fix="name the checkpoint itself" if leads_to is None else f"name what it leads to: {leads_to}",
        )


def refuse_unmarked(tree: Tree, job: str) -> None:
    """Refuse to begin a new life where files lie that are not shown to be this job's: they would be put aside."""
    if tree.exists() and not is_marked(tree, job) and tree.entries():
        raise Refused(
            f"{tree.root} carries no marker of job {job!r} ({FILE}), so nobody can tell whose it is; a new life would"
            " put it aside",
            where=f"checkpoint {tree.root}",
            fix="name another place: --checkpoint PLACE; or move it aside yourself",
        )


def _never(tree: Tree) -> str | None:
    """Why a place can be no checkpoint; None where it can."""
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
    """The directory above it that has a marker."""
    if not isinstance(tree, LocalTree):
        return None
    return next((str(above) for above in tree.path.resolve().parents if (above / FILE).is_file()), None)
