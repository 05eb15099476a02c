"""A step that is not deterministic is computed once in an epoch, or the job is refused, whatever it declares."""

from collections.abc import Callable
from typing import Any

import pytest

from lockgate import Guarantee, Job, KafkaSink, KafkaSource, Late, Stream, plan, stream, windows
from lockgate.errors import BadJob
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
SEVERAL: dict[str, Callable[[Stream], list[Stream]]] = {
    "merged branches": lambda wild: [wild.where("r < 0.5").merge(wild.where("r >= 0.5"))],
    "merged with itself": lambda wild: [wild.merge(wild)],
    "a function on one branch": lambda wild: [wild, wild.map(same, "id BIGINT, r DOUBLE")],
    "a condition in Python": lambda wild: [wild.where("r < 0.5"), wild.where(lambda row: row.r >= 0.5)],
    "an exchange on one branch": lambda wild: [wild, wild.parallel(2)],
    "a select that uses its own columns": lambda wild: [wild, wild.select(s="r * 2", t="s * 2")],
    "parts that go on": lambda wild: [part.parallel(2) for part in wild.split(low="r < 1", high="r >= 1").values()],
    "state on one branch": lambda wild: [wild, wild.key_by("id").rolling(n="count(*)")],
    "two windows": lambda wild: [minutes(wild, Late.DROP), minutes(wild, Late.DROP)],
    "late events of a native window": lambda wild: both_with_late(minutes(wild, Late.TO_SIDE_OUTPUT)),
    "another step of that kind below": lambda wild: [wild, wild.where("r < 0.5").select("id", "at", r="rand()")],
}


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
    return stream("in", KafkaSource(topic="in", servers="h:1", value="id BIGINT, r DOUBLE, at TIMESTAMP"))


WILD: dict[str, Callable[[], Stream]] = {
    "select": lambda: events().select("id", "at", r="rand()"),
    "where": lambda: events().where("rand() < 0.5"),
    "function": lambda: events().map(same, "id BIGINT, r DOUBLE, at TIMESTAMP", deterministic=False),
    "condition": lambda: events().where(lambda row: True, deterministic=False),
    "rows of a function": lambda: events().flat_map(
        lambda row: [same(row)], "id BIGINT, r DOUBLE, at TIMESTAMP", deterministic=False
    ),
}


def plan_of(rows: list[Stream], guarantee: Guarantee) -> Plan:
    outputs = [one.to(f"out-{n}", KafkaSink(topic=f"out-{n}", servers="h:1")) for n, one in enumerate(rows)]
    return plan(Job("job", *outputs, guarantee=guarantee))


@pytest.mark.parametrize("wild", WILD)
@pytest.mark.parametrize("ways", ONE_PASS)
def test_outputs_of_one_pass_are_planned(ways: str, wild: str) -> None:
    assert plan_of(ONE_PASS[ways](WILD[wild]()), Guarantee.AT_LEAST_ONCE).refusal() is None


@pytest.mark.parametrize("guarantee", Guarantee)
@pytest.mark.parametrize("wild", WILD)
@pytest.mark.parametrize("ways", SEVERAL)
def test_a_step_that_would_be_computed_several_times_is_refused_whatever_is_declared(
    ways: str, wild: str, guarantee: Guarantee
) -> None:
    with pytest.raises(BadJob, match="because its rows go several ways") as refused:
        plan_of(SEVERAL[ways](WILD[wild]()), guarantee)
    assert "test_passes.py:" in refused.value.where
    assert "make it deterministic" in refused.value.fix
    assert "a job of its own" in refused.value.fix


@pytest.mark.parametrize("ways", SEVERAL)
def test_a_step_that_gives_the_same_each_time_may_go_several_ways(ways: str) -> None:
    if ways != "another step of that kind below":
        assert plan_of(SEVERAL[ways](events()), Guarantee.AT_LEAST_ONCE).refusal() is None
