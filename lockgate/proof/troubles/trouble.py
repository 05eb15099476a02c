"""What befalls a job in one part of a trial."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from lockgate.proof.history import Fault

Tell = Callable[[Fault], None]
"""Hears of a fault when it is known to have struck."""


class Trouble(ABC):
    """Faults of one kind of doing."""

    def environment(self) -> Mapping[str, str]:
        """What arms the driver that is about to be started."""
        return {}

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
