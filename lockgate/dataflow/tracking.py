"""How a job knows which events are done: by checkpoint, or by acknowledgement of every event."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from lockgate.dataflow.arguments import explain_wrong_calls
from lockgate.dataflow.duration import Duration, as_duration, as_people_text
from lockgate.dataflow.origin import caller
from lockgate.errors import BadJob

TIMEOUT_MAX = timedelta(days=1)


@dataclass(frozen=True)
class Acks:
    """An event is done when all that came of it is done; a failed event is retried alone, while the others continue."""

    timeout: timedelta  # for one call of a function of the user
    max_attempts: int
    backoff: timedelta  # before the second attempt; it doubles before each further one

    def wait_before(self, attempt: int) -> timedelta:
        """How long an event waits before its attempt of this number, from 2 on."""
        return self.backoff * int(2 ** (attempt - 2))

    def __str__(self) -> str:
        attempts = "1 attempt" if self.max_attempts == 1 else f"{self.max_attempts} attempts"
        return f"{attempts}, {as_people_text(self.timeout)} each, backoff {as_people_text(self.backoff)}"


@explain_wrong_calls('acks(timeout="30 seconds", max_attempts=3)')
def acks(*, timeout: Duration = "30 seconds", max_attempts: int = 3, backoff: Duration = "1 second") -> Acks:
    """Track every event by itself, with retries: `Job(..., tracking=acks(...))`. docs/ACKS.md.

    Args:
        timeout: how long a function can take for an event, at most a day.
        max_attempts: how often an event is tried, from 1 to 30. After that it is a dead letter.
        backoff: the pause before the second attempt. Each further pause is twice as long.

    Raises:
        BadJob: an argument cannot be valid.

    >>> print(acks(timeout="5s", max_attempts=4))
    4 attempts, 5 seconds each, backoff 1 second
    """
    where = f"acks, declared at {caller()}"
    if isinstance(max_attempts, bool) or not isinstance(max_attempts, int) or not 1 <= max_attempts <= 30:
        raise BadJob(f"max_attempts={max_attempts!r} is no number of attempts", where=where, fix="from 1 to 30")
    limit = as_duration(timeout, of="timeout")
    if limit > TIMEOUT_MAX:
        raise BadJob(f"timeout={timeout!r} is longer than a day", where=where, fix='timeout="30 seconds"')
    return Acks(limit, max_attempts, as_duration(backoff, of="backoff", is_zero_allowed=True))
