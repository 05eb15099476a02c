"""Windows by count and by a condition against slices of a plain list; how rows fall into epochs changes nothing."""

import pickle
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockgate.operators.aggregatefolds import Count, History, Sum
from lockgate.operators.contract import Clock, Key, Operator, StepFailed, Time, Values
from lockgate.operators.countwindows import CountWindows, UntilWindows
from lockgate.operators.encoding import PLAIN
from lockgate.operators.evaluation import Aggregate, Evaluation, Folds, Whole

KEY: Key = ("a",)
CLOCK = Clock(before=0, now=0, wall=0)
VALUES = Folds((Aggregate("v ARRAY<BIGINT>", History(list), "v"),))
WHOLE = Whole(lambda key, rows: [([v for (v,) in rows],)], ("v",), ("v ARRAY<BIGINT>",))


def drive(operator: Operator, rows: Sequence[Values], cuts: Sequence[int]) -> tuple[list[Values], Any]:
    """All results of rows that are cut into epochs, and the state at the end."""
    state: Any = None
    found: list[Values] = []
    edges = [0, *sorted(cut % (len(rows) + 1) for cut in cuts), len(rows)]
    for begin, end in pairwise(edges):
        if begin == end:
            continue
        kept = PLAIN.encode(state)
        outcome = operator.step(KEY, state, rows[begin:end], CLOCK)
        assert state == PLAIN.decode(kept), "a step must not change what it is given"
        assert outcome == operator.step(KEY, PLAIN.decode(kept), rows[begin:end], CLOCK)
        assert (outcome.wake, outcome.wake_wall) == (None, None)
        assert all(side == 0 for side, _ in outcome.rows)
        found += [values for _, values in outcome.rows]
        state = PLAIN.decode(PLAIN.encode(outcome.state))
    return found, state


def told(rows: Sequence[Values]) -> Values:
    """The result of a window: the span of its times, and its values as they came."""
    return min(row[1] for row in rows), max(row[1] for row in rows), [row[2] for row in rows]


TIMES = st.lists(st.integers(-50, 50), max_size=40)
CUTS = st.lists(st.integers(0, 100), max_size=6)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 12).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size))),
    TIMES,
    CUTS,
    st.sampled_from([VALUES, WHOLE]),
)
def test_every_so_many_events_the_last_ones_are_emitted(
    sizes: tuple[int, int], times: list[int], cuts: list[int], evaluation: Evaluation
) -> None:
    size, every = sizes
    rows = [(number, time, number) for number, time in enumerate(times)]
    found, state = drive(CountWindows("at", size, every, evaluation), rows, cuts)
    ends = range(every, len(rows) + 1, every)
    assert found == [told(rows[max(0, end - size) : end]) for end in ends]
    if size == every:
        assert (state is None) == (len(rows) % size == 0)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-50, 50), st.sampled_from([True, False, None])), max_size=40),
    CUTS,
    st.sampled_from([VALUES, WHOLE]),
)
def test_a_window_ends_with_the_event_for_which_the_condition_holds(
    events: list[tuple[int, bool | None]], cuts: list[int], evaluation: Evaluation
) -> None:
    rows = [(number, time, number, ends) for number, (time, ends) in enumerate(events)]
    found, state = drive(UntilWindows("at", "__until", evaluation), rows, cuts)
    expected, held = [], []
    for row in rows:
        held.append(row)
        if row[-1] is True:
            expected.append(told(held))
            held = []
    assert found == expected
    assert (state is None) == (not held)


def test_a_sliding_count_keeps_a_few_slots_and_not_the_events() -> None:
    evaluation = Folds((Aggregate("n BIGINT", Count(), None), Aggregate("s BIGINT", Sum(), "v")))
    rows = [(number, number, 1) for number in range(1000)]
    found, state = drive(CountWindows("at", 100, 20, evaluation), rows, [])
    assert found[-1] == (900, 999, 100, 100)
    assert state == [0, [[[20, 20], begin, begin + 19] for begin in (920, 940, 960, 980)]]


@pytest.mark.parametrize(
    ("operator", "reads"),
    [
        (CountWindows("at", 3, 3, VALUES), ("at", "v")),
        (UntilWindows("at", "__until", VALUES), ("at", "v", "__until")),
    ],
)
def test_an_operator_says_what_it_reads_and_gives(operator: Operator, reads: tuple[str, ...]) -> None:
    assert operator.reads == reads
    assert [side.columns for side in operator.sides] == [
        "window_start TIMESTAMP, window_end TIMESTAMP, v ARRAY<BIGINT>"
    ]
    assert operator.time is Time.NONE
    assert pickle.loads(pickle.dumps(operator)) == operator


@pytest.mark.parametrize(
    "make", [lambda: CountWindows("at", 3, 3, VALUES), lambda: UntilWindows("at", "__until", VALUES)]
)
def test_a_row_without_a_time_is_named(make: Callable[[], Operator]) -> None:
    with pytest.raises(StepFailed, match="its time is null") as failed:
        make().step(KEY, None, [(3, None, 1, False)], CLOCK)
    assert failed.value.number == 3


def test_what_a_function_of_the_whole_window_raises_comes_through() -> None:
    def refuse(key: Key, rows: list[Values]) -> list[Values]:
        raise StepFailed("ValueError: no")

    with pytest.raises(StepFailed, match="ValueError: no"):
        CountWindows("at", 1, 1, Whole(refuse, ("v",), ("v INT",))).step(KEY, None, [(0, 0, 1)], CLOCK)
