"""Let a resource decide: its `publish` is the end of the transaction.

The coordinator uses transactions and a ledger, as Kafka has them. Here both are one step at the end: until then this
class only remembers what is written.
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
    """The coordinator's transactions and ledger, on one resource."""

    timeout_ms = 1 << 53  # staged rows have no time-out

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        self.where = resource.where
        self._seen: Entry | None = None
        self._staged: str | None = None
        self._entry: Entry | None = None

    @property
    def place(self) -> Place:
        """A transaction here needs no places."""
        return ("", 0)

    def begin(self) -> None:
        """Forget the earlier try; the ledger that older writers have seen fences them."""
        self._staged = self._entry = None

    def stage(self, rows: Mapping[str, DataFrame], epoch: int) -> None:
        """Stage the rows that `end` publishes."""
        self._staged = self._resource.stage(rows, epoch)

    def add(self, producer: Any, places: Sequence[Place]) -> None:
        """Nothing to add."""

    def add_offsets(self, producer: Any, group: str, offsets: Mapping[Place, int]) -> str | None:
        """Nothing: lag tools read Kafka, and there is none."""
        return None

    def peek(self) -> Entry | None:
        """What the ledger says."""
        return self._resource.read()

    def read(self) -> Entry | None:
        """What the ledger says, and must still say at the decision."""
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
        # A claim publishes nothing, and after it no run can publish what is already staged. List that before the claim:
        # what is staged later may belong to the next owner.
        leftovers = self._resource.leftovers() if self._staged is None else ()
        self._resource.publish(self._staged, self._entry, after=self._seen)
        if leftovers:
            self._resource.remove(leftovers)

    def wait_until_complete(self) -> None:
        """A publish that has returned is complete."""
