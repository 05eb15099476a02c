"""Does Kafka answer? Asked every few seconds, since a silent topic looks the same as one that cannot be reached.

A client says nothing where its brokers are away: it waits, and tries again. So somebody asks the leader of every
partition for the end of it, in a thread and with a client of its own, which does not delay what is read.

    all have answered                  a sign of life
    no sign of life for `patience`     unwell: one line is told when it begins, and one when it is over
"""

from __future__ import annotations

import threading
from collections.abc import Callable

_EVERY_SECONDS = 2.0


class Reach:
    """When Kafka was last there, and what was wrong since. For any thread; seconds by the clock that is given."""

    def __init__(self, patience: float, clock: Callable[[], float], tell: Callable[[str], None]) -> None:
        self._patience, self._clock, self._tell = patience, clock, tell
        self._lock = threading.Lock()
        self._alive = clock()
        self._error: str | None = None  # the last one since then
        self._is_told = False

    def note(self, error: str | None) -> None:
        """Take note that all have answered, or of what was wrong; and tell what begins or ends by it."""
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
        """What is wrong; None where all is well."""
        with self._lock:
            away = self._clock() - self._alive
            if away <= self._patience:
                return None
            return f"Kafka has not answered for {away:.0f} s" + (f": {self._error}" if self._error else "")


class Asking:
    """Asks until it is stopped.

    Args:
        ask: what was wrong, or None where all have answered; a call takes seconds at most.
    """

    def __init__(self, ask: Callable[[], str | None], reach: Reach, *, every: float = _EVERY_SECONDS) -> None:
        self._ask, self._reach, self._every = ask, reach, every
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lockgate-asking", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask no more; returns when the last call has come back."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(self._every):
            self._reach.note(self._ask())
