"""Kills in the midst of an epoch, by a rule that is seen from outside and is the same for every sink.

An epoch is in its midst when rows have come into the output topics, committed or not, since the last epoch was done.
A process that is killed then has written rows of an epoch that is not done, and the epoch, or a task of it, runs again.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from lockgate.connectors.kafka.wire import Connection
from lockgate.lab.rig.faults import Kind, Strike
from lockgate.lab.rig.troubles.processes import executor_of, kill_family, send
from lockgate.lab.rig.troubles.scene import Scene
from lockgate.lab.rig.troubles.trouble import Tell, Trouble

MID_EPOCH = "mid-epoch"


@dataclass(frozen=True)
class Cut:
    """A kill that is to happen."""

    kind: Kind  # KILL_EXECUTOR, KILL_DRIVER, or KILL_JOB: the driver and its JVM at once
    rows: int  # so many rows of the epoch, at least, are in the output
    is_due: Callable[[], bool]
    patience_seconds: float = float("inf")  # a job may give no rows for long; then it is killed without


@dataclass(frozen=True)
class Hit:
    """A kill that has happened."""

    kind: Kind
    pid: int
    epoch: int
    rows: int  # of that epoch, in the output when it happened
    sent: int  # how many events the job had got
    is_epoch_done: bool  # the epoch ended between the look and the kill
    at: float  # by the monotonic clock
    ends: Mapping[tuple[str, int], int]  # of the partitions of the output, after the kill


class MidEpoch(Trouble):
    """Kills one after the other, each in the midst of an epoch."""

    def __init__(self, cuts: Iterable[Cut], scene: Scene, tell: Tell) -> None:
        self._left, self._scene, self._tell = list(cuts), scene, tell
        self.count = len(self._left)
        self._connection: Connection | None = None
        self._epochs = -1
        self._before = 0  # records in the output when the last epoch was done, or when the kill was due
        self._due_at: float | None = None
        self.hits: list[Hit] = []

    def begin(self) -> None:
        self._connection = self._scene.connect()

    def end(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def step(self) -> None:
        epochs, is_due = self._scene.drivers.epochs(), bool(self._left) and self._left[0].is_due()
        if epochs != self._epochs or is_due != (self._due_at is not None):
            self._epochs, self._before = epochs, sum(self._ends().values())
            self._due_at = (self._due_at or time.monotonic()) if is_due else None
        if self._due_at is None:
            return
        cut, rows = self._left[0], sum(self._ends().values()) - self._before
        is_patient = time.monotonic() - self._due_at <= cut.patience_seconds
        if (rows < cut.rows and is_patient) or (pid := self._kill(cut.kind)) is None:
            return
        self._left.pop(0)
        self.struck += 1
        self._due_at = None
        self._tell(self._scene.fact(Strike(cut.kind, MID_EPOCH), f"process {pid}"))
        is_done = self._scene.drivers.epochs() > epochs
        self.hits.append(Hit(cut.kind, pid, epochs, rows, self._scene.sent(), is_done, time.monotonic(), self._ends()))

    def _kill(self, kind: Kind) -> int | None:
        driver = self._scene.running
        if driver is None:
            return None
        if kind is Kind.KILL_EXECUTOR:
            pid = executor_of(self._scene)
            return pid if pid is not None and send(pid, signal.SIGKILL) else None
        if kind is Kind.KILL_JOB:
            kill_family(driver)
        else:
            driver.kill()
        return driver.process.pid

    def _ends(self) -> dict[tuple[str, int], int]:
        assert self._connection is not None
        return self._scene.ends(self._connection)
