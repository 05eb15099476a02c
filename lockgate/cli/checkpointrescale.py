"""The command `checkpoints rescale`: another number of state partitions for a job that stands still.

    1  look      the checkpoint, which carries the job's marker, with no epoch that is planned and not committed; every
                 ledger of the job, all of which stand at its last epoch; no driver holds it or is seen to run
    2  claim     the deciding ledger's value unchanged, with another run id: a driver that is alive stops at its next
                 look
    3  rewrite   offsets/N+1, all state for the new number, commits/N+1: an epoch without events and without rows
    4  follow    the ledgers move on to N+1, the deciding one last; only then may the job run

After a crash at any moment the same command goes on where it ended (see runtime/lifecycle/rescaling.py).
"""

from __future__ import annotations

import argparse
import json
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockgate.cli.checkpointsubject import open_spark
from lockgate.cli.ledger import short
from lockgate.cli.ledgers import LedgerTarget, checkpoint_place, find_ledger
from lockgate.cli.target import read_job
from lockgate.commit.mending import MendableLedger
from lockgate.errors import Failed, Refused
from lockgate.guarantees import Guarantee

if TYPE_CHECKING:
    from lockgate.commit.ledger import Entry
    from lockgate.planner.plan import Plan
    from lockgate.runtime.checkpoints import Checkpoint
    from lockgate.runtime.lifecycle.rescaling import Rescaling


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to its group."""
    rescale = commands.add_parser(
        "rescale",
        help="deal a job's state out to another number of partitions",
        description="Change the number of partitions, and so of tasks, of the state of a job that is stopped and has "
        "committed all that it planned. No event is read, no row is written; the job goes on with the same results. "
        "Says first what would be written, and does it only with --yes. One that was interrupted is finished by the "
        "same command.",
    )
    rescale.add_argument("job", metavar="FILE", help="a Python file that defines job(**parameters) -> Job")
    rescale.add_argument(
        "-p", dest="parameters", action="append", default=[], metavar="NAME=VALUE", help="a parameter of job()"
    )
    rescale.add_argument("--partitions", type=int, required=True, metavar="N", help="how many there are to be")
    rescale.add_argument(
        "--checkpoint", metavar="PLACE", help="default: .lockgate/checkpoints/JOB; any Hadoop file system"
    )
    rescale.add_argument("--yes", action="store_true", help="do it; without this it is only said what would happen")
    rescale.add_argument("--json", action="store_true", help="print facts for programs")
    rescale.set_defaults(run=run_rescale, servers=None, client=[], postgres=None, files=None, sqlite=None)


def run_rescale(arguments: argparse.Namespace) -> int:
    """Say what would be written; write it where that is wanted."""
    from lockgate.cli.jobfile import load_job
    from lockgate.planner.plan import plan
    from lockgate.runtime.checkpoints import Checkpoint
    from lockgate.runtime.lifecycle.holding import alone
    from lockgate.runtime.lifecycle.marker import require_marker
    from lockgate.runtime.lifecycle.rescaling import decide, note_end, refuse_other_wish
    from lockgate.runtime.lifecycle.tree import open_tree

    if not Path(arguments.job).is_file():
        raise Refused(f"there is no job file {arguments.job!r}", where="command line", fix="name the job's file")
    planned = plan(load_job(arguments.job, arguments.parameters))
    refuse_useless(planned, arguments.partitions)
    refuse_other_wish(planned, arguments.partitions)
    target = find_ledger(arguments) if read_job(arguments).exact else None
    place = checkpoint_place(arguments, planned.job.name)
    checkpoint = Checkpoint(root=place)
    if checkpoint.local is None:
        checkpoint = Checkpoint(root=place, spark=open_spark())
    rescaling = decide(checkpoint, arguments.partitions)
    with alone(checkpoint.local, planned.job.name), _opened(target) as ledgers:
        require_marker(open_tree(place, checkpoint.spark), planned.job.name)
        for one in ledgers:
            one.ledger.refuse_driver()
        behind = [one for one in ledgers if one.is_behind(rescaling, checkpoint)]
        is_needed = bool(behind) or not rescaling.is_written
        if not arguments.json:
            for line in describe(planned, checkpoint, rescaling, behind):
                print(line)
        if arguments.yes and is_needed:
            _rescale(checkpoint, rescaling, ledgers)
        elif arguments.yes:
            note_end(checkpoint)  # it was killed right before it had
    if arguments.json:
        facts = {
            "job": planned.job.name,
            "checkpoint": place,
            "epoch": rescaling.epoch,
            "partitions": {"before": rescaling.before, "after": rescaling.after},
            "steps": steps_of(planned),
            "is_begun": rescaling.is_begun,
            "is_written": rescaling.is_written,
            "ledgers_behind": [one.ledger.name for one in behind],
            "done": arguments.yes or not is_needed,
        }
        print(json.dumps(facts, indent=2))
    elif not is_needed:
        print("nothing is to be done")
    else:
        print(
            f"done: run the job, it has {rescaling.after} partitions now"
            if arguments.yes
            else "nothing was written; add --yes"
        )
    return 0


def refuse_useless(planned: Plan, partitions: int) -> None:
    """Refuse what can mean nothing for a job."""
    from lockgate.dataflow.steps import Transform
    from lockgate.planner.physical import has_state

    where = f"job {planned.job.name!r}, declared at {planned.job.origin}"
    if partitions < 1:
        raise Refused(f"--partitions is {partitions}", where="command line", fix="state has at least one partition")
    if planned.job.guarantee is Guarantee.AT_MOST_ONCE:
        raise Refused(
            "an at-most-once job keeps no checkpoint, and so no state",
            where=where,
            fix="change .parallel(n), and run it",
        )
    # A transform is a closed box, which may hold state.
    if not any(has_state(node) or isinstance(node.step, Transform) for node in planned.logical.nodes):
        raise Refused(
            "the job has no step with state, so nothing has to be dealt out anew",
            where=where,
            fix="change .parallel(n), and run it",
        )


def steps_of(planned: Plan) -> list[dict[str, Any]]:
    """The steps whose state is dealt out."""
    return [
        {"step": step.name, "kind": step.kind, "execution": step.execution}
        for step in planned.physical.steps
        if step.has_state
    ]


def describe(planned: Plan, checkpoint: Checkpoint, rescaling: Rescaling, behind: list[Followed]) -> list[str]:
    """What would be done, in lines."""
    lines = [f"checkpoint  {checkpoint.root}", f"partitions  {rescaling.before} -> {rescaling.after}, of every step:"]
    for step in steps_of(planned):
        how = "pages are dealt out anew by key" if step["execution"] == "Python" else "rows are dealt out anew by key"
        lines.append(f"  {step['kind']} {step['step']!r}: state in {step['execution']}, its {how}")
    if rescaling.is_written:
        lines.append(f"epoch       {rescaling.epoch} is written already, by a rescaling of before")
    else:
        begun = "is begun already, and will be written again" if rescaling.is_begun else "will be written"
        lines.append(f"epoch       {rescaling.epoch} {begun}: it reads nothing and gives no row")
        lines.append(f"  offsets/{rescaling.epoch}  those of epoch {rescaling.epoch - 1}, with the new number")
        lines.append(
            f"  state/       all of it, as of epoch {rescaling.epoch - 1}; what is there stays for older epochs"
        )
        lines.append(f"  commits/{rescaling.epoch}")
    for one in behind:
        lines.append(f"ledger      {one.ledger.name}: {short(one.entry)}; moves on to epoch {rescaling.epoch}")
    return lines


@dataclass
class Followed:
    """A ledger of the job, and what it said last."""

    ledger: MendableLedger
    entry: Entry | None
    is_deciding: bool
    is_new: bool = False  # an output that begins with the next epoch

    def is_behind(self, rescaling: Rescaling, checkpoint: Checkpoint) -> bool:
        """Has it to move on?"""
        from lockgate.runtime.lifecycle.rescaling import is_behind

        return not self.is_new and is_behind(self.entry, rescaling, checkpoint, where=self.ledger.where)


@contextmanager
def _opened(target: LedgerTarget | None) -> Iterator[list[Followed]]:
    """All ledgers of the job, the deciding one last; none where it has none."""
    if target is None:
        yield []
        return
    with ExitStack() as stack:
        deciding = stack.enter_context(target.opened())
        decided = deciding.peek() if deciding.exists else None
        staged = {} if decided is None else decided.staged
        found = []
        for name, opener in {**target.clusters, **target.followers}.items():
            ledger = stack.enter_context(closing(opener()))
            entry = ledger.peek() if ledger.exists else None
            is_new = entry is None and name in target.followers and name not in staged
            found.append(Followed(ledger, entry, is_deciding=False, is_new=is_new))
        yield [*found, Followed(deciding, decided, is_deciding=True)]


def _rescale(checkpoint: Checkpoint, rescaling: Rescaling, ledgers: list[Followed]) -> None:
    """Steps 2 to 4."""
    from lockgate.runtime.checkpoints import Checkpoint
    from lockgate.runtime.lifecycle.rescaling import decide, moved_on, note_end, rescale

    run, now = f"rescale-{secrets.token_hex(4)}", datetime.now(UTC)
    query = checkpoint.query()
    for one in ledgers:
        if one.is_deciding and one.entry is not None and query is not None and not rescaling.is_written:
            claim = one.entry.claimed(run, query, now)
            one.ledger.replace(one.entry, claim)
            one.entry = claim
    if decide(checkpoint, rescaling.after) != rescaling:
        raise Failed(
            "an epoch was planned while it was looked at; nothing was written",
            where=f"checkpoint {checkpoint.root}",
            fix="a driver of this job runs: stop it, then look again",
        )
    if not rescaling.is_written:
        spark = checkpoint.spark or open_spark()
        rescale(spark, Checkpoint(root=checkpoint.root, spark=spark), rescaling)
    written = decide(checkpoint, rescaling.after)
    for one in ledgers:
        if one.entry is not None and one.is_behind(written, checkpoint):
            one.ledger.replace(one.entry, moved_on(one.entry, written, checkpoint, run=run, now=now))
    note_end(checkpoint)
