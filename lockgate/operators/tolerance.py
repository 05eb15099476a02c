"""A step that goes on without the rows that the author's code fails on."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

from lockgate.operators.contract import Clock, Key, Outcome, StepFailed, Values
from lockgate.operators.page import PICKLE, Step

PutAside = Callable[[StepFailed], None]


def tolerant(step: Step, put_aside: PutAside) -> Step:
    """The step, which puts a row aside that it fails on, and begins again for that key without it.

    Code that fails may have changed the state that it was given, so a key begins again with a copy. What fails without
    a row, as a timer or the function of a whole window, has nothing that could be put aside, and fails.
    """

    def take(key: Key, state: Any, rows: Sequence[Values], clock: Clock) -> Outcome:
        before = pickle.dumps(state, PICKLE)
        while True:
            try:
                return step(key, state, rows, clock)
            except StepFailed as failed:
                if failed.number is None:
                    raise
                put_aside(failed)
                rows = [row for row in rows if row[0] != failed.number]
                state = pickle.loads(before)
                if state is None and not rows:
                    return Outcome(None)

    return take
