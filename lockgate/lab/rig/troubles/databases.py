"""PostgreSQL, killed or stopped; it is up again when a fault is over."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Collection, Iterator, Sequence

import psutil

from lockgate.errors import Failed
from lockgate.faultpoints import Fault as Armament
from lockgate.lab.rig.faults import Strike
from lockgate.lab.rig.troubles.armed import Armed, victim_of
from lockgate.lab.rig.troubles.processes import is_stopped, send
from lockgate.lab.rig.troubles.scene import Scene
from lockgate.lab.rig.troubles.trouble import Tell

_AWAY_SECONDS = (0.0, 4.0)
_PAUSE_SECONDS = (2.0, 6.0)
_LIMIT_SECONDS = 60.0
_WAITS = "waiting for PostgreSQL since"  # what a driver says when it does


def kill_postgres(scene: Scene, strike: Strike) -> str | None:
    """Kill all its processes; it is started again over its data."""
    server = scene.postgres
    if server is None or (pid := server.daemon.pid) is None:
        return None
    server.kill()
    try:
        scene.pause(_AWAY_SECONDS)
    finally:
        server.start()
    server.wait()
    return f"postgres {pid} and all below it"


def pause_postgres(scene: Scene, strike: Strike) -> str | None:
    """Stop all its processes for a while: it takes connections and says nothing."""
    if scene.postgres is None or (pid := scene.postgres.daemon.pid) is None:
        return None
    with _stopped(pid) as count:
        scene.pause(_PAUSE_SECONDS)
    return f"postgres {pid} and {count - 1} processes below it"


class Crashes(Armed):
    """PostgreSQL dies, with all its processes, while a process of the job stands still at a point.

    It is back before the stopped process goes on. At points of `stays_away` it is back only when the driver has said
    that it waits.
    """

    directory = "crashes"

    def __init__(
        self, strikes: Sequence[Strike], scene: Scene, tell: Tell, *, stays_away: Collection[str] = ()
    ) -> None:
        super().__init__(strikes, scene, tell)
        self._stays_away = stays_away

    def is_ready(self, victim: int) -> bool:
        return is_stopped(victim)

    def follow(self, fault: Armament, victim: int) -> None:
        server = self._scene.postgres
        assert server is not None
        server.kill()
        if fault.point in self._stays_away:
            self._wake_and_await_word(victim)
        server.start()
        server.wait()
        if fault.point not in self._stays_away:  # else it may already stand still at its next point
            send(victim, signal.SIGCONT)

    def _wake_and_await_word(self, victim: int) -> None:
        driver = self._scene.running
        before = 0 if driver is None else driver.words.read_text(errors="replace").count(_WAITS)
        send(victim, signal.SIGCONT)

        def has_said_so() -> bool:
            if driver is None or not driver.is_running:
                raise Failed(
                    "the driver ended instead of waiting for PostgreSQL",
                    where=str(self._scene.drivers.directory),
                    fix="report this",
                )
            # Another fault may have stopped the job at its next point, before it noticed anything.
            is_held = any(is_stopped(pid) for fault in self.faults if (pid := victim_of(fault)) is not None)
            return is_held or driver.words.read_text(errors="replace").count(_WAITS) > before

        self._scene.wait(has_said_so, "the word of the driver that it waits for PostgreSQL", seconds=_LIMIT_SECONDS)


@contextlib.contextmanager
def _stopped(pid: int) -> Iterator[int]:
    """Stop a process and all below it; how many they are. The eldest is first, or it would have more children."""
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
