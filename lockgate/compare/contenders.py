"""Who is compared: the job under each guarantee, and under at-least-once by each way to know which events are done.

    declared without tracking=      four: one for each guarantee
    declared with tracking=acks()   five: at-least-once by acknowledgement and by checkpoint

Acknowledgement gives at-least-once and nothing else, so the others of such a job run without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from lockgate.dataflow.job import Job
from lockgate.guarantees import Guarantee


class Tracking(Enum):
    """How at-least-once knows which events are done, where a job may have it both ways."""

    ACKS = "acks"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True)
class Contender:
    """A guarantee; with the tracking where two contenders have the same one."""

    guarantee: Guarantee
    tracking: Tracking | None = None

    @property
    def label(self) -> str:
        """For people, e.g. `at-least-once (acks)`."""
        return self.guarantee.label + ("" if self.tracking is None else f" ({self.tracking.value})")

    @property
    def slug(self) -> str:
        """For names of topics and directories."""
        return f"{self.guarantee.value}" + ("" if self.tracking is None else f"-{self.tracking.value}")

    def as_json(self) -> dict[str, str | None]:
        """As plain data."""
        return {
            "guarantee": self.guarantee.name,
            "tracking": None if self.tracking is None else self.tracking.value,
        }

    @classmethod
    def of_json(cls, told: dict[str, str | None]) -> Contender:
        """One that was plain data."""
        tracking = told["tracking"]
        return cls(Guarantee[told["guarantee"] or ""], None if tracking is None else Tracking(tracking))


def find_contenders(job: Job, guarantees: Iterable[Guarantee]) -> tuple[Contender, ...]:
    """Those of a job under these guarantees, weakest first."""
    found: list[Contender] = []
    for guarantee in sorted(set(guarantees)):
        if job.tracking is not None and guarantee is Guarantee.AT_LEAST_ONCE:
            found += (Contender(guarantee, tracking) for tracking in Tracking)
        else:
            found.append(Contender(guarantee))
    return tuple(found)


def find_declared(job: Job) -> Contender:
    """The one that the author has declared."""
    is_tracked = job.tracking is not None and job.guarantee is Guarantee.AT_LEAST_ONCE
    return Contender(job.guarantee, Tracking.ACKS if is_tracked else None)
