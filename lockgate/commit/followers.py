"""The resources of a job that do not decide: they stage before the decision and publish after it.

The marker of an epoch in the deciding ledger names what each follower has staged. So after a crash this ledger alone
says what to do:

    deciding ledger at N, a follower at N-1    publish what the marker names
    deciding ledger at N-1                     nothing was decided: remove what is staged

A follower has a ledger of its own, which its `publish` advances. So a repeated publish is harmless, whichever driver
repeats it. The ledger also shows a follower that was emptied, or restored from an older copy. Which run may continue is
not decided here: the run id in the deciding ledger alone says so.
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
    """Where a follower is, compared with the decision."""

    EVEN = "has what was decided"
    NEW = "begins with the next epoch"
    BEHIND = "has staged what was decided, and the next run publishes it"
    ELSEWHERE = "DOES NOT FIT what was decided"


def stand(name: str, seen: Entry | None, decided: Entry) -> Standing:
    """Where the follower of this name is, according to its own ledger."""
    if seen is None and name not in decided.staged:
        return Standing.NEW  # an output that is new in this job
    if seen is not None and (seen.epoch, seen.digest) == (decided.epoch, decided.digest):
        return Standing.EVEN
    before = None if not decided.epoch else decided.epoch - 1
    if seen is None or seen.epoch != before or name not in decided.staged:
        return Standing.ELSEWHERE
    return Standing.BEHIND


class Followers:
    """The followers of one job, by name."""

    def __init__(self, job: str, resources: Mapping[str, Resource]) -> None:
        self._job = job
        self._resources = dict(resources)

    def leftovers(self) -> Leftovers:
        """What is staged everywhere. Ask before a claim: what is staged later may belong to the next owner."""
        return {name: resource.leftovers() for name, resource in self._resources.items()}

    def claim(self, decided: Entry, leftovers: Leftovers) -> None:
        """Follow a run that has claimed the deciding ledger: finish what was decided, remove the other leftovers."""
        for name, resource in self._resources.items():
            seen = self._finish(name, resource, resource.read(), decided)
            resource.publish(None, replace(decided, staged={}), after=seen)
            if leftovers[name]:
                resource.remove(leftovers[name])

    def forget(self, entry: Entry) -> None:
        """Write the same entry to every ledger: the job is reset."""
        for resource in self._resources.values():
            resource.publish(None, entry, after=resource.read())

    def stage(self, rows: Rows, epoch: int) -> dict[str, str]:
        """Let every follower stage its rows; returns what the marker must name."""
        staged = {name: resource.stage(rows[name], epoch) for name, resource in self._resources.items()}
        reach(FaultPoint.STAGED)
        return staged

    def publish(self, decided: Entry) -> None:
        """Let every follower publish what was decided; one that has already published it does nothing."""
        for name, resource in self._resources.items():
            reach(FaultPoint.PUBLISH)
            self._finish(name, resource, resource.read(), decided)
        reach(FaultPoint.PUBLISH)

    def close(self) -> None:
        """Close what is open."""
        for resource in self._resources.values():
            resource.close()

    def _finish(self, name: str, resource: Resource, seen: Entry | None, decided: Entry) -> Entry | None:
        """Bring a follower to the decision; returns what its ledger says then."""
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
                f"epoch {decided.epoch} of job {self._job!r} is decided, but {name} refuses the rows that are"
                f" staged there: {error.what}",
                where=error.where,
                fix="change the table so that it takes them, and run the job again: it publishes them first",
            ) from error
        return shown

    def _mismatch(self, name: str, resource: Resource, seen: Entry | None, decided: Entry) -> LedgerMismatch:
        there = "is empty or gone" if seen is None else f"is at epoch {seen.epoch}"
        what = f"The ledger of {name} {there}, but job {self._job!r} has decided epoch {decided.epoch}"
        if seen is not None and seen.epoch is not None and seen.epoch == (decided.epoch or 0) + 1:
            return LedgerMismatch(
                what,
                where=resource.where,
                fix="it follows a decision that this job no longer knows. If the job writes to several Kafka clusters,"
                " and their order in its file changed, or one was added: restore the old order, run one epoch, then"
                " change it; otherwise the deciding ledger was restored from an older copy: see"
                f" `lockgate ledger show {self._job}`",
            )
        return LedgerMismatch(
            what,
            where=resource.where,
            fix="it was emptied, or restored from an older copy: restore what it held; or write what it holds, with"
            f" `lockgate ledger set {self._job} --epoch N --checkpoint PLACE` and its place (--postgres, --files,"
            " --sqlite); or reset the job with --new-life, which doubles what is committed in the other systems",
        )
