"""Processes of the job that are killed or stopped from outside, at any moment.

Without a cluster tasks run in the driver's own JVM; with one, in executors of their own.
"""

from __future__ import annotations

import contextlib
import os
import signal

import psutil

from lockgate.lab.rig.drivers import jvm_of, workers_of
from lockgate.lab.rig.faults import Strike
from lockgate.lab.rig.troubles.scene import Scene

_PAUSE_SECONDS = (1.0, 5.0)
_MACHINE_AWAY_SECONDS = (0.0, 3.0)


def kill_driver(scene: Scene, strike: Strike) -> str | None:
    """Python's process of the driver; its JVM notices by itself."""
    driver = scene.running
    if driver is None:
        return None
    driver.process.kill()
    driver.process.wait()
    return f"driver {driver.number}"


def kill_job(scene: Scene, strike: Strike) -> str | None:
    """The driver, its JVM and all below it at once."""
    driver = scene.running
    if driver is None:
        return None
    below = psutil.Process(driver.process.pid).children(recursive=True)
    driver.process.kill()
    for process in below:
        _send(process.pid, signal.SIGKILL)
    driver.process.wait()
    return f"driver {driver.number} and {len(below)} processes below it"


def kill_worker(scene: Scene, strike: Strike) -> str | None:
    """The Python worker of a task."""
    worker = _worker(scene)
    return f"worker {worker}" if worker is not None and _send(worker, signal.SIGKILL) else None


def pause_worker(scene: Scene, strike: Strike) -> str | None:
    """The same, stopped for a while."""
    worker = _worker(scene)
    return f"worker {worker}" if scene.stop_for(worker, _PAUSE_SECONDS) else None


def kill_executor(scene: Scene, strike: Strike) -> str | None:
    """The JVM in which tasks run."""
    jvm = _executor(scene)
    return f"JVM {jvm}" if jvm is not None and _send(jvm, signal.SIGKILL) else None


def pause_executor(scene: Scene, strike: Strike) -> str | None:
    """The same, stopped for a while."""
    jvm = _executor(scene)
    return f"JVM {jvm}" if scene.stop_for(jvm, _PAUSE_SECONDS) else None


def kill_machine(scene: Scene, strike: Strike) -> str | None:
    """A Worker of the cluster with its executors and all below them; another one takes its place."""
    if scene.cluster is None or _executor(scene) is None:
        return None
    index = scene.rng.randrange(scene.cluster.workers)
    pid = scene.cluster.kill_worker(index)
    scene.pause(_MACHINE_AWAY_SECONDS)
    scene.cluster.start_worker(index)
    return f"Worker {pid} and all below it"


def _executor(scene: Scene) -> int | None:
    driver = scene.running
    if driver is None:
        return None
    if scene.cluster is None:
        return jvm_of(driver.process.pid)
    executors = scene.cluster.executors()
    return scene.rng.choice(executors) if executors else None


def _worker(scene: Scene) -> int | None:
    driver = scene.running
    if driver is None:
        return None
    above = [driver.process.pid] if scene.cluster is None else scene.cluster.executors()
    workers = [worker.pid for pid in above for worker in workers_of(pid)]
    return scene.rng.choice(workers) if workers else None


def _send(pid: int, number: signal.Signals) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False
