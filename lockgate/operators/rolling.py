"""Rolling aggregates: every event, with aggregates over its key up to and including that event.

The folds of a key are independent. So each runs down its own column of values, and the results are put beside the rows
at the end. Sums and counts are the most common: they run down their column without a call for each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import Any

from lockgate.operators.aggregatefolds import BIGINT_MAX, BIGINT_MIN, Count, Sum
from lockgate.operators.contract import Clock, Key, Operator, Outcome, Side, StepFailed, Values
from lockgate.operators.fold import Fold


@dataclass(frozen=True)
class Rolled:
    """One aggregate: its name and type in the result, the column that its values come in, and how they are kept."""

    name: str
    type: str
    column: str
    fold: Fold


class RollingOperator(Operator):
    """Gives every row with the aggregates up to it. `identity` is read if a fold needs it."""

    def __init__(self, aggregates: Sequence[Rolled], identity: str | None = None) -> None:
        self.aggregates = tuple(aggregates)
        self.reads = (*(rolled.column for rolled in aggregates), *([identity] if identity else ()))
        columns = ", ".join(f"`{rolled.name.replace('`', '``')}` {rolled.type}" for rolled in aggregates)
        self.sides = (Side(name="result", columns=columns, keeps_row=True),)
        self.has_identity = identity is not None

    def step(self, key: Key, state: Any, rows: Sequence[Values], clock: Clock) -> Outcome:
        if not rows:
            return Outcome(state)
        numbers, *columns = zip(*rows, strict=True)
        identities: Sequence[int] = columns.pop() if self.has_identity else (0,) * len(rows)
        before = [rolled.fold.empty() for rolled in self.aggregates] if state is None else state
        after = []
        results = []
        for rolled, kept, values in zip(self.aggregates, before, columns, strict=True):
            now, shown = _scan_quickly(rolled.fold, kept, values) or _scan(rolled, kept, values, identities, numbers)
            after.append(now)
            results.append(shown)
        return Outcome(after, list(zip(repeat(0), zip(numbers, *results, strict=True), strict=False)))


def _scan_quickly(fold: Fold, kept: Any, values: Values) -> tuple[Any, Sequence[Any]] | None:
    """What is kept after all values, and the result after each, if that needs no call for each value; else None."""
    kind = type(fold)
    if kind is Count and None not in values:
        now = kept + len(values)
        return now, range(kept + 1, now + 1)
    if kind is not Sum:
        return None
    types = {*map(type, values)}
    if types != {int} and types != {float}:
        return None
    totals = list(accumulate(values) if kept is None else accumulate(values, initial=kept))
    if types == {int} and not BIGINT_MIN <= min(totals) <= max(totals) <= BIGINT_MAX:
        return None  # the slow way finds the row
    return totals[-1], totals if kept is None else totals[1:]


def _scan(
    rolled: Rolled, kept: Any, values: Values, identities: Sequence[int], numbers: Sequence[int]
) -> tuple[Any, Sequence[Any]]:
    add, result = rolled.fold.add, rolled.fold.result
    shown: list[Any] = []
    for value, identity in zip(values, identities, strict=True):
        try:
            kept = add(kept, value, identity)
            shown.append(result(kept))
        except StepFailed as failure:
            raise StepFailed(f"{rolled.name}: {failure.reason}", numbers[len(shown)]) from failure
    return kept, shown
