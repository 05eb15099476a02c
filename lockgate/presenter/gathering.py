"""The scores of a transaction, gathered until all are there or its time is over. Pure: the time is an argument.

    all scores are there                 full, at once: revision 1, or 2 where a partial answer is out
    the cut has come, some are missing   partial: revision 1, with the names of those that are missing
    a score behind that                  waits until the others are there too; then the full answer replaces the partial

The deadline counts from the arrival of the transaction, which is the stamp of its record. The cut is a little earlier,
so that what is answered then is out by the deadline. Scores may come before their transaction: nobody orders topics
among each other. A score that comes again changes nothing, since the answer that has it may be out; the first counts.

Memory is bounded: a transaction is forgotten some minutes after it came, scores without one as long after the first of
them, and all of them earlier where there are too many. One that is forgotten unanswered is a missed deadline.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockgate.presenter.figures import Tally


@dataclass(frozen=True)
class Limits:
    """How long a transaction may take, and how long and how many are held. Seconds."""

    deadline: float = 0.020
    margin: float = 0.004  # the cut is so much before the deadline: an answer has to be written, too
    kept: float = 120.0  # behind the restart of an analyser, whose scores come late
    held_max: int = 500_000

    @classmethod
    def of(cls, deadline: float) -> Limits:
        """Those that fit a deadline: it is not cut before it began, and none is forgotten before its time is over.

        >>> Limits.of(0.001).margin, Limits.of(180.0).kept
        (0.0002, 360.0)
        """
        return cls(deadline, margin=min(cls.margin, deadline / 5), kept=max(cls.kept, 2 * deadline))


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
        return max((score for score in self.scores.values() if score is not None), default=None)

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


@dataclass(slots=True)
class _Held:
    """A transaction under way."""

    since: float  # when the transaction came; until then, when its first score did
    arrived: float | None = None  # None: so far only scores came
    scores: dict[str, float | None] = field(default_factory=dict)
    stamps: dict[str, tuple[float, float]] = field(default_factory=dict)  # when each was written, and seen
    answer: Answer | None = None


class Gathering:
    """The transactions under way. Not for several threads at once."""

    def __init__(self, analysers: Sequence[str], limits: Limits, tally: Tally) -> None:
        self._analysers, self._limits, self._tally = tuple(analysers), limits, tally
        self._held: OrderedDict[str, _Held] = OrderedDict()  # the oldest first
        self._cuts: list[tuple[float, str]] = []  # a heap: arrivals of several partitions are in no order

    def add_transaction(self, id: str, *, arrived: float, now: float) -> Answer | None:
        """Take a transaction; the answer, where all scores are there already."""
        held = self._hold(id, now)
        if held.arrived is not None:
            self._tally.repeated["transaction"] += 1
            return None
        # A clock that is ahead of ours would give it more time than it has.
        held.arrived = min(arrived, now)
        # It is kept as long as any other, although a score was there long before it.
        held.since = now
        self._held.move_to_end(id)
        self._tally.transactions += 1
        for analyser in held.scores:
            self._time(analyser, held)
        if answer := self._complete(id, held, now):
            return answer
        heapq.heappush(self._cuts, (held.arrived + self._limits.deadline - self._limits.margin, id))
        return None

    def add_score(self, id: str, analyser: str, score: float | None, *, written: float, now: float) -> Answer | None:
        """Take a score; the full answer, where it was the last one."""
        held = self._hold(id, now)
        if analyser in held.scores:
            self._tally.repeated["score"] += 1
            return None
        held.scores[analyser] = score
        held.stamps[analyser] = written, now
        if held.arrived is None:
            return None
        self._time(analyser, held)
        return self._complete(id, held, now)

    def cut(self, now: float) -> list[Answer]:
        """The partial answers whose time has come; and forget what is old."""
        cut: list[Answer] = []
        while self._cuts and self._cuts[0][0] <= now:
            _, id = heapq.heappop(self._cuts)
            held = self._held.get(id)
            if held is not None and held.arrived is not None and held.answer is None:
                cut.append(self._answer(id, held, now))
        self._forget(now)
        return cut

    @property
    def next_cut(self) -> float | None:
        """When there may be something to cut."""
        return self._cuts[0][0] if self._cuts else None

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, id: str) -> bool:
        return id in self._held

    def _hold(self, id: str, now: float) -> _Held:
        held = self._held.get(id)
        if held is None:
            if len(self._held) >= self._limits.held_max:
                self._drop()
            held = self._held[id] = _Held(since=now)
            self._tally.held = len(self._held)
        return held

    def _complete(self, id: str, held: _Held, now: float) -> Answer | None:
        return self._answer(id, held, now) if len(held.scores) == len(self._analysers) else None

    def _answer(self, id: str, held: _Held, now: float) -> Answer:
        assert held.arrived is not None
        missing = tuple(analyser for analyser in self._analysers if analyser not in held.scores)
        scores = {analyser: held.scores[analyser] for analyser in self._analysers if analyser in held.scores}
        revision = 1 if held.answer is None else 2
        answer = held.answer = Answer(id, revision, scores, missing, held.arrived, now)
        took = now - held.arrived
        if revision == 1:
            self._tally.answers["partial" if missing else "full"] += 1
            self._tally.missed += took > self._limits.deadline
            self._tally.missing.update(missing)
            self._tally.first.add(took)
        else:
            self._tally.replaced += 1
        if not missing:
            self._tally.full.add(took)
        return answer

    def _time(self, analyser: str, held: _Held) -> None:
        assert held.arrived is not None
        written, seen = held.stamps[analyser]
        self._tally.written[analyser].add(written - held.arrived)
        self._tally.seen[analyser].add(seen - held.arrived)

    def _forget(self, now: float) -> None:
        while self._held and next(iter(self._held.values())).since <= now - self._limits.kept:
            self._drop()

    def _drop(self) -> None:
        _, held = self._held.popitem(last=False)
        if held.arrived is None:
            ending = "unknown"
        elif held.answer is None:
            ending = "unanswered"
            self._tally.missed += 1
        else:
            ending = "partial" if held.answer.is_partial else "full"
        self._tally.forgotten[ending] += 1
        self._tally.held = len(self._held)
