"""Is a job healthy? Decide it from what was observed, and the time.

    failed       the query ended with an error: not alive
    starting     the query has not reported yet: alive, not ready, for ten minutes
    working      epochs end, or tasks of an epoch end, or the query reports that nothing waits: alive and ready
    stuck        none of these, for longer than the limit: not alive

The limit is the one that the user sets, or several times the usual length of an epoch if that is longer: a long epoch
is not a stuck one. A start has ten minutes, or the limit if that is longer. It includes Spark, its cluster, and the
first epoch with its state. If the source of a query does not answer, the query reports nothing. Events that may wait
there count as waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PATIENCE_SECONDS = 60.0
START_SECONDS = 600.0
_EPOCHS = 5


@dataclass(frozen=True)
class Seen:
    """What was observed of a driver; times are seconds of one clock."""

    began_at: float = 0.0  # when the driver started, or when a task of its first epoch last ended
    heard_at: float | None = None  # when an epoch or a task last ended, or nothing waited; None: not yet
    epoch: int | None = None  # the newest one that ended
    epoch_seconds: float = 0.0  # the length of an epoch: as declared, or of the last ones
    failed: str = ""


@dataclass(frozen=True)
class Verdict:
    """What an orchestrator receives."""

    is_alive: bool
    is_ready: bool
    status: str
    reason: str = ""

    def facts(self) -> dict[str, Any]:
        """As JSON."""
        return {"status": self.status, **({"reason": self.reason} if self.reason else {})}


def judge(seen: Seen, *, now: float, limit_seconds: float) -> Verdict:
    """Is the job alive, and is it ready?"""
    if seen.failed:
        return Verdict(False, False, "failed", seen.failed)
    limit = max(limit_seconds, _EPOCHS * seen.epoch_seconds)
    if seen.heard_at is None:
        limit, silence = max(limit, START_SECONDS), now - seen.began_at
        if silence <= limit:
            return Verdict(True, False, "starting", "no epoch has ended yet")
        reason = f"the start has made no progress for {silence:.0f} s; {limit:.0f} s are allowed"
        return Verdict(False, False, "stuck", reason)
    silence = now - seen.heard_at
    if silence > limit:
        last = "no epoch" if seen.epoch is None else f"no epoch after {seen.epoch}"
        return Verdict(
            False,
            True,
            "stuck",
            f"{last} has ended for {silence:.0f} s, and the query does not say that nothing waits; {limit:.0f} s are"
            " allowed",
        )
    return Verdict(True, True, "working")
