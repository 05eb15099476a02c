"""Let straight-line code wait without a thread: leave it by an exception, and run it again up to where it was.

The coordinator calls the outside and waits for answers. To let another driver move in between, the exception Left
leaves it. Later it is called again with the same arguments, and the journal gives it every answer that it had, without
another effect. Its requests must be the same as before, or the journal says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

T = TypeVar("T")


class Left(BaseException):
    """Not an error: another one moves now. No code that answers errors may take it for one."""


class NotRepeatable(AssertionError):
    """The code asked for something else when it was run again: it depends on something that is not in the journal."""


class Journal:
    """The answers that one call of the coordinator had so far."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.now = clock()  # when the last answer came: what a clock shows in between
        self._clock = clock
        self._answers: list[tuple[str, float, Exception | None, Any]] = []
        self._at = 0
        self._began = self.now
        self._is_left = False

    def begin(self) -> None:
        """A new call: nothing is answered yet."""
        self._answers.clear()
        self._began = self._clock()
        self.rewind()

    def rewind(self) -> None:
        """The same call again."""
        self._at, self._is_left, self.now = 0, False, self._began

    def once(self, what: str, effect: Callable[[], T]) -> T:
        """The answer of the journal, or that of the effect, which is then in the journal."""
        if self._is_left:
            return cast("T", None)  # on the way out, what is cleaned up is none of the outside's business
        if self._at < len(self._answers):
            known, self.now, error, value = self._answers[self._at]
            if known != what:
                raise NotRepeatable(f"{what}, and before that {known}")
            self._at += 1
            if error is not None:
                raise error
            return cast("T", value)
        try:
            value = effect()
        except Exception as error:
            self._add(what, error, None)
            raise
        except BaseException:
            self._is_left = True
            raise
        self._add(what, None, value)
        return value

    def _add(self, what: str, error: Exception | None, value: object) -> None:
        self.now = self._clock()
        self._answers.append((what, self.now, error, value))
        self._at += 1
