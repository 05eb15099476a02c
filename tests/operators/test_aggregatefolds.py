"""The laws of `operators/fold.py`, on every fold; and that folds mean what Spark means by the same words."""

import math
import pickle
import random
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockgate.operators.aggregatefolds import Avg, Combine, Count, First, History, Last, Max, Min, Sum, fold_of
from lockgate.operators.contract import StepFailed
from lockgate.operators.encoding import PLAIN
from lockgate.operators.fold import Fold

FOLDS: tuple[Fold, ...] = (
    Count(),
    Sum(),
    Min(),
    Max(),
    Avg(),
    First(),
    Last(),
    Combine(math.gcd),
    History(statistics.median),
)
by_fold = pytest.mark.parametrize("fold", FOLDS, ids=lambda fold: type(fold).__name__)
wholes = st.lists(st.none() | st.integers(min_value=-(2**40), max_value=2**40))


def kept_of(fold: Fold, values: Sequence[Any], kept: Any = None) -> Any:
    kept = fold.empty() if kept is None else kept
    for value in values:
        kept = fold.add(kept, value, 0)
    return kept


def result_of(fold: Fold, values: Sequence[Any]) -> Any:
    return fold.result(kept_of(fold, values))


@by_fold
@settings(max_examples=30, deadline=None)
@given(one=wholes, two=wholes)
def test_merging_is_adding_the_values_of_one_and_then_of_the_other(fold: Fold, one: list[Any], two: list[Any]) -> None:
    merged = fold.merge(kept_of(fold, one), kept_of(fold, two))
    assert fold.result(merged) == result_of(fold, one + two)


@by_fold
@settings(max_examples=30, deadline=None)
@given(one=wholes, two=wholes)
def test_adding_to_what_was_kept_and_restored_is_adding_to_the_original(
    fold: Fold, one: list[Any], two: list[Any]
) -> None:
    kept = kept_of(fold, one)
    restored = PLAIN.decode(PLAIN.encode(kept))
    assert restored == kept
    for value in two:
        kept, restored = fold.add(kept, value, 0), fold.add(restored, value, 0)
        assert restored == kept
    assert fold.result(restored) == fold.result(kept)


@by_fold
@settings(max_examples=30, deadline=None)
@given(one=wholes, two=wholes)
def test_what_was_kept_before_does_not_change(fold: Fold, one: list[Any], two: list[Any]) -> None:
    kept = kept_of(fold, one)
    before = PLAIN.encode(kept)
    kept_of(fold, two, kept)
    fold.merge(kept, kept_of(fold, two))
    fold.merge(kept_of(fold, two), kept)
    fold.result(kept)
    assert PLAIN.encode(kept) == before


@by_fold
@settings(max_examples=30, deadline=None)
@given(values=wholes)
def test_nulls_are_skipped(fold: Fold, values: list[Any]) -> None:
    assert result_of(fold, values) == result_of(fold, [value for value in values if value is not None])


@by_fold
def test_a_fold_travels_to_the_workers(fold: Fold) -> None:
    assert result_of(pickle.loads(pickle.dumps(fold)), [12, 18]) == result_of(fold, [12, 18])


@given(values=st.lists(st.integers(min_value=-(2**40), max_value=2**40), min_size=1))
def test_results_are_those_of_the_whole_list(values: list[int]) -> None:
    assert [result_of(fold, values) for fold in FOLDS] == [
        len(values),
        sum(values),
        min(values),
        max(values),
        sum(values) / len(values),
        values[0],
        values[-1],
        # One value alone is not combined with anything.
        math.gcd(*values) if len(values) > 1 else values[0],
        statistics.median(values),
    ]


@by_fold
@pytest.mark.parametrize("values", [[], [None, None]])
def test_of_no_value_a_count_is_zero_and_all_else_is_null(fold: Fold, values: list[None]) -> None:
    assert result_of(fold, values) == (0 if isinstance(fold, Count) else None)


@pytest.mark.parametrize("seed", range(5))
def test_nan_is_greater_than_every_number(seed: int) -> None:
    values = [math.nan, 2.0, math.inf, -1.0]
    random.Random(seed).shuffle(values)
    assert result_of(Min(), values) == -1.0
    assert math.isnan(result_of(Max(), values))
    assert math.isnan(result_of(Min(), [math.nan, math.nan]))


def test_text_times_and_decimals_are_compared_as_they_are() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert result_of(Max(), ["b", "a", "é"]) == "é"
    assert result_of(Min(), [noon, noon - timedelta(hours=1)]) == noon - timedelta(hours=1)
    assert result_of(Max(), [Decimal("1.10"), Decimal("1.09")]) == Decimal("1.10")


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_of_whole_numbers_has_room_for_a_bigint_and_not_more(sign: int) -> None:
    largest = 2**63 - 1 if sign > 0 else -(2**63)
    kept = kept_of(Sum(), [largest - sign, sign])
    assert Sum().result(kept) == largest
    with pytest.raises(StepFailed, match="too large for a BIGINT"):
        Sum().add(kept, sign, 0)
    with pytest.raises(StepFailed, match="too large for a BIGINT"):
        Sum().merge(kept, kept)


def test_a_sum_of_decimals_is_exact_up_to_38_digits() -> None:
    large = Decimal("12345678901234567890123456789012345.67")  # 37 digits: Python alone would round to 28
    assert result_of(Sum(), [large, Decimal("0.01")]) == Decimal("12345678901234567890123456789012345.68")
    with pytest.raises(StepFailed, match="too large for a DECIMAL"):
        result_of(Sum(), [large] * 100)


def test_an_average_of_large_whole_numbers_does_not_overflow() -> None:
    assert result_of(Avg(), [2**63 - 1] * 4) == float(2**63 - 1)


@given(values=st.lists(st.decimals(min_value=-(10**6), max_value=10**6, places=2), min_size=1))
def test_an_average_of_decimals_is_rounded_half_up_to_its_scale(values: list[Decimal]) -> None:
    exact = Fraction(sum(Fraction(value) for value in values)) / len(values)
    half_up = math.floor(abs(exact) * 10**6 + Fraction(1, 2)) * (1 if exact >= 0 else -1)
    mean = result_of(fold_of("avg", "decimal(14,6)"), values)
    assert mean == Decimal(half_up).scaleb(-6)
    assert mean.as_tuple().exponent == -6


@pytest.mark.parametrize(
    ("function", "type", "fold"),
    [
        ("sum", "bigint", Sum()),
        ("min", "string", Min()),
        ("max", "timestamp", Max()),
        ("count", "bigint", Count()),
        ("avg", "double", Avg()),
        ("avg", "DECIMAL(38, 0)", Avg(scale=0)),
        ("avg", "decimal(10)", Avg(scale=0)),
        ("avg", "decimal(14,6)", Avg(scale=6)),
    ],
)
def test_a_function_of_sql_has_its_fold(function: str, type: str, fold: Fold) -> None:
    assert fold_of(function, type) == fold


def test_what_a_function_of_the_user_raises_fails_the_step() -> None:
    with pytest.raises(StepFailed, match="ZeroDivisionError: "):
        result_of(Combine(lambda one, two: one // (two - two)), [1, 2])
    with pytest.raises(StepFailed, match="KeyError: 'x'"):
        result_of(History(lambda values: {}["x"]), [1])


def test_a_combination_that_gives_nothing_is_refused_rather_than_forgotten() -> None:
    with pytest.raises(StepFailed, match="gave None for 1 and 2"):
        result_of(Combine(lambda one, two: None), [1, 2])


def test_only_a_fold_that_keeps_history_is_unbounded() -> None:
    assert [fold for fold in FOLDS if not fold.is_bounded] == [History(statistics.median)]


@given(sizes=st.lists(st.integers(min_value=0, max_value=70), max_size=4))
def test_history_gives_its_function_all_values_in_order_however_they_were_merged(sizes: list[int]) -> None:
    fold = History(list)
    kept, expected = fold.empty(), []
    for size in sizes:
        values = list(range(len(expected), len(expected) + size))
        kept = fold.merge(kept, kept_of(fold, values))
        kept = fold.add(kept, "between", 0)
        expected += [*values, "between"]
    assert fold.result(kept) == (expected or None)


def test_history_copies_each_value_a_few_times_only() -> None:
    kept = kept_of(History(len), range(10_000))
    assert len(kept) <= math.log2(10_000) + 1
