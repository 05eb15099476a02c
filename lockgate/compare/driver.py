"""The driver of a comparison: `lockgate run` in a child process, killed with all below it, and started again.

A start is of a session and a process group of its own, so Python and the JVM die by one signal: either alone would give
the other time to say goodbye. Python workers have groups of their own, and are found by the mark.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockgate.compare.contenders import Contender
from lockgate.demo.side import KILL_LIMIT, mark_of
from lockgate.errors import Failed
from lockgate.guarantees import Guarantee
from lockgate.lab.rig.drivers import UP
from lockgate.runtime.checkpoints import Checkpoint
from lockgate.services.ports import HOST
from lockgate.services.processes import Mark


@dataclass(frozen=True)
class Line:
    """What a driver said about an epoch, and when it was heard."""

    start: int  # of which start of the driver
    heard: float
    events_total: int  # of this start; one that is tried again counts again
    epoch_ms: int
    lag: int | None
    taken: int  # how many of all that were sent are in epochs that have ended

    @classmethod
    def of(cls, text: str, start: int, taken: int | None) -> Line:
        """A line of `lockgate run --json`; without a checkpoint, it alone tells how many events are taken."""
        told: dict[str, Any] = json.loads(text)
        total = told["events_total"]
        return cls(start, time.monotonic(), total, told["epoch_ms"], told["lag"], total if taken is None else taken)


@dataclass
class Driver:
    """One job of the comparison, over all its starts."""

    job_file: Path
    spec: Path
    home: Path
    contender: Contender
    lines: list[Line] = field(default_factory=list)
    starts: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _read_bytes: int = 0

    @property
    def mark(self) -> Mark:
        """What its processes carry."""
        return mark_of(self.home)

    @property
    def is_tracked(self) -> bool:
        """Does it keep a checkpoint?"""
        return self.contender.guarantee is not Guarantee.AT_MOST_ONCE

    def start(self, *options: str) -> None:
        """Start it, for the first time or again, from its checkpoint where it keeps one."""
        self.home.mkdir(parents=True, exist_ok=True)
        self.starts += 1
        self._read_bytes = 0
        command = [sys.executable, "-m", "lockgate.cli.main", "run", "--no-supervise", str(self.job_file)]
        command += ["-p", f"spec={self.spec}", "--json", *options]
        if self.is_tracked:
            command += ["--checkpoint", str(self.home / "checkpoint")]
        with self._out.open("wb") as out, self.words.open("wb") as words:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=words,
                env={
                    **os.environ,
                    self.mark.name: self.mark.value,
                    "SPARK_LOCAL_IP": HOST,
                    "PYTHONPATH": os.pathsep.join(str(Path(place).absolute()) for place in sys.path if place),
                },
                start_new_session=True,  # Ctrl-C is for whoever compares
            )

    @property
    def words(self) -> Path:
        """What the last start says to people."""
        return self.home / f"driver-{self.starts}.err"

    @property
    def _out(self) -> Path:
        return self.home / f"driver-{self.starts}.jsonl"

    @property
    def is_up(self) -> bool:
        """Has the query of the last start begun?"""
        return any(line.startswith(UP) for line in self.words.read_text(errors="replace").splitlines())

    @property
    def events_committed(self) -> int:
        """How many events are in committed epochs; 0 where no checkpoint is kept."""
        checkpoint = Checkpoint(root=str(self.home / "checkpoint"))
        epoch = max(checkpoint.epochs("commits"), default=-1)
        return sum(checkpoint.kafka_offsets(epoch).values()) if epoch >= 0 else 0

    def look(self) -> bool:
        """Take what it has said since; whether it has ended, and well. Failed where it ended otherwise."""
        assert self._process is not None
        code = self._process.poll()  # first, so that the last words of one that ended are read
        with self._out.open("rb") as out:
            out.seek(self._read_bytes)
            news = out.read()
        whole = news[: news.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        if whole:
            taken = self.events_committed if self.is_tracked else None
            self.lines += [Line.of(text, self.starts, taken) for text in whole.decode().splitlines()]
        if code:
            raise Failed(
                "\n".join([f"The job ended with {code}. Its last words:", *_last(self.words)]),
                where=f"{self.contender.label}, {self.words}",
                fix="mend the job, see that `lockgate run` runs it, then compare again",
            )
        return code == 0

    def kill(self) -> None:
        """Kill Python, the JVM and the workers."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                if self._process.poll() is None:
                    os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self.mark.kill(KILL_LIMIT)


def _last(path: Path) -> Sequence[str]:
    return path.read_text(errors="replace").splitlines()[-15:]
