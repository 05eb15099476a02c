"""Keeps a job running: its driver is a process of its own, started again when it has died or failed.

    supervisor -> driver     signals that ask for the end; and that it is there: its end of a socket
    driver -> supervisor     lines over that socket: every epoch that is done, and with which error it ended

The driver has a session of its own, so that Ctrl-C reaches it once, through us. It never outlives its supervisor: it
sees the socket close, and stops as if it were asked to. Why a driver was started again, and where it goes on, is said
in one line, and told to the next one, which counts.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from types import FrameType

from lockgate.errors import LockgateError
from lockgate.runtime.restarts import Ended, GiveUp, Restarts

FD = "LOCKGATE_SUPERVISOR"
"""The variable with the driver's end of the socket."""

RESTARTS = "LOCKGATE_RESTARTS"
"""The variable that tells a driver how often its job was started again."""

AGAIN = "LOCKGATE_AGAIN"
"""The variable that tells a driver that its job ran before: what is done once in its life is done."""

_OWN_SIGNALS = frozenset((signal.SIGINT, signal.SIGTERM))


class Supervisor:
    """Starts the driver of a job again and again."""

    def __init__(self, command: Sequence[str], *, say: Callable[[str], None], restarts: Restarts | None = None) -> None:
        self._command, self._say = [*command], say
        self._restarts = restarts or Restarts()
        self._is_stopping = threading.Event()
        self._driver: subprocess.Popen[bytes] | None = None
        self._has_run = False

    def run(self) -> int:
        """Until the job is done, is stopped, or cannot be helped by another start; its exit status."""
        before = {number: signal.signal(number, self._pass_on) for number in _OWN_SIGNALS}
        try:
            while True:
                code, ended = self._run_once()
                status = 1 if code < 0 else code
                if ended is None:
                    return status
                decided = self._restarts.after(ended, time.monotonic())
                if isinstance(decided, GiveUp):
                    if self._has_run or code < 0:  # one that never ran has said all there is to say
                        self._say(f"not started again: {decided.why}")
                    return status
                goes_on = "" if ended.place is None else f", {ended.place}"
                self._say(f"restart {self._restarts.count}{goes_on}, in {decided:.1f} s: {ended.why}")
                if self._is_stopping.wait(decided):
                    return 0
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _run_once(self) -> tuple[int, Ended | None]:
        """Run one driver to its end: its exit code, and how it ended where that was not as it should."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                self._driver = subprocess.Popen(
                    self._command,
                    pass_fds=[theirs.fileno()],
                    env={
                        **os.environ,
                        FD: str(theirs.fileno()),
                        RESTARTS: str(self._restarts.count),
                        **({AGAIN: "yes"} if self._has_run else {}),
                    },
                    start_new_session=True,
                )
            if self._is_stopping.is_set():  # asked for while there was nobody to pass it on to
                self._driver.send_signal(signal.SIGTERM)
            ended = self._listen(ours)
            self._has_run = self._has_run or ended.place is not None
            code = self._driver.wait()
        if code == 0 or self._is_stopping.is_set():
            return max(code, 0), None
        if not ended.why:
            # One that ended by itself has told people why.
            died = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
            ended = replace(ended, why=f"the driver {died}")
        return code, ended

    def _listen(self, driver: socket.socket) -> Ended:
        """What a driver tells, up to its end; who was killed gives no reason."""
        ended = Ended(why="")
        with driver.makefile("rb") as lines:
            for line in lines:
                ended = Ended(**json.loads(line))
        return ended

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._is_stopping.set()
        if self._driver is not None and self._driver.poll() is None:
            self._driver.send_signal(number)


class Report:
    """A driver's way to its supervisor; without one nobody listens."""

    def __init__(self, stop: Callable[[], None]) -> None:
        """`stop` is called when the supervisor is gone."""
        self._so_far = Ended(why="")
        self.is_again = os.environ.pop(AGAIN, "") != ""
        fd = os.environ.pop(FD, None)  # what the driver starts has no part in it
        self._socket = None if fd is None else socket.socket(fileno=int(fd))
        if self._socket is not None:
            self._socket.set_inheritable(False)
            threading.Thread(target=self._watch, args=(stop,), name="lockgate-supervised", daemon=True).start()

    def tell_delicate(self) -> None:
        """What is done once in the life of a job begins: who dies in it is not started again, for nobody knows."""
        self._send(Ended(why="", final="it died while it began anew, and nobody knows how far it came: run it again"))

    def tell(self, place: str, epochs: int) -> None:
        """The job runs: so many epochs are done, and the next driver would go on there."""
        if (place, epochs) != (self._so_far.place, self._so_far.epochs):
            self._so_far = Ended(why="", place=place, epochs=epochs)
            self._send(self._so_far)

    def tell_error(self, error: LockgateError) -> None:
        """The driver ends with this."""
        self._send(Ended.by(error, self._so_far.place, self._so_far.epochs))

    def _send(self, told: Ended) -> None:
        if self._socket is not None:
            with suppress(OSError):  # it is gone, and the watching thread says so
                self._socket.sendall(json.dumps(asdict(told)).encode() + b"\n")

    def _watch(self, stop: Callable[[], None]) -> None:
        assert self._socket is not None
        while True:
            try:
                if not self._socket.recv(1):
                    break
            except OSError:
                break
        print("the supervisor is gone; stopping", file=sys.stderr, flush=True)
        stop()
