"""How often the events of a job were processed, and delivered: 1x, 2x, ...

An epoch that is repeated processes its events again, and delivers their rows again where no transaction holds them
together. Tries of an epoch are noted in a file beside the checkpoint, so one that died with its process counts too. On
another file system nothing is noted: there an epoch that was planned before this process counts as tried, and as
delivered, once. An event that an acker lets back is processed once more than its epoch says.

A task that Spark tries again inside of a try processes its own rows again; that is not in it, for nobody tells which
these were. Delivered is what sinks have said to have. What a sink took before it failed, nobody knows; readers do.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lockgate.untrusted import read_object, take

FILE = "tries.json"
_EPOCHS_KEPT = 1000


@dataclass
class Tries:
    """The tries of epochs, as the writer of epochs counts them; `place` is the folder of a checkpoint on this disk."""

    place: Path | None = None
    planned: int = -1  # the newest epoch that was planned before this process
    _of: dict[int, tuple[int, int]] = field(default_factory=dict)  # processed and delivered, by epoch

    def begin(self, epoch: int) -> None:
        """A try of an epoch begins."""
        if epoch not in self._of:
            self._of[epoch] = self._read(epoch)
            if len(self._of) > _EPOCHS_KEPT:
                del self._of[next(iter(self._of))]  # the oldest
        processed, delivered = self._of[epoch]
        self._note(epoch, processed + 1, delivered)

    def repeat(self, epoch: int, times: int) -> None:
        """The rows of an epoch were computed so many times more in one go, because a commit had failed."""
        if times > 0:
            processed, delivered = self._of[epoch]
            self._note(epoch, processed + times, delivered)

    def deliver(self, epoch: int, *, is_exact: bool) -> None:
        """The sinks have the rows of an epoch; in transactions, once, however often it is told."""
        processed, delivered = self._of[epoch]
        self._note(epoch, processed, 1 if is_exact else delivered + 1)

    def of(self, epoch: int) -> tuple[int, int]:
        """How often an epoch was processed and delivered; once each where that is not known any more."""
        return self._of.get(epoch, (1, 1))

    def forget(self) -> None:
        """Epochs are numbered anew, with nothing kept of those before."""
        self._of.clear()

    def _read(self, epoch: int) -> tuple[int, int]:
        if self.place is None:
            return (1, 1) if epoch <= self.planned else (0, 0)
        try:
            noted = read_object((self.place / FILE).read_bytes())
            tries = take(noted, "processed", int), take(noted, "delivered", int)
            return tries if take(noted, "epoch", int) == epoch else (0, 0)
        except (OSError, ValueError):  # not there, or torn by a crash: it says nothing
            return (0, 0)

    def _note(self, epoch: int, processed: int, delivered: int) -> None:
        self._of[epoch] = processed, delivered
        if self.place is not None and self.place.is_dir():
            noted = {"epoch": epoch, "processed": processed, "delivered": delivered}
            with contextlib.suppress(OSError):  # an epoch does not fail because nobody could count it
                (self.place / FILE).write_text(json.dumps(noted))


@dataclass
class Times:
    """Histograms over all events of a run: how many were processed, and delivered, how often."""

    processed: Counter[int] = field(default_factory=Counter)
    delivered: Counter[int] = field(default_factory=Counter)

    def add(self, done: Mapping[int, int], tries: tuple[int, int]) -> None:
        """The events that an epoch is done with, by how often each had been tried before."""
        processed, delivered = tries
        for before, count in done.items():
            if count > 0:
                self.processed[before + processed] += count
                self.delivered[delivered] += count


def as_text(histogram: Mapping[int, int]) -> dict[str, int]:
    """As people read it.

    >>> as_text({2: 5, 1: 90})
    {'1x': 90, '2x': 5}
    """
    return {f"{times}x": histogram[times] for times in sorted(histogram)}
