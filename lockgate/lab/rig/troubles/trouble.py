"""What befalls a job in one part of a trial."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lockgate.faultpoints import Fault as Armament
from lockgate.faultpoints import as_environment
from lockgate.lab.rig.history import Fault

Tell = Callable[[Fault], None]
"""Hears of a fault when it is known to have struck."""


class Trouble(ABC):
    """Faults of one kind of doing."""

    faults: Sequence[Armament] = ()
    """Those that processes do to themselves; each has a gate, which stays shut until its time has come."""

    gates: Sequence[Path] = ()

    of_all: Sequence[Armament] = ()
    """Those of all troubles of a trial: a driver that is armed for all of them need not be started for the next."""

    def environment(self) -> Mapping[str, str]:
        """What arms the driver that is about to be started."""
        return as_environment(self.of_all)

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
    @abstractmethod
    def struck(self) -> int:
        """How many faults have struck."""

    @property
    @abstractmethod
    def count(self) -> int:
        """How many there are."""
