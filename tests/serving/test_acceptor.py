"""Strangers have little time and little room, and who has said all is served."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from lockgate.serving.acceptor import Acceptor, Client, strangers_max
from support.flood import count_open
from support.waiting import wait_for

_LINE_SECONDS = 60.0

Opened = tuple[Acceptor, Callable[[], socket.socket]]
Open = Callable[..., Opened]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Make an acceptor that echoes lines, and whoever calls it."""
    with ExitStack() as ends:

        def open_one(seconds: float = 300.0, serve: Callable[[Client], bool] = echo) -> Opened:
            listening = ends.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1024))
            place = listening.getsockname()
            acceptor = Acceptor(
                listening, is_whole=lambda said: b"\n" in said, serve=serve, name="test", seconds=seconds
            )
            ends.callback(acceptor.close)
            return acceptor, lambda: ends.enter_context(socket.create_connection(place, timeout=_LINE_SECONDS))

        yield open_one


def echo(client: Client) -> bool:
    line, _, client.said = client.said.partition(b"\n")
    client.line.sendall(line + b"\n")
    return True


def test_a_connection_is_served_again_and_again_and_also_what_it_said_at_once(opened: Open) -> None:
    _, call = opened()
    caller = call()
    with caller.makefile("rb") as heard:
        for said in (b"one\n", b"two\nthree\n", b"fo", b"ur\n"):
            caller.sendall(said)
        assert [heard.readline() for _ in range(4)] == [b"one\n", b"two\n", b"three\n", b"four\n"]


def test_a_drip_does_not_lengthen_the_deadline(opened: Open) -> None:
    acceptor, call = opened(seconds=0.2)
    caller = call()

    def is_over() -> bool:
        try:
            caller.send(b"x")
        except OSError:
            return True
        return acceptor.count == 0

    wait_for("the end of the connection", is_over)
    assert count_open([caller], seconds=_LINE_SECONDS) == 0


def test_the_oldest_are_dropped_and_the_newest_is_served(opened: Open) -> None:
    acceptor, call = opened()
    silent = [call() for _ in range(strangers_max() + 50)]
    newest = call()
    newest.sendall(b"here\n")
    assert newest.recv(100) == b"here\n"
    wait_for("the first to be dropped", lambda: acceptor.count <= strangers_max())
    silent[-1].sendall(b"late\n")
    assert silent[-1].recv(100) == b"late\n"
    assert count_open(silent[:50], seconds=_LINE_SECONDS) == 0


def test_a_known_client_does_not_count(opened: Open) -> None:
    is_over = threading.Event()

    def keep(client: Client) -> bool:
        client.know()
        client.line.sendall(b"known\n")
        is_over.wait()
        return False

    acceptor, call = opened(serve=keep)
    count = strangers_max() + 10
    for _ in range(count):
        friend = call()
        friend.sendall(b"hello\n")
        assert friend.recv(100) == b"known\n"
    assert acceptor.count == count
    is_over.set()


def test_stopping_keeps_the_socket_and_its_connections(opened: Open) -> None:
    acceptor, call = opened()
    early = call()
    early.sendall(b"early\n")
    assert early.recv(100) == b"early\n"
    acceptor.stop()
    queued = call()  # waits in the queue of the system for whoever takes over
    early.sendall(b"again\n")
    assert early.recv(100) == b"again\n"
    assert acceptor.count == 1
    assert count_open([queued], seconds=0.0) == 1


def test_closing_ends_all(opened: Open) -> None:
    acceptor, call = opened()
    callers = [call() for _ in range(3)]
    callers[0].sendall(b"one\n")
    assert callers[0].recv(100) == b"one\n"
    acceptor.close()
    assert not [thread.name for thread in threading.enumerate() if thread.name == "test"], "its thread lives on"
    assert count_open(callers, seconds=_LINE_SECONDS) == 0
