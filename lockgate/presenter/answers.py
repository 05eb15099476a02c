"""An answer for a transaction, and the newest answer of each transaction for those that ask.

Each score that arrives after the first answer makes a new revision. So a revision of a transaction has the same scores
wherever it is read. The result topic may lack some revisions (gathering.py).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What is known about a transaction when it is answered. Times in seconds since 1970."""

    id: str
    revision: int
    scores: Mapping[str, float | None]
    missing: tuple[str, ...]
    arrived: float
    answered: float

    @property
    def is_partial(self) -> bool:
        """Is a score missing?"""
        return bool(self.missing)

    @property
    def risk(self) -> float | None:
        """The highest score; None without any."""
        return max([score for score in self.scores.values() if score is not None], default=None)

    def facts(self) -> dict[str, Any]:
        """As it is published."""
        return {
            "id": self.id,
            "revision": self.revision,
            "is_partial": self.is_partial,
            "is_final": not self.is_partial,
            "risk": self.risk,
            "scores": dict(self.scores),
            "missing": list(self.missing),
            "arrived_ms": round(self.arrived * 1000, 3),
            "answered_ms": round(self.answered * 1000, 3),
        }


class Answers:
    """The newest answer of each transaction, for any thread; at most `held_max` of them."""

    def __init__(self, held_max: int) -> None:
        self._held_max = held_max
        self._lock = threading.Lock()
        self._newest: OrderedDict[str, Answer] = OrderedDict()
        self._awaited: dict[str, list[threading.Event]] = {}

    def put(self, answer: Answer) -> None:
        """Keep it, and wake the threads that wait for it."""
        with self._lock:
            self._newest[answer.id] = answer
            if len(self._newest) > self._held_max:
                self._newest.popitem(last=False)
            for waiting in self._awaited.pop(answer.id, ()):
                waiting.set()

    def has(self, id: str) -> bool:
        """Was a transaction answered?"""
        with self._lock:
            return id in self._newest

    def get(self, id: str, *, seconds: float, is_under_way: Callable[[str], bool]) -> Answer | None:
        """The newest answer for a transaction; None if there is none.

        Args:
            seconds: how long to wait for a transaction that may be about to arrive.
            is_under_way: has it arrived, and will it be answered? Then wait for its answer, however long it takes.
        """
        with self._lock:
            if (found := self._newest.get(id)) is not None:
                return found
            waiting = threading.Event()
            self._awaited.setdefault(id, []).append(waiting)
        while not waiting.wait(seconds) and is_under_way(id):
            pass
        with self._lock:
            others = self._awaited.get(id, [])
            if waiting in others:
                others.remove(waiting)
                if not others:
                    del self._awaited[id]
            return self._newest.get(id)
