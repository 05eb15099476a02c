"""A port of the driver's own, for what workers have to ask or to tell while a task runs.

A caller says HELLO. Then both sides prove that they know a secret which travels with the work: a challenge, answered
with a keyed digest, both ways. Only then is anything else read that the other side has sent; before, it is a stranger
(reception.py).
"""

from __future__ import annotations

import secrets
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

from lockgate.serving.reception import BACKLOG, Reception, Visit

HELLO = b"lockgate door 1\n"
"""What a caller says first, so that one who only connects costs no thread."""

_HANDSHAKE_SECONDS = 20.0

GONE = (OSError, EOFError, AuthenticationError)
"""What a connection raises whose other end is gone, or is none of ours."""

_NONSENSE = (ValueError, KeyError, TypeError, OverflowError, RecursionError)

Serve = Callable[["Connection[Any, Any]"], None]


@dataclass(frozen=True)
class Address:
    """Where the door is, and the secret that opens it; travels to the workers."""

    host: str
    port: int
    secret: bytes

    def __repr__(self) -> str:
        return f"Address({self.host}:{self.port})"


class Door:
    """The driver's listener; `serve` gets each caller that knows the secret, in a thread of its own."""

    def __init__(self, serve: Serve, *, name: str, host: str, bind: str) -> None:
        self._secret = secrets.token_bytes(32)
        self._serve_known = serve
        self._listening = socket.create_server((bind, 0), backlog=BACKLOG)
        self.address = Address(host=host, port=int(self._listening.getsockname()[1]), secret=self._secret)
        self._reception = Reception(
            self._listening,
            is_whole=lambda said: len(said) >= len(HELLO) or not HELLO.startswith(said),
            serve=self._let_in,
            name=name,
            seconds=_HANDSHAKE_SECONDS,
        )

    def close(self) -> None:
        """Accept no more connections, and end those that are open."""
        self._reception.close()
        self._listening.close()

    def _let_in(self, visit: Visit) -> bool:
        if visit.said != HELLO:
            return False
        # A machine that vanishes with its connection open is noticed, after hours.
        visit.line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        visit.line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection: Connection[Any, Any] = Connection(visit.line.detach())
        try:
            with suppress(*GONE, *_NONSENSE):
                deliver_challenge(connection, self._secret)
                answer_challenge(connection, self._secret)
                visit.know()
                self._serve_known(connection)
        finally:
            visit.leave()
            connection.close()
        return False


def call(address: Address, *, seconds: float) -> Connection[Any, Any]:
    """A connection to a door.

    A firewall that swallows everything, a driver that stands still, or a stranger at its port takes no longer than
    `seconds` for each step.
    """
    with socket.create_connection((address.host, address.port), timeout=seconds) as opened:
        opened.settimeout(None)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _limit(opened, seconds)
        opened.sendall(HELLO)
        connection: Connection[Any, Any] = Connection(opened.detach())
    try:
        answer_challenge(connection, address.secret)
        deliver_challenge(connection, address.secret)
        line = socket.socket(fileno=connection.fileno())
        try:
            _limit(line, 0)  # from now on whoever asks says how long it waits
        finally:
            line.detach()
    except BaseException:
        connection.close()
        raise
    return connection


def _limit(line: socket.socket, seconds: float) -> None:
    """Let the system end a read or a write that takes longer: a Connection has no time-out of its own."""
    limit = struct.pack("@ll", int(seconds), int(seconds % 1 * 1_000_000))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        line.setsockopt(socket.SOL_SOCKET, option, limit)
