"""A query whose clock and epochs its caller controls: for tests.

Spark asks a clock for the time, logs the answer with an epoch, and the same clock decides when the next epoch may
start. A `Stepper` is that clock: its time stands still until the caller sets it, and Spark waits until the caller asks
for a step.

    Spark                    starts an epoch, if there is anything to do -> waits for the time of the next one
    the caller               sets the time, writes input                 -> asks for a step, waits until it is done

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
        self._steps = threading.Semaphore(0)  # the requested ones
        self._done = threading.Semaphore(0)
        self._is_over = False

    def wait(self, is_alive: Callable[[], bool]) -> bool:
        """Wait until the first or the requested step is done; False if the query ended."""
        while not self._done.acquire(timeout=_POLL_SECONDS):
            if not is_alive():
                # It may have ended after the step.
                return self._done.acquire(blocking=False)
        return True

    def step(self, is_alive: Callable[[], bool]) -> bool:
        """Run one epoch, if there is anything to do; False if the query ended."""
        self._steps.release()
        return self.wait(is_alive)

    def begin(self, *, least_ms: int) -> None:
        """A query starts: requests to the one before are forgotten. Its time is `least_ms` or later."""
        self.now_ms = max(self.now_ms, least_ms)
        self._steps, self._done, self._is_over = threading.Semaphore(0), threading.Semaphore(0), False

    def stop(self, query: StreamingQuery) -> None:
        """Stop a query. Only a step wakes it while it waits, so give it one when it knows that it has to end."""
        letting_go = threading.Thread(target=self._let_go, args=(query,), name="lockgate-stepper", daemon=True)
        letting_go.start()
        query.stop()
        letting_go.join()

    def _let_go(self, query: StreamingQuery) -> None:
        while query.isActive:
            time.sleep(_POLL_SECONDS)
        self._is_over = True
        self._steps.release()

    # Methods that Spark calls, from the thread of the query.

    def getTimeMillis(self) -> int:  # noqa: N802 - Spark's name
        """The time."""
        return self.now_ms

    def nanoTime(self) -> int:  # noqa: N802
        """The time by which durations are measured."""
        return self.now_ms * 1_000_000

    def waitTillTime(self, target_ms: int) -> int:  # noqa: N802
        """Wait until a step is requested."""
        self._done.release()
        if not self._is_over:
            self._steps.acquire()
        return self.now_ms

    class Java:
        """The interface in the JVM."""

        implements = ("org.apache.spark.util.Clock",)
