"""PostgreSQL, killed or stopped; it is up again when a fault is over."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import psutil

from lockgate.lab.rig.faults import Strike
from lockgate.lab.rig.troubles.scene import Scene

_AWAY_SECONDS = (0.0, 4.0)
_PAUSE_SECONDS = (2.0, 6.0)


def kill_postgres(scene: Scene, strike: Strike) -> str | None:
    """All its processes; it is started again over its data."""
    server = scene.stack.postgres
    pid = server.daemon.pid
    if pid is None:
        return None
    server.kill()
    try:
        scene.pause(_AWAY_SECONDS)
    finally:
        server.start()
    server.wait()
    return f"postgres {pid} and all below it"


def pause_postgres(scene: Scene, strike: Strike) -> str | None:
    """All its processes, stopped for a while: it takes connections and says nothing."""
    pid = scene.stack.postgres.daemon.pid
    if pid is None:
        return None
    with _stopped(pid) as count:
        scene.pause(_PAUSE_SECONDS)
    return f"postgres {pid} and {count - 1} processes below it"


@contextlib.contextmanager
def _stopped(pid: int) -> Iterator[int]:
    """A process and all below it, stopped; how many they are. The eldest first, which else would have more children."""
    stopped: list[psutil.Process] = []
    try:
        with contextlib.suppress(psutil.NoSuchProcess):
            eldest = psutil.Process(pid)
            eldest.send_signal(signal.SIGSTOP)
            stopped.append(eldest)
            for one in eldest.children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.send_signal(signal.SIGSTOP)
                    stopped.append(one)
        yield len(stopped)
    finally:
        for one in reversed(stopped):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGCONT)
