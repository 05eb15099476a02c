"""Windows that end by what came, not by the time: after so many events of a key, or with an event that says so.

Events count as they arrive: epoch by epoch, and inside an epoch in the order of their source positions. So nothing is
ever late. Where all events of a key come from one partition, that is its order, and how they fall into epochs changes
no result; where they come from several, it does. `window_start` and `window_end` are the smallest and the greatest
time among the events of a window.

    tumbling_count(n)           a result with every n-th event
    sliding_count(n, every=m)   a result with every m-th event, of the last n; of fewer while there are no more
    until(condition)            a result with every event for which the condition holds, of it and all since the last
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any

from lockgate.operators.contract import Clock, Key, Operator, Outcome, Side, Values
from lockgate.operators.evaluation import Evaluation, time_of
from lockgate.operators.windows import SPAN

_Slot = tuple[Any, int, int]
"""What is kept of some events that came one after the other, and their smallest and greatest time."""


@dataclass(frozen=True)
class CountWindows(Operator):
    """Windows of the last `size` events, one ending with every `every`-th; tumbling where the two are equal.

    Events are kept in slots of as many as divide both numbers, so that a fold, which cannot forget an event, needs no
    more than what it keeps of each slot.
    """

    column: str
    size: int
    every: int
    evaluation: Evaluation
    reads: tuple[str, ...] = field(init=False)
    sides: tuple[Side, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads", (self.column, *self.evaluation.reads))
        object.__setattr__(self, "sides", _sides(self.evaluation))

    def step(self, key: Key, state: Any, rows: Sequence[Values], clock: Clock) -> Outcome:
        """Fill slot after slot; tell the last ones whenever `every` events have come."""
        since, slots = (0, []) if state is None else (state[0], list(state[1]))
        width = gcd(self.size, self.every)
        needed_later = (self.size - self.every) // width
        results: list[tuple[int, Values]] = []
        at = 0
        while at < len(rows):
            filled = since % width
            batch = rows[at : at + width - filled]
            slots.append(_grown(self.evaluation, slots.pop() if filled else None, batch))
            at += len(batch)
            since += len(batch)
            if since == self.every:
                results += _told(self.evaluation, key, slots)
                slots = slots[max(0, len(slots) - needed_later) :]
                since = 0
        return Outcome((since, slots) if slots else None, results)


@dataclass(frozen=True)
class UntilWindows(Operator):
    """Windows that end with an event for which the column `condition` is true; null is not."""

    column: str
    condition: str
    evaluation: Evaluation
    reads: tuple[str, ...] = field(init=False)
    sides: tuple[Side, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads", (self.column, *self.evaluation.reads, self.condition))
        object.__setattr__(self, "sides", _sides(self.evaluation))

    def step(self, key: Key, state: Any, rows: Sequence[Values], clock: Clock) -> Outcome:
        """Gather events; tell them whenever one ends the window."""
        slot: _Slot | None = state
        results: list[tuple[int, Values]] = []
        begin = 0
        for at, row in enumerate(rows, start=1):
            if row[-1]:
                results += _told(self.evaluation, key, [_grown(self.evaluation, slot, rows[begin:at])])
                slot, begin = None, at
        if begin < len(rows):
            slot = _grown(self.evaluation, slot, rows[begin:])
        return Outcome(slot, results)


def _sides(evaluation: Evaluation) -> tuple[Side, ...]:
    return (Side("result", ", ".join((*SPAN, *evaluation.columns))),)


def _grown(evaluation: Evaluation, slot: _Slot | None, rows: Sequence[Values]) -> _Slot:
    times = [time_of(row) for row in rows]
    if slot is None:
        return evaluation.take(None, rows), min(times), max(times)
    kept, earliest, latest = slot
    return evaluation.take(kept, rows), min(earliest, *times), max(latest, *times)


def _told(evaluation: Evaluation, key: Key, slots: Sequence[_Slot]) -> list[tuple[int, Values]]:
    start, end = min(slot[1] for slot in slots), max(slot[2] for slot in slots)
    kept = evaluation.merge([slot[0] for slot in slots])
    return [(0, (start, end, *values)) for values in evaluation.results(key, kept)]
