"""PostgreSQL, killed or stopped, and the network between it and the job, through a proxy of ours.

Readers of the proof do not pass the proxy. Whatever is done ends here: a server is up again, a network whole, and a
reply that was not lost in time is not lost later, when nobody would tell.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Protocol

import psutil

from lockgate.proof.faults import Strike
from lockgate.services.postgresproxy import PostgresProxy
from lockgate.services.stack import Stack

_AWAY_SECONDS = (0.0, 4.0)
_PAUSE_SECONDS = (2.0, 6.0)
_CUT_SECONDS = (2.0, 8.0)
_SLOW_SECONDS = (4.0, 10.0)
_DELAY_SECONDS = (0.02, 0.3)
_REPLY_LIMIT = timedelta(seconds=30)


class Scene(Protocol):
    """What a fault of a database finds."""

    @property
    def stack(self) -> Stack:
        """The services of the proof."""

    @property
    def postgres_proxy(self) -> PostgresProxy | None:
        """Between the job and PostgreSQL, where a trial breaks the network."""

    @property
    def rng(self) -> random.Random:
        """Of the trial."""


def kill_postgres(scene: Scene, strike: Strike) -> str | None:
    """All its processes; it is started again over its data."""
    server = scene.stack.postgres
    pid = server.daemon.pid
    if pid is None:
        return None
    server.kill()
    try:
        time.sleep(scene.rng.uniform(*_AWAY_SECONDS))
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
        time.sleep(scene.rng.uniform(*_PAUSE_SECONDS))
    return f"postgres {pid} and {count - 1} processes below it"


def cut_postgres(scene: Scene, strike: Strike) -> str | None:
    """Nothing passes for a while, and nobody is told."""
    with _healed(scene) as proxy:
        proxy.cut()
        time.sleep(scene.rng.uniform(*_CUT_SECONDS))
    return "all connections to PostgreSQL"


def delay_postgres(scene: Scene, strike: Strike) -> str | None:
    """Everything takes longer for a while."""
    by = timedelta(seconds=scene.rng.uniform(*_DELAY_SECONDS))
    with _healed(scene) as proxy:
        proxy.delay(by)
        time.sleep(scene.rng.uniform(*_SLOW_SECONDS))
    return f"all connections to PostgreSQL, by {by.total_seconds() * 1000:.0f} ms"


def reset_postgres(scene: Scene, strike: Strike) -> str | None:
    """Every connection is reset at both ends."""
    proxy = scene.postgres_proxy
    assert proxy is not None
    count = proxy.reset()
    return f"{count} connections to PostgreSQL" if count else None


def lose_commit(scene: Scene, strike: Strike) -> str | None:
    """A transaction is committed, and whoever asked for it never hears so."""
    with _healed(scene) as proxy:
        return "a reply to COMMIT" if proxy.lose_reply("COMMIT").wait(_REPLY_LIMIT) else None


@contextlib.contextmanager
def _healed(scene: Scene) -> Iterator[PostgresProxy]:
    proxy = scene.postgres_proxy
    assert proxy is not None
    try:
        yield proxy
    finally:
        proxy.heal()


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
