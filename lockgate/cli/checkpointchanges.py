"""The commands that change a checkpoint: clean, rollback --to; savepoint and restore have a file of their own.

Nothing is changed in a directory that does not carry the marker of the job, nor while a driver of the job is seen. What
destroys says first what it would do, and does it only with --yes.

`rollback --to N` makes epoch N the last one that is done. What the job did since is out already:

    --outputs again   it is planned anew, and delivered a second time: the ledger is set back to N
    --outputs skip    it is computed for its state and not delivered: possible for one epoch only, since Spark repeats
                      over the same events nothing but the last one, and while the checkpoint has its offsets

Order: look, fence and set the ledgers, then remove. A driver that is alive stops at its next look at the ledger; and a
command that died halfway is given again.
"""

from __future__ import annotations

import argparse
import json
import secrets
from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lockgate.cli import savepoints
from lockgate.cli.checkpointsubject import Subject, changed_meanwhile, find_subject, set_others
from lockgate.cli.ledger import count_records, describe_ranges, entry_for, gone, keep_staged, short
from lockgate.cli.ledgers import offer_ledger
from lockgate.errors import Refused

if TYPE_CHECKING:
    from lockgate.commit.ledger import Entry
    from lockgate.commit.mending import MendableLedger
    from lockgate.runtime.lifecycle.cleaning import Cleaning, Life
    from lockgate.runtime.lifecycle.history import History


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands that change a checkpoint."""
    clean = commands.add_parser(
        "clean",
        help="remove old epochs and what crashes left behind",
        description="Remove what is needed only to go back further than to the newest N epochs, and files that "
        "processes left behind when they died. What a restart needs stays. The job must not run; "
        "`lockgate run --keep-epochs` does the same while it runs. Says first what would go, and "
        "removes it only with --yes.",
    )
    offer_ledger(clean)
    clean.add_argument("--keep", type=int, required=True, metavar="N", help="how many epochs can still be gone back to")
    clean.add_argument("--lives", action="store_true", help="also remove the checkpoints that --new-life put aside")
    clean.add_argument("--yes", action="store_true", help="do it; without this it is only said what would happen")
    clean.add_argument("--json", action="store_true", help="print facts for programs")
    clean.set_defaults(run=run_clean)
    savepoints.register(commands)


def offer_going_back(rollback: argparse.ArgumentParser, which: argparse._MutuallyExclusiveGroup) -> None:
    """Let `rollback` take an epoch to go back to."""
    which.add_argument("--to", type=int, metavar="N", help="let this epoch be the last one that is done")
    rollback.add_argument(
        "--outputs",
        choices=("again", "skip"),
        help="with --to, what becomes of epochs that are out: delivered again, or computed without being delivered",
    )


def run_clean(arguments: argparse.Namespace) -> int:
    """Say what would go; remove it where that is wanted."""
    from lockgate.runtime.lifecycle.cleaning import find_lives, plan_cleaning, remove_all
    from lockgate.runtime.lifecycle.history import look_at
    from lockgate.runtime.lifecycle.marker import require_marker
    from lockgate.runtime.lifecycle.savepoints import parent_of

    subject = find_subject(arguments)
    with subject.alone():
        require_marker(subject.tree, subject.job)
        if subject.ledger is not None:  # a driver on another machine, or a query of write_stream, holds nothing
            with subject.ledger.opened() as ledger:
                ledger.refuse_driver()
        cleaning = plan_cleaning(look_at(subject.tree), arguments.keep, datetime.now(UTC))
        parent, name = parent_of(subject.tree)
        lives = find_lives(parent, name, subject.job)
        if arguments.yes:
            remove_all(subject.tree, cleaning.files)
            for life in lives if arguments.lives else ():
                if life.trouble is None:
                    require_marker(parent.below(life.name), subject.job)
                    parent.remove(life.name)
    if arguments.json:
        facts = {
            "job": subject.job,
            "checkpoint": subject.tree.root,
            **asdict(cleaning),
            "lives": [asdict(life) for life in lives],
            "warnings": subject.warn_unseen(),
            "removed": arguments.yes,
            "lives_removed": arguments.yes and arguments.lives,
        }
        print(json.dumps(facts, indent=2))
        return 0
    for line in (*_describe(subject, cleaning, lives, with_lives=arguments.lives), *subject.warn_unseen()):
        print(line)
    print("removed" if arguments.yes else "nothing was removed; add --yes")
    return 0


def _describe(subject: Subject, cleaning: Cleaning, lives: list[Life], *, with_lives: bool) -> list[str]:
    first, last = cleaning.kept[0], cleaning.kept[-1]
    lines = [
        f"checkpoint  {subject.tree.root}",
        f"kept        {len(cleaning.kept)} epochs to go back to, {first} to {last}; and all that a restart needs",
    ]
    lines += [f"to go       {part.what}: {len(part.files)} files, {part.bytes:,} bytes" for part in cleaning.parts]
    if not cleaning.parts:
        lines.append("to go       nothing in the checkpoint")
    for life in lives:
        fate = life.trouble or ("to go" if with_lives else "stays, without --lives")
        lines.append(f"put aside   {life.name}, {life.bytes:,} bytes: {fate}")
    return lines


def run_going_back(arguments: argparse.Namespace) -> int:
    """Say what going back to an epoch means; do it where that is wanted."""
    from lockgate.runtime.checkpoints import source_ranges
    from lockgate.runtime.lifecycle.cleaning import remove_all
    from lockgate.runtime.lifecycle.goingback import later_files, refuse_lost_files
    from lockgate.runtime.lifecycle.history import look_at, refuse_unreachable
    from lockgate.runtime.lifecycle.marker import require_marker
    from lockgate.runtime.lifecycle.positions import check_topics, refuse_lost

    subject, epoch = find_subject(arguments), arguments.to
    target = subject.ledger
    if target is not None and target.is_second:
        raise Refused(
            f"job {subject.job!r} commits in another cluster before this one",
            where="command line",
            fix="leave --servers away: all clusters of the job's file are set",
        )
    with subject.alone(), nullcontext() if target is None else target.opened() as ledger:
        require_marker(subject.tree, subject.job)
        history = look_at(subject.tree)
        refuse_unreachable(history, epoch)
        last = max(history.planned)
        if last == epoch and (ledger is None or _is_at(ledger, epoch)):
            raise Refused(
                f"epoch {epoch} is the last one already",
                where=f"checkpoint {subject.tree.root}",
                fix="just run the job; there is nothing to roll back",
            )
        refuse_lost(subject.sources)
        refuse_lost_files(history, epoch)
        before = _look(subject, ledger, history, epoch)
        out = last if before is None else before.epoch
        assert out is not None
        keeps_next = _choose(subject, epoch, out, arguments.outputs, before)
        files = later_files(history, epoch, keeps_next=keeps_next)
        says = _weigh(subject, epoch, out, keeps_next=keeps_next)
        offsets = subject.checkpoint.kafka_offsets(epoch)
        says += check_topics(subject.sources, offsets, where=subject.where) if subject.sources else []
        says += subject.warn_unseen()
        ranges = source_ranges(subject.checkpoint, epoch + 1, max(out, last))
        if not arguments.json:
            print(f"checkpoint  {subject.tree.root}")
            print(f"ledger      {'none' if ledger is None else short(before)}")
            print(f"to be       epoch {epoch} is the last one that is done")
            print(f"source offsets of epochs {epoch + 1}..{max(out, last)}:")
            for line in describe_ranges(ranges):
                print(f"  {line}")
            for line in says:
                print(line)
            print(f"{len(files)} files of later epochs go")
        if arguments.yes:
            if ledger is not None and before is not None:
                _set_back(subject, ledger, before, epoch, keeps_next=keeps_next)
            found = look_at(subject.tree)
            if (found.planned, found.committed) != (history.planned, history.committed):
                raise changed_meanwhile(subject.tree.root)
            remove_all(subject.tree, later_files(found, epoch, keeps_next=keeps_next))
    if arguments.json:
        facts = {
            "job": subject.job,
            "checkpoint": subject.tree.root,
            "to": epoch,
            "ledger": None if before is None else before.as_facts(),
            "out": out,
            "outputs": arguments.outputs,
            "source_offsets": [asdict(one) for one in ranges],
            "records_at_most": count_records(ranges) if ranges else None,
            "files": list(files),
            "says": says,
            "done": arguments.yes,
        }
        print(json.dumps(facts, indent=2))
    else:
        print("done; run the job again" if arguments.yes else "nothing was changed; add --yes")
    return 0


def _is_at(ledger: MendableLedger, epoch: int) -> bool:
    entry = ledger.peek() if ledger.exists else None
    return entry is not None and entry.epoch == epoch


def _look(subject: Subject, ledger: MendableLedger | None, history: History, epoch: int) -> Entry | None:
    """What the ledger says; Refused where a driver runs, or where it does not belong to the checkpoint."""
    if ledger is None:
        return None
    if not ledger.exists:
        told = gone(ledger, subject.job)
        raise Refused(f"{told.what}, so nobody can tell what is out", told.where, told.fix)
    ledger.refuse_driver()
    entry = ledger.peek()
    query = subject.checkpoint.query()
    is_ours = entry is not None and entry.epoch is not None and entry.query in (None, query)
    known = subject.checkpoint.digest(entry.epoch) if entry is not None and entry.epoch is not None else None
    if entry is None or not is_ours or (entry.epoch or 0) < epoch or known not in (None, entry.digest):
        raise Refused(
            f"the ledger ({short(entry)}, query {None if entry is None else entry.query}) does not fit this checkpoint"
            f" (query {query}, epochs up to {max(history.planned)})",
            where=ledger.where,
            fix="name the checkpoint that the job was run with; `lockgate ledger show` says what is out",
        )
    return entry


def _choose(subject: Subject, epoch: int, out: int, outputs: str | None, ledger: Entry | None) -> bool:
    """Do the offsets of the next epoch stay? Refused where it is not said what becomes of what is out, or cannot be."""
    from lockgate.runtime.lifecycle.rescaling import is_rescaling

    where = f"checkpoint {subject.tree.root}"
    has_offsets = ledger is not None and subject.checkpoint.digest(epoch + 1) == ledger.digest
    if outputs == "skip":
        if ledger is None:
            raise Refused(
                f"job {subject.job!r} has no ledger, so nothing it delivers can be told from what is out",
                where=where,
                fix="--outputs again",
            )
        if is_rescaling(subject.checkpoint, epoch + 1):
            raise Refused(
                f"epoch {epoch + 1} was added by a rescaling: it has no events, and nothing to be skipped",
                where=where,
                fix="--outputs again: of this epoch nothing is out that could come a second time",
            )
        if out != epoch + 1:
            raise Refused(
                f"epochs {epoch + 1} to {out} are out: Spark repeats over the same events only the last epoch, so only"
                " one can be skipped"
                if out > epoch
                else f"nothing behind epoch {epoch} is out, so there is nothing to skip",
                where=where,
                fix=f"--to {out - 1} --outputs skip; or --outputs again" if out > epoch else "leave --outputs away",
            )
        if not has_offsets:
            raise Refused(
                f"epoch {out} is out, and the checkpoint does not have its offsets: it cannot be computed over the same"
                " events",
                where=where,
                fix="--outputs again; or bring back the checkpoint that the job was last run with",
            )
        return True
    if outputs is None and out > epoch:
        several = f"epochs {epoch + 1} to {out} are" if out > epoch + 1 else f"epoch {out} is"
        how = "out" if ledger is not None else "out, or may be: the job has no ledger"
        raise Refused(
            f"{several} {how}; going back would deliver what they had a second time",
            where=where,
            fix="--outputs again accepts that"
            + (
                f"; --outputs skip computes epoch {out} without delivering it"
                if has_offsets and out == epoch + 1
                else ""
            ),
        )
    return False


def _weigh(subject: Subject, epoch: int, out: int, *, keeps_next: bool) -> list[str]:
    """What going back means for the outputs, in lines."""
    others = () if subject.ledger is None else subject.ledger.others
    harmless = subject.upserts
    lines = []
    if keeps_next:
        lines.append(f"Epoch {out} is computed again over the same events, for its state, and not delivered again.")
        again = others
    elif out > epoch:
        again = tuple(subject.sinks)
        lines.append(f"What epochs {epoch + 1}..{out} delivered stays out, and the next run delivers it again.")
    else:
        again = others
        lines.append(f"Nothing behind epoch {epoch} is out: nothing is doubled.")
    if twice := [name for name in again if name not in harmless]:
        lines.append(f"Readers of {', '.join(twice)} see these rows TWICE.")
    if same := [name for name in again if name in harmless]:
        lines.append(f"{', '.join(same)}: rows replace those of their key, so the same rows again change nothing.")
    return lines


def _set_back(subject: Subject, ledger: MendableLedger, before: Entry, epoch: int, *, keeps_next: bool) -> None:
    """Fence, and let every ledger of the job say that this epoch is the last one that is out."""
    assert subject.ledger is not None
    now, run = datetime.now(UTC), f"rollback-{secrets.token_hex(4)}"
    if keeps_next:
        ledger.replace(before, before.claimed(run, str(subject.checkpoint.query()), now))
        return
    entry = entry_for(subject.checkpoint, epoch, now=now, run=run)
    ledger.replace(before, keep_staged(before, entry))
    set_others(subject.ledger, entry, only_later=True)
