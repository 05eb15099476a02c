"""Answer questions about transactions over HTTP: `GET /transactions/ID`.

    there is an answer                 the newest one, at once, with scores that came later, published or not yet
    the transaction has arrived        wait until it is answered, which is at its deadline
    it has not arrived                 wait one second more than a transaction may take: the question may be ahead of
                                       the record, which its sender still collects, or which is not read yet
    it has not arrived by then         404: never seen, or forgotten; the result store knows older ones

`/metrics` has the figures for Prometheus, `/figures` as JSON, and `/health` says whether the presenter reads.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from lockgate.presenter.answers import Answer
from lockgate.serving.hosts import Hosts
from lockgate.serving.http import TEXT, HttpServer, Page, Request

_JSON = "application/json"


@dataclass(frozen=True)
class AnswerSource:
    """The functions that make the answers."""

    ask: Callable[[str], Answer | None]  # by the id of a transaction; None if it is unknown
    asked: Callable[[bool, float], None]  # counts a question: was there an answer, and how long did it take
    facts: Callable[[], dict[str, Any]]
    metrics: Callable[[str], tuple[str, bytes]]  # by the Accept header of a client: a type and a text
    trouble: Callable[[], str | None]  # what is wrong; None if it reads


class Answering:
    """Answers at a socket until it is stopped, then closes the socket.

    Args:
        called: the host that was given to listen at; requests may use this name.
    """

    def __init__(self, listening: socket.socket, source: AnswerSource, *, called: str = "") -> None:
        self._listening, self._source = listening, source
        self._server = HttpServer(
            listening,
            self._answer,
            name="lockgate-answering",
            hosts=Hosts.of(listening, called),
            always=("/health",),
            keeps=True,
        )

    def stop(self) -> None:
        """Answer no more, and do not wait for clients that keep their connection open."""
        self._server.stop()
        self._listening.close()

    def _answer(self, request: Request) -> Page:
        path, source = request.path, self._source
        if path.startswith("/transactions/"):
            began = time.monotonic()
            id = unquote(path.removeprefix("/transactions/"))
            answer = source.ask(id)
            source.asked(answer is not None, time.monotonic() - began)
            if answer is None:
                return Page(404, _JSON, _text({"id": id, "reason": "not seen, or forgotten: ask the result store"}))
            return Page(200, _JSON, _text(answer.facts()))
        if path == "/figures":
            return Page(200, _JSON, _text(source.facts()))
        if path == "/metrics":
            return Page(200, *source.metrics(request.headers.get("Accept") or ""))
        if path == "/health":
            trouble = source.trouble()
            facts = {"status": "working"} if trouble is None else {"status": "not reading", "reason": trouble}
            return Page(200 if trouble is None else 503, _JSON, _text(facts))
        return Page(404, TEXT, b"/transactions/ID, /figures, /metrics, /health\n")


def _text(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts, allow_nan=False).encode() + b"\n"
