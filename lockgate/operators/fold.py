"""A fold: values of a group, taken in one by one, kept as little plain data, and turned into a result at any time.

Rolling aggregates and windows keep their aggregates as folds, synopses among them; a function with state keeps what it
declares, and no folds. The laws, which the tests check on every fold:

    what is kept is plain data (see `contract`), and a fold never changes it in place where it hands it out
    adding to what was kept and restored is adding to the original
    merge(a, b) is what adding all of a's values and then all of b's gives (for sketches: within their error)
    the same values in the same order give the same result, always
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Fold(ABC):
    """How one aggregate is kept."""

    needs_identity: bool = False
    """Does it look at the number that tells an event from every other (a sample does)?"""

    is_bounded: bool = True
    """Is what it keeps bounded, however many values come? A fold that keeps history is not."""

    @abstractmethod
    def empty(self) -> Any:
        """What is kept of no value."""

    @abstractmethod
    def add(self, kept: Any, value: Any, identity: int) -> Any:
        """What is kept with one more value; `identity` is 0 unless the fold needs it."""

    @abstractmethod
    def merge(self, one: Any, two: Any) -> Any:
        """What is kept of two groups that turn out to be one, as sessions do."""

    @abstractmethod
    def result(self, kept: Any) -> Any:
        """The value of the aggregate as of now."""
