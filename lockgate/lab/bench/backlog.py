"""Backlog: the memory of a job that is far behind, from its first event until it has caught up.

All events wait in a topic before the job starts. The job has a step with state, is exactly-once and live, and runs by
`lockgate run` in a process of its own, as an operator would start it after a night without it. Another process watches
its processes all the time. A large backlog must not mean large memory.

The figure is the sum of the resident memory of all processes of the job. Pages that Python workers share count for each
of them, so the sum is never too small.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from lockgate.errors import Failed
from lockgate.lab.bench import backlogjob
from lockgate.lab.bench.report import Backlog, MemoryAt
from lockgate.lab.bench.runs import Runs
from lockgate.modulepath import module_path

SHARES = (0.1, 0.5, 1.0)
TOLERANCE = 0.1
"""The second half of a backlog may use this much more memory than the first before we call the memory growing."""

_COLD = 2
_LOOK_SECONDS = 0.25
_SILENCE_SECONDS = 600.0
_END_SECONDS = 120.0


def measure_backlog(runs: Runs) -> Backlog:
    """Run the job over the whole backlog, and measure its memory."""
    site = runs.site
    count = site.settings.events
    with runs.output() as (name, out):
        site.tell(f"starting the job, {count:,} events behind")
        parameters = {"servers": site.servers, "payments": runs.payments, "out": out, "name": name}
        with _started(runs, parameters, name) as (process, said), _Looks(process.pid, count) as looks:
            epochs = _wait(runs, process, said, looks)
        site.tell("caught up; counting the committed records")
        return summarise(looks.seen, epochs, events=count, delivered=site.count(out))


def summarise(looks: Sequence[MemoryAt], epochs: Sequence[Epoch], *, events: int, delivered: int) -> Backlog:
    """Combine the measurements of memory with the epochs."""
    seconds = epochs[-1].at - epochs[0].at
    durations = sorted(epoch.epoch_ms for epoch in epochs)
    return Backlog(
        events=events,
        delivered_count=delivered,
        seconds=round(seconds, 1),
        events_per_second=round((epochs[-1].events_total - epochs[0].events_total) / seconds) if seconds else 0,
        epoch_count=len(epochs),
        epoch_ms_target=round(backlogjob.EPOCH.total_seconds() * 1000),
        epoch_ms_median=durations[len(durations) // 2],
        epoch_ms_max=durations[-1],
        epoch_ms_max_warm=max((epoch.epoch_ms for epoch in epochs[_COLD:]), default=durations[-1]),
        at=tuple(at_share(looks, share) for share in SHARES),
        peak=max(looks, key=lambda look: look.total_bytes),
        first_half_bytes_max=half_max(looks, is_last=False),
        last_half_bytes_max=half_max(looks, is_last=True),
        tolerance=TOLERANCE,
    )


def at_share(looks: Sequence[MemoryAt], share: float) -> MemoryAt:
    """The first measurement after this share of the backlog was done, or the last one."""
    return next((look for look in looks if look.share >= share), looks[-1])


def half_max(looks: Sequence[MemoryAt], *, is_last: bool) -> int:
    """The most memory while the last half of the backlog was done, or the first."""
    return max((look.total_bytes for look in looks if (look.share > 0.5) is is_last), default=0)


@contextlib.contextmanager
def _started(runs: Runs, parameters: dict[str, str], name: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """The job in a process of its own, and its standard error; it ends with this block in any case."""
    words = [word for one, text in parameters.items() for word in ("-p", f"{one}={text}")]
    command = [sys.executable, "-m", "lockgate.cli.main", "run", backlogjob.__file__, *words, "--json"]
    runs.checkpoints.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [*command, "--checkpoint", str(runs.checkpoints / name)],
            cwd=runs.checkpoints,  # its log is there, too
            env={**os.environ, "PYTHONPATH": module_path()},
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            start_new_session=True,  # Ctrl-C goes to us, and we end the job
        )
        try:
            yield process, said
        finally:
            _end(process)
            shutil.rmtree(runs.checkpoints / ".lockgate", ignore_errors=True)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
        process.kill()  # its driver notices, and ends
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _wait(runs: Runs, process: subprocess.Popen[str], said: IO[str], looks: _Looks) -> list[Epoch]:
    """Read the progress of the job until it has caught up; returns its epochs."""
    count = runs.site.settings.events
    epochs = _Epochs(process)
    told = 0.0
    while looks.done < count:
        runs.site.go_on()
        news = epochs.take()
        if news is not None:
            looks.done = news.events_total
            if news.at - told >= 10:
                told = news.at
                runs.site.tell(f"{news.events_total:,} of {count:,} events, {looks.newest_mib:,} MiB")
        elif process.poll() is not None or time.monotonic() - epochs.heard_at > _SILENCE_SECONDS:
            said.seek(0)
            raise Failed(
                f"the job has ended, or stands still, after {looks.done:,} of {count:,} events: {said.read()[-2000:]}",
                where="lockgate bench --part backlog",
                fix="read its last lines, then measure again",
            )
    looks.look()  # exactly at the end
    return epochs.seen


@dataclass(frozen=True)
class Epoch:
    """The job's report of an epoch with events."""

    at: float
    events_total: int
    epoch_ms: int


class _Epochs:
    """Reads the lines of a job, and waits only a moment for the next one."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.seen: list[Epoch] = []
        self.heard_at = time.monotonic()
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, args=(process.stdout,), name="lockgate-backlog", daemon=True).start()

    def _read(self, lines: IO[str]) -> None:
        with contextlib.suppress(ValueError):  # it is closed at the end
            for line in lines:
                self._lines.put(line)

    def take(self) -> Epoch | None:
        """The next epoch, if one ends within a moment."""
        try:
            report = json.loads(self._lines.get(timeout=_LOOK_SECONDS))
        except queue.Empty:
            return None
        self.heard_at = time.monotonic()
        epoch = Epoch(at=self.heard_at, events_total=report["events_total"], epoch_ms=report["epoch_ms"])
        self.seen.append(epoch)
        return epoch


class _Looks:
    """Measures the memory of a job's processes while it runs."""

    def __init__(self, pid: int, count: int) -> None:
        self.seen: list[MemoryAt] = []
        self.done = 0  # events, by the last report of the job
        self._pid, self._count = pid, count
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="lockgate-memory", daemon=True)

    @property
    def newest_mib(self) -> int:
        """The memory of all processes now."""
        return self.seen[-1].total_bytes >> 20 if self.seen else 0

    def __enter__(self) -> _Looks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _go_on(self) -> None:
        while not self._is_over.wait(_LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        """Measure once; a process that ends in the meantime does not count."""
        import psutil

        share = min(1.0, self.done / self._count)
        jvm = driver = workers = 0
        with contextlib.suppress(psutil.Error):
            jvm_pids: set[int] = set()
            root = psutil.Process(self._pid)
            for one in [root, *root.children(recursive=True)]:  # parents come before their children
                with contextlib.suppress(psutil.Error):
                    taken = one.memory_info().rss
                    if one.name() == "java":
                        jvm_pids.add(one.pid)
                        jvm += taken
                    elif jvm_pids & {above.pid for above in one.parents()}:
                        workers += taken
                    else:
                        driver += taken
        if driver:
            self.seen.append(MemoryAt(share=round(share, 4), driver_bytes=driver, jvm_bytes=jvm, workers_bytes=workers))
