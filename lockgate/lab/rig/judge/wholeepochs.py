"""Did every epoch become visible as a whole, in every partition and at every moment?

A reader is given one partition after the other and sees each with a delay of its own, so half an epoch in its hands
proves nothing. What no delay can feign:

    in a partition      the rows of an epoch are one piece: the end of a transaction takes an offset, and so do aborted
                        rows
                        epochs follow each other
    in the source       the event of a row is one that its epoch took
    in time             no row is seen before the driver that committed its epoch was even started
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lockgate.guarantees import Guarantee
from lockgate.lab.rig.history import Committed, History, Read, Reader, Start, Trace
from lockgate.lab.rig.judge.findings import Finding, Subject, Tally
from lockgate.lab.rig.judge.promises import Keeping, Promise, Promises


def check_epochs(history: History, promises: Promises) -> Finding:
    """Is every epoch in one piece?"""
    tally = Tally("split epochs")
    epochs = _Epochs.of(history)
    for output, promise in promises.items():
        # Rows of tables and files say nothing of their epochs.
        is_told = promise.tells_epochs and promise.keeping is Keeping.LOG
        if promise.guarantee is not Guarantee.END_TO_END_EXACTLY_ONCE or not is_told:
            continue
        if doubt := history.doubt(Reader.AFTER) or history.doubt(Reader.ALONG):
            tally.doubt(doubt)
            continue
        there, seen = history.read_by(Reader.AFTER, output), history.read_by(Reader.ALONG, output)
        if any(epochs.of_row(row, promise) is None for row in there):
            tally.doubt(f"rows of {output!r} do not tell which epoch they are of")
            continue
        tally.hold()
        for wrong, rows in (*_pieces(there, promise, epochs), *_early(seen, promise, epochs)):
            tally.break_(f"{wrong} in {output!r}", Subject(output, rows[-1].content, rows[-1].trace, rows))
    return tally.finding()


def _pieces(rows: Iterable[Read], promise: Promise, epochs: _Epochs) -> Iterator[tuple[str, tuple[Read, ...]]]:
    before: Read | None = None
    for row in sorted(rows, key=lambda row: row.place):
        epoch = epochs.of_row(row, promise)
        if before is not None and before.partition == row.partition:
            earlier = epochs.of_row(before, promise)
            if epoch is not None and earlier is not None and epoch < earlier:
                yield f"a row of epoch {epoch} stands behind one of epoch {earlier}", (before, row)
            elif epoch == earlier and row.offset != before.offset + 1:
                yield f"epoch {epoch} is in two pieces", (before, row)
        if promise.is_ordered and epoch is not None and not epochs.took(epoch, row.trace or ()):
            yield f"a row of epoch {epoch} goes back to an event of another one", (row,)
        before = row


def _early(seen: Iterable[Read], promise: Promise, epochs: _Epochs) -> Iterator[tuple[str, tuple[Read, ...]]]:
    for row in seen:
        epoch = epochs.of_row(row, promise)
        started = None if epoch is None else epochs.started.get(epoch)
        if started is not None and row.at_seconds < started:
            yield f"a row of epoch {epoch} was seen before the driver that committed it had started", (row,)


@dataclass(frozen=True)
class _Epochs:
    """What the ledger says of the epochs."""

    ends: dict[int, dict[tuple[str, int], int]]
    started: dict[int, float]  # when the driver that committed the epoch was started

    @classmethod
    def of(cls, history: History) -> _Epochs:
        starts = {start.driver: start.at_seconds for start in history.of(Start)}
        ends: dict[int, dict[tuple[str, int], int]] = {}
        started: dict[int, float] = {}
        for commit in history.of(Committed):
            ends.setdefault(commit.epoch, {(end.topic, end.partition): end.offset for end in commit.ends})
            if commit.driver is not None and commit.driver in starts:
                started.setdefault(commit.epoch, starts[commit.driver])
        return cls(ends, started)

    def of_row(self, row: Read, promise: Promise) -> int | None:
        """The epoch that a row says it is of, or else the one that took its event."""
        if row.epoch is not None or not promise.is_ordered or not row.trace:
            return row.epoch
        source = row.trace[-1].topic, row.trace[-1].partition
        later = [epoch for epoch, ends in self.ends.items() if row.trace[-1].offset < ends.get(source, 0)]
        return min(later, default=None)

    def took(self, epoch: int, trace: Trace) -> bool:
        """May the events have been taken by this epoch, as far as the ledger is known?"""
        ends, begins = self.ends.get(epoch, {}), self.ends.get(epoch - 1, {})
        return all(
            begins.get((event.topic, event.partition), 0) <= event.offset < ends[event.topic, event.partition]
            for event in trace
            if (event.topic, event.partition) in ends
        )
