"""Send a snapshot of a table from the driver to the workers: each process asks for it once.

Workers have no client for the checkpoint's file system, and Spark's own broadcast cannot be changed once a query runs.
So they ask a server of the driver's (serving/rpc.py); the question is JSON, the answer the bytes of a file.

    {table, snapshot}  ->  the snapshot as Parquet; nothing if it is not that of the current epoch
"""

from __future__ import annotations

import json
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from lockgate.errors import EpochFailed
from lockgate.serving.rpc import GONE, Address, RpcServer, call

_ANSWER_SECONDS = 60.0
_QUESTION_BYTES_MAX = 1 << 16


class TableServer(RpcServer):
    """The driver's side; lives as long as the run."""

    def __init__(self, find: Callable[[str, str], bytes], *, host: str, bind: str) -> None:
        def serve(connection: Connection[Any, Any]) -> None:
            asked = json.loads(connection.recv_bytes(_QUESTION_BYTES_MAX))
            connection.send_bytes(find(str(asked["table"]), str(asked["snapshot"])))

        super().__init__(serve, name="lockgate-tables", host=host, bind=bind)


def fetch(address: Address, table: str, snapshot: str) -> bytes:
    """A snapshot, which a worker requests from the driver."""
    try:
        with call(address, seconds=_ANSWER_SECONDS) as connection:
            connection.send_bytes(json.dumps({"table": table, "snapshot": snapshot}).encode())
            if not connection.poll(_ANSWER_SECONDS):
                raise EOFError("no answer")
            content = connection.recv_bytes()
    except GONE as error:
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
            fix="the epoch that this task belongs to is over; there is nothing to fix",
        )
    return content
