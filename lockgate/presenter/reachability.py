"""Check every few seconds whether Kafka answers: a silent topic looks the same as one that cannot be reached.

A client reports nothing if its brokers do not answer: it waits, and retries. So a thread with a client of its own asks
the leader of every partition for its end offset. This does not delay the reading client.

    all have answered                  Kafka is well
    no answer for `patience`           Kafka is unwell: one line when this begins, one when it ends
"""

from __future__ import annotations

import threading
from collections.abc import Callable

_EVERY_SECONDS = 2.0


class Reachability:
    """When Kafka last answered, and what was wrong since. For any thread; seconds of the given clock."""

    def __init__(self, patience: float, clock: Callable[[], float], tell: Callable[[str], None]) -> None:
        self._patience, self._clock, self._tell = patience, clock, tell
        self._lock = threading.Lock()
        self._alive = clock()
        self._error: str | None = None  # the last one since then
        self._is_told = False

    def note(self, error: str | None) -> None:
        """Note that all have answered, or what was wrong, and report what begins or ends with it."""
        with self._lock:
            away = self._clock() - self._alive
            if error is None:
                self._alive += away
                line = f"Kafka answers again, after {away:.0f} s" if self._is_told else None
                self._is_told = False
            else:
                is_new = away > self._patience and not self._is_told
                line = f"Kafka does not answer: {error}" if is_new else None
                self._is_told |= is_new
            self._error = error
        if line is not None:
            self._tell(line)

    def trouble(self) -> str | None:
        """What is wrong; None if all is well."""
        with self._lock:
            away = self._clock() - self._alive
            if away <= self._patience:
                return None
            return f"Kafka has not answered for {away:.0f} s" + (f": {self._error}" if self._error else "")


class Asking:
    """Asks until it is stopped.

    Args:
        ask: returns what was wrong, or None if all have answered; a call takes at most seconds.
    """

    def __init__(self, ask: Callable[[], str | None], reach: Reachability, *, every: float = _EVERY_SECONDS) -> None:
        self._ask, self._reach, self._every = ask, reach, every
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lockgate-asking", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask no more; returns when the last call has returned."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(self._every):
            self._reach.note(self._ask())
