"""An epoch takes what fits into its time: learnt from epochs, whatever an event costs, and never more than it may."""

import random
from collections.abc import Callable

import pytest

from lockgate.runtime.epochsize import EpochSize, EpochTiming

MOST = 500_000


def epoch_size(target: float = 1.0, first: int = 10_000) -> EpochSize:
    return EpochSize(target_seconds=target, rows_first=first, rows_most=MOST)


def drive(
    one: EpochSize, seconds: Callable[[int], float], *, epochs: int, waiting: int | None = None, sources: int = 1
) -> list[EpochTiming]:
    """Epochs of a job that is behind by so many events, or without end."""
    ran, left = [], waiting
    for number in range(epochs):
        rows = one.rows * sources if left is None else min(left, one.rows * sources)
        left = None if left is None else left - rows
        took = seconds(rows) * (8 if number == 0 else 1)  # everything is new
        ran.append(EpochTiming(rows, took, is_full=left is None or left > 0))
        one.take(ran[-1])
    return ran


@pytest.mark.parametrize("each", [2e-6, 2e-5, 1e-3])
@pytest.mark.parametrize("fixed", [0.05, 0.4])
@pytest.mark.parametrize("sources", [1, 3])
def test_epochs_come_to_last_as_long_as_wanted(fixed: float, each: float, sources: int) -> None:
    rng = random.Random(1)
    ran = drive(epoch_size(), lambda rows: (fixed + each * rows) * rng.uniform(0.9, 1.1), epochs=40, sources=sources)
    last = [one.seconds for one in ran[-10:]]
    assert all(0.6 < seconds < 1.5 for seconds in last), last


def test_if_an_epoch_without_rows_takes_longer_than_wanted_half_of_it_is_for_rows() -> None:
    ran = drive(epoch_size(), lambda rows: 3.0 + 1e-4 * rows, epochs=40)
    assert all(4.5 <= one.seconds < 7.5 for one in ran[-10:]), ran[-10:]


def test_never_more_than_the_most_and_never_nothing() -> None:
    cheap, dear = epoch_size(), epoch_size()
    assert max(one.rows for one in drive(cheap, lambda rows: 0.01 + 1e-9 * rows, epochs=60)) == MOST
    assert min(one.rows for one in drive(dear, lambda rows: 2.0 * rows, epochs=60)) == 100


def test_the_first_epochs_of_a_start_say_nothing() -> None:
    one = epoch_size()
    assert one.take(EpochTiming(10_000, 60.0, is_full=True)) == 10_000
    assert one.take(EpochTiming(10_000, 20.0, is_full=True)) == 10_000
    assert one.take(EpochTiming(10_000, 20.0, is_full=True)) < 10_000
    before = one.rows
    one.reset()
    assert one.take(EpochTiming(before, 60.0, is_full=True)) == before


def test_more_is_taken_by_steps_and_less_at_once() -> None:
    one = epoch_size()
    drive(one, lambda rows: 0.1 + 2e-6 * rows, epochs=2)
    sizes = [one.take(EpochTiming(one.rows, 0.1 + 2e-6 * one.rows, is_full=True)) for _ in range(3)]
    assert all(later <= 2 * earlier for earlier, later in zip([10_000, *sizes], sizes, strict=False))
    assert sizes[-1] >= 40_000
    assert one.take(EpochTiming(one.rows, 10.0, is_full=True)) < sizes[-1] / 2


def test_epochs_that_took_all_there_was_change_nothing_as_long_as_they_are_quick() -> None:
    one = epoch_size()
    drive(one, lambda rows: 0.1 + 2e-6 * rows, epochs=10, waiting=50_000)
    before = one.rows
    assert drive(one, lambda rows: 0.1 + 2e-6 * rows, epochs=20, waiting=400)
    assert one.rows == before


def test_an_event_that_becomes_more_expensive_is_noticed() -> None:
    one = epoch_size()
    drive(one, lambda rows: 0.1 + 2e-6 * rows, epochs=30)
    ran = drive(one, lambda rows: 0.1 + 5e-5 * rows, epochs=30)
    assert 0.5 < ran[-1].seconds < 1.6


def test_an_empty_epoch_says_nothing_and_is_none_of_the_first_ones() -> None:
    one = epoch_size()
    for _ in range(20):
        one.take(EpochTiming(0, 30.0, is_full=False))
    one.take(EpochTiming(10_000, 60.0, is_full=True))
    assert one.rows == 10_000


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_an_epoch_without_a_duration_says_nothing_and_is_none_of_the_first_ones(seconds: float) -> None:
    one = epoch_size()
    for _ in range(20):
        assert one.take(EpochTiming(10_000, seconds, is_full=True)) == 10_000
    assert one.take(EpochTiming(10_000, 60.0, is_full=True)) == 10_000


def test_offsets_without_events_are_passed_quickly() -> None:
    one = epoch_size()
    for _ in range(10):
        one.take(EpochTiming(0, 0.1, is_full=True))
    assert one.rows == MOST


@pytest.mark.parametrize("seed", range(6))
def test_hiccups_of_a_trickle_do_not_raise_what_an_epoch_may_take(seed: int) -> None:
    one, rng = epoch_size(), random.Random(seed)
    for _ in range(5_000):
        seconds = rng.uniform(1.0, 4.0) if rng.random() < 0.02 else rng.uniform(0.2, 0.4)
        one.take(EpochTiming(rng.randint(3, 8), seconds, is_full=False))
    assert one.rows == 10_000


@pytest.mark.parametrize("seed", range(8))
def test_a_machine_that_was_busy_for_a_while_leaves_no_epochs_that_are_too_long(seed: int) -> None:
    one, rng = epoch_size(), random.Random(seed)
    drive(one, lambda rows: rng.uniform(6, 10) + 1e-5 * rows * rng.uniform(1, 6), epochs=40)
    ran = drive(one, lambda rows: 0.5 + 1e-5 * rows, epochs=60)
    assert all(one.seconds < 1.5 for one in ran[20:]), ran[20:]


@pytest.mark.parametrize("seed", range(6))
def test_a_few_epochs_that_are_much_too_long_change_little(seed: int) -> None:
    one, rng = epoch_size(), random.Random(seed)
    ran = drive(one, lambda rows: (0.5 + 1e-5 * rows) * (16 if rng.random() < 0.15 else 1), epochs=100)
    assert max(one.rows for one in ran) < 100_000
