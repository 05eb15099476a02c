"""What to do next in an epoch, given what the ledger and the votes say. Pure: no clock, no network, no Spark.

    the ledger says                                         the epoch N
    ------------------------------------------------------  --------------------------------------------------
    another run id than mine                                stop: another driver took over
    N, same digest of offsets/N                             is committed: compute it for the state, write nothing
    N-1, and its digest is that of offsets/N-1              is not committed: write it
    nothing, and N is the checkpoint's first                is not committed: write it
    anything else                                           stop: an operator must say which of the two is right

    a try failed, and the ledger then says                  what is next
    ------------------------------------------------------  --------------------------------------------------
    N, same digest                                          the epoch is committed; only the answer was lost
    another run id                                          stop
    N-1, and the rows can be computed again                 retry, a few times
    N-1, and the rows depend on state                       fail, so that the query restarts from its checkpoint
    N-1, for the second time by a time-out                  stop, and say how to make the epoch smaller

Nothing here guesses: an epoch is written only if the ledger proves that it is not yet committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from lockgate.commit.ledger import Entry, Gap
from lockgate.errors import EpochTooLong, Fenced, InvariantBroken, LedgerMismatch, LockgateError

TRIES = 4
"""How often an epoch is tried in one go, if its rows can be computed again."""

TIME_OUTS = 2
"""After this many time-outs of one epoch the epoch is too large; bad luck is unlikely."""

_AT = "[--servers HOST:PORT | --postgres DSN | --files DIR | --sqlite FILE]"


@dataclass(frozen=True)
class Epoch:
    """An epoch as the checkpoint knows it."""

    number: int
    digest: str  # of offsets/<number>
    previous_digest: str | None  # of offsets/<number - 1>, if the checkpoint still has it
    query: str  # Spark's id of the query
    gaps: tuple[Gap, ...] = ()  # all gaps that an operator gave up in the checkpoint


class Step(Enum):
    """What to do with an epoch."""

    WRITE = "write"
    SKIP = "skip"  # it is already committed


class Cause(Enum):
    """Why a try ended."""

    LOST = "lost"  # a worker, a connection or the transaction: the next try may succeed
    TIMED_OUT = "timed out"  # the broker aborted the transaction
    NOT_ALIKE = "not alike"  # two tasks held rows of one output partition: exchange the rows first
    CANCELLED = "cancelled"  # the query was stopped
    FINAL = "final"  # the rows cannot be written, or computed


class Next(Enum):
    """What to do after a failed try."""

    REPEAT = "repeat"
    RESTART = "restart"
    STOP = "stop"


@dataclass(frozen=True)
class Vote:
    """What one task reports that it wrote to one partition."""

    attempt: int  # Spark's task attempt id, unique in an application
    topic: str
    partition: int
    records: int
    last_sequence: int


def check_claim(entry: Entry | None, epoch: Epoch, *, is_adopting: bool, where: str, job: str) -> None:
    """May this run take over the ledger and continue with this epoch? Raises LedgerMismatch if not."""
    if entry is None:
        if epoch.number == 0 or is_adopting:
            return
        raise LedgerMismatch(
            f"The checkpoint of job {job!r} is at epoch {epoch.number}, but its ledger is empty or gone",
            where=where,
            fix=f"if epochs up to {epoch.number - 1} are known to be committed: lockgate ledger set {job} --epoch "
            f"{epoch.number - 1} --checkpoint PLACE {_AT}; if this checkpoint ran on Spark's own sink: adopt=True; to"
            " reset the job, doubling what is committed: --new-life",
        )
    if entry.epoch is None:
        if epoch.number == 0 or is_adopting:
            return  # the job was reset, and has committed nothing since
        raise LedgerMismatch(
            f"The checkpoint of job {job!r} is at epoch {epoch.number}, but its ledger says that nothing is committed",
            where=where,
            fix=_fix(job, epoch),
        )
    if entry.query is not None and entry.query != epoch.query:
        raise LedgerMismatch(
            f"The ledger of job {job!r} belongs to another checkpoint (query {entry.query}, epoch {entry.epoch})"
            f" than this one (query {epoch.query}, epoch {epoch.number})",
            where=where,
            fix="run it with the checkpoint that it began with; if it is another deployment of the job file, give"
            " each its own job name; or reset the job, which commits all rows a second time:"
            " --new-life",
        )
    _check_place(entry, epoch, where=where, job=job)


def check_run(entry: Entry | None, *, run: str, where: str, job: str) -> None:
    """Raise Fenced if the ledger belongs to another run."""
    if entry is not None and entry.run != run:
        raise Fenced(
            f"Another driver of job {job!r} took over (run {entry.run}, at {entry.at}); this one (run {run}) stops",
            where=where,
            fix="let only one run of a job live; nothing is lost, the other run continues from the last commit",
        )


def decide(entry: Entry | None, epoch: Epoch, *, run: str, where: str, job: str) -> Step:
    """Must this epoch be written? `entry` is what the ledger says after older writers were fenced."""
    if entry is None:
        raise LedgerMismatch(
            f"The ledger of job {job!r} is empty, although this run has written to it",
            where=where,
            fix=f"another program deleted it; {_fix(job, epoch)}",
        )
    check_run(entry, run=run, where=where, job=job)
    if entry.epoch == epoch.number and entry.digest == epoch.digest:
        return Step.SKIP
    if entry.epoch is None and epoch.number == 0:
        return Step.WRITE
    _check_place(entry, epoch, where=where, job=job)
    return Step.WRITE


def _check_place(entry: Entry, epoch: Epoch, *, where: str, job: str) -> None:
    """Is the ledger at this epoch, or at the one before it, in the history of the checkpoint?"""
    if entry.epoch == epoch.number and entry.digest == epoch.digest:
        return
    if entry.epoch == epoch.number - 1 and epoch.previous_digest in (None, entry.digest):
        return
    if entry.epoch == epoch.number - 1:
        what = f"epoch {entry.epoch} is committed with other offsets than the checkpoint has for it"
    elif entry.epoch is not None and entry.epoch >= epoch.number:
        what = f"the ledger is at epoch {entry.epoch}, the checkpoint only at {epoch.number}, with other offsets"
    else:
        what = f"the ledger is at epoch {entry.epoch}, the checkpoint already at {epoch.number}"
    rescaled = (
        "" if entry.epoch != epoch.number - 2 else "if it was being rescaled: lockgate checkpoints rescale, again; "
    )
    raise LedgerMismatch(
        f"The ledger and the checkpoint of job {job!r} do not fit: {what}",
        where=where,
        fix=f"{rescaled}an older copy of the checkpoint was restored, or another checkpoint is used;"
        f" {_fix(job, epoch)}",
    )


def _fix(job: str, epoch: Epoch) -> str:
    before = "none" if epoch.number == 0 else str(epoch.number - 1)
    return (
        f"`lockgate ledger show {job} {_AT}` says what is committed;"
        f" `lockgate ledger set {job} --epoch {before} --checkpoint PLACE {_AT}` continues from the checkpoint, and"
        " says first what may be doubled or lost; --new-life resets the job"
    )


def marker(epoch: Epoch, *, run: str, now: datetime, staged: Mapping[str, str]) -> Entry:
    """What the ledger says when this epoch is committed."""
    return Entry(
        run=run,
        query=epoch.query,
        epoch=epoch.number,
        digest=epoch.digest,
        at=now.isoformat(timespec="milliseconds"),
        staged=dict(staged),
        gaps=epoch.gaps,
    )


def claim(entry: Entry | None, epoch: Epoch, *, run: str, now: datetime, is_adopting: bool) -> Entry:
    """What the ledger says when this run has taken over: the same commit, another owner."""
    if entry is not None and entry.epoch is not None:
        return replace(entry.claimed(run, epoch.query, now), gaps=epoch.gaps)
    out = epoch.number - 1 if is_adopting and epoch.number > 0 else None
    return Entry(
        run=run,
        query=epoch.query,
        epoch=out,
        digest=None if out is None else epoch.previous_digest,
        at=now.isoformat(timespec="milliseconds"),
    )


def tally(granted: Mapping[tuple[str, int], int], votes: Iterable[Vote], *, rows: int, where: str) -> int:
    """How many records the votes add up to; raises InvariantBroken if they do not account for every row."""
    seen: dict[tuple[str, int], Vote] = {}
    for vote in votes:
        place = (vote.topic, vote.partition)
        if place in seen:
            raise _odd(f"two votes for partition {vote.partition} of topic {vote.topic!r}", where)
        if granted.get(place) != vote.attempt:
            raise _odd(f"task attempt {vote.attempt} votes for {place}, which it had no permit for", where)
        if vote.records < 1 or vote.last_sequence != (vote.records - 1) % 2**31:
            raise _odd(f"{vote.records} records to {place} cannot end with sequence {vote.last_sequence}", where)
        seen[place] = vote
    silent = set(granted) - set(seen)
    if silent:
        raise _odd(f"no vote for {sorted(silent)}, which had a permit", where)
    records = sum(vote.records for vote in seen.values())
    if records != rows:
        raise _odd(f"{rows} rows came to the writers, {records} were written", where)
    return records


def _odd(what: str, where: str) -> InvariantBroken:
    return InvariantBroken(
        f"the votes of an epoch do not add up: {what}",
        where=where,
        fix="nothing of the epoch is visible; run the job again, and report this",
    )


def after_failure(cause: Cause, *, tries: int, time_outs: int, can_repeat: bool) -> Next:
    """What to do after a try that failed and is not committed; `tries` and `time_outs` include this one."""
    if cause in (Cause.FINAL, Cause.CANCELLED):
        return Next.STOP
    if cause is Cause.TIMED_OUT and time_outs >= TIME_OUTS:
        return Next.STOP
    if cause is Cause.NOT_ALIKE and can_repeat:
        return Next.REPEAT
    if tries >= TRIES:
        return Next.STOP
    return Next.REPEAT if can_repeat else Next.RESTART


def too_long(
    job: str, epoch: int, seconds: float, first: LockgateError | None, where: str, *, can_roll_back: bool = True
) -> EpochTooLong:
    """The error for an epoch that outlived its transaction twice; it cannot be rolled back if others have it."""
    longer = "client={'transaction.timeout.ms': ...}, up to the broker's transaction.max.timeout.ms"
    smaller = (
        f"plan a smaller epoch: lockgate checkpoints rollback {job} --uncommitted --servers HOST:PORT"
        " --checkpoint PLACE, then run with a smaller --rows-per-epoch, or maxOffsetsPerTrigger of your own query; or"
        " give it longer: "
    )
    return EpochTooLong(
        f"Epoch {epoch} of job {job!r} takes longer than the transaction may ({seconds:.0f} s), twice"
        + (f"; first: {first.what}" if first is not None else ""),
        where=where,
        fix=smaller + longer
        if can_roll_back
        else f"another cluster has the epoch already, so give it longer: {longer}",
    )
