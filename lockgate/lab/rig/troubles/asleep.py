"""Processes that stop at a point and wake up later.

    a worker               as one that a busy machine has forgotten; the task waits for it
    a driver, taken over   another driver goes on in the meantime; the first one wakes up as a zombie, and has to end
    a driver, timed out    the broker gives its transaction up in the meantime; it wakes up alone

One at a time: nobody else may fall asleep while one sleeps.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence

import psutil

from lockgate.errors import Failed
from lockgate.kafka.ledgertopic import transactional_id
from lockgate.lab.rig.drivers import Driver
from lockgate.lab.rig.faults import Kind, Strike
from lockgate.lab.rig.troubles.armed import armament, victim_of
from lockgate.lab.rig.troubles.scene import Scene
from lockgate.lab.rig.troubles.trouble import Tell, Trouble

_EPOCHS_ASLEEP = 3
_IDLE_SECONDS = 3.0
_WORKER_SECONDS = (1.0, 5.0)
_LIMIT_SECONDS = 180.0


class Asleep(Trouble):
    """Faults that stop a process, one after the other."""

    def __init__(self, strikes: Sequence[Strike], scene: Scene, tell: Tell) -> None:
        self._strikes, self._scene, self._tell = strikes, scene, tell
        directory = scene.marks / "asleep"
        self.gates = [directory / f"open-{number}" for number in range(len(strikes))]
        self.faults = tuple(
            armament(one, directory, number, gate)
            for number, (one, gate) in enumerate(zip(strikes, self.gates, strict=True))
        )
        self._done = 0

    def step(self) -> None:
        if self._done == self.count:
            return
        one, victim = self._strikes[self._done], victim_of(self.faults[self._done])
        driver = self._scene.drivers.last
        if victim is None or driver is None or not _is_stopped(victim):
            return
        self._tell(self._scene.fact(one, f"process {victim}"))
        try:
            if one.kind is Kind.PAUSE_WORKER:
                self._scene.pause(_WORKER_SECONDS)
            elif one.kind is Kind.TIME_OUT:
                self._scene.wait(self._is_given_up, "the end of the transaction's time", seconds=_LIMIT_SECONDS)
            else:
                self._take_over(driver)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGCONT)
        if one.kind is Kind.PAUSE_DRIVER:
            _expect_its_end(driver)
        self.gates[self._done].unlink()
        self._done += 1
        if self._done < self.count:
            self.gates[self._done].touch()

    def _take_over(self, asleep: Driver) -> None:
        """Let another driver go on."""
        drivers = self._scene.drivers
        asleep.is_aside = True
        until = drivers.epochs() + _EPOCHS_ASLEEP

        def has_gone_on() -> bool:
            drivers.tend(self.environment())
            # No more epochs come than there are events for.
            is_idle = drivers.consumed() >= self._scene.sent() and _is_up_since(drivers.last, _IDLE_SECONDS)
            return drivers.epochs() >= until or is_idle

        self._scene.wait(has_gone_on, "that another driver goes on", seconds=_LIMIT_SECONDS)

    def _is_given_up(self) -> bool:
        with self._scene.connection() as connection:
            code, view = connection.describe_transaction(transactional_id(self._scene.name))
        return code == 0 and view.state != "Ongoing"

    @property
    def struck(self) -> int:
        return self._done

    @property
    def count(self) -> int:
        return len(self.faults)


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False


def _is_up_since(driver: Driver | None, seconds: float) -> bool:
    return driver is not None and driver.up_at is not None and time.monotonic() - driver.up_at > seconds


def _expect_its_end(driver: Driver) -> None:
    """A driver that another one took over from has nothing left to do; what one that goes on does is judged."""
    try:
        code = driver.process.wait(timeout=_LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        driver.process.kill()
        driver.process.wait()
        return
    if code != 1:
        raise Failed(
            f"a driver that another one took over from ended with {code}: {driver.tail(3)}",
            where=str(driver.words),
            fix="report this",
        )
