"""Give up an epoch that Spark has planned and no ledger has as committed, so that the next run plans it again.

This is the fix for an epoch that outlives its transaction, or that is too large for the machine. It is safe only while
none of its rows is visible and no driver can commit it:

    1  look      the checkpoint: the job's marker, offsets/N without commits/N; the deciding ledger: N-1; no driver
                 holds the checkpoint or is seen to run (its open transaction, its connection)
    2  fence     older writers can commit nothing any more, and the ledger is read once more
    3  claim     the ledger's value unchanged, with another run id: a driver that is alive stops when it next reads it
    4  remove    the state and the notes that the epoch left behind, then offsets/N
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from lockgate.checkpoints.checkpoint import Checkpoint, SourceRange, next_epoch, source_ranges
from lockgate.checkpoints.cleaning import remove_all
from lockgate.checkpoints.history import look_at
from lockgate.checkpoints.jobledgers import LedgerTarget
from lockgate.checkpoints.laterepochs import later_files
from lockgate.checkpoints.locking import lock_exclusively
from lockgate.checkpoints.marker import require_marker
from lockgate.checkpoints.rescaling import refuse_unfinished
from lockgate.checkpoints.subject import open_checkpoint
from lockgate.checkpoints.tree import Tree
from lockgate.commit import protocol
from lockgate.commit.ledger import Entry
from lockgate.commit.protocol import Epoch
from lockgate.commit.repair import MendableLedger, gone
from lockgate.errors import Failed, LedgerMismatch, Refused


@dataclass(frozen=True)
class Uncommitted:
    """An epoch that may be given up, as step 1 found it."""

    checkpoint: Checkpoint
    tree: Tree
    ledger: MendableLedger
    entry: Entry | None
    epoch: Epoch
    files: tuple[str, ...]
    ranges: tuple[SourceRange, ...]
    warnings: list[str]

    def give_up(self) -> tuple[str, ...]:
        """Steps 2 to 4; the files that were removed."""
        run = f"rollback-{secrets.token_hex(4)}"
        claim = protocol.claim(self.entry, self.epoch, run=run, now=datetime.now(UTC), is_adopting=False)
        self.ledger.replace(self.entry, claim)
        if uncommitted_epoch(self.checkpoint) != self.epoch:
            raise Failed(
                f"epoch {self.epoch.number} or another one was planned in the meantime; nothing was removed",
                where=f"checkpoint {self.checkpoint.root}",
                fix="a driver of this job runs: stop it, then look again",
            )
        files = uncommitted_files(self.tree, self.epoch.number)
        remove_all(self.tree, files)
        return files


@contextmanager
def find_uncommitted(target: LedgerTarget) -> Iterator[Uncommitted]:
    """Step 1; the checkpoint is held, and the ledger open, until the end. Refused if it is not safe."""
    if target.is_second:
        raise Refused(
            f"job {target.job!r} commits in another cluster before this one, which may have the epoch already",
            where="command line",
            fix="omit --servers: the first cluster of the job's file is asked",
        )
    checkpoint, tree = open_checkpoint(target.place)
    epoch = uncommitted_epoch(checkpoint)
    files = uncommitted_files(tree, epoch.number)
    ranges = source_ranges(checkpoint, epoch.number, epoch.number)
    with lock_exclusively(checkpoint.local, target.job), target.opened() as ledger:
        require_marker(tree, target.job)
        if not ledger.exists:
            told = gone(ledger, target.job)
            raise Refused(
                f"{told.what}, so it is unknown whether epoch {epoch.number} is committed", told.where, told.fix
            )
        ledger.refuse_driver()
        entry = ledger.peek()
        refuse_unsafe(entry, epoch, job=target.job, where=ledger.where)
        refuse_out_elsewhere(target, epoch)
        yield Uncommitted(
            checkpoint=checkpoint,
            tree=tree,
            ledger=ledger,
            entry=entry,
            epoch=epoch,
            files=files,
            ranges=ranges,
            warnings=_warnings(target, has_kafka=bool(ranges)),
        )


def uncommitted_epoch(checkpoint: Checkpoint) -> Epoch:
    """The epoch that is planned and not committed; Refused if there is none, or if it is that of a rescaling."""
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

    Its tasks may have stored state already, as the version after the epoch. When the epoch runs again, Spark overwrites
    such a file, but it would first find an uploaded snapshot of the old epoch and use it. The offsets are removed last:
    until then the epoch stays planned.
    """
    return later_files(look_at(tree), epoch - 1, keeps_next=False)


def refuse_unsafe(entry: Entry | None, epoch: Epoch, *, job: str, where: str) -> None:
    """Refuse to give up an epoch unless the ledger shows that it is not committed."""
    try:
        protocol.check_claim(entry, epoch, is_adopting=False, where=where, job=job)
    except LedgerMismatch as mismatch:
        raise Refused(mismatch.what, where=mismatch.where, fix=mismatch.fix) from None
    if entry is not None and entry.epoch == epoch.number:
        raise Refused(
            f"epoch {epoch.number} of job {job!r} is committed; only Spark has not logged it yet",
            where=where,
            fix="just run the job: the epoch is computed for its state, and not written again",
        )


def refuse_out_elsewhere(target: LedgerTarget, epoch: Epoch) -> None:
    """Refuse to give up an epoch that another system has committed: it decided before the order of outputs changed."""
    for open_ledger in (*target.clusters.values(), *target.followers.values()):
        with closing(open_ledger()) as ledger:
            entry = ledger.peek() if ledger.exists else None
            if entry is not None and entry.epoch is not None and entry.epoch >= epoch.number:
                raise Refused(
                    f"epoch {epoch.number} of job {target.job!r} is committed there",
                    where=ledger.where,
                    fix="put the outputs of the job back into their former order, and run it: the rest of the epoch"
                    " follows",
                )


def _warnings(target: LedgerTarget, *, has_kafka: bool) -> list[str]:
    """What the operator should know before."""
    lines = []
    if target.may_follow:
        lines.append("This is safe only if the named system decides: if in doubt, name the job's file.")
    if target.others:
        names = ", ".join(target.others)
        lines.append(f"Outputs with a lower guarantee ({names}) may have rows of this epoch, and get them again.")
    if not has_kafka:
        lines.append("No source is Kafka: a source of files remembers which files it has planned, and plans the same.")
    lines.append("A driver that is alive stops when it next reads the ledger, because the run id changes.")
    return lines
