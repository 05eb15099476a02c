"""Windows over time, as an operator: tumbling, sliding and session, for all that Spark's own windows cannot express.

Which window an event is in, when a window closes and which event is late are exactly as with Spark's `window` and
`session_window`, so both forms of a job mean the same:

    tumbling, sliding   begin at multiples of the slide since 1970, in UTC, also before 1970
    session             an event at t is [t, t + gap]; what overlaps or touches is one session, which ends `gap` after
                        its last event
    closes              when the watermark reaches its end
    late                if the window of the event alone (for a session: [t, t + gap]) is done, see `openwindows`,
                        whatever session it might have joined

Results have `window_start` and `window_end`; if a window can emit several results, also `revision` and `is_final`. A
late event gives a row for every window that it missed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any

from lockgate.operators.contract import Clock, Key, Operator, Outcome, Side, Time, Values
from lockgate.operators.evaluation import Evaluation, time_of
from lockgate.operators.openwindows import OpenWindows, Triggers

SPAN = ("window_start TIMESTAMP", "window_end TIMESTAMP")
_REVISION = ("revision INT", "is_final BOOLEAN")

AT_THE_END = Triggers()
"""One result for each window, when the watermark reaches its end."""

Batches = Iterator[tuple[int, Sequence[Values]]]


@dataclass(frozen=True)
class Aligned:
    """Windows of `size`, one beginning every `every` microseconds; tumbling if the two are equal."""

    size: int
    every: int

    def windows(self, time: int) -> list[tuple[int, int]]:
        """The windows (start, end) that hold a time, the earliest first."""
        last = time - time % self.every
        return [(start, start + self.size) for start in range(last, time - self.size, -self.every)][::-1]

    def assign(self, rows: Sequence[Values], windows: OpenWindows, *, is_per_row: bool) -> None:
        """Add the rows to their windows."""
        for at, batch in self._slices(rows, is_per_row):
            live = []
            for start, end in self.windows(at):
                if windows.is_done(end):
                    for row in batch:
                        windows.miss(row, start, end)
                else:
                    live.append((start, end))
            if live:
                windows.take(at, live, batch)

    def _slices(self, rows: Sequence[Values], is_per_row: bool) -> Batches:
        """The rows by slice: the longest pieces of time that every window contains completely or not at all."""
        width = gcd(self.size, self.every)
        batches: dict[int, list[Values]] = {}
        for row in rows:
            time = time_of(row)
            at = time - time % width
            if is_per_row:
                yield at, (row,)
            else:
                batches.setdefault(at, []).append(row)
        yield from batches.items()


@dataclass(frozen=True)
class Sessions:
    """A window per burst of events that ends `gap` microseconds after the last."""

    gap: int

    def assign(self, rows: Sequence[Values], windows: OpenWindows, *, is_per_row: bool) -> None:
        """Add the rows to their sessions."""
        live: list[tuple[int, int]] = []
        for at, row in enumerate(rows):
            time = time_of(row)
            if windows.is_done(time + self.gap):
                windows.miss(row, time, time + self.gap)
            else:
                live.append((time, at))
        for burst in [[one] for one in live] if is_per_row else self._bursts(sorted(live)):
            session = windows.meet(burst[0][0], burst[-1][0] + self.gap)
            # In the order of arrival, and not by their times: that is the order which folds are promised.
            windows.take(session[0], [session], [rows[at] for at in sorted(at for _, at in burst)])

    def _bursts(self, ordered: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
        """The rows (time, place) by session, as far as these rows alone decide it."""
        bursts: list[list[tuple[int, int]]] = []
        for one in ordered:
            if not bursts or one[0] > bursts[-1][-1][0] + self.gap:
                bursts.append([])
            bursts[-1].append(one)
        return bursts


@dataclass(frozen=True)
class TimeWindows(Operator):
    """Windows over the time in `column`, in microseconds. Late events are the second side."""

    column: str
    shape: Aligned | Sessions
    evaluation: Evaluation
    triggers: Triggers = AT_THE_END
    time: Time = field(init=False)
    reads: tuple[str, ...] = field(init=False)
    sides: tuple[Side, ...] = field(init=False)

    def __post_init__(self) -> None:
        columns = (*SPAN, *(_REVISION if self.triggers.has_revisions else ()), *self.evaluation.columns)
        object.__setattr__(self, "reads", (self.column, *self.evaluation.reads))
        sides = (Side("result", ", ".join(columns)), Side("late", ", ".join(SPAN), keeps_row=True))
        object.__setattr__(self, "sides", sides)
        # An early result is due by the clock, even if no event comes that would start an epoch.
        object.__setattr__(self, "time", Time.EVENT if self.triggers.early_every is None else Time.BOTH)

    def step(self, key: Key, state: Any, rows: Sequence[Values], clock: Clock) -> Outcome:
        """Take the rows of an epoch, emit what closes, forget what is done."""
        windows = OpenWindows(self.evaluation, self.triggers, key, state, clock)
        self.shape.assign(rows, windows, is_per_row=self.triggers.is_per_row)
        return windows.settle()
