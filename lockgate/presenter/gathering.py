"""The scores of a transaction, gathered until all are there or its time is over. Pure: the time is an argument.

    all scores are there                 the full answer is published at once
    the cut has come, some are missing   a partial one is, with the names of those that are missing
    a score behind that                  is shown at once to whoever asks; is published with the full answer, or before
                                         it in a further partial one: where it changes the risk a pause later, so that
                                         scores that come together make one record; else when it is forgotten

The deadline counts from the arrival of the transaction, which is the stamp of its record, to the stamp of its first
answer. The cut is a little earlier, so that what is answered then is out by the deadline. Scores may come before their
transaction: nobody orders topics among each other. A score that comes again changes nothing, since the answer that has
it may be out; the first counts.

Memory is bounded: a transaction is forgotten some minutes after it came, scores without one as long after the first of
them, and all of them earlier where there are too many. None is forgotten before everything that came is published.
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
    """How long a transaction may take, and how long and how many are held. Seconds."""

    deadline: float = 0.020
    margin: float = 0.004  # the cut is so much before the deadline: an answer has to be written, too
    pause: float = 0.020  # a late score that changes the risk waits so long for those that come with it
    behind: float = 1.0  # so far a sender that collects records, or the presenter itself, may be behind
    kept: float = 120.0  # behind the restart of an analyser, whose scores come late
    held_max: int = 500_000

    @classmethod
    def of(cls, deadline: float) -> Limits:
        """Those that fit a deadline: it is not cut before it began, and none is forgotten before its time is over.

        >>> Limits.of(0.001).margin, Limits.of(180.0).kept
        (0.0002, 360.0)
        """
        return cls(deadline, margin=min(cls.margin, deadline / 5), kept=max(cls.kept, 2 * deadline))

    @property
    def patience(self) -> float:
        """How long somebody who asks waits for a transaction that has not come yet."""
        return self.deadline + self.behind


@dataclass(slots=True)
class _Held:
    """A transaction under way."""

    since: float  # when the transaction came; until then, when its first score did
    arrived: float | None = None  # None: so far only scores came
    cut: float | None = None  # when it has to be answered
    scores: dict[str, float | None] = field(default_factory=dict)
    stamps: dict[str, tuple[float, float]] = field(default_factory=dict)  # when each was written, and seen
    answer: Answer | None = None  # the newest, which whoever asks is told
    published: Answer | None = None  # the newest in the result topic

    @property
    def has_news(self) -> bool:
        """Is there something to be published?"""
        return self.arrived is not None and (self.answer is None or self.answer is not self.published)


class Gathering:
    """The transactions under way. Not for several threads at once, but for `is_under_way`.

    Args:
        answers: where every answer is put for those who ask; what is returned is to be published.
    """

    def __init__(self, analysers: Sequence[str], limits: Limits, tally: Tally, answers: Answers) -> None:
        self._analysers, self._limits, self._tally, self._answers = tuple(analysers), limits, tally, answers
        self._held: OrderedDict[str, _Held] = OrderedDict()  # the oldest first
        self._cuts: list[tuple[float, str]] = []  # a heap: arrivals of several partitions are in no order
        self._late: OrderedDict[str, float] = OrderedDict()  # when a changed risk is due; all pauses are the same
        self._leaving: list[Answer] = []  # the last word on those that had to make room

    def add_transaction(self, id: str, *, arrived: float, now: float) -> Answer | None:
        """Take a transaction; the answer, where all scores are there already."""
        held = self._held.get(id)
        if held is not None and held.arrived is not None:
            self._tally.repeated["transaction"] += 1
            return None
        if self._answers.has(id):
            # It was forgotten, and what is held are scores that came again: an answer of these would replace the other.
            self._held.pop(id, None)
            self._tally.held = len(self._held)
            self._tally.repeated["transaction"] += 1
            return None
        held = held or self._hold(id, now)
        held.arrived = arrived
        # It is kept as long as any other, although a score was there long before it.
        held.since = now
        self._held.move_to_end(id)
        self._tally.transactions += 1
        for analyser in held.scores:
            self._time(analyser, held)
        if len(held.scores) == len(self._analysers):
            return self._say(id, held, now)
        # A clock that is ahead of ours would give it more time than it has.
        held.cut = min(arrived, now) + self._limits.deadline - self._limits.margin
        heapq.heappush(self._cuts, (held.cut, id))
        if len(self._cuts) > 2 * self._limits.held_max:  # most are of transactions that had to make room
            self._cuts = [one for one in self._cuts if self._waiting(*one) is not None]
            heapq.heapify(self._cuts)
        return None

    def add_score(self, id: str, analyser: str, score: float | None, *, written: float, now: float) -> Answer | None:
        """Take a score; the full answer, where it was the last one."""
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
        """The partial answers whose time has come; and forget what is old."""
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
        """All that is still to be published, at the end: no cut will come any more."""
        self._leaving += [self._say(id, held, now) for id, held in self._held.items() if held.has_news]
        leaving, self._leaving = self._leaving, []
        return leaving

    def note_written(self, answer: Answer, at: float) -> None:
        """Take note that an answer is in the result topic, and since when."""
        # Stamps are whole milliseconds: what their difference has behind the microsecond is no time.
        took = round(at - answer.arrived, 6)
        if answer.revision == 1:
            self._tally.first.add(took)
            self._tally.missed += took > self._limits.deadline
        if not answer.is_partial:
            self._tally.full.add(took)

    def note_lost(self, answer: Answer) -> None:
        """Take note that an answer could not be written: what is never given is not in time."""
        self._tally.missed += answer.revision == 1

    def is_under_way(self, id: str) -> bool:
        """Has a transaction come, and is its answer still to be given? For any thread: it only looks."""
        held = self._held.get(id)
        return held is not None and held.arrived is not None and held.answer is None

    @property
    def next_cut(self) -> float | None:
        """When there may be something to publish; None where nothing is under way."""
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
        """The transaction that a cut is for; None where it is answered, or came again with another cut."""
        held = self._held.get(id)
        return held if held is not None and held.cut == when and held.answer is None else None

    def _say(self, id: str, held: _Held, now: float) -> Answer:
        """What is known, to be published."""
        if held.answer is None:
            self._answer(id, held, now)
        return self._publish(held)

    def _answer(self, id: str, held: _Held, now: float) -> Answer:
        """What is known, for whoever asks."""
        assert held.arrived is not None
        came = held.scores
        scores = {analyser: came[analyser] for analyser in self._analysers if analyser in came}
        missing = tuple([analyser for analyser in self._analysers if analyser not in came])
        revision = 1 if held.answer is None else held.answer.revision + 1
        answer = Answer(id, revision, scores, missing, held.arrived, now)
        self._answers.put(answer)  # first: who is told that nothing is under way any more has to find it
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
