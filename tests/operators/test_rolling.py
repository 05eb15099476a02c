import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockgate.operators.aggregatefolds import Avg, Combine, Count, History, Last, Max, Min, Sum
from lockgate.operators.contract import Clock, Side, StepFailed
from lockgate.operators.encoding import PLAIN
from lockgate.operators.fold import Fold
from lockgate.operators.rolling import Rolled, RollingOperator
from lockgate.operators.sketches import Sample

CLOCK = Clock(before=0, now=0, wall=0)
FOLDS: tuple[Fold, ...] = (Sum(), Count(), Min(), Max(), Avg(), Last(), History(len), Combine(max))


def operator_of(*folds: Fold, identity: str | None = None) -> RollingOperator:
    return RollingOperator(
        [Rolled(name=f"a{place}", type="BIGINT", column=f"c{place}", fold=fold) for place, fold in enumerate(folds)],
        identity=identity,
    )


def run(operator: RollingOperator, *epochs: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The rows of all epochs; between them the state is stored and read again."""
    state, rows = None, []
    for epoch in epochs:
        outcome = operator.step(("k",), state, epoch, CLOCK)
        state = PLAIN.decode(PLAIN.encode(outcome.state))
        assert {side for side, _ in outcome.rows} <= {0}
        rows += [values for _, values in outcome.rows]
    return rows


def row_by_row(folds: tuple[Fold, ...], rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The same without any shortcut."""
    kept = [fold.empty() for fold in folds]
    expected = []
    for number, *values in rows:
        kept = [fold.add(before, value, 0) for fold, before, value in zip(folds, kept, values, strict=True)]
        expected.append((number, *(fold.result(now) for fold, now in zip(folds, kept, strict=True))))
    return expected


numbers = st.integers(min_value=-(2**40), max_value=2**40)


@settings(deadline=None)
@given(
    values=st.one_of(
        st.lists(numbers),
        st.lists(st.floats(allow_nan=False)),
        st.lists(st.none() | numbers),
        st.lists(st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**9), max_value=10**9)),
    ),
    cuts=st.lists(st.integers(min_value=0, max_value=40)),
)
def test_every_row_has_the_aggregates_as_of_it_however_rows_fall_into_epochs(
    values: list[Any], cuts: list[int]
) -> None:
    rows = [(number, *[value] * len(FOLDS)) for number, value in enumerate(values)]
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    epochs = [rows[begin:end] for begin, end in pairwise(edges)]
    # As text: infinity less infinity is NaN, which equals nothing.
    assert repr(run(operator_of(*FOLDS), *epochs)) == repr(row_by_row(FOLDS, rows))


def test_the_numbers_of_the_rows_come_back_as_they_were() -> None:
    assert run(operator_of(Sum(), Count()), [(7, 1, 1), (3, 2, None)], [(9, 4, 1)]) == [
        (7, 1, 1),
        (3, 3, 1),
        (9, 7, 2),
    ]


def test_a_repeated_step_gives_the_same_rows_and_state() -> None:
    operator = operator_of(*FOLDS)
    state = operator.step((), None, [(0, *[5] * len(FOLDS))], CLOCK).state
    rows = [(number, *[number] * len(FOLDS)) for number in range(20)]
    assert operator.step((), state, rows, CLOCK) == operator.step((), state, rows, CLOCK)


def test_it_reads_a_column_for_each_fold_and_gives_rows_with_the_results_beside() -> None:
    operator = RollingOperator(
        [
            Rolled(name="total", type="DOUBLE", column="__total", fold=Sum()),
            Rolled(name="so`me", type="ARRAY<STRING>", column="__some", fold=Sample(size=2)),
        ],
        identity="__identity",
    )
    assert operator.reads == ("__total", "__some", "__identity")
    assert operator.sides == (Side(name="result", columns="`total` DOUBLE, `so``me` ARRAY<STRING>", keeps_row=True),)


def test_a_sample_receives_the_identity_of_each_event() -> None:
    rng = random.Random(1)
    events = [(number, number, rng.getrandbits(63)) for number in range(50)]
    whole = run(operator_of(Sample(size=5), identity="id"), events)[-1]
    shuffled = rng.sample(events, k=len(events))
    assert run(operator_of(Sample(size=5), identity="id"), shuffled[:20], shuffled[20:])[-1][1] == whole[1]
    assert len(whole[1]) == 5


@pytest.mark.parametrize("before", [0, 1])
def test_an_overflow_names_the_aggregate_and_the_row(before: int) -> None:
    operator = operator_of(Count(), Sum())
    rows = [(10, 1, 2**62), (11, 1, 2**62 - 1), (12, 1, 1), (13, 1, -5)]
    state = operator.step((), None, rows[:before], CLOCK).state
    with pytest.raises(StepFailed, match="a1: the sum is too large for a BIGINT") as failed:
        operator.step((), state, rows[before:], CLOCK)
    assert failed.value.number == 12


def test_a_function_that_raises_names_the_row() -> None:
    with pytest.raises(StepFailed, match="a0: TypeError: ") as failed:
        operator_of(History(sum)).step((), None, [(4, 1), (5, "x")], CLOCK)
    assert failed.value.number == 5


def test_without_rows_nothing_changes() -> None:
    operator = operator_of(Sum())
    assert operator.step((), (3,), [], CLOCK) == ((3,), (), None, None)
