"""Ctrl-C and SIGTERM for a command that works for minutes: the first ends it cleanly, the second at once."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stoppable() -> Iterator[Callable[[], None]]:
    """A function for the command to call often; it raises KeyboardInterrupt once the user asks to stop.

    Signals are for the main thread: in another one, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    is_stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        print("\nstopping", file=sys.stderr, flush=True)
        is_stopping.set()
        signal.signal(number, signal.default_int_handler)  # the second time it ends at once

    def go_on() -> None:
        if is_stopping.is_set():
            raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield go_on
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
