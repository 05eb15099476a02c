"""How rows travel from the tasks of one step to the tasks of the next.

    forward      a row stays in the task that made it; nothing moves
    broadcast    every task of the next step gets every row
    by key       rows that agree in the key columns meet in one task
    random       rows are dealt out evenly, one after the other

The planner chooses an exchange for every edge; an author may impose one with `.exchange(...)`.
"""

from dataclasses import dataclass
from enum import Enum


class Strategy(Enum):
    """The four ways of an edge."""

    FORWARD = "forward"
    BROADCAST = "broadcast"
    BY_KEY = "by key"
    RANDOM = "random"


@dataclass(frozen=True)
class Exchange:
    """One strategy, with the key columns where it goes by key."""

    strategy: Strategy
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"by key ({', '.join(self.keys)})" if self.keys else self.strategy.value


def forward() -> Exchange:
    """Rows stay in their task."""
    return Exchange(strategy=Strategy.FORWARD)


def broadcast() -> Exchange:
    """Every task of the next step gets every row."""
    return Exchange(strategy=Strategy.BROADCAST)


def by_key(*names: str) -> Exchange:
    """Rows that agree in the named columns meet in one task."""
    return Exchange(strategy=Strategy.BY_KEY, keys=names)


def random() -> Exchange:
    """Rows are dealt out evenly."""
    return Exchange(strategy=Strategy.RANDOM)
