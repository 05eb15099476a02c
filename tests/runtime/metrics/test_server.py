"""The small server: what it answers, where it may listen, and two processes that take turns at one socket."""

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from lockgate.errors import BadMachine, Refused
from lockgate.runtime.metrics.health import Seen, Verdict, judge
from lockgate.runtime.metrics.server import Pages, Server, address_of, listen

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with _DIRECT.open(address + path, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with listen("0") as listening:
        yield listening


def test_pages_follow_the_verdict(listening: socket.socket) -> None:
    verdicts = [Verdict(True, False, "starting", "no epoch yet")]
    server = Server(listening, Pages(lambda: verdicts[-1], lambda accept: ("text/plain", accept.encode())))
    try:
        address = address_of(listening)
        assert address.startswith("http://127.0.0.1:")
        assert get(address, "/health") == (200, '{"status": "starting", "reason": "no epoch yet"}\n')
        assert get(address, "/ready?verbose")[0] == 503
        assert get(address, "/metrics")[0] == 200
        assert get(address, "/")[0] == 404
        verdicts.append(Verdict(True, True, "working"))
        assert get(address, "/ready") == (200, '{"status": "working"}\n')
        verdicts.append(Verdict(False, True, "stuck", "for long"))
        assert get(address, "/health")[0] == 503
        assert get(address, "/ready")[0] == 503
    finally:
        server.stop()


def test_another_one_continues_at_the_same_socket(listening: socket.socket) -> None:
    first = Server(listening, Pages(lambda: Verdict(True, False, "restarting")))
    address = address_of(listening)
    assert get(address, "/metrics")[0] == 503  # there is nobody to tell them
    second = Server(listening, Pages(lambda: Verdict(True, True, "working")))
    first.stop()
    assert json.loads(get(address, "/health")[1]) == {"status": "working"}
    second.stop()


def test_a_silent_client_delays_no_other_client(listening: socket.socket) -> None:
    server = Server(listening, Pages(lambda: Verdict(True, True, "working")))
    try:
        with socket.create_connection(listening.getsockname()):
            assert get(address_of(listening), "/health")[0] == 200
    finally:
        server.stop()


@pytest.mark.parametrize("place", ["", "here", "1.2.3.4:", "70000", "-1", "²"])
def test_what_is_no_place_is_refused(place: str) -> None:
    with pytest.raises(Refused, match="not a port, or a host and a port"):
        listen(place)


def test_a_port_that_is_taken_is_reported(listening: socket.socket) -> None:
    with pytest.raises(BadMachine, match="cannot be served"):
        listen(str(listening.getsockname()[1]))


@pytest.mark.parametrize(
    ("seen", "status", "is_alive", "is_ready"),
    [
        (Seen(), "starting", True, False),
        (Seen(began_at=100 - 600), "starting", True, False),
        (Seen(began_at=100 - 601), "stuck", False, False),
        (Seen(began_at=100 - 601, epoch_seconds=200), "starting", True, False),  # its epochs are long
        (Seen(heard_at=50, epoch=3, epoch_seconds=1), "working", True, True),
        (Seen(heard_at=39, epoch=3, epoch_seconds=1), "stuck", False, True),
        (Seen(heard_at=39, epoch_seconds=1), "stuck", False, True),
        (Seen(heard_at=39, epoch=3, epoch_seconds=13), "working", True, True),  # its epochs are long
        (Seen(heard_at=99, epoch=3, failed="why"), "failed", False, False),
    ],
)
def test_the_verdict(seen: Seen, status: str, is_alive: bool, is_ready: bool) -> None:
    verdict = judge(seen, now=100, limit_seconds=60)
    assert (verdict.status, verdict.is_alive, verdict.is_ready) == (status, is_alive, is_ready)
