"""Where the endpoints of a job move if it runs on other systems than the user's: for a proof or a comparison.

Each endpoint moves itself, by its method `relocate`. It asks for a place for each place that it has, and returns itself
with the new ones. The same place of the user always becomes the same new place, and two places stay two places.

An endpoint that keeps an address of the user would let a proof break the user's systems. So a class is refused unless
it defines `relocate` itself: a subclass may use more than the class that it inherits from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockgate.errors import Refused


class Relocation(ABC):
    """The systems that an endpoint can use in place of the user's."""

    is_traced: bool = False
    """Do rows say which event they come from, if the sink can add that?"""

    transaction_timeout_ms: int | None = None
    """The time-out of Kafka's transactions, if it must differ from the user's."""

    @abstractmethod
    def topic(self, servers: str, name: str) -> tuple[str, str]:
        """The servers and the name of the topic that replaces this one."""

    @abstractmethod
    def path(self, path: str) -> str:
        """The path that replaces this path of a file or directory; nothing is there yet."""

    @abstractmethod
    def table(self, dsn: str, table: str) -> tuple[str, str]:
        """The dsn and the name of the table of PostgreSQL that replaces this one; it does not exist yet."""

    @abstractmethod
    def refusal(self, what: str, *, fix: str) -> Refused:
        """The error for an endpoint that cannot move; `what` continues its name: `writes into ...`."""
