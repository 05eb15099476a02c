"""The job under proof: `lockgate run` in a process of its own, started again whenever it has died.

A start has a session and a process group of its own, and whatever it starts carries the trial's mark. What it has
consumed is read from Spark's own files, so the job is asked nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import psutil

from lockgate.errors import Failed
from lockgate.proof.history import Committed, End, Fact, Start, Up
from lockgate.proof.reading import Clock
from lockgate.runtime.checkpoints import Checkpoint
from lockgate.services.ports import HOST
from lockgate.services.processes import Mark

KILL_LIMIT = timedelta(seconds=30)
GIVE_UPS_MAX = 8
"""How often the job may end by itself before a trial is given up."""

UP = "checkpoint "
"""How the line begins that `lockgate run` says when its query has started."""


@dataclass
class Driver:
    """One start."""

    number: int
    process: subprocess.Popen[bytes]
    words: Path
    is_up: bool = False

    def look(self) -> bool:
        """Has it said that it is ready, since it was asked last?"""
        if self.is_up:
            return False
        self.is_up = any(line.startswith(UP) for line in self.words.read_text(errors="replace").splitlines())
        return self.is_up

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


def stopped_of(pid: int) -> set[int]:
    """Those of a process and its descendants that are stopped."""
    found = set()
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                if one.status() == psutil.STATUS_STOPPED:
                    found.add(one.pid)
    return found


def _is_daemon(process: psutil.Process) -> bool:
    return "pyspark.daemon" in process.cmdline()


@dataclass
class Drivers:
    """All starts of one trial."""

    job_file: Path
    spec: Path
    directory: Path
    checkpoint: Path | None  # None: the job keeps none
    rows_per_epoch: int
    labels: Mapping[str, str]  # of the topics that are read
    mark: Mark
    clock: Clock
    facts: list[Fact] = field(default_factory=list)
    all: list[Driver] = field(default_factory=list)
    gave_up: list[str] = field(default_factory=list)

    @property
    def last(self) -> Driver | None:
        """The newest one."""
        return self.all[-1] if self.all else None

    def start(self, environment: Mapping[str, str], *options: str) -> Driver:
        """Start it, from its checkpoint where there is one."""
        number = len(self.all)
        temporary = self.directory / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        words = self.directory / f"driver-{number}.err"
        command = [sys.executable, "-m", "lockgate.cli.main", "run", str(self.job_file), "-p", f"spec={self.spec}"]
        command += ["--json", "--rows-per-epoch", str(self.rows_per_epoch), *options]
        if self.checkpoint is not None:
            command += ["--checkpoint", str(self.checkpoint)]
        java = f'{os.environ.get("JDK_JAVA_OPTIONS", "")} "-Djava.io.tmpdir={temporary}"'.strip()
        with (self.directory / f"driver-{number}.jsonl").open("wb") as out, words.open("wb") as said:
            process = subprocess.Popen(
                command,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=out,
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
        driver = Driver(number, process, words)
        self.all.append(driver)
        self.facts.append(Start(number, self.clock()))
        return driver

    def tend(self, environment: Mapping[str, str]) -> Driver:
        """The one that runs now; started where the last one has died. Failed where it gives up again and again."""
        driver = self.last
        if driver is not None and driver.process.poll() is not None:
            code = driver.process.returncode
            if code != -signal.SIGKILL:
                self.gave_up.append(f"ended with {code}: {driver.tail(6)}")
                if len(self.gave_up) > GIVE_UPS_MAX:
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
            driver.process.wait(timeout=KILL_LIMIT.total_seconds() * 4)

    def kill(self) -> None:
        """Leave nothing behind."""
        self.mark.kill(KILL_LIMIT)
        for driver in self.all:
            with contextlib.suppress(ProcessLookupError):
                driver.process.kill()
            driver.process.wait()

    # What is consumed

    def epochs(self) -> int:
        """How many epochs are done."""
        return max(self._log("commits"), default=-1) + 1

    def consumed(self) -> int:
        """How many events are in epochs that are done."""
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
