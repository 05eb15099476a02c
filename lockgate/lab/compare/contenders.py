"""The contenders: the job with each guarantee, and at-least-once by each way to know which events are done.

    declared without tracking=      four: one for each guarantee
    declared with tracking=acks()   five: at-least-once by acknowledgement and by checkpoint

Acknowledgement reaches at-least-once and nothing else, so the other contenders of such a job run without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from lockgate.dataflow.job import Job
from lockgate.guarantees import Guarantee


class Tracking(Enum):
    """How at-least-once knows which events are done, if a job has both ways."""

    ACKS = "acks"
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True)
class Contender:
    """A guarantee, with the tracking if two contenders have the same guarantee."""

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
        """Read a contender from plain data."""
        tracking = told["tracking"]
        return cls(Guarantee[told["guarantee"] or ""], None if tracking is None else Tracking(tracking))


def find_contenders(job: Job, guarantees: Iterable[Guarantee]) -> tuple[Contender, ...]:
    """The contenders of a job for these guarantees, weakest first."""
    found: list[Contender] = []
    for guarantee in sorted(set(guarantees)):
        if job.tracking is not None and guarantee is Guarantee.AT_LEAST_ONCE:
            found += (Contender(guarantee, tracking) for tracking in Tracking)
        else:
            found.append(Contender(guarantee))
    return tuple(found)


def find_declared(job: Job) -> Contender:
    """The contender that the job declares."""
    is_tracked = job.tracking is not None and job.guarantee is Guarantee.AT_LEAST_ONCE
    return Contender(job.guarantee, Tracking.ACKS if is_tracked else None)
