"""A model of Spark's checkpoint: it logs the content of an epoch before the write, and the end after it.

Each log entry is a file that is published whole and only once. So after a crash it exists or not, and if two queries
use one checkpoint, the second to write an entry stops.
"""

from __future__ import annotations

from lockgate.commit.protocol import Epoch

QUERY = "query"


class ConcurrentUpdate(Exception):
    """Another query has written this entry of the log."""


class Checkpoint:
    """The offset log and the commit log of one query."""

    def __init__(self) -> None:
        self.ends: list[int] = []  # of each epoch planned: the first row that is not in it
        self.done: set[int] = set()

    @property
    def next(self) -> int:
        """The epoch that a query which starts now begins with: the last one planned, unless it is done."""
        last = len(self.ends) - 1
        return last if last >= 0 and last not in self.done else last + 1

    def plan(self, number: int, size: int) -> None:
        """Log the offsets of an epoch."""
        if number != len(self.ends):
            raise ConcurrentUpdate(f"offsets/{number}")
        self.ends.append(self.start(number) + size)

    def finish(self, number: int) -> None:
        """Log that an epoch is done."""
        if number in self.done:
            raise ConcurrentUpdate(f"commits/{number}")
        self.done.add(number)

    def start(self, number: int) -> int:
        """The first row of an epoch."""
        return self.ends[number - 1] if number else 0

    def rows(self, number: int) -> range:
        """The rows of an epoch."""
        return range(self.start(number), self.ends[number])

    def epoch(self, number: int) -> Epoch:
        """An epoch as the coordinator gets it."""
        return Epoch(number, self._digest(number), self._digest(number - 1) if number else None, QUERY)

    def _digest(self, number: int) -> str:
        return f"{number}:{self.ends[number]}"
