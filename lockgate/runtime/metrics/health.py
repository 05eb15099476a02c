"""Is a job well? Decided from what was seen of it, and the time.

    failed       the query has ended with an error: not alive
    starting     nothing was heard of the query yet: alive, not ready, for ten minutes
    working      epochs end, or tasks of one do, or the query says that nothing waits: alive and ready
    stuck        none of these, for longer than the limit: not alive

The limit is the greater of what is asked for and several times what epochs take: a long one is no sick one. A start has
ten minutes, and more where the limit is higher: Spark, its cluster, and the first epoch with its state. A query whose
source does not answer says nothing, so events that may wait there count as waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PATIENCE_SECONDS = 60.0
START_SECONDS = 600.0
_EPOCHS = 5


@dataclass(frozen=True)
class Seen:
    """What was seen of a driver, times by one clock in seconds."""

    began_at: float = 0.0  # when the driver began to start, or a task of its first epoch ended last
    heard_at: float | None = None  # when an epoch or a task ended last, or nothing waited; None: not yet
    epoch: int | None = None  # the newest one that ended
    epoch_seconds: float = 0.0  # what an epoch takes: as declared, or as the last ones took
    failed: str = ""


@dataclass(frozen=True)
class Verdict:
    """What an orchestrator is told."""

    is_alive: bool
    is_ready: bool
    status: str
    reason: str = ""

    def facts(self) -> dict[str, Any]:
        """As JSON."""
        return {"status": self.status, **({"reason": self.reason} if self.reason else {})}


def judge(seen: Seen, *, now: float, limit_seconds: float) -> Verdict:
    """Is it alive, and is it ready?"""
    if seen.failed:
        return Verdict(False, False, "failed", seen.failed)
    limit = max(limit_seconds, _EPOCHS * seen.epoch_seconds)
    if seen.heard_at is None:
        limit, silence = max(limit, START_SECONDS), now - seen.began_at
        if silence <= limit:
            return Verdict(True, False, "starting", "no epoch has ended yet")
        reason = f"the start has come to nothing for {silence:.0f} s; {limit:.0f} s are allowed"
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
