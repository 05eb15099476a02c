"""Gather the scores of a transaction until all have arrived or its time is over. Pure: the time is an argument.

    all scores have arrived              publish the full answer at once
    the cut has come, some are missing   publish a partial answer, with the names of the missing scores
    a later score                        show it at once in answers over HTTP. Publish it with the full answer, or
                                         earlier in a further partial one: if it changes the risk, after a pause, so
                                         that scores that arrive together make one record; otherwise when the
                                         transaction is forgotten

The deadline counts from the arrival of the transaction, which is the timestamp of its record, to the timestamp of its
first answer. The cut is a little earlier, so that the answer is written by the deadline. Scores may arrive before their
transaction, because records of two topics have no order. A score that arrives again changes nothing: the first one
counts, because the answer with it may be visible.

Memory is bounded: a transaction is forgotten some minutes after it arrived, and scores without a transaction as long
after the first of them. If there are too many, both are forgotten earlier. What arrived is published before that.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from lockgate.presenter.answers import Answer, Answers
from lockgate.presenter.figures import Tally


@dataclass(frozen=True)
class Limits:
    """How long a transaction may take, and how many are held for how long. Seconds."""

    deadline: float = 0.020
    margin: float = 0.004  # the cut is this much before the deadline, because an answer must also be written
    pause: float = 0.020  # a late score that changes the risk waits this long for others
    behind: float = 1.0  # a sender that collects records, or the presenter, may be this far behind
    kept: float = 120.0  # longer than the restart of an analyser, whose scores are late then
    held_max: int = 500_000

    @classmethod
    def of(cls, deadline: float) -> Limits:
        """The limits for a deadline: the cut is after the arrival, and no transaction is forgotten before its deadline.

        >>> Limits.of(0.001).margin, Limits.of(180.0).kept
        (0.0002, 360.0)
        """
        return cls(deadline, margin=min(cls.margin, deadline / 5), kept=max(cls.kept, 2 * deadline))

    @property
    def patience(self) -> float:
        """How long a question waits for a transaction that has not arrived yet."""
        return self.deadline + self.behind


@dataclass(slots=True)
class _Held:
    """A transaction in progress."""

    since: float  # when the transaction arrived; before that, when its first score did
    arrived: float | None = None  # None: only scores have arrived so far
    cut: float | None = None  # when it must be answered
    scores: dict[str, float | None] = field(default_factory=dict)
    stamps: dict[str, tuple[float, float]] = field(default_factory=dict)  # when each was written, and read
    answer: Answer | None = None  # the newest, for questions
    published: Answer | None = None  # the newest in the result topic

    @property
    def has_news(self) -> bool:
        """Is there something to publish?"""
        return self.arrived is not None and (self.answer is None or self.answer is not self.published)


class Gathering:
    """The transactions in progress. For one thread, except `is_under_way`.

    Args:
        answers: gets every answer, for questions. The methods return the answers to publish.
    """

    def __init__(self, analysers: Sequence[str], limits: Limits, tally: Tally, answers: Answers) -> None:
        self._analysers, self._limits, self._tally, self._answers = tuple(analysers), limits, tally, answers
        self._held: OrderedDict[str, _Held] = OrderedDict()  # the oldest first
        self._cuts: list[tuple[float, str]] = []  # a heap: arrivals of several partitions are in no order
        self._late: OrderedDict[str, float] = OrderedDict()  # when a changed risk is due; all pauses are the same
        self._leaving: list[Answer] = []  # the last answers of transactions that were dropped

    def add_transaction(self, id: str, *, arrived: float, now: float) -> Answer | None:
        """Take a transaction; returns the answer if all scores have arrived already."""
        held = self._held.get(id)
        if held is not None and held.arrived is not None:
            self._tally.repeated["transaction"] += 1
            return None
        if self._answers.has(id):
            # It was forgotten, and the held scores arrived again: their answer would replace the first one.
            self._held.pop(id, None)
            self._tally.held = len(self._held)
            self._tally.repeated["transaction"] += 1
            return None
        held = held or self._hold(id, now)
        held.arrived = arrived
        # It is kept as long as any other, although a score may have arrived long before it.
        held.since = now
        self._held.move_to_end(id)
        self._tally.transactions += 1
        for analyser in held.scores:
            self._time(analyser, held)
        if len(held.scores) == len(self._analysers):
            return self._say(id, held, now)
        # If the sender's clock is ahead of ours, the stamp must not give it more time.
        held.cut = min(arrived, now) + self._limits.deadline - self._limits.margin
        heapq.heappush(self._cuts, (held.cut, id))
        if len(self._cuts) > 2 * self._limits.held_max:  # most belong to dropped transactions
            self._cuts = [one for one in self._cuts if self._waiting(*one) is not None]
            heapq.heapify(self._cuts)
        return None

    def add_score(self, id: str, analyser: str, score: float | None, *, written: float, now: float) -> Answer | None:
        """Take a score; returns the full answer if it was the last one."""
        held = self._held.get(id) or self._hold(id, now)
        if analyser in held.scores:
            self._tally.repeated["score"] += 1
            return None
        held.scores[analyser] = score
        held.stamps[analyser] = written, now
        if held.arrived is None:
            return None
        self._time(analyser, held)
        if len(held.scores) == len(self._analysers):
            self._answer(id, held, now)
            return self._publish(held)
        if held.published is not None and self._answer(id, held, now).risk != held.published.risk:
            self._late.setdefault(id, now + self._limits.pause)
        return None

    def cut(self, now: float) -> list[Answer]:
        """The partial answers that are due; also forgets what is old."""
        while self._cuts and self._cuts[0][0] <= now:
            when, id = heapq.heappop(self._cuts)
            if (held := self._waiting(when, id)) is not None:
                self._leaving.append(self._say(id, held, now))
        while self._late and next(iter(self._late.values())) <= now:
            id, _ = self._late.popitem(last=False)
            if (held := self._held[id]).has_news:
                self._leaving.append(self._say(id, held, now))
        while self._held and next(iter(self._held.values())).since <= now - self._limits.kept:
            self._drop(now)
        leaving, self._leaving = self._leaving, []
        return leaving

    def finish(self, now: float) -> list[Answer]:
        """All answers that are still to be published, at the end, when no cut follows."""
        self._leaving += [self._say(id, held, now) for id, held in self._held.items() if held.has_news]
        leaving, self._leaving = self._leaving, []
        return leaving

    def note_written(self, answer: Answer, at: float) -> None:
        """Count an answer that is in the result topic since `at`."""
        # Timestamps are whole milliseconds: digits of their difference below a microsecond mean nothing.
        took = round(at - answer.arrived, 6)
        if answer.revision == 1:
            self._tally.first.add(took)
            self._tally.missed += took > self._limits.deadline
        if not answer.is_partial:
            self._tally.full.add(took)

    def note_lost(self, answer: Answer) -> None:
        """Count an answer that could not be written: it missed its deadline."""
        self._tally.missed += answer.revision == 1

    def is_under_way(self, id: str) -> bool:
        """Has a transaction arrived without an answer yet? For any thread: it only reads."""
        held = self._held.get(id)
        return held is not None and held.arrived is not None and held.answer is None

    @property
    def next_cut(self) -> float | None:
        """When there may be something to publish; None if nothing is in progress."""
        heads = [*(one[0] for one in self._cuts[:1]), *itertools.islice(self._late.values(), 1)]
        return min(heads, default=None)

    def __len__(self) -> int:
        return len(self._held)

    def _hold(self, id: str, now: float) -> _Held:
        if len(self._held) >= self._limits.held_max:
            self._drop(now)
        held = self._held[id] = _Held(since=now)
        self._tally.held = len(self._held)
        return held

    def _waiting(self, when: float, id: str) -> _Held | None:
        """The transaction of a cut; None if it is answered, or arrived again with another cut."""
        held = self._held.get(id)
        return held if held is not None and held.cut == when and held.answer is None else None

    def _say(self, id: str, held: _Held, now: float) -> Answer:
        """The answer to publish now."""
        if held.answer is None:
            self._answer(id, held, now)
        return self._publish(held)

    def _answer(self, id: str, held: _Held, now: float) -> Answer:
        """Make the answer from what is known, and give it to questions."""
        assert held.arrived is not None
        came = held.scores
        scores = {analyser: came[analyser] for analyser in self._analysers if analyser in came}
        missing = tuple([analyser for analyser in self._analysers if analyser not in came])
        revision = 1 if held.answer is None else held.answer.revision + 1
        answer = Answer(id, revision, scores, missing, held.arrived, now)
        self._answers.put(answer)  # first: a question that sees nothing in progress must find it
        held.answer = answer
        return answer

    def _publish(self, held: _Held) -> Answer:
        answer, before = held.answer, held.published
        assert answer is not None
        held.published = answer
        if before is None:
            self._tally.answers["partial" if answer.missing else "full"] += 1
            self._tally.missing.update(answer.missing)
            self._tally.decided.add(answer.answered - answer.arrived)
        elif answer.missing:
            self._tally.revised += 1
        else:
            self._tally.replaced += 1
        return answer

    def _time(self, analyser: str, held: _Held) -> None:
        assert held.arrived is not None
        written, seen = held.stamps[analyser]
        self._tally.written[analyser].add(written - held.arrived)
        self._tally.seen[analyser].add(seen - held.arrived)

    def _drop(self, now: float) -> None:
        id, held = self._held.popitem(last=False)
        self._late.pop(id, None)
        if held.has_news:
            self._leaving.append(self._say(id, held, now))
        ending = "unknown" if held.published is None else "partial" if held.published.is_partial else "full"
        self._tally.forgotten[ending] += 1
        self._tally.held = len(self._held)
