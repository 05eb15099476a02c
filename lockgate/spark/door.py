"""A port of the driver's own, for what workers have to ask or to tell while a task runs.

Both sides prove that they know a secret which travels with the work, as at the door for permits (commit/permits.py).
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import TYPE_CHECKING, Any

from lockgate.commit.permits import Address

if TYPE_CHECKING:
    from pyspark import SparkContext

GONE = (OSError, EOFError, AuthenticationError)
"""What a connection raises whose other end is gone, or is none of ours."""

Serve = Callable[["Connection[Any, Any]"], None]


class Door:
    """The driver's listener; `serve` gets each caller that knows the secret, in a thread of its own."""

    def __init__(self, serve: Serve, *, name: str, host: str, bind: str) -> None:
        secret = secrets.token_bytes(32)

        class Handler(BaseRequestHandler):
            def handle(self) -> None:
                strangers = suppress(*GONE, ValueError, KeyError, TypeError)
                with strangers, Connection(self.request.detach()) as connection:
                    deliver_challenge(connection, secret)
                    answer_challenge(connection, secret)
                    serve(connection)

        self._server = _Server((bind, 0), Handler)
        self.address = Address(host=host, port=int(self._server.server_address[1]), secret=secret)
        threading.Thread(target=self._server.serve_forever, name=name, daemon=True).start()

    def close(self) -> None:
        """Let nobody in any more."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64


def call(address: Address, *, seconds: float) -> Connection[Any, Any]:
    """A connection to a door; a firewall that swallows all, or a driver that stands still, takes no longer."""
    with socket.create_connection((address.host, address.port), timeout=seconds) as opened:
        opened.settimeout(None)
        connection: Connection[Any, Any] = Connection(opened.detach())
    if not connection.poll(seconds):
        connection.close()
        raise EOFError("no answer")
    answer_challenge(connection, address.secret)
    deliver_challenge(connection, address.secret)
    return connection


def hosts_of_driver(context: SparkContext) -> dict[str, str]:
    """Where workers reach the driver, and where it listens: the arguments of a door."""
    conf = context.getConf()
    host = conf.get("spark.driver.host") or "127.0.0.1"
    return {"host": host, "bind": conf.get("spark.driver.bindAddress") or host}
