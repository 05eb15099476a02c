"""How much an epoch takes, so that it lasts about as long as its author wants.

An epoch costs something however few events it has (planning, state, the commit), and something for each event. Both are
learnt from the last epochs, and the next one takes as many events as fit into the time that is left:

    target 1 s, 0.4 s for nothing, 2 us an event     ->  300,000 events
    target 1 s, 3 s for nothing                      ->  as many as take another 3 s: fewer would only waste the time

Only an epoch that was full says how many fit; one that took all that there was says what it cost. The first epochs of
a start are slow because everything is new, and say nothing. More is taken by steps, at most twice as much at once, so
that a wrong guess costs little; less at once. Epochs of one size do not tell the two costs apart, so one that takes too
long for ever could be taken for one that is dear without events: half as many are tried then, and tell.

The law: a job that is far behind takes no more into memory than one that keeps up, because it takes no more at once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median

_EPOCHS_MAX = 12  # that are remembered: what an event costs changes with the hour
_COLD = 2
_GROWTH_MAX = 2.0
_ROWS_MIN = 100
_TOLERATED = 0.2  # by so much an epoch may miss its target before anything is changed
_ALIKE = 0.1  # epochs whose rows differ by less than this part are of one size


@dataclass(frozen=True)
class Took:
    """What one epoch took, and how long."""

    rows: int
    seconds: float
    is_full: bool  # was there more to take?


@dataclass
class Pace:
    """How many rows the next epoch may take of a source; one number for all sources of a job."""

    target_seconds: float
    rows_first: int
    rows_most: int
    _seen: int = 0
    _fixed: float = 0.0
    _epochs: deque[Took] = field(default_factory=lambda: deque(maxlen=_EPOCHS_MAX))
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        self.rows = min(self.rows_first, self.rows_most)

    def begin_anew(self) -> None:
        """The query was started again: its first epochs are slow once more."""
        self._seen = 0

    def take(self, epoch: Took) -> int:
        """How many rows the next epoch may take of a source, after this one."""
        if epoch.rows == 0:
            if epoch.is_full:  # offsets without events, of transactions that were aborted: nothing to be careful with
                self._change(_GROWTH_MAX)
            return self.rows
        if epoch.seconds <= 0:  # less than a millisecond, or not reported: what a row costs is unknown
            return self.rows
        self._seen += 1
        if self._seen <= _COLD:
            return self.rows
        self._epochs.append(epoch)
        fixed, each = self._costs()
        for_rows = max(self.target_seconds - fixed, fixed, self.target_seconds * _TOLERATED)
        # Of several sources each has its part of an epoch; by how much all of them change is one factor.
        factor = min(_GROWTH_MAX, for_rows / (each * epoch.rows))
        if epoch.is_full and self._is_in_the_dark(epoch):
            self._change(0.5)
        elif epoch.is_full and abs(epoch.seconds - fixed - for_rows) > self.target_seconds * _TOLERATED:
            self._change(factor)
        elif epoch.rows > self.rows / 2 and epoch.seconds > self.target_seconds * (1 + _TOLERATED) + fixed:
            self._change(min(1.0, factor))  # it took all that there was, and that was too much
        return self.rows

    def _change(self, factor: float) -> None:
        self.rows = max(_ROWS_MIN, min(self.rows_most, round(self.rows * factor)))

    def _is_in_the_dark(self, epoch: Took) -> bool:
        """Do epochs take too long, and all that are remembered are of one size?"""
        is_long = epoch.seconds > self.target_seconds * (1 + _TOLERATED)
        return is_long and len(self._epochs) == _EPOCHS_MAX and not self._slopes()

    def _slopes(self) -> list[float]:
        """The seconds of a row, by any two epochs of different sizes."""
        return [
            (one.seconds - other.seconds) / (one.rows - other.rows)
            for one, other in combinations(self._epochs, 2)
            if abs(one.rows - other.rows) > _ALIKE * max(one.rows, other.rows)
        ]

    def _costs(self) -> tuple[float, float]:
        """The seconds of an epoch without rows, and those of each row: the line through the last epochs.

        By medians, because a machine that is busy with something else for a moment makes a few epochs much too long.
        """
        slopes = self._slopes()
        if slopes:
            each = median(slopes)
            self._fixed = median(one.seconds - each * one.rows for one in self._epochs)
        rows = sum(one.rows for one in self._epochs) / len(self._epochs)
        seconds = sum(one.seconds for one in self._epochs) / len(self._epochs)
        self._fixed = min(max(self._fixed, 0.0), 0.95 * seconds)
        return self._fixed, (seconds - self._fixed) / rows
