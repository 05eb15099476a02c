"""A step that goes on without the rows that the author's code fails on, and one whose time is limited."""

from collections.abc import Sequence
from typing import Any

import pytest

from lockgate.operators.contract import Clock, Key, Outcome, StepFailed, Values
from lockgate.operators.encoding import PLAIN
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
    take = tolerant(add_up, lambda failed: aside.append(failed.number), PLAIN)
    outcome = take(("k",), [5], [(0, 1), (1, -7), (2, 2), (3, -1)], CLOCK)
    assert (outcome.state, aside) == ([8], [1, 3])


def test_a_key_of_which_nothing_is_left_is_not_begun() -> None:
    assert tolerant(add_up, lambda failed: None, PLAIN)(("k",), None, [(0, -1)], CLOCK) == Outcome(None)


def test_what_fails_without_a_row_fails() -> None:
    with pytest.raises(StepFailed, match="unlucky"):
        tolerant(add_up, lambda failed: None, PLAIN)(("k",), [13], [], CLOCK)
