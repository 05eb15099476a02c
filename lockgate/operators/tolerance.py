"""A step that continues without the rows on which the user's code fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lockgate.operators.contract import Clock, Key, Outcome, StepFailed, Values
from lockgate.operators.encoding import Encoding
from lockgate.operators.page import Step

PutAside = Callable[[StepFailed], None]


def tolerant(step: Step, put_aside: PutAside, encoding: Encoding) -> Step:
    """The step, which puts a row aside if it fails on it, and starts again for that key without the row.

    Code that fails may have changed the state that it was given, so a key starts again with a copy. If a timer or the
    function of a whole window fails, there is no row to put aside, and the step fails.
    """

    def take(key: Key, state: Any, rows: Sequence[Values], clock: Clock) -> Outcome:
        before = encoding.encode(state)
        while True:
            try:
                return step(key, state, rows, clock)
            except StepFailed as failed:
                if failed.number is None:
                    raise
                put_aside(failed)
                rows = [row for row in rows if row[0] != failed.number]
                state = encoding.decode(before)
                if state is None and not rows:
                    return Outcome(None)

    return take
