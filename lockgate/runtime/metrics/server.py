"""The small HTTP server of a job: /metrics, /health and /ready.

It belongs to the operator. The server of a MonitorSink is another one: it belongs to the job file. This one listens
before Spark starts, and under a supervisor its socket outlives the driver. Supervisor and driver both hold the socket.
The supervisor answers while no driver runs, so the port never changes and a probe always gets an answer.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass

from lockgate.errors import BadMachine, Refused
from lockgate.runtime.metrics.health import Verdict
from lockgate.serving.acceptor import BACKLOG
from lockgate.serving.hosts import Hosts
from lockgate.serving.http import TEXT, HttpServer, Page, Request

_JSON = "application/json"


@dataclass(frozen=True)
class Pages:
    """What the server answers with."""

    verdict: Callable[[], Verdict]
    metrics: Callable[[str], tuple[str, bytes]] | None = None  # from what a client accepts to a type and a text


def listen(place: str, option: str = "--metrics") -> socket.socket:
    """A socket at [HOST:]PORT, only for this machine unless a host is given; port 0 takes a free one."""
    what = option.removeprefix("--")
    host, _, text = place.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not (text.isascii() and text.isdecimal() and int(text) < 65536):
        raise Refused(
            f"{place!r} is not a port, or a host and a port, to serve {what} at",
            where=option,
            fix=f"give a port, or host and port: {option} 9400, {option} 0.0.0.0:9400; port 0 takes a free one",
        )
    try:
        family, _, _, _, address = socket.getaddrinfo(host, int(text), type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise BadMachine(
            f"{what} cannot be served at {host}:{text}: {error.strerror}",
            where=option,
            fix="stop the process that listens there, or choose another port; port 0 takes a free one",
        ) from error
    return listening


def address_of(listening: socket.socket) -> str:
    """The URL of a socket that listens."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def host_in(place: str | None) -> str:
    """The host of [HOST:]PORT; empty if none is given."""
    return (place or "").rpartition(":")[0]


class Server:
    """Answers at a socket until it is stopped. The socket stays open.

    Args:
        called: the host that was given to listen at; requests may use it as their host name.
    """

    def __init__(self, listening: socket.socket, pages: Pages, *, called: str = "") -> None:
        self._pages = pages
        self._server = HttpServer(
            listening,
            self._answer,
            name="lockgate-metrics",
            hosts=Hosts.of(listening, called),
            always=("/health", "/ready"),
        )

    def stop(self) -> None:
        """Stop answering."""
        self._server.stop()

    def _answer(self, request: Request) -> Page:
        if request.path in ("/health", "/ready"):
            verdict = self._pages.verdict()
            is_well = verdict.is_alive and (verdict.is_ready or request.path == "/health")
            return Page(200 if is_well else 503, _JSON, _as_json(verdict))
        if request.path == "/metrics" and self._pages.metrics is not None:
            return Page(200, *self._pages.metrics(request.headers.get("Accept") or ""))
        if request.path == "/metrics":
            return Page(503, _JSON, _as_json(self._pages.verdict()))
        return Page(404, TEXT, b"/metrics, /health, /ready\n")


def _as_json(verdict: Verdict) -> bytes:
    return json.dumps(verdict.facts()).encode() + b"\n"
