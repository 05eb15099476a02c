import pickle
import statistics
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from lockgate import aggregates, synopses
from lockgate.dataflow.aggregates import Aggregate
from lockgate.errors import BadJob
from lockgate.operators.aggregatefolds import Combine, Count, First, History, Last, Sum
from lockgate.operators.sketches import Distinct, Quantiles, Sample, Top

ALL = [
    aggregates.combine("amount", max, "DOUBLE"),
    aggregates.history("amount", statistics.median, "DOUBLE"),
    aggregates.first("status"),
    aggregates.last("status"),
    synopses.count(),
    synopses.sum("amount"),
    synopses.sample("amount", size=100),
    synopses.top("url", k=10),
    synopses.distinct("ip"),
    synopses.quantiles("latency", at=(0.5, 0.99)),
]


def test_each_description_holds_its_fold_and_what_the_fold_is_about() -> None:
    assert [(made.argument, made.fold) for made in ALL] == [
        ("amount", Combine(max)),
        ("amount", History(statistics.median)),
        ("status", First()),
        ("status", Last()),
        (None, Count()),
        ("amount", Sum()),
        ("amount", Sample(size=100)),
        ("url", Top(k=10)),
        ("ip", Distinct()),
        ("latency", Quantiles(at=(0.5, 0.99))),
    ]


@pytest.mark.parametrize("made", ALL, ids=str)
def test_the_type_of_a_result_is_known_or_given_by_sql(made: Aggregate) -> None:
    assert made.type is not None or made.typed_by is not None


def test_types_are_those_that_the_folds_give() -> None:
    told = {str(made): (made.type, made.typed_by, made.takes) for made in ALL}
    assert told == {
        "combine(amount)": ("DOUBLE", None, "DOUBLE"),
        "history(amount), keeps history": ("DOUBLE", None, None),
        "first(status)": (None, "first(status)", None),
        "last(status)": (None, "last(status)", None),
        "count(*)": ("BIGINT", "count(*)", None),
        "sum(amount)": (None, "sum(amount)", None),
        "sample(amount, size=100)": (None, "collect_list(amount)", None),
        "top(url, k=10)": (None, "collect_list(named_struct('value', url, 'count', 0L))", None),
        "distinct(ip)": ("BIGINT", None, None),
        "quantiles(latency, at=0.5, 0.99)": ("ARRAY<DOUBLE>", None, "DOUBLE"),
    }


def test_only_what_keeps_history_is_unbounded_and_its_label_says_so() -> None:
    assert [made.label for made in ALL if not made.is_bounded] == ["history(amount), keeps history"]


def test_only_what_sql_gives_alike_is_native() -> None:
    assert [made.label for made in ALL if made.is_native] == ["count(*)", "sum(amount)"]


def test_a_function_may_be_declared_nondeterministic() -> None:
    assert all(made.is_deterministic for made in ALL)
    assert not aggregates.combine("x", max, "DOUBLE", deterministic=False).is_deterministic
    assert not aggregates.history("x", max, "DOUBLE", deterministic=False).is_deterministic


def test_an_aggregate_is_frozen_and_travels() -> None:
    with pytest.raises(FrozenInstanceError):
        ALL[0].type = "INT"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(ALL)) == ALL


@pytest.mark.parametrize("type", ["DECIMAL(10,2)", "ARRAY<STRUCT<a: INT, b: STRING>>", "MAP<STRING, INT>", "timestamp"])
def test_a_result_may_have_any_type_of_spark(type: str) -> None:
    assert aggregates.combine("x", max, type).type == type


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: aggregates.combine("", max, "DOUBLE"), "combine takes what it is about as SQL text, not ''"),
        (lambda: aggregates.combine(max, "x", "DOUBLE"), "combine takes what it is about as SQL text"),
        (lambda: aggregates.combine("x", "max", "DOUBLE"), "combine takes a function, not 'max'"),
        (lambda: aggregates.combine("x", max, float), "combine takes the type of its result as Spark writes it"),
        (lambda: aggregates.combine("x", max, "NUMBERS"), "the type of its result as Spark writes it, not 'NUMBERS'"),
        (lambda: aggregates.combine("x", max, "INT, b INT"), "the type of its result"),
        (lambda: aggregates.combine("x", max, "INT NOT NULL"), "the type of its result"),
        (lambda: aggregates.history("x", None, "DOUBLE"), "history takes a function, not None"),
        (lambda: aggregates.history("x", max, ""), "history takes the type of its result as Spark writes it, not ''"),
        (lambda: aggregates.first(None), "first takes what it is about as SQL text, not None"),
        (lambda: aggregates.last(" "), "last takes what it is about as SQL text"),
        (lambda: synopses.sum(3), "sum takes what it is about as SQL text, not 3"),
        (lambda: synopses.sample("x", size=0), "the size of a sample is a whole number above zero, not 0"),
        (lambda: synopses.sample("x", size=True), "the size of a sample is a whole number above zero, not True"),
        (lambda: synopses.top("x", k=2.5), "the k of a top is a whole number above zero, not 2.5"),
        (lambda: synopses.top("", k=2), "top takes what it is about as SQL text"),
        (lambda: synopses.distinct([]), "distinct takes what it is about as SQL text"),
        (lambda: synopses.quantiles("x", at=0.5), "at= takes shares from 0 to 1, at least one, not 0.5"),
        (lambda: synopses.quantiles("x", at=()), "at= takes shares from 0 to 1"),
        (lambda: synopses.quantiles("x", at=(50, 99)), "at= takes shares from 0 to 1"),
        (lambda: synopses.quantiles("x", at=(float("nan"),)), "at= takes shares from 0 to 1"),
    ],
)
def test_an_aggregate_that_makes_no_sense_is_refused_at_its_line(make: Callable[[], object], what: str) -> None:
    with pytest.raises(BadJob) as refused:
        make()
    assert what in refused.value.what
    assert refused.value.where == f"declared at {Path(__file__).name}:{make.__code__.co_firstlineno}"
    assert refused.value.fix
