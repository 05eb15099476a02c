"""Waiting for a condition, never for a number of seconds."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_SECONDS = 300.0
"""How long a condition may take before a test fails: a machine may be busy with other things, and slow is not wrong."""

_LOOK_SECONDS = 0.05

Found = TypeVar("Found")


class Patience:
    """Fails when something takes too long."""

    def __init__(self, what: str, seconds: float = PATIENCE_SECONDS) -> None:
        self._what, self._seconds = what, seconds
        self._deadline = time.monotonic() + seconds

    def check(self, explain: Callable[[], str] = lambda: "") -> None:
        """Raise if the time is over."""
        if time.monotonic() > self._deadline:
            raise AssertionError(f"waited {self._seconds:.0f} s in vain for {self._what} {explain()}".rstrip())


def wait_for(
    what: str,
    look: Callable[[], Found],
    *,
    until: Callable[[Found], object] = bool,
    seconds: float = PATIENCE_SECONDS,
    explain: Callable[[], str] = lambda: "",
    every: float = _LOOK_SECONDS,
) -> Found:
    """Look until what is found is true in the sense of Python, or is as `until` wants it; what was found."""
    patience = Patience(what, seconds)
    while not until(found := look()):
        patience.check(explain)
        time.sleep(every)
    return found
