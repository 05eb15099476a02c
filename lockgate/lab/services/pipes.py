"""One connection through a proxy: what was read from each end and is not yet written to the other.

An inspector may read along, and rules on how much of a reply passes.
"""

from __future__ import annotations

import enum
import socket
import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

QUEUED_BYTES_MAX = 8_000_000
"""How much of one direction may wait here; the sender is not read from beyond that, so a long delay eats no memory."""


class Direction(enum.Flag):
    """Which way bytes go."""

    NEITHER = 0
    TO_SERVER = enum.auto()
    TO_CLIENT = enum.auto()
    BOTH = TO_SERVER | TO_CLIENT


@dataclass(frozen=True)
class Ruling:
    """So many bytes of a reply pass and the rest is swallowed; then the connection is reset, or not."""

    passing_bytes: int
    is_reset: bool = False


class NotUnderstood(Exception):
    """The bytes are not of the protocol that an inspector reads: no fault can be aimed, the connection is reset."""


class Inspector(Protocol):
    """Reads along on one connection and rules on replies; in the proxy's thread, so it must not wait for anything."""

    def request(self, data: bytes) -> None:
        """Hear what the client says; it passes."""

    def reply(self, data: bytes) -> Ruling:
        """Hear what the server says, and rule on it."""

    def close(self) -> None:
        """The connection is over."""


class State(enum.Enum):
    WAITING = "the server is not called yet"
    CALLING = "the server is called"
    OPEN = "both ends are there"
    OVER = "closed"


class Mark(enum.Enum):
    """What may come behind the last bytes of a direction."""

    END = "its sender has said all"
    RESET = "from here on the connection is reset"


class Pipe:
    """One direction of a connection: what was read from its source and has not been written to its sink."""

    def __init__(
        self, connection: Connection, direction: Direction, source: socket.socket, sink: socket.socket
    ) -> None:
        self.connection, self.direction, self.source, self.sink = connection, direction, source, sink
        self.pieces: deque[tuple[float, memoryview | Mark]] = deque()  # with the time of their coming
        self.source_events = 0  # for which the source is watched now
        self.is_blocked = False  # the sink takes no more for now
        self.is_ended = False  # nothing more is read
        self.is_over = False  # and the sink knows it
        self._queued_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether no more may be taken in for now."""
        return self._queued_bytes >= QUEUED_BYTES_MAX

    def put(self, data: bytes) -> None:
        """Take in a piece."""
        self.pieces.append((time.monotonic(), memoryview(data)))
        self._queued_bytes += len(data)

    def end(self, mark: Mark) -> None:
        """Take in nothing more behind this."""
        self.pieces.append((time.monotonic(), mark))
        self.is_ended = True

    def take(self, count: int) -> None:
        """Let go of the first bytes of the first piece."""
        came, piece = self.pieces.popleft()
        if isinstance(piece, memoryview) and count < len(piece):
            self.pieces.appendleft((came, piece[count:]))
        self._queued_bytes -= count


class Connection:
    """A client, the server it is connected to, and the two directions between them."""

    def __init__(self, client: socket.socket, server: socket.socket, inspector: Inspector | None) -> None:
        self.client, self.server, self.inspector = client, server, inspector
        self.state = State.WAITING
        self.requests = Pipe(self, Direction.TO_SERVER, client, server)
        self.replies = Pipe(self, Direction.TO_CLIENT, server, client)

    @property
    def pipes(self) -> tuple[Pipe, Pipe]:
        """Both directions."""
        return self.requests, self.replies
