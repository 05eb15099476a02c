"""Start, watch and restart the job on trial: `lockgate run` in a process of its own.

Each start has a session and a process group of its own. Every process that it starts carries the mark of the trial's
directory, so a later trial in the same directory finds what an earlier one left.

The progress of the job comes from Spark's own files: the job is not asked. Only a job without a checkpoint is believed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.errors import Failed
from lockgate.lab.rig.history import Committed, End, Fact, Start, Up
from lockgate.lab.services.ports import HOST
from lockgate.lab.services.processes import Mark
from lockgate.modulepath import module_path
from lockgate.private import make_private

KILL_LIMIT = timedelta(seconds=30)
STOP_LIMIT = timedelta(seconds=240)
GIVE_UPS_MAX = 8
"""How often the job may end by itself in one epoch before the trial fails."""

CAUGHT_UP = "--until-caught-up"
_UP = "checkpoint "  # so begins the line of `lockgate run` that says that its query has started


def mark_of(directory: Path) -> Mark:
    """The mark of all processes of a trial; the same for every trial in this directory."""
    return Mark("LOCKGATE_RIG", hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:16])


class Line(NamedTuple):
    """What a driver said about an epoch."""

    start: int  # the number of the driver
    heard: float  # by the monotonic clock
    events_total: int  # of this start; an event that is tried again counts again
    epoch_ms: int
    lag: int | None
    taken: int  # how many of all events are in epochs that have ended

    @classmethod
    def of(cls, text: str, start: int, taken: int | None) -> Line:
        """Read a line of `lockgate run --json`; without a checkpoint, only the line says how many events are taken."""
        told, heard = json.loads(text), time.monotonic()
        total = told["events_total"]
        return cls(start, heard, total, told["epoch_ms"], told["lag"], total if taken is None else taken)


class GiveUp(NamedTuple):
    """The job ended by itself."""

    epochs: int  # that were done
    code: int
    last_words: str

    def __str__(self) -> str:
        return f"the job ended with {self.code} after {self.epochs} epochs:\n{self.last_words}"


@dataclass
class Driver:
    """One start of the job."""

    number: int
    process: subprocess.Popen[bytes]
    words: Path  # what it says to people
    out: Path  # what it says to programs
    environment: Mapping[str, str]  # beside what all starts have
    is_to_end: bool = False  # does it end by itself when it has caught up?
    up_at: float | None = None  # when it was first seen to be ready
    is_aside: bool = False  # it is stopped, and another driver takes over
    _read_bytes: int = 0

    @property
    def is_running(self) -> bool:
        """Has its process not ended?"""
        return self.process.poll() is None

    @property
    def is_up(self) -> bool:
        """Has it said that it is ready?"""
        return self.up_at is not None

    @property
    def has_caught_up(self) -> bool:
        """Has it ended because there was nothing left to do?"""
        return self.is_to_end and self.process.poll() == 0

    def becomes_up(self) -> bool:
        """Has it said that it is ready, since the last question?"""
        if self.is_up or not any(line.startswith(_UP) for line in self.words.read_text(errors="replace").splitlines()):
            return False
        self.up_at = time.monotonic()
        return True

    def news(self) -> list[str]:
        """The lines that it has said to programs since the last question; an incomplete line waits."""
        with self.out.open("rb") as out:
            out.seek(self._read_bytes)
            text = out.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return whole.decode().splitlines()

    def tail(self, lines: int = 12) -> str:
        """Its last words."""
        return "\n".join(self.words.read_text(errors="replace").splitlines()[-lines:])

    def kill(self) -> None:
        """Kill its Python process."""
        self.process.kill()
        self.process.wait()


@dataclass
class Drivers:
    """All starts of a job in one trial.

    Args:
        directory: everything that the job leaves lies there.
        checkpoint: None if the job keeps none.
        labels: of the topics that the job reads, as a history names them.
        master: of the Spark cluster; None for this machine.
        options: further options of `lockgate run`; `first_options` are for the first start only.
        environ: the environment of the driver, without what a trial adds.
        java_options: by default, a JVM that lives for a minute does not compile for hours to come.
    """

    job_file: Path
    parameters: Mapping[str, str]
    directory: Path
    checkpoint: Path | None
    labels: Mapping[str, str]
    master: str | None = None
    options: tuple[str, ...] = ()
    first_options: tuple[str, ...] = ()
    working_directory: Path | None = None  # None: the directory of the trial
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    java_options: str = "-XX:TieredStopAtLevel=1"
    is_supervised: bool = False
    give_ups_max: int = GIVE_UPS_MAX
    facts: list[Fact] = field(default_factory=list)
    all: list[Driver] = field(default_factory=list)
    gave_up: list[GiveUp] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.began = time.monotonic()
        self._noted = 0  # epochs

    def clock(self) -> float:
        """Seconds since the trial began."""
        return time.monotonic() - self.began

    @property
    def mark(self) -> Mark:
        """What every process of the job carries."""
        return mark_of(self.directory)

    @property
    def last(self) -> Driver | None:
        """The newest driver that runs, or else the newest; a driver that another one takes over from is neither."""
        awake = [driver for driver in self.all if not driver.is_aside]
        running = [driver for driver in awake if driver.is_running]
        return next(iter((running or awake)[-1:]), None)

    @property
    def running(self) -> Driver | None:
        """The driver that runs now."""
        return self.last if self.last is not None and self.last.is_running else None

    # Start and stop

    def command(self, verb: str, *words: str) -> list[str]:
        """A command of `lockgate` about this job."""
        command = [sys.executable, "-m", "lockgate.cli.main", verb, str(self.job_file), *words]
        command += [word for name, text in self.parameters.items() for word in ("-p", f"{name}={text}")]
        return command + ([] if self.checkpoint is None else ["--checkpoint", str(self.checkpoint)])

    def start(self, environment: Mapping[str, str], *options: str) -> Driver:
        """Start the job, from its checkpoint if there is one."""
        number = len(self.all)
        make_private(self.directory)
        (self.directory / "tmp").mkdir(exist_ok=True)
        words, out = self.directory / f"driver-{number}.err", self.directory / f"driver-{number}.jsonl"
        how = [] if self.is_supervised else ["--no-supervise"]
        how += [] if self.master is None else ["--master", self.master]
        first = self.first_options if number == 0 else ()
        with out.open("wb") as told, words.open("wb") as said:
            process = subprocess.Popen(
                self.command("run", "--json", *how, *self.options, *first, *options),
                cwd=self.working_directory or self.directory,
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=said,
                start_new_session=True,  # Ctrl-C is not for the job
                env={**self._environment(), **environment},
            )
        driver = Driver(
            number, process, words, out, dict(environment), is_to_end=CAUGHT_UP in (*self.options, *options)
        )
        self.all.append(driver)
        self.facts.append(Start(number, self.clock()))
        return driver

    def _environment(self) -> dict[str, str]:
        temporary, mark = str(self.directory / "tmp"), self.mark
        java = [self.environ.get("JDK_JAVA_OPTIONS", ""), self.java_options, f'"-Djava.io.tmpdir={temporary}"']
        found = {
            **self.environ,
            mark.name: mark.value,
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": temporary,
            "TMPDIR": temporary,
            "JDK_JAVA_OPTIONS": " ".join(option for option in java if option),
            "PYTHONPATH": module_path(),
        }
        if self.master is not None:
            # Executors are children of the cluster: they carry the mark only if Spark passes it on.
            given = shlex.split(found.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
            marked = ["--conf", f"spark.executorEnv.{mark.name}={mark.value}"]
            found["PYSPARK_SUBMIT_ARGS"] = shlex.join([*marked, *given])
        return found

    def tend(self, environment: Mapping[str, str]) -> Driver:
        """The driver that runs now; starts one if the last one died. Failed if the job gives up too often."""
        driver = self.last
        if driver is not None and not driver.is_running and not driver.has_caught_up:
            if driver.process.returncode != -signal.SIGKILL:
                self._note_give_up(driver)
            driver = None
        if driver is None:
            driver = self.start(environment)
        self.look(driver)
        return driver

    def look(self, driver: Driver) -> None:
        """Note what a driver has said and committed since the last look."""
        if driver.becomes_up():
            self.facts.append(Up(driver.number, self.clock()))
        for text in driver.news():
            self.lines.append(Line.of(text, driver.number, None if self.checkpoint is None else self.consumed()))
        self.note_commits()

    def has_read(self, driver: Driver) -> bool:
        """Has a driver said that it has read events?"""
        return any(line.events_total for line in self.lines if line.start == driver.number)

    def _note_give_up(self, driver: Driver) -> None:
        self.gave_up.append(GiveUp(self.epochs(), driver.process.returncode, driver.tail(20)))
        if [one.epochs for one in self.gave_up].count(self.epochs()) > self.give_ups_max:
            raise Failed(
                str(self.gave_up[-1]),
                where=str(driver.words),
                fix="see that `lockgate run` runs it undisturbed",
            )

    def stop(self) -> None:
        """Ask the job to end, and wait for it; an end that is not clean counts as giving up."""
        driver = self.running
        if driver is None:
            return
        driver.process.send_signal(signal.SIGTERM)
        try:
            code = driver.process.wait(timeout=STOP_LIMIT.total_seconds())
        except subprocess.TimeoutExpired:
            raise Failed(
                f"the job does not end within {STOP_LIMIT.total_seconds():.0f} s of SIGTERM:\n{driver.tail()}",
                where=str(driver.words),
                fix="see what it waits for",
            ) from None
        self.look(driver)
        if code != 0:
            self.gave_up.append(GiveUp(self.epochs(), code, driver.tail(20)))

    def kill(self) -> None:
        """Kill every process of the job; Failed if one does not die."""
        left = self.mark.kill(KILL_LIMIT)
        for driver in self.all:
            with contextlib.suppress(ProcessLookupError):
                driver.process.kill()
            driver.process.wait()
        if left:
            raise Failed(
                f"processes {left} were killed and do not die",
                where=str(self.directory),
                fix="see what they wait for; a disk that hangs is the usual cause",
            )

    # Progress

    def epochs(self) -> int:
        """How many epochs are done."""
        return len(self.lines) if self.checkpoint is None else max(self._log("commits"), default=-1) + 1

    def consumed(self) -> int:
        """How many events are in epochs that are done."""
        if self.checkpoint is None:
            return sum({line.start: line.events_total for line in self.lines}.values())
        done = self.epochs()
        return sum(end.offset for end in self._ends(done - 1)) if done else 0

    def note_commits(self) -> None:
        """Note the epochs that Spark has logged as done, before it deletes their files."""
        for epoch in self._log("commits"):
            if epoch >= self._noted:
                self._noted = epoch + 1
                self.facts.append(Committed(epoch, None, self._ends(epoch), self.clock()))

    def _log(self, name: str) -> list[int]:
        return [] if self.checkpoint is None else Checkpoint(root=str(self.checkpoint)).epochs(name)

    def _ends(self, epoch: int) -> tuple[End, ...]:
        """Where an epoch ended in each partition of the topics; read as text, because a fault may have damaged it."""
        assert self.checkpoint is not None
        found: dict[tuple[str, int], int] = {}
        for line in (self.checkpoint / "offsets" / str(epoch)).read_text(errors="replace").splitlines()[2:]:
            with contextlib.suppress(ValueError, AttributeError):
                for topic, ends in json.loads(line).items():
                    for partition, offset in ends.items() if topic in self.labels else ():
                        place = self.labels[topic], int(partition)
                        # A topic that two branches read appears twice; what the slower branch has is done.
                        found[place] = min(found.get(place, int(offset)), int(offset))
        return tuple(End(label, partition, offset) for (label, partition), offset in found.items())
