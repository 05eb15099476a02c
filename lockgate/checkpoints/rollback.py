"""Roll a stopped job back to an epoch: make it the last one that is done, in the checkpoint and in the ledgers.

Later epochs may be committed, and then their rows are visible already:

    --outputs again   they are planned again, and delivered a second time: the ledger is set back
    --outputs skip    one is computed for its state and not delivered. This is possible for one epoch only, because
                      Spark repeats only the last epoch over the same events, and only if the checkpoint has its offsets

Order: look, fence and set the ledgers, then remove (laterepochs.py). A driver that is alive stops when it next reads
the ledger. If the command dies halfway, give it again.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime

from lockgate.checkpoints.checkpoint import SourceRange, source_ranges
from lockgate.checkpoints.cleaning import remove_all
from lockgate.checkpoints.history import History, look_at, refuse_unreachable
from lockgate.checkpoints.jobledgers import entry_for, set_others
from lockgate.checkpoints.laterepochs import later_files, refuse_lost_files
from lockgate.checkpoints.marker import require_marker
from lockgate.checkpoints.positions import check_topics, refuse_lost
from lockgate.checkpoints.rescaling import is_rescaling
from lockgate.checkpoints.subject import Subject
from lockgate.commit.ledger import Entry
from lockgate.commit.repair import MendableLedger, gone, keep_staged, short
from lockgate.errors import Failed, Refused


@dataclass(frozen=True)
class Rollback:
    """What going back to an epoch means for a job, and the way to do it."""

    subject: Subject
    ledger: MendableLedger | None
    history: History
    epoch: int
    before: Entry | None  # of the deciding ledger
    out: int  # the last epoch that is committed, or may be
    last: int  # the last epoch that is planned
    keeps_next: bool
    files: tuple[str, ...]
    ranges: tuple[SourceRange, ...]
    says: list[str]

    def carry_out(self) -> None:
        """Fence and set the ledgers, then remove the later epochs."""
        if self.ledger is not None and self.before is not None:
            _set_back(self.subject, self.ledger, self.before, self.epoch, keeps_next=self.keeps_next)
        found = look_at(self.subject.tree)
        if (found.planned, found.committed) != (self.history.planned, self.history.committed):
            raise Failed(
                "the checkpoint changed in the meantime; nothing was removed",
                where=f"checkpoint {self.subject.tree.root}",
                fix="a driver of this job runs: stop it, then look again",
            )
        remove_all(self.subject.tree, later_files(found, self.epoch, keeps_next=self.keeps_next))


@contextmanager
def plan_rollback(subject: Subject, epoch: int, outputs: str | None) -> Iterator[Rollback]:
    """Weigh going back; the checkpoint is held, and the ledger open, until the end. Refused if it is not possible.

    Args:
        outputs: what happens to epochs that are committed, `again` or `skip`.
    """
    target = subject.ledger
    if target is not None and target.is_second:
        raise Refused(
            f"job {subject.job!r} commits in another cluster before this one",
            where="command line",
            fix="omit --servers: all clusters of the job's file are set",
        )
    with subject.lock_exclusively(), nullcontext() if target is None else target.opened() as ledger:
        require_marker(subject.tree, subject.job)
        history = look_at(subject.tree)
        refuse_unreachable(history, epoch)
        last = max(history.planned)
        if last == epoch and (ledger is None or _is_at(ledger, epoch)):
            raise Refused(
                f"epoch {epoch} is already the last one",
                where=f"checkpoint {subject.tree.root}",
                fix="just run the job; there is nothing to roll back",
            )
        refuse_lost(subject.sources)
        refuse_lost_files(history, epoch)
        before = _look(subject, ledger, history, epoch)
        out = last if before is None else before.epoch
        assert out is not None
        keeps_next = _choose(subject, epoch, out, outputs, before)
        files = later_files(history, epoch, keeps_next=keeps_next)
        says = _weigh(subject, epoch, out, keeps_next=keeps_next)
        offsets = subject.checkpoint.kafka_offsets(epoch)
        says += check_topics(subject.sources, offsets, where=subject.where) if subject.sources else []
        says += subject.warn_unseen()
        ranges = source_ranges(subject.checkpoint, epoch + 1, max(out, last))
        yield Rollback(
            subject=subject,
            ledger=ledger,
            history=history,
            epoch=epoch,
            before=before,
            out=out,
            last=last,
            keeps_next=keeps_next,
            files=files,
            ranges=ranges,
            says=says,
        )


def _is_at(ledger: MendableLedger, epoch: int) -> bool:
    entry = ledger.peek() if ledger.exists else None
    return entry is not None and entry.epoch == epoch


def _look(subject: Subject, ledger: MendableLedger | None, history: History, epoch: int) -> Entry | None:
    """The ledger's entry; Refused if a driver runs, or if the ledger does not belong to the checkpoint."""
    if ledger is None:
        return None
    if not ledger.exists:
        told = gone(ledger, subject.job)
        raise Refused(f"{told.what}, so it is unknown which epochs are committed", told.where, told.fix)
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
            fix="name the checkpoint that the job was run with; `lockgate ledger show` says what is committed",
        )
    return entry


def _choose(subject: Subject, epoch: int, out: int, outputs: str | None, ledger: Entry | None) -> bool:
    """Do the offsets of the next epoch stay?

    Refused if --outputs does not say what happens to committed epochs, or asks for what is impossible.
    """
    where = f"checkpoint {subject.tree.root}"
    has_offsets = ledger is not None and subject.checkpoint.digest(epoch + 1) == ledger.digest
    if outputs == "skip":
        if ledger is None:
            raise Refused(
                f"job {subject.job!r} has no ledger, so it is unknown which of its output is committed",
                where=where,
                fix="--outputs again",
            )
        if is_rescaling(subject.checkpoint, epoch + 1):
            raise Refused(
                f"epoch {epoch + 1} was added by a rescaling: it has no events, and nothing to skip",
                where=where,
                fix="--outputs again: this epoch has committed no row that could be delivered twice",
            )
        if out != epoch + 1:
            raise Refused(
                f"epochs {epoch + 1} to {out} are committed: Spark repeats only the last epoch over the same events, so"
                " only one can be skipped"
                if out > epoch
                else f"no epoch after epoch {epoch} is committed, so there is nothing to skip",
                where=where,
                fix=f"--to {out - 1} --outputs skip; or --outputs again" if out > epoch else "omit --outputs",
            )
        if not has_offsets:
            raise Refused(
                f"epoch {out} is committed, and the checkpoint does not have its offsets: it cannot be computed over"
                " the same events",
                where=where,
                fix="--outputs again; or bring back the checkpoint that the job was last run with",
            )
        return True
    if outputs is None and out > epoch:
        several = f"epochs {epoch + 1} to {out} are" if out > epoch + 1 else f"epoch {out} is"
        how = "committed" if ledger is not None else "committed, or may be: the job has no ledger"
        raise Refused(
            f"{several} {how}; going back would deliver their rows a second time",
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
    """The effect of going back on the outputs, in lines."""
    others = () if subject.ledger is None else subject.ledger.others
    harmless = subject.upserts
    lines = []
    if keeps_next:
        lines.append(f"Epoch {out} is computed again over the same events, for its state, and not delivered again.")
        again = others
    elif out > epoch:
        again = tuple(subject.sinks)
        lines.append(f"What epochs {epoch + 1}..{out} delivered stays visible, and the next run delivers it again.")
    else:
        again = others
        lines.append(f"No epoch after epoch {epoch} is committed: nothing is duplicated.")
    if twice := [name for name in again if name not in harmless]:
        lines.append(f"Readers of {', '.join(twice)} see these rows TWICE.")
    if same := [name for name in again if name in harmless]:
        lines.append(f"{', '.join(same)}: rows replace those of their key, so the same rows again change nothing.")
    return lines


def _set_back(subject: Subject, ledger: MendableLedger, before: Entry, epoch: int, *, keeps_next: bool) -> None:
    """Fence, and set every ledger of the job to this epoch as the last committed one."""
    assert subject.ledger is not None
    now, run = datetime.now(UTC), f"rollback-{secrets.token_hex(4)}"
    if keeps_next:
        ledger.replace(before, before.claimed(run, str(subject.checkpoint.query()), now))
        return
    entry = entry_for(subject.checkpoint, epoch, now=now, run=run)
    ledger.replace(before, keep_staged(before, entry))
    set_others(subject.ledger, entry, only_later=True)
