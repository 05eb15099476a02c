"""Choose the size of an epoch, so that it lasts about as long as the user declares.

An epoch has a fixed cost (planning, state, the commit) and a cost for each event. The pace learns both from the last
epochs. The next epoch takes as many events as fit into the rest of its time:

    target 1 s, fixed 0.4 s, 2 us an event     ->  300,000 events
    target 1 s, fixed 3 s                      ->  as many as take another 3 s: fewer would only waste the time

Only a full epoch shows how many events fit. An epoch that took everything shows only its cost. The first epochs of a
start are slow because everything is new, so they do not count. The size grows in steps, by a factor of two at most, so
that a wrong guess costs little. It shrinks at once. Epochs of one size do not show which part of the cost is fixed: an
epoch that is always too long may have a high fixed cost, or too many events. Then the pace tries half as many.

The law: a job that is far behind uses no more memory than one that keeps up, because its epochs are not larger.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median

_EPOCHS_MAX = 12  # these are remembered: the cost of an event changes over time
_COLD = 2
_GROWTH_MAX = 2.0
_ROWS_MIN = 100
_TOLERATED = 0.2  # an epoch may miss its target by this part before the size changes
_ALIKE = 0.1  # epochs whose rows differ by less than this part count as one size


@dataclass(frozen=True)
class EpochTiming:
    """The rows of one epoch, and its time."""

    rows: int
    seconds: float
    is_full: bool  # were there more rows to take?


@dataclass
class EpochSize:
    """How many rows the next epoch may take from a source; one number for all sources of a job."""

    target_seconds: float
    rows_first: int
    rows_most: int
    _seen: int = 0
    _fixed: float = 0.0
    _epochs: deque[EpochTiming] = field(default_factory=lambda: deque(maxlen=_EPOCHS_MAX))
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        self.rows = min(self.rows_first, self.rows_most)

    def reset(self) -> None:
        """Note that the query restarted: its first epochs are slow again."""
        self._seen = 0

    def take(self, epoch: EpochTiming) -> int:
        """Return how many rows the next epoch may take from a source, after this one."""
        if epoch.rows == 0:
            if epoch.is_full:  # offsets without events, of aborted transactions: they need no care
                self._change(_GROWTH_MAX)
            return self.rows
        if epoch.seconds <= 0:  # less than a millisecond, or not reported: the cost of a row is unknown
            return self.rows
        self._seen += 1
        if self._seen <= _COLD:
            return self.rows
        self._epochs.append(epoch)
        fixed, each = self._costs()
        for_rows = max(self.target_seconds - fixed, fixed, self.target_seconds * _TOLERATED)
        # If there are several sources, each has its part of an epoch, and one factor changes all of them.
        factor = min(_GROWTH_MAX, for_rows / (each * epoch.rows))
        if epoch.is_full and self._is_in_the_dark(epoch):
            self._change(0.5)
        elif epoch.is_full and abs(epoch.seconds - fixed - for_rows) > self.target_seconds * _TOLERATED:
            self._change(factor)
        elif epoch.rows > self.rows / 2 and epoch.seconds > self.target_seconds * (1 + _TOLERATED) + fixed:
            self._change(min(1.0, factor))  # it took all rows that there were, and they were too many
        return self.rows

    def _change(self, factor: float) -> None:
        self.rows = max(_ROWS_MIN, min(self.rows_most, round(self.rows * factor)))

    def _is_in_the_dark(self, epoch: EpochTiming) -> bool:
        """Are epochs too long, and do all remembered ones have one size?"""
        is_long = epoch.seconds > self.target_seconds * (1 + _TOLERATED)
        return is_long and len(self._epochs) == _EPOCHS_MAX and not self._slopes()

    def _slopes(self) -> list[float]:
        """The seconds of a row, from each two epochs of different sizes."""
        return [
            (one.seconds - other.seconds) / (one.rows - other.rows)
            for one, other in combinations(self._epochs, 2)
            if abs(one.rows - other.rows) > _ALIKE * max(one.rows, other.rows)
        ]

    def _costs(self) -> tuple[float, float]:
        """The seconds of an epoch without rows, and the seconds of each row: the line through the last epochs.

        It uses medians, because a machine that is busy for a moment makes a few epochs much too long.
        """
        slopes = self._slopes()
        if slopes:
            each = median(slopes)
            self._fixed = median(one.seconds - each * one.rows for one in self._epochs)
        rows = sum(one.rows for one in self._epochs) / len(self._epochs)
        seconds = sum(one.seconds for one in self._epochs) / len(self._epochs)
        self._fixed = min(max(self._fixed, 0.0), 0.95 * seconds)
        return self._fixed, (seconds - self._fixed) / rows
