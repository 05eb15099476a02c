"""At most once: after a failure the run does not retry the current events, and continues with what comes next.

The run deletes the old checkpoint and reads nothing of it. That is correct only if it cannot repeat an event:

    every source can begin with what comes next (Kafka),     continue
    or has no history at all (a socket)
    a source begins with its oldest row (files, sensors)     end: the run would deliver rows again
    a run until it is caught up                              end: it would silently skip events that it should reach
    no event was processed yet                               end: the job, its source or its sink is wrong
    too many failures in a row, no event between them        end, with the last cause

Events between the failure and the next start are lost, too, so the first restart does not wait.
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
class AtMostOnceRestarts:
    """The checkpoints of an at-most-once run, one after the other, and whether there may be another one."""

    can_go_on: bool
    place: Path | None = None
    in_a_row: int = 0  # failures since the last event that was processed
    _events: int = 0  # processed before the last failure

    def begin(self) -> Path:
        """Create a new checkpoint, and remove the one before."""
        self.close()
        self.place = Path(tempfile.mkdtemp(prefix="lockgate-at-most-once-"))
        return self.place

    def close(self) -> None:
        """Remove the checkpoint."""
        if self.place is not None:
            shutil.rmtree(self.place, ignore_errors=True)

    def count_failure(self, events: int) -> bool:
        """Count a failure after this number of processed events in all; returns whether the run continues."""
        if events > self._events:
            self.in_a_row = 0
        self._events = events
        self.in_a_row += 1
        return self.can_go_on and events > 0 and self.in_a_row <= RESTARTS

    @property
    def pause_seconds(self) -> float:
        """How long to wait before the restart: not at all at first, then longer and longer."""
        return 0.0 if self.in_a_row <= 1 else min(_PAUSE_SECONDS_MAX, _PAUSE_SECONDS * 2.0 ** (self.in_a_row - 2))


def forget(planned: Plan, *, until_caught_up: bool) -> AtMostOnceRestarts:
    """What an at-most-once run of this plan may do when it fails."""
    abilities = [node.step.source.ability for node in planned.logical.nodes if isinstance(node.step, Read)]
    repeats = any(one.is_replayable and not one.can_skip_history for one in abilities)
    return AtMostOnceRestarts(can_go_on=not repeats and not until_caught_up)


def as_forgotten(error: LockgateError, *, where: str, log_file: Path) -> LockgateError:
    """The error with advice for an at-most-once run; the usual advice says that nothing is lost."""
    if not isinstance(error, Failed):
        return error
    place = error.where if type(error) is not Failed else where  # it would name the checkpoint, which is gone
    fix = (
        f"fix the cause, see {log_file}, and run the job again; an at-most-once run keeps nothing: its current events"
        " are not retried, and the next run starts without state"
    )
    return type(error)(error.what, place, fix)
