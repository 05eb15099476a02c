"""The door of a driver opens for workers, whatever strangers say at it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

import pytest

from lockgate.serving.door import HELLO, Door, call
from lockgate.serving.reception import strangers_max

_ANSWER_SECONDS = 15.0


def welcome(connection: Connection[Any, Any]) -> None:
    connection.send_bytes(b"welcome")
    connection.recv_bytes()  # until the worker hangs up


@pytest.fixture
def door() -> Iterator[Door]:
    opened = Door(welcome, name="test", host="127.0.0.1", bind="127.0.0.1")
    yield opened
    opened.close()


def greet(door: Door) -> bytes:
    with call(door.address, seconds=_ANSWER_SECONDS) as connection:
        assert connection.poll(_ANSWER_SECONDS)
        return connection.recv_bytes()


def test_strangers_that_begin_a_handshake_and_say_no_more_keep_no_worker_out(door: Door) -> None:
    with ExitStack() as ends:
        for _ in range(strangers_max() + 50):
            stranger = ends.enter_context(socket.create_connection(("127.0.0.1", door.address.port)))
            stranger.sendall(HELLO)
        assert greet(door) == b"welcome"


def test_a_worker_that_is_known_stays_when_strangers_need_room(door: Door) -> None:
    with ExitStack() as ends, call(door.address, seconds=_ANSWER_SECONDS) as connection:
        assert connection.recv_bytes() == b"welcome"
        for _ in range(strangers_max() + 50):
            stranger = ends.enter_context(socket.create_connection(("127.0.0.1", door.address.port)))
            stranger.sendall(HELLO)
        assert greet(door) == b"welcome"
        connection.send_bytes(b"still here")
        assert connection.poll(_ANSWER_SECONDS)
        with pytest.raises(EOFError):  # it was heard: the door has said all it had to say
            connection.recv_bytes()
