"""Find the event that a Python worker processed when it died.

The user's code can end its worker: a crash in C, `os._exit`, the kernel's out-of-memory killer. Then Python cannot send
a last message, and Spark says that a worker died, not with which event. So a task that is retried, and every task of an
epoch that is retried, reports to the driver what the code gets next, before it gets it. If a connection breaks, its
last message is what the worker died with.

One death may be chance, for example if an operator kills processes. What workers died with twice is not given to the
code any more: it fails like an event on which the code raises, and becomes a dead letter or ends the job. First
attempts report nothing.

    task     {task}                 ->  {poison_events: what is not tried any more}
             {step, place, shown, identity}   in flight from now on
             nothing                    nothing in flight
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from lockgate.escaping import escape
from lockgate.failures import TRIED
from lockgate.serving.rpc import GONE, Address, RpcServer, call
from lockgate.spark.driverhosts import hosts_of_driver

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger(__name__)

_DEATHS_MIN = 2
_SHOWN_MAX = 200
_WORD_BYTES_MAX = 1 << 20
_ANSWER_SECONDS = 5.0


@dataclass(frozen=True)
class InFlight:
    """What the user's code is given: a row of a source's event, or all rows of a key."""

    step: str
    place: Mapping[str, Any] | None  # the fields of POSITION; None if it is not of a single event
    shown: str

    @property
    def identity(self) -> str:
        """What identifies it, alike in every try."""
        place = self.place
        if place is None or place["at"] < 0:  # of files the row's own place is known only if a step needs it
            content = sha256(self.shown.encode(errors="replace")).hexdigest()
            return json.dumps([self.step, None if place is None else place["part"], content])
        return json.dumps([self.step, place["source"], place["part"], place["at"], list(place.get("child") or ())])

    def __str__(self) -> str:
        place = self.place
        if place is None:
            return f"step {self.step!r}, {self.shown}"
        at = f", offset {place['at']}" if place["at"] >= 0 else ""
        return f"step {self.step!r}, the row from {place['source']}, {place['part']}{at}: {self.shown}"


class CrashRegistry:
    """The driver's side: collects what workers died with; lives as long as the run."""

    def __init__(self, job: str, context: SparkContext) -> None:
        self._job = job
        self._lock = threading.Lock()
        self._deaths: Counter[str] = Counter()
        self._noted: Sequence[str] = ()  # what an earlier driver put aside in this epoch
        self._seen: dict[str, InFlight] = {}
        self._tasks: set[int] = set()  # those that have counted already
        self._try, self._is_open = 0, False
        self._server = RpcServer(self._serve, name="lockgate-crashes", **hosts_of_driver(context))

    @property
    def address(self) -> Address:
        """The address to which workers report."""
        return self._server.address

    @property
    def poison_events(self) -> list[str]:
        """What is not given to the user's code any more."""
        with self._lock:
            found = (identity for identity, times in self._deaths.items() if times >= _DEATHS_MIN)
            return [*dict.fromkeys((*self._noted, *found))]

    def begin(self, *, is_repeated: bool, noted: Sequence[str] = ()) -> None:
        """Start a try of an epoch; what workers died with in another epoch does not count for it.

        Args:
            is_repeated: was this epoch tried before?
            noted: what an earlier driver put aside in this epoch.
        """
        with self._lock:
            self._noted = noted
            self._try += 1
            self._is_open = True
            self._tasks.clear()
            if not is_repeated:
                self._deaths.clear()
                self._seen.clear()

    def end(self) -> None:
        """End a failed try: Spark now ends workers of other tasks, and these are not to blame."""
        with self._lock:
            self._is_open = False

    def summary(self) -> str | None:
        """What workers died with, for people; None if it is unknown."""
        with self._lock:
            counted = [(self._seen[identity], times) for identity, times in self._deaths.most_common(3)]
        return "; ".join(f"{times}x with {in_flight}" for in_flight, times in counted) or None

    def close(self) -> None:
        """Accept no more connections; one that ends by this is not one of a worker that died."""
        self.end()
        self._server.close()

    def _serve(self, connection: Connection[Any, Any]) -> None:
        task = int(json.loads(connection.recv_bytes(_WORD_BYTES_MAX))["task"])
        with self._lock:
            belongs_to = self._try
        connection.send_bytes(json.dumps({"poison_events": self.poison_events}).encode())
        last = b""
        with suppress(OSError, EOFError):
            while True:
                last = connection.recv_bytes(_WORD_BYTES_MAX)
        if last:
            word = json.loads(last)
            in_flight = InFlight(str(word["step"]), word["place"], str(word["shown"]))
            self._count(belongs_to, task, str(word["identity"]), in_flight)

    def _count(self, belongs_to: int, task: int, identity: str, in_flight: InFlight) -> None:
        with self._lock:
            # Spark ends the other workers of a task when one has died: only the first counts.
            if not self._is_open or belongs_to != self._try or task in self._tasks:
                return
            self._tasks.add(task)
            self._seen[identity] = in_flight
            self._deaths[identity] += 1
            times = self._deaths[identity]
        log.warning(
            "job %s: a Python worker died (%dx) with this in hand: %s", self._job, times, escape(str(in_flight))
        )


class Watch:
    """A task's side: reports what the code gets next."""

    def __init__(self, task: int, address: Address) -> None:
        self.task = task
        self._connection = call(address, seconds=_ANSWER_SECONDS)
        self._connection.send_bytes(json.dumps({"task": task}).encode())
        if not self._connection.poll(_ANSWER_SECONDS):
            raise EOFError("no answer")
        self._poison_events = frozenset(json.loads(self._connection.recv_bytes())["poison_events"])

    def take(self, in_flight: InFlight) -> str | None:
        """Report what is next; returns the reason if it must not be tried."""
        identity = in_flight.identity
        if identity in self._poison_events:
            return "its Python worker died with it in hand more than once: it crashed, was killed or ended itself"
        word = {**asdict(in_flight), "shown": in_flight.shown[:_SHOWN_MAX], "identity": identity}
        with suppress(*GONE):  # a driver that does not answer is no reason to stop
            self._connection.send_bytes(json.dumps(word).encode())
        return None

    def leave(self) -> None:
        """Report that nothing is in flight."""
        with suppress(*GONE):
            self._connection.send_bytes(b"")

    def close(self) -> None:
        """Close the connection: the task is over."""
        self._connection.close()


_watch: Watch | None = None  # of the current task of this process, which runs one after the other
_silent_drivers: set[Address] = set()  # drivers that do not answer; they are not called again


@contextmanager
def watched(address: Address | None) -> Iterator[Watch | None]:
    """The watch of this task while it runs the user's code; None in a first try."""
    watch = None if address is None else _find(address)
    if watch is None:
        yield None
        return
    try:
        yield watch
    finally:
        watch.leave()


def _find(address: Address) -> Watch | None:
    from pyspark import TaskContext

    global _watch
    task = TaskContext.get()
    if task is None or (not task.attemptNumber() and not task.getLocalProperty(TRIED)):
        return None
    if address in _silent_drivers:
        return None
    if _watch is None or _watch.task != task.taskAttemptId():
        if _watch is not None:
            _watch.close()
            _watch = None
        try:
            _watch = Watch(task.taskAttemptId(), address)
        except GONE as error:
            _silent_drivers.add(address)
            log.warning("the driver does not answer, so it cannot learn what this task dies with: %s", error)
    return _watch
