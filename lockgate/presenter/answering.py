"""Answers for those who ask: `GET /transactions/ID`.

    the newest answer is there         it, at once, with the scores that came behind it; published or not yet
    the transaction has come           waits until it is answered, which is at its deadline
    it has not come                    waits a second more than a transaction may take: whoever asks may be ahead of
                                       the record, which its sender holds back, or which is not read yet
    it has not come by then            404: never seen, or forgotten; the result store knows what is older

`/metrics` has the figures as Prometheus reads them, `/figures` as JSON, and `/health` says whether the presenter reads.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from lockgate.presenter.answers import Answer
from lockgate.runtime.metrics.http import PageHandler, SocketServer

_CLIENT_SECONDS = 30.0
_JSON = "application/json"


@dataclass(frozen=True)
class Desk:
    """What is answered."""

    ask: Callable[[str], Answer | None]  # for a transaction; None where nobody knows it
    asked: Callable[[bool, float], None]  # takes note of a question: was there an answer, and how long did it take
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
            began = time.monotonic()
            id = unquote(path.removeprefix("/transactions/"))
            answer = desk.ask(id)
            if answer is None:
                self.answer(404, _JSON, _text({"id": id, "reason": "not seen, or forgotten: ask the result store"}))
            else:
                self.answer(200, _JSON, _text(answer.facts()))
            desk.asked(answer is not None, time.monotonic() - began)
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
