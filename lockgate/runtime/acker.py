"""The acker: events that failed wait here, durably, and come again when it is time.

An event is done when its epoch is committed and no step has failed on it or on what came of it. One that failed is kept
in a file before its epoch is committed, and is let back into the query, through `sources.returned`, once the epoch is
committed and its pause is over:

    waiting/EPOCH-DUE-RUN-COUNT.json   kept by one try of an epoch; a repeated try, by another run, keeps its own
    returns/...                        moved there, where the query reads it once; removed when that epoch is committed

A crash before the commit repeats the epoch; what both tries have kept comes back twice then, and nothing is lost. Files
lie beside the checkpoint, on the same file system, so they are as durable as it is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from lockgate.dataflow.tracking import Acks
from lockgate.escaping import escape
from lockgate.files.system import System
from lockgate.sources.rejects import Rejection
from lockgate.sources.returned import FOLDER, as_line

log = logging.getLogger(__name__)

WAITING = "waiting"
_BACK = "epoch-"  # how the names of files begin there that are ours; others are letters that were sent back
_LOOK_SECONDS = 0.2
_MILLISECOND = timedelta(milliseconds=1)


class Acker:
    """Keeps the events of one job that have to be tried again; looks after them in a thread of its own."""

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
        self._read_by: dict[str, int] = {}  # files that are let back, and the epoch by which they were read
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look_after, name="lockgate-acker", daemon=True)

    @property
    def waiting(self) -> int:
        """How many events wait for another attempt."""
        with self._lock:
            return sum(int(name.removesuffix(".json").rsplit("-", 1)[-1]) for name in self._files)

    def take_released(self) -> int:
        """How many files were let back since this was asked last."""
        with self._lock:
            released, self._released = self._released, 0
            return released

    def may_retry(self, rejection: Rejection) -> bool:
        """Has an event an attempt left? One that nobody can give once more has none, nor one that kills workers."""
        if rejection.is_final or rejection.position is None or rejection.original is None:
            return False
        return rejection.attempts < self._acks.max_attempts

    def begin(self, planned: int, *, is_endless: bool) -> None:
        """A query starts that finds epochs planned up to this one: the first new one reads all that is let back by now.

        One with an end reads no other files than these.
        """
        back = [name for name in self._system.names(FOLDER) if name.startswith(_BACK)]
        with self._lock:
            self._is_endless = is_endless
            self._read_by = dict.fromkeys(back, planned + 1)

    def clean(self) -> None:
        """Remove what was read in an epoch that is committed; else the query would look at more files every day."""
        with self._lock:
            read_by = dict(self._read_by)
        epochs = {epoch for epoch in {*read_by.values()} if self._is_committed(epoch)}
        for name in (name for name, epoch in read_by.items() if epoch in epochs):
            self._system.delete(f"{FOLDER}/{name}")
            with self._lock:
                self._read_by.pop(name, None)

    def keep(self, retries: Sequence[Rejection], *, epoch: int, run: str) -> None:
        """Keep what failed in one try of an epoch, before the epoch is committed; each event once."""
        events = {one.event: one for one in retries}
        by_attempts: dict[int, list[Rejection]] = {}
        for one in events.values():
            by_attempts.setdefault(one.attempts, []).append(one)
        for attempts, ones in by_attempts.items():
            due_ms = int(time.time() * 1000) + self._acks.wait_before(attempts + 1) // _MILLISECOND
            name = f"{epoch}-{due_ms}-{run}-{attempts}-{len(ones)}.json"
            self._system.publish(f"{WAITING}/{name}", b"".join(map(_as_line, ones)))
            with self._lock:
                self._files.add(name)
            log.warning(
                "job %s: %d events failed in epoch %d and come again, attempt %d of %d, e.g. %s",
                self._job,
                len(ones),
                epoch,
                attempts + 1,
                self._acks.max_attempts,
                escape(ones[0].reason),
            )

    def start(self) -> None:
        """Begin to look after those that wait."""
        self._thread.start()

    def stop(self) -> None:
        """End; what waits is there for the next run."""
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _look_after(self) -> None:
        while not self._is_over.wait(_LOOK_SECONDS):
            try:
                self.release(time.time())
                self.clean()
            except Exception as error:  # noqa: BLE001 - a file system that is away comes back; a thread does not
                log.warning("job %s: events that wait cannot be let back yet: %s", self._job, error)

    def release(self, now: float) -> None:
        """Let those back whose time has come."""
        with self._lock:
            due = sorted(name for name in self._files if int(name.split("-")[1]) <= now * 1000)
        for name in due:
            if self._is_committed(int(name.split("-")[0])):
                content = self._system.read(f"{WAITING}/{name}")
                if content is not None:
                    # It may be there already, where a process died before it could remove the other one.
                    self._system.publish(f"{FOLDER}/{_BACK}{name}", content)
                    self._system.delete(f"{WAITING}/{name}")
                with self._lock:
                    if self._is_endless:
                        # The next epoch may be planned at this moment, without it.
                        self._read_by[f"{_BACK}{name}"] = self._planned() + 2
                    self._files.discard(name)
                    self._released += 1


def _as_line(rejection: Rejection) -> bytes:
    return as_line(rejection.position or {}, rejection.original or {}, attempts=rejection.attempts)
