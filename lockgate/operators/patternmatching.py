"""Patterns: this, then that, within a time, among the events of one key.

The events of a key are taken in the order of their event time, and of their source positions if times are equal,
whatever epochs they came in. So they wait until the watermark has passed them, and a later one is late. Without event
time they are taken as they come, at the time of their epoch. Every event that fits the first stage starts a partial
match. Then each stage has its rule:

    then               takes the first event that fits, and skips those before it
    next               the very next event of the key must fit, or the partial match ends
    not followed by    such an event before the next stage is reached ends the partial match, even if it would fit that
                       stage; as last stage: the match is complete when the time has passed without one
    times(n, m)        n to m events, each of them by the rule of the stage (then or next; the first stage: then); as
                       many as come before the next stage is reached
    optional           may be skipped: an event that fits a later stage is taken for that one
    within             from the first event to the last, both ends included; a partial match that is not complete in
                       this time has timed out and goes to a side

If an event fits several stages that may come next, the search follows all ways. A first event gives at most one match:
the way that is complete first. If one event completes several ways, look at the event at which they separate: the way
that took it for the earlier stage wins. After a match:

    past last          the next match starts after the last event of this one: all partial matches of now are forgotten
    to next            only what started with the same event is forgotten, so matches may overlap

Ways of one first event at the same stage and count have the same future, so only the preferred one is kept. So the
first events within the time, times the length of the pattern, bound what a key holds. So does PARTIALS_MAX.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import itemgetter
from typing import Any
from zlib import crc32

from lockgate.operators.contract import Clock, Key, Operator, Outcome, Side, StepFailed, Time, Values

PARTIALS_MAX = 100_000
"""At most this many partial matches for one key, because its state is read and written as a whole."""

TIME = "time"
"""What is read first if there is event time: microseconds since 1970."""

PLACE = "place"
"""What is read next, with event time: where an event came from (source, part, number, split by a zero character), as a
text that sorts as source positions do."""

FITS = "fits"
"""Which stages a row fits, as bits: 1 for the first stage, 2 for the second, 4 for the third."""

MATCHES, TIMED_OUT, LATE = range(3)
"""The sides."""


class Skip(Enum):
    """Where the search continues after a match: after its last event, or after its first one.

    >>> pairs = pattern.begin("up", "delta > 0").next("down", "delta < 0").after_match(Skip.TO_NEXT)
    """

    PAST_LAST = "past last"
    TO_NEXT = "to next"


@dataclass(frozen=True)
class Stage:
    """One part of a pattern. Each stage has a bit in FITS, a negated one too."""

    name: str
    is_strict: bool = False  # takes the very next event or none
    is_negated: bool = False
    is_optional: bool = False
    is_repeated: bool = False  # shown as a list, whatever the numbers
    at_least: int = 1
    at_most: int = 1


Taken = list[Any]
"""An event of a partial match: its stage, its number among the key's events, its time, what is shown of it."""

Partial = tuple[int, int, int, int, int, bool, list[Taken]]
"""A partial match, which is kept as a list: number and time of its first event, its stage and how many events that
stage has, the negated stages seen since the last of them, whether nothing came since then (kept only if it matters),
and its events."""


class Detect(Operator):
    """Finds a pattern among the events of a key."""

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        shows: Mapping[str, str],
        within_us: int | None,
        skip: Skip,
        has_event_time: bool,
    ) -> None:
        """Look for these stages in this order.

        Args:
            shows: the columns of an event that a match shows, with their types.
            within_us: None only for a pattern of which every stage is strict.
        """
        self.stages = tuple(stages)
        self.within_us = within_us
        self.skip = skip
        self.has_event_time = has_event_time
        self.reads = (*((TIME, PLACE) if has_event_time else ()), FITS, *(shown(name) for name in shows))
        if has_event_time:
            self.time = Time.EVENT
        elif within_us is not None:
            self.time = Time.WALL
        event = ", ".join(f"{_quoted(name)}: {kind}" for name, kind in shows.items())
        columns = ", ".join(
            f"{_quoted(stage.name)} " + (f"ARRAY<STRUCT<{event}>>" if stage.is_repeated else f"STRUCT<{event}>")
            for stage in self.stages
            if not stage.is_negated
        )
        self.sides = (
            Side("matches", f"match_start TIMESTAMP, match_end TIMESTAMP, {columns}"),
            Side("timed_out", f"match_start TIMESTAMP, match_end TIMESTAMP, reached STRING, {columns}"),
            *((Side("late", "", keeps_row=True),) if has_event_time else ()),
        )
        self.places = _places(self.stages)
        self.first = tuple(target for target, _, _ in _onward(self.stages, -1))
        self._is_ever_strict = any(place.waits_strictly for place in self.places.values())
        # The shape of the state: its numbers of stages and its values mean nothing to another pattern.
        self._shape = crc32(repr((event, [tuple(vars(stage).values()) for stage in self.stages])).encode())

    def step(self, key: Key, state: Any, rows: Sequence[Values], clock: Clock) -> Outcome:
        """Take the events that the watermark has passed, and let partial matches time out."""
        shape, number, waiting, partials = state or (self._shape, 0, (), ())
        if shape != self._shape:
            raise StepFailed(
                "the state is that of another pattern, with other stages or other columns; give the step another name "
                "to start with empty state"
            )
        search = _Search(self, number, partials)
        if not self.has_event_time:
            # First events stay in the order of their times, even if a clock was set back.
            wall = max(clock.wall, partials[-1][1]) if partials else clock.wall
            search.expire(wall - 1)
            for row in rows:
                search.take(wall, row[1] or 0, row[2:])
                if search.is_full:
                    raise _too_many("the event", row[0])
            return self._outcome(search, [], [])
        late: list[tuple[int, Values]] = []
        events = list(waiting)
        for row in rows:
            at, place, fits = row[1], row[2], row[3] or 0
            if at < clock.before:
                late.append((LATE, (row[0],)))
            elif fits:
                events.append([at, place, fits, [*row[4:]]])
            elif self._is_ever_strict:  # an event that fits nothing matters only to stages that take the very next one
                events.append([at, place, 0, []])
        events.sort(key=itemgetter(0, 1))
        # An event at the watermark waits too: others of the same time may still come, and none of them is late.
        due = bisect_left(events, clock.now, key=itemgetter(0))
        for at, place, fits, values in events[:due]:
            search.take(at, fits, values)
            if search.is_full:
                # Most have waited since an earlier epoch, and have no number in this one.
                number = next((row[0] for row in rows if row[2] == place), None)
                source, part, told, *_ = place.split("\0")
                raise _too_many(f"event {int(told)} of {source}, {part}", number)
        search.expire(clock.now - 1)
        return self._outcome(search, events[due:], late)

    def _outcome(self, search: _Search, waiting: list[Any], late: list[tuple[int, Values]]) -> Outcome:
        """What is kept, and when the first of it must be looked at again."""
        rows = [*late, *search.rows]
        if not search.partials and not waiting:
            return Outcome(state=None, rows=rows)
        state = [self._shape, search.number, waiting, [[*partial] for partial in search.partials]]
        wakes = [waiting[0][0] + 1] if waiting else []
        if search.partials and self.within_us is not None:
            wakes.append(search.partials[0][1] + self.within_us + 1)
        wake = min(wakes, default=None)
        return Outcome(state, rows, wake=wake) if self.has_event_time else Outcome(state, rows, wake_wall=wake)


def shown(column: str) -> str:
    """The name under which the operator reads a column that matches show."""
    return f"shown {column}"


def _too_many(event: str, number: int | None) -> StepFailed:
    return StepFailed(
        f"with {event} a key holds more than {PARTIALS_MAX:,} partial matches of a pattern; shorten within(...), or "
        "let fewer events fit its first stage",
        number,
    )


# The pattern as an automaton


@dataclass(frozen=True)
class _Place:
    """The position of a partial match whose last event was taken for a stage: what may come next."""

    stage: Stage
    onward: tuple[tuple[int, int, bool], ...]  # stages that may come: number, negated ones before it, is it strict
    negated: int  # all negated stages that may matter from here
    interest: int  # all stages, negated or not, that may matter from here
    waits_strictly: bool  # does it matter whether an event is the very next?
    completes: bool  # enough events of this stage are a match
    in_time: int | None  # it is a match when the time has passed and none of these came; None: it is none


def _places(stages: tuple[Stage, ...]) -> dict[int, _Place]:
    places = {}
    for number, stage in enumerate(stages):
        if stage.is_negated:
            continue
        onward = tuple(_onward(stages, number))
        behind = range(number + 1, len(stages))
        negated = sum(1 << other for other in behind if stages[other].is_negated)
        can_end = all(stages[other].is_negated or stages[other].is_optional for other in behind)
        places[number] = _Place(
            stage=stage,
            onward=onward,
            negated=negated,
            interest=(1 << number if stage.at_most > 1 else 0) | negated | sum(1 << target for target, _, _ in onward),
            waits_strictly=(stage.is_strict and stage.at_most > 1) or any(is_strict for _, _, is_strict in onward),
            completes=number == len(stages) - 1,
            in_time=negated if can_end and stages[-1].is_negated else None,
        )
    return places


def _onward(stages: tuple[Stage, ...], number: int) -> Iterator[tuple[int, int, bool]]:
    """The stages that may follow one: the next that must come, and the optional ones before it."""
    negated = 0
    for other in range(number + 1, len(stages)):
        if stages[other].is_negated:
            negated |= 1 << other
            continue
        yield other, negated, stages[other].is_strict
        if not stages[other].is_optional:
            return


class _Search:
    """The partial matches of a key while its events are taken: by their first event, then the preferred one first."""

    def __init__(self, pattern: Detect, number: int, partials: Sequence[Sequence[Any]]) -> None:
        self.pattern = pattern
        self.number = number  # of the next event
        self.partials: deque[Partial] = deque(map(tuple, partials))
        self.rows: list[tuple[int, Values]] = []
        self._look()

    def take(self, at: int, fits: int, values: Sequence[Any]) -> None:
        """The next event of the key."""
        self.expire(at - 1)
        taken = (self.number, at, [*values])
        self.number += 1
        # Most events change no partial match: one look at all of them, instead of one at each.
        is_touching = self._is_fresh or fits & self._interest
        if is_touching and self._advance(fits, taken):
            return
        self._begin(fits, taken)

    @property
    def is_full(self) -> bool:
        """Are there more partial matches than may be held?"""
        return len(self.partials) > PARTIALS_MAX

    def expire(self, passed: int) -> None:
        """End the partial matches whose time is over, after all events up to `passed` were taken."""
        within, partials = self.pattern.within_us, self.partials
        if within is None:
            return
        while partials and partials[0][1] + within <= passed:
            ways = [partials.popleft()]
            while partials and partials[0][0] == ways[0][0]:
                ways.append(partials.popleft())
            whole = next((way for way in ways if self._is_match_in_time(way)), None)
            if whole is None:
                self._time_out(max(ways, key=itemgetter(2, 3)))
                continue
            self._match(whole[6], end=whole[1] + within)
            if self.pattern.skip is Skip.PAST_LAST:
                while partials and partials[0][0] <= whole[6][-1][1]:
                    partials.popleft()

    def _advance(self, fits: int, event: tuple[int, int, list[Any]]) -> bool:
        """Give an event to all partial matches; true if it ended a match after which the search continues."""
        kept: list[Partial] = []
        standing: set[tuple[Any, ...]] = set()  # of the ways of one first event
        beginning = matched = -1
        for partial in self.partials:
            if partial[0] == matched:
                continue
            if partial[0] != beginning:
                beginning = partial[0]
                standing.clear()
            for way in self._ways(partial, fits, event):
                if self._is_match(way):
                    self._match(way[6], end=event[1])
                    if self.pattern.skip is Skip.PAST_LAST:
                        self.partials.clear()
                        self._look()
                        return True
                    matched = beginning
                    while kept and kept[-1][0] == matched:
                        kept.pop()
                    break
                if way[2:6] not in standing:
                    standing.add(way[2:6])
                    kept.append(way)
        self.partials = deque(kept)
        self._look()
        return False

    def _begin(self, fits: int, event: tuple[int, int, list[Any]]) -> None:
        """Start a partial match with an event, if it fits a stage that may be the first."""
        number, at, _ = event
        for stage in self.pattern.first:
            if not fits >> stage & 1:
                continue
            place = self.pattern.places[stage]
            way: Partial = (number, at, stage, 1, 0, place.waits_strictly, [[stage, *event]])
            if self._is_match(way):
                self._match(way[6], end=at)
                # A match of one event: other ways of this event are forgotten, or all partial matches.
                while self.partials and (self.pattern.skip is Skip.PAST_LAST or self.partials[-1][0] == number):
                    self.partials.pop()
                self._look()
                return
            self.partials.append(way)
            self._interest |= place.interest
            self._is_fresh |= place.waits_strictly

    def _ways(self, partial: Partial, fits: int, event: tuple[int, int, list[Any]]) -> Iterator[Partial]:
        """The results of a partial match with an event: taken for one stage or several, skipped, or ended."""
        number, at, stage, count, seen, is_fresh, taken = partial
        place = self.pattern.places[stage]
        if not is_fresh and not fits & place.interest:
            yield partial
            return
        seen |= fits & place.negated
        has_enough, has_room = count >= place.stage.at_least, count < place.stage.at_most
        is_taken = False
        if has_room and fits >> stage & 1 and (is_fresh or not place.stage.is_strict):
            is_taken = True
            yield (number, at, stage, count + 1, 0, place.waits_strictly, [*taken, [stage, *event]])
        if has_enough:
            for target, negated, is_strict in place.onward:
                if fits >> target & 1 and not seen & negated and (is_fresh or not is_strict):
                    is_taken = True
                    fresh = self.pattern.places[target].waits_strictly
                    yield (number, at, target, 1, 0, fresh, [*taken, [target, *event]])
        if is_taken:
            return
        has_future = (has_room and not place.stage.is_strict) or (
            has_enough
            and (
                any(not is_strict and not seen & negated for _, negated, is_strict in place.onward)
                or (place.in_time is not None and not seen & place.in_time)
            )
        )
        if has_future:
            yield (number, at, stage, count, seen, False, taken)

    def _is_match(self, way: Partial) -> bool:
        place = self.pattern.places[way[2]]
        return place.completes and way[3] >= place.stage.at_least

    def _is_match_in_time(self, way: Partial) -> bool:
        place = self.pattern.places[way[2]]
        return place.in_time is not None and way[3] >= place.stage.at_least and not way[4] & place.in_time

    def _match(self, taken: Sequence[Taken], *, end: int) -> None:
        self.rows.append((MATCHES, (taken[0][2], end, *self._columns(taken))))

    def _time_out(self, way: Partial) -> None:
        taken = way[6]
        reached = self.pattern.stages[way[2]].name
        self.rows.append((TIMED_OUT, (taken[0][2], taken[-1][2], reached, *self._columns(taken))))

    def _columns(self, taken: Sequence[Taken]) -> Iterator[Any]:
        events: dict[int, list[Values]] = {}
        for stage, _, _, values in taken:
            events.setdefault(stage, []).append(tuple(values))
        for number, place in self.pattern.places.items():
            found = events.get(number)
            yield found if found is None or place.stage.is_repeated else found[0]

    def _look(self) -> None:
        """Note what could affect any partial match."""
        self._interest, self._is_fresh = 0, False
        for partial in self.partials:
            self._interest |= self.pattern.places[partial[2]].interest
            self._is_fresh |= partial[5]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
