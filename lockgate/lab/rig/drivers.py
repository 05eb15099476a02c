"""The job under proof: `lockgate run` in a process of its own, started again whenever it has died.

A start has a session and a process group of its own, and whatever it starts carries the trial's mark. What it has
consumed is read from Spark's own files, so the job is asked nothing; only one that keeps no checkpoint is listened to.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil

from lockgate.errors import Failed
from lockgate.lab.rig.history import Committed, End, Fact, Start, Up
from lockgate.lab.rig.readers.output import Clock
from lockgate.runtime.checkpoints import Checkpoint
from lockgate.services.ports import HOST
from lockgate.services.processes import Mark
from lockgate.spark.workers import MODULE

KILL_LIMIT = timedelta(seconds=30)
STOP_LIMIT = timedelta(seconds=120)
GIVE_UPS_MAX = 8
"""How often the job may end by itself in one epoch before a trial is given up."""

UP = "checkpoint "
"""How the line begins that `lockgate run` says when its query has started."""


@dataclass
class Driver:
    """One start."""

    number: int
    process: subprocess.Popen[bytes]
    words: Path
    out: Path
    environment: Mapping[str, str]  # that it was started with, beside what all have
    up_at: float | None = None  # when it was first seen to be ready
    is_aside: bool = False  # stopped, while another one goes on

    @property
    def is_up(self) -> bool:
        """Has it said that it is ready?"""
        return self.up_at is not None

    def look(self) -> bool:
        """Has it said that it is ready, since it was asked last?"""
        if self.is_up or not any(line.startswith(UP) for line in self.words.read_text(errors="replace").splitlines()):
            return False
        self.up_at = time.monotonic()
        return True

    def told(self) -> list[dict[str, Any]]:
        """What it has said about each of its epochs; a line that is not yet whole is left."""
        return [json.loads(line) for line in self.out.read_text().split("\n")[:-1]]

    @property
    def has_read(self) -> bool:
        """Has it told of an epoch with events?"""
        return any(told["events_total"] for told in self.told())

    def tail(self, lines: int = 12) -> str:
        """Its last words."""
        return "\n".join(self.words.read_text(errors="replace").splitlines()[-lines:])


def workers_of(pid: int) -> list[psutil.Process]:
    """The Python workers of a driver whose tasks run in its own JVM: children of a daemon of the JVM's."""
    found = []
    with contextlib.suppress(psutil.Error):
        for one in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                above = one.parent()
                if above is not None and _is_daemon(one) and _is_daemon(above):
                    found.append(one)
    return sorted(found, key=lambda one: one.pid)


def jvm_of(pid: int) -> int | None:
    """The JVM that a driver has started."""
    with contextlib.suppress(psutil.Error):
        for one in psutil.Process(pid).children():
            if one.name() == "java":
                return one.pid
    return None


def _is_daemon(process: psutil.Process) -> bool:
    return MODULE in process.cmdline()


@dataclass
class Drivers:
    """All starts of one trial."""

    job_file: Path
    spec: Path
    directory: Path
    checkpoint: Path | None  # None: the job keeps none
    rows_per_epoch: int
    master: str | None  # of the Spark cluster; None: this machine
    labels: Mapping[str, str]  # of the topics that are read
    mark: Mark
    clock: Clock
    first_options: tuple[str, ...] = ()  # of the first start alone
    facts: list[Fact] = field(default_factory=list)
    all: list[Driver] = field(default_factory=list)
    gave_up: list[int] = field(default_factory=list)
    """How many epochs were done whenever a driver ended by itself."""

    @property
    def last(self) -> Driver | None:
        """The newest one that runs, or else the newest one; who sleeps while another one is to go on is neither."""
        awake = [driver for driver in self.all if not driver.is_aside]
        running = [driver for driver in awake if driver.process.poll() is None]
        return next(iter((running or awake)[-1:]), None)

    def start(self, environment: Mapping[str, str], *options: str) -> Driver:
        """Start it, from its checkpoint where there is one."""
        number = len(self.all)
        temporary = self.directory / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        words = self.directory / f"driver-{number}.err"
        command = [sys.executable, "-m", "lockgate.cli.main", "run", "--no-supervise", str(self.job_file)]
        command += ["-p", f"spec={self.spec}", "--json", "--rows-per-epoch", str(self.rows_per_epoch), *options]
        command += self.first_options if number == 0 else ()
        command += [] if self.master is None else ["--master", self.master]
        if self.checkpoint is not None:
            command += ["--checkpoint", str(self.checkpoint)]
        # A JVM that is killed after seconds gains nothing from code that was compiled well.
        java = f'-XX:TieredStopAtLevel=1 {os.environ.get("JDK_JAVA_OPTIONS", "")} "-Djava.io.tmpdir={temporary}"'
        out = self.directory / f"driver-{number}.jsonl"
        with out.open("wb") as told, words.open("wb") as said:
            process = subprocess.Popen(
                command,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=said,
                start_new_session=True,
                env={
                    **os.environ,
                    self.mark.name: self.mark.value,
                    "SPARK_LOCAL_IP": HOST,
                    "SPARK_LOCAL_DIRS": str(temporary),
                    "TMPDIR": str(temporary),
                    "JDK_JAVA_OPTIONS": java,
                    "PYTHONPATH": os.pathsep.join(str(Path(place).absolute()) for place in sys.path if place),
                    **environment,
                },
            )
        driver = Driver(number, process, words, out, dict(environment))
        self.all.append(driver)
        self.facts.append(Start(number, self.clock()))
        return driver

    def tend(self, environment: Mapping[str, str]) -> Driver:
        """The one that runs now; started where the last one has died. Failed where it gives up again and again."""
        driver = self.last
        if driver is not None and driver.process.poll() is not None:
            if driver.process.returncode != -signal.SIGKILL:
                self.gave_up.append(self.epochs())
                if self.gave_up.count(self.epochs()) > GIVE_UPS_MAX:
                    raise Failed(
                        f"the job gives up again and again:\n{driver.tail(20)}",
                        where=str(driver.words),
                        fix="see that `lockgate run` runs it undisturbed",
                    )
            driver = None
        if driver is None:
            driver = self.start(environment)
        if driver.look():
            self.facts.append(Up(driver.number, self.clock()))
        return driver

    def stop(self) -> None:
        """Let the last one end by itself."""
        driver = self.last
        if driver is not None and driver.process.poll() is None:
            driver.process.send_signal(signal.SIGTERM)
            try:
                driver.process.wait(timeout=STOP_LIMIT.total_seconds())
            except subprocess.TimeoutExpired:
                raise Failed(
                    f"the job does not end by itself within {STOP_LIMIT.total_seconds():.0f} s:\n{driver.tail()}",
                    where=str(driver.words),
                    fix="see what it waits for",
                ) from None

    def kill(self) -> None:
        """Leave nothing behind."""
        self.mark.kill(KILL_LIMIT)
        for driver in self.all:
            with contextlib.suppress(ProcessLookupError):
                driver.process.kill()
            driver.process.wait()

    # What is consumed

    def epochs(self) -> int:
        """How many epochs are done; where no checkpoint tells it, the job itself is believed."""
        if self.checkpoint is None:
            return sum(len(driver.told()) for driver in self.all)
        return max(self._log("commits"), default=-1) + 1

    def consumed(self) -> int:
        """How many events are in epochs that are done."""
        if self.checkpoint is None:
            return sum(told[-1]["events_total"] for driver in self.all if (told := driver.told()))
        done = self.epochs()
        return sum(end.offset for end in self._ends(done - 1)) if done else 0

    def committed(self) -> list[Committed]:
        """The epochs that Spark has logged as done, as far as its files are there; who did them is not known."""
        return [Committed(epoch, None, self._ends(epoch), self.clock()) for epoch in self._log("commits")]

    def _log(self, name: str) -> Sequence[int]:
        return [] if self.checkpoint is None else Checkpoint(root=str(self.checkpoint)).epochs(name)

    def _ends(self, epoch: int) -> tuple[End, ...]:
        """Where an epoch ended in each partition that is read; topics stand in Spark's file as JSON."""
        assert self.checkpoint is not None
        found = []
        for line in (self.checkpoint / "offsets" / str(epoch)).read_text().splitlines()[2:]:
            with contextlib.suppress(ValueError, AttributeError):
                for topic, ends in json.loads(line).items():
                    if topic in self.labels:
                        found += [End(self.labels[topic], int(part), int(offset)) for part, offset in ends.items()]
        return tuple(found)
