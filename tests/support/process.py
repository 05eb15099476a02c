"""Commands in a process of their own, for tests whose subject is the process: its signals, its exit status, its death.

A test that only wants what a command prints calls it in process: `support.cli`.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

from lockgate.lab.services.processes import Mark
from support.waiting import PATIENCE_SECONDS, wait_for

LOCKGATE = (sys.executable, "-m", "lockgate.cli.main")
_TESTS = str(Path(__file__).parents[1])


def program(name: str, *arguments: object) -> list[str]:
    """A program of `support.programs` as a command, with its arguments."""
    return [sys.executable, "-m", f"support.programs.{name}", *map(str, arguments)]


class Process:
    """A command under way; what it prints goes to files, so that nobody has to read along."""

    def __init__(self, command: Sequence[str | Path], cwd: Path, environ: Mapping[str, str | None], name: str) -> None:
        self.out, self.err = cwd / f"{name}.out", cwd / f"{name}.err"
        self._mark = Mark("LOCKGATE_TEST_PROCESS", uuid4().hex)
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), _TESTS])),
            "SPARK_LOCAL_IP": "127.0.0.1",
            self._mark.name: self._mark.value,
            **environ,
        }
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.child = subprocess.Popen(
                [*map(str, command)],
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                env={name: text for name, text in variables.items() if text is not None},
            )

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def printed(self) -> str:
        """Its standard output so far."""
        return self.out.read_text(errors="replace")

    @property
    def said(self) -> str:
        """Its standard error so far."""
        return self.err.read_text(errors="replace")

    @property
    def text(self) -> str:
        """Both."""
        return self.printed + self.said

    @property
    def reports(self) -> list[dict[str, Any]]:
        """The lines of JSON on its standard output; one that is not yet whole is left for later."""
        return [json.loads(line) for line in self.printed.split("\n")[:-1] if line.startswith("{")]

    @property
    def family(self) -> list[psutil.Process]:
        """All processes below it."""
        return psutil.Process(self.pid).children(recursive=True)

    def wait_for(self, what: str, holds: Callable[[], object], *, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until something is so; fail if the command ends before."""

        def look() -> bool:
            if holds():
                return True
            assert self.child.poll() is None, f"ended with {self.child.returncode} before {what}:\n{self.text}"
            return False

        wait_for(what, look, seconds=seconds, explain=lambda: f"\n{self.text}")

    def end(self, by: signal.Signals | None = None, *, seconds: float = PATIENCE_SECONDS) -> int:
        """Send it a signal, or none, and wait for its end; its exit status."""
        if by is not None:
            self.child.send_signal(by)
        try:
            return self.child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"does not end within {seconds:.0f} s:\n{self.text}") from None

    def kill(self) -> None:
        """Kill it and all that it has started."""
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        left = self._mark.kill(timedelta(seconds=60))
        assert not left, f"processes {left} do not die"


@contextmanager
def running(
    *command: str | Path, cwd: Path, environ: Mapping[str, str | None] | None = None, name: str = "process"
) -> Iterator[Process]:
    """A command that runs; nothing of it is left afterwards.

    Args:
        environ: variables beside those of this process; None removes one.
        name: of the files in `cwd` that have what it prints.
    """
    process = Process(command, cwd, environ or {}, name)
    try:
        yield process
    finally:
        process.kill()


def parameters(**values: object) -> list[str]:
    """Parameters of a job file, as words of a command line."""
    return [word for name, value in values.items() for word in ("-p", f"{name}={value}")]


def run(
    *command: str | Path, cwd: Path, environ: Mapping[str, str | None] | None = None, seconds: float = PATIENCE_SECONDS
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end."""
    with running(*command, cwd=cwd, environ=environ, name=f"process-{uuid4().hex[:8]}") as process:
        code = process.end(seconds=seconds)
        return subprocess.CompletedProcess([*map(str, command)], code, process.printed, process.said)
