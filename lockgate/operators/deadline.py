"""A limit for the time that the author's code takes, kept by a timer of the process."""

from __future__ import annotations

import contextlib
import signal
import threading
from types import FrameType
from typing import Any


class TimedOut(BaseException):
    """Raised inside of code whose time is over; no Exception, so that no `except Exception` in it goes on."""


def deadline(seconds: float | None) -> contextlib.AbstractContextManager[None]:
    """Raise TimedOut in the code inside once so much time has passed; None means no limit.

    Python sees the timer between two of its own instructions: a call into C that never returns is not cut off. Workers
    run their tasks in the main thread, which is the only one that a timer can interrupt; elsewhere there is no limit.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        return _NO_LIMIT
    return _Limit(seconds)


class _Limit:
    """A limit for one row. The handler stays in place: to set it takes several times as long as all the rest."""

    is_heard = False

    __slots__ = ("_seconds",)

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        if not _Limit.is_heard:
            signal.signal(signal.SIGALRM, _ring)
            _Limit.is_heard = True
        signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *error: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _ring(number: int, frame: FrameType | None) -> None:
    raise TimedOut


_NO_LIMIT = contextlib.nullcontext()
