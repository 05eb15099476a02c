"""Patterns: the matches among the rows of one key (docs/PATTERNS.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockgate.lab.randomjobs import catalogue
from lockgate.lab.randomjobs.interpreter.rows import Row


@dataclass(eq=False)
class Partial:
    """A match that has begun: the rows of each stage so far, and the stage that it stands at."""

    begin: int  # number of its first row
    taken: dict[str, list[Row]] = field(default_factory=dict)
    at: int = 0
    last: int = 0  # number of its last row

    @property
    def rows(self) -> list[Row]:
        """All rows that it has taken, in order."""
        return [row for rows in self.taken.values() for row in rows]


@dataclass(frozen=True)
class Match:
    """What leaves a pattern. `end` is None if only the clock could say it; `reached` only for one that timed out."""

    taken: Mapping[str, tuple[Row, ...]]
    start: int | None
    end: int | None
    reached: str | None = None


def matches_of(
    pattern: catalogue.Pattern, rows: Sequence[Row], value: Sequence[Any]
) -> tuple[list[Match], list[Match]]:
    """The matches and the time-outs of one key; rows in the order in which a pattern takes them, at their end."""
    search = _Search(pattern)
    for number, (row, one) in enumerate(zip(rows, value, strict=True)):
        search.expire(row.time)
        search.take(number, row, {stage.name for stage in pattern.stages if _fits(stage, one)})
    search.expire(None, at_end=True)
    return search.matches, search.timed_out


def _fits(stage: catalogue.Stage, value: Any) -> bool:
    return catalogue.CONDITIONS[stage.condition].of(value) is True


class _Search:
    def __init__(self, pattern: catalogue.Pattern) -> None:
        self.pattern = pattern
        self.partials: list[Partial] = []
        self.matches: list[Match] = []
        self.timed_out: list[Match] = []

    def expire(self, now: int | None, *, at_end: bool = False) -> None:
        """End the partial matches whose time is over, those that began first at first."""
        within = self.pattern.within_seconds
        if within is None:
            return
        for one in list(self.partials):
            start = one.rows[0].time
            if one not in self.partials or not (
                at_end or (now is not None and start is not None and now > start + within)
            ):
                continue
            self.partials.remove(one)
            if self._waits_for_nothing(one):
                self._complete(one, None if start is None else start + within)
            else:
                last = [stage.name for stage in self.pattern.stages if one.taken.get(stage.name)][-1]
                self.timed_out.append(_match(one, one.rows[-1].time, last))

    def take(self, number: int, row: Row, fits: set[str]) -> None:
        """Give a row to every partial match, then let it begin one."""
        is_free = True
        for one in list(self.partials):
            if one not in self.partials:
                continue
            outcome = self._step(one, number, row, fits)
            if outcome == "over":
                self.partials.remove(one)
            elif outcome == "complete":
                self.partials.remove(one)
                self._complete(one, row.time)
                is_free = is_free and self.pattern.skip == "TO_NEXT"
        first = self.pattern.stages[0]
        if is_free and first.name in fits:
            begun = Partial(begin=number, taken={first.name: [row]}, last=number)
            self._go_on(begun)
            self.partials.append(begun)

    def _step(self, one: Partial, number: int, row: Row, fits: set[str]) -> str:
        stages = self.pattern.stages
        at = one.at
        while at < len(stages) and stages[at].how == "not_followed_by":
            if stages[at].name in fits:
                return "over"
            at += 1
        if at == len(stages):
            return "waits"
        stage = stages[at]
        if stage.name not in fits:
            return "over" if stage.how == "next" else "waits"
        one.taken.setdefault(stage.name, []).append(row)
        one.at, one.last = at, number
        self._go_on(one)
        return "complete" if one.at == len(stages) else "waits"

    def _go_on(self, one: Partial) -> None:
        """Stand at the next stage if this one has all that it takes."""
        stage = self.pattern.stages[one.at]
        if len(one.taken[stage.name]) == (stage.times or 1):
            one.at += 1

    def _waits_for_nothing(self, one: Partial) -> bool:
        return all(stage.how == "not_followed_by" for stage in self.pattern.stages[one.at :])

    def _complete(self, one: Partial, end: int | None) -> None:
        self.matches.append(_match(one, end))
        if self.pattern.skip == "PAST_LAST":
            self.partials = [other for other in self.partials if other.begin > one.last]


def _match(one: Partial, end: int | None, reached: str | None = None) -> Match:
    taken = {name: tuple(rows) for name, rows in one.taken.items()}
    return Match(taken, one.rows[0].time, end, reached)
