"""A limit for the time that the user's code takes, kept by a timer of the process."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from types import FrameType
from typing import Any

_AGAIN_SECONDS = 1.0


class TimedOut(BaseException):
    """Raised in code whose time is over. It is no Exception, so `except Exception` in that code does not catch it."""


def deadline(seconds: float | None) -> contextlib.AbstractContextManager[None]:
    """Raise TimedOut in the enclosed code after so much time; None means no limit.

    Python checks the timer between two of its own instructions, so a call into C that never returns is not cut off. A
    timer interrupts only the main thread. Workers run their tasks there; in other threads there is no limit.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        return _NO_LIMIT
    return _Limit(seconds)


class _Limit:
    """A limit for one row.

    To set the timer for each row would take longer than most rows do. So it keeps running. It rings at the earliest
    when the row for which it was set would be too late. If another row is in hand by then, it is set for that one.
    """

    over_at: float | None = None  # when the time of the row in hand is over
    rings_at: float | None = None  # when the timer rings next

    __slots__ = ("_seconds",)

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        now = time.monotonic()
        _Limit.over_at = over_at = now + self._seconds
        rings_at = _Limit.rings_at
        # If a timer should have rung and did not, other code that uses alarms has switched it off.
        if rings_at is None or rings_at > over_at or rings_at <= now:
            signal.signal(signal.SIGALRM, _ring)
            _set_timer(over_at)

    def __exit__(self, *error: Any) -> None:
        _Limit.over_at = None


def _set_timer(at: float) -> None:
    _Limit.rings_at = at
    # A timer of 0 seconds would never ring.
    signal.setitimer(signal.ITIMER_REAL, max(at - time.monotonic(), 1e-6))


def _ring(number: int, frame: FrameType | None) -> None:
    _Limit.rings_at = None
    over_at = _Limit.over_at
    if over_at is None:
        return  # nothing is in hand; the next row sets it
    if frame is not None and frame.f_code in _OWN:
        # The row is just taken or done. An error raised here would leave it in hand forever.
        _set_timer(time.monotonic() + _AGAIN_SECONDS)
        return
    if time.monotonic() < over_at:
        _set_timer(over_at)
        return
    _set_timer(time.monotonic() + _AGAIN_SECONDS)  # cut off again code that swallows the error
    raise TimedOut


_OWN = (_Limit.__enter__.__code__, _Limit.__exit__.__code__, _set_timer.__code__)
_NO_LIMIT = contextlib.nullcontext()
