"""The HTTP server for all our pages: those of a job, of its sinks, of a presenter and of a figure.

    a connection    belongs to a stranger: acceptor.py limits how many there are, and how long each may take to ask
    a request       GET, with a head of at most 16 KiB, with one of the server's own names (hosts.py)
    an answer       has a deadline too, for a client that does not read. The number of answers in progress is limited. A
                    request beyond it gets 503, except for the pages that must always answer: those of health

So a probe gets its answer, whether clients are silent, slow, or ask without end.
"""

from __future__ import annotations

import io
import logging
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler
from typing import Any

from lockgate.serving.acceptor import Acceptor, Client, strangers_max
from lockgate.serving.hosts import Hosts

TEXT = "text/plain; charset=utf-8"

_ASK_SECONDS = 10.0
_ANSWER_SECONDS = 30.0
_WRITE_SECONDS = 10.0
_HEAD_BYTES_MAX = 16 * 1024
_BUFFER_BYTES = 64 * 1024

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """What a client asks for."""

    path: str
    query: str
    headers: Message


@dataclass(frozen=True)
class Page:
    """The answer; `rest` are pieces that follow, until the connection ends."""

    status: int
    kind: str
    content: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    rest: Iterator[bytes] | None = None


class HttpServer:
    """Answers at an open socket, from its creation until it is stopped.

    Args:
        answer: the page for a request.
        hosts: the names that a request may have.
        always: the paths that always answer, however many requests are in progress; their pages are cheap.
        keeps: may a client send another request on the same connection?
    """

    def __init__(
        self,
        listening: socket.socket,
        answer: Callable[[Request], Page],
        *,
        name: str,
        hosts: Hosts,
        always: Collection[str] = (),
        keeps: bool = False,
    ) -> None:
        self.answer, self.hosts, self.always = answer, hosts, frozenset(always)
        self.slots = threading.BoundedSemaphore(strangers_max() * 3 // 4)
        self._handler = _KeepingHandler if keeps else _Handler
        self._acceptor = Acceptor(listening, is_whole=_is_whole, serve=self._serve, name=name, seconds=_ASK_SECONDS)

    def stop(self) -> None:
        """Take no more connections. The socket stays open, and requests in progress are answered."""
        self._acceptor.stop()

    def close(self, *, patience_seconds: float) -> None:
        """Take no more connections, and end the open ones; answers in progress may take `patience_seconds`."""
        self._acceptor.close(patience_seconds=patience_seconds)

    def _serve(self, client: Client) -> bool:
        if len(client.said) > _HEAD_BYTES_MAX:
            client.line.sendall(b"HTTP/1.0 431 Request Header Fields Too Large\r\n\r\n")
            return False
        client.limit(_ANSWER_SECONDS)
        return self._handler(client, self).goes_on


def _is_whole(said: bytes) -> bool:
    return b"\r\n\r\n" in said or b"\n\n" in said or len(said) > _HEAD_BYTES_MAX


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    def __init__(self, client: Client, pages: HttpServer) -> None:
        self._client, self._pages = client, pages
        self.goes_on = False
        super().__init__(client.line, client.line.getpeername(), None)  # type: ignore[arg-type]

    def setup(self) -> None:
        """Read what the client has sent, and write to the client, head and body together."""
        self.connection = self._client.line
        self.connection.settimeout(_WRITE_SECONDS)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rfile = io.BytesIO(self._client.said)
        self.wfile = self.connection.makefile("wb", _BUFFER_BYTES)

    def handle(self) -> None:
        """Answer the request; the bytes after it stay for the next one."""
        self.close_connection = True
        self.handle_one_request()
        self._client.said = self.rfile.read()
        self.goes_on = not self.close_connection

    def do_GET(self) -> None:
        lengths = self.headers.get_all("Content-Length") or []
        if {*lengths} - {"0"} or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # the body is not read, and must not count as a request
        path, _, query = self.path.partition("?")
        named = self.headers.get_all("Host") or []
        if len(named) > 1 or (not named and self.request_version != "HTTP/1.0"):
            self._send(Page(400, TEXT, b"a request names one Host\n"))
        elif named and not self._pages.hosts.admits(named[0]):
            self._send(Page(421, TEXT, self._pages.hosts.refusal(named[0]).encode()))
        elif path in self._pages.always:
            self._send(self._page(path, query))
        elif self._pages.slots.acquire(blocking=False):
            try:
                self._send(self._page(path, query))
            finally:
                self._pages.slots.release()
        else:
            self._send(Page(503, TEXT, b"too many requests are in progress\n", {"Retry-After": "1"}))

    def _page(self, path: str, query: str) -> Page:
        try:
            return self._pages.answer(Request(path, query, self.headers))
        except Exception:
            log.exception("%s could not be answered", path)
            return Page(500, TEXT, b"an error occurred while the page was built; the log of the server says which\n")

    def _send(self, page: Page) -> None:
        self.send_response(page.status)
        self.send_header("Content-Type", page.kind)
        self.send_header("X-Content-Type-Options", "nosniff")
        for name, text in page.headers.items():
            self.send_header(name, text)
        if page.rest is None:
            self.send_header("Content-Length", str(len(page.content)))
        else:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(page.content)
        if page.rest is not None:
            self.close_connection = True
            self._client.limit(None)  # it has no end, but the client must take each piece in time
            for piece in page.rest:
                self.wfile.write(piece)
                self.wfile.flush()

    def version_string(self) -> str:
        """Reveal as little as possible."""
        return "lockgate"

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: a request every few seconds is not worth a line."""


class _KeepingHandler(_Handler):
    protocol_version = "HTTP/1.1"
