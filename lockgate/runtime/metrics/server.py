"""The small HTTP server of a job: /metrics, /health and /ready.

It belongs to the operator, and so it is not that of a MonitorSink, which belongs to the job file: it is there before
Spark starts, and under a supervisor its socket outlives the driver. Supervisor and driver both hold the socket and take
turns: the supervisor answers while there is no driver, so the port never changes and a probe is never turned away.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockgate.errors import BadMachine, Refused
from lockgate.runtime.metrics.health import Verdict
from lockgate.runtime.metrics.http import PageHandler, SocketServer

_BACKLOG = 64
_CLIENT_SECONDS = 10.0


@dataclass(frozen=True)
class Pages:
    """What is answered."""

    verdict: Callable[[], Verdict]
    metrics: Callable[[str], tuple[str, bytes]] | None = None  # of what a client accepts: a type and a text


def listen(place: str, option: str = "--metrics") -> socket.socket:
    """A socket at [HOST:]PORT, of this machine alone unless a host is given; port 0 takes one that is free."""
    what = option.removeprefix("--")
    host, _, text = place.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not (text.isascii() and text.isdecimal() and int(text) < 65536):
        raise Refused(
            f"{place!r} is no place to serve {what} at",
            where=option,
            fix=f"give a port, or host and port: {option} 9400, {option} 0.0.0.0:9400; port 0 takes a free one",
        )
    try:
        family, _, _, _, address = socket.getaddrinfo(host, int(text), type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(_BACKLOG)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise BadMachine(
            f"{what} cannot be served at {host}:{text}: {error.strerror}",
            where=option,
            fix="end what listens there, or choose another port; port 0 takes one that is free",
        ) from error
    return listening


def address_of(listening: socket.socket) -> str:
    """Where it is reached."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server:
    """Answers at a socket, until it is stopped; the socket stays open."""

    def __init__(self, listening: socket.socket, pages: Pages) -> None:
        # Another process may take a connection that both have seen coming.
        listening.setblocking(False)
        self._server = _Http(listening, pages)
        self._thread = threading.Thread(target=self._server.serve_forever, name="lockgate-metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._thread.join()


class _Http(SocketServer):
    def __init__(self, listening: socket.socket, pages: Pages) -> None:
        super().__init__(listening, _Handler)
        self.pages = pages

    def get_request(self) -> tuple[Any, Any]:
        connection, client = super().get_request()
        connection.setblocking(True)  # some systems hand on what the listening socket is
        return connection, client


class _Handler(PageHandler):
    server: _Http
    timeout = _CLIENT_SECONDS

    def do_GET(self) -> None:  # noqa: N802 - as http.server calls it
        path, pages = self.path.partition("?")[0], self.server.pages
        if path in ("/health", "/ready"):
            verdict = pages.verdict()
            is_well = verdict.is_alive if path == "/health" else verdict.is_alive and verdict.is_ready
            self.answer(200 if is_well else 503, "application/json", _as_json(verdict))
        elif path == "/metrics" and pages.metrics is not None:
            self.answer(200, *pages.metrics(self.headers.get("Accept") or ""))
        elif path == "/metrics":
            self.answer(503, "application/json", _as_json(pages.verdict()))
        else:
            self.answer(404, "text/plain; charset=utf-8", b"/metrics, /health, /ready\n")


def _as_json(verdict: Verdict) -> bytes:
    return json.dumps(verdict.facts()).encode() + b"\n"
