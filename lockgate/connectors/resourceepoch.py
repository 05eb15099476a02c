"""The commits of a job without Kafka: one of its systems decides, the others follow."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lockgate.commit.causes import find_cause
from lockgate.commit.coordinator import Coordinator, Outcome, Work
from lockgate.commit.followers import Followers, Rows
from lockgate.commit.lastresource import LastResource
from lockgate.commit.ledger import Entry, reset_entry
from lockgate.commit.permits import Permits
from lockgate.commit.protocol import Cause, Epoch
from lockgate.commit.resource import Resource
from lockgate.errors import LockgateError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class ResourceEpochs:
    """The epochs of one job; lives as long as the driver runs the job."""

    def __init__(
        self,
        job: str,
        name: str,
        resource: Resource,
        followers: Followers,
        *,
        is_reset: bool = False,
        is_adopting: bool = False,
    ) -> None:
        self._name = name
        self._resource = resource
        self._last = LastResource(resource)
        self._followers = followers
        self._coordinator = Coordinator(
            job,
            transactions=self._last,
            ledger=self._last,
            permits=Permits(),
            followers=followers,
            is_adopting=is_adopting,
        )
        self._first: LockgateError | None = None
        self._committing = threading.Lock()  # an epoch of a query that is being stopped may still be at work
        if is_reset:
            entry = reset_entry(datetime.now(UTC))
            resource.publish(None, entry, after=resource.read())
            followers.forget(entry)

    def stop(self) -> None:
        """Nothing here takes long by itself: Spark cancels what is being staged."""

    def close(self) -> None:
        """Close what is open."""
        self._resource.close()
        self._followers.close()

    def claim(self, epoch: Epoch, *, query_run: str) -> Entry | None:
        """Take over the ledger, before anything is written; what it says then, None if that was done before."""
        with self._committing:
            self._coordinator.enter(query_run)
            return self._coordinator.claim(epoch)

    def commit(
        self,
        epoch: Epoch,
        frame: DataFrame,
        rows: Rows,
        *,
        can_repeat: bool,
        query_run: str,
        check: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """Make an epoch visible once; `frame` is what it is computed from, `check` is called before the decision."""
        with self._committing:
            self._coordinator.enter(query_run)
            self._first = None

            def write(producer: None, name: str, is_exchanging: bool) -> tuple[tuple[()], int]:
                self._last.stage(rows[self._name], epoch.number)
                return (), 0  # a resource counts its own rows

            return self._coordinator.commit(
                epoch,
                Work(
                    write=write,
                    skip=lambda: frame.write.format("noop").mode("append").save(),
                    check=check,
                    cause_of=self._cause_of,
                    stage=lambda: self._followers.stage(rows, epoch.number),
                    can_repeat=can_repeat,
                ),
            )

    def clear_error(self) -> None:
        """Forget what failed before this epoch."""
        self._first = None

    def first_error(self, error: Exception) -> LockgateError | None:
        """The error to show: ours, or the one in Spark's message."""
        return error if isinstance(error, LockgateError) else self._first or find_cause(error)[1]

    def _cause_of(self, error: Exception) -> Cause:
        cause, carried = find_cause(error)
        self._first = self._first or carried
        return cause
