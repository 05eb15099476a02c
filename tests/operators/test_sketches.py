"""Synopses keep their laws, their bounds and their errors, and give the same again in every process."""

import math
import random
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockgate.operators.contract import StepFailed
from lockgate.operators.encoding import PLAIN
from lockgate.operators.fold import Fold
from lockgate.operators.sketches import Distinct, Quantiles, Sample, Top
from support.process import run

SKETCHES: tuple[Fold, ...] = (Sample(size=8), Top(k=3), Distinct(), Quantiles(at=(0.0, 0.5, 0.99, 1.0)))
by_sketch = pytest.mark.parametrize("sketch", SKETCHES, ids=lambda sketch: type(sketch).__name__)
EVENTS = st.lists(st.tuples(st.none() | st.integers(0, 20).map(float), st.integers(0, 2**63 - 1)), max_size=40)

Event = tuple[Any, int]


def kept_of(sketch: Fold, events: Sequence[Event]) -> Any:
    kept = sketch.empty()
    for value, identity in events:
        kept = sketch.add(kept, value, identity)
    return kept


def numbered(values: Sequence[Any]) -> list[Event]:
    return [(value, number) for number, value in enumerate(values)]


def drawn(seed: int, count: int) -> list[Event]:
    """Numbers over six orders of magnitude, with ties, nulls, zeros and both signs."""
    rng = random.Random(seed)
    values = [
        rng.choice((0.0, None, float(rng.randrange(50)), rng.gauss(0, 3), rng.lognormvariate(2, 3)))
        for _ in range(count)
    ]
    return [(value, rng.getrandbits(63)) for value in values]


@by_sketch
@settings(max_examples=50)
@given(one=EVENTS, two=EVENTS)
def test_while_there_is_room_for_all_merging_is_adding(sketch: Fold, one: list[Event], two: list[Event]) -> None:
    merged = sketch.merge(kept_of(sketch, one), kept_of(sketch, two))
    assert merged == kept_of(sketch, [*one, *two])


@pytest.mark.parametrize("sketch", [Sample(size=50), Distinct(), Quantiles(at=(0.5,))], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("seed", range(3))
def test_a_full_one_depends_neither_on_the_order_nor_on_what_was_merged_when(sketch: Fold, seed: int) -> None:
    rng = random.Random(seed)
    events = drawn(seed, 4_000)
    kept = kept_of(sketch, events)
    assert kept_of(sketch, rng.sample(events, k=len(events))) == kept
    cut = rng.randrange(len(events))
    assert sketch.merge(kept_of(sketch, events[cut:]), kept_of(sketch, events[:cut])) == kept


@by_sketch
def test_what_is_kept_can_be_stored_and_is_never_changed_in_place(sketch: Fold) -> None:
    events = drawn(seed=4, count=1_500)
    kept = kept_of(sketch, events[:1_000])
    stored = PLAIN.encode(kept)
    restored = PLAIN.decode(stored)
    for value, identity in events[1_000:]:
        restored = sketch.add(restored, value, identity)
    assert restored == kept_of(sketch, events)
    sketch.merge(kept, restored)
    sketch.merge(restored, kept)
    sketch.result(kept)
    assert PLAIN.encode(kept) == stored


@by_sketch
def test_nothing_is_made_of_nulls(sketch: Fold) -> None:
    assert kept_of(sketch, [(None, 1), (None, 2)]) == sketch.empty()
    assert sketch.result(sketch.empty()) == {Sample: [], Top: [], Distinct: 0, Quantiles: None}[type(sketch)]


@by_sketch
def test_what_is_kept_is_bounded(sketch: Fold) -> None:
    assert sketch.is_bounded
    rng = random.Random(5)
    kept = kept_of(sketch, [(rng.lognormvariate(0, 5), number) for number in range(20_000)])
    assert len(PLAIN.encode(kept)) < 20_000


IN_ANOTHER_PROCESS = """
import hashlib, random
from lockgate.operators.encoding import PLAIN
from lockgate.operators.sketches import Distinct, Quantiles, Sample, Top
rng = random.Random(6)
events = [(rng.choice("abcdefgh") * rng.randrange(200), rng.lognormvariate(1, 4), number) for number in range(3000)]
for sketch, column in ((Sample(size=20), 0), (Top(k=5), 0), (Distinct(), 0), (Quantiles(at=(0.5, 0.9)), 1)):
    kept = sketch.empty()
    for event in events:
        kept = sketch.add(kept, event[column], event[2])
    print(type(sketch).__name__, hashlib.sha256(PLAIN.encode(kept)).hexdigest(), sketch.result(kept))
"""


@pytest.mark.process
def test_another_process_keeps_the_same_bytes_and_gives_the_same_result(tmp_path: Path) -> None:
    def told(hash_seed: str) -> str:
        environ = {"PYTHONHASHSEED": hash_seed}
        return run(sys.executable, "-c", IN_ANOTHER_PROCESS, cwd=tmp_path, environ=environ).stdout

    first = told("1")
    assert first.count("\n") == 4
    assert told("2") == first


def test_what_was_stored_by_an_earlier_version_still_counts() -> None:
    """Hashes are kept for months: another hash of the same value would count it twice."""
    assert kept_of(Distinct(), [("ip", 0)]) == [4830650912228078896]
    assert kept_of(Sample(size=1), [("ip", 7)]) == [[7191089600892374487], ["ip"]]


# Sample


def test_a_sample_holds_every_event_where_there_are_few() -> None:
    assert sorted(Sample(size=10).result(kept_of(Sample(size=10), numbered("cab")))) == ["a", "b", "c"]


@pytest.mark.parametrize("begin", [0, 10**15])
def test_every_event_is_as_likely_to_be_in_a_sample(begin: int) -> None:
    sketch, groups, size, of = Sample(size=10), 2_000, 10, 40
    # Offsets of a log, which are as far from random as numbers can be.
    taken: Counter[int] = Counter()
    for group in range(groups):
        first = begin + group * of
        taken.update(sketch.result(kept_of(sketch, [(place, first + place) for place in range(of)])))
    expected = groups * size / of
    squares = sum((taken[place] - expected) ** 2 / (expected * (1 - size / of)) for place in range(of))
    assert sum(taken.values()) == groups * size
    assert squares < 75  # chi squared with 39 degrees of freedom: 1 in 2,000 is above 75


# Top


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_merged", [False, True])
def test_a_count_is_never_too_high_and_too_low_by_its_bound_at_most(seed: int, is_merged: bool) -> None:
    rng = random.Random(seed)
    values = [int(rng.paretovariate(0.7)) for _ in range(20_000)]
    sketch = Top(k=10)
    bound = len(values) // (sketch.counters + 1)
    true = Counter(values)
    assert len(true) > sketch.counters, "this has to be more than there is room for"
    if is_merged:
        kept = sketch.empty()
        for begin in range(0, len(values), 5_000):
            kept = sketch.merge(kept, kept_of(sketch, numbered(values[begin : begin + 5_000])))
    else:
        kept = kept_of(sketch, numbered(values))
    assert len(kept) <= sketch.counters
    assert all(true[value] - bound <= kept.get(value, 0) <= true[value] for value in true)
    told = sketch.result(kept)
    assert [count for _, count in told] == sorted((count for _, count in told), reverse=True)
    assert {value for value, count in true.most_common(10) if count > 2 * bound} <= {value for value, _ in told}


def test_the_most_frequent_come_first_and_of_equals_the_one_seen_first() -> None:
    assert Top(k=3).result(kept_of(Top(k=3), numbered("xbbaaxc"))) == [("x", 2), ("b", 2), ("a", 2)]


def test_nan_and_zero_are_one_value_each_and_bytes_are_what_they_hold() -> None:
    values = [math.nan, 0.0, float("nan"), -0.0, float("nan")]
    kept = PLAIN.decode(PLAIN.encode(kept_of(Top(k=2), numbered(values[:2]))))
    for value in values[2:]:
        kept = Top(k=2).add(kept, value, 0)
    (most, count), second = Top(k=2).result(kept)
    assert math.isnan(most)
    assert (count, second) == (3, (0.0, 2))
    assert Top(k=1).result(kept_of(Top(k=1), numbered([b"a", bytearray(b"a")]))) == [(b"a", 2)]


@pytest.mark.parametrize("value", [[1], (1, 2), {"a": 1}])
def test_top_refuses_what_is_no_single_value(value: Any) -> None:
    with pytest.raises(StepFailed, match="top counts single values"):
        Top(k=1).add({}, value, 0)


# Distinct


def test_distinct_is_exact_while_there_are_few_values() -> None:
    values = [f"user-{number % 1_000}" for number in range(3_000)]
    assert Distinct().result(kept_of(Distinct(), numbered(values))) == 1_000


@pytest.mark.parametrize("count", [2_000, 20_000])
@pytest.mark.parametrize("seed", range(3))
def test_distinct_is_close_where_there_are_many(count: int, seed: int) -> None:
    told = Distinct().result(kept_of(Distinct(), [((seed, number), 0) for number in range(count)]))
    assert told == pytest.approx(count, rel=4 * 0.031)


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ([1, 2, 1], 2),
        ([True, False, True], 2),
        ([0.0, -0.0, math.nan, float("nan"), 1.5], 3),
        (["a", "é", "a", ""], 3),
        ([b"a", bytearray(b"a")], 1),
        ([Decimal("1.10"), Decimal("1.10"), Decimal("1.11")], 2),
        ([date(2026, 1, 1), date(2026, 1, 2)], 2),
        ([datetime(2026, 1, 1, tzinfo=UTC)] * 2, 1),
        ([("a", "bc"), ("ab", "c"), ["a", "bc"]], 2),
        ([(None, "a"), ("", "a")], 2),
    ],
)
def test_values_are_different_where_spark_finds_them_different(values: list[Any], count: int) -> None:
    assert Distinct().result(kept_of(Distinct(), numbered(values))) == count


def test_distinct_refuses_maps_as_spark_does() -> None:
    with pytest.raises(StepFailed, match="no MAP"):
        Distinct().add((), {"a": 1}, 0)


# Quantiles

SHARES = (0.0, 0.01, 0.07, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0)


def exact(values: Sequence[float], share: float) -> float:
    """The first value with at least this share of all values up to it."""
    ordered = sorted(values)
    return next(value for place, value in enumerate(ordered, 1) if place * 1_000 >= round(share * 1_000) * len(ordered))


@settings(max_examples=50)
@given(values=st.lists(st.floats(allow_nan=False), min_size=1, max_size=100))
def test_quantiles_are_exact_while_there_are_few_values(values: list[float]) -> None:
    told = Quantiles(at=SHARES).result(kept_of(Quantiles(at=SHARES), numbered(values)))
    assert told == [exact(values, share) for share in SHARES]


@pytest.mark.parametrize(
    ("draw", "error"),
    [
        (lambda rng: rng.uniform(1, 256), 0.004),
        (lambda rng: -(2 ** rng.uniform(0, 8)), 0.004),
        (lambda rng: 2 ** rng.uniform(-15, 15), 0.016),
        (lambda rng: rng.lognormvariate(3, 1), 0.008),
    ],
    ids=["even", "negative", "nine orders of magnitude", "latencies"],
)
def test_each_quantile_of_many_values_is_within_its_error(draw: Any, error: float) -> None:
    rng = random.Random(8)
    values = [draw(rng) for _ in range(10_000)]
    told = Quantiles(at=SHARES).result(kept_of(Quantiles(at=SHARES), numbered(values)))
    assert told == [pytest.approx(exact(values, share), rel=error) for share in SHARES]


def test_zero_infinity_and_nan_stay_what_they_are_among_many_values() -> None:
    rng = random.Random(9)
    values = [rng.gauss(0, 1) for _ in range(5_000)] + [0.0] * 5_000 + [math.inf, -math.inf, math.nan]
    rng.shuffle(values)
    sketch = Quantiles(at=(0.0, 0.5, 0.9999, 1.0))
    least, middle, almost, most = sketch.result(kept_of(sketch, numbered(values)))
    assert (least, middle, almost) == (-math.inf, 0.0, math.inf)
    assert math.isnan(most)
