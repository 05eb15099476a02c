"""Find out from the raised error why a try of an epoch failed."""

from __future__ import annotations

from lockgate.commit.protocol import Cause
from lockgate.errors import EpochFailed, LockgateError
from lockgate.failures import find_error, find_raised

_CANCELLED = ("cancelled", "canceled", "InterruptedException", "SparkContext was shut down")


def find_cause(error: Exception, told: str = "") -> tuple[Cause, LockgateError | None]:
    """The cause, and our own error inside the failure; `told`, the report of a task, counts before Spark's text."""
    carried = find_error(told) or (error if isinstance(error, LockgateError) else find_raised(error))
    if carried is None and not told and any(word in str(error) for word in _CANCELLED):
        return Cause.CANCELLED, None
    if carried is None or isinstance(carried, EpochFailed):
        return Cause.LOST, carried
    return Cause.FINAL, carried
