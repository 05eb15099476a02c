"""Processes that stand still at a point and wake up later.

    a worker               as on a busy machine; its task waits for it
    a driver, taken over   another driver goes on in the meantime; the first one wakes up as a zombie, and has to end.
                           It stands still itself, or waits for a worker that does
    a driver, timed out    the broker aborts its transaction in the meantime; it wakes up alone
    a machine              with all its processes; the job goes on elsewhere, and the task that wakes up has to end

One at a time: no other process stands still while one does.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence

import psutil

from lockgate.connectors.kafka.ledgertopic import transactional_id
from lockgate.errors import Failed
from lockgate.faultpoints import Fault as Armament
from lockgate.lab.rig.drivers import Driver, GiveUp
from lockgate.lab.rig.faults import Kind, Strike
from lockgate.lab.rig.troubles.armed import armament, victim_of
from lockgate.lab.rig.troubles.processes import is_stopped, send
from lockgate.lab.rig.troubles.scene import Scene
from lockgate.lab.rig.troubles.trouble import Tell, Trouble
from lockgate.lab.services.processes import Mark
from lockgate.lab.services.spark import MACHINE

EPOCHS_ASLEEP = 3
_IDLE_SECONDS = 3.0
_WORKER_SECONDS = (1.0, 5.0)
_LIMIT_SECONDS = 180.0


class Pauses(Trouble):
    """Faults that stop a process, one after the other."""

    def __init__(self, strikes: Sequence[Strike], scene: Scene, tell: Tell) -> None:
        self._scene, self._tell = scene, tell
        directory = scene.drivers.directory / "marks" / "asleep"
        self.gates = [directory / f"open-{number}" for number in range(len(strikes))]
        self.faults = tuple(
            armament(one, directory, number, gate)
            for number, (one, gate) in enumerate(zip(strikes, self.gates, strict=True))
        )
        self._nights = [self._sleep(one, fault) for one, fault in zip(strikes, self.faults, strict=True)]
        self.count = len(strikes)

    def step(self) -> None:
        if self.struck == self.count:
            return
        for _ in self._nights[self.struck]:
            return  # it is not over yet
        self.gates[self.struck].unlink()
        self.struck += 1
        if self.struck < self.count:
            self.gates[self.struck].touch()

    def _sleep(self, one: Strike, fault: Armament) -> Iterator[None]:
        """Wait for the process to stand still, let pass what has to pass, and wake it up; a look at a time."""
        while (victim := victim_of(fault)) is None or not is_stopped(victim):
            yield
        driver = self._scene.drivers.last
        assert driver is not None
        self._tell(self._scene.fact(one, f"process {victim}"))
        if one.kind is Kind.PAUSE_MACHINE:
            yield from self._pause_machine(victim)
            return
        if one.kind is Kind.PAUSE_DRIVER:
            driver.is_aside = True
            yield from self._let_epochs_pass()
        elif one.kind is Kind.TIME_OUT:
            self._scene.wait(self._is_aborted, "the end of the transaction's time", seconds=_LIMIT_SECONDS)
        else:
            self._scene.pause(_WORKER_SECONDS)
        send(victim, signal.SIGCONT)
        if one.kind is Kind.PAUSE_DRIVER:
            self._expect_its_end(driver)

    def _pause_machine(self, worker: int) -> Iterator[None]:
        machine = Mark(MACHINE, psutil.Process(worker).environ()[MACHINE]).carriers()
        for process in machine:
            process.suspend()
        yield from self._let_epochs_pass()
        for process in reversed(machine):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        yield from self._let_epochs_pass()
        # The task has written what it had to write when its process has ended: a task that is refused ends.
        while psutil.pid_exists(worker) and psutil.Process(worker).status() != psutil.STATUS_ZOMBIE:
            yield

    def _let_epochs_pass(self) -> Iterator[None]:
        """Let the job go on for some epochs; if there are no events for so many, until it is idle."""
        drivers = self._scene.drivers
        until = drivers.epochs() + EPOCHS_ASLEEP
        while drivers.epochs() < until and not self._is_idle():
            yield

    def _is_idle(self) -> bool:
        up_at = None if self._scene.running is None else self._scene.running.up_at
        is_up = up_at is not None and time.monotonic() - up_at > _IDLE_SECONDS
        return is_up and self._scene.drivers.consumed() >= self._scene.sent()

    def _is_aborted(self) -> bool:
        with contextlib.closing(self._scene.connect()) as connection:
            code, view = connection.describe_transaction(transactional_id(self._scene.name))
        return code == 0 and view.state != "Ongoing"

    def _expect_its_end(self, driver: Driver) -> None:
        """A driver that another one took over from has to end; if it goes on, what it does is judged."""
        try:
            code = driver.process.wait(timeout=_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            driver.kill()
            told = f"driver {driver.number} went on after another one took over:\n{driver.tail()}"
            self._scene.drivers.gave_up.append(GiveUp(self._scene.drivers.epochs(), driver.process.returncode, told))
            return
        if code != 1:
            raise Failed(
                f"a driver that another one took over from ended with {code}: {driver.tail(3)}",
                where=str(driver.words),
                fix="report this",
            )
