"""State that was kept by other code: taken, forgotten or refused, and never misread."""

import re
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lockgate import Late, MemorySource, Stream, aggregates, stream, windows
from lockgate.dataflow.steps import Keyed, Timed
from lockgate.errors import BadJob
from lockgate.operators.evolution import Declared, adapt, evolve
from lockgate.spark.stateful import describe

WHERE = "step 'bubbles'"


def kept(kind: str, type: str, *, key: str | None = None, ttl_us: int | None = None) -> dict[str, Any]:
    return {"kind": kind, "type": type, "ttl_us": ttl_us} | ({} if key is None else {"key": key})


def test_the_same_declarations_leave_state_alone() -> None:
    declared = {"a": kept("value", "INT"), "b": kept("map", "STRUCT<x: INT>", key="STRING", ttl_us=5)}
    evolution = evolve(declared, declared, where=WHERE)
    state = [[1, {"k": {"x": 1}}], [None, {"k": 3}], [[5, ""]], []]
    assert evolution(state) == state
    assert evolution([[1, None]]) == [[1, None]]
    assert not evolution.is_needed


def test_a_new_state_begins_empty() -> None:
    number = kept("value", "INT")
    evolution = evolve({"b": number}, {"a": number, "b": number, "c": number}, where=WHERE)
    assert evolution.is_needed
    assert evolution([[7]]) == [[None, 7, None]]
    assert evolution([[None], [None], [[5, ""]], []]) == [[None] * 3, [None] * 3, [[5, ""]], []]
    assert evolution(None) is None


def test_a_dropped_state_is_forgotten_and_named() -> None:
    old = {"a": kept("value", "INT", ttl_us=5), "b": kept("value", "INT")}
    evolution = evolve(old, {"b": old["b"]}, where=WHERE)
    assert evolution.is_needed
    assert evolution.forgotten == ("a",)
    assert evolution([[1, 2], [0, None], [], []]) == [[2]]
    assert evolution([[1, None], [0, None], [], []]) is None


@pytest.mark.parametrize(
    ("old", "new", "before", "after"),
    [
        (kept("value", "INT"), kept("value", "BIGINT"), 1, 1),
        (kept("list", "FLOAT"), kept("list", "DOUBLE"), [1.5], [1.5]),
        (kept("map", "INT", key="INT"), kept("map", "BIGINT", key="BIGINT"), [[1], [2]], [[1], [2]]),
        (kept("value", "ARRAY<INT>"), kept("value", "ARRAY<BIGINT>"), [1, None], [1, None]),
        (kept("value", "STRUCT<a: INT>"), kept("value", "STRUCT<b: STRING, a: BIGINT>"), {"a": 1}, {"b": None, "a": 1}),
        (kept("list", "STRUCT<a: INT>"), kept("list", "STRUCT<a: INT, b: DATE>"), [{"a": 1}], [{"a": 1, "b": None}]),
        (
            kept("map", "ARRAY<STRUCT<a: INT>>", key="STRING"),
            kept("map", "ARRAY<STRUCT<a: INT, b: INT>>", key="STRING"),
            {"k": [{"a": 1}, None]},
            {"k": [{"a": 1, "b": None}, None]},
        ),
        (
            kept("value", "STRUCT<a: STRUCT<x: INT>>"),
            kept("value", "STRUCT<a: STRUCT<x: INT, y: INT>>"),
            {"a": None},
            {"a": None},
        ),
        (
            kept("value", "MAP<STRING, STRUCT<x: INT>>"),
            kept("value", "MAP<STRING, STRUCT<x: INT, y: INT>>"),
            {"k": {"x": 1}},
            {"k": {"x": 1, "y": None}},
        ),
    ],
)
def test_a_wider_type_takes_what_was_kept(old: dict[str, Any], new: dict[str, Any], before: Any, after: Any) -> None:
    assert evolve({"s": old}, {"s": new}, where=WHERE)([[before]]) == [[after]]


def test_a_null_inside_a_list_or_map_stays_null() -> None:
    wider = {"s": kept("list", "STRUCT<a: INT, b: INT>")}
    evolution = evolve({"s": kept("list", "STRUCT<a: INT>")}, wider, where=WHERE)
    assert evolution([[[None, {"a": 1}]]]) == [[[None, {"a": 1, "b": None}]]]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (kept("value", "BIGINT"), kept("value", "INT")),
        (kept("value", "INT"), kept("value", "STRING")),
        (kept("value", "INT"), kept("value", "DOUBLE")),
        (kept("value", "INT"), kept("list", "INT")),
        (kept("value", "DECIMAL(10, 2)"), kept("value", "DECIMAL(12, 3)")),
        (kept("value", "STRUCT<a: INT, b: INT>"), kept("value", "STRUCT<a: INT>")),
        (kept("value", "STRUCT<a: INT>"), kept("value", "STRUCT<b: INT>")),
        (kept("value", "STRUCT<a: INT>"), kept("value", "STRUCT<a: STRING>")),
        (kept("value", "ARRAY<INT>"), kept("value", "ARRAY<STRING>")),
        (kept("map", "INT", key="STRING"), kept("map", "INT", key="INT")),
        (kept("value", "MAP<STRING, INT>"), kept("map", "INT", key="STRING")),
    ],
)
def test_any_other_change_is_refused_with_both_types_and_a_fix(old: dict[str, Any], new: dict[str, Any]) -> None:
    with pytest.raises(BadJob) as refused:
        evolve({"total": old}, {"total": new}, where=WHERE)
    assert "'total'" in refused.value.what
    assert old["type"] in refused.value.what
    assert new["type"] in refused.value.what
    assert refused.value.where == WHERE
    assert "another name" in refused.value.fix


def test_a_time_to_live_may_come_and_go() -> None:
    mortal, immortal = {"a": kept("value", "INT", ttl_us=5)}, {"a": kept("value", "INT")}
    assert evolve(mortal, immortal, where=WHERE)([[1], [3], [], []]) == [[1]]
    assert evolve(immortal, mortal, where=WHERE)([[1]]) == [[1]]
    assert evolve(immortal, mortal, where=WHERE).is_redated
    assert not evolve(mortal, mortal, where=WHERE).is_redated


def test_what_is_no_function_with_state_may_not_change_at_all() -> None:
    old = {"parts": {"the step": "rolling", "aggregate 1": "total bigint by Sum()"}, "states": {}}
    new = {"parts": {"the step": "rolling", "aggregate 2": "n bigint by Count()"}, "states": {}}
    assert not adapt(old, old, where=WHERE).is_needed
    with pytest.raises(BadJob) as refused:
        adapt(old, new, where=WHERE)
    assert "aggregate 1 was total bigint by Sum(), and is nothing now" in refused.value.what
    assert "aggregate 2 was nothing, and is n bigint by Count() now" in refused.value.what
    assert refused.value.where == WHERE
    assert "another name=" in refused.value.fix


# What a step declares of itself

COLUMNS = "k STRING, price INT, tax INT, at TIMESTAMP"
orders = stream("orders", MemorySource([], value=COLUMNS))
timed = orders.event_time("at", lateness="1 minute")


def declared(made: Stream, spark: SparkSession, over: Stream = timed) -> Declared:
    frame = spark.createDataFrame([], COLUMNS)
    assert isinstance(made.step, Keyed)
    assert isinstance(over.step, Timed)
    return describe(made.step, frame, columns=frame.columns, time=over.step.time).declared


def totals(sql: str) -> Stream:
    return orders.key_by("k").rolling(total=sql)


def medians(sql: str) -> Stream:
    window = timed.key_by("k").window(windows.tumbling("1 minute"))
    return window.aggregate(median=aggregates.history(sql, max, "INT"), n=f"count({sql})")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("make", "old", "new", "change"),
    [
        (totals, "sum(price)", "sum(tax)", "what aggregate 1 is of was price, and is tax now"),
        (totals, "count(*)", "count(tax)", "what aggregate 1 is of was every event, and is tax now"),
        (totals, "sum(if(k = 'a  b', 1, 0))", "sum(if(k = 'a b', 1, 0))", "what aggregate 1 is of was if"),
        (medians, "price", "tax", "what aggregate 1 is of was price, and is tax now; what aggregate 2 is of was price"),
    ],
)
def test_an_aggregate_of_other_values_is_refused(
    make: Any, old: str, new: str, change: str, spark: SparkSession
) -> None:
    with pytest.raises(BadJob, match=re.escape(change)):
        adapt(declared(make(old), spark), declared(make(new), spark), where=WHERE)


@pytest.mark.spark
def test_white_space_in_an_aggregate_means_nothing(spark: SparkSession) -> None:
    assert declared(totals("sum(price + tax)"), spark) == declared(totals("sum( price +\n  tax )"), spark)


@pytest.mark.spark
def test_windows_may_be_emitted_sooner_and_not_corrected_longer(spark: SparkSession) -> None:
    def counts(allowed: str, every: int) -> Declared:
        corrected = orders.event_time("at", lateness="1 minute", late=Late.CORRECT, allowed=allowed)
        window = corrected.key_by("k").window(windows.tumbling("1 minute")).trigger(every=every)
        return declared(window.aggregate(n="count(*)"), spark, over=corrected)

    assert counts("1 hour", every=5) == counts("1 hour", every=9)
    with pytest.raises(BadJob, match="the time of corrections was 1:00:00, and is 2:00:00 now"):
        adapt(counts("1 hour", every=5), counts("2 hours", every=5), where=WHERE)
