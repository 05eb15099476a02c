"""A limit for the time that the author's code takes, kept by a timer of the process."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class TimedOut(BaseException):
    """Raised inside of code whose time is over; no Exception, so that no `except Exception` in it goes on."""


@contextlib.contextmanager
def deadline(seconds: float | None) -> Iterator[None]:
    """Raise TimedOut in the code inside once so much time has passed; None means no limit.

    Python sees the timer between two of its own instructions: a call into C that never returns is not cut off. Workers
    run their tasks in the main thread, which is the only one that a timer can interrupt; elsewhere there is no limit.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _ring(number: int, frame: FrameType | None) -> None:
    raise TimedOut
