"""The acker: it keeps failed events durably, and returns them to the query after a pause.

An event is done when its epoch is committed and no step has failed on it or on its results. The acker stores a failed
event in a file before its epoch is committed. Once the epoch is committed and the pause is over, it returns the event
to the query, through `sources.returned`:

    waiting/EPOCH-DUE-RUN-ATTEMPTS-NUMBER-COUNT.json
                                       written by one try of an epoch; a repeated try, by another run, writes its own
    returns/...                        moved here, and read once by the query; removed when that epoch is committed

A crash before the commit repeats the epoch. Then events that both tries kept come back twice, and nothing is lost. The
files are in the checkpoint, so they are as durable as it is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta

from lockgate.connectors.files.filesystem import System
from lockgate.connectors.rejects import Rejection
from lockgate.connectors.returned import FOLDER, as_line
from lockgate.dataflow.tracking import Acks
from lockgate.escaping import escape

log = logging.getLogger(__name__)

WAITING = "waiting"
_BACK = "epoch-"  # how our file names begin there; other files are dead letters that were sent back
_LOOK_SECONDS = 0.2
_FILE_BYTES = 16 * 1024 * 1024  # a file that is larger takes no more events
_MILLISECOND = timedelta(milliseconds=1)


class Acker:
    """Keeps the events of one job that must be retried, and returns them from its own thread."""

    def __init__(
        self,
        system: System,
        acks: Acks,
        *,
        is_committed: Callable[[int], bool],
        planned: Callable[[], int],
        job: str,
    ) -> None:
        self._system, self._acks, self._is_committed, self._job = system, acks, is_committed, job
        self._planned = planned  # the newest epoch that the query has planned
        self._is_endless = False
        self._lock = threading.Lock()
        self._files = {name for name in system.names(WAITING) if name[0].isdecimal()}
        self._released = 0
        self._read_by: dict[str, int] = {}  # returned files, and the epoch in which they are read at the latest
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look_after, name="lockgate-acker", daemon=True)

    @property
    def waiting(self) -> int:
        """How many events wait for a retry."""
        with self._lock:
            return sum(int(name.removesuffix(".json").rsplit("-", 1)[-1]) for name in self._files)

    def take_released(self) -> int:
        """How many files were returned since the last call."""
        with self._lock:
            released, self._released = self._released, 0
            return released

    @property
    def max_attempts(self) -> int:
        """How often an event is tried."""
        return self._acks.max_attempts

    def begin(self, planned: int, *, is_endless: bool) -> None:
        """Prepare for a query that finds epochs planned up to this one: its first new epoch reads all returned files.

        A query with an end reads no other files than these.
        """
        back = [name for name in self._system.names(FOLDER) if name.startswith(_BACK)]
        with self._lock:
            self._is_endless = is_endless
            self._read_by = dict.fromkeys(back, planned + 1)

    def clean(self) -> None:
        """Remove files that a committed epoch has read, so that their number does not grow forever."""
        with self._lock:
            read_by = dict(self._read_by)
        epochs = {epoch for epoch in {*read_by.values()} if self._is_committed(epoch)}
        for name in (name for name, epoch in read_by.items() if epoch in epochs):
            self._system.delete(f"{FOLDER}/{name}")
            with self._lock:
                self._read_by.pop(name, None)

    def keep(self, retries: Iterable[Rejection], *, epoch: int, run: str) -> Counter[int]:
        """Keep the events that failed in one try of an epoch, each once, before the epoch is committed.

        Returns the number of events, by how often each had been tried before.
        """
        seen: set[tuple[object, ...]] = set()
        waiting: dict[int, _Lines] = {}  # by attempts
        kept: Counter[int] = Counter()
        for number, one in enumerate(retries):
            if one.event in seen:
                continue
            seen.add(one.event)
            kept[one.attempts - 1] += 1
            lines = waiting.setdefault(one.attempts, _Lines(one.reason))
            lines.add(_as_line(one))
            if lines.size >= _FILE_BYTES:
                self._keep(waiting.pop(one.attempts), one.attempts, epoch, f"{run}-{one.attempts}-{number}")
        for attempts, lines in waiting.items():
            self._keep(lines, attempts, epoch, f"{run}-{attempts}-end")
        return kept

    def _keep(self, lines: _Lines, attempts: int, epoch: int, name: str) -> None:
        due_ms = int(time.time() * 1000) + self._acks.wait_before(attempts + 1) // _MILLISECOND
        count = len(lines.lines)
        name = f"{epoch}-{due_ms}-{name}-{count}.json"
        self._system.publish(f"{WAITING}/{name}", b"".join(lines.lines))
        with self._lock:
            self._files.add(name)
        log.warning(
            "job %s: %d events failed in epoch %d and will be retried, attempt %d of %d, e.g. %s",
            self._job,
            count,
            epoch,
            attempts + 1,
            self._acks.max_attempts,
            escape(lines.reason),
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the next run finds the events that wait."""
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _look_after(self) -> None:
        while not self._is_over.wait(_LOOK_SECONDS):
            try:
                self.release(time.time())
                self.clean()
            except Exception as error:  # noqa: BLE001 - a file system comes back after an outage; a dead thread does not
                log.warning("job %s: waiting events cannot be returned yet: %s", self._job, error)

    def release(self, now: float) -> None:
        """Return the events that are due."""
        with self._lock:
            due = sorted(name for name in self._files if int(name.split("-")[1]) <= now * 1000)
        for name in due:
            if self._is_committed(int(name.split("-")[0])):
                content = self._system.read(f"{WAITING}/{name}")
                if content is not None:
                    # The file may exist already, if a process died before it removed the other one.
                    self._system.publish(f"{FOLDER}/{_BACK}{name}", content)
                    self._system.delete(f"{WAITING}/{name}")
                with self._lock:
                    if self._is_endless:
                        # The next epoch may be planned at this moment, without this file.
                        self._read_by[f"{_BACK}{name}"] = self._planned() + 2
                    self._files.discard(name)
                    self._released += 1


@dataclass
class _Lines:
    """Events for one file."""

    reason: str  # of the first event
    lines: list[bytes] = field(default_factory=list)
    size: int = 0

    def add(self, line: bytes) -> None:
        self.lines.append(line)
        self.size += len(line)


def _as_line(rejection: Rejection) -> bytes:
    return as_line(rejection.position or {}, rejection.original or {}, attempts=rejection.attempts)
