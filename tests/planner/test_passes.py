"""A step that is not deterministic is computed once in an epoch, or the job is refused, whatever it declares.

If its outputs are not one pass, the query ends at it, and its rows are kept for the branches.
"""

from collections.abc import Callable
from typing import Any

import pytest

from lockgate import Guarantee, Job, KafkaSink, KafkaSource, Late, Mode, Stream, plan, stream, windows
from lockgate.errors import BadJob
from lockgate.planner.explain import explain_plan
from lockgate.planner.passes import Cuts, way_of
from lockgate.planner.plan import Plan

ONE_PASS: dict[str, Callable[[Stream], list[Stream]]] = {
    "one output": lambda wild: [wild],
    "two outputs": lambda wild: [wild, wild],
    "conditions": lambda wild: [wild.where("r < 0.5"), wild.where("r >= 0.5")],
    "conditions and selects": lambda wild: [wild.where("r < 0.5").select("id"), wild.select("id", twice="r * 2")],
    "split": lambda wild: list(wild.split(low="r < 0.5", high="r >= 0.5").values()),
    "one way with more": lambda wild: [wild.map(same, "id BIGINT, r DOUBLE").where("r < 0.5")],
    "a step with state": lambda wild: [wild.key_by("id").rolling(n="count(*)")],
    "sides of a step with state": lambda wild: both(wild.key_by("id").rolling(n="count(*)")),
}
KEPT: dict[str, Callable[[Stream], list[Stream]]] = {
    "merged branches": lambda wild: [wild.where("r < 0.5").merge(wild.where("r >= 0.5"))],
    "merged with itself": lambda wild: [wild.merge(wild)],
    "a function on one branch": lambda wild: [wild, wild.map(same, "id BIGINT, r DOUBLE")],
    "a condition in Python": lambda wild: [wild.where("r < 0.5"), wild.where(lambda row: row.r >= 0.5)],
    "an exchange on one branch": lambda wild: [wild, wild.parallel(2)],
    "a select that uses its own columns": lambda wild: [wild, wild.select(s="r * 2", t="s * 2")],
    "parts that go on": lambda wild: [part.parallel(2) for part in wild.split(low="r < 1", high="r >= 1").values()],
    "another step of that kind below": lambda wild: [wild, wild.where("r < 0.5").select("id", "at", r="rand()")],
    "parts of chance": lambda wild: list(wild.split(low="rand() < 0.5", high="r >= 1").values()),
}
STATE: dict[str, Callable[[Stream], list[Stream]]] = {
    "state on one branch": lambda wild: [wild, wild.key_by("id").rolling(n="count(*)")],
    "state behind a merge": lambda wild: [wild.where("r < 1").merge(wild).key_by("id").rolling(n="count(*)")],
    "two windows": lambda wild: [minutes(wild, Late.DROP), minutes(wild, Late.DROP)],
    "late events of a native window": lambda wild: both_with_late(minutes(wild, Late.TO_SIDE_OUTPUT)),
    "a transform": lambda wild: [wild, wild.transform(lambda frame: frame)],
}
SEVERAL = KEPT | STATE
ROW = "id BIGINT, r DOUBLE, at TIMESTAMP"
LEAST = Guarantee.AT_LEAST_ONCE


def same(row: Any) -> dict[str, Any]:
    return {"id": row.id, "r": row.r}


def both(rows: Stream) -> list[Stream]:
    return [rows, rows.where("n > 1")]


def both_with_late(rows: Any) -> list[Stream]:
    return [rows, rows.late]


def minutes(rows: Stream, late: Late) -> Any:
    timed = rows.event_time("at", lateness="1 minute", late=late)
    return timed.key_by("id").window(windows.tumbling("1 minute")).aggregate(n="count(*)")


def events() -> Stream:
    return stream("in", KafkaSource(topic="in", servers="h:1", value=ROW))


WILD: dict[str, Callable[[], Stream]] = {
    "select": lambda: events().select("id", "at", r="rand()"),
    "where": lambda: events().where("rand() < 0.5"),
    "function": lambda: events().map(same, ROW, deterministic=False),
    "condition": lambda: events().where(lambda row: True, deterministic=False),
    "rows of a function": lambda: events().flat_map(lambda row: [same(row)], ROW, deterministic=False),
}


def other_events() -> Stream:
    return stream("other", KafkaSource(topic="other", servers="h:1", value=ROW))


def plan_of(rows: list[Stream], guarantee: Guarantee, dead_letters: KafkaSink | None = None) -> Plan:
    outputs = [one.to(f"out-{n}", KafkaSink(topic=f"out-{n}", servers="h:1")) for n, one in enumerate(rows)]
    return plan(Job("job", *outputs, guarantee=guarantee, dead_letters=dead_letters))


@pytest.mark.parametrize("wild", WILD)
@pytest.mark.parametrize("ways", ONE_PASS)
def test_outputs_of_one_pass_are_planned(ways: str, wild: str) -> None:
    assert plan_of(ONE_PASS[ways](WILD[wild]()), LEAST).refusal() is None


@pytest.mark.parametrize("guarantee", Guarantee)
@pytest.mark.parametrize("wild", WILD)
@pytest.mark.parametrize("ways", STATE)
def test_a_step_that_would_be_computed_several_times_is_refused_whatever_is_declared(
    ways: str, wild: str, guarantee: Guarantee
) -> None:
    with pytest.raises(BadJob, match=r"because its rows go several ways.*must be a part of the query") as refused:
        plan_of(STATE[ways](WILD[wild]()), guarantee)
    assert "test_passes.py:" in refused.value.where
    assert "make it deterministic" in refused.value.fix
    assert "a job of its own" in refused.value.fix


@pytest.mark.parametrize("ways", SEVERAL)
def test_a_step_that_gives_the_same_each_time_may_go_several_ways(ways: str) -> None:
    if ways not in ("another step of that kind below", "parts of chance"):
        planned = plan_of(SEVERAL[ways](events()), LEAST)
        assert planned.refusal() is None
        assert planned.cuts == Cuts()


@pytest.mark.parametrize("wild", WILD)
@pytest.mark.parametrize("ways", KEPT)
def test_the_query_ends_at_a_step_with_several_branches_and_its_rows_are_kept(ways: str, wild: str) -> None:
    planned = plan_of(KEPT[ways](WILD[wild]()), Guarantee.END_TO_END_EXACTLY_ONCE)
    assert planned.refusal() is None
    (end,) = planned.cuts.ends
    assert planned.logical.node(end).inputs == ("in",)
    assert planned.cuts.branches == {end: 2}
    assert planned.cuts.below == {node.name for node in planned.logical.nodes} - {"in", end}
    assert "computed once per epoch, its rows are kept for 2 branches" in explain_plan(planned)


@pytest.mark.parametrize("ways", [*ONE_PASS, "deterministic"])
def test_a_step_with_one_place_is_a_step_of_the_query(ways: str) -> None:
    rows = SEVERAL["merged branches"](events()) if ways == "deterministic" else ONE_PASS[ways](WILD["function"]())
    assert plan_of(rows, LEAST).cuts == Cuts()


def test_each_part_of_a_split_by_chance_has_the_same_rows_for_all_of_its_outputs() -> None:
    part = events().split(low="rand() < 0.5")["low"]
    planned = plan_of([part, part.select("id")], LEAST)
    ways = [way_of(planned.logical, output) for output in planned.logical.of_kind("sink")]
    assert [(way.base.kind, way.conditions) for way in ways if way is not None] == [("part", ())] * 2
    assert planned.cuts == Cuts()


def test_a_stream_that_is_merged_into_a_branch_is_kept_too() -> None:
    wild = WILD["function"]()
    planned = plan_of([wild, wild.where("r < 0.5").merge(other_events())], LEAST)
    assert planned.cuts.branches == {"map": 2}
    assert planned.cuts.ends == ("map", "other")


def test_a_second_step_of_that_kind_below_is_kept_in_the_epoch() -> None:
    wild = WILD["function"]()
    again = wild.flat_map(lambda row: [same(row)], "id BIGINT, r DOUBLE", deterministic=False)
    planned = plan_of([wild, again, again.map(same, "id BIGINT, r DOUBLE")], LEAST)
    assert set(planned.cuts.branches) == {"map", "flat_map"}
    assert planned.cuts.ends == ("map",)


def test_state_above_the_step_stays_in_the_query() -> None:
    counted = events().key_by("id").rolling(n="count(*)")
    wild = counted.map(same, "id BIGINT, r DOUBLE", deterministic=False)
    planned = plan_of([wild, wild.where(lambda row: row.r > 1)], LEAST)
    assert planned.cuts.branches == {"map": 2}
    assert "rolling" not in planned.cuts.below


def test_a_branch_that_asks_for_the_time_of_the_epoch_is_refused() -> None:
    """A batch over kept rows has another time than the query, and than the batch of a replay."""
    wild = WILD["select"]()
    for column in ("current_timestamp()", "localtimestamp()", "unix_timestamp()"):
        with pytest.raises(BadJob, match=r"select 'select-2' after it must be a part of the query"):
            plan_of([wild.select("id", now=column).where(lambda row: True), wild.map(same, ROW)], LEAST)
    in_query = wild.select("id", "r", "at", age="unix_timestamp(at)")
    assert plan_of([in_query.where(lambda row: True), wild.map(same, ROW)], LEAST).cuts.branches == {"select": 2}


@pytest.mark.parametrize("steps", ["one", "two", "beside state"])
def test_dead_letters_are_no_branch(steps: str) -> None:
    tame = events().map(same, ROW)
    wild = tame.map(same, ROW, deterministic=False)
    if steps == "two":
        wild = wild.map(same, ROW, deterministic=False)
    rows = [wild, wild.map(same, ROW)]
    if steps == "beside state":
        rows.append(other_events().map(same, ROW).key_by("id").rolling(n="count(*)"))
    planned = plan_of(rows, LEAST, dead_letters=KafkaSink(topic="letters", servers="h:1"))
    last = "map-3" if steps == "two" else "map-2"
    assert planned.cuts.branches == {last: 2}
    assert planned.cuts.ends == (last,)


def test_real_time_mode_has_no_epoch_to_keep_rows_in() -> None:
    wild = events().select("id", "at", r="rand()")
    merged = wild.where("r < 0.5").merge(wild.where("r >= 0.5"))
    output = merged.to("out", KafkaSink(topic="out", servers="h:1"))
    with pytest.raises(BadJob, match="in real-time mode rows leave before their epoch ends"):
        plan(Job("job", output, guarantee=Guarantee.AT_LEAST_ONCE, mode=Mode.REAL_TIME))


# A window that adds fractions: it is deterministic, but each branch may add in another order


def window_of(aggregate: str, before: Callable[[Stream], Stream] = lambda rows: rows) -> Stream:
    row = "id BIGINT, i INT, d DECIMAL(9, 2), x DOUBLE, f FLOAT, s STRING, at TIMESTAMP"
    rows = before(stream("in", KafkaSource(topic="in", servers="h:1", value=row)))
    timed = rows.event_time("at", lateness="1 minute")
    return timed.key_by("id").window(windows.tumbling("1 minute")).aggregate(r=aggregate)


FRACTIONS = (
    *("sum(x)", "avg(f)", "sum(i / 2)", "sum(d * 1e0)", "sum(s)", "mean(x)", "try_sum(x)", "stddev(i)", "corr(i, d)"),
    *("1 + sum(x) FILTER (WHERE i > 1)", "sum(CAST(i AS DOUBLE))", "sum(CASE WHEN i > 1 THEN x ELSE 0 END)"),
    *("sum(i) + sum(x)", "sum(sqrt(i))", "round(sum(x), 2)"),
)
EXACT = (
    *("sum(i)", "avg(i)", "sum(d)", "avg(d)", "sum(d * i - 1.5)", "sum(i % 3 + pmod(id, 2))", "max(x)", "count(x)"),
    *("sum(CAST(x AS DECIMAL(18, 2)))", "sum(coalesce(i, 0))", "sum(d / 3)", "sum(CASE WHEN x > 1 THEN i END)"),
    *("sum(if(x > 1, 1, 0))", "sum(-abs(i))", "max(x) - min(x)", "sum(length(s))", "sum(i div 2)"),
)


@pytest.mark.parametrize("aggregate", FRACTIONS)
def test_branches_of_a_window_that_adds_fractions_are_one_pass(aggregate: str) -> None:
    rows = window_of(aggregate)
    planned = plan_of(ONE_PASS["conditions"](rows), Guarantee.END_TO_END_EXACTLY_ONCE)
    assert planned.refusal() is None
    assert planned.cuts == Cuts()
    ways = [way_of(planned.logical, output) for output in planned.logical.of_kind("sink")]
    assert {way.shared for way in ways if way is not None} == {"window"}
    assert len(ways) == 2
    assert None not in ways


@pytest.mark.parametrize("aggregate", EXACT)
def test_branches_of_a_window_whose_results_do_not_depend_on_order_stay_as_they_were(aggregate: str) -> None:
    rows = window_of(aggregate)
    planned = plan_of([*ONE_PASS["conditions"](rows), rows.parallel(2)], LEAST)
    assert planned.cuts == Cuts()
    assert [way_of(planned.logical, output) for output in planned.logical.of_kind("sink")] == [None] * 3


TYPES: dict[str, tuple[Callable[[Stream], Stream], bool]] = {
    "made whole": (lambda rows: rows.select("id", "at", i="i * 2"), False),
    "made a fraction": (lambda rows: rows.select("id", "at", i="i / 2"), True),
    "renamed": (lambda rows: rows.select("id", "at", i="x"), True),
    "by a column beside it": (lambda rows: rows.select("id", "at", y="x", i="y"), True),
    "of a function": (lambda rows: rows.map(same, "id BIGINT, at TIMESTAMP, i BIGINT"), False),
    "fractions of a function": (lambda rows: rows.map(same, "id BIGINT, at TIMESTAMP, i FLOAT"), True),
    "unknown": (lambda rows: rows.transform(lambda frame: frame), True),
    "merged with fractions": (
        lambda rows: rows.select("id", "at", "i").merge(rows.map(same, "id BIGINT, at TIMESTAMP, i DOUBLE")),
        True,
    ),
    "merged": (lambda rows: rows.select("id", "at", "i").merge(rows.select("id", "at", "i")), False),
    "through steps": (lambda rows: rows.where("x > 1").split(a="i > 1")["a"].parallel(2), False),
}


@pytest.mark.parametrize("types", TYPES)
def test_the_type_of_what_is_added_is_followed_and_doubt_counts_as_fractions(types: str) -> None:
    before, is_fraction = TYPES[types]
    rows = window_of("sum(i)", before)
    planned = plan_of([rows.where("r < 1"), rows.where("r >= 1")], LEAST)
    outputs = planned.logical.of_kind("sink")
    assert [way_of(planned.logical, output) is not None for output in outputs] == [is_fraction] * 2


@pytest.mark.parametrize("ways", ["merged branches", "merged with itself", "a condition in Python"])
def test_the_query_ends_at_a_window_that_adds_fractions_if_its_branches_are_not_one_pass(ways: str) -> None:
    planned = plan_of(KEPT[ways](window_of("sum(x)")), Guarantee.END_TO_END_EXACTLY_ONCE)
    assert planned.refusal() is None
    assert planned.cuts.branches == {"window": 2}


def test_a_window_that_adds_fractions_is_refused_if_it_cannot_be_computed_once() -> None:
    rows = window_of("sum(x)")
    with pytest.raises(BadJob, match="round otherwise: a row could be in none of them") as refused:
        plan_of([rows, rows.transform(lambda frame: frame)], LEAST)
    assert "test_passes.py:" in refused.value.where
    assert "DECIMAL" in refused.value.fix
    assert plan_of([rows.transform(lambda frame: frame)], LEAST).refusal() is None
