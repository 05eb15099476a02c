"""Pages at a socket that is open already, for whoever asks: what the servers of a job and of a presenter share."""

from __future__ import annotations

import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class SocketServer(ThreadingHTTPServer):
    """Takes its connections from a socket that somebody else has opened."""

    daemon_threads = True

    def __init__(self, listening: socket.socket, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(listening.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that went away is no matter of an operator's."""


class PageHandler(BaseHTTPRequestHandler):
    """Answers with a page, and logs nothing."""

    def answer(self, status: int, kind: str, content: bytes) -> None:
        """Send a page of a type."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing: a question every few seconds is no news."""
