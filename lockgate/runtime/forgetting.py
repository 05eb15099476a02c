"""At most once: a failure forgets the events in hand, and the run goes on with what comes next.

The old checkpoint is thrown away and nothing of it is read. That is right only where nothing can be repeated by it:

    every source can begin with what comes next (Kafka),     go on
    or has no past at all (a socket)
    a source begins with its oldest row (files, sensors)     end: rows that are out would come out again
    a run until it is caught up                              end: what it was to reach would be skipped in silence
    no event was processed yet                               end: the job, or the place it reads or writes, is wrong
    too many failures in a row, no event between them        end, with the last cause

What comes between the failure and the new beginning is lost as well, so the first new beginning does not wait.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lockgate.dataflow.steps import Read
from lockgate.errors import Failed, LockgateError
from lockgate.planner.plan import Plan

RESTARTS = 8
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 0.5, 8.0


@dataclass
class Forgetting:
    """The checkpoints of an at-most-once run, one after the other, and whether another one follows."""

    can_go_on: bool
    place: Path | None = None
    in_a_row: int = 0  # failures since the last event that was processed
    _events: int = 0  # that were processed before the last failure

    def begin(self) -> Path:
        """A fresh checkpoint; the one before is gone."""
        self.close()
        self.place = Path(tempfile.mkdtemp(prefix="lockgate-at-most-once-"))
        return self.place

    def close(self) -> None:
        """Leave nothing behind."""
        if self.place is not None:
            shutil.rmtree(self.place, ignore_errors=True)

    def goes_on(self, events: int) -> bool:
        """Does the run go on after this failure, with so many events processed in all?"""
        if events > self._events:
            self.in_a_row = 0
        self._events = events
        self.in_a_row += 1
        return self.can_go_on and events > 0 and self.in_a_row <= RESTARTS

    @property
    def pause_seconds(self) -> float:
        """How long to wait before the new beginning: not at all at first, then longer and longer."""
        return 0.0 if self.in_a_row <= 1 else min(_PAUSE_SECONDS_MAX, _PAUSE_SECONDS * 2.0 ** (self.in_a_row - 2))


def forget(planned: Plan, *, until_caught_up: bool) -> Forgetting:
    """What an at-most-once run of this plan may do when it fails."""
    abilities = [node.step.source.ability for node in planned.logical.nodes if isinstance(node.step, Read)]
    repeats = any(one.is_replayable and not one.can_skip_history for one in abilities)
    return Forgetting(can_go_on=not repeats and not until_caught_up)


def as_forgotten(error: LockgateError, *, where: str, log_file: Path) -> LockgateError:
    """A failure of an at-most-once run: other ones lose nothing and go on where they stopped, and say so."""
    if not isinstance(error, Failed):
        return error
    place = error.where if type(error) is not Failed else where  # the checkpoint that it would name is gone
    fix = (
        f"mend the cause, see {log_file}, and run the job again; an at-most-once run keeps nothing: what was in hand is"
        " forgotten, and the next run begins anew"
    )
    return type(error)(error.what, place, fix)
