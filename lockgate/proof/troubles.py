"""How faults are done to a running job, one trial's faults in one way each.

    Armed      processes of the job kill themselves at points of the protocol, each fault once
    Paused     a driver is stopped at a point, another one takes over and goes on, then the first one wakes up
    Outside    somebody outside kills processes, or breaks the network, while the job is at work

A fault is told when it is known to have struck: an armed one by the mark that the dying process leaves.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import psutil

from lockgate.errors import Failed
from lockgate.faultpoints import Fault as Armament
from lockgate.faultpoints import as_environment
from lockgate.proof.drivers import Driver, Drivers, stopped_of, workers_of
from lockgate.proof.faults import Kind, Strike
from lockgate.proof.history import Fault
from lockgate.services.kafkaproxy import Api, KafkaProxy
from lockgate.services.stack import Stack

_ACTIONS = {Kind.KILL_DRIVER: "kill", Kind.KILL_WORKER: "kill", Kind.KILL_JVM: "kill-jvm"}
_CUT_SECONDS = (2.0, 8.0)
_BROKER_AWAY_SECONDS = (0.0, 4.0)
_EPOCHS_BETWEEN = (1, 3)
_EPOCHS_ASLEEP = 3
_ZOMBIE_SECONDS = 180.0

Tell = Callable[[Fault], None]


class Trouble(ABC):
    """What befalls a job in one trial."""

    def environment(self) -> Mapping[str, str]:
        """What arms the driver that is about to be started."""
        return {}

    @abstractmethod
    def step(self, drivers: Drivers) -> None:
        """Do what is due now; called many times a second."""

    @property
    @abstractmethod
    def struck(self) -> int:
        """How many faults have struck."""

    @property
    @abstractmethod
    def count(self) -> int:
        """How many there are."""


class Armed(Trouble):
    """Faults at points, all armed from the first start on; each strikes once."""

    def __init__(self, strikes: Sequence[Strike], directory: Path, tell: Tell) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._tell = tell
        self._faults = {
            Armament(
                point=one.point,
                action=_ACTIONS[one.kind],
                hit=one.hit,
                mark=str(directory / f"{number}-{one.point}"),
            ): one
            for number, one in enumerate(strikes)
        }
        self._told: set[Armament] = set()

    def environment(self) -> Mapping[str, str]:
        return as_environment(self._faults)

    def step(self, drivers: Drivers) -> None:
        for fault, one in self._faults.items():
            mark = Path(str(fault.mark))
            if fault not in self._told and mark.exists() and mark.read_text().strip():
                self._told.add(fault)
                self._tell(_fact(one, f"process {mark.read_text().strip()}", drivers))

    @property
    def struck(self) -> int:
        return len(self._told)

    @property
    def count(self) -> int:
        return len(self._faults)


class Paused(Trouble):
    """Drivers that are stopped at a point, one after the other, and wake up when another one has gone on."""

    def __init__(self, strikes: Sequence[Strike], directory: Path, tell: Tell) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._strikes, self._tell = strikes, tell
        self._faults = [
            Armament(point=one.point, action="stop", hit=2, mark=str(directory / f"{number}-{one.point}"))
            for number, one in enumerate(strikes)
        ]
        self._asleep: tuple[Driver, set[int], int] | None = None
        self._woken = 0

    def environment(self) -> Mapping[str, str]:
        # One at a time: the driver that takes over must not fall asleep itself.
        return as_environment(self._faults[self._woken : self._woken + 1] if self._asleep is None else [])

    def step(self, drivers: Drivers) -> None:
        if self._asleep is None and self._woken < len(self._faults):
            driver = drivers.last
            is_marked = Path(str(self._faults[self._woken].mark)).exists()
            stopped = stopped_of(driver.process.pid) if driver is not None and is_marked else set()
            if driver is not None and stopped:
                self._asleep = driver, stopped, drivers.epochs() + _EPOCHS_ASLEEP
                self._tell(_fact(self._strikes[self._woken], f"driver {driver.number}", drivers))
                drivers.start(self.environment())
        elif self._asleep is not None and drivers.epochs() >= self._asleep[2]:
            driver, stopped, _ = self._asleep
            for pid in stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            code = driver.process.wait(timeout=_ZOMBIE_SECONDS)
            if code != 1:
                raise Failed(
                    f"a driver that another one took over from ended with {code}: {driver.tail(3)}",
                    where=str(driver.words),
                    fix="report this",
                )
            self._asleep = None
            self._woken += 1
            here = drivers.last
            if self._woken < len(self._faults) and here is not None:
                here.process.kill()  # the next one is armed when the driver starts
                here.process.wait()

    @property
    def struck(self) -> int:
        return self._woken

    @property
    def count(self) -> int:
        return len(self._faults)


class Outside(Trouble):
    """Faults from outside, one after the other, each when the job has done some epochs since the last one."""

    def __init__(
        self, strikes: Sequence[Strike], tell: Tell, *, rng: random.Random, stack: Stack, proxy: KafkaProxy | None
    ) -> None:
        self._left = list(strikes)
        self._count = len(strikes)
        self._tell, self._rng, self._stack, self._proxy = tell, rng, stack, proxy
        self._due = rng.randint(*_EPOCHS_BETWEEN)

    def step(self, drivers: Drivers) -> None:
        if not self._left or drivers.epochs() < self._due:
            return
        time.sleep(self._rng.uniform(0, 0.5))  # anywhere in an epoch, not right behind one
        one = self._left[0]
        process = self._strike(one, drivers)
        if process is not None:
            self._left.pop(0)
            self._tell(_fact(one, process, drivers))
            self._due = drivers.epochs() + self._rng.randint(*_EPOCHS_BETWEEN)

    def _strike(self, one: Strike, drivers: Drivers) -> str | None:
        """Do it; who was hit, or None where nobody is there yet."""
        driver = drivers.last
        if driver is None or driver.process.poll() is not None:
            return None
        if one.kind is Kind.KILL_DRIVER:
            driver.process.kill()
            driver.process.wait()
            return f"driver {driver.number}"
        if one.kind is Kind.KILL_JOB:
            below = psutil.Process(driver.process.pid).children(recursive=True)
            driver.process.kill()
            for process in below:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            driver.process.wait()
            return f"driver {driver.number} and {len(below)} processes below it"
        if one.kind is Kind.KILL_WORKER:
            workers = workers_of(driver.process.pid)
            if not workers:
                return None
            victim = self._rng.choice(workers)
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()
            return f"worker {victim.pid}"
        if one.kind is Kind.KILL_BROKER:
            self._stack.kill_broker(1)
            time.sleep(self._rng.uniform(*_BROKER_AWAY_SECONDS))
            self._stack.up(postgres=False)
            return "broker 1"
        return self._break_network(one)

    def _break_network(self, one: Strike) -> str | None:
        assert self._proxy is not None
        if one.kind is Kind.RESET_NETWORK:
            return f"{self._proxy.reset()} connections"
        if one.kind is Kind.CUT_NETWORK:
            self._proxy.cut()
            time.sleep(self._rng.uniform(*_CUT_SECONDS))
            self._proxy.heal()
            return "all connections to Kafka"
        lost = self._proxy.lose_reply(Api[one.point])
        return f"a reply to {one.point}" if lost.wait(timedelta(seconds=30)) else None

    @property
    def struck(self) -> int:
        return self.count - len(self._left)

    @property
    def count(self) -> int:
        return self._count


def _fact(one: Strike, process: str, drivers: Drivers) -> Fault:
    return Fault(one.kind.value, one.point, process, drivers.clock(), drivers.epochs())
