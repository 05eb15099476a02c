"""The server of a driver serves workers, whatever unknown clients send to it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

import pytest

from lockgate.serving.acceptor import strangers_max
from lockgate.serving.rpc import HELLO, RpcServer, call

_ANSWER_SECONDS = 15.0


def welcome(connection: Connection[Any, Any]) -> None:
    connection.send_bytes(b"welcome")
    connection.recv_bytes()  # until the worker hangs up


@pytest.fixture
def server() -> Iterator[RpcServer]:
    opened = RpcServer(welcome, name="test", host="127.0.0.1", bind="127.0.0.1")
    yield opened
    opened.close()


def greet(server: RpcServer) -> bytes:
    with call(server.address, seconds=_ANSWER_SECONDS) as connection:
        assert connection.poll(_ANSWER_SECONDS)
        return connection.recv_bytes()


def test_strangers_that_begin_a_handshake_and_say_no_more_keep_no_worker_out(server: RpcServer) -> None:
    with ExitStack() as ends:
        for _ in range(strangers_max() + 50):
            stranger = ends.enter_context(socket.create_connection(("127.0.0.1", server.address.port)))
            stranger.sendall(HELLO)
        assert greet(server) == b"welcome"


def test_a_worker_that_is_known_stays_when_strangers_need_room(server: RpcServer) -> None:
    with ExitStack() as ends, call(server.address, seconds=_ANSWER_SECONDS) as connection:
        assert connection.recv_bytes() == b"welcome"
        for _ in range(strangers_max() + 50):
            stranger = ends.enter_context(socket.create_connection(("127.0.0.1", server.address.port)))
            stranger.sendall(HELLO)
        assert greet(server) == b"welcome"
        connection.send_bytes(b"still here")
        assert connection.poll(_ANSWER_SECONDS)
        with pytest.raises(EOFError):  # it was heard: the server has said all it had to say
            connection.recv_bytes()
