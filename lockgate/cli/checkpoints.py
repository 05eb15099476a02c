"""The commands about a job's checkpoints. Those that only inspect have a file of their own.

The others change nothing in a directory without the marker of the job, or while a driver of the job is seen. A command
that destroys something first says what it would do, and does it only with --yes. What they do is in checkpoints/.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockgate.cli import checkpointinspection
from lockgate.cli.ledger import count_records, describe_ranges
from lockgate.cli.ledgeraccess import checkpoint_place, find_ledger, find_subject, offer_ledger
from lockgate.cli.target import read_job
from lockgate.commit.repair import short
from lockgate.errors import Refused

if TYPE_CHECKING:
    from lockgate.checkpoints.cleaning import Cleaning, OldCheckpoint
    from lockgate.checkpoints.rescaling import Rescale
    from lockgate.checkpoints.subject import Subject
    from lockgate.planner.plan import Plan


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this group."""
    group = subparsers.add_parser(
        "checkpoints",
        help="the life cycle of a job's checkpoints",
        description="A job's checkpoint: the positions of its sources, and its state. `list`, `show`, `verify` and"
        " `diff` only look, also while the job runs, and take any checkpoint of Spark's.",
    )
    commands = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    checkpointinspection.register(commands)

    rollback = commands.add_parser(
        "rollback",
        help="plan an uncommitted epoch again, or go back to an earlier one",
        description="Give up the epoch that is planned and not committed, so that the next run plans it again, with "
        "another --rows-per-epoch. Nothing is lost or duplicated: the command refuses unless the ledger shows that the "
        "epoch is not committed. Or, with --to, let a stopped job go back to an earlier epoch. The command first says "
        "what it would remove, and does it only with --yes.",
    )
    offer_ledger(rollback)
    which = rollback.add_mutually_exclusive_group(required=True)
    which.add_argument("--uncommitted", action="store_true", help="the epoch that is planned and not committed")
    which.add_argument("--to", type=int, metavar="N", help="make this epoch the last one that is done")
    rollback.add_argument(
        "--outputs",
        choices=("again", "skip"),
        help="with --to, what happens to epochs that are committed: deliver them again, or compute them for the state"
        " and deliver nothing",
    )
    rollback.add_argument("--yes", action="store_true", help="do it; without this, only say what would happen")
    rollback.add_argument("--json", action="store_true", help="print facts for programs")
    rollback.set_defaults(run=run_rollback)
    _register_changes(commands)


def _register_changes(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    clean = commands.add_parser(
        "clean",
        help="remove old epochs and what crashes left behind",
        description="Remove what is only needed to go back further than the newest N epochs, and files that processes "
        "left behind when they died. What a restart needs stays. The job must not run; `lockgate run --keep-epochs` "
        "does the same while it runs. The command first says what it would remove, and removes it only with --yes.",
    )
    offer_ledger(clean)
    clean.add_argument("--keep", type=int, required=True, metavar="N", help="how many epochs you can still go back to")
    clean.add_argument("--lives", action="store_true", help="also remove the checkpoints that --new-life put aside")
    clean.add_argument("--yes", action="store_true", help="do it; without this, only say what would happen")
    clean.add_argument("--json", action="store_true", help="print facts for programs")
    clean.set_defaults(run=run_clean)

    save = commands.add_parser(
        "savepoint",
        help="copy a checkpoint, to continue from it elsewhere or under another name",
        description="Copy the checkpoint of a job at its last epoch to an empty place, with the hash of every file. "
        "The job may run in the meantime: files of an epoch that is done do not change.",
    )
    offer_ledger(save)
    save.add_argument("--to", required=True, metavar="PLACE", help="the new place; any Hadoop file system")
    save.add_argument("--json", action="store_true", help="print facts for programs")
    save.set_defaults(run=run_savepoint)

    restore = commands.add_parser(
        "restore",
        help="let a job continue from a savepoint",
        description="Check every file of a savepoint, lay it out as the checkpoint of a job, and let the job's ledgers "
        "fit it. The job may have another name than the saved one: then it continues after it, with ledgers of its "
        "own. Refused if a checkpoint exists already, or if the ledger is ahead of the savepoint.",
    )
    restore.add_argument("place", metavar="PLACE", help="a savepoint; any Hadoop file system")
    offer_ledger(restore)
    restore.add_argument("--put-aside", action="store_true", help="rename the existing checkpoint, as --new-life does")
    restore.add_argument(
        "--outputs",
        choices=("again",),
        help="if the ledger is ahead: what was committed after the savepoint is delivered again",
    )
    restore.add_argument("--json", action="store_true", help="print facts for programs")
    restore.set_defaults(run=run_restore)

    rescale = commands.add_parser(
        "rescale",
        help="move a job's state to another number of partitions",
        description="Change the number of partitions, and so of tasks, of the state of a job that is stopped and has "
        "committed all epochs that it planned. No event is read, no row is written; the job continues with the same "
        "results. The command first says what it would write, and does it only with --yes. If it is interrupted, "
        "give it again.",
    )
    rescale.add_argument("job", metavar="FILE", help="a Python file that defines job(**parameters) -> Job")
    rescale.add_argument(
        "-p", dest="parameters", action="append", default=[], metavar="NAME=VALUE", help="a parameter of job()"
    )
    rescale.add_argument("--partitions", type=int, required=True, metavar="N", help="the new number")
    rescale.add_argument(
        "--checkpoint", metavar="PLACE", help="default: .lockgate/checkpoints/JOB; any Hadoop file system"
    )
    rescale.add_argument("--yes", action="store_true", help="do it; without this, only say what would happen")
    rescale.add_argument("--json", action="store_true", help="print facts for programs")
    rescale.set_defaults(run=run_rescale, servers=None, client=[], postgres=None, files=None, sqlite=None)


def run_rollback(arguments: argparse.Namespace) -> int:
    """Say what would be removed; remove it with --yes."""
    from lockgate.checkpoints.uncommitted import find_uncommitted

    if arguments.to is not None:
        return _go_back(arguments)
    target = find_ledger(arguments)
    with find_uncommitted(target) as found:
        files = found.files
        if not arguments.json:
            print(f"checkpoint  {target.place}")
            print(f"ledger      {short(found.entry)}")
            print(f"epoch       {found.epoch.number} is planned, and not committed in the checkpoint or in the ledger")
            for line in describe_ranges(found.ranges):
                print(f"  {line}")
            print("to be removed, so that the next run plans it again:")
            for name in files:
                print(f"  {name}")
            for line in found.warnings:
                print(line)
        if arguments.yes:
            files = found.give_up()
    if arguments.json:
        facts = {
            "job": target.job,
            "checkpoint": target.place,
            "epoch": found.epoch.number,
            "ledger": None if found.entry is None else found.entry.as_facts(),
            "source_offsets": [asdict(one) for one in found.ranges],
            "records_at_most": count_records(found.ranges) if found.ranges else None,
            "files": list(files),
            "warnings": found.warnings,
            "removed": arguments.yes,
        }
        print(json.dumps(facts, indent=2))
    elif arguments.yes:
        print("removed; run the job again with a smaller --rows-per-epoch")
    else:
        print("nothing was removed; add --yes")
    return 0


def _go_back(arguments: argparse.Namespace) -> int:
    """Say what going back to an epoch means; do it with --yes."""
    from lockgate.checkpoints.rollback import plan_rollback

    subject, epoch = find_subject(arguments), arguments.to
    with plan_rollback(subject, epoch, arguments.outputs) as found:
        if not arguments.json:
            later = f"{epoch + 1}..{max(found.out, found.last)}"
            print(f"checkpoint  {subject.tree.root}")
            print(f"ledger      {'none' if subject.ledger is None else short(found.before)}")
            print(f"to be       epoch {epoch} is the last one that is done")
            print(f"source offsets of epochs {later}:")
            for line in describe_ranges(found.ranges):
                print(f"  {line}")
            for line in found.says:
                print(line)
            print(f"{len(found.files)} files of later epochs are to be removed")
        if arguments.yes:
            found.carry_out()
    if arguments.json:
        facts = {
            "job": subject.job,
            "checkpoint": subject.tree.root,
            "to": epoch,
            "ledger": None if found.before is None else found.before.as_facts(),
            "out": found.out,
            "outputs": arguments.outputs,
            "source_offsets": [asdict(one) for one in found.ranges],
            "records_at_most": count_records(found.ranges) if found.ranges else None,
            "files": list(found.files),
            "says": found.says,
            "done": arguments.yes,
        }
        print(json.dumps(facts, indent=2))
    else:
        print("done; run the job again" if arguments.yes else "nothing was changed; add --yes")
    return 0


def run_clean(arguments: argparse.Namespace) -> int:
    """Say what would be removed; remove it with --yes."""
    from lockgate.checkpoints.cleaning import clean

    subject = find_subject(arguments)
    removes_old = arguments.yes and arguments.lives
    cleaning, lives = clean(subject, arguments.keep, datetime.now(UTC), removes=arguments.yes, removes_old=removes_old)
    if arguments.json:
        facts = {
            "job": subject.job,
            "checkpoint": subject.tree.root,
            **asdict(cleaning),
            "lives": [asdict(life) for life in lives],
            "warnings": subject.warn_unseen(),
            "removed": arguments.yes,
            "lives_removed": removes_old,
        }
        print(json.dumps(facts, indent=2))
        return 0
    for line in (*_describe_cleaning(subject, cleaning, lives, with_old=arguments.lives), *subject.warn_unseen()):
        print(line)
    print("removed" if arguments.yes else "nothing was removed; add --yes")
    return 0


def _describe_cleaning(
    subject: Subject, cleaning: Cleaning, lives: list[OldCheckpoint], *, with_old: bool
) -> list[str]:
    first, last = cleaning.kept[0], cleaning.kept[-1]
    lines = [
        f"checkpoint  {subject.tree.root}",
        f"kept        {len(cleaning.kept)} epochs to go back to, {first} to {last}, and all that a restart needs",
    ]
    lines += [f"to remove   {part.what}: {len(part.files)} files, {part.bytes:,} bytes" for part in cleaning.parts]
    if not cleaning.parts:
        lines.append("to remove   nothing in the checkpoint")
    for life in lives:
        fate = life.trouble or ("to remove" if with_old else "stays, without --lives")
        lines.append(f"put aside   {life.name}, {life.bytes:,} bytes: {fate}")
    return lines


def run_savepoint(arguments: argparse.Namespace) -> int:
    """Copy a checkpoint."""
    from lockgate.checkpoints.restoring import save
    from lockgate.checkpoints.subject import open_checkpoint

    subject = find_subject(arguments)
    _, place = open_checkpoint(arguments.to)
    saved, was_running = save(subject, place, datetime.now(UTC))
    if arguments.json:
        print(json.dumps({"place": place.root, "was_running": was_running, **saved.as_facts()}, indent=2))
        return 0
    print(f"checkpoint  {subject.tree.root}")
    print(f"savepoint   {place.root}: {len(saved.files)} files, {saved.bytes:,} bytes")
    print(f"epoch       {saved.epoch} is the last one that is done in it")
    for topic, ends in saved.offsets.items():
        print(f"offsets     {topic}: {', '.join(f'{partition}: {offset}' for partition, offset in ends.items())}")
    print(f"continue    lockgate checkpoints restore {arguments.to} FILE")
    return 0


def run_restore(arguments: argparse.Namespace) -> int:
    """Lay out a savepoint as the checkpoint of a job."""
    from lockgate.checkpoints.restoring import restore
    from lockgate.checkpoints.savepoints import read_savepoint
    from lockgate.checkpoints.subject import open_checkpoint

    _, place = open_checkpoint(arguments.place)
    saved = read_savepoint(place)
    subject = find_subject(arguments)
    done = restore(
        subject, place, saved, may_put_aside=arguments.put_aside, outputs=arguments.outputs, now=datetime.now(UTC)
    )
    if arguments.json:
        facts = {
            "job": subject.job,
            "saved_job": saved.job,
            "checkpoint": subject.tree.root,
            "put_aside": done.moved,
            "epoch": saved.epoch,
            "query": done.query,
            "ledger": None if subject.ledger is None else done.entry.as_facts(),
            "says": done.says,
        }
        print(json.dumps(facts, indent=2))
        return 0
    print(f"savepoint   {place.root}: {len(saved.files)} files, {saved.bytes:,} bytes, all as they were saved")
    print(f"checkpoint  {subject.tree.root}")
    if done.moved is not None:
        print(f"put aside   {done.moved}")
    print(f"ledger      {'none' if subject.ledger is None else short(done.entry)}")
    for line in done.says:
        print(line)
    print(f"job {subject.job!r} continues after epoch {done.entry.epoch}: run it")
    return 0


def run_rescale(arguments: argparse.Namespace) -> int:
    """Say what would be written; write it with --yes."""
    from lockgate.checkpoints.rescaling import plan_rescale, refuse_useless
    from lockgate.cli.jobfile import load_job
    from lockgate.planner.plan import plan

    if not Path(arguments.job).is_file():
        raise Refused(f"there is no job file {arguments.job!r}", where="command line", fix="name the job's file")
    planned = plan(load_job(arguments.job, arguments.parameters))
    refuse_useless(planned, arguments.partitions)
    target = find_ledger(arguments) if read_job(arguments).exact else None
    place = checkpoint_place(arguments, planned.job.name)
    with plan_rescale(planned.job.name, place, target, arguments.partitions) as found:
        if not arguments.json:
            for line in _describe_rescaling(planned, found):
                print(line)
        if arguments.yes:
            found.carry_out()
    rescaling = found.rescaling
    if arguments.json:
        facts = {
            "job": planned.job.name,
            "checkpoint": place,
            "epoch": rescaling.epoch,
            "partitions": {"before": rescaling.before, "after": rescaling.after},
            "steps": _steps_of(planned),
            "is_begun": rescaling.is_begun,
            "is_written": rescaling.is_written,
            "ledgers_behind": [one.ledger.name for one in found.behind],
            "done": arguments.yes or not found.is_needed,
        }
        print(json.dumps(facts, indent=2))
    elif not found.is_needed:
        print("nothing is to be done")
    else:
        print(
            f"done: run the job, it has {rescaling.after} partitions now"
            if arguments.yes
            else "nothing was written; add --yes"
        )
    return 0


def _steps_of(planned: Plan) -> list[dict[str, Any]]:
    """The steps whose state is redistributed."""
    return [
        {"step": step.name, "kind": step.kind, "execution": step.execution}
        for step in planned.physical.steps
        if step.has_state
    ]


def _describe_rescaling(planned: Plan, found: Rescale) -> list[str]:
    """What would be done, in lines."""
    rescaling = found.rescaling
    lines = [
        f"checkpoint  {found.checkpoint.root}",
        f"partitions  {rescaling.before} -> {rescaling.after}, of every step:",
    ]
    for step in _steps_of(planned):
        how = "pages are redistributed by key" if step["execution"] == "Python" else "rows are redistributed by key"
        lines.append(f"  {step['kind']} {step['step']!r}: state in {step['execution']}, its {how}")
    if rescaling.is_written:
        lines.append(f"epoch       {rescaling.epoch} is already written, by an earlier rescaling")
    else:
        begun = "is already started, and will be written again" if rescaling.is_begun else "will be written"
        lines.append(f"epoch       {rescaling.epoch} {begun}: it reads no event and writes no row")
        lines.append(f"  offsets/{rescaling.epoch}  those of epoch {rescaling.epoch - 1}, with the new number")
        lines.append(
            f"  state/       all of it, as of epoch {rescaling.epoch - 1}; what is there stays for older epochs"
        )
        lines.append(f"  commits/{rescaling.epoch}")
    for one in found.behind:
        lines.append(f"ledger      {one.ledger.name}: {short(one.entry)}; moves on to epoch {rescaling.epoch}")
    return lines
