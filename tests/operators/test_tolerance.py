"""A step that goes on without the rows that the author's code fails on, and one whose time is limited."""

import signal
import time
from collections.abc import Sequence
from typing import Any

import pytest

from lockgate.operators.contract import Clock, Key, Outcome, StepFailed, Values
from lockgate.operators.deadline import TimedOut, deadline
from lockgate.operators.tolerance import tolerant

CLOCK = Clock(before=0, now=0, wall=0)


def add_up(key: Key, state: Any, rows: Sequence[Values], clock: Clock) -> Outcome:
    """Sums into a list that it changes in place, as a careless function does."""
    held = state if state is not None else [0]
    for number, amount in rows:
        held[0] += amount
        if amount < 0:
            raise StepFailed("negative", number)
    if not rows and held[0] == 13:
        raise StepFailed("unlucky")
    return Outcome(held, [(0, (held[0],))])


def test_rows_that_fail_are_put_aside_and_leave_no_trace() -> None:
    aside: list[int | None] = []
    take = tolerant(add_up, lambda failed: aside.append(failed.number))
    outcome = take(("k",), [5], [(0, 1), (1, -7), (2, 2), (3, -1)], CLOCK)
    assert (outcome.state, aside) == ([8], [1, 3])


def test_a_key_of_which_nothing_is_left_is_not_begun() -> None:
    assert tolerant(add_up, lambda failed: None)(("k",), None, [(0, -1)], CLOCK) == Outcome(None)


def test_what_fails_without_a_row_fails() -> None:
    with pytest.raises(StepFailed, match="unlucky"):
        tolerant(add_up, lambda failed: None)(("k",), [13], [], CLOCK)


def test_code_whose_time_is_over_is_cut_off_whatever_it_catches() -> None:
    def stubborn() -> None:
        while True:
            try:
                time.sleep(60)
            except Exception:  # noqa: BLE001 - this is what must not help
                continue

    with pytest.raises(TimedOut), deadline(0.05):
        stubborn()
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_code_within_its_time_is_left_alone() -> None:
    with deadline(60):
        pass
    with deadline(None):
        pass
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
