"""Whether a query that failed restarts from its checkpoint.

the state is damaged                            no: a retry would find the same
an epoch ended without a decision               yes, a few times in a row
an event was found that kills its worker        yes: Spark limits the attempts of a task, and a task with several
                                                such events needs more of them
another error of ours                           no: it tells the user what to do
"""

from __future__ import annotations

from dataclasses import dataclass

from lockgate.errors import EpochFailed, LockgateError
from lockgate.runtime.translating import is_damage
from lockgate.throwables import throwables

RESTARTS_MAX = 8
"""More failures than this in a row do not pass."""

POISON_EVENTS_MAX = 10
"""If more events than this kill workers in one epoch, the code is broken, and not the events."""


@dataclass
class RestartPolicy:
    """Counts the restarts of a run since its last epoch."""

    _restarts: int = 0
    _poison_event_count: int = 0  # events that had killed workers at the last restart

    def renew(self) -> None:
        """Start again: an epoch is done."""
        self._restarts = self._poison_event_count = 0

    def spend(self, error: Exception, *, poison_event_count: int) -> bool:
        """Use up one restart for this failure; False if none is left, or if it would not help.

        Args:
            error: what ended the query.
            culprits: how many events have killed workers in this epoch.
        """
        if is_damage(throwables(error)):
            return False
        is_passing = isinstance(error, EpochFailed)
        is_progress = self._poison_event_count < poison_event_count <= POISON_EVENTS_MAX and (
            is_passing or not isinstance(error, LockgateError)
        )
        if not is_progress:
            if not is_passing or self._restarts >= RESTARTS_MAX:
                return False
            self._restarts += 1
        self._poison_event_count = poison_event_count
        return True
