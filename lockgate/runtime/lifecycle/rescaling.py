"""Another number of state partitions for a job that stands still: what is to be done, and doing it.

Spark adds an epoch to the checkpoint for it (`spark.repartition`), which reads nothing and calls no sink. So the ledger
has to follow by hand, or the next run would find it an epoch behind. At every moment the checkpoint and the ledgers say
how far it has got; N is the last epoch with events:

    offsets    commits    ledgers                     what the command does
    N          N          N                           all of it
    N+1        N          N                           writes the state again, and goes on
    N+1        N+1        N, or N+1 in some of them   moves on those that are at N
    N+1        N+1        N+1                         nothing: it is done
    anything else                                     refuses

A run refuses to start in between, and the command, given once more, finishes it: nobody ever guesses. A run does not
look at ledgers before it plans its first epoch, so the file `rescaling.json` tells it: it is there from before N+1 is
planned until the last ledger has followed, and says {"epoch": N+1}. Where no such epoch is planned, it means nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from lockgate.commit.ledger import Entry
from lockgate.errors import Failed, Refused
from lockgate.failures import first_cause
from lockgate.operators.pages import INDEX, Index
from lockgate.planner.plan import Plan
from lockgate.runtime.checkpoints import Checkpoint
from lockgate.runtime.lifecycle.marker import RESCALING
from lockgate.runtime.lifecycle.tree import open_tree
from lockgate.runtime.stateread import find_moment, read_state_of, state_partitions, stateful_operators
from lockgate.spark.keyed import OWNER
from lockgate.spark.repartition import Buckets, Common, is_timers, repartition_state
from lockgate.untrusted import read_object, take

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PYTHON = "transformWithStateInPySparkExec"


@dataclass(frozen=True)
class Rescaling:
    """What is to be done."""

    epoch: int  # that is added for it
    before: int
    after: int
    is_begun: bool = False  # its offsets are logged
    is_written: bool = False  # its commit, too: only ledgers have to follow


def is_rescaling(checkpoint: Checkpoint, epoch: int) -> bool:
    """Was an epoch added by a rescaling? Spark changes the number of partitions in no other way."""
    before, after = (state_partitions(checkpoint, number) for number in (epoch - 1, epoch))
    return None not in (before, after) and before != after


def decide(checkpoint: Checkpoint, partitions: int) -> Rescaling:
    """What is to be done for so many partitions; Refused where nothing can be."""
    where = f"checkpoint {checkpoint.root}"
    planned, committed = checkpoint.epochs("offsets"), checkpoint.epochs("commits")
    if checkpoint.query() is None or not committed:
        raise Refused(
            "no epoch is committed yet, so there is no state" if planned else "there is no checkpoint",
            where=where,
            fix="say .parallel(n) in the job, and run it; or name the place of its checkpoint: --checkpoint",
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
                fix="run the job until it is: lockgate run FILE --until-caught-up; then rescale it",
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
    """The epoch of a rescaling that was begun, and whose end nobody has noted."""
    content = checkpoint.read(RESCALING)
    try:
        return None if content is None else take(read_object(content), "epoch", int)
    except ValueError as error:
        raise Refused(
            f"{RESCALING} cannot be read: {error}",
            where=f"checkpoint {checkpoint.root}",
            fix="compare its ledger with it: lockgate ledger show; where both are at one epoch, remove the file",
        ) from None


def note_end(checkpoint: Checkpoint) -> None:
    """Every ledger has followed: the job may run."""
    open_tree(checkpoint.root, checkpoint.spark).remove(RESCALING)


def is_behind(entry: Entry | None, rescaling: Rescaling, checkpoint: Checkpoint, *, where: str) -> bool:
    """Has this ledger to move on? Refused where it is neither right before the epoch nor at it."""
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
        " what a run says is to be mended comes first",
    )


def moved_on(entry: Entry, rescaling: Rescaling, checkpoint: Checkpoint, *, run: str, now: datetime) -> Entry:
    """What a ledger says once the epoch of the rescaling counts as out: no sink has anything of it."""
    return Entry(
        run=run,
        query=entry.query,
        epoch=rescaling.epoch,
        digest=checkpoint.digest(rescaling.epoch),
        at=now.isoformat(timespec="milliseconds"),
    )


def refuse_other_wish(planned: Plan, partitions: int) -> None:
    """Refuse a number that the job itself would refuse at its next start."""
    asked = planned.physical.asked_partitions
    if asked is not None and asked != partitions:
        raise Refused(
            f"the job says .parallel({asked}), and would refuse state in {partitions} partitions",
            where=f"job {planned.job.name!r}, declared at {planned.job.origin}",
            fix=f"say .parallel({partitions}) in its file first, or leave .parallel away: the checkpoint then decides",
        )


def look_at_buckets(spark: SparkSession, checkpoint: Checkpoint, epoch: int) -> dict[int, Buckets]:
    """What the buckets of our operators have in common, by the number of the operator; Refused where they differ."""
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
        raise _not_alike(f"some hold {name} as code of before declared it", checkpoint)
    if any(one.clock != first.clock for one in indexes):
        raise _not_alike(f"they have acted on different watermarks for {name}", checkpoint)
    return Common(clock=first.clock, declared=first.declared)


def _not_alike(what: str, checkpoint: Checkpoint) -> Refused:
    return Refused(
        f"the partitions of its state are not alike: {what}",
        where=f"checkpoint {checkpoint.root}",
        fix="let the job run until every partition has had an event, and rescale it then",
    )


def rescale(spark: SparkSession, checkpoint: Checkpoint, rescaling: Rescaling) -> None:
    """Add the epoch, or finish it: offsets, state, commit. No driver of the job may run, until `note_end`."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    where = f"checkpoint {checkpoint.root}"
    try:
        # Before anything is written: what cannot be dealt out leaves nothing behind.
        buckets = look_at_buckets(spark, checkpoint, rescaling.epoch - 1)
        begun = json.dumps({"epoch": rescaling.epoch}).encode()
        open_tree(checkpoint.root, spark).write(RESCALING, begun)
        added = repartition_state(spark, checkpoint.root, rescaling.after, buckets)
    except (PySparkException, Py4JError) as error:
        raise Failed(
            f"Spark does not deal the state out to {rescaling.after} partitions: {first_cause(str(error))}",
            where=where,
            fix="nothing is lost, the state of before is still there; mend the cause, and give the command once more:"
            " it goes on, or begins again",
        ) from error
    if added != rescaling.epoch:
        raise Failed(
            f"epoch {added} was added and not {rescaling.epoch}",
            where=where,
            fix="a driver of this job runs: stop it, then look again",
        )
