"""Every server that a job, a presenter or a figure opens, in one process that may open few files.

servers FILES [--full]    prints where they are as JSON, and runs until its standard input ends

`--full` takes all files that are left, as another part of the process might.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any

from lockgate import MonitorSink
from lockgate.commit.permits import Permits, PermitServer
from lockgate.dashboard.figure import Figure
from lockgate.presenter.answering import Answering, AnswerSource
from lockgate.runtime.metrics.health import Verdict
from lockgate.runtime.metrics.server import Pages, Server, listen
from lockgate.serving.rpc import Address
from lockgate.spark.tableserver import TableServer


def _told(address: Address) -> list[Any]:
    return [address.host, address.port, address.secret.hex()]


def main(files: int, is_full: bool) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    permits = Permits()
    permits_server = PermitServer(permits, host="127.0.0.1", bind="127.0.0.1")
    tables = TableServer(lambda table, snapshot: b"rows", host="127.0.0.1", bind="127.0.0.1")
    metrics, answers = listen("0"), listen("0")
    Server(metrics, Pages(lambda: Verdict(True, True, "working"), lambda accept: ("text/plain", b"x" * 100_000)))
    source = AnswerSource(
        ask=lambda id: None,
        asked=lambda is_known, seconds: None,
        facts=dict,
        metrics=lambda accept: ("text/plain", b""),
        trouble=lambda: None,
    )
    Answering(answers, source)
    sink = MonitorSink(metric="seen", value="n")
    sink.check("sink 'out'")
    assert sink.address is not None
    with Figure("title", x="x", y="y", series="s").serve() as figure:
        ports = {
            "metrics": metrics.getsockname()[1],
            "presenter": answers.getsockname()[1],
            "monitor": int(sink.address.rsplit(":", 1)[1].removesuffix("/metrics")),
            "figure": int(figure.url.rsplit(":", 1)[1].strip("/")),
        }
        if is_full:
            try:
                while True:
                    os.dup(0)
            except OSError:
                pass
        told = {
            "ports": ports,
            "permits": _told(permits_server.address),
            "tables": _told(tables.address),
            "try": permits.open(),
        }
        print(json.dumps(told), flush=True)
        sys.stdin.buffer.read()


if __name__ == "__main__":
    main(int(sys.argv[1]), "--full" in sys.argv)
