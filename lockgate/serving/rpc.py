"""A port of the driver, for the questions and reports of workers while a task runs.

A caller sends HELLO. Then both sides prove that they know a secret that travels with the work: each answers a challenge
with a keyed digest. Only then does a side read anything else from the other; until then the caller is a stranger
(acceptor.py).
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

from lockgate.serving.acceptor import BACKLOG, Acceptor, Client

HELLO = b"lockgate door 1\n"
"""The first bytes of a caller, so that a caller that only connects costs no thread."""

_HANDSHAKE_SECONDS = 20.0

GONE = (OSError, EOFError, AuthenticationError)
"""The errors of a connection whose other end is gone, or is not ours."""

_NONSENSE = (ValueError, KeyError, TypeError, OverflowError, RecursionError)

Serve = Callable[["Connection[Any, Any]"], None]


@dataclass(frozen=True)
class Address:
    """The address of the server, and the secret that it demands; travels to the workers."""

    host: str
    port: int
    secret: bytes

    def __repr__(self) -> str:
        return f"Address({self.host}:{self.port})"


class RpcServer:
    """The driver's listener; `serve` gets each caller that knows the secret, in its own thread."""

    def __init__(self, serve: Serve, *, name: str, host: str, bind: str) -> None:
        self._secret = secrets.token_bytes(32)
        self._serve_known = serve
        self._listening = socket.create_server((bind, 0), backlog=BACKLOG)
        self.address = Address(host=host, port=int(self._listening.getsockname()[1]), secret=self._secret)
        self._acceptor = Acceptor(
            self._listening,
            is_whole=lambda said: len(said) >= len(HELLO) or not HELLO.startswith(said),
            serve=self._let_in,
            name=name,
            seconds=_HANDSHAKE_SECONDS,
            yields=True,
        )

    def close(self) -> None:
        """Accept no more connections, and end those that are open."""
        self._acceptor.close()
        self._listening.close()

    def _let_in(self, client: Client) -> bool:
        if client.said != HELLO:
            return False
        # Keep-alive notices, after hours, a machine that vanished with its connection open.
        client.line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        client.line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection: Connection[Any, Any] = Connection(client.line.detach())
        try:
            with suppress(*GONE, *_NONSENSE):
                deliver_challenge(connection, self._secret)
                _answer(connection, self._secret)
                client.know()
                self._serve_known(connection)
        finally:
            client.leave()
            connection.close()
        return False


def call(address: Address, *, seconds: float) -> Connection[Any, Any]:
    """Open a connection to a server.

    Each step takes at most `seconds`: also if a firewall drops everything, the driver hangs, or a stranger listens at
    its port.
    """
    with socket.create_connection((address.host, address.port), timeout=seconds) as opened:
        opened.settimeout(None)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _limit(opened, seconds)
        opened.sendall(HELLO)
        connection: Connection[Any, Any] = Connection(opened.detach())
    try:
        _answer(connection, address.secret)
        deliver_challenge(connection, address.secret)
        line = socket.socket(fileno=connection.fileno())
        try:
            _limit(line, 0)  # from now on each request sets its own limit
        finally:
            line.detach()
    except BaseException:
        connection.close()
        raise
    return connection


def _answer(connection: Connection[Any, Any], secret: bytes) -> None:
    try:
        answer_challenge(connection, secret)
    except AssertionError:  # what Python 3.11 says where the other side does not begin with a challenge
        raise AuthenticationError("it is another program that listens there") from None


def _limit(line: socket.socket, seconds: float) -> None:
    """Let the system end a read or a write that takes longer: a Connection has no time-out of its own."""
    limit = struct.pack("@ll", int(seconds), int(seconds % 1 * 1_000_000))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        line.setsockopt(socket.SOL_SOCKET, option, limit)
