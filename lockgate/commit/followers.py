"""The resources of a job that do not decide: they stage before the decision and publish after it.

The deciding ledger names, in the marker of an epoch, what each of them has staged. So after a crash it alone says what
to do: it is at N, a follower at N-1: publish what the marker names. It is at N-1: nothing was decided, and what is
staged goes.

A follower has a ledger of its own, which its `publish` moves on. That makes a repeated publish harmless, by whomever,
and shows a follower that is not what it was: restored from an older copy, or emptied. Who may go on is not asked here:
the run id in the deciding ledger alone says so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from lockgate.commit.ledger import Entry
from lockgate.commit.resource import Resource
from lockgate.errors import Failed, LedgerMismatch, RowRefused
from lockgate.faultpoints import FaultPoint, reach

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Rows = Mapping[str, Mapping[str, "DataFrame"]]
"""The rows of an epoch, by resource and output."""

Leftovers = Mapping[str, Collection[str]]
"""What is staged, by resource."""


class Standing(Enum):
    """Where a follower is, as seen from the decision."""

    EVEN = "has what was decided"
    NEW = "begins with the next epoch"
    BEHIND = "has staged what was decided, and the next run publishes it"
    ELSEWHERE = "DOES NOT FIT what was decided"


def stand(name: str, seen: Entry | None, decided: Entry) -> Standing:
    """Where the follower of this name is, by what its own ledger says."""
    if seen is None and name not in decided.staged:
        return Standing.NEW  # an output that is new in this job
    if seen is not None and (seen.epoch, seen.digest) == (decided.epoch, decided.digest):
        return Standing.EVEN
    before = None if not decided.epoch else decided.epoch - 1
    if seen is None or seen.epoch != before or name not in decided.staged:
        return Standing.ELSEWHERE
    return Standing.BEHIND


class Followers:
    """Those of one job, by name."""

    def __init__(self, job: str, resources: Mapping[str, Resource]) -> None:
        self._job = job
        self._resources = dict(resources)

    def leftovers(self) -> Leftovers:
        """What is staged everywhere. To be asked before a claim: what is staged after it may be the next owner's."""
        return {name: resource.leftovers() for name, resource in self._resources.items()}

    def claim(self, decided: Entry, leftovers: Leftovers) -> None:
        """Follow a run that has claimed the deciding ledger: finish what was decided, remove the other leftovers."""
        for name, resource in self._resources.items():
            seen = self._finish(name, resource, resource.read(), decided)
            resource.publish(None, replace(decided, staged={}), after=seen)
            if leftovers[name]:
                resource.remove(leftovers[name])

    def forget(self, entry: Entry) -> None:
        """Let every ledger say the same again: a new life begins."""
        for resource in self._resources.values():
            resource.publish(None, entry, after=resource.read())

    def stage(self, rows: Rows, epoch: int) -> dict[str, str]:
        """Have every follower stage its rows; what the marker has to name."""
        staged = {name: resource.stage(rows[name], epoch) for name, resource in self._resources.items()}
        reach(FaultPoint.STAGED)
        return staged

    def publish(self, decided: Entry) -> None:
        """Have every follower show what was decided; one that has done so already does nothing."""
        for name, resource in self._resources.items():
            reach(FaultPoint.PUBLISH)
            self._finish(name, resource, resource.read(), decided)
        reach(FaultPoint.PUBLISH)

    def close(self) -> None:
        """Let go of what is held open."""
        for resource in self._resources.values():
            resource.close()

    def _finish(self, name: str, resource: Resource, seen: Entry | None, decided: Entry) -> Entry | None:
        """Bring a follower to where the decision is; what its ledger says then."""
        standing = stand(name, seen, decided)
        if standing in (Standing.NEW, Standing.EVEN):
            return seen
        if standing is Standing.ELSEWHERE:
            raise self._mismatch(name, resource, seen, decided)
        shown = replace(decided, staged={})
        try:
            resource.publish(decided.staged[name], shown, after=seen)
        except Failed as error:
            if type(error) not in (Failed, RowRefused):  # another driver, or a try that may be repeated
                raise
            raise type(error)(
                f"epoch {decided.epoch} of job {self._job!r} is decided, but {name} does not take the rows that wait"
                f" there: {error.what}",
                where=error.where,
                fix="change the table so that it takes them, and run the job again: it shows them before anything else",
            ) from error
        return shown

    def _mismatch(self, name: str, resource: Resource, seen: Entry | None, decided: Entry) -> LedgerMismatch:
        there = "is empty or gone" if seen is None else f"is at epoch {seen.epoch}"
        what = f"The ledger of {name} {there}, but job {self._job!r} has decided epoch {decided.epoch}"
        if seen is not None and seen.epoch is not None and seen.epoch == (decided.epoch or 0) + 1:
            return LedgerMismatch(
                what,
                where=resource.where,
                fix="it follows a decision that this job no longer knows. If the job writes to several Kafka clusters"
                " and they stand in another order in its file now, or one was added: put back the order of before, let"
                " it run one epoch, and change it then; else the deciding ledger was restored from an older copy: see"
                f" `lockgate ledger show {self._job}`",
            )
        return LedgerMismatch(
            what,
            where=resource.where,
            fix="it was emptied, or an older copy of it was restored: bring back what it held; or say what it holds,"
            f" with `lockgate ledger set {self._job} --epoch N --checkpoint PLACE` and its place (--postgres, --files,"
            " --sqlite); or begin again with --new-life, which doubles what is out in the other systems",
        )
