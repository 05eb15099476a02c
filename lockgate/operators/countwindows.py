"""Windows that end with an event: after a number of events of a key, or with an event for which a condition holds.

Events count as they arrive: epoch by epoch, and inside an epoch in the order of their source positions. So no event is
late. If all events of a key come from one partition, they have the order of the partition, and how they fall into
epochs changes no result. If they come from several partitions, it can. `window_start` and `window_end` are the least
and the greatest time among the events of a window.

    tumbling_count(n)           a result with every n-th event
    sliding_count(n, every=m)   a result with every m-th event, over the last n; at first over fewer
    until(condition)            a result with every event for which the condition holds, over it and all since the last
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any

from lockgate.operators.contract import Clock, Key, Operator, Outcome, Side, Values
from lockgate.operators.evaluation import Evaluation, time_of
from lockgate.operators.windows import SPAN

_Slot = list[Any]
"""What is kept of several consecutive events, and their least and greatest time."""


@dataclass(frozen=True)
class CountWindows(Operator):
    """Windows of the last `size` events, one ending with every `every`-th; tumbling if the two are equal.

    Events are kept in slots. The size of a slot is the greatest number that divides both. A fold cannot forget an
    event, so a window is the merge of whole slots.
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
        """Fill slot after slot; emit a window whenever `every` events have come."""
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
                results += _results_of(self.evaluation, key, slots)
                slots = slots[max(0, len(slots) - needed_later) :]
                since = 0
        return Outcome([since, slots] if slots else None, results)


@dataclass(frozen=True)
class UntilWindows(Operator):
    """Windows that end with an event for which the column `condition` is true; null does not end one."""

    column: str
    condition: str
    evaluation: Evaluation
    reads: tuple[str, ...] = field(init=False)
    sides: tuple[Side, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reads", (self.column, *self.evaluation.reads, self.condition))
        object.__setattr__(self, "sides", _sides(self.evaluation))

    def step(self, key: Key, state: Any, rows: Sequence[Values], clock: Clock) -> Outcome:
        """Collect events; emit them whenever one ends the window."""
        slot: _Slot | None = state
        results: list[tuple[int, Values]] = []
        begin = 0
        for at, row in enumerate(rows, start=1):
            if row[-1]:
                results += _results_of(self.evaluation, key, [_grown(self.evaluation, slot, rows[begin:at])])
                slot, begin = None, at
        if begin < len(rows):
            slot = _grown(self.evaluation, slot, rows[begin:])
        return Outcome(slot, results)


def _sides(evaluation: Evaluation) -> tuple[Side, ...]:
    return (Side("result", ", ".join((*SPAN, *evaluation.columns))),)


def _grown(evaluation: Evaluation, slot: _Slot | None, rows: Sequence[Values]) -> _Slot:
    times = [time_of(row) for row in rows]
    if slot is None:
        return [evaluation.take(None, rows), min(times), max(times)]
    kept, earliest, latest = slot
    return [evaluation.take(kept, rows), min(earliest, *times), max(latest, *times)]


def _results_of(evaluation: Evaluation, key: Key, slots: Sequence[_Slot]) -> list[tuple[int, Values]]:
    start, end = min(slot[1] for slot in slots), max(slot[2] for slot in slots)
    kept = evaluation.merge([slot[0] for slot in slots])
    return [(0, (start, end, *values)) for values in evaluation.results(key, kept)]
