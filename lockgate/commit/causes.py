"""Why a try of an epoch failed, as far as what was raised can say."""

from __future__ import annotations

from lockgate.commit.protocol import Cause
from lockgate.errors import EpochFailed, LockgateError
from lockgate.failures import find_error

_CANCELLED = ("cancelled", "canceled", "InterruptedException", "SparkContext was shut down")


def find_cause(error: Exception, told: str = "") -> tuple[Cause, LockgateError | None]:
    """The cause, and the error of ours that the failure carries; what a task has told counts before Spark's words."""
    carried = find_error(told) or (error if isinstance(error, LockgateError) else find_error(str(error)))
    if carried is None and not told and any(word in str(error) for word in _CANCELLED):
        return Cause.CANCELLED, None
    if carried is None or isinstance(carried, EpochFailed):
        return Cause.LOST, carried
    return Cause.FINAL, carried
