import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from lockgate.errors import BadMachine, ServiceFailed
from lockgate.lab.services import ports
from lockgate.lab.services.processes import Mark
from lockgate.lab.services.spark import SparkCluster
from support.process import Process, program, running
from support.waiting import PATIENCE_SECONDS, wait_for

LIMIT = timedelta(seconds=PATIENCE_SECONDS)


@dataclass
class Application:
    """A running application, and the directory of its jobs."""

    process: Process
    directory: Path
    jobs: int = 0

    def begin(self) -> Path:
        """Begin a job, and return its directory when each of both Workers is busy with a task of it."""
        self.jobs += 1
        place = self.directory / f"job-{self.jobs}"
        place.mkdir()
        self.wait_for("two tasks", lambda: {path.name[-1] for path in place.glob("begun-*")} == {"0", "1"})
        return place

    def end(self, place: Path) -> Any:
        """Let a job end; its result."""
        (place / "gate").touch()
        self.wait_for("the result", (place / "result").exists)
        return json.loads((place / "result").read_text())

    def wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        self.process.wait_for(what, condition)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A cluster that the tests below break as they like; the last one stops it."""
    with SparkCluster(tmp_path_factory.mktemp("spark") / "cluster") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def application(cluster: SparkCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    directory = tmp_path_factory.mktemp("driver")
    with running(*program("gated", cluster.master, directory), cwd=directory) as process:
        yield Application(process, directory)


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"cores": 0}, {"memory_mib": -1}])
def test_a_cluster_of_nothing_is_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(BadMachine, match="one or more of each"):
        SparkCluster(tmp_path, **wrong)


def test_a_cluster_that_is_not_up_says_so_and_leaves_no_trace(tmp_path: Path) -> None:
    cluster = SparkCluster(tmp_path / "cluster")
    with pytest.raises(BadMachine, match=r"SparkCluster\.up"):
        _ = cluster.master
    with pytest.raises(BadMachine, match=r"SparkCluster\.up"):
        cluster.kill_worker(0)
    assert cluster.executors() == []
    with pytest.raises(BadMachine, match="no executor 0 to kill: 0 run"):
        cluster.kill_executor()
    cluster.down()
    assert not (tmp_path / "cluster").exists()


@pytest.mark.system
@pytest.mark.process
def test_a_mark_finds_and_kills_what_its_parents_left_behind() -> None:
    mark = Mark("LOCKGATE_TEST_MARK", f"{os.getpid()}")
    orphan = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'input()'], stdin=0, stdout=2).pid)"
    holder, held = os.pipe()
    told = subprocess.run(
        [sys.executable, "-c", orphan],
        stdin=holder,
        stdout=subprocess.PIPE,
        env={**os.environ, mark.name: mark.value},
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    wait_for("one carrier", lambda: [process.pid for process in mark.carriers()] == [int(told.stdout)])
    assert Mark(mark.name, "another").carriers() == []
    assert mark.kill(LIMIT) == []
    wait_for("its end", lambda: not is_running(int(told.stdout)))
    for end in (holder, held):
        os.close(end)


@pytest.mark.system
def test_a_job_runs_on_both_workers(cluster: SparkCluster, application: Application) -> None:
    place = application.begin()
    assert len(cluster.executors()) == 2
    assert application.end(place) == {"ids": list(range(100)), "machines": [0, 1]}


@pytest.mark.system
def test_a_job_whose_executor_is_killed_ends_right_and_gets_another_executor(
    cluster: SparkCluster, application: Application
) -> None:
    place = application.begin()
    before = cluster.executors()
    killed = cluster.kill_executor(index=1)
    assert killed == before[1]
    assert not is_running(killed)
    assert application.end(place)["ids"] == list(range(100))
    assert list(place.glob("begun-*-1-on-*")), "the task of the dead executor was tried again"
    application.wait_for("two executors", lambda: len(cluster.executors()) == 2)
    assert killed not in cluster.executors()


@pytest.mark.system
def test_a_job_continues_without_a_killed_worker_and_uses_the_one_that_comes(
    cluster: SparkCluster, application: Application
) -> None:
    place = application.begin()
    with pytest.raises(BadMachine, match="kill it first"):
        cluster.start_worker(1)
    (cluster.root / "worker-1" / "work" / "old").touch()
    lost = [process.pid for process in of_cluster(cluster.root, "worker-1")]
    assert cluster.kill_worker(1) in lost
    assert len(lost) > 2, "the Worker, its executor, the executor's Python"
    assert not any(is_running(pid) for pid in lost)
    with pytest.raises(BadMachine, match="Worker 1 does not run"):
        cluster.kill_worker(1)
    assert application.end(place) == {"ids": list(range(100)), "machines": [0]}

    with ThreadPoolExecutor(1) as thread:  # the Worker outlives the thread that starts it
        thread.submit(cluster.start_worker, 1).result()
    assert not (cluster.root / "worker-1" / "work" / "old").exists()
    assert application.end(application.begin()) == {"ids": list(range(100)), "machines": [0, 1]}


@pytest.mark.system
def test_a_worker_that_does_not_exist_is_refused(cluster: SparkCluster) -> None:
    with pytest.raises(BadMachine, match=r"no Worker 7[\s\S]*\[0, 1\]"):
        cluster.kill_worker(7)
    with pytest.raises(BadMachine, match="no Worker -1"):
        cluster.start_worker(-1)


@pytest.mark.system
def test_down_leaves_no_process_even_in_the_middle_of_a_job(cluster: SparkCluster, application: Application) -> None:
    application.begin()
    processes = of_cluster(cluster.root)
    assert len(processes) > 6, "Master, Workers, executors, their Python"
    cluster.down()
    assert of_cluster(cluster.root) == []
    assert not any(is_running(process.pid) for process in processes)
    assert cluster.executors() == []
    cluster.down()


@pytest.mark.system
def test_a_start_that_fails_half_way_says_why_and_leaves_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SparkCluster(tmp_path / "cluster", workers=1)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        chosen = ports.choose
        taken = [stranger.getsockname()[1]]
        monkeypatch.setattr(ports, "choose", lambda count, *a, **b: taken if count == 1 else chosen(count, *a, **b))
        with pytest.raises(ServiceFailed, match=r"Worker 0 has ended[\s\S]*Address already in use[\s\S]*worker\.log"):
            cluster.up()
    assert of_cluster(cluster.root) == []
    with pytest.raises(BadMachine, match="not up"):
        _ = cluster.master


@pytest.mark.system
@pytest.mark.process
def test_the_cluster_dies_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    root = tmp_path / "cluster"
    code = f"""
import signal
from pathlib import Path
from lockgate.lab.services.spark import SparkCluster
cluster = SparkCluster(Path({str(root)!r}), workers=1)
cluster.up()
Path({str(tmp_path)!r}, "up").touch()
signal.pause()
"""
    with running(sys.executable, "-c", code, cwd=tmp_path) as owner:
        owner.wait_for("the cluster", (tmp_path / "up").exists)
        assert len(of_cluster(root)) == 2
        owner.end(signal.SIGKILL)
        wait_for("the end of the cluster", lambda: of_cluster(root) == [])
    assert of_cluster(root) == []


def of_cluster(root: Path, part: str = "") -> list[psutil.Process]:
    """The processes that write under a cluster's root or a part of it, found by what they were told, not by mark."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("SPARK_LOCAL_DIRS", "").startswith(str(root / part)):
                found.append(process)
    return found


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
