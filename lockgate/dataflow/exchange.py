"""How rows travel from the tasks of one step to the tasks of the next.

    forward      a row stays in the task that made it; nothing moves
    broadcast    every task of the next step gets every row
    by key       rows that agree in the key columns meet in one task
    random       rows are distributed evenly, one after the other

The planner chooses an exchange for every edge; a user may impose one with `.exchange(...)`.
"""

from dataclasses import dataclass
from enum import Enum

__all__ = ["broadcast", "by_key", "forward", "random"]


class Strategy(Enum):
    """The four ways of an edge."""

    FORWARD = "forward"
    BROADCAST = "broadcast"
    BY_KEY = "by key"
    RANDOM = "random"


@dataclass(frozen=True)
class Exchange:
    """One strategy, with the key columns if it is by key."""

    strategy: Strategy
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"by key ({', '.join(self.keys)})" if self.keys else self.strategy.value


def forward() -> Exchange:
    """Keep every row in the task that made it.

    >>> print(forward())
    forward
    """
    return Exchange(strategy=Strategy.FORWARD)


def broadcast() -> Exchange:
    """Send every row to every task of the next step.

    >>> print(broadcast())
    broadcast
    """
    return Exchange(strategy=Strategy.BROADCAST)


def by_key(*names: str) -> Exchange:
    """Send rows that agree in columns to the same task.

    Args:
        names: the columns.

    >>> print(by_key("ip", "url"))
    by key (ip, url)
    """
    return Exchange(strategy=Strategy.BY_KEY, keys=names)


def random() -> Exchange:
    """Deal the rows out evenly, one after the other.

    >>> print(random())
    random
    """
    return Exchange(strategy=Strategy.RANDOM)
