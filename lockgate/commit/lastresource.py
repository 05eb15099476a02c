"""A resource in the role of the one that decides: its `publish` is the end of the transaction.

The coordinator speaks of transactions and a ledger, as Kafka has them. Here both are one step at the end: what is
written in between is only remembered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lockgate.commit.ledger import Entry
from lockgate.commit.permits import Place
from lockgate.commit.resource import Resource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class LastResource:
    """Transactions and ledger of the coordinator, over one resource."""

    timeout_ms = 1 << 53  # what is staged has no time-out

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        self.where = resource.where
        self._seen: Entry | None = None
        self._staged: str | None = None
        self._entry: Entry | None = None

    @property
    def place(self) -> Place:
        """Nothing has to be added to a transaction here."""
        return ("", 0)

    def begin(self) -> None:
        """Forget what an earlier try remembered; older writers are shut out by the ledger that they have seen."""
        self._staged = self._entry = None

    def stage(self, rows: Mapping[str, DataFrame], epoch: int) -> None:
        """Put down the rows that the end will show."""
        self._staged = self._resource.stage(rows, epoch)

    def add(self, producer: Any, places: Sequence[Place]) -> None:
        """Nothing to add."""

    def add_offsets(self, producer: Any, group: str, offsets: Mapping[Place, int]) -> str | None:
        """Lag tools look at Kafka, and there is none."""
        return None

    def peek(self) -> Entry | None:
        """What the ledger says."""
        return self._resource.read()

    def read(self) -> Entry | None:
        """What the ledger says, and has to say still when the decision is made."""
        self._seen = self._resource.read()
        return self._seen

    def write(self, entry: Entry, producer: Any) -> None:
        """Remember what the ledger will say."""
        self._entry = entry

    def end(self, producer: Any, *, is_commit: bool) -> None:
        """Decide; without a commit there is nothing to undo."""
        if not is_commit:
            return
        assert self._entry is not None
        # A claim shows nothing, and from then on nobody can publish what is staged already. Looked at before it: what
        # is staged after it may be the work of the next owner.
        leftovers = self._resource.leftovers() if self._staged is None else ()
        self._resource.publish(self._staged, self._entry, after=self._seen)
        if leftovers:
            self._resource.remove(leftovers)

    def wait_until_complete(self) -> None:
        """A publish that has returned is complete."""
