"""A fold: takes the values of a group one by one, keeps little plain data, and has a result at any time.

Rolling aggregates and windows keep their aggregates as folds, synopses too. A function with state keeps what it
declares and no folds. The tests check these rules on every fold:

    what is kept is plain data (see `contract`), and a fold never changes it in place after it returned it
    adding to what was kept and restored is adding to the original
    merge(a, b) equals adding all values of a and then all of b (for sketches: within their error)
    the same values in the same order always give the same result
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Fold(ABC):
    """How one aggregate is kept."""

    needs_identity: bool = False
    """Does it use the number that distinguishes events (a sample does)?"""

    is_bounded: bool = True
    """Is what it keeps bounded, however many values come? A fold that keeps history is not."""

    @abstractmethod
    def empty(self) -> Any:
        """What is kept of no values."""

    @abstractmethod
    def add(self, kept: Any, value: Any, identity: int) -> Any:
        """What is kept with one more value; `identity` is 0 unless the fold needs it."""

    @abstractmethod
    def merge(self, one: Any, two: Any) -> Any:
        """What is kept of two groups that become one, as sessions do."""

    @abstractmethod
    def result(self, kept: Any) -> Any:
        """The value of the aggregate as of now."""
