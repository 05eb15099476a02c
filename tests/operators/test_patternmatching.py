"""The automaton against examples that people agree on, and against a matcher that tries every way.

Events are written as text: the letters that an event carries, with dots for events that carry none. A stage fits an
event that carries its letter, so that an event may fit several. Events are a minute apart unless a test says when.
"""

import pickle
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import combinations, permutations
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockgate.dataflow import patterns as pattern
from lockgate.dataflow.patterns import Pattern, Skip
from lockgate.dataflow.schema import parse_ddl
from lockgate.errors import BadJob
from lockgate.operators.contract import Clock, StepFailed, Time
from lockgate.operators.encoding import PLAIN
from lockgate.operators.epoch import run_epoch
from lockgate.operators.page import Groups
from lockgate.operators.pagestore import PageStore
from lockgate.operators.patternmatching import LATE, MATCHES, PARTIALS_MAX, TIMED_OUT, Detect

MINUTE = 60_000_000
NOON = 1_700_000_000_000_000
FOREVER = NOON * 2

Event = tuple[int, str]
"""When it happened, and the letters that it carries."""


def operator_of(described: Pattern, *, has_event_time: bool = True) -> Detect:
    """As the compiler makes it."""
    whole = pattern.checked(described)
    return Detect(
        whole.stages,
        shows={"event": "STRING"},
        within_us=None if whole.bound is None else whole.bound // timedelta(microseconds=1),
        skip=whole.skip,
        has_event_time=has_event_time,
    )


def fits(described: Pattern, letters: str) -> int:
    return sum(1 << number for number, letter in enumerate(described.conditions) if letter in letters)


def place_of(number: int, part: str = "p") -> str:
    """Where an event came from, as the operator reads it."""
    return f"events\0{part}\0{number:019}"


def minutes(text: str) -> list[Event]:
    """Events a minute apart: `a . bc` is a, then one that fits nothing, then one that fits b and c."""
    return [(NOON + number * MINUTE, letters.strip(".")) for number, letters in enumerate(text.split())]


@dataclass
class Runner:
    """Runs an operator for one key as the engine does: with rows, or when it asked to be woken; state travels."""

    described: Pattern
    has_event_time: bool = True
    before: int = 0
    state: Any = None
    wake: int | None = None
    wake_wall: int | None = None
    count: int = 0
    rows: list[tuple[int, tuple[Any, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.operator = pickle.loads(pickle.dumps(operator_of(self.described, has_event_time=self.has_event_time)))

    def epoch(self, events: Iterable[Event], *, now: int = 0, wall: int = 0) -> None:
        rows = []
        for at, letters in events:
            shown = f"{letters}{self.count}"
            time = (at, place_of(self.count)) if self.has_event_time else ()
            rows.append((self.count, *time, fits(self.described, letters), shown))
            self.count += 1
        is_due = (self.wake is not None and self.wake <= now) or (self.wake_wall is not None and self.wake_wall <= wall)
        if rows or is_due:
            outcome = self.operator.step(("k",), self.state, rows, Clock(before=self.before, now=now, wall=wall))
            self.state = PLAIN.decode(PLAIN.encode(outcome.state))
            self.wake, self.wake_wall = outcome.wake, outcome.wake_wall
            self.rows += outcome.rows
        self.before = now

    def side(self, side: int) -> list[tuple[Any, ...]]:
        return [values for index, values in self.rows if index == side]


def run(described: Pattern, events: Sequence[Event]) -> Runner:
    """All events in one epoch, then nothing for ever."""
    runner = Runner(described)
    runner.epoch(events)
    runner.epoch([], now=FOREVER)
    return runner


def found(described: Pattern, text: str) -> list[str]:
    """The matches, each as the events that it took: letters and number of each."""
    return [taken(values) for values in run(described, minutes(text)).side(MATCHES)]


def taken(values: tuple[Any, ...]) -> str:
    """The events of a match or of a partial one; a list in brackets, a dash where there is none."""
    columns = [value for value in values[2:] if not isinstance(value, str)]
    return " ".join(
        "-"
        if column is None
        else f"[{' '.join(event for (event,) in column)}]"
        if isinstance(column, list)
        else column[0]
        for column in columns
    )


ALARM = pattern.begin("hot", "h").then("smoke", "s").within(timedelta(minutes=10))
A = pattern.begin("a", "a")


# The alarm


def test_high_temperature_and_then_smoke_within_ten_minutes_is_an_alarm() -> None:
    runner = run(ALARM, [(NOON, "h"), (NOON + 4 * MINUTE, ""), (NOON + 9 * MINUTE, "s")])
    assert runner.rows == [(MATCHES, (NOON, NOON + 9 * MINUTE, ("h0",), ("s2",)))]
    assert runner.state is None


def test_smoke_after_eleven_minutes_is_no_alarm_but_a_partial_match_that_timed_out() -> None:
    runner = run(ALARM, [(NOON, "h"), (NOON + 11 * MINUTE, "s")])
    assert runner.rows == [(TIMED_OUT, (NOON, NOON, "hot", ("h0",), None))]
    assert runner.state is None


@pytest.mark.parametrize(("after", "alarms"), [(0, 1), (10 * MINUTE, 1), (10 * MINUTE + 1, 0)])
def test_the_time_is_exact_to_the_microsecond_and_its_end_included(after: int, alarms: int) -> None:
    runner = run(ALARM, [(NOON, "h"), (NOON + after, "s")])
    assert len(runner.side(MATCHES)) == alarms
    assert len(runner.side(TIMED_OUT)) == 1 - alarms


def test_a_partial_match_times_out_as_soon_as_no_event_can_complete_it_and_not_before() -> None:
    runner = Runner(ALARM)
    runner.epoch([(NOON, "h")], now=NOON + 1)
    assert runner.wake == NOON + 10 * MINUTE + 1
    runner.epoch([], now=NOON + 10 * MINUTE)  # smoke of this very time may still come
    assert runner.rows == []
    runner.epoch([], now=NOON + 10 * MINUTE + 1)
    assert [index for index, _ in runner.rows] == [TIMED_OUT]
    assert runner.state is None
    assert runner.wake is None


STORY: list[Event] = [
    (NOON, "h"),
    (NOON + 2 * MINUTE, ""),
    (NOON + 9 * MINUTE, "s"),
    (NOON + 20 * MINUTE, "h"),
    (NOON + 31 * MINUTE, "s"),
]


@pytest.mark.parametrize("order", list(permutations(range(5))))
def test_the_order_of_arrival_changes_nothing(order: tuple[int, ...]) -> None:
    runner = Runner(ALARM)
    runner.epoch([STORY[number] for number in order])
    runner.epoch([], now=FOREVER)
    assert [(index, values[:2]) for index, values in runner.rows] == [
        (MATCHES, (NOON, NOON + 9 * MINUTE)),
        (TIMED_OUT, (NOON + 20 * MINUTE, NOON + 20 * MINUTE)),
    ]


@pytest.mark.parametrize("cuts", [cuts for size in range(5) for cuts in combinations(range(1, 5), size)])
def test_the_cut_into_epochs_changes_nothing(cuts: tuple[int, ...]) -> None:
    runner = Runner(ALARM)
    for begin, end in zip((0, *cuts), (*cuts, 5), strict=True):
        runner.epoch(STORY[begin:end], now=STORY[end - 1][0])
    runner.epoch([], now=FOREVER)
    assert runner.rows == run(ALARM, STORY).rows


def test_an_event_is_late_where_the_time_had_passed_it_before_the_epoch() -> None:
    runner = Runner(ALARM)
    runner.epoch([(NOON + MINUTE, "s")], now=NOON + MINUTE + 1)
    # The smoke has been taken: what was hot before it would turn up behind it.
    runner.epoch([(NOON + MINUTE, "h"), (NOON + MINUTE + 1, "h")], now=NOON + 3 * MINUTE)
    runner.epoch([(NOON + 4 * MINUTE, "s")], now=FOREVER)
    assert runner.side(LATE) == [(1,)]
    assert runner.side(MATCHES) == [(NOON + MINUTE + 1, NOON + 4 * MINUTE, ("h2",), ("s3",))]


def test_an_event_at_the_watermark_is_in_time_and_keeps_its_place() -> None:
    runner = Runner(ALARM)
    runner.epoch([(NOON, "h")], now=NOON)
    runner.epoch([(NOON, "s")], now=NOON)
    runner.epoch([], now=FOREVER)
    assert runner.rows == [(MATCHES, (NOON, NOON, ("h0",), ("s1",)))]


@pytest.mark.parametrize(
    ("hot", "smoke", "told"),
    [("0", "1", (MATCHES, (NOON, NOON, ("h",), ("s",)))), ("1", "0", (TIMED_OUT, (NOON, NOON, "hot", ("h",), None)))],
)
def test_events_of_one_time_are_taken_by_their_partitions_whatever_epochs_they_came_in(
    hot: str, smoke: str, told: Any
) -> None:
    rows = {"h": (0, NOON, place_of(7, part=hot), 1, "h"), "s": (1, NOON, place_of(3, part=smoke), 2, "s")}
    for epochs in (["h", "s"], ["s", "h"], ["hs"], ["sh"]):
        operator, state, found = operator_of(ALARM), None, []
        for letters, now in [*((letters, NOON) for letters in epochs), ("", FOREVER)]:
            before = 0 if state is None else NOON
            outcome = operator.step((), state, [rows[one] for one in letters], Clock(before, now, wall=0))
            state = outcome.state
            found += outcome.rows
        assert found == [told], epochs


def test_by_processing_time_events_are_taken_as_they_come_at_the_time_of_their_epoch() -> None:
    runner = Runner(ALARM, has_event_time=False)
    assert runner.operator.time is Time.WALL
    assert [side.name for side in runner.operator.sides] == ["matches", "timed_out"]
    runner.epoch([(0, "s"), (0, "h")], wall=NOON)
    assert runner.wake_wall == NOON + 10 * MINUTE + 1
    runner.epoch([(0, "s"), (0, "h")], wall=NOON + 10 * MINUTE)
    runner.epoch([], wall=NOON + 20 * MINUTE)
    assert runner.rows == [(MATCHES, (NOON, NOON + 10 * MINUTE, ("h1",), ("s2",)))]
    runner.epoch([], wall=NOON + 20 * MINUTE + 1)
    assert runner.rows[1:] == [(TIMED_OUT, (NOON + 10 * MINUTE, NOON + 10 * MINUTE, "hot", ("h3",), None))]
    assert runner.state is None


def test_by_processing_time_a_clock_that_is_set_back_does_no_harm() -> None:
    runner = Runner(ALARM, has_event_time=False)
    runner.epoch([(0, "h")], wall=NOON)
    runner.epoch([(0, "h")], wall=NOON - MINUTE)
    runner.epoch([], wall=NOON + 11 * MINUTE)
    assert [values[0] for values in runner.side(TIMED_OUT)] == [NOON, NOON]


# What an author can say


@pytest.mark.parametrize(
    ("described", "text", "matches"),
    [
        # then: the first that fits, whatever is in between
        (A.then("b", "b"), "a b", ["a0 b1"]),
        (A.then("b", "b"), "a . . b b", ["a0 b3"]),
        (A.then("b", "b"), "b a", []),
        (A.then("b", "b"), "ab b", ["ab0 b1"]),
        (A.then("b", "b").then("c", "c"), "a b b c", ["a0 b1 c3"]),
        (A.then("b", "b").next("c", "c"), "a b . b c", []),  # the first b was taken, and no c was next
        # next: at once or never
        (A.next("b", "b"), "a b", ["a0 b1"]),
        (A.next("b", "b"), "a . b", []),
        (A.next("b", "b"), "a a b", ["a1 b2"]),
        (A.next("b", "b").next("c", "c"), "a b c a b . c", ["a0 b1 c2"]),
        (A.next("b", "b").then("c", "c"), "a b . c", ["a0 b1 c3"]),
        # times
        (A.times(3), "a . a . a", ["[a0 a2 a4]"]),
        (A.times(2), "a a a a a", ["[a0 a1]", "[a2 a3]"]),
        (A.times(1), "a a", ["[a0]", "[a1]"]),
        (A.next("b", "b").times(2), "a b b", ["a0 [b1 b2]"]),
        (A.next("b", "b").times(2), "a b . b", []),
        (A.then("b", "b").times(2), "a . b . b", ["a0 [b2 b4]"]),
        (A.then("b", "b").times(2, 3).then("c", "c"), "a b c b c", ["a0 [b1 b3] c4"]),
        (A.then("b", "b").times(1, 3).then("c", "c"), "a b b c", ["a0 [b1 b2] c3"]),
        (A.then("b", "b").times(1, 2).then("c", "c"), "a b b b c", ["a0 [b1 b2] c4"]),
        (A.then("b", "b").times(1, 3).next("c", "c"), "a b . b c", ["a0 [b1 b3] c4"]),
        (A.then("b", "b").times(1, 2).then("c", "c"), "a b bc c", ["a0 [b1] bc2"]),  # complete first
        (A.then("b", "b").times(1, 2).then("c", "c").next("d", "d"), "a b bc c d", ["a0 [b1 bc2] c3 d4"]),
        # optional
        (A.then("b", "b").optional().then("c", "c"), "a b c", ["a0 b1 c2"]),
        (A.then("b", "b").optional().then("c", "c"), "a c b c", ["a0 - c1"]),
        (A.then("b", "b").optional().then("c", "c"), "a bc c", ["a0 - bc1"]),
        (A.next("b", "b").optional().next("c", "c"), "a c", ["a0 - c1"]),
        (A.next("b", "b").optional().next("c", "c"), "a . c", []),
        (A.then("b", "b").times(2).optional().then("c", "c"), "a b c", []),  # b was begun, so it takes two
        (A.then("b", "b").times(2).optional().then("c", "c"), "a c", ["a0 - c1"]),
        (A.optional().then("b", "b"), "b a b", ["- b0", "a1 b2"]),
        # not followed by
        (A.not_followed_by("c", "c").then("b", "b"), "a . b", ["a0 b2"]),
        (A.not_followed_by("c", "c").then("b", "b"), "a c b", []),
        (A.not_followed_by("c", "c").then("b", "b"), "ac b c", ["ac0 b1"]),
        (A.not_followed_by("c", "c").then("b", "b"), "a bc b", []),
        (A.times(2).not_followed_by("c", "c").then("b", "b"), "a c a b", ["[a0 a2] b3"]),
        (A.times(1, 2).not_followed_by("c", "c").then("b", "b"), "a c b a b", ["[a0 a3] b4"]),
        (A.then("d", "d").optional().not_followed_by("c", "c").then("b", "b"), "a c d b", ["a0 d2 b3"]),
        (A.then("d", "d").optional().not_followed_by("c", "c").then("b", "b"), "a c b", []),
        (A.not_followed_by("c", "c"), "a . .", ["a0"]),
        (A.not_followed_by("c", "c"), "a . c", []),
        (A.then("b", "b").not_followed_by("c", "c"), "a b", ["a0 b1"]),
        (A.then("b", "b").times(1, 2).not_followed_by("c", "c"), "a b b b", ["a0 [b1 b2]"]),
        (A.then("b", "b").times(1, 2).not_followed_by("c", "c"), "a b c b", ["a0 [b1 b3]"]),
        (A.then("b", "b").optional().not_followed_by("c", "c"), "a", ["a0 -"]),
        (A.then("b", "b").not_followed_by("c", "c").not_followed_by("d", "d"), "a b d", []),
    ],
)
def test_a_pattern_finds(described: Pattern, text: str, matches: list[str]) -> None:
    assert found(described.within(timedelta(hours=1)), text) == matches


def test_a_pattern_without_a_bound_waits_for_the_very_next_event_and_no_longer() -> None:
    described = A.next("b", "b")
    runner = Runner(described, has_event_time=False)
    assert runner.operator.time is Time.NONE
    runner.epoch([(0, "a")], wall=NOON)
    assert (runner.wake, runner.wake_wall) == (None, None)
    runner.epoch([(0, "b"), (0, "a"), (0, "")], wall=NOON + 1000 * MINUTE)
    assert runner.side(MATCHES) == [(NOON, NOON + 1000 * MINUTE, ("a0",), ("b1",))]
    assert runner.state is None


def test_the_absence_of_an_event_is_certain_when_the_time_has_passed() -> None:
    described = A.not_followed_by("b", "b").within(timedelta(minutes=10))
    assert run(described, [(NOON, "a"), (NOON + 10 * MINUTE, "b")]).rows == []
    late = run(described, [(NOON, "a"), (NOON + 10 * MINUTE + 1, "b")])
    assert late.rows == [(MATCHES, (NOON, NOON + 10 * MINUTE, ("a0",)))]


@pytest.mark.parametrize(
    ("described", "text", "past_last", "to_next"),
    [
        (A.then("b", "b"), "a a b b", ["a0 b2"], ["a0 b2", "a1 b2"]),
        (A.times(2), "a a a a", ["[a0 a1]", "[a2 a3]"], ["[a0 a1]", "[a1 a2]", "[a2 a3]"]),
        (A.then("b", "b").then("c", "c"), "a b a b c c", ["a0 b1 c4"], ["a0 b1 c4", "a2 b3 c4"]),
        # The event that ends a match begins no other one, unless matches may overlap.
        (A.then("b", "a"), "a a a", ["a0 a1"], ["a0 a1", "a1 a2"]),
        # What began earlier and is not complete is forgotten too: no event is in two matches.
        (A.times(2).optional().then("b", "b"), "a b a b", ["- b1", "- b3"], ["- b1", "[a0 a2] b3", "- b3"]),
        # Two orders without a payment are two: the second began behind the only event of the first.
        (A.not_followed_by("b", "b"), "a a", ["a0", "a1"], ["a0", "a1"]),
        (A.then("c", "c").not_followed_by("b", "b"), "a a c a c", ["a0 c2", "a3 c4"], ["a0 c2", "a1 c2", "a3 c4"]),
    ],
)
def test_after_a_match_the_search_continues(
    described: Pattern, text: str, past_last: list[str], to_next: list[str]
) -> None:
    bound = described.within(timedelta(hours=1))
    assert found(bound, text) == past_last
    assert found(bound.after_match(Skip.TO_NEXT), text) == to_next


def test_what_timed_out_says_how_far_it_came() -> None:
    described = A.then("b", "b").times(3).then("c", "c").optional().then("d", "d").within(timedelta(minutes=3))
    runner = run(described, [(NOON, "a"), (NOON + 1, "b"), (NOON + 2, "b"), (NOON + 4 * MINUTE, "b")])
    assert runner.rows == [(TIMED_OUT, (NOON, NOON + 2, "b", ("a0",), [("b1",), ("b2",)], None, None))]


def test_what_is_over_for_another_reason_has_not_timed_out() -> None:
    bound = timedelta(minutes=10)
    assert run(A.next("b", "b").within(bound), minutes("a .")).rows == []
    assert run(A.not_followed_by("c", "c").then("b", "b").within(bound), minutes("a c")).rows == []
    assert run(A.then("b", "b").within(bound), minutes("a a b")).side(TIMED_OUT) == []


def test_a_condition_that_is_null_does_not_hold() -> None:
    operator = operator_of(ALARM)
    outcome = operator.step((), None, [(0, NOON, place_of(0), None, "x")], Clock(before=0, now=0, wall=0))
    assert outcome.state is None


# What it gives and keeps


def test_the_columns_of_its_sides_are_a_schema() -> None:
    described = A.then("check", "b").times(2).not_followed_by("never", "c").then("d", "d").within("1 hour")
    operator = Detect(
        described.stages,
        shows={"at": "TIMESTAMP", "odd `name`": "INT"},
        within_us=1,
        skip=Skip.TO_NEXT,
        has_event_time=True,
    )
    assert operator.reads == ("time", "place", "fits", "shown at", "shown odd `name`")
    matches, timed_out, late = operator.sides
    assert matches.columns == (
        "match_start TIMESTAMP, match_end TIMESTAMP, `a` STRUCT<`at`: TIMESTAMP, `odd ``name```: INT>, "
        "`check` ARRAY<STRUCT<`at`: TIMESTAMP, `odd ``name```: INT>>, `d` STRUCT<`at`: TIMESTAMP, `odd ``name```: INT>"
    )
    assert parse_ddl(timed_out.columns, where="").names == ("match_start", "match_end", "reached", "a", "check", "d")
    assert (late.columns, late.keeps_row) == ("", True)


def test_an_event_that_fits_nothing_is_kept_only_if_it_comes_between() -> None:
    waiting = Runner(ALARM)
    waiting.epoch(minutes(". . ."))
    assert waiting.state is None
    strict = Runner(A.next("b", "b"))
    strict.epoch(minutes("a . b"))
    strict.epoch([], now=FOREVER)
    assert strict.rows == []


def test_a_step_leaves_the_state_that_it_was_given_as_it_was() -> None:
    operator = operator_of(A.then("b", "b").times(1, 2).then("c", "c").within("1 hour"))
    clock = Clock(before=0, now=NOON, wall=0)
    rows = [(0, NOON, place_of(0), 1, "a"), (1, NOON, place_of(1), 2, "b"), (2, NOON + 1, place_of(2), 4, "c")]
    state = operator.step((), None, rows, clock).state
    kept = PLAIN.encode(state)
    later = Clock(before=NOON, now=FOREVER, wall=0)
    first, second = operator.step((), state, [], later), operator.step((), state, [], later)
    assert PLAIN.encode(state) == kept
    assert first == second
    assert len(first.rows) == 1


def test_a_state_of_another_pattern_is_refused() -> None:
    runner = Runner(ALARM)
    runner.epoch([(NOON, "h")], now=NOON)
    with pytest.raises(StepFailed, match="give the step another name"):
        operator_of(ALARM.then("fire", "f")).step((), runner.state, [], Clock(before=NOON, now=FOREVER, wall=0))
    # The bound is no part of what is kept.
    longer = operator_of(ALARM.within("1 hour"))
    later = [(0, NOON + 30 * MINUTE, place_of(1), 2, "s")]
    outcome = longer.step((), runner.state, later, Clock(before=NOON, now=FOREVER, wall=0))
    assert [index for index, _ in outcome.rows] == [MATCHES]


def test_too_many_partial_matches_are_refused_with_the_event_and_the_fix() -> None:
    operator = operator_of(ALARM)
    rows = [(number, NOON + number, place_of(number), 1, "h") for number in range(PARTIALS_MAX)]
    most = operator.step((), None, rows, Clock(before=0, now=NOON + MINUTE, wall=0))
    match = r"with event 42 of events, p a key holds more than 100,000 partial matches .* shorten within"
    one_more = [(5, NOON + 2 * MINUTE, place_of(41), 0, ""), (6, NOON + 2 * MINUTE, place_of(42), 1, "h")]
    with pytest.raises(StepFailed, match=match) as failed:
        operator.step((), most.state, one_more, Clock(NOON + MINUTE, NOON + 3 * MINUTE, 0))
    assert failed.value.number == 6
    # An event that has waited is no row of the epoch that stops.
    full = operator.step((), most.state, one_more, Clock(NOON + MINUTE, NOON + MINUTE, 0))
    with pytest.raises(StepFailed, match=match) as failed:
        operator.step((), full.state, [], Clock(NOON + MINUTE, NOON + 3 * MINUTE, 0))
    assert failed.value.number is None


def test_by_processing_time_too_many_partial_matches_are_refused_with_the_event() -> None:
    operator = operator_of(ALARM, has_event_time=False)
    rows = [(number, 1, "h") for number in range(PARTIALS_MAX + 2)]
    with pytest.raises(StepFailed, match=r"with the event a key holds more than 100,000 .* shorten within") as failed:
        operator.step((), None, rows, Clock(before=0, now=0, wall=NOON))
    assert failed.value.number == PARTIALS_MAX


class Memory:
    """Named bytes."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}

    def get(self, name: str) -> bytes | None:
        return self.content.get(name)

    def put(self, name: str, value: bytes) -> None:
        self.content[name] = value

    def remove(self, name: str) -> None:
        self.content.pop(name, None)


def test_keys_know_nothing_of_each_other() -> None:
    rng = random.Random(7)
    operator = operator_of(ALARM)
    events = [(number % 5, NOON + number * MINUTE, rng.choice(["h", "s", ""])) for number in range(200)]
    cells = Memory()
    together: list[Any] = []
    for begin in (*range(0, 200, 20), 200):
        rows: dict[int, list[Any]] = {}
        for key, at, letters in events[begin : begin + 20]:
            rows.setdefault(key, []).append((0, at, place_of(at), fits(ALARM, letters), f"{letters}{at}"))
        groups = Groups.of((key, (key,), held) for key, held in rows.items())
        now = FOREVER if begin == 200 else NOON + begin * MINUTE
        together += run_epoch(operator, PageStore(cells), groups, watermark=now, wall=0)
    assert {key for _, key, _ in together} == {(key,) for key in range(5)}
    assert set(cells.content) == {"index"}
    for alone in range(5):
        own = [(at, letters) for key, at, letters in events if key == alone]
        story = [(0, at, place_of(at), fits(ALARM, letters), f"{letters}{at}") for at, letters in own]
        outcome = operator.step((alone,), None, story, Clock(before=0, now=FOREVER, wall=0))
        assert [(side, values) for side, key, values in together if key == (alone,)] == list(outcome.rows)


# Against a matcher that tries every way, over the whole story at once

Path = tuple[tuple[int, int], ...]
"""The events of a way: stage and number of each."""


@dataclass(frozen=True)
class Reference:
    """The rules as they are written down, without state, watermarks or anything forgotten early."""

    described: Pattern
    events: Sequence[Event]

    def rows(self) -> list[tuple[int, str]]:
        """What comes out, in order: side, and the events."""
        skip_past = self.described.skip is Skip.PAST_LAST
        outcomes = {number: self.outcome(number) for number in range(len(self.events))}
        out: list[tuple[int, str]] = []
        free, pending = 0, list(outcomes)
        for place in range(len(self.events) + 1):
            for start in list(pending):
                if self.bound is None or (place < len(self.events) and not self.is_over(start, place)):
                    break
                if start >= place:
                    break
                pending.remove(start)
                kind, path = outcomes[start]
                if start < free or kind in ("dead", "match"):
                    continue
                out.append((MATCHES if kind == "in time" else TIMED_OUT, self.text(path)))
                if kind == "in time" and skip_past:
                    free = path[-1][1] + 1
            for start, (kind, path) in outcomes.items():
                if kind == "match" and path[-1][1] == place and start >= free:
                    out.append((MATCHES, self.text(path)))
                    if skip_past:
                        free = place + 1
        return out

    @property
    def bound(self) -> int | None:
        return None if self.described.bound is None else self.described.bound // timedelta(microseconds=1)

    def is_over(self, start: int, place: int) -> bool:
        return self.bound is not None and self.events[place][0] - self.events[start][0] > self.bound

    def outcome(self, start: int) -> tuple[str, Path]:
        """What becomes of the beginning with an event."""
        stages = self.described.stages
        paths: list[Path] = []
        for stage in range(len(stages)):
            if self.fits(stage, start):
                paths += self.explore(((stage, start),), start + 1)
            if not stages[stage].is_optional:
                break
        whole = [path for path in paths if self.is_whole(path)]
        if whole:
            return "match", min(whole, key=lambda path: (path[-1][1], [stage for stage, _ in path]))
        end = next((place for place in range(start, len(self.events)) if self.is_over(start, place)), len(self.events))
        certain = [path for path in paths if self.is_whole_in_time(path, end)]
        if certain:
            return "in time", min(certain, key=lambda path: [stage for stage, _ in path])
        alive = [path for path in paths if self.is_alive(path, end)]
        if alive:
            furthest = max(self.standing(path) for path in alive)
            return "open", min(
                (path for path in alive if self.standing(path) == furthest),
                key=lambda path: [stage for stage, _ in path],
            )
        return "dead", ()

    def explore(self, path: Path, place: int) -> Iterator[Path]:
        """All ways to go on: an event that may be taken is taken."""
        if self.is_whole(path) or place == len(self.events) or self.is_over(path[0][1], place):
            yield path
            return
        targets = self.targets(path, place)
        for stage in targets:
            yield from self.explore((*path, (stage, place)), place + 1)
        if not targets:
            yield from self.explore(path, place + 1)

    def targets(self, path: Path, place: int, *, is_joker: bool = False) -> list[int]:
        """The stages for which an event may be taken; a joker fits all that are not negated."""
        stages = self.described.stages
        (stage, last), (_, count) = path[-1], self.standing(path)
        found = []

        def may(target: int) -> bool:
            is_near = not stages[target].is_strict or place == last + 1
            return is_near and (is_joker or self.fits(target, place))

        if count < stages[stage].at_most and may(stage):
            found.append(stage)
        if count >= stages[stage].at_least:
            for target in range(stage + 1, len(stages)):
                if stages[target].is_negated:
                    until = place if is_joker else place + 1
                    if any(self.fits(target, between) for between in range(last + 1, until)):
                        break
                    continue
                if may(target):
                    found.append(target)
                if not stages[target].is_optional:
                    break
        return found

    def fits(self, stage: int, place: int) -> bool:
        return self.described.conditions[stage] in self.events[place][1]

    def standing(self, path: Path) -> tuple[int, int]:
        return path[-1][0], sum(stage == path[-1][0] for stage, _ in path)

    def is_whole(self, path: Path) -> bool:
        stage, count = self.standing(path)
        return stage == len(self.described.stages) - 1 and count >= self.described.stages[stage].at_least

    def is_whole_in_time(self, path: Path, end: int) -> bool:
        stages = self.described.stages
        stage, count = self.standing(path)
        return (
            stages[-1].is_negated
            and count >= stages[stage].at_least
            and all(other.is_negated or other.is_optional for other in stages[stage + 1 :])
            and not any(
                self.fits(other, place)
                for other in range(stage + 1, len(stages))
                if stages[other].is_negated
                for place in range(path[-1][1] + 1, end)
            )
        )

    def is_alive(self, path: Path, end: int) -> bool:
        """Could one more event be taken, or was it only the time that was missing?"""
        return bool(self.targets(path, end, is_joker=True))

    def text(self, path: Path) -> str:
        parts = []
        for number, stage in enumerate(self.described.stages):
            if stage.is_negated:
                continue
            names = [f"{self.events[place][1]}@{self.events[place][0]}" for taken, place in path if taken == number]
            inside = " ".join(names)
            parts.append("-" if not names else f"[{inside}]" if stage.is_repeated else inside)
        return " ".join(parts)


@st.composite
def descriptions(draw: st.DrawFn) -> Pattern:
    """Small patterns of all kinds, over three letters."""
    letters = st.sampled_from("abc")
    described = pattern.begin("s0", draw(letters))
    for number in range(draw(st.integers(0, 3)) + 1):
        if number:
            kinds = ["then", "then", "next"]
            if any(not stage.is_optional for stage in described.stages):
                kinds.append("not_followed_by")
            kind = draw(st.sampled_from(kinds))
            described = getattr(described, kind)(f"s{number}", draw(letters))
            if kind == "not_followed_by":
                continue
        if draw(st.booleans()):
            least = draw(st.integers(1, 3))
            described = described.times(least, least + draw(st.integers(0, 2)))
        if draw(st.integers(0, 3)) == 0:
            described = described.optional()
    if draw(st.integers(0, 4)):
        described = described.within(timedelta(microseconds=draw(st.integers(1, 8))))
    try:
        return pattern.checked(described.after_match(draw(st.sampled_from(Skip))))
    except BadJob:
        return draw(descriptions())


@st.composite
def stories(draw: st.DrawFn) -> list[Event]:
    """Up to a dozen events in the order of their times, some at the same time."""
    events, at = [], NOON
    for letters in draw(st.lists(st.sampled_from(["", "a", "b", "c", "ab", "bc", "abc"]), max_size=12)):
        at += draw(st.integers(0, 3))
        events.append((at, letters))
    return events


def outputs(runner: Runner, times: Sequence[int]) -> list[tuple[int, str]]:
    """What came out, with the time of each event for its number."""

    def named(event: str) -> str:
        letters = event.rstrip("0123456789")
        return f"{letters}@{times[int(event[len(letters) :])]}"

    rows = []
    for side, values in runner.rows:
        columns = values[2:] if side == MATCHES else values[3:]
        parts = []
        for column in columns:
            if column is None:
                parts.append("-")
            elif isinstance(column, list):
                parts.append(f"[{' '.join(named(event) for (event,) in column)}]")
            else:
                parts.append(named(column[0]))
        rows.append((side, " ".join(parts)))
    return rows


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(descriptions(), stories(), st.randoms(use_true_random=False))
def test_it_finds_what_trying_every_way_finds_in_any_disorder_and_any_epochs(
    described: Pattern, story: list[Event], rng: random.Random
) -> None:
    arrival = sorted(story, key=lambda event: event[0] + rng.choice([0, 0, 2, 9]))
    runner = Runner(described)
    place = 0
    while place < len(arrival):
        end = rng.randint(place + 1, len(arrival))
        # As far as the watermark may go without calling one of the rest late, or less far.
        farthest = min((at for at, _ in arrival[end:]), default=arrival[-1][0] + 1) - 1
        runner.epoch(arrival[place:end], now=max(runner.before, farthest - rng.choice([0, 0, 1, 5])))
        place = end
    runner.epoch([], now=FOREVER)
    in_order = sorted(arrival, key=lambda event: event[0])
    assert outputs(runner, [at for at, _ in arrival]) == Reference(described, in_order).rows()
    assert runner.side(LATE) == []
    if described.bound is not None:
        assert runner.state is None
    for side, values in runner.rows:
        if side == MATCHES and described.bound is not None:
            assert 0 <= values[1] - values[0] <= described.bound // timedelta(microseconds=1)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(descriptions(), stories())
def test_it_finds_the_same_by_processing_time(described: Pattern, story: list[Event]) -> None:
    runner = Runner(described, has_event_time=False)
    walls = sorted({at for at, _ in story})
    for wall in walls:
        runner.epoch([event for event in story if event[0] == wall], wall=wall)
    runner.epoch([], wall=FOREVER)
    assert outputs(runner, [at for at, _ in story]) == Reference(described, story).rows()
