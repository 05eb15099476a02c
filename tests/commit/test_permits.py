"""Permits, and the server through which tasks ask for them, over real sockets on the loopback interface."""

import json
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection
from typing import Any

import pytest

from lockgate.commit.permits import Caller, Permits, PermitServer, Refusal
from lockgate.errors import EpochFailed
from lockgate.serving.rpc import HELLO, Address, call
from support.waiting import wait_for

A, B, C = ("out", 0), ("out", 1), ("other", 0)


@pytest.fixture
def permits() -> Permits:
    return Permits()


@pytest.fixture
def server(permits: Permits) -> Iterator[PermitServer]:
    server = PermitServer(permits, host="127.0.0.1", bind="127.0.0.1")
    yield server
    server.close()


@pytest.fixture
def caller(server: PermitServer) -> Iterator[Caller]:
    caller = Caller(server.address)
    yield caller
    hang_up(caller)


def hang_up(caller: Caller) -> None:
    if caller._connection is not None:
        caller._connection.close()


def heard(connection: Any) -> Iterator[bytes]:
    """What comes until the line is dead."""
    with suppress(EOFError, OSError):
        while True:
            yield connection.recv_bytes()


# ---- who may write what


def test_a_partition_is_given_once_per_try_and_again_only_to_the_same_attempt(permits: Permits) -> None:
    name = permits.open()
    assert permits.ask(name, task=0, attempt=10, places=[A, B]) is None
    assert permits.ask(name, task=0, attempt=10, places=[A]) is None
    assert permits.ask(name, task=0, attempt=10, places=[C]) is None
    assert permits.granted == {A: 10, B: 10, C: 10}


def test_a_second_attempt_of_a_task_is_refused_and_is_no_clash(permits: Permits) -> None:
    name = permits.open()
    permits.ask(name, task=0, attempt=10, places=[A])
    assert permits.ask(name, task=0, attempt=11, places=[A]) == Refusal(
        "task 0 had a permit before, as attempt 10, and may have written", is_clash=False
    )
    other = permits.ask(name, task=0, attempt=11, places=[C])
    assert other is not None  # nor for a partition that nobody holds: the first attempt's rows may be out


def test_another_task_with_rows_of_the_partition_is_a_clash(permits: Permits) -> None:
    name = permits.open()
    permits.ask(name, task=0, attempt=10, places=[A])
    refusal = permits.ask(name, task=1, attempt=11, places=[A])
    assert refusal is not None
    assert refusal.is_clash


def test_all_partitions_are_given_or_none(permits: Permits) -> None:
    name = permits.open()
    permits.ask(name, task=0, attempt=10, places=[B])
    assert permits.ask(name, task=1, attempt=11, places=[A, B, C]) is not None
    assert permits.granted == {B: 10}
    assert permits.ask(name, task=2, attempt=12, places=[A, C]) is None


def test_a_try_that_is_over_gives_none(permits: Permits) -> None:
    old = permits.open()
    permits.ask(old, task=0, attempt=10, places=[A])
    new = permits.open()
    refusal = permits.ask(old, task=0, attempt=10, places=[A])
    assert refusal == Refusal("the try that this task belongs to is over", is_clash=False)
    assert permits.granted == {}
    assert permits.ask(new, task=1, attempt=11, places=[A]) is None
    permits.close()
    assert permits.ask(new, task=1, attempt=11, places=[A]) is not None


def test_no_try_has_the_name_of_another(permits: Permits) -> None:
    assert len({permits.open() for _ in range(100)}) == 100


def test_what_was_granted_is_known_after_the_try_is_closed(permits: Permits) -> None:
    name = permits.open()
    permits.ask(name, task=0, attempt=10, places=[A])
    permits.close()
    assert permits.granted == {A: 10}


def test_the_first_failure_of_the_open_try_wins(permits: Permits) -> None:
    old = permits.open()
    permits.tell(old, "of the old try")
    name = permits.open()
    assert permits.failure is None
    permits.tell(old, "too late")
    permits.tell(name, "first")
    permits.tell(name, "second")
    assert permits.failure == "first"


def test_a_try_is_as_old_as_its_first_permit() -> None:
    clock = [100.0]
    permits = Permits(now=lambda: clock[0])
    name = permits.open()
    clock[0] = 200.0
    assert permits.held_seconds() == 0.0
    permits.ask(name, task=0, attempt=10, places=[A])
    clock[0] = 230.0
    permits.ask(name, task=1, attempt=11, places=[B])
    clock[0] = 250.0
    assert permits.held_seconds() == 50.0
    permits.open()
    assert permits.held_seconds() == 0.0


# ---- the server


def test_a_task_asks_through_the_server(permits: Permits, caller: Caller) -> None:
    name = permits.open()
    assert caller.ask(name, task=0, attempt=2**40, places=[A, B]) is None
    assert caller.ask(name, task=0, attempt=2**40, places=[A]) is None
    assert permits.granted == {A: 2**40, B: 2**40}
    assert caller.ask(name, task=0, attempt=11, places=[A]) == Refusal(
        f"task 0 had a permit before, as attempt {2**40}, and may have written", is_clash=False
    )
    clash = caller.ask(name, task=1, attempt=12, places=[B, C])
    assert clash is not None
    assert clash.is_clash
    over = caller.ask("an old try", task=1, attempt=12, places=[C])
    assert over is not None
    assert "over" in over.reason


def test_a_failure_is_reported_through_the_server(permits: Permits, caller: Caller) -> None:
    name = permits.open()
    caller.tell(name, "first: naïve ∑\n" + "x" * 100_000)
    caller.tell(name, "second")
    assert permits.failure is not None
    assert permits.failure.startswith("first: naïve ∑\n")


def test_of_many_tasks_that_ask_at_once_one_gets_each_partition(permits: Permits, server: PermitServer) -> None:
    name = permits.open()
    places = [("out", number) for number in range(8)]

    def ask(task: int) -> list[int]:
        caller = Caller(server.address)
        got = [place[1] for place in places if caller.ask(name, task=task, attempt=task, places=[place]) is None]
        hang_up(caller)
        return got

    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(ask, range(16)))
    assert sorted(number for one in got for number in one) == list(range(8))
    assert permits.granted == {place: task for task, one in enumerate(got) for place in places if place[1] in one}


def test_a_connection_serves_many_calls(permits: Permits, server: PermitServer, caller: Caller) -> None:
    name = permits.open()
    caller.ask(name, task=0, attempt=10, places=[A])
    first = caller._connection
    for _ in range(50):
        caller.ask(name, task=0, attempt=10, places=[A])
    assert caller._connection is first
    assert server._acceptor.count == 1


def test_a_connection_that_broke_is_made_again_without_a_word(permits: Permits, caller: Caller) -> None:
    name = permits.open()
    assert caller.ask(name, task=0, attempt=10, places=[A]) is None
    first = caller._connection
    assert first is not None
    with socket.fromfd(first.fileno(), socket.AF_INET, socket.SOCK_STREAM) as wire:
        wire.shutdown(socket.SHUT_RDWR)
    assert caller.ask(name, task=0, attempt=10, places=[A]) is None, "the same attempt: granted again"
    assert caller._connection is not first
    assert caller.ask(name, task=0, attempt=11, places=[A]) is not None


def test_a_server_that_is_gone_is_reported_with_its_address_and_the_likely_causes(permits: Permits) -> None:
    server = PermitServer(permits, host="127.0.0.1", bind="127.0.0.1")
    caller = Caller(server.address)
    name = permits.open()
    assert caller.ask(name, task=0, attempt=10, places=[A]) is None
    server.close()
    with pytest.raises(EpochFailed, match=f"does not answer at 127.0.0.1:{server.address.port}") as caught:
        caller.ask(name, task=0, attempt=10, places=[B])
    assert "firewall" in caught.value.fix
    assert permits.granted == {A: 10}
    caller.tell(name, "nobody wants to know")
    assert permits.failure is None


def test_a_server_that_came_back_at_its_address_is_found_again(permits: Permits) -> None:
    server = PermitServer(permits, host="127.0.0.1", bind="127.0.0.1")
    caller = Caller(server.address)
    name = permits.open()
    assert caller.ask(name, task=0, attempt=10, places=[A]) is None
    server.close()
    again = PermitServer(permits, host="127.0.0.1", bind="127.0.0.1")
    caller._address = Address("127.0.0.1", again.address.port, again.address.secret)
    assert caller.ask(name, task=0, attempt=10, places=[A]) is None
    hang_up(caller)
    again.close()


def test_closing_the_server_ends_its_thread(permits: Permits) -> None:
    before = set(threading.enumerate())
    server = PermitServer(permits, host="127.0.0.1", bind="127.0.0.1")
    mine = [thread for thread in threading.enumerate() if thread not in before]
    assert mine
    server.close()
    wait_for("the end of its threads", lambda: set(mine).isdisjoint(threading.enumerate()))


# ---- strangers


def test_a_caller_without_the_secret_gets_nothing(permits: Permits, server: PermitServer) -> None:
    name = permits.open()
    stranger = Caller(Address(server.address.host, server.address.port, b"guess"))
    with pytest.raises(EpochFailed, match="AuthenticationError"):
        stranger.ask(name, task=0, attempt=10, places=[A])
    assert permits.granted == {}


def test_a_caller_that_skips_the_challenge_gets_nothing(permits: Permits, server: PermitServer) -> None:
    name = permits.open()
    message = {"kind": "permit", "try": name, "task": 0, "attempt": 10, "partitions": [A]}
    with socket.create_connection((server.address.host, server.address.port)) as stranger:
        stranger.sendall(HELLO)
        connection: Connection[Any, Any] = Connection(stranger.detach())
    with connection:
        assert connection.recv_bytes().startswith(b"#CHALLENGE#")
        connection.send_bytes(json.dumps(message).encode())
        assert list(heard(connection)) in ([], [b"#FAILURE#"])
    assert permits.granted == {}


def test_the_driver_proves_that_it_knows_the_secret_too(permits: Permits) -> None:
    server = PermitServer(permits, host="127.0.0.1", bind="127.0.0.1")
    server._secret = b"another"  # a stranger that listens where the driver was
    try:
        with pytest.raises(AuthenticationError):
            call(server.address, seconds=60)
    finally:
        server.close()


def test_a_silent_client_delays_no_other_client(permits: Permits, server: PermitServer, caller: Caller) -> None:
    strangers = [socket.create_connection((server.address.host, server.address.port)) for _ in range(20)]
    name = permits.open()
    begun = time.monotonic()
    assert caller.ask(name, task=0, attempt=10, places=[A]) is None
    assert time.monotonic() - begun < 5
    for stranger in strangers:
        stranger.close()


@pytest.mark.parametrize("before", [b"", HELLO], ids=["", "after a hello"])
@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00" * 64,
        b"\xff" * 64,
        b"\x7f\xff\xff\xff" + b"x" * 1000,
        (255).to_bytes(4, "big") + b"x" * 255,
        pickle.dumps({"kind": "permit"}),
    ],
    ids=["http", "zeros", "ones", "two gigabytes announced", "a false answer", "a pickle"],
)
def test_noise_before_the_secret_does_not_kill_the_server(
    noise: bytes, before: bytes, permits: Permits, server: PermitServer, caller: Caller
) -> None:
    with socket.create_connection((server.address.host, server.address.port)) as stranger:
        stranger.sendall(before + noise)
        stranger.settimeout(10)
        heard = b""
        try:
            while piece := stranger.recv(4096):
                heard += piece
        except ConnectionResetError:
            pass
    assert b"refusal" not in heard
    name = permits.open()
    assert caller.ask(name, task=0, attempt=10, places=[A]) is None


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"not json",
        b"\xff\xfe",
        b"[]",
        b"7",
        b"{}",
        b'{"kind": "permit"}',
        b'{"kind": "permit", "try": "x", "task": "many", "attempt": 1, "partitions": []}',
        b'{"kind": "permit", "try": "x", "task": 0, "attempt": 1, "partitions": [["only a topic"]]}',
        b'{"kind": "permit", "try": "x", "task": 0, "attempt": null, "partitions": 5}',
        b" " * ((1 << 24) + 1),
        b'{"kind": "permit", "try": "x", "task": Infinity, "attempt": 1, "partitions": []}',
        b"[" * 100_000,
    ],
    ids=[
        "empty",
        "text",
        "no utf-8",
        "a list",
        "a number",
        "no facts",
        "few facts",
        "a task that is no number",
        "half a partition",
        "nulls",
        "too long",
        "infinity",
        "too deep",
    ],
)
def test_garbage_from_a_client_that_knows_the_secret_ends_only_its_own_connection(
    message: bytes, permits: Permits, server: PermitServer, caller: Caller
) -> None:
    name = permits.open()
    with call(server.address, seconds=60) as connection:
        with suppress(OSError):
            connection.send_bytes(message)
        assert list(heard(connection)) == []
    assert caller.ask(name, task=0, attempt=10, places=[A]) is None
    assert permits.granted == {A: 10}


def test_the_secret_is_not_shown_and_travels_with_the_work(server: PermitServer) -> None:
    assert repr(server.address) == f"Address(127.0.0.1:{server.address.port})"
    assert pickle.loads(pickle.dumps(server.address)) == server.address
    assert len(server.address.secret) == 32
