"""A figure that updates: rows of a job as lines over time, on a page of this machine.

    with Figure("Order volume", x="window_start", y="amount", series="promotion").serve() as figure:
        print(figure.url)
        figure.follow(rows)         # as they come

A row is a point: its `series` and its `x` say which, so a row that comes again, or a correction, moves the point and
adds none. The page is one file without outside resources. It gets all points whenever one has changed (server-sent
events), so a browser that comes late, or comes back, sees what all others see. Only this machine can reach it.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from decimal import Decimal
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

from lockgate.errors import Refused

HOST = "127.0.0.1"
POINTS_MAX = 500
"""The most points of a series; then the first ones are left away."""

_TURN_SECONDS = 0.2  # a browser is told this often at most
_BREATH_SECONDS = 10.0  # and in silence so often, so that we notice when it has gone
_SAFE = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"


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
        """Draw a row; the point that stood for the same series and x is moved."""
        missing = [name for name in self._columns.values() if row.get(name) is None]
        if missing:
            raise Refused(
                f"a row of the figure has no {missing[0]!r}",
                where=f"figure {self.title!r}, a row with {', '.join(row)}",
                fix=f"rows need {', '.join(self._columns.values())}; leave the others out before",
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
        """Where the page is, while it is served."""
        return f"http://{HOST}:{self._port}/"

    @contextlib.contextmanager
    def serve(self, port: int = 0) -> Iterator[Figure]:
        """Show the page, at a free port unless one is named, until the block ends."""
        try:
            server = ThreadingHTTPServer((HOST, port), partial(_Answer, self))
        except OSError as error:
            raise Refused(
                f"the page of figure {self.title!r} cannot be shown: {error.strerror}",
                where=f"{HOST}:{port}",
                fix="leave the port out: a free one is taken",
            ) from error
        server.daemon_threads = False  # the last word is said before the end
        self._port, self._is_over = server.server_port, False
        thread = threading.Thread(target=server.serve_forever, name="lockgate-figure", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()
            server.shutdown()
            server.server_close()
            thread.join()

    def snapshot(self) -> dict[str, Any]:
        """All points, as the page gets them."""
        with self._changed:
            lines = {
                name: [[_plain(x), points[x]] for x in sorted(points)] for name, points in sorted(self._points.items())
            }
        return {"title": self.title, **self._columns, "lines": lines}

    def wait(self, version: int, seconds: float) -> int | None:
        """The version of the points once it is another, or after so many seconds; None when it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != version or self._is_over, timeout=seconds)
            return None if self._is_over else self._version


class _Answer(BaseHTTPRequestHandler):
    """Answers a browser: the page, then the points as they change."""

    timeout = 2.0  # seconds; a browser that opens a connection and asks for nothing does not hold up the end

    def __init__(self, figure: Figure, *args: Any) -> None:
        self._figure = figure
        super().__init__(*args)

    def do_GET(self) -> None:
        if self.path == "/":
            page = resources.files("lockgate.dashboard").joinpath("figure.html").read_bytes()
            self._begin("text/html; charset=utf-8", {"Content-Length": str(len(page))})
            self.wfile.write(page)
        elif self.path == "/points":
            self._begin("text/event-stream", {"Cache-Control": "no-store"})
            with contextlib.suppress(OSError):  # the browser has gone
                self._tell()
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _begin(self, kind: str, headers: Mapping[str, str]) -> None:
        self.send_response(HTTPStatus.OK)
        for name, text in {"Content-Type": kind, "Content-Security-Policy": _SAFE, **headers}.items():
            self.send_header(name, text)
        self.end_headers()

    def _tell(self) -> None:
        told: int | None = -1
        while told is not None:
            now = self._figure.wait(told, _BREATH_SECONDS)
            if now == told:
                self.wfile.write(b": still here\n\n")
            else:
                name = "end" if now is None else "points"
                self.wfile.write(f"event: {name}\ndata: {json.dumps(self._figure.snapshot())}\n\n".encode())
            self.wfile.flush()
            told = now
            time.sleep(_TURN_SECONDS)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal is the example's."""


def _plain(x: Any) -> Any:
    if isinstance(x, date):
        return x.isoformat()
    return float(x) if isinstance(x, Decimal) else x
