"""How a snapshot of a table gets from the driver to the workers: each process asks for it once.

Workers have no client for the checkpoint's file system, and Spark's own broadcast cannot be changed once a query runs.
So the driver listens on a port of its own. Both sides prove that they know a secret which travels with the work, as at
the door for permits (commit/permits.py); the question is JSON, the answer the bytes of a file.

    {table, snapshot}  ->  the snapshot as Parquet; nothing where it is not that of the epoch in hand
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

from lockgate.commit.permits import Address
from lockgate.errors import EpochFailed

_ANSWER_SECONDS = 60.0
_QUESTION_BYTES_MAX = 1 << 16
_GONE = (OSError, EOFError, AuthenticationError)


class TableDoor:
    """The driver's listener; lives as long as the run."""

    def __init__(self, find: Callable[[str, str], bytes], *, host: str, bind: str) -> None:
        secret = secrets.token_bytes(32)

        class Handler(BaseRequestHandler):
            def handle(self) -> None:
                _serve(self.request, secret, find)

        self._server = _Server((bind, 0), Handler)
        self.address = Address(host=host, port=int(self._server.server_address[1]), secret=secret)
        threading.Thread(target=self._server.serve_forever, name="lockgate-tables", daemon=True).start()

    def close(self) -> None:
        """Let nobody in any more."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64


def _serve(socket: Any, secret: bytes, find: Callable[[str, str], bytes]) -> None:
    with suppress(*_GONE, ValueError, KeyError, TypeError), Connection(socket.detach()) as connection:
        deliver_challenge(connection, secret)
        answer_challenge(connection, secret)
        asked = json.loads(connection.recv_bytes(_QUESTION_BYTES_MAX))
        connection.send_bytes(find(str(asked["table"]), str(asked["snapshot"])))


def fetch(address: Address, table: str, snapshot: str) -> bytes:
    """A snapshot, asked of the driver by a worker."""
    try:
        with Client((address.host, address.port), authkey=address.secret) as connection:
            connection.send_bytes(json.dumps({"table": table, "snapshot": snapshot}).encode())
            if not connection.poll(_ANSWER_SECONDS):
                raise EOFError("no answer")
            content = connection.recv_bytes()
    except _GONE as error:
        raise EpochFailed(
            f"the driver does not answer at {address.host}:{address.port} ({type(error).__name__}: {error})",
            where=f"a task that needs table {table!r}",
            fix="the driver is gone, or a firewall stands between it and the executors:"
            " they have to reach spark.driver.host at any port",
        ) from None
    if not content:
        raise EpochFailed(
            f"the driver does not hold snapshot {snapshot} of the table any more",
            where=f"a task that needs table {table!r}",
            fix="the epoch that this task belongs to is over; there is nothing to mend",
        )
    return content
