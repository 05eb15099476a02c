"""How often the events of a job were processed, and delivered: 1x, 2x, ...

A repeated epoch processes its events again. It also delivers their rows again if no transaction covers them. Tries of
an epoch are noted in a file in the checkpoint, so a try that died with its process counts, too. On another file system
there are no notes: an epoch that was planned before this process counts as processed, and as delivered, once. An event
that an acker returns is processed once more than its epoch.

If Spark retries a task inside a try, the task processes its rows again. This is not counted, because Spark does not
report which rows these were. Rows count as delivered when their sink confirms them. What a sink wrote before it failed
is unknown here; only its readers see it.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lockgate.connectors.files.filesystem import read_file
from lockgate.untrusted import read_object, take

FILE = "tries.json"
_EPOCHS_KEPT = 1000


@dataclass
class Tries:
    """The tries of epochs, counted by the writer of epochs; `place` is the folder of a checkpoint on this disk."""

    place: Path | None = None
    planned: int = -1  # the newest epoch that was planned before this process
    _of: dict[int, tuple[int, int]] = field(default_factory=dict)  # processed and delivered, by epoch

    def begin(self, epoch: int) -> None:
        """Count the begin of a try."""
        if epoch not in self._of:
            self._of[epoch] = self._read(epoch)
            if len(self._of) > _EPOCHS_KEPT:
                del self._of[next(iter(self._of))]  # the oldest
        processed, delivered = self._of[epoch]
        self._note(epoch, processed + 1, delivered)

    def repeat(self, epoch: int, times: int) -> None:
        """Count how many more times the rows of an epoch were computed within a try, because a commit failed."""
        if times > 0:
            processed, delivered = self._of[epoch]
            self._note(epoch, processed + times, delivered)

    def deliver(self, epoch: int, *, is_exact: bool) -> None:
        """Count a delivery of an epoch to the sinks; in transactions it counts once, however often it is reported."""
        processed, delivered = self._of[epoch]
        self._note(epoch, processed, 1 if is_exact else delivered + 1)

    def of(self, epoch: int) -> tuple[int, int]:
        """How often an epoch was processed, and delivered; once each if that is not known any more."""
        return self._of.get(epoch, (1, 1))

    def forget(self) -> None:
        """Forget all epochs: their numbers restart."""
        self._of.clear()

    def _read(self, epoch: int) -> tuple[int, int]:
        if self.place is None:
            return (1, 1) if epoch <= self.planned else (0, 0)
        try:
            noted = read_object(read_file(self.place, FILE))
            tries = take(noted, "processed", int), take(noted, "delivered", int)
            return tries if take(noted, "epoch", int) == epoch else (0, 0)
        except (OSError, ValueError):  # missing, or damaged by a crash: it says nothing
            return (0, 0)

    def _note(self, epoch: int, processed: int, delivered: int) -> None:
        self._of[epoch] = processed, delivered
        if self.place is not None and self.place.is_dir():
            noted = {"epoch": epoch, "processed": processed, "delivered": delivered}
            with contextlib.suppress(OSError):  # an epoch does not fail because its tries cannot be counted
                (self.place / FILE).write_text(json.dumps(noted))


@dataclass
class DeliveryCounts:
    """Histograms over all events of a run: how many were processed, and delivered, how often."""

    processed: Counter[int] = field(default_factory=Counter)
    delivered: Counter[int] = field(default_factory=Counter)

    def add(self, done: Mapping[int, int], tries: tuple[int, int]) -> None:
        """Add the events of a finished epoch, by how often each had been tried before."""
        processed, delivered = tries
        for before, count in done.items():
            if count > 0:
                self.processed[before + processed] += count
                self.delivered[delivered] += count


def as_text(histogram: Mapping[int, int]) -> dict[str, int]:
    """A histogram as text for users.

    >>> as_text({2: 5, 1: 90})
    {'1x': 90, '2x': 5}
    """
    return {f"{times}x": histogram[times] for times in sorted(histogram)}
