"""One set of real services for all processes of a test run: Kafka, PostgreSQL, HDFS, a Spark cluster.

The pytest process that was started by the user owns a keeper, a process of its own, and holds the keeper's standard
input. A test process asks the keeper through a socket. The keeper starts a service when it is asked for it first, and
answers with the address. When the owner ends, in whatever way, the pipe closes and the keeper stops what it started.

    stack      a Kafka of one broker, and a PostgreSQL
    hdfs       a name node and a data node
    cluster    a Spark Master with two Workers of one core

No test may kill or reconfigure a service of the keeper: a test that does so starts one of its own.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

from support.waiting import wait_for

DOOR = "LOCKGATE_TEST_SERVICES"
"""The variable that names the keeper's socket; worker processes of pytest inherit it."""


@contextlib.contextmanager
def kept_services() -> Iterator[None]:
    """A keeper as long as this context lasts; processes that are started meanwhile can ask it."""
    root = Path(tempfile.mkdtemp(prefix="lockgate-tests-"))
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    with (root / "keeper.log").open("wb") as log:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "support.services", str(root)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the owner, whose end the keeper notices
            env={**os.environ, "PYTHONPATH": path},
        )
    assert keeper.stdin is not None
    os.environ[DOOR] = str(root / "door")
    try:
        yield
    finally:
        del os.environ[DOOR]
        keeper.stdin.close()
        keeper.wait()
        shutil.rmtree(root)


def ask_for(service: str) -> Any:
    """Where a service is; it is started if it does not run yet."""
    door = Path(os.environ[DOOR])
    wait_for("the keeper of services", door.exists, explain=(door.parent / "keeper.log").read_text)
    with Client(str(door), family="AF_UNIX") as connection:
        connection.send(service)
        is_there, answer = connection.recv()
    if not is_there:
        raise RuntimeError(f"service {service!r} did not start: {answer}")
    return answer


@dataclass
class _Service:
    """Something that is started once and stopped in the end."""

    start: Callable[[], Any]  # gives the address
    stop: Callable[[], object]

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._answer: tuple[bool, Any] | None = None

    def answer(self) -> tuple[bool, Any]:
        with self._lock:
            if self._answer is None:
                try:
                    self._answer = (True, self.start())
                except Exception as error:  # noqa: BLE001 - told to the test that asked
                    self._answer = (False, f"{type(error).__name__}: {error}")
            return self._answer

    def end(self) -> None:
        with self._lock:
            if self._answer is not None and self._answer[0]:
                self.stop()


def _services(root: Path) -> dict[str, _Service]:
    from lockgate.lab.services.hdfs import Hdfs, new_hdfs
    from lockgate.lab.services.spark import SparkCluster
    from lockgate.lab.services.stack import Stack

    stack = Stack(root / "stack", brokers=1)
    hdfs: list[Hdfs] = []
    cluster = SparkCluster(root / "cluster", workers=2)

    def start_stack() -> Path:
        stack.up()
        return stack.root

    def start_hdfs() -> Hdfs:
        (root / "hdfs").mkdir()
        hdfs.append(new_hdfs(root / "hdfs"))  # its ports are chosen here, and free until it starts
        hdfs[0].start()
        hdfs[0].wait()
        return hdfs[0]

    def start_cluster() -> str:
        cluster.up()
        return cluster.master

    return {
        "stack": _Service(start_stack, stack.down),
        "hdfs": _Service(start_hdfs, lambda: hdfs[0].stop()),
        "cluster": _Service(start_cluster, cluster.down),
    }


def _serve(root: Path) -> None:
    services = _services(root)

    def answer(connection: Any) -> None:
        with connection, contextlib.suppress(EOFError, OSError):
            connection.send(services[connection.recv()].answer())

    def accept(listener: Listener) -> None:
        while True:
            threading.Thread(target=answer, args=(listener.accept(),), daemon=True).start()

    # A socket exists before it listens, so it gets its name when it does.
    listener = Listener(str(root / "door.new"), family="AF_UNIX", backlog=64)
    (root / "door.new").rename(root / "door")
    threading.Thread(target=accept, args=(listener,), daemon=True).start()
    sys.stdin.buffer.read()
    for service in services.values():
        service.end()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
