"""Long-lived processes that outlast the command that starts them, and that only their owner ends.

The law: we send no signal to a process that was not started here. A process id alone proves nothing, because the system
uses ids again. So the pid file also has the start time of the process, and both must agree.

    pid file absent, or its process gone, or begun at another time   ->  not running; nothing is signalled
    pid file and process agree                                       ->  running, ours

Output goes to a log file beside the pid file, so a start that fails can be explained.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from lockgate.errors import BadMachine, ServiceFailed
from lockgate.untrusted import read_object

try:
    import psutil
except ImportError as error:
    raise BadMachine(
        "A package for local services is not installed.", "package psutil", "pip install 'lockgate[services]'"
    ) from error

LOG4J_CONSOLE = """\
status=error
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{ISO8601} %-5p %c{1}: %m%n
rootLogger.level=info
rootLogger.appenderRef.console.ref=console
"""
"""Has a Java server log to where a Daemon keeps what its process says."""

LOG_BYTES_MAX = 20_000_000

# A child that ended stays a zombie until its parent waits for it; every check whether it runs asks here first.
_children: dict[int, "subprocess.Popen[bytes]"] = {}


@dataclass(frozen=True)
class RunAs:
    """Another user to run as; `prefix` is a command that leads into the program, such as `unshare`."""

    uid: int | None = None
    gid: int | None = None
    prefix: tuple[str, ...] = ()


@dataclass(frozen=True)
class Daemon:
    """One named process of ours: its pid file and its log live in `directory`."""

    name: str
    directory: Path

    @property
    def log(self) -> Path:
        """Where the process writes."""
        return self.directory / f"{self.name}.log"

    @property
    def pid(self) -> int | None:
        """The id of the running process, or None."""
        process = self._process()
        return process.pid if process else None

    def start(
        self,
        command: Sequence[str | Path],
        environ: Mapping[str, str] | None = None,
        run_as: RunAs = RunAs(),  # noqa: B008 - frozen
    ) -> int:
        """Start the process in a session of its own, so that the end of ours, or Ctrl-C, does not reach it."""
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES_MAX:
            self.log.replace(self.log.with_suffix(".log.1"))
        with self.log.open("ab") as output:
            child = subprocess.Popen(
                [*run_as.prefix, *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.directory,
                env=dict(os.environ if environ is None else environ),
                start_new_session=True,
                user=run_as.uid,
                group=run_as.gid,
                extra_groups=None if run_as.uid is None else [],
            )
        _children[child.pid] = child
        # Written even when the child is gone already: then the file names a dead process, which is the truth.
        began = None
        with contextlib.suppress(psutil.NoSuchProcess):
            began = psutil.Process(child.pid).create_time()
        aside = self._pid_file.with_suffix(".new")
        aside.write_text(json.dumps({"pid": child.pid, "began": began}))
        aside.replace(self._pid_file)
        return child.pid

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if the process runs and is ours."""
        process = self._process()
        if process:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def wait_for_end(self, limit: timedelta) -> bool:
        """Whether the process ended within the limit."""
        process = self._process()
        if process is None:
            return True
        try:
            process.wait(timeout=limit.total_seconds())
        except psutil.TimeoutExpired:
            return False
        child = _children.pop(process.pid, None)
        if child is not None:
            child.poll()  # psutil has taken its status; now its handle knows too
        return True

    def stop(self, with_signal: signal.Signals, limit: timedelta) -> bool:
        """Ask the process to end, then make it end; whether it had been running."""
        if self.pid is None:
            return False
        self.send(with_signal)
        if not self.wait_for_end(limit):
            self.send(signal.SIGKILL)
            self.wait_for_end(timedelta(seconds=30))
        return True

    def kill_with_children(self, limit: timedelta) -> None:
        """Kill the process and all below it as a crash would; returns when it is dead."""
        process = self._process()
        if process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            below = process.children(recursive=True)
            for one in (process, *below):  # the eldest first, which would answer to the death of another
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        self.wait_for_end(limit)

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of the log, for an error message."""
        try:
            text = self.log.read_text(errors="replace")
        except OSError:
            return "(no log)"
        return "\n".join(text.splitlines()[-lines:])

    @property
    def _pid_file(self) -> Path:
        return self.directory / f"{self.name}.pid"

    def _process(self) -> psutil.Process | None:
        try:
            record = read_object(self._pid_file.read_bytes())
            pid, began = int(record["pid"]), record["began"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if pid in _children and _children[pid].poll() is not None:
            del _children[pid]
            return None
        try:
            process = psutil.Process(pid)
            if began is None or process.create_time() != began or process.status() == psutil.STATUS_ZOMBIE:
                return None
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return None
        return process


def working_in(directory: Path) -> list[int]:
    """The ids of all processes whose working directory is this one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.cwd() == str(directory.resolve()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


@dataclass(frozen=True)
class Mark:
    """A unique word in the environment: all descendants of a marked process carry it too.

    It finds processes after their parents have died, and proves that they are ours.
    """

    name: str
    value: str

    def carriers(self) -> list[psutil.Process]:
        """The running processes that carry the mark, eldest first."""
        found: list[tuple[float, psutil.Process]] = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(self.name) == self.value and process.status() != psutil.STATUS_ZOMBIE:
                    found.append((process.create_time(), process))
        return [process for _, process in sorted(found, key=lambda pair: (pair[0], pair[1].pid))]

    def kill(self, limit: timedelta) -> list[int]:
        """Kill all that carry the mark, also new ones; returns the ids of those that remain after the limit."""
        deadline = time.monotonic() + limit.total_seconds()
        quiet = 0
        # A process that is just becoming another program shows no environment, so none must be seen twice.
        while quiet < 2 and time.monotonic() < deadline:
            left = self.carriers()
            quiet = 0 if left else quiet + 1
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(0.02)
        return [process.pid for process in self.carriers()]


def children(pid: int, running: str) -> list[psutil.Process]:
    """The children of a process that run this program, eldest first."""
    found: list[tuple[float, psutil.Process]] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children():
            with contextlib.suppress(psutil.Error):
                if running in child.cmdline():
                    found.append((child.create_time(), child))
    return [child for _, child in sorted(found, key=lambda pair: (pair[0], pair[1].pid))]


def kill(process: psutil.Process, limit: timedelta) -> bool:
    """Kill a process as a crash would and wait until it is gone; whether it had been running."""
    try:
        process.kill()
        process.wait(timeout=limit.total_seconds())
    except psutil.NoSuchProcess:
        return False
    except psutil.TimeoutExpired as error:
        raise ServiceFailed(
            f"Process {process.pid} was killed and does not die.",
            f"waited {limit.total_seconds():.0f} seconds",
            "see what it waits for; a disk that hangs is the usual cause",
        ) from error
    return True
