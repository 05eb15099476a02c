"""What is known of a transaction when it is answered, and the newest answer of each for whoever asks.

A revision is one more for each score that came behind the first answer. So the same revision of a transaction has the
same scores wherever it is read; the result topic need not have all of them (gathering.py).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What is known of a transaction when it is answered. Times in seconds since 1970."""

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
    """The newest answer of each transaction, for any thread; as many as are held."""

    def __init__(self, held_max: int) -> None:
        self._held_max = held_max
        self._lock = threading.Lock()
        self._newest: OrderedDict[str, Answer] = OrderedDict()
        self._awaited: dict[str, list[threading.Event]] = {}

    def put(self, answer: Answer) -> None:
        """Keep it, and wake those who wait for it."""
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
        """The newest answer for a transaction; None where there is none.

        Args:
            seconds: how long to wait for a transaction that may just be coming.
            is_under_way: has it come, and will it be answered? Then it is waited for, however long it takes.
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
