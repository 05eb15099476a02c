"""Keeps a job running: its driver is a process of its own, which is restarted when it dies or fails.

    supervisor -> driver     signals that ask it to end; and that the supervisor lives: its end of a socket
    driver -> supervisor     lines over that socket: how it would have ended if it died now, and how it did end

The driver has a session of its own, so that Ctrl-C reaches it once, through us. It never outlives its supervisor: when
the socket closes, it stops as if it were asked to. One that hangs while it starts is killed. One line gives the reason
of a restart, and the position from which the driver continues.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from types import FrameType

from lockgate.errors import LockgateError
from lockgate.escaping import tell
from lockgate.runtime.metrics.health import Verdict
from lockgate.runtime.metrics.server import Pages, Server
from lockgate.runtime.restarts import Ended, GiveUp, Restarts

FD = "LOCKGATE_SUPERVISOR"
"""The variable with the driver's end of the socket."""

AGAIN = "LOCKGATE_AGAIN"
"""The variable that says to a driver that its job ran before: options for the first start do not apply again."""

COUNT = "LOCKGATE_RESTARTS"
"""The variable with the number of restarts of the job."""

LISTENING = "LOCKGATE_METRICS_SOCKET"
"""The variable with the socket for metrics, if there is one."""

START_SECONDS = 15 * 60.0
"""After this time a driver that does not know where it continues is not slow, but hangs."""

_LOOK_SECONDS = 0.1
_LAST_WORDS_SECONDS = 5.0
_OWN_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Supervisor:
    """Starts the driver of a job, and restarts it."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        say: Callable[[str], None],
        environ: Mapping[str, str] | None = None,
        restarts: Restarts | None = None,
        listening: socket.socket | None = None,
        called: str = "",
        start_seconds: float = START_SECONDS,
    ) -> None:
        """Supervise the driver that `command` starts; it serves its health and its metrics at `listening`.

        While there is no driver that answers there, its supervisor does.

        Args:
            environ: what drivers have in their environment beside ours.
            called: the given host of `listening`.
            start_seconds: how long a driver may take until it knows where it continues.
        """
        self._start_seconds = start_seconds
        self._command, self._say_aloud, self._listening = [*command], say, listening
        self._called, self._environ = called, environ or {}
        self._server: Server | None = None
        self._verdict = Verdict(is_alive=True, is_ready=False, status="starting")
        self._restarts = restarts or Restarts()
        self._is_stopping = False  # set by a signal handler, so it must not need a lock
        self._driver: subprocess.Popen[bytes] | None = None
        self._told = Ended(why="")

    def run(self) -> int:
        """Run until the job is done, is stopped, or cannot be helped by a restart; returns its exit status."""
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
                    # A driver that failed at its first start has printed its own error already.
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
        """Print; a full disk, or a reader that is gone, must not end the process that keeps the job running."""
        with suppress(OSError, ValueError):
            self._say_aloud(text)

    def _answer(self) -> None:
        """Report to orchestrators that the job is supervised: to kill it would not help."""
        if self._listening is not None and self._server is None:
            self._server = Server(self._listening, Pages(lambda: self._verdict), called=self._called)

    def _answer_no_more(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.stop()

    def _pause(self, seconds: float) -> bool:
        """Wait; True if a signal to stop arrives before the end."""
        deadline = time.monotonic() + seconds
        while not self._is_stopping and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_SECONDS))
        return self._is_stopping

    def _run_once(self) -> tuple[int, Ended | None]:
        """Run one driver to its end: its exit code, and how it ended if it did not succeed."""
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
                            **self._environ,
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
            if self._is_stopping:  # the signal arrived before there was a driver to pass it on to
                self._driver.send_signal(signal.SIGTERM)
            listening = threading.Thread(target=self._listen, args=(ours,), name="lockgate-supervisor", daemon=True)
            listening.start()
            code, is_hung = self._await_end(self._driver)
            # Its child processes may hold the socket open; its own messages have arrived by now.
            listening.join(timeout=_LAST_WORDS_SECONDS)
            with suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)
            listening.join()
        told = self._told
        if code == 0:
            return 0, None
        if self._is_stopping:
            # A driver that is asked to stop while it starts has nothing to stop yet, and dies of the signal.
            is_clean = told.place is None and -code in _OWN_SIGNALS
            return (0 if is_clean else code), None
        if is_hung and not told.why:
            why = f"the driver did not start within {self._start_seconds:.0f} s, and was killed"
            return code, replace(told, why=why)
        if not told.why:
            # A driver that ended by itself has printed why.
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
        """Keep the last message of a driver, up to its end; a killed one gives no reason."""
        with suppress(OSError), driver.makefile("rb") as lines:
            for line in lines:
                self._answer_no_more()  # the driver does, before it sends its first message
                if line.endswith(b"\n"):  # else it was killed in the middle of a message
                    self._told = Ended(**json.loads(line))

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._is_stopping = True
        if self._driver is not None and self._driver.poll() is None:
            self._driver.send_signal(number)


class Report:
    """Sends a driver's messages to its supervisor; does nothing if there is none."""

    def __init__(self, stop: Callable[[], None], *, say: Callable[[str], None] | None = None) -> None:
        """Call `stop` when the supervisor is gone, and `say` that it is."""
        self._so_far = Ended(why="")
        self._say = say or tell
        self.restarts = int(os.environ.pop(COUNT, "0"))
        shared = os.environ.pop(LISTENING, None)
        self.listening = None if shared is None else _taken_over(shared)
        self.is_again = os.environ.pop(AGAIN, "") != ""
        fd = os.environ.pop(FD, None)  # child processes of the driver must not use it
        self._socket = None if fd is None else _taken_over(fd)
        if self._socket is not None:
            threading.Thread(target=self._watch, args=(stop,), name="lockgate-supervised", daemon=True).start()

    def greet(self) -> None:
        """Tell the supervisor that this driver answers for itself from now on."""
        self._send(self._so_far)

    @property
    def is_supervised(self) -> bool:
        """Is there a supervisor?"""
        return self._socket is not None

    def send_past(self) -> None:
        """Tell that the job has completed an epoch before: if a service does not answer, it is only away."""
        self._so_far = replace(self._so_far, has_past=True)
        self._send(self._so_far)

    def tell(self, place: str | None = None, epochs: int = 0, *, final: str = "") -> None:
        """Tell how many epochs are done if the driver dies now, and from which position the next driver continues.

        Args:
            final: why no other driver may continue.
        """
        now = replace(self._so_far, place=place, epochs=epochs, final=final)
        if now != self._so_far:
            self._so_far = now
            self._send(now)

    def send_error(self, error: LockgateError) -> None:
        """Tell the error that ends the driver."""
        self._send(Ended.by(error, self._so_far))

    def send_unexpected(self, error: Exception) -> None:
        """Tell the unexpected error that ends the driver."""
        lines = f"{type(error).__name__}: {error}".splitlines()
        self._send(replace(self._so_far, why=lines[0], is_refused=True))

    def send_final(self, why: str) -> None:
        """Tell that the driver ends, and that a restart would not help."""
        self._send(replace(self._so_far, why=why, final=why))

    def _send(self, told: Ended) -> None:
        if self._socket is not None:
            with suppress(OSError):  # the supervisor is gone, and the watching thread notices
                self._socket.sendall(json.dumps(asdict(told)).encode() + b"\n")

    def _watch(self, stop: Callable[[], None]) -> None:
        assert self._socket is not None
        with suppress(OSError):
            while self._socket.recv(1):
                pass
        stop()
        with suppress(OSError, ValueError):  # the reader of our output may be gone too
            self._say("the supervisor is gone; stopping")


def _taken_over(fd: str) -> socket.socket:
    """A socket that the supervisor has opened; child processes of the driver do not inherit it."""
    taken = socket.socket(fileno=int(fd))
    taken.set_inheritable(False)
    os.register_at_fork(after_in_child=taken.close)
    return taken
