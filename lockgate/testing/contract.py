"""Tests for your own sink: does its resource keep the laws that exactly-once needs?

    from lockgate.testing import ResourceContract, opening

    class TestMySystem(ResourceContract):
        def open(self, *, is_deciding):
            return SINK.open(opening(SINK, self.spark(), is_deciding=is_deciding))

        def seen(self):
            return what a reader of your system sees, as a list of (id, name)

pytest finds the tests of the class. Each test needs an empty system, so let a fixture create one. Rows have the columns
`id INT, name STRING`. The output is called `out`, the job `contract`.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lockgate.commit.ledger import Entry
from lockgate.commit.resource import CommittingSink, Opening, Resource
from lockgate.errors import EpochFailed, Moved

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = tuple[int, str]

CLAIM = Entry(run="run-1", query="query", epoch=None, digest=None, at="2026-01-01T00:00:00.000+00:00")
FIRST = replace(CLAIM, epoch=0, digest="d0", staged={"other": 'a name with "quotes"'})
SECOND = replace(CLAIM, epoch=1, digest="d1")


def opening(sink: CommittingSink, spark: SparkSession, *, is_deciding: bool) -> Opening:
    """The argument to open a sink, for the job and the output of the tests."""
    return Opening(job="contract", sinks={"out": sink}, spark=spark, where="contract", is_deciding=is_deciding)


class ResourceContract:
    """The laws of a resource, as tests. Subclass it, define how to open and read the system, and let pytest run it."""

    @abstractmethod
    def open(self, *, is_deciding: bool) -> Resource:
        """Open the system as a starting driver does; tests open it several times, as several drivers would."""

    @abstractmethod
    def seen(self) -> Sequence[Row]:
        """The rows that a reader sees; the reader knows nothing of staging."""

    def spark(self) -> SparkSession:
        """The session that makes the rows."""
        from pyspark.sql import SparkSession

        return SparkSession.builder.getOrCreate()

    def rows(self, *values: Row) -> dict[str, DataFrame]:
        """Rows for the output."""
        return {"out": self.spark().createDataFrame(list(values), "id INT, name STRING")}

    # -- the laws ------------------------------------------------------------------------------------------------------

    def test_a_system_that_was_never_used_has_no_ledger(self) -> None:
        assert self.open(is_deciding=True).read() is None

    def test_a_claim_moves_the_ledger_and_shows_nothing(self) -> None:
        resource = self.open(is_deciding=True)
        resource.publish(None, CLAIM, after=None)
        assert resource.read() == CLAIM
        assert list(self.seen()) == []

    def test_what_is_staged_is_not_seen_and_what_is_published_is_seen_once_and_whole(self) -> None:
        resource = self.open(is_deciding=True)
        resource.publish(None, CLAIM, after=None)
        staged = resource.stage(self.rows((1, "one"), (2, ""), (3, "three")), 0)
        assert list(self.seen()) == []
        resource.publish(staged, FIRST, after=CLAIM)
        assert sorted(self.seen()) == [(1, "one"), (2, ""), (3, "three")]
        assert resource.read() == FIRST

    def test_epochs_follow_each_other(self) -> None:
        resource = self.open(is_deciding=True)
        resource.publish(None, CLAIM, after=None)
        for entry, before, row in ((FIRST, CLAIM, (1, "one")), (SECOND, FIRST, (2, "two"))):
            resource.publish(resource.stage(self.rows(row), entry.epoch or 0), entry, after=before)
        assert sorted(self.seen()) == [(1, "one"), (2, "two")]

    def test_an_epoch_without_rows_moves_the_ledger(self) -> None:
        resource = self.open(is_deciding=True)
        resource.publish(None, CLAIM, after=None)
        resource.publish(resource.stage(self.rows(), 0), FIRST, after=CLAIM)
        assert resource.read() == FIRST
        assert list(self.seen()) == []

    def test_a_publish_after_another_ledger_changes_nothing(self) -> None:
        resource = self.open(is_deciding=True)
        resource.publish(None, CLAIM, after=None)
        staged = resource.stage(self.rows((1, "one")), 0)
        for wrong in (None, FIRST, replace(CLAIM, run="run-2"), replace(CLAIM, at="later")):
            _expect_moved(resource, staged, FIRST, wrong)
        assert list(self.seen()) == []
        assert resource.read() == CLAIM

    def test_the_same_publish_again_shows_nothing_twice(self) -> None:
        resource = self.open(is_deciding=True)
        resource.publish(None, CLAIM, after=None)
        staged = resource.stage(self.rows((1, "one")), 0)
        resource.publish(staged, FIRST, after=CLAIM)
        _expect_moved(resource, staged, FIRST, CLAIM)
        assert list(self.seen()) == [(1, "one")]

    def test_staging_an_epoch_again_is_something_else(self) -> None:
        resource = self.open(is_deciding=True)
        resource.publish(None, CLAIM, after=None)
        first = resource.stage(self.rows((1, "first try")), 0)
        again = resource.stage(self.rows((1, "second try")), 0)
        assert first != again
        resource.publish(again, FIRST, after=CLAIM)
        assert list(self.seen()) == [(1, "second try")]

    def test_what_a_driver_staged_is_published_by_the_next_one(self) -> None:
        before = self.open(is_deciding=False)
        before.publish(None, CLAIM, after=None)
        staged = before.stage(self.rows((1, "one")), 0)
        before.close()
        after = self.open(is_deciding=False)
        assert after.read() == CLAIM
        after.publish(staged, FIRST, after=CLAIM)
        assert list(self.seen()) == [(1, "one")]

    def test_leftovers_that_are_removed_can_not_be_published_and_others_can(self) -> None:
        before, after = self.open(is_deciding=False), self.open(is_deciding=False)
        before.publish(None, CLAIM, after=None)
        old = before.stage(self.rows((1, "old")), 0)
        leftovers = after.leftovers()
        new = after.stage(self.rows((1, "new")), 0)
        after.remove(leftovers)
        try:
            after.publish(old, FIRST, after=CLAIM)
        except EpochFailed:
            pass
        else:
            raise AssertionError("something was published that had been removed")
        assert after.read() == CLAIM
        after.publish(new, FIRST, after=CLAIM)
        assert list(self.seen()) == [(1, "new")]

    def test_of_two_drivers_that_publish_at_once_one_wins(self) -> None:
        drivers = [self.open(is_deciding=True), self.open(is_deciding=True)]
        drivers[0].publish(None, CLAIM, after=None)
        names = [driver.stage(self.rows((1, f"driver {at}")), 0) for at, driver in enumerate(drivers)]
        won: list[int] = []

        def publish(at: int) -> None:
            try:
                drivers[at].publish(names[at], replace(FIRST, run=f"run-{at}"), after=CLAIM)
                won.append(at)
            except Moved:
                pass

        threads = [threading.Thread(target=publish, args=(at,)) for at in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert list(self.seen()) == [(1, f"driver {won[0]}")]


def _expect_moved(resource: Resource, staged: str, entry: Entry, after: Entry | None) -> None:
    try:
        resource.publish(staged, entry, after=after)
    except Moved:
        return
    raise AssertionError(f"a ledger was replaced that does not say {after}")
