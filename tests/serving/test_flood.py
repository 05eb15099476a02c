"""2,000 connections that say nothing, or a byte a second, against every server in a process with 1,024 files."""

import http.client
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest

from lockgate.commit.permits import Caller
from lockgate.serving.rpc import Address
from lockgate.spark.tableserver import fetch
from support.flood import flooded
from support.process import program

_TESTS = Path(__file__).parents[1]
_PROBES = 15
_PATIENCE_SECONDS = 60.0


class Servers:
    """The servers of `support.programs.servers`, and who asks them."""

    def __init__(self, told: dict[str, Any], process: int) -> None:
        self.ports: dict[str, int] = told["ports"]
        self.permits, self.tables = (
            Address(host, port, bytes.fromhex(secret)) for host, port, secret in (told["permits"], told["tables"])
        )
        self._try, self._task = told["try"], 0
        self.process = psutil.Process(process)

    def ask_health(self, server: str) -> None:
        """As a probe does: a connection of its own each time."""
        client = http.client.HTTPConnection("127.0.0.1", self.ports[server], timeout=_PATIENCE_SECONDS)
        path = {"metrics": "/health", "presenter": "/health", "monitor": "/metrics", "figure": "/"}[server]
        client.request("GET", path)
        assert client.getresponse().status == 200
        client.close()

    def ask_permit(self) -> None:
        """As a new worker does."""
        self._task += 1
        refusal = Caller(self.permits).ask(self._try, task=self._task, attempt=1, places=[("out", self._task)])
        assert refusal is None

    def ask_table(self) -> None:
        assert fetch(self.tables, "customers", "one") == b"rows"


@contextmanager
def servers(files: int, *words: str) -> Iterator[Servers]:
    child = subprocess.Popen(
        program("servers", files, *words),
        cwd=_TESTS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert child.stdout is not None
        yield Servers(json.loads(child.stdout.readline()), child.pid)
        assert child.poll() is None, "it has died"
    finally:
        child.kill()
        child.communicate()


def check_quick(ask: Callable[[], None]) -> None:
    """Each is answered, and in less than a second; one may be slower on a machine that is busy with other things."""
    took = []
    for _ in range(_PROBES):
        began = time.monotonic()
        ask()
        took.append(time.monotonic() - began)
    assert median(took) < 1.0, took


def asks(asked: Servers) -> dict[str, Callable[[], None]]:
    return {
        "metrics": lambda: asked.ask_health("metrics"),
        "presenter": lambda: asked.ask_health("presenter"),
        "monitor": lambda: asked.ask_health("monitor"),
        "figure": lambda: asked.ask_health("figure"),
        "permits": asked.ask_permit,
        "tables": asked.ask_table,
    }


@pytest.mark.parametrize("drip", [b"", b"GET /health HTTP/1.1\r\n" * 10], ids=["silent", "dripping"])
def test_2000_unknown_clients_delay_no_other_client(drip: bytes) -> None:
    with servers(1024) as asked:
        places = [*asked.ports.values(), asked.permits.port, asked.tables.port]
        for name, ask in asks(asked).items():
            port = {**asked.ports, "permits": asked.permits.port, "tables": asked.tables.port}[name]
            with flooded(port, connections=2000, drip=drip):
                check_quick(ask)
        with flooded(*places, connections=2000, drip=drip):
            for ask in asks(asked).values():
                check_quick(ask)
            assert asked.process.num_fds() < 1024


def test_a_process_without_files_still_answers_and_does_not_spin() -> None:
    with servers(256, "--full") as asked:
        for name in ("metrics", "presenter"):
            check_quick(asks(asked)[name])
        check_quick(asked.ask_permit)
        with flooded(asked.ports["metrics"], asked.permits.port, connections=100):
            for ask in (asks(asked)["metrics"], asked.ask_permit):
                check_quick(ask)
            before = sum(asked.process.cpu_times()[:2])
            began = time.monotonic()
            check_quick(asked.ask_permit)
            time.sleep(0.5)
            assert sum(asked.process.cpu_times()[:2]) - before < 0.5 * (time.monotonic() - began) + 0.3
