"""Processes of the job that are killed or stopped from outside, at any moment.

Without a cluster, tasks run in the JVM of the driver; with one, in executors of their own. Several jobs may share a
cluster: the executors of a job carry its mark.
"""

from __future__ import annotations

import contextlib
import os
import signal

import psutil

from lockgate.lab.rig.drivers import Driver
from lockgate.lab.rig.faults import Strike
from lockgate.lab.rig.troubles.scene import Scene
from lockgate.spark.workers import MODULE

_PAUSE_SECONDS = (1.0, 5.0)
_MACHINE_AWAY_SECONDS = (0.0, 3.0)
_RIVALS_SECONDS = 180.0


def kill_driver(scene: Scene, strike: Strike) -> str | None:
    """Kill the Python process of the driver; its JVM notices that by itself."""
    driver = scene.running
    if driver is None:
        return None
    driver.kill()
    return f"driver {driver.number}"


def kill_job(scene: Scene, strike: Strike) -> str | None:
    """Kill the driver, its JVM and everything below at once."""
    driver = scene.running
    return None if driver is None else f"driver {driver.number} and {kill_family(driver)} processes below it"


def kill_worker(scene: Scene, strike: Strike) -> str | None:
    """Kill the Python worker of a task."""
    worker = _worker(scene)
    return f"worker {worker}" if worker is not None and send(worker, signal.SIGKILL) else None


def pause_worker(scene: Scene, strike: Strike) -> str | None:
    """Stop the Python worker of a task for a while."""
    worker = _worker(scene)
    return f"worker {worker}" if scene.stop_for(worker, _PAUSE_SECONDS) else None


def kill_executor(scene: Scene, strike: Strike) -> str | None:
    """Kill the JVM in which tasks run."""
    jvm = executor_of(scene)
    return f"JVM {jvm}" if jvm is not None and send(jvm, signal.SIGKILL) else None


def pause_executor(scene: Scene, strike: Strike) -> str | None:
    """Stop the JVM in which tasks run for a while."""
    jvm = executor_of(scene)
    return f"JVM {jvm}" if scene.stop_for(jvm, _PAUSE_SECONDS) else None


def kill_machine(scene: Scene, strike: Strike) -> str | None:
    """Kill a Worker of the cluster with its executors and everything below; another one takes its place."""
    if scene.cluster is None or executor_of(scene) is None:
        return None
    index = scene.rng.randrange(scene.cluster.workers)
    pid = scene.cluster.kill_worker(index)
    scene.pause(_MACHINE_AWAY_SECONDS)
    scene.cluster.start_worker(index)
    return f"Worker {pid} and all below it"


def start_second_driver(scene: Scene, strike: Strike) -> str | None:
    """Start a second driver on the same checkpoint, and wait until one of them has ended."""
    first = scene.running
    if first is None or not first.is_up:
        return None
    second = scene.drivers.start({})
    rivals = (first, second)
    scene.wait(
        lambda: any(not driver.is_running for driver in rivals),
        "the end of one of two drivers",
        seconds=_RIVALS_SECONDS,
    )
    ended = [driver.number for driver in rivals if not driver.is_running]
    return f"drivers {first.number} and {second.number}; ended: {', '.join(map(str, ended))}"


# The family of a driver


def kill_family(driver: Driver) -> int:
    """Kill a driver and everything below it at once, so that nothing has time to clean up; how many were below."""
    below = psutil.Process(driver.process.pid).children(recursive=True)
    driver.process.kill()
    for process in below:
        send(process.pid, signal.SIGKILL)
    driver.process.wait()
    return len(below)


def executor_of(scene: Scene) -> int | None:
    """The JVM in which tasks of the job run; one of several, as the seed says."""
    driver = scene.running
    if driver is None:
        return None
    if scene.cluster is None:
        return _jvm_of(driver.process.pid)
    executors = _executors(scene)
    return scene.rng.choice(executors) if executors else None


def is_stopped(pid: int) -> bool:
    """Does a process stand still?"""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal; False if the process is not there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def _executors(scene: Scene) -> list[int]:
    assert scene.cluster is not None
    found, mark = [], scene.drivers.mark
    for pid in scene.cluster.executors():
        with contextlib.suppress(psutil.Error):
            if psutil.Process(pid).environ().get(mark.name) == mark.value:
                found.append(pid)
    return found


def _worker(scene: Scene) -> int | None:
    driver = scene.running
    if driver is None:
        return None
    above = [driver.process.pid] if scene.cluster is None else _executors(scene)
    workers = [worker for pid in above for worker in _workers_of(pid)]
    return scene.rng.choice(workers) if workers else None


def _workers_of(pid: int) -> list[int]:
    """The Python workers below a process: children of a daemon that the JVM has started."""
    found = []
    with contextlib.suppress(psutil.Error):
        for one in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                above = one.parent()
                if above is not None and _is_daemon(one) and _is_daemon(above):
                    found.append(one.pid)
    return sorted(found)


def _jvm_of(pid: int) -> int | None:
    with contextlib.suppress(psutil.Error):
        for one in psutil.Process(pid).children():
            if one.name() == "java":
                return one.pid
    return None


def _is_daemon(process: psutil.Process) -> bool:
    return MODULE in process.cmdline()
