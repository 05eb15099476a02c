"""Patterns: this, then that, within a time, among the events of one key.

    pattern.begin("hot", "temperature > 60").then("smoke", "smoke = true").within(timedelta(minutes=10))

A pattern is a row of stages, each with a name and a SQL condition; each call returns a new pattern. What the stages
mean, event by event, is written down in `lockgate.operators.pattern`. A match carries the key columns, `match_start`,
`match_end` and a column for every stage that is not negated: the event that it took, or the list of them where it has
`.times(...)`.

A partial match is kept until it is complete or its time is over. So a pattern needs `.within(...)`, unless it says of
every event that it has to be the very next: then there is never anything to wait for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import timedelta

from lockgate.dataflow.duration import Duration, as_duration, as_people_text
from lockgate.dataflow.origin import caller
from lockgate.errors import BadJob
from lockgate.operators.pattern import Skip, Stage

__all__ = ["Pattern", "Skip", "Stage", "begin", "checked"]

STAGES_MAX = 62
"""The stages that an event fits travel as the bits of one BIGINT."""

_NAME = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]*")
_TAKEN = ("match_start", "match_end", "reached")


@dataclass(frozen=True)
class Pattern:
    """Stages in order, with a condition each, a bound in time, and what follows a match."""

    stages: tuple[Stage, ...]
    conditions: tuple[str, ...]
    bound: timedelta | None = None
    skip: Skip = Skip.PAST_LAST

    def then(self, name: str, condition: str) -> Pattern:
        """Followed by such an event; others in between are skipped."""
        return self._with(Stage(name), condition)

    def next(self, name: str, condition: str) -> Pattern:
        """Followed by such an event at once: the very next one of the key."""
        return self._with(Stage(name, is_strict=True), condition)

    def not_followed_by(self, name: str, condition: str) -> Pattern:
        """No such event until the next stage is reached; as last stage, until the time is over."""
        _require(
            any(not stage.is_optional for stage in self.stages),
            what=f"nothing has to come before {name!r}, so there is no event that it could not follow",
            fix='begin with a stage that is not optional: pattern.begin("order", ...).not_followed_by("payment", ...)',
        )
        return self._with(Stage(name, is_negated=True), condition)

    def times(self, at_least: int, at_most: int | None = None) -> Pattern:
        """The last stage takes this many events, or from one number to another; a match shows them as a list."""
        most = at_least if at_most is None else at_most
        _require(
            all(isinstance(number, int) and not isinstance(number, bool) for number in (at_least, most))
            and 1 <= at_least <= most,
            what=f"times takes a whole number of at least one, or two in order, not {at_least!r} and {most!r}",
            fix=".times(3) or .times(2, 5); for a stage that may be missing add .optional()",
        )
        return self._ending(replace(self._last("times"), is_repeated=True, at_least=at_least, at_most=most))

    def optional(self) -> Pattern:
        """The last stage may be left out."""
        return self._ending(replace(self._last("optional"), is_optional=True))

    def within(self, bound: Duration) -> Pattern:
        """From the first event of a match to its last, both ends included."""
        return replace(self, bound=as_duration(bound, of="the bound of a pattern"))

    def after_match(self, skip: Skip) -> Pattern:
        """Where the search goes on after a match: behind its last event (so it is until said), or its first."""
        _require(
            isinstance(skip, Skip),
            what=f"after_match takes a Skip, not {skip!r}",
            fix="pattern.Skip.PAST_LAST or pattern.Skip.TO_NEXT",
        )
        return replace(self, skip=skip)

    @property
    def fits(self) -> str:
        """SQL for the stages that an event fits, as bits; a condition that is null does not hold."""
        return " + ".join(f"if({sql}, {1 << number}L, 0L)" for number, sql in enumerate(self.conditions))

    def __str__(self) -> str:
        parts = [_stage_text(stage, is_first=number == 0) for number, stage in enumerate(self.stages)]
        bound = [] if self.bound is None else [f"within {as_people_text(self.bound)}"]
        return ", ".join([*parts, *bound])

    def _with(self, stage: Stage, condition: str) -> Pattern:
        name = stage.name
        _require(
            isinstance(name, str) and bool(_NAME.fullmatch(name)) and name.lower() not in _TAKEN,
            what=f"{name!r} is no name for a stage, which becomes a column",
            fix=f"use letters, digits and underscores, not two of them first, and none of {', '.join(_TAKEN)}",
        )
        _require(
            name.lower() not in {other.name.lower() for other in self.stages},
            what=f"two stages of a pattern are called {name!r}",
            fix="give each a name of its own: they become columns",
        )
        _require(
            isinstance(condition, str) and bool(condition.strip()),
            what=f"the condition of stage {name!r} is SQL, not {condition!r}",
            fix=f'.then("{name}", "temperature > 60")',
        )
        _require(
            len(self.stages) < STAGES_MAX,
            what=f"a pattern has at most {STAGES_MAX} stages",
            fix="use .times(...) for stages that are alike, or detect parts of it in steps of their own",
        )
        return replace(self, stages=(*self.stages, stage), conditions=(*self.conditions, condition))

    def _last(self, call: str) -> Stage:
        """The stage that was added last, which a call is about."""
        last = self.stages[-1]
        _require(
            not last.is_negated,
            what=f"stage {last.name!r} is an event that must not come: .{call}(...) says nothing of it",
            fix=f"put .{call}(...) right behind the stage that it is about",
        )
        return last

    def _ending(self, stage: Stage) -> Pattern:
        return replace(self, stages=(*self.stages[:-1], stage))


def begin(name: str, condition: str) -> Pattern:
    """A pattern that begins with an event for which a SQL condition holds."""
    return Pattern(stages=(), conditions=())._with(Stage(name), condition)


def checked(pattern: object) -> Pattern:
    """The pattern, if it is whole: can it match, and is there an end to what it waits for?"""
    _require(
        isinstance(pattern, Pattern) and bool(pattern.stages),
        what=f"detect takes a pattern, not {pattern!r}",
        fix='.detect(pattern.begin("hot", "temperature > 60").then("smoke", "smoke = true").within("10 minutes"))',
    )
    assert isinstance(pattern, Pattern)
    last = pattern.stages[-1]
    _require(
        not last.is_optional,
        what=f"the pattern ends in {last.name!r}, which is optional: it would have matched before",
        fix="leave that stage away, or let one follow that has to come",
    )
    _require(
        last.at_least == last.at_most,
        what=f"the pattern ends in {last.name!r}, {last.at_least} to {last.at_most} times: it matches when "
        f"{last.at_least} have come, and takes no more",
        fix=f"write .times({last.at_least}), or let a stage follow that ends the match",
    )
    _require(
        pattern.bound is not None or not last.is_negated,
        what=f"the pattern ends with no {last.name!r}, but does not say for how long",
        fix='say until when it must not have come: .within("10 minutes")',
    )
    _require(
        pattern.bound is not None or not _waits(pattern.stages),
        what="the pattern skips events and has no bound in time: its partial matches would be kept for ever",
        fix='add .within("10 minutes"), or use .next(...) for every stage',
    )
    return pattern


def _waits(stages: tuple[Stage, ...]) -> bool:
    """May events be skipped while a match is under way?"""
    return stages[0].at_most > 1 or any(not stage.is_strict and not stage.is_negated for stage in stages[1:])


def _stage_text(stage: Stage, *, is_first: bool) -> str:
    how = "" if is_first else "not " if stage.is_negated else "next " if stage.is_strict else "then "
    numbers = {stage.at_least, stage.at_most}
    times = f" {' to '.join(map(str, sorted(numbers)))} times" if stage.is_repeated else ""
    return f"{how}{stage.name}{times}{' (optional)' if stage.is_optional else ''}"


def _require(holds: bool, *, what: str, fix: str) -> None:
    if not holds:
        raise BadJob(what, where=f"declared at {caller()}", fix=fix)
