"""What a trial asks of an output, whatever keeps its rows.

    clear       nothing of an earlier run is there
    along       what was seen while faults struck, and then to the end
    after       everything that is there when the job is over
    log         everything that was ever written, committed or not, if the output keeps that
    standing    what is left open when the job has recovered

Rows are facts. A reader that missed something notes a Gap. That every reader has read to the end is noted by the group
of readers (group.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from lockgate.lab.rig.history import Fact

Clock = Callable[[], float]
"""Seconds since the trial began."""


class Output(ABC):
    """Outputs of a job that one reader reads, by the labels that they have in every run."""

    labels: tuple[str, ...]

    def clear(self) -> None:
        """Remove what an earlier run of the same name left, and create what has to exist before the job runs."""
        return

    @abstractmethod
    def start_along(self, clock: Clock) -> None:
        """Begin to read along, in the background."""

    @abstractmethod
    def seen(self) -> Sequence[Fact]:
        """What was seen so far."""

    @abstractmethod
    def finish_along(self) -> list[Fact]:
        """The job is over: read to the end. Everything that was seen."""

    @abstractmethod
    def after(self, clock: Clock) -> list[Fact]:
        """Everything that is there."""

    def log(self, clock: Clock) -> list[Fact]:
        """Everything that was ever written; nothing if the output does not keep that."""
        return []

    def standing(self, clock: Clock) -> list[Fact]:
        """What is left open; nothing if nothing can be."""
        return []
