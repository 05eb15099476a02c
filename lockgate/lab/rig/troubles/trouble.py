"""What happens to a job in one part of a trial."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lockgate.faultpoints import Fault as Armament
from lockgate.faultpoints import as_environment
from lockgate.lab.rig.history import Fault

Tell = Callable[[Fault], None]
"""Receives a fault that has struck."""


class Trouble(ABC):
    """Faults of one kind."""

    faults: Sequence[Armament] = ()
    """What processes do to themselves; each fault has a gate, which stays shut until its time has come."""

    gates: Sequence[Path] = ()

    of_all: Sequence[Armament] = ()
    """The faults of all troubles of a trial: a driver that is armed for all of them serves the next trouble, too."""

    count: int = 0  # of its faults
    struck: int = 0  # how many of them have struck

    def environment(self) -> Mapping[str, str]:
        """What arms the driver that starts next."""
        return as_environment(self.of_all) if self.of_all else {}

    def begin(self) -> None:
        """Its time has come: the first gate opens."""
        for gate in self.gates[:1]:
            gate.touch()

    def end(self) -> None:
        """Its time is over, whatever has struck."""
        for gate in self.gates:
            gate.unlink(missing_ok=True)

    @abstractmethod
    def step(self) -> None:
        """Do what is due now; called many times a second."""

    @property
    def is_over(self) -> bool:
        """Has everything struck?"""
        return self.struck == self.count


class Calm(Trouble):
    """Nothing happens to the job."""

    def step(self) -> None:
        return
