"""A savepoint of a job, and a job that continues from one: the copy of a checkpoint, together with its ledgers.

    save      copies the checkpoint at its last epoch, whole, with hashes; the job may run
    restore   checks the copy, lays it out as the checkpoint of the job, and sets its ledgers to fit

Under the job's old name the ledger may be ahead of the savepoint. The job would deliver again what it has committed
since, so this is refused without `--outputs again`. Under another name a new ledger starts at the savepoint's epoch:
what the old name has committed stays as it is, and the new name continues exactly after it.

`restore` sets the ledgers first and puts the checkpoint in place last. In between a run stops at its ledger, and the
same command may be given again.
"""

from __future__ import annotations

import secrets
from contextlib import closing, nullcontext
from dataclasses import dataclass
from datetime import datetime

from lockgate.checkpoints.checkpoint import put_aside
from lockgate.checkpoints.history import look_at
from lockgate.checkpoints.jobledgers import look_at_followers, set_others
from lockgate.checkpoints.locking import is_locked
from lockgate.checkpoints.marker import FILE as MARKER
from lockgate.checkpoints.marker import (
    read_marker,
    refuse_no_checkpoint,
    refuse_other_job,
    require_marker,
    write_marker,
)
from lockgate.checkpoints.positions import check_topics, refuse_other_files
from lockgate.checkpoints.rescaling import refuse_unfinished
from lockgate.checkpoints.savepoints import (
    FILES,
    Savepoint,
    lay_out,
    new_query,
    refuse_taken,
    take_savepoint,
)
from lockgate.checkpoints.subject import Subject
from lockgate.checkpoints.tree import LocalTree, Tree
from lockgate.commit.ledger import Entry
from lockgate.commit.repair import MendableLedger, gone, look, short
from lockgate.errors import Failed, Refused


@dataclass(frozen=True)
class Restored:
    """A checkpoint that was laid out."""

    query: str
    entry: Entry  # of the job's ledgers now, if it has some
    moved: str | None  # where the checkpoint is that was there before
    says: list[str]


def save(subject: Subject, place: Tree, now: datetime) -> tuple[Savepoint, bool]:
    """Copy a job's checkpoint to a place that does not exist yet; also returns whether a driver may have run."""
    refuse_taken(place)
    if read_marker(subject.tree) is not None:
        refuse_other_job(subject.tree, subject.job)
    is_live = subject.local is None or is_locked(subject.local)
    with nullcontext() if is_live else subject.lock_exclusively():
        refuse_unfinished(subject.checkpoint)
        entry = _ledger_now(subject, is_live=is_live)
        saved = take_savepoint(
            subject.tree, subject.checkpoint, place, job=subject.job, ledger=entry, now=now, is_live=is_live
        )
    return saved, is_live


def _ledger_now(subject: Subject, *, is_live: bool) -> Entry | None:
    """The deciding ledger's entry; Refused if it does not fit, or if others have still to follow it."""
    if subject.ledger is None:
        return None
    with subject.ledger.opened() as ledger:
        if not ledger.exists:
            raise gone(ledger, subject.job)
        entry = ledger.peek()
        query = subject.checkpoint.query()
        if entry is None or entry.epoch is None or entry.query not in (None, query):
            raise Refused(
                f"the ledger ({short(entry)}) does not fit this checkpoint (query {query})",
                where=ledger.where,
                fix="name the checkpoint that the job was run with; `lockgate ledger show` says what is committed",
            )
    # Spark logs an epoch after all systems have it; of a running job only what is logged is copied.
    for one in () if is_live else look_at_followers(subject.ledger, entry):
        if one.standing not in ("even", "new"):
            raise Refused(
                f"{one.name} has not published yet what is decided ({one.says})",
                where=subject.where,
                fix="run the job once more, so that all systems publish its last epoch, then take the savepoint",
            )
    return entry


def restore(
    subject: Subject, place: Tree, saved: Savepoint, *, may_put_aside: bool, outputs: str | None, now: datetime
) -> Restored:
    """Lay out a savepoint as the checkpoint of a job, and let the job's ledgers fit it.

    Args:
        may_put_aside: rename the checkpoint that is there.
        outputs: `again` if what was committed after the savepoint may be delivered again.
    """
    tree = subject.tree
    _is_taken(subject, may_put_aside=may_put_aside)
    # Two queries of one id would look like one; under its old name the ledger knows the query by its id.
    query = saved.query if saved.job == subject.job else new_query()
    says = _weigh_name(saved, subject.job)
    if subject.sources:
        copied = look_at(place.below(FILES))
        paths = (path for number in range(len(subject.sources) * 2) for path in copied.source_files(number))
        refuse_other_files(subject.sources, paths, where=subject.where)
        says += check_topics(subject.sources, saved.places, where=subject.where)
    entry = saved.entry(f"restore-{secrets.token_hex(4)}", query, now)
    parent, name = tree.parent()
    aside_name = f"{name}.restoring-{secrets.token_hex(4)}"
    moved: str | None = None
    with subject.lock_exclusively():
        is_taken = _is_taken(subject, may_put_aside=may_put_aside)  # a job may have run in the meantime
        _make_places(subject)
        with nullcontext() if subject.ledger is None else subject.ledger.opened() as ledger:
            before = (
                None
                if ledger is None
                else _compare(subject, ledger, entry, outputs, says, is_same_name=saved.job == subject.job)
            )
            try:
                root = tree.root if subject.local is None else f"file:{tree.root}"
                write_marker(parent.below(aside_name), subject.job, now)  # first: then any rest can be identified
                lay_out(saved, place, parent.below(aside_name), root=root, query=query)
                if ledger is not None and subject.ledger is not None:
                    ledger.replace(before, entry)
                    set_others(subject.ledger, entry, only_later=False)
                moved = put_aside(subject.checkpoint) if is_taken else None
                if not is_taken and tree.exists():
                    tree.remove(MARKER)
                    parent.remove_empty(name)
                parent.move(aside_name, name)
            except OSError as error:
                parent.remove(aside_name)
                raise Failed(
                    f"the checkpoint could not be put in place: {error}",
                    where=f"checkpoint {tree.root}",
                    fix="perhaps a driver of this job was started in the meantime: stop it, and give the command again",
                ) from error
            except BaseException:
                parent.remove(aside_name)
                raise
    return Restored(query=query, entry=entry, moved=moved, says=says)


def _weigh_name(saved: Savepoint, job: str) -> list[str]:
    if saved.job == job:
        return []
    return [
        f"Rows that job {saved.job!r} has committed stay under that name; job {job!r} delivers what follows them.",
        f"If {saved.job!r} continues to run, both deliver what follows from now on.",
    ]


def _compare(
    subject: Subject, ledger: MendableLedger, entry: Entry, outputs: str | None, says: list[str], *, is_same_name: bool
) -> Entry | None:
    """The deciding ledger's entry; Refused if it, or one that follows, has more than the savepoint."""
    assert subject.ledger is not None
    before, trouble = look(ledger)
    if before is not None:
        ledger.refuse_driver()
    if trouble and is_same_name:
        says.append(f"{trouble[0].upper()}{trouble[1:]}: it starts with the savepoint's epoch {entry.epoch}.")
    ahead = [(ledger.where, before)] if _is_elsewhere(before, entry) else []
    for open_ledger in (*subject.ledger.clusters.values(), *subject.ledger.followers.values()):
        with closing(open_ledger()) as other:
            seen = other.peek() if other.exists else None
            if _is_elsewhere(seen, entry):
                ahead.append((other.where, seen))
    for where, seen in ahead:
        if outputs != "again":
            raise Refused(
                f"the ledger of job {subject.job!r} says that {short(seen)}, and the savepoint ends with epoch"
                f" {entry.epoch}: what was committed after it would be delivered again",
                where=where,
                fix="--outputs again accepts that; or restore it under another name of the job",
            )
        says.append(f"Readers see TWICE what was committed after epoch {entry.epoch} ({where}: {short(seen)}).")
        if same := subject.upserts:
            says.append(f"{', '.join(same)}: rows replace those of their key, so the same rows again change nothing.")
    return before


def _is_elsewhere(seen: Entry | None, entry: Entry) -> bool:
    """Is a ledger at another epoch than the savepoint?"""
    return seen is not None and seen.epoch is not None and (seen.epoch, seen.digest) != (entry.epoch, entry.digest)


def _make_places(subject: Subject) -> None:
    """Create what a run would create at its start, so that a ledger can be started in it."""
    from lockgate.commit.resource import CommittingSink

    for sink in subject.sinks.values() if subject.ledger is not None else ():
        if isinstance(sink, CommittingSink):
            sink.make_place()


def _is_taken(subject: Subject, *, may_put_aside: bool) -> bool:
    """Is there a checkpoint already? Refused if it may not be put aside."""
    tree = subject.tree
    refuse_no_checkpoint(tree)
    if not tree.exists() or _is_empty(tree):
        return False
    require_marker(tree, subject.job)
    if not tree.folders() and [entry.name for entry in tree.entries()] == [MARKER]:
        return False  # no run completed an epoch with it
    if not may_put_aside:
        raise Refused(
            f"job {subject.job!r} has a checkpoint already",
            where=f"checkpoint {tree.root}",
            fix="--put-aside gives it another name; or name another place: --checkpoint PLACE",
        )
    return True


def _is_empty(tree: Tree) -> bool:
    if isinstance(tree, LocalTree) and tree.path.is_dir():
        return not any(tree.path.iterdir())
    return not tree.entries() and not tree.folders()
