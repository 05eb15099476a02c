"""Answers for those who ask: `GET /transactions/ID`, which waits until the transaction's deadline and no longer.

    the newest answer is there         it, at once; a full one replaces the partial one for whoever asks later
    none yet                           waits as long as a transaction may take, for it may just be under way
    none by then                       404: never seen, or forgotten; the result store knows what is older

`/metrics` has the figures as Prometheus reads them, `/figures` as JSON, and `/health` says whether the presenter reads.
"""

from __future__ import annotations

import json
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from lockgate.presenter.gathering import Answer
from lockgate.runtime.metrics.http import PageHandler, SocketServer

_CLIENT_SECONDS = 30.0
_JSON = "application/json"


class Answers:
    """The newest answer of each transaction, for any thread; as many as are held."""

    def __init__(self, held_max: int) -> None:
        self._held_max = held_max
        self._lock = threading.Lock()
        self._newest: OrderedDict[str, Answer] = OrderedDict()
        self._awaited: dict[str, list[threading.Event]] = {}

    def put(self, answer: Answer) -> None:
        """Keep it, and wake those who wait for it."""
        with self._lock:
            self._newest[answer.id] = answer
            if len(self._newest) > self._held_max:
                self._newest.popitem(last=False)
            for waiting in self._awaited.pop(answer.id, ()):
                waiting.set()

    def has_final(self, id: str) -> bool:
        """Is the full answer for a transaction out?"""
        with self._lock:
            return (found := self._newest.get(id)) is not None and not found.is_partial

    def get(self, id: str, *, seconds: float) -> Answer | None:
        """The newest answer for a transaction, waiting for the first one so long; None where there is none."""
        with self._lock:
            if (found := self._newest.get(id)) is not None:
                return found
            waiting = threading.Event()
            self._awaited.setdefault(id, []).append(waiting)
        waiting.wait(seconds)
        with self._lock:
            others = self._awaited.get(id, [])
            if waiting in others:
                others.remove(waiting)
                if not others:
                    del self._awaited[id]
            return self._newest.get(id)


@dataclass(frozen=True)
class Desk:
    """What is answered."""

    answers: Answers
    patience_seconds: float
    facts: Callable[[], dict[str, Any]]
    metrics: Callable[[str], tuple[str, bytes]]  # of what a client accepts: a type and a text
    trouble: Callable[[], str | None]  # what is wrong; None where it reads


class Answering:
    """Answers at a socket until it is stopped; closes it then."""

    def __init__(self, listening: socket.socket, desk: Desk) -> None:
        self._server = _Http(listening, desk)
        self._thread = threading.Thread(target=self._server.serve_forever, name="lockgate-answering", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Http(SocketServer):
    block_on_close = False  # a client that keeps its connection open is not waited for

    def __init__(self, listening: socket.socket, desk: Desk) -> None:
        super().__init__(listening, _Handler)
        self.desk = desk


class _Handler(PageHandler):
    server: _Http
    timeout = _CLIENT_SECONDS
    protocol_version = "HTTP/1.1"  # many questions, one connection
    disable_nagle_algorithm = True  # head and body are two writes, and the second would wait for an acknowledgement

    def do_GET(self) -> None:  # noqa: N802 - as http.server calls it
        path, desk = self.path.partition("?")[0], self.server.desk
        if path.startswith("/transactions/"):
            id = unquote(path.removeprefix("/transactions/"))
            answer = desk.answers.get(id, seconds=desk.patience_seconds)
            if answer is None:
                self.answer(404, _JSON, _text({"id": id, "reason": "not seen, or forgotten: ask the result store"}))
            else:
                self.answer(200, _JSON, _text(answer.facts()))
        elif path == "/figures":
            self.answer(200, _JSON, _text(desk.facts()))
        elif path == "/metrics":
            self.answer(200, *desk.metrics(self.headers.get("Accept") or ""))
        elif path == "/health":
            trouble = desk.trouble()
            facts = {"status": "working"} if trouble is None else {"status": "not reading", "reason": trouble}
            self.answer(200 if trouble is None else 503, _JSON, _text(facts))
        else:
            self.answer(404, "text/plain; charset=utf-8", b"/transactions/ID, /figures, /metrics, /health\n")


def _text(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts, allow_nan=False).encode() + b"\n"
