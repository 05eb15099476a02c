"""What a proof asks of an output, whatever it is kept in.

    clear       nothing of an earlier run is there
    along       what was seen while faults happened, and then to the end
    after       all that is there when all is over
    log         all that was ever written, committed or not, where there is such a thing
    standing    what is left open when the job has recovered

Rows come as facts. A reader that saw not all there is says so by a Gap; that all readers came to the end is told by
whoever has all of them (outputs/readers.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from lockgate.lab.rig.history import Fact, Standing

Clock = Callable[[], float]
"""Seconds since the trial began."""


class Output(ABC):
    """Outputs of a job that are read in one way, by the labels that they have in every run."""

    labels: tuple[str, ...]

    def clear(self) -> None:
        """Remove what an earlier run of the same name left, and make what has to be there before the job runs."""
        return

    @abstractmethod
    def start_along(self, clock: Clock) -> None:
        """Begin to read along, beside the caller."""

    @abstractmethod
    def finish_along(self) -> list[Fact]:
        """All is over: read to the end. Everything that was seen."""

    @abstractmethod
    def after(self, clock: Clock) -> list[Fact]:
        """Everything that is there."""

    def log(self, clock: Clock) -> list[Fact]:
        """Everything that was ever written; nothing where nobody keeps that."""
        return []

    def standing(self, clock: Clock) -> Sequence[Standing]:
        """What is left open; nothing where nothing can be."""
        return ()
