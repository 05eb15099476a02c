"""Patterns: this, then that, within a time, among the events of one key.

    pattern.begin("hot", "temperature > 60").then("smoke", "smoke = true").within(timedelta(minutes=10))

A pattern is a sequence of stages, each with a name and a SQL condition; each call returns a new pattern. The module
`lockgate.operators.patternmatching` says what the stages mean, event by event. A match has the key columns,
`match_start`, `match_end` and a column for every stage that is not negated: the event that it took, or the list of them
with `.times(...)`.

A partial match is kept until it is complete or its time is over. So a pattern needs `.within(...)`, unless every stage
takes the very next event: then there is never anything to wait for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import timedelta

from lockgate.dataflow.duration import Duration, as_duration, as_people_text
from lockgate.dataflow.origin import caller
from lockgate.errors import BadJob
from lockgate.operators.patternmatching import Skip, Stage

__all__ = ["Pattern", "Skip", "begin"]

STAGES_MAX = 62
"""The stages that an event fits travel as the bits of one BIGINT."""

_NAME = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]*")
_TAKEN = ("match_start", "match_end", "reached")


@dataclass(frozen=True)
class Pattern:
    """Stages in order, with a condition each, a bound in time, and how the search continues after a match.

    >>> print(begin("hot", "temperature > 60").then("smoke", "smoke").within("10m"))
    hot, then smoke, within 10 minutes
    """

    stages: tuple[Stage, ...]
    conditions: tuple[str, ...]
    bound: timedelta | None = None
    skip: Skip = Skip.PAST_LAST

    def then(self, name: str, condition: str) -> Pattern:
        """Add a stage: such an event comes later; other events can come in between.

        Args:
            name: the column of the match that holds the event.
            condition: SQL.

        >>> print(begin("hot", "temperature > 60").then("smoke", "smoke"))
        hot, then smoke
        """
        return self._with(Stage(name), condition)

    def next(self, name: str, condition: str) -> Pattern:
        """Add a stage: the very next event of the key is such an event.

        Args:
            name: the column of the match that holds the event.
            condition: SQL.

        >>> print(begin("hot", "temperature > 60").next("hotter", "temperature > 80"))
        hot, next hotter
        """
        return self._with(Stage(name, is_strict=True), condition)

    def not_followed_by(self, name: str, condition: str) -> Pattern:
        """Add a stage: no such event comes before the next stage; as the last stage, before the time is over.

        Args:
            name: what plans and errors call this stage.
            condition: SQL.

        >>> print(begin("order", "kind = 'order'").not_followed_by("payment", "kind = 'payment'").within("1h"))
        order, not payment, within 1 hour
        """
        _require(
            any(not stage.is_optional for stage in self.stages),
            what=f"nothing has to come before {name!r}, so there is no event that it could not follow",
            fix='begin with a stage that is not optional: pattern.begin("order", ...).not_followed_by("payment", ...)',
        )
        return self._with(Stage(name, is_negated=True), condition)

    def times(self, at_least: int, at_most: int | None = None) -> Pattern:
        """Let the last stage take several events. A match shows them as a list.

        Args:
            at_least: how many events the stage takes.
            at_most: the greatest number, if it can take more.

        >>> print(begin("failed", "not ok").times(3).next("passed", "ok"))
        failed 3 times, next passed
        """
        most = at_least if at_most is None else at_most
        _require(
            all(isinstance(number, int) and not isinstance(number, bool) for number in (at_least, most))
            and 1 <= at_least <= most,
            what=f"times takes a whole number of at least one, or two in order, not {at_least!r} and {most!r}",
            fix=".times(3) or .times(2, 5); for a stage that may be missing add .optional()",
        )
        return self._ending(replace(self._last("times"), is_repeated=True, at_least=at_least, at_most=most))

    def optional(self) -> Pattern:
        """Let the last stage be absent from a match.

        >>> print(begin("order", "n = 1").then("note", "n = 2").optional().then("paid", "n = 3"))
        order, then note (optional), then paid
        """
        return self._ending(replace(self._last("optional"), is_optional=True))

    def within(self, bound: Duration) -> Pattern:
        """Bound the time from the first event of a match to its last, both included.

        Args:
            bound: how long.

        >>> print(begin("hot", "temperature > 60").then("smoke", "smoke").within("10m"))
        hot, then smoke, within 10 minutes
        """
        return replace(self, bound=as_duration(bound, of="the bound of a pattern"))

    def after_match(self, skip: Skip) -> Pattern:
        """Say where the search continues after a match.

        Args:
            skip: `Skip.PAST_LAST`, after the last event of the match (the default), or `Skip.TO_NEXT`, after its first.

        >>> overlapping = begin("up", "delta > 0").next("down", "delta < 0").after_match(Skip.TO_NEXT)
        """
        _require(
            isinstance(skip, Skip),
            what=f"after_match takes a Skip, not {skip!r}",
            fix="pattern.Skip.PAST_LAST or pattern.Skip.TO_NEXT",
        )
        return replace(self, skip=skip)

    @property
    def fits(self) -> str:
        """SQL for the stages that an event fits, as bits. A condition that is null does not hold.

        >>> begin("hot", "temperature > 60").then("smoke", "smoke").fits
        'if(temperature > 60, 1L, 0L) + if(smoke, 2L, 0L)'
        """
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
            fix=f"put .{call}(...) directly after the stage that it is about",
        )
        return last

    def _ending(self, stage: Stage) -> Pattern:
        return replace(self, stages=(*self.stages[:-1], stage))


def begin(name: str, condition: str) -> Pattern:
    """Make a pattern of one stage.

    Args:
        name: the column of the match that holds the event.
        condition: SQL.

    >>> hot = begin("hot", "temperature > 60")
    """
    return Pattern(stages=(), conditions=())._with(Stage(name), condition)


def checked(pattern: object) -> Pattern:
    """The pattern, if it is complete: can it match, and does its waiting end?"""
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
        fix="remove that stage, or add one after it that must come",
    )
    _require(
        last.at_least == last.at_most,
        what=f"the pattern ends in {last.name!r}, {last.at_least} to {last.at_most} times: it matches when "
        f"{last.at_least} have come, and takes no more",
        fix=f"write .times({last.at_least}), or add a stage that ends the match",
    )
    _require(
        pattern.bound is not None or not last.is_negated,
        what=f"the pattern ends with no {last.name!r}, but does not say for how long",
        fix='say for how long it must not come: .within("10 minutes")',
    )
    _require(
        pattern.bound is not None or not _waits(pattern.stages),
        what="the pattern skips events and has no bound in time: its partial matches would be kept forever",
        fix='add .within("10 minutes"), or use .next(...) for every stage',
    )
    return pattern


def _waits(stages: tuple[Stage, ...]) -> bool:
    """May events be skipped during a match?"""
    return stages[0].at_most > 1 or any(not stage.is_strict and not stage.is_negated for stage in stages[1:])


def _stage_text(stage: Stage, *, is_first: bool) -> str:
    how = "" if is_first else "not " if stage.is_negated else "next " if stage.is_strict else "then "
    numbers = {stage.at_least, stage.at_most}
    times = f" {' to '.join(map(str, sorted(numbers)))} times" if stage.is_repeated else ""
    return f"{how}{stage.name}{times}{' (optional)' if stage.is_optional else ''}"


def _require(holds: bool, *, what: str, fix: str) -> None:
    if not holds:
        raise BadJob(what, where=f"declared at {caller()}", fix=fix)
