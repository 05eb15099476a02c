"""A limit on time for one row after the other, kept by one timer."""

import contextlib
import signal
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lockgate.operators.deadline import TimedOut, _Limit, _ring, deadline


def spin(seconds: float) -> int:
    """Stay in Python for so long; say how many turns it took."""
    over_at, turns = time.monotonic() + seconds, 0
    while time.monotonic() < over_at:
        turns += 1
    return turns


def test_code_that_takes_too_long_is_cut_off() -> None:
    began = time.monotonic()
    with pytest.raises(TimedOut), deadline(0.1):
        spin(60)
    assert 0.1 <= time.monotonic() - began < 30


def test_a_sleep_is_cut_off_too() -> None:
    with pytest.raises(TimedOut), deadline(0.1):
        time.sleep(60)


def test_many_short_rows_that_take_longer_together_are_not() -> None:
    for _ in range(20):
        with deadline(0.2):
            assert spin(0.02) > 0


def test_every_row_has_a_limit_of_its_own_however_the_one_before_ended() -> None:
    for _ in range(3):
        with deadline(0.1):
            pass
        spin(0.15)  # the timer of the row before rings while nothing is in hand
        with pytest.raises(TimedOut), deadline(0.1):
            spin(60)


def test_a_shorter_limit_after_a_longer_one_counts() -> None:
    with deadline(60):
        pass
    with pytest.raises(TimedOut), deadline(0.1):
        spin(30)


def test_without_a_limit_nothing_is_cut_off() -> None:
    with deadline(0.1):
        pass
    with deadline(None):
        assert spin(0.2) > 0


def test_others_who_use_alarms_do_not_switch_it_off_for_the_rows_to_come() -> None:
    with deadline(0.1):
        signal.setitimer(signal.ITIMER_REAL, 0)  # as a decorator for time-outs does
    spin(0.15)
    with pytest.raises(TimedOut), deadline(0.1):
        spin(30)


def test_code_that_swallows_everything_is_cut_off_again() -> None:
    began = time.monotonic()

    def stubborn() -> None:
        with contextlib.suppress(BaseException):
            spin(30)
        spin(30)

    with pytest.raises(TimedOut), deadline(0.1):
        stubborn()
    assert time.monotonic() - began < 20


def test_code_whose_time_is_over_is_cut_off_whatever_it_catches() -> None:
    def stubborn() -> None:
        while True:
            try:
                time.sleep(60)
            except Exception:  # noqa: BLE001 - this is what must not help
                continue

    with pytest.raises(TimedOut), deadline(0.05):
        stubborn()


@pytest.mark.parametrize("method", [_Limit.__enter__, _Limit.__exit__])
def test_a_ring_while_a_row_is_taken_or_given_back_raises_nothing_there(method: Any) -> None:
    with deadline(60):
        _Limit.over_at = time.monotonic() - 1
        _ring(signal.SIGALRM, cast("Any", SimpleNamespace(f_code=method.__code__)))
        with pytest.raises(TimedOut):
            _ring(signal.SIGALRM, None)
