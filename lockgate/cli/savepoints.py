"""The commands savepoint and restore: a copy of a checkpoint, and a job that goes on from it.

    savepoint JOB --to PLACE   the checkpoint at its last epoch, whole, with hashes; the job may run meanwhile
    restore PLACE JOB          checked, laid out as the checkpoint of the job, and its ledgers set to fit

Under the job's old name the ledger may be ahead of the savepoint: what came out since would come out again, so it is
refused without `--outputs again`. Under another name a ledger is begun at the savepoint's epoch: what is out under the
old name stays out under the old name, and the new one goes on exactly behind it.

Restoring sets the ledgers first and puts the checkpoint in place last. In between a run stops at its ledger, and the
same command may be given again.
"""

from __future__ import annotations

import argparse
import json
import secrets
from contextlib import closing, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from lockgate.cli.checkpointsubject import Subject, find_subject, open_place, set_others
from lockgate.cli.ledger import gone, look, look_at_followers, short
from lockgate.cli.ledgers import offer_ledger
from lockgate.errors import Failed, Refused

if TYPE_CHECKING:
    from lockgate.commit.ledger import Entry
    from lockgate.commit.mending import MendableLedger
    from lockgate.runtime.lifecycle.savepoints import Savepoint
    from lockgate.runtime.lifecycle.tree import Tree


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands about savepoints."""
    save = commands.add_parser(
        "savepoint",
        help="copy a checkpoint, to go on from it elsewhere or under another name",
        description="Copy the checkpoint of a job at its last epoch to a place where nothing is yet, with the hash of "
        "every file. The job may run meanwhile: files of an epoch that is done do not change.",
    )
    offer_ledger(save)
    save.add_argument("--to", required=True, metavar="PLACE", help="where to; any Hadoop file system")
    save.add_argument("--json", action="store_true", help="print facts for programs")
    save.set_defaults(run=run_savepoint)

    restore = commands.add_parser(
        "restore",
        help="let a job go on from a savepoint",
        description="Check every file of a savepoint, lay it out as the checkpoint of a job, and let the job's ledgers "
        "fit it. The job may have another name than the one that was saved: then it goes on behind it, with ledgers of "
        "its own. Refused where a checkpoint is there already, and where the ledger is ahead of the savepoint.",
    )
    restore.add_argument("place", metavar="PLACE", help="a savepoint; any Hadoop file system")
    offer_ledger(restore)
    restore.add_argument(
        "--put-aside", action="store_true", help="give the checkpoint that is there another name, as --new-life does"
    )
    restore.add_argument(
        "--outputs",
        choices=("again",),
        help="where the ledger is ahead: what came out behind the savepoint comes out again",
    )
    restore.add_argument("--json", action="store_true", help="print facts for programs")
    restore.set_defaults(run=run_restore)


def run_savepoint(arguments: argparse.Namespace) -> int:
    """Copy a checkpoint."""
    from lockgate.runtime.lifecycle.holding import is_held
    from lockgate.runtime.lifecycle.marker import read_marker, refuse_other_job
    from lockgate.runtime.lifecycle.rescaling import refuse_unfinished
    from lockgate.runtime.lifecycle.savepoints import refuse_taken, take_savepoint

    subject = find_subject(arguments)
    place = open_place(arguments.to)
    refuse_taken(place)
    if read_marker(subject.tree) is not None:
        refuse_other_job(subject.tree, subject.job)
    is_live = subject.local is None or is_held(subject.local)
    with nullcontext() if is_live else subject.alone():
        refuse_unfinished(subject.checkpoint)
        entry = _ledger_now(subject, is_live=is_live)
        saved = take_savepoint(
            subject.tree,
            subject.checkpoint,
            place,
            job=subject.job,
            ledger=entry,
            now=datetime.now(UTC),
            is_live=is_live,
        )
    if arguments.json:
        print(json.dumps({"place": place.root, "was_running": is_live, **saved.as_facts()}, indent=2))
        return 0
    print(f"checkpoint  {subject.tree.root}")
    print(f"savepoint   {place.root}: {len(saved.files)} files, {saved.bytes:,} bytes")
    print(f"epoch       {saved.epoch} is the last one that is done in it")
    for topic, ends in saved.offsets.items():
        print(f"offsets     {topic}: {', '.join(f'{partition}: {offset}' for partition, offset in ends.items())}")
    print(f"to go on    lockgate checkpoints restore {arguments.to} FILE")
    return 0


def _ledger_now(subject: Subject, *, is_live: bool) -> Entry | None:
    """What the deciding ledger says; Refused where it does not fit, or where others have still to follow it."""
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
                fix="name the checkpoint that the job was run with; `lockgate ledger show` says what is out",
            )
    # Spark logs an epoch when all have it; of a job that runs only what is logged is copied.
    for one in () if is_live else look_at_followers(subject.ledger, entry):
        if one.standing not in ("even", "new"):
            raise Refused(
                f"{one.name} has not published yet what is decided ({one.says})",
                where=subject.where,
                fix="run the job once more, so that everything of its last epoch is out, then take the savepoint",
            )
    return entry


def run_restore(arguments: argparse.Namespace) -> int:
    """Lay a savepoint out as the checkpoint of a job."""
    from lockgate.runtime.checkpoints import put_aside
    from lockgate.runtime.lifecycle.history import look_at
    from lockgate.runtime.lifecycle.marker import FILE as MARKER
    from lockgate.runtime.lifecycle.marker import write_marker
    from lockgate.runtime.lifecycle.positions import check_topics, refuse_other_files
    from lockgate.runtime.lifecycle.savepoints import FILES, lay_out, new_query, parent_of, read_savepoint

    place = open_place(arguments.place)
    saved = read_savepoint(place)
    subject = find_subject(arguments)
    tree, now = subject.tree, datetime.now(UTC)
    _is_taken(subject, may_put_aside=arguments.put_aside)
    # Two queries of one id would be taken for one; under its old name the ledger knows it by its id.
    query = saved.query if saved.job == subject.job else new_query()
    says = _weigh_name(saved, subject.job)
    if subject.sources:
        copied = look_at(place.below(FILES))
        paths = (path for number in range(len(subject.sources) * 2) for path in copied.source_files(number))
        refuse_other_files(subject.sources, paths, where=subject.where)
        says += check_topics(subject.sources, saved.places, where=subject.where)
    entry = saved.entry(f"restore-{secrets.token_hex(4)}", query, now)
    parent, name = parent_of(tree)
    aside_name = f"{name}.restoring-{secrets.token_hex(4)}"
    moved: str | None = None
    with subject.alone():
        is_taken = _is_taken(subject, may_put_aside=arguments.put_aside)  # somebody may have run meanwhile
        _make_places(subject)
        with nullcontext() if subject.ledger is None else subject.ledger.opened() as ledger:
            before = (
                None
                if ledger is None
                else _compare(subject, ledger, entry, arguments.outputs, says, is_same_name=saved.job == subject.job)
            )
            try:
                root = tree.root if subject.local is None else f"file:{tree.root}"
                write_marker(parent.below(aside_name), subject.job, now)  # first: what is left of it can be told
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
                    fix="a driver of this job was started meanwhile, perhaps: stop it, and give the command again",
                ) from error
            except BaseException:
                parent.remove(aside_name)
                raise
    if arguments.json:
        facts = {
            "job": subject.job,
            "saved_job": saved.job,
            "checkpoint": tree.root,
            "put_aside": moved,
            "epoch": saved.epoch,
            "query": query,
            "ledger": None if subject.ledger is None else entry.as_facts(),
            "says": says,
        }
        print(json.dumps(facts, indent=2))
        return 0
    print(f"savepoint   {place.root}: {len(saved.files)} files, {saved.bytes:,} bytes, all as they were saved")
    print(f"checkpoint  {tree.root}")
    if moved is not None:
        print(f"put aside   {moved}")
    print(f"ledger      {'none' if subject.ledger is None else short(entry)}")
    for line in says:
        print(line)
    print(f"job {subject.job!r} goes on behind epoch {entry.epoch}: run it")
    return 0


def _weigh_name(saved: Savepoint, job: str) -> list[str]:
    if saved.job == job:
        return []
    return [
        f"What job {saved.job!r} has delivered stays out under that name; job {job!r} delivers what comes behind it.",
        f"If {saved.job!r} runs on, both deliver what comes from now on.",
    ]


def _compare(
    subject: Subject, ledger: MendableLedger, entry: Entry, outputs: str | None, says: list[str], *, is_same_name: bool
) -> Entry | None:
    """What the deciding ledger says now; Refused where it, or one that follows, has more than the savepoint."""
    assert subject.ledger is not None
    before, trouble = look(ledger)
    if before is not None:
        ledger.refuse_driver()
    if trouble and is_same_name:
        says.append(f"{trouble[0].upper()}{trouble[1:]}: it begins with the savepoint's epoch {entry.epoch}.")
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
                f" {entry.epoch}: what came out behind it would come out again",
                where=where,
                fix="--outputs again accepts that; or restore it under another name of the job",
            )
        says.append(f"Readers see TWICE what came out behind epoch {entry.epoch} ({where}: {short(seen)}).")
        if same := subject.upserts:
            says.append(f"{', '.join(same)}: rows replace those of their key, so the same rows again change nothing.")
    return before


def _is_elsewhere(seen: Entry | None, entry: Entry) -> bool:
    """Does a ledger speak of other epochs than the savepoint's?"""
    return seen is not None and seen.epoch is not None and (seen.epoch, seen.digest) != (entry.epoch, entry.digest)


def _make_places(subject: Subject) -> None:
    """Let there be what a run would make at its start, so that a ledger can be begun in it."""
    from lockgate.files.system import local_path
    from lockgate.sinks.files import FileSink
    from lockgate.sinks.sqlite import SqliteSink

    for sink in subject.sinks.values() if subject.ledger is not None else ():
        if isinstance(sink, FileSink) and (directory := local_path(sink.path)) is not None:
            directory.mkdir(parents=True, exist_ok=True)
        elif isinstance(sink, SqliteSink):
            Path(sink.path).parent.mkdir(parents=True, exist_ok=True)
            Path(sink.path).touch()


def _is_taken(subject: Subject, *, may_put_aside: bool) -> bool:
    """Is there a checkpoint already? Refused where it may not be put aside."""
    from lockgate.runtime.lifecycle.marker import FILE, refuse_no_checkpoint, require_marker

    tree = subject.tree
    refuse_no_checkpoint(tree)
    if not tree.exists() or _is_empty(tree):
        return False
    require_marker(tree, subject.job)
    if not tree.folders() and [entry.name for entry in tree.entries()] == [FILE]:
        return False  # no run of it got any further
    if not may_put_aside:
        raise Refused(
            f"job {subject.job!r} has a checkpoint already",
            where=f"checkpoint {tree.root}",
            fix="--put-aside gives it another name; or name another place: --checkpoint PLACE",
        )
    return True


def _is_empty(tree: Tree) -> bool:
    from lockgate.runtime.lifecycle.tree import LocalTree

    if isinstance(tree, LocalTree) and tree.path.is_dir():
        return not any(tree.path.iterdir())
    return not tree.entries() and not tree.folders()
