"""Keeps a job running: its driver is a process of its own, started again when it has died or failed.

    supervisor -> driver     signals that ask for the end; and that it is there: its end of a socket
    driver -> supervisor     lines over that socket: how it would have ended if it died now, and how it did end

The driver has a session of its own, so that Ctrl-C reaches it once, through us. It never outlives its supervisor: it
sees the socket close, and stops as if it were asked to. One that hangs while it starts is killed. Why a driver is
started again, and where it goes on, is said in one line.
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
from lockgate.runtime.metrics.health import Verdict
from lockgate.runtime.metrics.server import Pages, Server
from lockgate.runtime.restarts import Ended, GiveUp, Restarts

FD = "LOCKGATE_SUPERVISOR"
"""The variable with the driver's end of the socket."""

AGAIN = "LOCKGATE_AGAIN"
"""The variable that tells a driver that its job ran before: what is done once in its life is done."""

COUNT = "LOCKGATE_RESTARTS"
"""The variable that tells a driver how often its job was started again."""

LISTENING = "LOCKGATE_METRICS_SOCKET"
"""The variable with the socket that metrics are served at, where there is one."""

START_SECONDS = 15 * 60.0
"""A driver that does not know by then where it goes on is not slow, but hangs."""

_LOOK_SECONDS = 0.1
_LAST_WORDS_SECONDS = 5.0
_OWN_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Supervisor:
    """Starts the driver of a job again and again."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        say: Callable[[str], None],
        restarts: Restarts | None = None,
        listening: socket.socket | None = None,
        called: str = "",
        start_seconds: float = START_SECONDS,
    ) -> None:
        """Look after the driver that `command` starts; `listening` is where it answers for its health, and its metrics.

        While there is no driver that answers, its supervisor does.

        Args:
            called: the host that was given to listen at.
            start_seconds: how long a driver may take until it knows where it goes on.
        """
        self._start_seconds = start_seconds
        self._command, self._say_aloud, self._listening = [*command], say, listening
        self._called = called
        self._server: Server | None = None
        self._verdict = Verdict(is_alive=True, is_ready=False, status="starting")
        self._restarts = restarts or Restarts()
        self._is_stopping = False  # set by a signal, so no lock may be needed for it
        self._driver: subprocess.Popen[bytes] | None = None
        self._told = Ended(why="")

    def run(self) -> int:
        """Until the job is done, is stopped, or cannot be helped by another start; its exit status."""
        before = {number: signal.signal(number, self._pass_on) for number in _OWN_SIGNALS}
        try:
            while True:
                self._answer()
                began = time.monotonic()
                code, ended = self._run_once()
                status = 1 if code < 0 else code
                if ended is None:
                    return status
                now = time.monotonic()
                decided = self._restarts.after(ended, now, lived=now - began)
                if isinstance(decided, GiveUp):
                    # One that never ran, and was not waited for, has said all there is to say.
                    if self._restarts.has_run or self._restarts.count or code < 0:
                        self._say(f"not started again: {decided.why}")
                    return status
                place = self._restarts.place
                goes_on = "" if place is None else f", {place}"
                self._say(f"restart {self._restarts.count}{goes_on}, in {decided:.1f} s: {ended.why}")
                told = f"restart {self._restarts.count}: {ended.why}"
                self._verdict = Verdict(is_alive=True, is_ready=False, status="restarting", reason=told)
                self._answer()
                if self._pause(decided):
                    return 0
        finally:
            self._answer_no_more()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _say(self, text: str) -> None:
        """Tell people; a disk that is full, or a reader that is gone, must not end who keeps the job running."""
        with suppress(OSError, ValueError):
            self._say_aloud(text)

    def _answer(self) -> None:
        """Say to orchestrators that the job is looked after: to kill it would not help."""
        if self._listening is not None and self._server is None:
            self._server = Server(self._listening, Pages(lambda: self._verdict), called=self._called)

    def _answer_no_more(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.stop()

    def _pause(self, seconds: float) -> bool:
        """Wait; True where somebody wants the end before that."""
        deadline = time.monotonic() + seconds
        while not self._is_stopping and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_SECONDS))
        return self._is_stopping

    def _run_once(self) -> tuple[int, Ended | None]:
        """Run one driver to its end: its exit code, and how it ended where that was not as it should."""
        self._told = Ended(why="")
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                shared = [] if self._listening is None else [self._listening.fileno()]
                try:
                    self._driver = subprocess.Popen(
                        self._command,
                        pass_fds=[theirs.fileno(), *shared],
                        env={
                            **os.environ,
                            FD: str(theirs.fileno()),
                            COUNT: str(self._restarts.count),
                            **({AGAIN: "yes"} if self._restarts.has_run else {}),
                            **({LISTENING: str(shared[0])} if shared else {}),
                        },
                        start_new_session=True,
                    )
                except OSError as error:
                    if not self._restarts.has_run:
                        raise
                    # A machine without memory for another process may have some later.
                    return 1, Ended(why=f"the driver does not start: {error}")
            if self._is_stopping:  # asked for while there was nobody to pass it on to
                self._driver.send_signal(signal.SIGTERM)
            listening = threading.Thread(target=self._listen, args=(ours,), name="lockgate-supervisor", daemon=True)
            listening.start()
            code, is_hung = self._await_end(self._driver)
            # What it started may hold the socket open; what it said itself is here by now.
            listening.join(timeout=_LAST_WORDS_SECONDS)
            with suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)
            listening.join()
        told = self._told
        if code == 0:
            return 0, None
        if self._is_stopping:
            # Who is asked to stop while it starts has nothing to stop yet, and dies of the signal.
            is_clean = told.place is None and -code in _OWN_SIGNALS
            return (0 if is_clean else code), None
        if is_hung and not told.why:
            why = f"the driver did not start within {self._start_seconds:.0f} s, and was killed"
            return code, replace(told, why=why)
        if not told.why:
            # One that ended by itself has told people why.
            died = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
            told = replace(told, why=f"the driver {died}", is_refused=code > 0)
        return code, told

    def _await_end(self, driver: subprocess.Popen[bytes]) -> tuple[int, bool]:
        """The exit code of a driver, and whether it was killed because it did not start."""
        with suppress(subprocess.TimeoutExpired):
            return driver.wait(timeout=self._start_seconds), False
        is_hung = self._told.place is None
        if is_hung:
            driver.kill()  # its JVM ends with it
        return driver.wait(), is_hung

    def _listen(self, driver: socket.socket) -> None:
        """Keep the last that a driver tells, up to its end; who was killed gives no reason."""
        with suppress(OSError), driver.makefile("rb") as lines:
            for line in lines:
                self._answer_no_more()  # the driver does, before it says its first word
                if line.endswith(b"\n"):  # else it was killed in the middle of a word
                    self._told = Ended(**json.loads(line))

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._is_stopping = True
        if self._driver is not None and self._driver.poll() is None:
            self._driver.send_signal(number)


class Report:
    """A driver's way to its supervisor; without one nobody listens."""

    def __init__(self, stop: Callable[[], None], *, say: Callable[[str], None] | None = None) -> None:
        """`stop` is called when the supervisor is gone, and `say` told so."""
        self._so_far = Ended(why="")
        self._say = say or (lambda text: print(text, file=sys.stderr, flush=True))
        self.restarts = int(os.environ.pop(COUNT, "0"))
        shared = os.environ.pop(LISTENING, None)
        self.listening = None if shared is None else _taken_over(shared)
        self.is_again = os.environ.pop(AGAIN, "") != ""
        fd = os.environ.pop(FD, None)  # what the driver starts has no part in it
        self._socket = None if fd is None else _taken_over(fd)
        if self._socket is not None:
            threading.Thread(target=self._watch, args=(stop,), name="lockgate-supervised", daemon=True).start()

    def greet(self) -> None:
        """Tell the supervisor that this driver answers for itself from now on."""
        self._send(self._so_far)

    @property
    def is_supervised(self) -> bool:
        """Does anybody listen?"""
        return self._socket is not None

    def tell_past(self) -> None:
        """The job has got through an epoch before: what it needs and does not answer is only away."""
        self._so_far = replace(self._so_far, has_past=True)
        self._send(self._so_far)

    def tell(self, place: str | None = None, epochs: int = 0, *, final: str = "") -> None:
        """Were it to die now, so many epochs would be done, and the next driver would go on there.

        Args:
            final: why no other driver may go on.
        """
        now = replace(self._so_far, place=place, epochs=epochs, final=final)
        if now != self._so_far:
            self._so_far = now
            self._send(now)

    def tell_error(self, error: LockgateError) -> None:
        """The driver ends with this."""
        self._send(Ended.by(error, self._so_far))

    def tell_surprise(self, error: Exception) -> None:
        """The driver ends with something that nobody has foreseen."""
        lines = f"{type(error).__name__}: {error}".splitlines()
        self._send(replace(self._so_far, why=lines[0], is_refused=True))

    def tell_final(self, why: str) -> None:
        """The driver ends, and no other one would do better."""
        self._send(replace(self._so_far, why=why, final=why))

    def _send(self, told: Ended) -> None:
        if self._socket is not None:
            with suppress(OSError):  # it is gone, and the watching thread sees it
                self._socket.sendall(json.dumps(asdict(told)).encode() + b"\n")

    def _watch(self, stop: Callable[[], None]) -> None:
        assert self._socket is not None
        with suppress(OSError):
            while self._socket.recv(1):
                pass
        stop()
        with suppress(OSError, ValueError):  # who reads it may be gone too
            self._say("the supervisor is gone; stopping")


def _taken_over(fd: str) -> socket.socket:
    """A socket that the supervisor has opened; what the driver starts does not get it."""
    taken = socket.socket(fileno=int(fd))
    taken.set_inheritable(False)
    os.register_at_fork(after_in_child=taken.close)
    return taken
