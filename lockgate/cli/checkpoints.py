"""The commands about a job's checkpoints: rollback of what is not out; the others have files of their own.

`rollback --uncommitted` gives up an epoch that Spark has planned and nobody has committed, so that the next run plans
it anew, smaller: the cure for an epoch that outlives its transaction, or that is too large for the machine. It is safe
only while nothing of it is out, and while nobody is about to let it out:

    1  look      the checkpoint: the job's marker, offsets/N without commits/N; the deciding ledger: N-1; no driver
                 holds the checkpoint or is seen to run (its open transaction, its connection)
    2  fence     older writers can commit nothing any more, and the ledger is read once more
    3  claim     the ledger's value unchanged, with another run id: a driver that is alive stops at its next look
    4  remove    the state and the notes that the epoch left behind, then offsets/N
"""

from __future__ import annotations

import argparse
import json
import secrets
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lockgate.cli import checkpointchanges, checkpointfacts, checkpointrescale
from lockgate.cli.checkpointsubject import open_checkpoint
from lockgate.cli.ledger import count_records, describe_ranges, gone, short
from lockgate.cli.ledgers import LedgerTarget, find_ledger, offer_ledger
from lockgate.commit.mending import MendableLedger
from lockgate.errors import Failed, LedgerMismatch, Refused

if TYPE_CHECKING:
    from lockgate.commit.ledger import Entry
    from lockgate.commit.protocol import Epoch
    from lockgate.runtime.checkpoints import Checkpoint
    from lockgate.runtime.lifecycle.tree import Tree


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this group."""
    group = subparsers.add_parser(
        "checkpoints",
        help="the life cycle of a job's checkpoints",
        description="A job's checkpoint: where its sources and its state stand. `list`, `show`, `verify` and `diff`"
        " only look, also while the job runs, and take any checkpoint of Spark's.",
    )
    commands = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    checkpointfacts.register(commands)

    rollback = commands.add_parser(
        "rollback",
        help="let an epoch that is not out be planned anew, or go back to an earlier one",
        description="Give up the epoch that is planned and not committed, so that the next run plans it anew, with "
        "another --rows-per-epoch. Nothing is lost or doubled: it is refused unless the ledger shows that nothing of "
        "it is out. Or, with --to, let a stopped job go back to an earlier epoch. Says first what would be removed, "
        "and does it only with --yes.",
    )
    offer_ledger(rollback)
    which = rollback.add_mutually_exclusive_group(required=True)
    which.add_argument("--uncommitted", action="store_true", help="the epoch that is planned and not committed")
    checkpointchanges.offer_going_back(rollback, which)
    rollback.add_argument("--yes", action="store_true", help="do it; without this it is only said what would happen")
    rollback.add_argument("--json", action="store_true", help="print facts for programs")
    rollback.set_defaults(run=run_rollback)
    checkpointchanges.register(commands)
    checkpointrescale.register(commands)


def run_rollback(arguments: argparse.Namespace) -> int:
    """Say what would be removed; remove it where that is wanted."""
    from lockgate.runtime.checkpoints import source_ranges
    from lockgate.runtime.lifecycle.holding import alone
    from lockgate.runtime.lifecycle.marker import require_marker

    if arguments.to is not None:
        return checkpointchanges.run_going_back(arguments)
    target = find_ledger(arguments)
    if target.is_second:
        raise Refused(
            f"job {target.job!r} commits in another cluster before this one, which may have the epoch already",
            where="command line",
            fix="leave --servers away: the first cluster of the job's file is asked",
        )
    checkpoint, tree = open_checkpoint(target.place)
    epoch = uncommitted_epoch(checkpoint)
    files = uncommitted_files(tree, epoch.number)
    ranges = source_ranges(checkpoint, epoch.number, epoch.number)
    with alone(checkpoint.local, target.job), target.opened() as ledger:
        require_marker(tree, target.job)
        if not ledger.exists:
            told = gone(ledger, target.job)
            raise Refused(f"{told.what}, so nobody can tell whether epoch {epoch.number} is out", told.where, told.fix)
        ledger.refuse_driver()
        entry = ledger.peek()
        refuse_unsafe(entry, epoch, job=target.job, where=ledger.where)
        refuse_out_elsewhere(target, epoch)
        if not arguments.json:
            print(f"checkpoint  {target.place}")
            print(f"ledger      {short(entry)}")
            print(f"epoch       {epoch.number} is planned, not committed and not out")
            for line in describe_ranges(ranges):
                print(f"  {line}")
            print("to be removed, so that the next run plans it anew:")
            for name in files:
                print(f"  {name}")
            for line in warnings(target, has_kafka=bool(ranges)):
                print(line)
        if arguments.yes:
            files = _roll_back(checkpoint, tree, epoch, entry, ledger)
    if arguments.json:
        facts = {
            "job": target.job,
            "checkpoint": target.place,
            "epoch": epoch.number,
            "ledger": None if entry is None else entry.as_facts(),
            "source_offsets": [asdict(one) for one in ranges],
            "records_at_most": count_records(ranges) if ranges else None,
            "files": list(files),
            "warnings": warnings(target, has_kafka=bool(ranges)),
            "removed": arguments.yes,
        }
        print(json.dumps(facts, indent=2))
    elif arguments.yes:
        print("removed; run the job again with a smaller --rows-per-epoch")
    else:
        print("nothing was removed; add --yes")
    return 0


def uncommitted_epoch(checkpoint: Checkpoint) -> Epoch:
    """The epoch that is planned and not committed; Refused where there is none, or it is that of a rescaling."""
    from lockgate.runtime.checkpoints import next_epoch
    from lockgate.runtime.lifecycle.rescaling import refuse_unfinished

    where = f"checkpoint {checkpoint.root}"
    upcoming = next_epoch(checkpoint)
    if upcoming is None:
        raise Refused("there is no checkpoint", where=where, fix="name its place: --checkpoint PLACE")
    if not upcoming.is_planned:
        number = upcoming.epoch.number
        done = "no epoch is planned yet" if number == 0 else f"epoch {number - 1}, the last one planned, is committed"
        raise Refused(
            f"nothing is uncommitted: {done}", where=where, fix="just run the job; there is nothing to roll back"
        )
    refuse_unfinished(checkpoint)
    return upcoming.epoch


def uncommitted_files(tree: Tree, epoch: int) -> tuple[str, ...]:
    """The files of an epoch that is planned and not committed, in the order in which they may be removed.

    Its tasks may have stored state already, under the version behind the epoch. Spark writes such a file anew when the
    epoch runs again, but it would find an uploaded snapshot of the old one first and believe it. The offsets go last:
    until then the epoch is as planned as before.
    """
    from lockgate.runtime.lifecycle.goingback import later_files
    from lockgate.runtime.lifecycle.history import look_at

    return later_files(look_at(tree), epoch - 1, keeps_next=False)


def refuse_unsafe(entry: Entry | None, epoch: Epoch, *, job: str, where: str) -> None:
    """Refuse to give up an epoch of which the ledger does not show that nothing is out."""
    from lockgate.commit import protocol

    try:
        protocol.check_claim(entry, epoch, is_adopting=False, where=where, job=job)
    except LedgerMismatch as mismatch:
        raise Refused(mismatch.what, where=mismatch.where, fix=mismatch.fix) from None
    if entry is not None and entry.epoch == epoch.number:
        raise Refused(
            f"epoch {epoch.number} of job {job!r} is out; only Spark has not logged it yet",
            where=where,
            fix="just run the job: the epoch is computed for its state, and not written again",
        )


def refuse_out_elsewhere(target: LedgerTarget, epoch: Epoch) -> None:
    """Refuse to give up an epoch that another system of the job has, which decided before: its order was changed."""
    for open_ledger in (*target.clusters.values(), *target.followers.values()):
        with closing(open_ledger()) as ledger:
            entry = ledger.peek() if ledger.exists else None
            if entry is not None and entry.epoch is not None and entry.epoch >= epoch.number:
                raise Refused(
                    f"epoch {epoch.number} of job {target.job!r} is out there",
                    where=ledger.where,
                    fix="bring the outputs of the job back into the order in which they were, and run it: the rest"
                    " of the epoch follows",
                )


def warnings(target: LedgerTarget, *, has_kafka: bool) -> list[str]:
    """What a person should know before."""
    lines = []
    if target.may_follow:
        lines.append("This is safe only where the system that was named decides: if in doubt, name the job's file.")
    if target.others:
        names = ", ".join(target.others)
        lines.append(f"Outputs that are declared less ({names}) may have rows of this epoch, and get them again.")
    if not has_kafka:
        lines.append("No source is Kafka: a source of files remembers which files it has planned, and plans the same.")
    lines.append("A driver that is alive stops at its next look at the ledger, because the run id changes.")
    return lines


def _roll_back(
    checkpoint: Checkpoint, tree: Tree, epoch: Epoch, entry: Entry | None, ledger: MendableLedger
) -> tuple[str, ...]:
    """Steps 2 to 4; the files that were removed."""
    from lockgate.commit import protocol
    from lockgate.runtime.lifecycle.cleaning import remove_all

    run = f"rollback-{secrets.token_hex(4)}"
    claim = protocol.claim(entry, epoch, run=run, now=datetime.now(UTC), is_adopting=False)
    ledger.replace(entry, claim)
    if uncommitted_epoch(checkpoint) != epoch:
        raise Failed(
            f"epoch {epoch.number} was planned anew, or another one was, while it was looked at; nothing was removed",
            where=f"checkpoint {checkpoint.root}",
            fix="a driver of this job runs: stop it, then look again",
        )
    files = uncommitted_files(tree, epoch.number)
    remove_all(tree, files)
    return files
