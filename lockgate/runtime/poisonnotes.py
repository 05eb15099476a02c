"""Note in the checkpoint which events killed their workers, before the epoch that puts them aside is committed.

An epoch that is committed and not yet in Spark's log is repeated by the next driver, for the state. It must omit the
same events. But an event that killed two workers by chance may not kill a third one: the state would have it, although
its dead letter is written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.checkpoints.tree import open_tree
from lockgate.untrusted import take

_FILE = "described/poison.json"


@dataclass
class PoisonNotes:
    """The note of the newest epoch that had such events; an earlier epoch is never repeated."""

    checkpoint: Checkpoint | None
    _epoch: int = -1
    _events: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.checkpoint is not None:
            self._epoch, self._events = self.checkpoint.read_note(_FILE, _read) or (-1, ())

    def of(self, epoch: int) -> tuple[str, ...]:
        """The events that were put aside when this epoch was computed before."""
        return self._events if epoch == self._epoch else ()

    def keep(self, epoch: int, events: Sequence[str]) -> None:
        """Note the events of an epoch, if there are others than those that are noted."""
        if self.checkpoint is None or not set(events) - {*self.of(epoch)}:
            return
        self._epoch, self._events = epoch, tuple(events)
        noted = json.dumps({"epoch": epoch, "events": [*events]}, indent=1).encode()
        open_tree(self.checkpoint.root, self.checkpoint.spark).write(_FILE, noted)


def _read(noted: Any) -> tuple[int, tuple[str, ...]]:
    return take(noted, "epoch", int), tuple(str(one) for one in take(noted, "events", list))
