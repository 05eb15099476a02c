"""Check what must hold, by an independent reader of committed rows that uses nothing of the product.

always       a partition shows whole epochs only, in their order, each row once, and none of an aborted transaction
             once a run has committed an epoch and another one has taken over, it never writes the ledger again
at the end   every row of every epoch is there, the ledger is at the last epoch, and no transaction is open
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from lockgate.lab.prove.simulation.broker import Batch, Broker

Place = tuple[str, int]


class Broken(BaseException):
    """A promise does not hold. Not an Exception, because the coordinator, which may call this code, would handle it."""


class Reader:
    """Reads one output partition, as far as it is stable, and remembers what it has seen."""

    def __init__(self, place: Place, places: Sequence[Place]) -> None:
        self.place = place
        self._places = places
        self._position = 0
        self._epoch = -1
        self._missing: set[int] = set()
        self._seen: set[int] = set()

    def look(self, broker: Broker, ends: Sequence[int]) -> None:
        """Take in what has become visible; raises Broken where it must not be."""
        for row in self._take(broker):
            epoch = bisect_right(ends, row)
            if row in self._seen:
                raise Broken(f"row {row} of epoch {epoch} is visible twice in {self.place}")
            if epoch < self._epoch:
                raise Broken(f"row {row} of epoch {epoch} is visible in {self.place} behind epoch {self._epoch}")
            if epoch > self._epoch:
                self._enter(epoch, ends)
            if row not in self._missing:
                raise Broken(f"row {row} is visible in {self.place}, where it does not belong")
            self._missing.discard(row)
            self._seen.add(row)
        if self._missing:
            raise Broken(f"epoch {self._epoch} is visible in {self.place} without its rows {sorted(self._missing)}")

    def finish(self, ends: Sequence[int]) -> None:
        """Is everything there?"""
        self._enter(len(ends), ends)

    def _enter(self, epoch: int, ends: Sequence[int]) -> None:
        """Rows of this epoch come next: those of the epochs before it have to be there."""
        for number in range(max(self._epoch, 0), epoch):
            gone = self._of(number, ends) - self._seen
            if gone:
                raise Broken(f"rows {sorted(gone)} of epoch {number} are not visible in {self.place}")
        self._epoch = epoch
        self._missing = self._of(epoch, ends) if epoch < len(ends) else set()

    def _of(self, epoch: int, ends: Sequence[int]) -> set[int]:
        start = ends[epoch - 1] if epoch else 0
        return {row for row in range(start, ends[epoch]) if self._places[row % len(self._places)] == self.place}

    def _take(self, broker: Broker) -> list[int]:
        return [row for payload in committed(broker, self.place, self._position, self._go) for row in payload]

    def _go(self, position: int) -> None:
        self._position = position


def committed(broker: Broker, place: Place, position: int, go: Any = None) -> list[Any]:
    """The payloads of committed batches from a position on; a reader drops aborted ones."""
    partition = broker.partition(place)
    sent, aborted = partition.read(position, below=partition.stable)
    if sent and go is not None:
        go(sent[-1].offset + sent[-1].count)
    return [batch.payload for batch in sent if not (batch.is_end or _is_aborted(batch, aborted))]


def _is_aborted(batch: Batch, aborted: Sequence[tuple[Any, int, int]]) -> bool:
    return any(producer == batch.producer and first <= batch.offset < last for producer, first, last in aborted)


class LedgerReader:
    """Reads the ledger's partition: which run committed what."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.epoch: int | None = None
        self._position = 0
        self._run: str | None = None
        self._has_committed = False  # has the run that holds the ledger committed an epoch?
        self._over: set[str] = set()  # runs that had, and were taken over from

    def look(self, broker: Broker) -> None:
        """Read what has become visible; raises Broken if a run returns, or an epoch is missing."""
        for payload in committed(broker, self.place, self._position, self._go):
            entry = json.loads(payload[payload.index(b'{"format"') : payload.rindex(b"}") + 1])
            run, epoch = entry["run"], entry["epoch"]
            if run in self._over:
                raise Broken(f"run {run} writes the ledger, from which another one had taken over")
            if run != self._run:
                if self._run is not None and self._has_committed:
                    self._over.add(self._run)
                self._run, self._has_committed = run, False
            if epoch != self.epoch:
                before = -1 if self.epoch is None else self.epoch
                if epoch != before + 1:
                    raise Broken(f"the ledger goes from epoch {self.epoch} to {epoch}")
                self.epoch, self._has_committed = epoch, True

    def _go(self, position: int) -> None:
        self._position = position


class Checks:
    """All readers of one simulation."""

    def __init__(self, ledger: Place, outputs: Sequence[Place]) -> None:
        self._ledger = LedgerReader(ledger)
        self._readers = [Reader(place, outputs) for place in outputs]

    def look(self, broker: Broker, ends: Sequence[int]) -> None:
        """What has to hold at every moment."""
        self._ledger.look(broker)
        for reader in self._readers:
            reader.look(broker, ends)

    def finish(self, broker: Broker, ends: Sequence[int]) -> None:
        """What has to hold when all is over."""
        self.look(broker, ends)
        for reader in self._readers:
            reader.finish(ends)
        if self._ledger.epoch != len(ends) - 1:
            raise Broken(f"all {len(ends)} epochs are done, and the ledger is at {self._ledger.epoch}")
        for transaction in broker.transactions.values():
            if transaction.state == "Ongoing" or transaction.ends is not None:
                raise Broken(f"the transaction of {transaction.name} is left {transaction.state}")
        for place, partition in broker.partitions.items():
            if partition.open:
                raise Broken(f"a transaction is left open in {place}, and holds its readers back")
