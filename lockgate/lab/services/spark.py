"""A real Spark cluster on this machine: one standalone Master and its Workers, made to be killed piece by piece.

In a local session the driver, the executors and the tasks are one process, and nothing in it can die alone. Here each
is a process of its own:

    kill_executor    its Worker tells the Master at once, which starts another one; the tasks are retried
    kill_worker      Worker, executors and their Python die together, as if the machine was gone
    start_worker     a machine joins in its place, with nothing of what the first one had

The law: no process of the cluster outlives its owner, which called `up`. Every process has the cluster's mark in its
environment. All marked processes are killed

    by `up`           when the start fails half way
    by `down`         after a request to Workers and Master to end
    by the guard      when the owner ends in any other way, kill -9 among them

The guard is a small process that waits for the end of a pipe whose other end only the owner holds. The kernel could do
the same without it (PR_SET_PDEATHSIG), but means the thread, not the process: a Worker that was started from a thread
would die with that thread.

Everything listens on the loopback interface only, and everything written is under the root.
"""

import contextlib
import http.client
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from lockgate.errors import BadMachine, ServiceFailed
from lockgate.lab.services import ports
from lockgate.lab.services.ports import HOST
from lockgate.lab.services.processes import Daemon, Mark, children, kill
from lockgate.modulepath import module_path
from lockgate.provision.classes import spark_classes
from lockgate.provision.java import find_java
from lockgate.spark.authentication import AUTHENTICATION, SECRET_VARIABLE

if TYPE_CHECKING:
    import psutil  # where it is missing, `processes` says how to install it

START_LIMIT = timedelta(seconds=90)
STOP_LIMIT = timedelta(seconds=20)
KILL_LIMIT = timedelta(seconds=20)
HEAP = "256m"

_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_CLUSTER, MACHINE = "LOCKGATE_SPARK_CLUSTER", "LOCKGATE_SPARK_MACHINE"

# For Master and Workers; what an application wants is its driver's to say.
SETTINGS = {
    # By default an application is given up when ten of its executors have died. Ours are killed on purpose.
    "spark.deploy.maxExecutorRetries": "-1",
    # A killed Worker is noticed when its connection breaks. This is for one that hangs: it is missed after so many
    # seconds, and much less would take a busy machine for a dead one.
    "spark.worker.timeout": "20",
    # A port that is taken is an error: the next one would be unknown to us.
    "spark.port.maxRetries": "0",
    "spark.master.rest.enabled": "false",
    "spark.shuffle.service.enabled": "false",
    "spark.log.structuredLogging.enabled": "false",
}


@dataclass(frozen=True)
class _Running:
    """What every `up` decides again."""

    port: int
    web_port: int
    cluster: Mark
    guard: "subprocess.Popen[bytes]"
    worker_ports: dict[int, int]


class SparkCluster:
    """A Master and its Workers, all processes of ours.

    The default memory is what one executor asks for by default; a Worker with less runs only what asks for less.
    A driver on a machine that cannot resolve its own name needs SPARK_LOCAL_IP=127.0.0.1 in its environment.

    Args:
        root: the directory of the cluster's settings, logs and work.
        cores: of each Worker.
        memory_mib: what each Worker gives to its executors.
        python: the Python of the machines, which then knows nothing of ours; without it they have the owner's.
        secret: what Master, Workers and executors ask for; a driver needs it, too (lockgate/spark/authentication.py).
    """

    def __init__(
        self,
        root: Path,
        *,
        workers: int = 2,
        cores: int = 1,
        memory_mib: int = 1024,
        python: Path | None = None,
        secret: str | None = None,
    ) -> None:
        if min(workers, cores, memory_mib) < 1:
            raise BadMachine(
                "A Spark cluster needs a Worker, and every Worker a core and some memory.",
                f"workers={workers}, cores={cores}, memory_mib={memory_mib}",
                "ask for one or more of each",
            )
        self.root = root.absolute()
        self.workers, self.cores, self.memory_mib, self.python = workers, cores, memory_mib, python
        self._secret = secret
        self._running: _Running | None = None

    def __enter__(self) -> "SparkCluster":
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    @property
    def master(self) -> str:
        """The address to give to a driver; another one after every `up`."""
        return f"spark://{HOST}:{self._require_up().port}"

    def up(self) -> None:
        """Start the Master and all Workers; returns when every one is registered, ServiceFailed where not in time."""
        if self._running is not None:
            return
        find_java()  # refuse here with the fix, before Spark's own scripts fail
        self._await_predecessor()
        self.root.mkdir(parents=True, exist_ok=True)
        settings = SETTINGS if self._secret is None else {**SETTINGS, **AUTHENTICATION}
        self._settings.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        port, web_port = ports.choose(2, random.Random())
        cluster = Mark(_CLUSTER, uuid.uuid4().hex)
        self._running = _Running(port, web_port, cluster, self._start_guard(cluster), worker_ports={})
        try:
            self._start_master(self._running)
            # A Worker that finds no Master tries again only after five to fifteen seconds.
            self._wait_for_master(self._running)
            for index in range(self.workers):
                self._launch_worker(self._running, index)
            self._wait_for_workers(self._running, list(range(self.workers)))
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Stop everything, executors and their Python too; ServiceFailed where something is left."""
        running = self._running
        if running is None:
            return
        deadline = time.monotonic() + STOP_LIMIT.total_seconds()
        # 1. Workers end their executors, then themselves. 2. The Master. 3. Kill those that do not react.
        for daemons in ([self._worker(index) for index in range(self.workers)], [self._master]):
            for daemon in daemons:
                daemon.send(signal.SIGTERM)
            for daemon in daemons:
                daemon.wait_for_end(timedelta(seconds=max(0.0, deadline - time.monotonic())))
        self._kill_carriers(running.cluster)
        # The guard goes last: until here it would have done all this in our place.
        self._running = None
        if running.guard.stdin is not None:
            running.guard.stdin.close()
        running.guard.wait()

    def executors(self) -> list[int]:
        """The process ids of the executors that run now, those of the first Worker first."""
        return [executor.pid for executor in self._executors()]

    def kill_executor(self, *, index: int = 0) -> int:
        """Kill one executor with -9, as a crash would, and return its process id when it is dead.

        Its Python workers notice by themselves and end a moment later, as they do after a crash. To Spark this is a
        failure of every task that ran there: a task fails permanently after as many executors as it has attempts.
        """
        found = self._executors()
        if not 0 <= index < len(found) or not kill(found[index], KILL_LIMIT):
            raise BadMachine(
                f"There is no executor {index} to kill: {len(self._executors())} run.",
                str(self.root),
                "wait until the application has its executors: SparkCluster.executors()",
            )
        return found[index].pid

    def kill_worker(self, index: int) -> int:
        """Kill a Worker and all that it started with -9, as if its machine was gone; the Worker's process id."""
        running = self._require_up()
        self._require_worker(index)
        pid = self._worker(index).pid
        if pid is None:
            raise BadMachine(
                f"Worker {index} does not run.", str(self._home(index)), f"start it first: start_worker({index})"
            )
        self._kill_carriers(self._machine(running, index))
        return pid

    def start_worker(self, index: int) -> None:
        """Start a Worker that was killed, with an empty directory, and return when it is registered."""
        running = self._require_up()
        self._require_worker(index)
        if self._worker(index).pid is not None:
            raise BadMachine(
                f"Worker {index} runs already.", str(self._home(index)), f"kill it first: kill_worker({index})"
            )
        self._launch_worker(running, index)
        self._wait_for_workers(running, [index])

    # -- processes ------------------------------------------------------------------------------------------------

    @property
    def _settings(self) -> Path:
        """Given by name: a directory of settings would be on the class path, which then has no archive."""
        return self.root / "spark.conf"

    @property
    def _master(self) -> Daemon:
        return Daemon(name="master", directory=self.root / "master")

    def _worker(self, index: int) -> Daemon:
        return Daemon(name="worker", directory=self._home(index))

    def _executors(self) -> "list[psutil.Process]":
        pids = [self._worker(index).pid for index in range(self.workers)]
        return [child for pid in pids if pid is not None for child in children(pid, _EXECUTOR)]

    def _home(self, index: int) -> Path:
        return self.root / f"worker-{index}"

    def _machine(self, running: _Running, index: int) -> Mark:
        return Mark(MACHINE, f"{running.cluster.value}-{index}")

    def _start_master(self, running: _Running) -> None:
        self._master.directory.mkdir(exist_ok=True)
        command: list[str | Path] = [_spark_home() / "bin" / "spark-class", "org.apache.spark.deploy.master.Master"]
        command += ["--host", HOST, "--port", str(running.port), "--webui-port", str(running.web_port)]
        command += ["--properties-file", self._settings]
        self._master.start(command, environ=self._environ(self._master.directory, [running.cluster]))

    def _launch_worker(self, running: _Running, index: int) -> None:
        """Start a Worker in an empty directory, without waiting for it."""
        machine, home = self._machine(running, index), self._home(index)
        self._kill_carriers(machine)  # a Worker that died by itself may have left executors
        for part in ("work", "local", "tmp"):
            shutil.rmtree(home / part, ignore_errors=True)
            (home / part).mkdir(parents=True)
        # Another port than before, so that the Master cannot take the new Worker for the old one.
        running.worker_ports[index] = ports.choose(1, random.Random(), taken=running.worker_ports.values())[0]
        command: list[str | Path] = [_spark_home() / "bin" / "spark-class", "org.apache.spark.deploy.worker.Worker"]
        command += ["--host", HOST, "--port", str(running.worker_ports[index]), "--webui-port", "0"]
        command += ["--work-dir", home / "work", "--properties-file", self._settings]
        command += ["--cores", str(self.cores), "--memory", f"{self.memory_mib}M", f"spark://{HOST}:{running.port}"]
        self._worker(index).start(command, environ=self._environ(home, [running.cluster, machine]))

    def _environ(self, home: Path, marks: list[Mark]) -> dict[str, str]:
        """Ours without what is meant for another Spark; executors and their Python inherit all of it."""
        (home / "tmp").mkdir(exist_ok=True)
        foreign = ("SPARK_", "PYSPARK_", "_SPARK_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        # What a killed JVM leaves in its temporary directory (a native library of RocksDB, each time) goes with `home`.
        told_java = [f"-Djava.io.tmpdir={home / 'tmp'}", *spark_classes().options(find_java())]
        java_options = " ".join([kept.get("JDK_JAVA_OPTIONS", ""), *(f'"{option}"' for option in told_java)])
        return {
            **kept,
            **{mark.name: mark.value for mark in marks},
            **({} if self._secret is None else {SECRET_VARIABLE: self._secret}),
            "SPARK_HOME": str(_spark_home()),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_PUBLIC_DNS": HOST,
            "SPARK_LOCAL_DIRS": str(home / "local"),
            "SPARK_DAEMON_MEMORY": HEAP,
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "JDK_JAVA_OPTIONS": java_options.strip(),
            "TMPDIR": str(home / "tmp"),
            "PYSPARK_PYTHON": str(self.python or sys.executable),
            "PYTHONPATH": "" if self.python is not None else module_path(),
        }

    def _start_guard(self, cluster: Mark) -> "subprocess.Popen[bytes]":
        with (self.root / "guard.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "lockgate.lab.services.spark", cluster.value],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self.root,
                env={**os.environ, "PYTHONPATH": module_path()},
                start_new_session=True,  # Ctrl-C is for us; the guard must see us end
            )

    def _kill_carriers(self, mark: Mark) -> None:
        left = mark.kill(KILL_LIMIT)
        if left:
            raise ServiceFailed(
                f"Processes of the Spark cluster do not die: {left}.",
                str(self.root),
                f"see what they wait for (a disk that hangs?) and end them: kill -9 {' '.join(map(str, left))}",
            )

    # -- conditions -----------------------------------------------------------------------------------------------

    def _await_predecessor(self) -> None:
        """Wait for the guard of an owner that was killed; a cluster that stays has a living owner."""
        deadline = time.monotonic() + STOP_LIMIT.total_seconds()
        homes = [self._master, *(Daemon("worker", home.parent) for home in self.root.glob("worker-*/worker.pid"))]
        while any(daemon.pid is not None for daemon in homes):
            if time.monotonic() > deadline:
                raise BadMachine(
                    "Another process has a Spark cluster here.", str(self.root), "give each cluster a root of its own"
                )
            time.sleep(0.05)

    def _wait_for_master(self, running: _Running) -> None:
        deadline = time.monotonic() + START_LIMIT.total_seconds()
        while _registered_ports(running.web_port) is None:
            self._require_life(self._master, "The Spark Master", deadline, "answer")
            time.sleep(0.05)

    def _wait_for_workers(self, running: _Running, indices: list[int]) -> None:
        deadline = time.monotonic() + START_LIMIT.total_seconds()
        while True:
            registered = _registered_ports(running.web_port) or set()
            missing = [index for index in indices if running.worker_ports[index] not in registered]
            if not missing:
                return
            self._require_life(self._master, "The Spark Master", None, "")
            for index in missing:
                self._require_life(self._worker(index), f"Spark Worker {index}", deadline, "register with the Master")
            time.sleep(0.05)

    def _require_life(self, daemon: Daemon, name: str, deadline: float | None, awaited: str) -> None:
        """ServiceFailed where a process has ended, or the time is over."""
        if daemon.pid is None:
            what = "has ended"
        elif deadline is not None and time.monotonic() > deadline:
            what = f"did not {awaited} within {START_LIMIT.total_seconds():.0f} seconds"
        else:
            return
        raise ServiceFailed(
            f"{name} {what}. The end of its log:\n{daemon.log_tail()}",
            str(daemon.log),
            "fix what the log says; if another program took the port, start again",
        )

    def _require_up(self) -> _Running:
        if self._running is None:
            raise BadMachine("The Spark cluster is not up.", str(self.root), "start it first: SparkCluster.up()")
        return self._running

    def _require_worker(self, index: int) -> None:
        if not 0 <= index < self.workers:
            raise BadMachine(f"There is no Worker {index}.", str(self.root), f"name one of {list(range(self.workers))}")


def _spark_home() -> Path:
    """The Spark inside the installed pyspark, which a SPARK_HOME of another Spark does not change."""
    spec = importlib.util.find_spec("pyspark")
    for place in (spec.submodule_search_locations if spec else None) or ():
        if (Path(place) / "bin" / "spark-class").is_file():
            return Path(place)
    raise BadMachine("The installed pyspark holds no Spark.", "package pyspark", "pip install pyspark, the whole one")


def _registered_ports(web_port: int) -> set[int] | None:
    """The ports of the Workers that the Master holds for alive; None while it does not answer."""
    connection = http.client.HTTPConnection(HOST, web_port, timeout=5)  # urllib would ask a proxy
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException, ValueError):
        connection.request("GET", "/json/")
        told = json.loads(connection.getresponse().read())
        return {int(worker["port"]) for worker in told["workers"] if worker["state"] == "ALIVE"}
    return None


def _guard(value: str) -> None:
    """Wait for the end of the owner, which ends our standard input; then kill all that carry its mark."""
    while sys.stdin.buffer.read(1):
        pass
    Mark(_CLUSTER, value).kill(KILL_LIMIT)


if __name__ == "__main__":
    _guard(sys.argv[1])
