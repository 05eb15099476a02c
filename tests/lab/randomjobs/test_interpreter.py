"""The reference interpreter against small cases that were computed with pencil and paper from docs/."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.lab.randomjobs.interpreter import expected
from lockgate.lab.randomjobs.interpreter.compare import frozen
from lockgate.lab.randomjobs.interpreter.symbols import is_symbolic
from lockgate.lab.randomjobs.spec import (
    Call,
    Change,
    Column,
    Detect,
    Event,
    EventTime,
    FanOut,
    FlatMap,
    Join,
    Made,
    Map,
    Merge,
    Output,
    Part,
    Process,
    Rolling,
    Select,
    Sink,
    Source,
    Spec,
    Split,
    Step,
    TableJoin,
    Transform,
    Where,
    Window,
    WindowAggregate,
    WindowApply,
)
from support.specs import COLUMNS, COUNT, TIMED, event


def spec_of(*steps: Step, events: tuple[Event, ...], outputs: tuple[str, ...] = (), **others: Any) -> Spec:
    ends = outputs or (steps[-1].name,)
    return Spec(
        "job",
        sources=(Source("s", "kafka", COLUMNS, events), *others.pop("sources", ())),
        steps=steps,
        outputs=tuple(Output(f"o{number}", end, Sink("memory")) for number, end in enumerate(ends)),
        guarantee="END_TO_END_EXACTLY_ONCE",
        **others,
    )


def rows_of(spec: Spec, output: str = "o0") -> list[dict[str, Any]]:
    one = expected(spec).outputs[output]
    assert one.unknown is None, one.unknown
    assert one.flow is not None
    assert not any(row.guards for row in one.flow.rows)
    return [dict(row.values) for row in one.flow.rows]


def shown(spec: Spec, *names: str, output: str = "o0") -> list[tuple[Any, ...]]:
    """The rows of an output as tuples of these columns, sorted."""
    return sorted((tuple(row[name] for name in names) for row in rows_of(spec, output)), key=str)


FIVE = tuple(event(0, number, key, number, number) for number, key in enumerate("aabba"))

# Rows


def test_where_passes_what_holds_and_no_null() -> None:
    events = (event(0, 1, "a", 4, 0), event(0, 2, "a", 5, 0), event(0, 3, "a", None, 0))
    assert shown(spec_of(Where("w", "s", Call("small", ("v",))), events=events), "id") == [(1,)]


def test_select_map_and_transform_keep_columns_and_make_others() -> None:
    events = (event(0, 1, "a", 4, 0), event(0, 2, None, None, 0))
    made = (Made("twice", Call("twice", ("v",))), Made("name", Call("label", ("k", "v"))))
    python = (Made("twice", Call("py_twice", ("v",))), Made("name", Call("py_label", ("k", "v"))))
    right = [{"id": 1, "twice": 8, "name": "a-4"}, {"id": 2, "twice": None, "name": None}]
    assert rows_of(spec_of(Select("x", "s", ("id",), made), events=events)) == right
    assert rows_of(spec_of(Transform("x", "s", ("id",), made), events=events)) == right
    assert rows_of(spec_of(Map("x", "s", ("id",), python), events=events)) == right


def test_flat_map_gives_a_row_for_each_item() -> None:
    step = FlatMap("x", "s", ("id",), Made("item", Call("both", ("v",))))
    assert shown(spec_of(step, events=(event(0, 1, "a", 4, 0),)), "id", "item") == [(1, 104), (1, 4)]


def test_fan_out_adds_its_marks() -> None:
    step = FanOut("x", "s", (Made("score", Call("py_one")),))
    (row,) = rows_of(spec_of(step, events=(event(0, 1, "a", 4, 0),)))
    assert row == {
        "id": 1,
        "k": "a",
        "v": 4,
        "at": 0,
        "score": 1,
        "is_partial": False,
        "missing": [],
        "why_missing": [],
    }


def test_a_row_goes_to_every_part_that_holds_and_a_merge_has_all_of_them() -> None:
    split = Split("p", "s", (Part("even", Call("even", ("v",))), Part("small", Call("small", ("v",)))))
    spec = spec_of(split, Merge("m", ("p.even", "p.small")), events=(event(0, 1, "a", 4, 0), event(0, 2, "a", 7, 0)))
    assert shown(spec, "id") == [(1,), (1,)]


# Time


def counted(size: int, *events: Event, late: str = "DROP", allowed: int | None = None, **window: Any) -> Spec:
    shape = Window(**{"kind": "tumbling", "size_seconds": size, **window})
    steps = (EventTime("t", "s", "at", 0, late, allowed), WindowAggregate("w", "t", ("k",), shape, (COUNT,)))
    return spec_of(*steps, events=events, outputs=("w", "w.late"))


def test_tumbling_windows_begin_at_multiples_of_their_size() -> None:
    spec = counted(
        60, event(0, 1, "a", 0, -1), event(0, 2, "a", 0, 0), event(0, 3, "a", 0, 59), event(0, 4, None, 0, 59)
    )
    right = [("a", -60, 0, 1), ("a", 0, 60, 2), (None, 0, 60, 1)]
    assert shown(spec, "k", "window_start", "window_end", "n") == sorted(right, key=str)


def test_sliding_windows_hold_an_event_size_by_slide_times() -> None:
    spec = counted(30, event(0, 1, "a", 0, 25), kind="sliding", every_seconds=10)
    assert shown(spec, "window_start", "window_end") == [(0, 30), (10, 40), (20, 50)]


def test_an_event_is_late_when_its_window_ended_at_or_before_the_watermark() -> None:
    spec = counted(10, event(0, 1, "a", 0, 20), event(1, 2, "a", 0, 19), event(1, 3, "a", 0, 21), late="TO_SIDE_OUTPUT")
    assert shown(spec, "window_start", "n") == [(20, 2)]
    assert shown(spec, "id", "window_start", "window_end", output="o1") == [(2, 10, 20)]


def test_the_watermark_moves_at_the_end_of_an_epoch() -> None:
    spec = counted(10, event(0, 1, "a", 0, 100), event(0, 2, "a", 0, 1))
    assert shown(spec, "window_start", "n") == [(0, 1), (100, 1)]


def test_the_least_watermark_of_a_job_counts() -> None:
    other = Source("other", "kafka", COLUMNS, (event(0, 9, "z", 0, 5),))
    steps = (TIMED, EventTime("u", "other", "at", 0), Merge("m", ("t", "u")))
    window = WindowAggregate("w", "m", ("k",), Window("tumbling", 10), (COUNT,))
    spec = spec_of(*steps, window, events=(event(0, 1, "a", 0, 100), event(1, 2, "a", 0, 1)), sources=(other,))
    assert shown(spec, "k", "window_start", "n") == [("a", 0, 1), ("a", 100, 1), ("z", 0, 1)]


def test_a_file_that_changes_after_it_was_read_stops_the_job() -> None:
    events = (event(0, 1, "a", 7, 1), event(1, 2, "a", 8, 1))
    for system, epoch, stops in (("file", 1, True), ("file", 0, False), ("kafka", 1, False)):
        source = Source("f", system, COLUMNS, events, Change(epoch, "append"))
        spec = spec_of(Merge("m", ("s", "f")), events=events, sources=(source,))
        assert (expected(spec).stops is not None) is stops


def test_a_topic_that_is_another_one_after_it_was_read_stops_the_job() -> None:
    events = (event(0, 1, "a", 7, 1), event(1, 2, "a", 8, 1))
    for system, how, epoch, stops in (
        ("kafka", "recreate", 1, True),
        ("kafka", "move", 2, True),
        ("kafka", "move", 0, False),
        ("file", "recreate", 1, False),
    ):
        source = Source("f", system, COLUMNS, events, Change(epoch, how))
        spec = spec_of(Merge("m", ("s", "f")), events=events, sources=(source,))
        assert (expected(spec).stops == "the topic of f changed after it was read") is stops
        assert expected(replace(spec, guarantee="AT_MOST_ONCE")).stops is None


def test_the_epoch_that_emits_a_row_without_a_position_is_known() -> None:
    window = WindowAggregate("w", "t", ("k",), Window("tumbling", 10), (COUNT,))
    events = (event(0, 1, "a", 0, 1), event(1, 2, "a", 0, 21), event(2, 3, "a", 0, 22))
    flow = expected(spec_of(TIMED, window, events=events)).outputs["o0"].flow
    assert flow is not None
    assert [row.out for row in flow.rows] == [1.5, 2.5]  # the watermark of epoch 1 acts behind it; the end behind all
    by_count = WindowAggregate("w", "s", ("k",), Window("tumbling_count", count=2), (COUNT,))
    flow = expected(spec_of(by_count, events=events)).outputs["o0"].flow
    assert flow is not None
    assert [row.out for row in flow.rows] == [1]


# What else a job may read, and when


def test_an_event_meets_every_row_of_a_table_that_has_its_key() -> None:
    joined = TableJoin("j", "s", "title", "left")
    events = (event(0, 1, "a", 0, 1), event(0, 2, "c", 0, 2), event(0, 3, None, 0, 3))
    spec = spec_of(joined, events=events)
    assert shown(spec, "id", "title") == [(1, "Abe"), (1, "Ann"), (2, None), (3, None)]
    assert shown(replace(spec, steps=(TableJoin("j", "s", "title"),)), "id", "title") == [(1, "Abe"), (1, "Ann")]


def test_a_timer_of_each_key_rings_once_when_all_was_read() -> None:
    events = (event(0, 1, "a", 0, 1), event(1, 2, "a", 0, 2), event(1, 3, "b", 0, 3))
    spec = spec_of(Process("p", "s", ("k",), Call("rings", ("v",))), events=events)
    assert shown(spec, "k", "number") == [("a", 2), ("b", 1)]
    flow = expected(spec).outputs["o0"].flow
    assert flow is not None
    assert [row.out for row in flow.rows] == [2, 2]


def test_a_trigger_gives_no_answer_and_the_time_of_an_epoch_may_be_any() -> None:
    window = WindowAggregate("w", "t", ("k",), Window("tumbling", 10, trigger="every=2"), (COUNT,))
    events = (event(0, 1, "a", 0, 1),)
    assert expected(spec_of(TIMED, window, events=events)).outputs["o0"].unknown is not None
    now = Select("n", "s", ("id",), (Made("c", Call("epoch_time")),))
    flow = expected(spec_of(now, events=events)).outputs["o0"].flow
    assert flow is not None
    assert is_symbolic(flow.rows[0].values["c"])


def test_fractions_count_to_nine_digits() -> None:
    made = (Made("a", Call("avg", ("v",))), Made("s", Call("sum_of_thirds", ("v",))))
    window = WindowAggregate("w", "s", ("k",), Window("tumbling_count", count=3), made)
    events = tuple(event(0, number, "a", number, 1) for number in (1, 2, 4))
    assert shown(spec_of(window, events=events), "a", "s") == [(2.33333333, 2.33333333)]


# Windows


def test_a_session_joins_events_that_are_at_most_the_gap_apart() -> None:
    times = (0, 10, 21, 40)
    spec = counted(10, *(event(0, number, "a", 0, at) for number, at in enumerate(times)), kind="session")
    assert shown(spec, "window_start", "window_end", "n") == [(0, 20, 2), (21, 31, 1), (40, 50, 1)]


def test_the_window_that_an_event_missed_is_its_own_session() -> None:
    spec = counted(10, event(0, 1, "a", 0, 50), event(1, 2, "a", 0, 40), late="TO_SIDE_OUTPUT", kind="session")
    assert shown(spec, "id", "window_start", "window_end", output="o1") == [(2, 40, 50)]


def test_late_events_of_an_epoch_correct_a_window_once() -> None:
    events = (event(0, 1, "a", 0, 5), event(0, 2, "a", 0, 20), event(1, 3, "a", 0, 6), event(1, 4, "a", 0, 7))
    spec = counted(10, *events, event(2, 5, "a", 0, 40), event(3, 6, "a", 0, 8), late="CORRECT", allowed=20)
    right = [(0, 0, 1), (0, 1, 3), (20, 0, 1), (40, 0, 1)]
    assert shown(spec, "window_start", "revision", "n") == right
    assert shown(spec, "id", output="o1") == [(6,)]


def test_a_session_that_two_became_takes_the_later_one_back() -> None:
    """The example of WINDOWS.md, in minutes."""
    times = (0, 2, 5, 25)
    first = tuple(event(0, number, "a", 0, at) for number, at in enumerate(times))
    spec = counted(
        15, *first, event(1, 5, "b", 0, 45), event(2, 6, "a", 0, 12), late="CORRECT", allowed=60, kind="session"
    )
    right = [
        *[("a", 0, 20, 0, 3), ("a", 0, 40, 1, 5), ("a", 25, 25, 1, None), ("a", 25, 40, 0, 1)],
        ("b", 45, 60, 0, 1),
    ]
    assert shown(spec, "k", "window_start", "window_end", "revision", "n") == right


def windowed(window: Window, *numbers: int) -> Spec:
    step = WindowApply("w", "t", ("k",), window, Made("all", Call("listed", ("v",))))
    events = tuple(event(0, at, "a", number, at) for at, number in enumerate(numbers))
    return spec_of(TIMED, step, events=events)


@pytest.mark.parametrize(
    ("window", "right"),
    [
        (Window("tumbling_count", count=2), [("1 2", 0, 1), ("3 4", 2, 3)]),
        (Window("sliding_count", count=3, every_count=2), [("1 2", 0, 1), ("2 3 4", 1, 3)]),
        (Window("until", condition=Call("even", ("v",))), [("1 2", 0, 1), ("3 4", 2, 3)]),
    ],
)
def test_windows_by_count_and_condition_end_with_an_event(window: Window, right: list[tuple[Any, ...]]) -> None:
    assert shown(windowed(window, 1, 2, 3, 4, 5), "all", "window_start", "window_end") == right


def test_apply_takes_events_by_their_time() -> None:
    step = WindowApply("w", "t", ("k",), Window("tumbling", 60), Made("all", Call("listed", ("v",))))
    spec = spec_of(TIMED, step, events=(event(0, 1, "a", 1, 9), event(0, 2, "a", 2, 8), event(1, 3, "a", 3, 9)))
    assert shown(spec, "all") == [("2 1 3",)]


# Other steps with state


def test_rolling_gives_the_aggregates_as_of_each_event() -> None:
    step = Rolling("r", "s", ("k",), (COUNT, Made("total", Call("sum", ("v",)))))
    assert shown(spec_of(step, events=FIVE), "id", "n", "total") == [
        (0, 1, 0),
        (1, 2, 1),
        (2, 1, 2),
        (3, 2, 5),
        (4, 3, 5),
    ]


def test_arrival_goes_by_epoch_and_then_by_the_place_in_the_source() -> None:
    other = Source("a_source", "kafka", COLUMNS, (event(0, 1, "a", 0, 0), event(1, 2, "a", 0, 0)))
    spec = spec_of(
        Merge("m", ("s", "a_source")),
        Rolling("r", "m", ("k",), (COUNT,)),
        events=(event(0, 3, "a", 0, 0), event(1, 4, "a", 0, 0)),
        sources=(other,),
    )
    assert shown(spec, "id", "n") == [(1, 1), (2, 3), (3, 2), (4, 4)]


def test_the_copies_of_one_event_have_no_order() -> None:
    steps = (
        Select("x", "s", ("id", "k"), (Made("w", Call("twice", ("v",))),)),
        Select("y", "s", ("id", "k"), (Made("w", Call("plus_one", ("v",))),)),
    )
    spec = spec_of(*steps, Merge("m", ("x", "y")), Rolling("r", "m", ("k",), (COUNT,)), events=FIVE)
    assert expected(spec).outputs["o0"].unknown is not None


@pytest.mark.parametrize(
    ("function", "column", "right"),
    [
        ("numbered", "number", [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2)]),
        ("difference", "difference", [("a", 0), ("a", 1), ("a", 3), ("b", 1), ("b", 2)]),
        ("every_third", "total", [("a", 5)]),
    ],
)
def test_functions_with_state_keep_it_by_key(function: str, column: str, right: list[tuple[str, int]]) -> None:
    spec = spec_of(Process("p", "s", ("k",), Call(function, ("v",))), events=FIVE)
    assert shown(spec, "k", column) == right


def joined(how: str) -> Spec:
    columns = (Column("other", "BIGINT"), Column("k", "STRING"), Column("then", "TIMESTAMP"))
    events = (Event(0, 0, (1, "a", 10)), Event(0, 0, (2, "a", 11)), Event(0, 0, (3, None, 0)))
    steps = (TIMED, EventTime("u", "r", "then", 0), Join("j", "t", "u", ("k",), within_seconds=10, how=how))
    left = (event(0, 7, "a", 0, 0), event(0, 8, None, 0, 0), event(0, 9, "b", 0, 0))
    return spec_of(*steps, events=left, sources=(Source("r", "kafka", columns, events),))


@pytest.mark.parametrize(
    ("how", "right"),
    [
        ("inner", [(7, 1)]),
        ("left", [(7, 1), (8, None), (9, None)]),
        ("right", [(7, 1), (None, 2), (None, 3)]),
        ("full", [(7, 1), (8, None), (9, None), (None, 2), (None, 3)]),
    ],
)
def test_events_meet_within_a_time_and_a_null_meets_nothing(how: str, right: list[tuple[Any, ...]]) -> None:
    assert shown(joined(how), "id", "other") == right


def test_an_event_at_the_watermark_is_late_for_a_join() -> None:
    step = Join("j", "t", "t2", ("k",), 100)
    events = (event(0, 1, "a", 0, 50), event(1, 2, "a", 0, 50), event(1, 3, "a", 0, 51))
    other = Source("r", "kafka", (Column("k", "STRING"), Column("then", "TIMESTAMP")), (Event(0, 0, ("a", 50)),))
    spec = spec_of(TIMED, EventTime("t2", "r", "then", 0), step, events=events, sources=(other,))
    assert shown(spec, "id") == [(1,), (3,)]


# Patterns


def detected(pattern: str, *numbers_at: tuple[int | None, int]) -> Spec:
    events = tuple(event(0, number, "a", value, at) for number, (value, at) in enumerate(numbers_at))
    return spec_of(TIMED, Detect("d", "t", ("k",), Call(pattern, ("v",))), events=events, outputs=("d", "d.timed_out"))


def test_the_first_beginning_gives_the_match_and_takes_the_others_with_it() -> None:
    spec = detected("rise", (1, 0), (2, 1), (3, 2), (9, 3))
    assert shown(spec, "match_start", "match_end") == [(0, 3)]
    (row,) = rows_of(spec)
    assert (row["low"]["id"], row["high"]["id"]) == (0, 3)
    assert rows_of(spec, "o1") == []


def test_to_next_gives_a_match_for_every_beginning() -> None:
    assert shown(detected("rises", (1, 0), (2, 1), (3, 2), (9, 3)), "match_start") == [(0,), (1,), (2,)]


def test_next_is_the_very_next_event() -> None:
    assert shown(detected("jump", (1, 0), (None, 1), (9, 2), (2, 3), (9, 4)), "match_start") == [(3,)]


def test_a_match_because_nothing_came_ends_with_its_time() -> None:
    spec = detected("stays", (1, 0), (9, 10), (2, 20), (9, 31))
    assert shown(spec, "match_start", "match_end") == [(20, 30)]


def test_a_stage_takes_as_many_events_as_it_says() -> None:
    (row,) = rows_of(detected("thrice", (1, 0), (2, 1), (3, 2), (9, 3)))
    assert [one["id"] for one in row["low"]] == [0, 1]


def test_an_event_is_late_for_a_pattern_when_the_watermark_has_passed_it() -> None:
    events = (event(0, 0, "a", 1, 10), event(1, 1, "a", 9, 9), event(1, 2, "a", 9, 10))
    spec = spec_of(TIMED, Detect("d", "t", ("k",), Call("rise", ("v",))), events=events, outputs=("d", "d.late"))
    assert shown(spec, "match_end") == [(10,)]
    assert shown(spec, "id", output="o1") == [(1,)]


def test_what_is_not_complete_in_time_says_how_far_it_came() -> None:
    spec = detected("rise", (1, 0), (2, 5), (9, 21))
    assert shown(spec, "match_start") == [(5,)]
    assert shown(spec, "match_start", "match_end", "reached", output="o1") == [(0, 0, "low")]


# Laws

MANY = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from("ab"), st.integers(0, 9), st.integers(-30, 90)), max_size=25
).map(lambda rows: tuple(event(epoch, at, key, v, at) for epoch, key, v, at in sorted(rows, key=lambda row: row[0])))


@given(MANY, st.sampled_from(["tumbling", "session"]), st.integers(1, 40))
def test_an_event_is_counted_once_or_late_once(events: tuple[Event, ...], kind: str, size: int) -> None:
    spec = counted(size, *events, late="TO_SIDE_OUTPUT", kind=kind)
    assert sum(row["n"] for row in rows_of(spec)) + len(rows_of(spec, "o1")) == len(events)


@given(MANY, st.integers(1, 4), st.integers(1, 15))
def test_an_event_is_in_each_sliding_window_or_late_for_it(events: tuple[Event, ...], many: int, every: int) -> None:
    spec = counted(many * every, *events, late="TO_SIDE_OUTPUT", kind="sliding", every_seconds=every)
    assert sum(row["n"] for row in rows_of(spec)) + len(rows_of(spec, "o1")) == many * len(events)


@given(MANY, st.integers(1, 30))
def test_sessions_of_a_key_that_nothing_is_late_for_are_apart(events: tuple[Event, ...], gap: int) -> None:
    together = tuple(event(0, *one.values) for one in events)
    spans: dict[str, list[tuple[int, int]]] = {}
    for row in rows_of(counted(gap, *together, kind="session")):
        spans.setdefault(row["k"], []).append((row["window_start"], row["window_end"]))
    for of_key in spans.values():
        ordered = sorted(of_key)
        assert all(one[1] < other[0] for one, other in pairwise(ordered))


@given(MANY)
def test_the_last_rolling_count_of_a_key_is_the_number_of_its_events(events: tuple[Event, ...]) -> None:
    most: Counter[str] = Counter()
    for row in rows_of(spec_of(Rolling("r", "s", ("k",), (COUNT,)), events=events)):
        most[row["k"]] = max(most[row["k"]], row["n"])
    assert most == Counter(one.values[1] for one in events)


@given(MANY, st.integers(1, 5), st.integers(1, 5))
def test_sliding_counts_come_with_every_mth_event(events: tuple[Event, ...], size: int, every: int) -> None:
    window = Window("sliding_count", count=max(size, every), every_count=every)
    spec = spec_of(TIMED, WindowAggregate("w", "t", (), window, (COUNT,)), events=events)
    counts = [row["n"] for row in rows_of(spec)]
    assert counts == [min(every * number, window.count) for number in range(1, len(events) // every + 1)]


@given(MANY)
def test_no_event_is_in_two_matches(events: tuple[Event, ...]) -> None:
    numbered = tuple(event(one.epoch, number, *one.values[1:]) for number, one in enumerate(events))
    spec = spec_of(TIMED, Detect("d", "t", ("k",), Call("thrice", ("v",))), events=numbered)
    taken = [one["id"] for row in rows_of(spec) for one in (*row["low"], row["high"])]
    assert len(taken) == len({*taken})


@given(MANY)
def test_parts_that_exclude_each_other_share_the_events(events: tuple[Event, ...]) -> None:
    split = Split("p", "s", (Part("small", Call("small", ("v",))), Part("large", Call("large", ("v",)))))
    spec = spec_of(split, events=events, outputs=("p.small", "p.large"))
    rows = Counter(frozen(row) for name in ("o0", "o1") for row in rows_of(spec, name))
    assert rows == Counter(frozen(dict(zip(["id", "k", "v", "at"], one.values, strict=True))) for one in events)
