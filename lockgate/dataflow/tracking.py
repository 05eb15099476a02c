"""How a job knows which events are done: by checkpoint, or by acknowledgement of every single one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from lockgate.dataflow.duration import Duration, as_duration, as_people_text
from lockgate.dataflow.origin import caller
from lockgate.errors import BadJob

TIMEOUT_MAX = timedelta(days=1)


@dataclass(frozen=True)
class Acks:
    """An event is done when all that came of it is; one that failed is tried again alone, while the others go on."""

    timeout: timedelta  # for one call of a function of the author's
    max_attempts: int
    backoff: timedelta  # before the second attempt; twice as long before each further one

    def wait_before(self, attempt: int) -> timedelta:
        """How long an event waits before its attempt of this number, from 2 on."""
        return self.backoff * int(2 ** (attempt - 2))

    def __str__(self) -> str:
        attempts = "1 attempt" if self.max_attempts == 1 else f"{self.max_attempts} attempts"
        return f"{attempts}, {as_people_text(self.timeout)} each, backoff {as_people_text(self.backoff)}"


def acks(*, timeout: Duration = "30 seconds", max_attempts: int = 3, backoff: Duration = "1 second") -> Acks:
    """Track every event: `Job(..., tracking=acks(...))`.

    An event whose function raises, or takes longer than `timeout`, comes again after `backoff` (then twice as long),
    at most `max_attempts` times in all; after that it is a dead letter.
    """
    where = f"acks, declared at {caller()}"
    if isinstance(max_attempts, bool) or not isinstance(max_attempts, int) or not 1 <= max_attempts <= 30:
        raise BadJob(f"max_attempts={max_attempts!r} is no number of attempts", where=where, fix="from 1 to 30")
    limit = as_duration(timeout, of="timeout")
    if limit > TIMEOUT_MAX:
        raise BadJob(f"timeout={timeout!r} is longer than a day", where=where, fix='timeout="30 seconds"')
    return Acks(limit, max_attempts, as_duration(backoff, of="backoff", is_zero_allowed=True))
