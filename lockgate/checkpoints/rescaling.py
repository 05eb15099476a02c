"""Give the state of a stopped job another number of partitions: decide what to do, and do it.

Spark adds an epoch to the checkpoint for it (`spark.repartition`), which reads nothing and calls no sink. So this
command must advance the ledgers, or the next run would find them an epoch behind. At every moment the checkpoint and
the ledgers show the progress; N is the last epoch with events:

    offsets    commits    ledgers                     what the command does
    N          N          N                           everything
    N+1        N          N                           writes the state again, and continues
    N+1        N+1        N, or N+1 in some of them   advances those that are at N
    N+1        N+1        N+1                         nothing: it is done
    anything else                                     refuses

The order:

    1  look      the checkpoint has the job's marker, and no epoch that is planned and not committed; every ledger of
                 the job is at its last epoch; no driver holds the checkpoint or is seen to run
    2  claim     the deciding ledger's value unchanged, with another run id: a driver that is alive stops when it next
                 reads the ledger
    3  rewrite   offsets/N+1, all state for the new number, commits/N+1: an epoch without events and without rows
    4  follow    the ledgers move on to N+1, the deciding one last; only then may the job run

A run refuses to start in between, and the command, given again, finishes it: we never guess. A run does not read the
ledgers before it plans its first epoch. So the file `rescaling.json` warns it: {"epoch": N+1}. The file exists from
before N+1 is planned until the last ledger has followed. If no such epoch is planned, the file means nothing.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.checkpoints.jobledgers import LedgerTarget
from lockgate.checkpoints.locking import lock_exclusively
from lockgate.checkpoints.marker import RESCALING, require_marker
from lockgate.checkpoints.stateread import find_moment, read_state_of, state_partitions, stateful_operators
from lockgate.checkpoints.subject import open_checkpoint, open_spark
from lockgate.checkpoints.tree import open_tree
from lockgate.commit.ledger import Entry
from lockgate.commit.repair import MendableLedger
from lockgate.dataflow.steps import Transform
from lockgate.errors import CheckpointDamaged, Failed, Refused
from lockgate.failures import find_error, first_cause
from lockgate.guarantees import Guarantee
from lockgate.operators.pagestore import INDEX, Index
from lockgate.planner.physical import has_state
from lockgate.planner.plan import Plan
from lockgate.spark.keyed import OWNER
from lockgate.spark.repartition import Buckets, Common, is_timers, repartition_state
from lockgate.untrusted import read_object, take

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PYTHON = "transformWithStateInPySparkExec"


@dataclass(frozen=True)
class Rescaling:
    """What to do."""

    epoch: int  # the epoch that Spark adds for it
    before: int
    after: int
    is_begun: bool = False  # its offsets are logged
    is_written: bool = False  # its commit is logged, too: only ledgers have to follow


def is_rescaling(checkpoint: Checkpoint, epoch: int) -> bool:
    """Did a rescaling add this epoch? Spark changes the number of partitions in no other way."""
    before, after = (state_partitions(checkpoint, number) for number in (epoch - 1, epoch))
    return None not in (before, after) and before != after


def decide(checkpoint: Checkpoint, partitions: int) -> Rescaling:
    """What to do for this number of partitions; Refused if a rescaling is not possible."""
    where = f"checkpoint {checkpoint.root}"
    planned, committed = checkpoint.epochs("offsets"), checkpoint.epochs("commits")
    if checkpoint.query() is None or not committed:
        raise Refused(
            "no epoch is committed yet, so there is no state" if planned else "there is no checkpoint",
            where=where,
            fix="write .parallel(n) in the job, and run it; or name the place of its checkpoint: --checkpoint",
        )
    newest = planned[-1]
    now = state_partitions(checkpoint, newest)
    if now is None:
        raise Refused(
            f"the offsets of epoch {newest} do not say how many partitions its state has",
            where=where,
            fix="run one epoch of the job with this version of Spark first",
        )
    was_rescaled = is_rescaling(checkpoint, newest)
    before = state_partitions(checkpoint, newest - 1) if was_rescaled else None
    if newest != committed[-1]:
        if not was_rescaled or before is None:
            raise Refused(
                f"epoch {newest} is planned and not committed",
                where=where,
                fix="run the job until the epoch is committed: lockgate run FILE --until-caught-up; then rescale it",
            )
        if now != partitions:
            raise Refused(
                f"a rescaling from {before} to {now} partitions was begun and is not finished",
                where=where,
                fix=f"finish it: lockgate checkpoints rescale FILE --partitions {now} --yes; then rescale again",
            )
        return Rescaling(newest, before, now, is_begun=True)
    if now == partitions and was_rescaled and before is not None:
        return Rescaling(newest, before, now, is_begun=True, is_written=True)
    if now == partitions:
        raise Refused(
            f"the state has {partitions} partitions already", where=where, fix="there is nothing to do: run the job"
        )
    return Rescaling(newest + 1, now, partitions)


def refuse_unfinished(checkpoint: Checkpoint) -> None:
    """Refuse to run a job in the middle of a rescaling."""
    planned, committed = checkpoint.epochs("offsets"), checkpoint.epochs("commits")
    if not planned or not is_rescaling(checkpoint, planned[-1]):
        return
    if planned[-1] in committed and planned[-1] != _begun_epoch(checkpoint):
        return
    now = state_partitions(checkpoint, planned[-1])
    raise Refused(
        f"a rescaling of its state to {now} partitions was begun and is not finished",
        where=f"checkpoint {checkpoint.root}",
        fix=f"finish it: lockgate checkpoints rescale FILE --partitions {now} --yes",
    )


def _begun_epoch(checkpoint: Checkpoint) -> int | None:
    """The epoch of a rescaling that has begun and has not noted its end."""
    content = checkpoint.read(RESCALING)
    try:
        return None if content is None else take(read_object(content), "epoch", int)
    except ValueError as error:
        raise Refused(
            f"{RESCALING} cannot be read: {error}",
            where=f"checkpoint {checkpoint.root}",
            fix="compare the ledger with it: lockgate ledger show; if both are at one epoch, remove the file",
        ) from None


def note_end(checkpoint: Checkpoint) -> None:
    """Note that every ledger has followed, so that the job may run."""
    open_tree(checkpoint.root, checkpoint.spark).remove(RESCALING)


def is_behind(entry: Entry | None, rescaling: Rescaling, checkpoint: Checkpoint, *, where: str) -> bool:
    """Must this ledger advance? Refused if it is neither at the epoch nor at the one before it."""
    added, last = checkpoint.digest(rescaling.epoch), checkpoint.digest(rescaling.epoch - 1)
    if entry is not None and entry.query in (None, checkpoint.query()):
        if rescaling.is_written and (entry.epoch, entry.digest) == (rescaling.epoch, added):
            return False
        if (entry.epoch, entry.digest) == (rescaling.epoch - 1, last):
            return True
    if entry is not None and is_rescaling(checkpoint, rescaling.epoch - 1) and entry.epoch == rescaling.epoch - 2:
        raise Refused(
            f"a rescaling to {rescaling.before} partitions is not finished: a ledger has not followed",
            where=where,
            fix=f"finish it: lockgate checkpoints rescale FILE --partitions {rescaling.before} --yes; then this",
        )
    told = "says nothing" if entry is None else f"is at epoch {entry.epoch}, run {entry.run}"
    raise Refused(
        f"the ledger {told}, and does not fit the checkpoint, whose last epoch with events is {rescaling.epoch - 1}",
        where=where,
        fix="run the job until it is caught up, and rescale it then: lockgate run FILE --until-caught-up;"
        " if the run reports an error, fix that first",
    )


def moved_on(entry: Entry, rescaling: Rescaling, checkpoint: Checkpoint, *, run: str, now: datetime) -> Entry:
    """The ledger entry with which the epoch of the rescaling counts as committed; no sink has rows of it."""
    return Entry(
        run=run,
        query=entry.query,
        epoch=rescaling.epoch,
        digest=checkpoint.digest(rescaling.epoch),
        at=now.isoformat(timespec="milliseconds"),
    )


def look_at_buckets(spark: SparkSession, checkpoint: Checkpoint, epoch: int) -> dict[int, Buckets]:
    """What the buckets of our operators have in common, by operator number; Refused if they differ."""
    moment = find_moment(checkpoint, epoch)
    found: dict[int, Buckets] = {}
    for operator in stateful_operators(spark, checkpoint):
        if operator.name != _PYTHON or OWNER not in operator.states:
            continue
        owners = read_state_of(spark, checkpoint, operator.id, OWNER, moment).selectExpr("value.step AS step")
        steps = sorted({row["step"] for row in owners.collect()})
        pages: dict[str, Common] = {}
        for name in operator.states:
            if name == OWNER or is_timers(name):
                continue
            rows = read_state_of(spark, checkpoint, operator.id, name, moment)
            cells = rows.selectExpr("user_map_key.name AS name", "user_map_value.content AS content")
            indexes = [Index(row["content"]) for row in cells.where(f"name = '{INDEX}'").collect()]
            if indexes:
                pages[name] = _common(indexes, name, checkpoint)
        if len(steps) > 1:
            raise _not_alike(f"some belong to step {steps[0]!r}, some to step {steps[1]!r}", checkpoint)
        if steps:
            found[operator.id] = Buckets(owner=steps[0], pages=pages)
    return found


def _common(indexes: list[Index], name: str, checkpoint: Checkpoint) -> Common:
    first = indexes[0]
    if any(one.declared != first.declared for one in indexes):
        raise _not_alike(f"some hold {name} as an older version of the code declared it", checkpoint)
    if any(one.clock != first.clock for one in indexes):
        raise _not_alike(f"they have seen different watermarks for {name}", checkpoint)
    return Common(clock=first.clock, declared=first.declared)


def _not_alike(what: str, checkpoint: Checkpoint) -> Refused:
    return Refused(
        f"the partitions of its state differ: {what}",
        where=f"checkpoint {checkpoint.root}",
        fix="let the job run until every partition has had an event, and rescale it then",
    )


def rescale(spark: SparkSession, checkpoint: Checkpoint, rescaling: Rescaling) -> None:
    """Add the epoch, or finish it: offsets, state, commit. No driver of the job may run before `note_end`."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    where = f"checkpoint {checkpoint.root}"
    try:
        # Before anything is written: state that cannot be repartitioned leaves no traces.
        buckets = look_at_buckets(spark, checkpoint, rescaling.epoch - 1)
        begun = json.dumps({"epoch": rescaling.epoch}).encode()
        open_tree(checkpoint.root, spark).write(RESCALING, begun)
        added = repartition_state(spark, checkpoint.root, rescaling.after, buckets)
    except (CheckpointDamaged, PySparkException, Py4JError) as error:
        found = error if isinstance(error, CheckpointDamaged) else find_error(str(error))
        if isinstance(found, CheckpointDamaged):
            raise CheckpointDamaged(found.what, where=where, fix=found.fix) from error
        raise Failed(
            f"Spark could not repartition the state to {rescaling.after} partitions: {first_cause(str(error))}",
            where=where,
            fix="nothing is lost, the old state still exists; fix the cause, and give the command again: it continues,"
            " or starts over",
        ) from error
    if added != rescaling.epoch:
        raise Failed(
            f"epoch {added} was added, not epoch {rescaling.epoch}",
            where=where,
            fix="a driver of this job runs: stop it, then give the command again",
        )


@dataclass
class Followed:
    """A ledger of the job, and its last entry."""

    ledger: MendableLedger
    entry: Entry | None
    is_deciding: bool
    is_new: bool = False  # an output that starts with the next epoch

    def is_behind(self, rescaling: Rescaling, checkpoint: Checkpoint) -> bool:
        """Does it have to move on?"""
        return not self.is_new and is_behind(self.entry, rescaling, checkpoint, where=self.ledger.where)


@contextmanager
def _opened(target: LedgerTarget | None) -> Iterator[list[Followed]]:
    """All ledgers of the job, the deciding one last; none if the job has none."""
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


@dataclass(frozen=True)
class Rescale:
    """A rescaling of a job's checkpoint and of its ledgers, and the way to do it."""

    checkpoint: Checkpoint
    rescaling: Rescaling
    ledgers: list[Followed]
    behind: list[Followed]  # those that have to move on

    @property
    def is_needed(self) -> bool:
        """Is anything left to do?"""
        return bool(self.behind) or not self.rescaling.is_written

    def carry_out(self) -> None:
        """Claim, rewrite, follow."""
        if self.is_needed:
            self._rescale()
        else:
            note_end(self.checkpoint)  # an earlier rescaling was killed right before it could

    def _rescale(self) -> None:
        run, now = f"rescale-{secrets.token_hex(4)}", datetime.now(UTC)
        checkpoint, rescaling, query = self.checkpoint, self.rescaling, self.checkpoint.query()
        for one in self.ledgers:
            if one.is_deciding and one.entry is not None and query is not None and not rescaling.is_written:
                claim = one.entry.claimed(run, query, now)
                one.ledger.replace(one.entry, claim)
                one.entry = claim
        if decide(checkpoint, rescaling.after) != rescaling:
            raise Failed(
                "an epoch was planned in the meantime; nothing was written",
                where=f"checkpoint {checkpoint.root}",
                fix="a driver of this job runs: stop it, then look again",
            )
        if not rescaling.is_written:
            spark = checkpoint.spark or open_spark()
            rescale(spark, Checkpoint(root=checkpoint.root, spark=spark), rescaling)
        written = decide(checkpoint, rescaling.after)
        for one in self.ledgers:
            if one.entry is not None and one.is_behind(written, checkpoint):
                one.ledger.replace(one.entry, moved_on(one.entry, written, checkpoint, run=run, now=now))
        note_end(checkpoint)


@contextmanager
def plan_rescale(job: str, place: str, target: LedgerTarget | None, partitions: int) -> Iterator[Rescale]:
    """Look; the checkpoint is held, and its ledgers open, until the end. Refused if a rescaling is not possible."""
    checkpoint, tree = open_checkpoint(place)
    rescaling = decide(checkpoint, partitions)
    with lock_exclusively(checkpoint.local, job), _opened(target) as ledgers:
        require_marker(tree, job)
        for one in ledgers:
            one.ledger.refuse_driver()
        behind = [one for one in ledgers if one.is_behind(rescaling, checkpoint)]
        yield Rescale(checkpoint=checkpoint, rescaling=rescaling, ledgers=ledgers, behind=behind)


def refuse_useless(planned: Plan, partitions: int) -> None:
    """Refuse a rescaling that has no effect for a job, or that the job would refuse at its next start."""
    where = f"job {planned.job.name!r}, declared at {planned.job.origin}"
    if partitions < 1:
        raise Refused(f"--partitions is {partitions}", where="command line", fix="state has at least one partition")
    if planned.job.guarantee is Guarantee.AT_MOST_ONCE:
        raise Refused(
            "an at-most-once job keeps no checkpoint, and so no state",
            where=where,
            fix="change .parallel(n), and run it",
        )
    # We cannot look into a transform: it may hold state.
    if not any(has_state(node) or isinstance(node.step, Transform) for node in planned.logical.nodes):
        raise Refused(
            "the job has no step with state, so there is nothing to redistribute",
            where=where,
            fix="change .parallel(n), and run it",
        )
    asked = planned.physical.asked_partitions
    if asked is not None and asked != partitions:
        raise Refused(
            f"the job declares .parallel({asked}), and would refuse state in {partitions} partitions",
            where=where,
            fix=f"write .parallel({partitions}) in its file first, or omit .parallel: the checkpoint then decides",
        )
