"""A figure that updates: rows of a job as lines over time, on a page of this machine.

    with Figure("Order volume", x="window_start", y="amount", series="promotion").serve() as figure:
        print(figure.url)
        figure.follow(rows)         # as they come

A row is a point. Its `series` and its `x` identify the point, so a repeated row, or a correction, moves the point and
adds none. The page is one file without outside resources. Whenever a point changes, the page gets all points
(server-sent events). So a browser that connects late, or again, sees what all others see. Only this machine can reach
the page.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from decimal import Decimal
from http import HTTPStatus
from importlib import resources
from typing import Any

from lockgate.errors import Refused
from lockgate.serving.acceptor import BACKLOG
from lockgate.serving.hosts import Hosts
from lockgate.serving.http import TEXT, HttpServer, Page

HOST = "127.0.0.1"
POINTS_MAX = 500
"""The most points of a series; with more, the first ones are dropped."""

_TURN_SECONDS = 0.2  # the shortest time between two messages to a browser
_BREATH_SECONDS = 10.0  # the longest time, so that we notice a browser that has gone
_LAST_WORD_SECONDS = 5.0  # how long browsers may take to receive the end before the port is closed
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline';"
    " connect-src 'self'"
}


class Figure:
    """Lines of a column `y` over a column `x`, one for each value of the column `series`."""

    def __init__(self, title: str, *, x: str, y: str, series: str) -> None:
        self.title = title
        self._columns = {"x": x, "y": y, "series": series}
        self._points: dict[str, dict[Any, float]] = {}
        self._changed = threading.Condition()
        self._version = 0
        self._is_over = False
        self._port = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Draw a row; it moves an earlier point of the same series and x."""
        missing = [name for name in self._columns.values() if row.get(name) is None]
        if missing:
            raise Refused(
                f"a row of the figure has no {missing[0]!r}",
                where=f"figure {self.title!r}, a row with {', '.join(row)}",
                fix=f"rows need {', '.join(self._columns.values())}; remove other rows before",
            )
        with self._changed:
            points = self._points.setdefault(str(row[self._columns["series"]]), {})
            points[row[self._columns["x"]]] = float(row[self._columns["y"]])
            if len(points) > POINTS_MAX:
                del points[min(points)]
            self._version += 1
            self._changed.notify_all()

    def follow(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Draw rows as they come, to their end."""
        for row in rows:
            self.add(row)

    @property
    def url(self) -> str:
        """The address of the page, while it is served."""
        return f"http://{HOST}:{self._port}/"

    @contextlib.contextmanager
    def serve(self, port: int = 0) -> Iterator[Figure]:
        """Serve the page until the block ends, by default at a free port."""
        try:
            listening = socket.create_server((HOST, port), backlog=BACKLOG)
        except OSError as error:
            raise Refused(
                f"the page of figure {self.title!r} cannot be shown: {error.strerror}",
                where=f"{HOST}:{port}",
                fix="omit the port: a free one is taken",
            ) from error
        with listening:
            self._port, self._is_over = listening.getsockname()[1], False
            page = resources.files("lockgate.dashboard").joinpath("figure.html").read_bytes()
            html = Page(HTTPStatus.OK, "text/html; charset=utf-8", page, _HEADERS)
            pages = {"/": lambda: html, "/points": self._points_page}
            server = HttpServer(
                listening,
                lambda request: pages.get(request.path, _missing)(),
                name="lockgate-figure",
                hosts=Hosts.of(listening),
            )
            try:
                yield self
            finally:
                with self._changed:
                    self._is_over = True
                    self._changed.notify_all()
                server.close(patience_seconds=_LAST_WORD_SECONDS)

    def snapshot(self) -> dict[str, Any]:
        """All points, in the form that the page gets."""
        with self._changed:
            lines = {
                name: [[_plain(x), points[x]] for x in sorted(points)] for name, points in sorted(self._points.items())
            }
        return {"title": self.title, **self._columns, "lines": lines}

    def _points_page(self) -> Page:
        headers = {**_HEADERS, "Cache-Control": "no-store"}
        return Page(HTTPStatus.OK, "text/event-stream", headers=headers, rest=self._events())

    def _events(self) -> Iterator[bytes]:
        """The messages to a browser while the page is served: the points when they change, and the end."""
        told: int | None = -1
        while told is not None:
            now = self.wait(told, _BREATH_SECONDS)
            if now == told:
                yield b": still here\n\n"
            else:
                name = "end" if now is None else "points"
                yield f"event: {name}\ndata: {json.dumps(self.snapshot())}\n\n".encode()
            told = now
            time.sleep(_TURN_SECONDS)

    def wait(self, version: int, seconds: float) -> int | None:
        """The version of the points when it changes, or after this many seconds; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != version or self._is_over, timeout=seconds)
            return None if self._is_over else self._version


def _missing() -> Page:
    return Page(HTTPStatus.NOT_FOUND, TEXT, b"/\n")


def _plain(x: Any) -> Any:
    if isinstance(x, date):
        return x.isoformat()
    return float(x) if isinstance(x, Decimal) else x
