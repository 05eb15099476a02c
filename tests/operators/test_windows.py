"""Windows over time against the same thing computed at once, from scratch, over the rows that were not late.

Rows come in any order, cut into epochs anywhere, under the watermark that Spark would have: the greatest time of the
epochs before, less the lateness. State goes through its encoding between epochs, and every step is taken twice.
"""

import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockgate.operators.aggregatefolds import Count, History, Sum
from lockgate.operators.contract import Clock, Key, Outcome, Side, StepFailed, Time, Values
from lockgate.operators.encoding import PLAIN
from lockgate.operators.evaluation import Aggregate, Folds, Whole
from lockgate.operators.openwindows import LATE, RESULT, Triggers
from lockgate.operators.windows import Aligned, Sessions, TimeWindows

KEY: Key = ("a",)
FAR = 10**9
"""A watermark that closes everything."""

VALUES = Folds((Aggregate("v ARRAY<BIGINT>", History(sorted), "v"),))
"""The values of a window, sorted: equal only if the rows are the same ones."""

Epochs = list[list[Values]]
Span = tuple[int, int]


@dataclass
class Driver:
    """What keeps the state of a key and tells the time, one epoch after the other."""

    operator: TimeWindows
    lateness: int = 0
    state: Any = None
    wake: int | None = None
    wake_wall: int | None = None
    before: int = 0
    greatest: int | None = None
    told: list[tuple[int, int, Values]] = field(default_factory=list)  # epoch, side, values
    befores: list[int] = field(default_factory=list)

    def epoch(self, rows: Sequence[Values] = (), *, now: int | None = None, wall: int = 0) -> list[tuple[int, Values]]:
        """One epoch; what it gave."""
        if now is None:
            now = self.before if self.greatest is None else max(self.before, self.greatest - self.lateness)
        clock = Clock(before=self.before, now=now, wall=wall)
        is_due = (self.wake is not None and self.wake <= now) or (self.wake_wall is not None and self.wake_wall <= wall)
        found: list[tuple[int, Values]] = []
        if rows or is_due:
            kept = PLAIN.encode(self.state)
            outcome = self.operator.step(KEY, self.state, rows, clock)
            assert self.state == PLAIN.decode(kept), "a step must not change what it is given"
            assert outcome == self.operator.step(KEY, PLAIN.decode(kept), rows, clock)
            self._check(outcome, clock)
            self.state = PLAIN.decode(PLAIN.encode(outcome.state))
            self.wake, self.wake_wall = outcome.wake, outcome.wake_wall
            found = list(outcome.rows)
        self.told += [(len(self.befores), side, values) for side, values in found]
        self.befores.append(self.before)
        self.before = now
        for _, time, *_ in rows:
            self.greatest = time if self.greatest is None else max(self.greatest, time)
        return found

    def finish(self) -> None:
        """Close everything; nothing may be left."""
        self.epoch()
        self.epoch(now=FAR)
        assert self.state is None
        assert (self.wake, self.wake_wall) == (None, None)

    def side(self, wanted: int) -> list[Values]:
        """All rows of a side."""
        return [values for _, side, values in self.told if side == wanted]

    def _check(self, outcome: Outcome, clock: Clock) -> None:
        for side, values in outcome.rows:
            columns = self.operator.sides[side].columns.count(", ") + 1
            assert len(values) == columns + self.operator.sides[side].keeps_row
        assert (outcome.state is None) <= (outcome.wake is None and outcome.wake_wall is None)
        if outcome.state is not None:
            slices, windows = map(dict, outcome.state)
            spans = [(start, record[0]) for start, record in windows.items()]
            assert all(any(start <= at < end for start, end in spans) for at in slices), "no slice outlives its windows"
        assert outcome.wake is None or outcome.wake > clock.now
        assert outcome.wake_wall is None or outcome.wake_wall > clock.wall


def drive(operator: TimeWindows, epochs: Epochs, lateness: int) -> Driver:
    driver = Driver(operator, lateness)
    for rows in epochs:
        driver.epoch(rows)
    driver.finish()
    return driver


def rows_at(*times: int, first: int = 0) -> list[Values]:
    """Rows with these times; the value of each is its number."""
    return [(number, time, number) for number, time in enumerate(times, start=first)]


def last_words(results: list[Values]) -> dict[Span, list[Any]]:
    """What holds in the end: the highest revision of every window that was not taken back."""
    last: dict[int, Values] = {}
    for start, end, revision, is_final, *values in results:
        assert start not in last or last[start][1] < revision, "revisions only grow"
        last[start] = (end, revision, is_final, *values)
    held = {start: row for start, row in last.items() if row[0] != start}
    assert all(is_final for _, _, is_final, *_ in held.values())
    return {(start, row[0]): row[3] for start, row in held.items()}


# ---- the same thing, at once and from scratch


def windows_of(time: int, size: int, every: int) -> list[Span]:
    """Every window that holds a time, by trying them all."""
    near = range(time // every - size // every - 1, time // every + 2)
    return [(n * every, n * every + size) for n in near if n * every <= time < n * every + size]


def bursts_of(rows: Sequence[Values], gap: int) -> list[tuple[Span, list[Values]]]:
    """The sessions of rows: a new one where the time since the row before is more than the gap."""
    bursts: list[list[Values]] = []
    for row in sorted(rows, key=lambda row: row[1]):
        if not bursts or row[1] > bursts[-1][-1][1] + gap:
            bursts.append([])
        bursts[-1].append(row)
    return [((burst[0][1], burst[-1][1] + gap), burst) for burst in bursts]


def aligned_at_once(
    epochs: Epochs, befores: Sequence[int], shape: Aligned, allowed: int
) -> tuple[dict[Span, list[Any]], Counter[Values]]:
    groups: dict[Span, list[Any]] = {}
    late: Counter[Values] = Counter()
    for rows, before in zip(epochs, befores, strict=False):
        for number, time, value in rows:
            for span in windows_of(time, shape.size, shape.every):
                if span[1] + allowed <= before:
                    late.update([(number, *span)])
                else:
                    groups.setdefault(span, []).append(value)
    return {span: sorted(values) for span, values in groups.items()}, late


def sessions_at_once(
    epochs: Epochs, befores: Sequence[int], gap: int, allowed: int
) -> tuple[dict[Span, list[Any]], Counter[Values]]:
    """Each epoch from its rows alone: sessions are found anew, and those that are done leave with their rows."""
    held: list[Values] = []
    groups: dict[Span, list[Any]] = {}
    late: Counter[Values] = Counter()
    for rows, before, now in zip([*epochs, [], []], befores, [*befores[1:], FAR], strict=True):
        for number, time, value in rows:
            if time + gap + allowed <= before:
                late[number, time, time + gap] += 1
            else:
                held.append((number, time, value))
        for span, burst in bursts_of(held, gap):
            if span[1] + allowed <= now:
                assert span not in groups
                groups[span] = sorted(value for _, _, value in burst)
                held = [row for row in held if row not in burst]
    return groups, late


def at_once(driver: Driver, epochs: Epochs) -> tuple[dict[Span, list[Any]], Counter[Values]]:
    shape, allowed = driver.operator.shape, driver.operator.triggers.allowed or 0
    if isinstance(shape, Sessions):
        return sessions_at_once(epochs, driver.befores, shape.gap, allowed)
    return aligned_at_once(epochs, driver.befores, shape, allowed)


# ---- laws

SHAPES = st.one_of(
    st.integers(1, 15).map(lambda size: Aligned(size, size)),
    st.integers(1, 15).flatmap(lambda size: st.builds(Aligned, st.just(size), st.integers(1, size))),
    st.builds(Sessions, st.integers(1, 10)),
)


@st.composite
def cut_rows(draw: st.DrawFn) -> Epochs:
    """Rows in any order, cut into epochs anywhere; some epochs are empty."""
    epochs = draw(st.lists(st.lists(st.integers(0, 80), max_size=8), max_size=8))
    numbers = iter(range(100))
    return [[(number := next(numbers), time, number) for time in times] for times in epochs]


@settings(max_examples=200, deadline=None)
@given(SHAPES, cut_rows(), st.integers(0, 40))
def test_results_and_late_rows_are_those_of_a_batch_over_what_was_not_late(
    shape: Aligned | Sessions, epochs: Epochs, lateness: int
) -> None:
    driver = drive(TimeWindows("at", shape, VALUES), epochs, lateness)
    groups, late = at_once(driver, epochs)
    assert Counter((start, end, tuple(v)) for start, end, v in driver.side(RESULT)) == Counter(
        (*span, tuple(v)) for span, v in groups.items()
    )
    assert Counter(driver.side(LATE)) == late


@settings(max_examples=200, deadline=None)
@given(
    SHAPES,
    cut_rows(),
    st.integers(0, 20),
    st.builds(
        Triggers,
        allowed=st.none() | st.integers(0, 40),
        is_on_late=st.booleans(),
        early_events=st.none() | st.integers(1, 3),
        early_every=st.none() | st.integers(1, 3),
    ).filter(lambda triggers: triggers.has_revisions),
)
def test_the_last_revisions_are_those_of_a_batch_over_what_was_not_too_late(
    shape: Aligned | Sessions, epochs: Epochs, lateness: int, triggers: Triggers
) -> None:
    driver = Driver(TimeWindows("at", shape, VALUES, triggers), lateness)
    for wall, rows in enumerate(epochs):
        driver.epoch(rows, wall=wall)
    driver.finish()
    groups, late = at_once(driver, epochs)
    assert last_words(driver.side(RESULT)) == groups
    assert last_words([row for row in driver.side(RESULT) if row[3]]) == groups, "also for who looks at final rows only"
    assert Counter(driver.side(LATE)) == late
    if isinstance(shape, Aligned):
        for _, told in groupby(sorted(driver.side(RESULT), key=lambda row: row[0]), key=lambda row: row[0]):
            revisions = list(told)
            assert [row[2] for row in revisions] == list(range(len(revisions)))
            finals = [row[3] for row in revisions]
            assert finals == sorted(finals), "once final, always final"
    if not triggers.is_per_row:
        told_once = Counter((epoch, values[0]) for epoch, side, values in driver.told if side == RESULT)
        assert max(told_once.values(), default=1) == 1, "one result for a window and epoch"


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 10),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 9)), max_size=30),
    st.integers(1, 5),
    st.none() | st.integers(0, 5),
)
def test_sessions_are_those_of_a_batch_over_all_rows_where_disorder_stays_within_lateness(
    gap: int, events: list[tuple[int, int]], per_epoch: int, allowed: int | None
) -> None:
    """Each event comes at most 9 after its time, and 10 are awaited."""
    times = [time for time, delay in sorted(events, key=lambda event: event[0] + event[1])]
    rows = rows_at(*times)
    epochs = [rows[at : at + per_epoch] for at in range(0, len(rows), per_epoch)]
    driver = drive(TimeWindows("at", Sessions(gap), VALUES, Triggers(allowed=allowed)), epochs, lateness=10)
    told = driver.side(RESULT)
    found = {(start, end): v for start, end, v in told} if allowed is None else last_words(told)
    assert found == {span: sorted(row[2] for row in burst) for span, burst in bursts_of(rows, gap)}
    assert driver.side(LATE) == []


@settings(max_examples=100, deadline=None)
@given(SHAPES, cut_rows(), st.integers(1, 3))
def test_early_results_by_count_do_not_hang_on_the_epochs(
    shape: Aligned | Sessions, epochs: Epochs, every: int
) -> None:
    operator = TimeWindows("at", shape, VALUES, Triggers(early_events=every))
    whole = [row for rows in epochs for row in rows]
    assert drive(operator, epochs, lateness=100).side(RESULT) == drive(operator, [whole], lateness=100).side(RESULT)


# ---- assignment


@pytest.mark.parametrize(
    ("shape", "time", "spans"),
    [
        (Aligned(10, 10), 0, [(0, 10)]),
        (Aligned(10, 10), 19, [(10, 20)]),
        (Aligned(10, 10), -1, [(-10, 0)]),
        (Aligned(10, 10), -10, [(-10, 0)]),
        (Aligned(10, 5), 12, [(5, 15), (10, 20)]),
        (Aligned(10, 5), -12, [(-20, -10), (-15, -5)]),
        (Aligned(10, 4), 8, [(0, 10), (4, 14), (8, 18)]),
        (Aligned(10, 4), 11, [(4, 14), (8, 18)]),
    ],
)
def test_windows_begin_at_multiples_of_the_slide_also_before_1970(shape: Aligned, time: int, spans: list[Span]) -> None:
    assert shape.windows(time) == spans == windows_of(time, shape.size, shape.every)


def test_a_row_of_sliding_windows_is_kept_once() -> None:
    driver = Driver(TimeWindows("at", Aligned(100, 10), VALUES))
    driver.epoch(rows_at(95))
    slices, windows = map(dict, driver.state)
    assert slices == {90: [[[0]]]}
    assert len(windows) == 10


def test_a_row_may_be_late_for_one_window_and_in_time_for_the_next() -> None:
    driver = Driver(TimeWindows("at", Aligned(10, 5), VALUES))
    driver.epoch(rows_at(12))
    assert driver.epoch(now=15) == [(RESULT, (5, 15, [0]))]
    assert driver.epoch(rows_at(12, first=1), now=15) == [(LATE, (1, 5, 15))]
    assert driver.epoch(now=20) == [(RESULT, (10, 20, [0, 1]))]


def test_sessions_that_touch_are_one() -> None:
    driver = Driver(TimeWindows("at", Sessions(5), VALUES))
    driver.epoch(rows_at(0, 11))
    driver.epoch(rows_at(5, first=2), now=0)
    assert driver.epoch(now=16) == [(RESULT, (0, 10, [0, 2])), (RESULT, (11, 16, [1]))]


# ---- late rows


def test_a_late_row_says_which_windows_it_missed() -> None:
    operator = TimeWindows("at", Aligned(10, 5), VALUES)
    assert operator.sides[LATE] == Side("late", "window_start TIMESTAMP, window_end TIMESTAMP", keeps_row=True)
    driver = Driver(operator)
    driver.epoch(now=50)
    assert driver.epoch(rows_at(12, first=7), now=50) == [(LATE, (7, 5, 15)), (LATE, (7, 10, 20))]


def test_late_rows_correct_a_result_until_the_allowed_time_has_passed() -> None:
    driver = Driver(TimeWindows("at", Aligned(10, 10), VALUES, Triggers(allowed=5)))
    driver.epoch(rows_at(3))
    assert driver.epoch(now=12) == [(RESULT, (0, 10, 0, True, [0]))]
    assert driver.wake == 15
    assert driver.epoch(rows_at(4, 5, first=1), now=12) == [(RESULT, (0, 10, 1, True, [0, 1, 2]))]
    assert driver.epoch(now=14) == []
    assert driver.epoch(now=15) == []
    assert driver.state is None
    assert driver.epoch(rows_at(6, first=3), now=15) == [(LATE, (3, 0, 10))]


def test_each_late_row_gives_a_result_of_its_own_where_it_is_asked_to() -> None:
    driver = Driver(TimeWindows("at", Aligned(10, 10), VALUES, Triggers(allowed=5, is_on_late=True)))
    driver.epoch(rows_at(3))
    driver.epoch(now=12)
    assert driver.epoch(rows_at(4, 5, first=1), now=12) == [
        (RESULT, (0, 10, 1, True, [0, 1])),
        (RESULT, (0, 10, 2, True, [0, 1, 2])),
    ]


def test_a_window_whose_only_rows_are_late_has_its_first_result_at_once() -> None:
    driver = Driver(TimeWindows("at", Aligned(10, 10), VALUES, Triggers(allowed=5)))
    driver.epoch(now=12)
    assert driver.epoch(rows_at(3), now=12) == [(RESULT, (0, 10, 0, True, [0]))]


def test_a_late_row_that_joins_two_sessions_takes_the_second_back() -> None:
    driver = Driver(TimeWindows("at", Sessions(5), VALUES, Triggers(allowed=50)))
    driver.epoch(rows_at(0, 8))
    assert driver.epoch(now=20) == [(RESULT, (0, 5, 0, True, [0])), (RESULT, (8, 13, 0, True, [1]))]
    assert driver.epoch(rows_at(4, first=2), now=20) == [
        (RESULT, (8, 8, 1, True, None)),
        (RESULT, (0, 13, 1, True, [0, 1, 2])),
    ]


def test_a_late_row_before_a_session_moves_its_start() -> None:
    driver = Driver(TimeWindows("at", Sessions(5), VALUES, Triggers(allowed=50)))
    driver.epoch(rows_at(8))
    driver.epoch(now=20)
    assert driver.epoch(rows_at(4, first=1), now=20) == [
        (RESULT, (8, 8, 1, True, None)),
        (RESULT, (4, 13, 0, True, [0, 1])),
    ]


def test_a_closed_session_that_joins_an_open_one_is_emitted_again_when_that_closes() -> None:
    driver = Driver(TimeWindows("at", Sessions(5), VALUES, Triggers(allowed=50)))
    driver.epoch(rows_at(0, 8))
    assert driver.epoch(now=6) == [(RESULT, (0, 5, 0, True, [0]))]
    assert driver.epoch(rows_at(4, first=2), now=6) == []
    assert driver.epoch(now=13) == [(RESULT, (0, 13, 1, True, [0, 1, 2]))]


def test_what_is_taken_back_stays_final_although_the_session_had_opened_again() -> None:
    driver = Driver(TimeWindows("at", Sessions(5), VALUES, Triggers(allowed=50)))
    driver.epoch(rows_at(10, 18))
    assert driver.epoch(now=16) == [(RESULT, (10, 15, 0, True, [0]))]
    assert driver.epoch(rows_at(14, first=2), now=16) == []
    assert driver.epoch(rows_at(6, first=3), now=16) == [(RESULT, (10, 10, 1, True, None))]
    assert driver.epoch(now=23) == [(RESULT, (6, 23, 0, True, [0, 1, 2, 3]))]


def test_a_session_that_was_not_emitted_since_its_start_moved_is_not_retracted() -> None:
    driver = Driver(TimeWindows("at", Sessions(5), VALUES, Triggers(early_events=2)), lateness=100)
    assert driver.epoch(rows_at(20, 21)) == [(RESULT, (20, 26, 0, False, [0, 1]))]
    assert driver.epoch(rows_at(16, first=2)) == [(RESULT, (20, 20, 1, False, None))]
    assert driver.epoch(rows_at(12, first=3)) == [(RESULT, (12, 26, 0, False, [0, 1, 2, 3]))]


# ---- triggers


def test_early_results_come_by_processing_time_only_if_something_changed() -> None:
    driver = Driver(TimeWindows("at", Aligned(10, 10), VALUES, Triggers(early_every=100)))
    assert driver.epoch(rows_at(1), wall=1000) == []
    assert driver.wake_wall == 1100
    assert driver.epoch(wall=1099) == []
    assert driver.epoch(wall=1100) == [(RESULT, (0, 10, 0, False, [0]))]
    assert driver.wake_wall is None
    assert driver.epoch(wall=1300) == []
    assert driver.epoch(rows_at(2, first=1), wall=1301) == [(RESULT, (0, 10, 1, False, [0, 1]))]
    assert driver.epoch(rows_at(3, first=2), wall=1350) == []
    assert driver.wake_wall == 1401
    assert driver.epoch(now=10, wall=1401) == [(RESULT, (0, 10, 2, True, [0, 1, 2]))]
    assert driver.state is None


def test_a_window_is_emitted_as_final_although_its_last_early_result_had_all_rows() -> None:
    driver = Driver(TimeWindows("at", Aligned(10, 10), VALUES, Triggers(early_events=2)))
    assert driver.epoch(rows_at(1, 2, 3, 4)) == [
        (RESULT, (0, 10, 0, False, [0, 1])),
        (RESULT, (0, 10, 1, False, [0, 1, 2, 3])),
    ]
    assert driver.epoch(now=10) == [(RESULT, (0, 10, 2, True, [0, 1, 2, 3]))]


def test_an_early_session_that_joins_another_is_taken_back_as_not_final() -> None:
    driver = Driver(TimeWindows("at", Sessions(5), VALUES, Triggers(early_events=1)))
    driver.epoch(rows_at(0, 8))
    assert driver.epoch(rows_at(4, first=2)) == [
        (RESULT, (8, 8, 1, False, None)),
        (RESULT, (0, 13, 1, False, [0, 1, 2])),
    ]


def test_sessions_that_join_count_their_rows_together() -> None:
    driver = Driver(TimeWindows("at", Sessions(5), VALUES, Triggers(early_events=3)))
    assert driver.epoch(rows_at(0, 8)) == []
    assert driver.epoch(rows_at(4, first=2)) == [(RESULT, (0, 13, 0, False, [0, 1, 2]))]


def test_a_session_that_opened_again_is_emitted_as_final_again_after_an_early_result() -> None:
    driver = Driver(TimeWindows("at", Sessions(5), VALUES, Triggers(allowed=50, early_events=2)))
    driver.epoch(rows_at(0, 8))
    assert driver.epoch(now=6) == [(RESULT, (0, 5, 0, True, [0]))]
    assert driver.epoch(rows_at(4, first=2), now=6) == [(RESULT, (0, 13, 1, False, [0, 1, 2]))]
    assert driver.epoch(now=13) == [(RESULT, (0, 13, 2, True, [0, 1, 2]))]


def test_revisions_are_there_only_if_a_window_may_be_emitted_again() -> None:
    plain = TimeWindows("at", Aligned(10, 10), VALUES)
    early = TimeWindows("at", Aligned(10, 10), VALUES, Triggers(early_events=3))
    assert plain.sides[RESULT].columns == "window_start TIMESTAMP, window_end TIMESTAMP, v ARRAY<BIGINT>"
    assert early.sides[RESULT].columns == (
        "window_start TIMESTAMP, window_end TIMESTAMP, revision INT, is_final BOOLEAN, v ARRAY<BIGINT>"
    )


def test_the_clock_moves_windows_only_if_it_asks_for_early_results() -> None:
    assert TimeWindows("at", Aligned(10, 10), VALUES, Triggers(early_events=3, allowed=5)).time is Time.EVENT
    assert TimeWindows("at", Aligned(10, 10), VALUES, Triggers(early_every=4)).time is Time.BOTH


def test_a_trigger_may_be_removed_while_its_early_results_are_open() -> None:
    quiet = whole(lambda key, rows: [(len(rows),)] if len(rows) < 3 else [])
    told = TimeWindows("at", Aligned(10, 10), quiet, Triggers(early_events=1))
    driver = Driver(told)
    assert driver.epoch(rows_at(1)) == [(RESULT, (0, 10, 0, False, 1))]
    driver.operator = TimeWindows("at", Aligned(10, 10), quiet)
    driver.epoch(rows_at(2, 3, first=1))
    assert driver.epoch(now=10) == [(RESULT, (0, 0, None))]


# ---- evaluation


def whole(function: Callable[[Key, list[Values]], list[Values]]) -> Whole:
    return Whole(function, ("v",), ("v ARRAY<BIGINT>",))


AS_SEEN = Whole(lambda key, rows: [([*key, *(v for (v,) in rows)],)], ("v",), ("v ARRAY<BIGINT>",), place="place")


def test_a_whole_window_function_sees_all_rows_in_the_order_of_their_time() -> None:
    assert TimeWindows("at", Sessions(5), AS_SEEN).reads == ("at", "v", "place")
    driver = Driver(TimeWindows("at", Sessions(5), AS_SEEN))
    driver.epoch([(0, 12, 0, "a"), (1, 3, 1, "b"), (2, 3, 2, "c"), (3, 0, 3, "d")])
    driver.epoch([(4, 7, 4, "e")])
    assert driver.epoch(now=100) == [(RESULT, (0, 17, ["a", 3, 1, 2, 4, 0]))]


@settings(max_examples=100, deadline=None)
@given(SHAPES, st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), max_size=12), st.data())
def test_a_whole_window_function_sees_rows_of_one_time_by_their_place_whatever_epochs_they_came_in(
    shape: Aligned | Sessions, events: list[tuple[int, int]], data: st.DataObject
) -> None:
    rows = [(number, time, number, f"{part}\0{number:03}") for number, (time, part) in enumerate(events)]
    arrived = data.draw(st.permutations(rows))
    cut = data.draw(st.integers(0, len(rows)))
    operator = TimeWindows("at", shape, AS_SEEN)
    live = drive(operator, [arrived[:cut], arrived[cut:]], lateness=100)
    replayed = drive(operator, [rows], lateness=100)
    assert live.side(RESULT) == replayed.side(RESULT)


@pytest.mark.parametrize("shape", [Aligned(10_000, 10_000), Sessions(10_000)])
def test_rows_are_copied_only_if_a_result_is_emitted(shape: Aligned | Sessions) -> None:
    copied = 0

    class Copies(Whole):
        def take(self, kept: Any, rows: Sequence[Values]) -> Any:
            nonlocal copied
            copied += len(kept or ())
            return super().take(kept, rows)

    function = Copies(lambda key, rows: [(len(rows),)], ("v",), ("v INT",), place="place")
    operator = TimeWindows("at", shape, function, Triggers(early_events=1000))
    rows = [(number, number, number, f"{number:09}") for number in range(5000)]
    outcome = operator.step(KEY, None, rows, Clock(before=0, now=0, wall=0))
    assert [values[-1] for _, values in outcome.rows] == [1000, 2000, 3000, 4000, 5000]
    assert copied == 1000 + 2000 + 3000 + 4000


def test_a_function_that_has_nothing_more_to_say_takes_its_result_back() -> None:
    evaluation = whole(lambda key, rows: [] if len(rows) % 2 else [(len(rows),), (-len(rows),)])
    driver = Driver(TimeWindows("at", Aligned(10, 10), evaluation, Triggers(early_events=1)))
    assert driver.epoch(rows_at(1, 2, 3)) == [
        (RESULT, (0, 10, 0, False, 2)),
        (RESULT, (0, 10, 0, False, -2)),
        (RESULT, (0, 0, 1, False, None)),
    ]
    assert driver.epoch(now=10) == [(RESULT, (0, 0, 2, True, None))]


def test_several_aggregates_share_what_they_read() -> None:
    evaluation = Folds((Aggregate("n BIGINT", Count(), None), Aggregate("s BIGINT", Sum(), "v")))
    operator = TimeWindows("at", Aligned(10, 10), evaluation)
    assert operator.reads == ("at", "v")
    outcome = operator.step(KEY, None, [(0, 1, None), (1, 2, 7)], Clock(before=0, now=10, wall=0))
    assert outcome == Outcome(None, [(RESULT, (0, 10, 2, 7))])


def test_a_failure_names_its_row() -> None:
    operator = TimeWindows("at", Aligned(10, 10), Folds((Aggregate("s BIGINT", Sum(), "v"),)))
    clock = Clock(before=0, now=0, wall=0)
    with pytest.raises(StepFailed, match="too large") as failed:
        operator.step(KEY, None, [(4, 1, 2**63 - 1), (5, 1, 1)], clock)
    assert failed.value.number == 5
    with pytest.raises(StepFailed, match="its time is null") as failed:
        operator.step(KEY, None, [(6, None, 1)], clock)
    assert failed.value.number == 6


def test_an_operator_travels_by_pickle() -> None:
    operator = TimeWindows("at", Sessions(5), Folds((Aggregate("n BIGINT", Count(), None),)), Triggers(allowed=5))
    assert pickle.loads(pickle.dumps(operator)) == operator
