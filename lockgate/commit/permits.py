"""One writer per (try, partition): tasks ask the driver for permits.

A retried stage numbers its attempts from 0 again, and a broker acknowledges repeated sequence numbers without looking
at the bytes: two attempts that both write to one partition would mix silently. So before its first byte a task asks the
driver for a permit for the partition. The driver gives it once per try, and again only to the same task attempt. A try
that is over gives none.

Tasks have no other way to ask, so the driver listens on a port of its own (serving/rpc.py): both sides prove that they
know a secret that travels with the work. They exchange JSON and never pickles.

    permit   {try, task, attempt, partitions}  -> {refusal, is_clash}   a clash: two tasks, not two attempts of one
    failure  {try, error}                      -> {}                    the first error of a try, before Spark hides it
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from lockgate.errors import EpochFailed
from lockgate.serving.rpc import GONE, Address, RpcServer, call

Place = tuple[str, int]
"""A topic and one of its partitions."""

_ANSWER_SECONDS = 60.0
_PAUSES_SECONDS = (0.0, 0.2)  # before another try


@dataclass(frozen=True)
class Refusal:
    """Why a permit is refused."""

    reason: str
    is_clash: bool  # two tasks hold rows of one partition; otherwise it is a second attempt, or too late


class Permits:
    """Which task may write to which partition, in the open try."""

    def __init__(
        self, now: Callable[[], float] = time.monotonic, new_name: Callable[[], str] = lambda: secrets.token_hex(8)
    ) -> None:
        self._now = now
        self._new_name = new_name
        self._lock = threading.Lock()
        self._try: str | None = None
        self._granted: dict[Place, tuple[int, int]] = {}  # task, attempt
        self._attempts: dict[int, int] = {}  # the one attempt of each task that may write
        self._first_at: float | None = None
        self._failure: str | None = None

    def open(self) -> str:
        """Begin a try, and end all older ones."""
        with self._lock:
            self._try = self._new_name()
            self._granted, self._attempts, self._first_at, self._failure = {}, {}, None, None
            return self._try

    def close(self) -> None:
        """End the try: no task gets a permit any more."""
        with self._lock:
            self._try = None

    def ask(self, name: str, *, task: int, attempt: int, places: Sequence[Place]) -> Refusal | None:
        """Grant all these partitions to a task attempt, or none, with the reason."""
        with self._lock:
            if name != self._try:
                return Refusal("the try that this task belongs to is over", is_clash=False)
            first = self._attempts.setdefault(task, attempt)
            if first != attempt:
                told = f"task {task} had a permit before, as attempt {first}, and may have written"
                return Refusal(told, is_clash=False)
            for place in places:
                holder = self._granted.get(place)
                if holder not in (None, (task, attempt)):
                    assert holder is not None
                    told = (
                        f"partition {place[1]} of topic {place[0]!r} is held by task {holder[0]}, attempt {holder[1]}"
                    )
                    return Refusal(told, is_clash=holder[0] != task)
            for place in places:
                self._granted[place] = (task, attempt)
            if self._first_at is None:
                self._first_at = self._now()
            return None

    def tell(self, name: str, error: str) -> None:
        """Note the failure of a task if it is the first one of the open try."""
        with self._lock:
            if name == self._try and self._failure is None:
                self._failure = error

    @property
    def granted(self) -> dict[Place, int]:
        """Which attempt holds which partition."""
        with self._lock:
            return {place: attempt for place, (_, attempt) in self._granted.items()}

    @property
    def failure(self) -> str | None:
        """The report of the first task that failed."""
        with self._lock:
            return self._failure

    def held_seconds(self) -> float:
        """How long ago the try gave its first permit: its transaction is open for at most this long."""
        with self._lock:
            return 0.0 if self._first_at is None else self._now() - self._first_at


class PermitServer(RpcServer):
    """The driver's side; open as long as the run."""

    def __init__(self, permits: Permits, *, host: str, bind: str) -> None:
        self._permits = permits
        super().__init__(self._converse, name="lockgate-permits", host=host, bind=bind)

    def _converse(self, connection: Connection[Any, Any]) -> None:
        while True:  # until the worker hangs up
            connection.send_bytes(json.dumps(self._answer(json.loads(connection.recv_bytes(1 << 24)))).encode())

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        name = str(message["try"])
        if message["kind"] == "failure":
            self._permits.tell(name, str(message["error"]))
            return {}
        places = [(str(topic), int(partition)) for topic, partition in message["partitions"]]
        refusal = self._permits.ask(name, task=int(message["task"]), attempt=int(message["attempt"]), places=places)
        return {"refusal": None if refusal is None else refusal.reason, "is_clash": bool(refusal and refusal.is_clash)}


class Caller:
    """A task's side of the server; one per worker process and driver, kept between tasks."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connection: Connection[Any, Any] | None = None
        self._lock = threading.Lock()

    def ask(self, name: str, *, task: int, attempt: int, places: Sequence[Place]) -> Refusal | None:
        """Ask for these partitions."""
        answer = self._call(
            {"kind": "permit", "try": name, "task": task, "attempt": attempt, "partitions": list(places)}
        )
        return None if answer["refusal"] is None else Refusal(str(answer["refusal"]), bool(answer["is_clash"]))

    def tell(self, name: str, error: str) -> None:
        """Tell the driver why this task fails; a driver that is gone does not need to know."""
        with suppress(EpochFailed):
            self._call({"kind": "failure", "try": name, "error": error})

    def _call(self, message: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            # The connection may be dead since an earlier task. And a driver under a flood of strangers may drop this
            # caller as one of them.
            for pause in _PAUSES_SECONDS:
                try:
                    return self._exchange(message)
                except GONE:
                    time.sleep(pause)
            try:
                return self._exchange(message)
            except GONE as error:
                raise EpochFailed(
                    f"the driver does not answer at {self._address.host}:{self._address.port}"
                    f" ({type(error).__name__}: {error})",
                    where="a task that asks for its permit",
                    fix="the driver is gone, or a firewall stands between it and the executors:"
                    " they have to reach spark.driver.host at any port",
                ) from None

    def _exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            if self._connection is None:
                self._connection = call(self._address, seconds=_ANSWER_SECONDS)
            self._connection.send_bytes(json.dumps(message).encode())
            if not self._connection.poll(_ANSWER_SECONDS):
                raise EOFError("no answer")
            answer: dict[str, Any] = json.loads(self._connection.recv_bytes())
            return answer
        except GONE:
            if self._connection is not None:
                self._connection.close()
            self._connection = None
            raise
