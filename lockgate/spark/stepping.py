"""A query whose clock, and whose epochs, are in the hands of who runs it: for tests.

Spark asks a clock what time it is, logs the answer with an epoch, and lets the same clock tell when the next epoch may
begin. A `Stepper` is that clock: its time stands still until it is set, and Spark waits until a step is asked for.

    Spark                    begins an epoch, if there is anything to do -> waits for the time of the next one
    who runs it              sets the time, writes input                 -> asks for a step, waits until it is done

Nothing else of the query is different.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_SECONDS = 0.05


class Stepper:
    """The clock of a query; `now_ms` is its time, in milliseconds since 1970."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self._steps = threading.Semaphore(0)  # that were asked for
        self._done = threading.Semaphore(0)
        self._is_over = False

    def wait(self, is_alive: Callable[[], bool]) -> bool:
        """Wait until the step is done that a query begins with, or that was asked for; False where the query ended."""
        while not self._done.acquire(timeout=_POLL_SECONDS):
            if not is_alive():
                # It may have come to its end behind the step.
                return self._done.acquire(blocking=False)
        return True

    def step(self, is_alive: Callable[[], bool]) -> bool:
        """Let one epoch run, if there is anything to do; False where the query ended."""
        self._steps.release()
        return self.wait(is_alive)

    def begin(self, *, least_ms: int) -> None:
        """A query starts: what was asked of the one before is forgotten. Its time is `least_ms` or later."""
        self.now_ms = max(self.now_ms, least_ms)
        self._steps, self._done, self._is_over = threading.Semaphore(0), threading.Semaphore(0), False

    def stop(self, query: StreamingQuery) -> None:
        """Stop a query, which nothing but a step wakes while it waits: let go of it once it knows that it is to end."""
        letting_go = threading.Thread(target=self._let_go, args=(query,), name="lockgate-stepper", daemon=True)
        letting_go.start()
        query.stop()
        letting_go.join()

    def _let_go(self, query: StreamingQuery) -> None:
        while query.isActive:
            time.sleep(_POLL_SECONDS)
        self._is_over = True
        self._steps.release()

    # What Spark calls, from the thread of the query.

    def getTimeMillis(self) -> int:  # noqa: N802 - Spark's name
        """The time."""
        return self.now_ms

    def nanoTime(self) -> int:  # noqa: N802
        """The time by which durations are measured."""
        return self.now_ms * 1_000_000

    def waitTillTime(self, target_ms: int) -> int:  # noqa: N802
        """Wait until a step is asked for."""
        self._done.release()
        if not self._is_over:
            self._steps.acquire()
        return self.now_ms

    class Java:
        """What it is in the JVM."""

        implements = ("org.apache.spark.util.Clock",)
