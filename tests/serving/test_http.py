"""The server of all pages: by which names it answers, and what one client cannot do to another."""

import http.client
import socket
import threading
from collections.abc import Iterator

import pytest

from lockgate.serving.acceptor import strangers_max
from lockgate.serving.hosts import NAMES, Hosts
from lockgate.serving.http import TEXT, HttpServer, Page, Request
from support.waiting import wait_for

_PATIENCE_SECONDS = 60.0


class Pages:
    """A server with a page that lasts until it is let go, and what it needs beside."""

    def __init__(self, listening: socket.socket) -> None:
        self.port: int = listening.getsockname()[1]
        self.under_way = 0
        self.is_free = threading.Event()
        self._lock = threading.Lock()
        self.server = HttpServer(
            listening, self._answer, name="test", hosts=Hosts.of(listening), always=("/health",), keeps=True
        )

    def _answer(self, request: Request) -> Page:
        if request.path == "/slow":
            with self._lock:
                self.under_way += 1
            self.is_free.wait()
        if request.path == "/broken":
            raise ValueError("no page")
        return Page(200, TEXT, f"{request.path} {request.query} {request.headers.get('accept')}".encode())

    def say(self, said: bytes) -> bytes:
        """What it answers to these very bytes, until it ends the connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=_PATIENCE_SECONDS) as line:
            line.sendall(said)
            return b"".join(iter(lambda: line.recv(65536), b""))

    def status(self, host: str, path: str = "/health") -> int:
        """What a request for a host is answered with."""
        told = self.say(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        return int(told.split()[1])


@pytest.fixture
def pages() -> Iterator[Pages]:
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        pages = Pages(listening)
        yield pages
        pages.is_free.set()
        pages.server.close(patience_seconds=_PATIENCE_SECONDS)


# -- names -------------------------------------------------------------------------------------------------------------


def test_a_page_of_another_name_gets_nothing_from_loopback(pages: Pages) -> None:
    port = pages.port
    for host in ("localhost", "127.0.0.1", "[::1]", "LOCALHOST.", "Localhost"):
        assert pages.status(f"{host}:{port}") == 200
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.5", "evil@localhost"):
        assert pages.status(f"{host}:{port}") == 421, host
    assert pages.status(f"localhost:{port + 1}") == 421
    assert pages.status("localhost") == 421
    told = pages.say(b"GET /health HTTP/1.0\r\nHost: evil.example\r\n\r\n")
    assert b"not called 'evil.example'" in told
    assert NAMES.encode() in told


def test_a_request_names_one_host(pages: Pages) -> None:
    own = f"Host: localhost:{pages.port}\r\n".encode()
    assert b" 400 " in pages.say(b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert b" 400 " in pages.say(b"GET /health HTTP/1.1\r\nConnection: close\r\n" + own + b"Host: evil.example\r\n\r\n")
    assert b" 200 " in pages.say(b"GET /health HTTP/1.0\r\n\r\n"), "a plain probe; no browser leaves it out"


def test_names_of_a_server_for_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAMES, "requests-per-ip, requests-per-ip.jobs.svc")
    with socket.create_server(("0.0.0.0", 0)) as listening:
        hosts = Hosts.of(listening, "metrics.example.org")
    for name in ("10.1.2.3:9400", "[fe80::1]:9400", "metrics.example.org", "localhost:1", socket.gethostname()):
        assert hosts.admits(name), name
    for name in ("requests-per-ip:80", "requests-per-ip.jobs.svc"):
        assert hosts.admits(name), name
    for name in ("evil.example:9400", "", "10.1.2.3.evil.example", "a b", "requests-per-ip.evil.example"):
        assert not hosts.admits(name), name


# -- limits ------------------------------------------------------------------------------------------------------------


def test_health_answers_while_all_else_is_busy(pages: Pages) -> None:
    lines = []
    request = f"GET /slow HTTP/1.1\r\nHost: localhost:{pages.port}\r\n\r\n".encode()
    for _ in range(strangers_max()):
        lines.append(socket.create_connection(("127.0.0.1", pages.port), timeout=_PATIENCE_SECONDS))
        lines[-1].sendall(request)
    most = strangers_max() * 3 // 4
    wait_for("all places to be taken", lambda: pages.under_way == most)
    assert pages.status(f"localhost:{pages.port}", "/slow") == 503
    for _ in range(10):
        assert pages.status(f"localhost:{pages.port}", "/health") == 200
    assert pages.under_way == most
    pages.is_free.set()
    for line in lines:
        line.close()


def test_a_head_that_does_not_end_is_refused(pages: Pages) -> None:
    assert b" 431 " in pages.say(b"GET /health HTTP/1.0\r\n" + b"x: " + b"y" * 16_384)


def test_a_client_may_ask_again_and_a_body_is_no_request(pages: Pages) -> None:
    client = http.client.HTTPConnection("127.0.0.1", pages.port, timeout=_PATIENCE_SECONDS)
    for number in range(5):
        client.request("GET", f"/page?{number}", headers={"Accept": "x"})
        assert client.getresponse().read() == f"/page {number} x".encode()
    client.close()
    own = f"Host: localhost:{pages.port}".encode()
    for length in (b"Content-Length: 28", b"Content-Length: 0\r\nContent-Length: 28", b"Transfer-Encoding: chunked"):
        told = pages.say(b"GET /one HTTP/1.1\r\n" + own + b"\r\n" + length + b"\r\n\r\nGET /two HTTP/1.0\r\n\r\n")
        assert b"/one" in told
        assert b"/two" not in told, length


def test_a_page_that_cannot_be_made_is_reported(pages: Pages) -> None:
    assert pages.status(f"localhost:{pages.port}", "/broken") == 500
    assert b"no page" not in pages.say(b"GET /broken HTTP/1.0\r\n\r\n")
