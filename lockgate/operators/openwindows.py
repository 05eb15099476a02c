"""The open windows of a key: what they hold, which results they have emitted, and which come next.

Rows are kept in slices, each row once, however many windows overlap. A window is the slices between its start and its
end. Beside them each window has a small record. New rows are collected, and join their slice when a result is emitted:
if single rows can give results, joining each of them would copy all rows before it.

What is kept of a key is [slices, windows], both as lists of pairs: [start, what is kept] and [start, record].

    open        its end is after the watermark; a trigger may ask for early results
    closed      the watermark has reached its end: the final result is emitted
    corrected   during `allowed`, rows that come after the end change the result, which is emitted again
    done        forgotten; a row for it is late

If a window can emit several results, they are numbered: `revision` counts them from 0, and the one with the highest
number is valid. `is_final` says that the watermark had reached the end of the window.

Sessions that meet become one, which keeps the earliest start. The results of the others are then taken back by a row
with the old `window_start`, the next revision, null for every aggregate, and a `window_end` equal to the
`window_start`, which no real window has. It is final if the result was. The same row takes back a result whose function
returns nothing any more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lockgate.operators.contract import Clock, Key, Outcome, Values
from lockgate.operators.evaluation import Evaluation

RESULT, LATE = 0, 1
"""The sides of a window."""

# A record: the end; how many results were emitted; the end for which a final one was emitted; how many rows came since
# the last result; the processing time of the last result, or of the first row.
_END, _TOLD, _FINAL, _SINCE, _ASKED = range(5)
_Record = list[Any]


@dataclass(frozen=True)
class Triggers:
    """When a window emits a result, in addition to the moment when the watermark reaches its end.

    Durations are microseconds. `allowed` is for how long rows after the end still correct the result; None means never.
    With `is_on_late` each such row gives a result; without it the rows of an epoch give one together. Early results
    come after `early_every` of processing time if something changed, or after every `early_events` rows.
    """

    allowed: int | None = None
    is_on_late: bool = False
    early_every: int | None = None
    early_events: int | None = None

    @property
    def has_revisions(self) -> bool:
        """May a window emit more than one result?"""
        return self.allowed is not None or self.early_every is not None or self.early_events is not None

    @property
    def is_per_row(self) -> bool:
        """May a single row give a result?"""
        return self.is_on_late or self.early_events is not None


class OpenWindows:
    """The windows of one key, for the time of one step."""

    def __init__(self, evaluation: Evaluation, triggers: Triggers, key: Key, state: Any, clock: Clock) -> None:
        slices, windows = ((), ()) if state is None else state
        self._slices: dict[int, Any] = dict(slices)
        self._gathered: dict[int, list[Values]] = {}  # rows that have not joined their slice yet
        pairs = windows.items() if type(windows) is dict else windows  # a dict in state of format 1
        self._windows: dict[int, _Record] = {start: [*record] for start, record in pairs}
        self._starts: list[int] = sorted(self._windows)  # kept up to date by `meet`, its only reader
        self._evaluation = evaluation
        self._triggers = triggers
        self._allowed = triggers.allowed or 0
        self._key = key
        self._clock = clock
        self._rows: list[tuple[int, Values]] = []

    def is_done(self, end: int) -> bool:
        """Is a window with this end forgotten, so that a row for it is late?"""
        return end + self._allowed <= self._clock.before

    def miss(self, row: Values, start: int, end: int) -> None:
        """A row came too late for this window."""
        self._rows.append((LATE, (row[0], start, end)))

    def take(self, at: int, windows: Sequence[tuple[int, int]], rows: Sequence[Values]) -> None:
        """Take rows of the slice that begins at `at`. All of these windows (start, end) hold the slice."""
        self._slices.setdefault(at, None)
        self._gathered.setdefault(at, []).extend(rows)
        triggers = self._triggers
        for start, end in windows:
            record = self._windows.get(start)
            if record is None:
                record = self._windows[start] = [end, 0, None, 0, self._clock.wall]
            record[_SINCE] += len(rows)
            if end <= self._clock.before:
                if triggers.is_on_late:
                    self._emit(start, record, is_final=True)
            elif triggers.early_events is not None and record[_SINCE] >= triggers.early_events:
                self._emit(start, record, is_final=False)

    def meet(self, start: int, end: int) -> tuple[int, int]:
        """Join this session with all that it touches; return the start and end of the result."""
        # Sessions never overlap, so the order of their starts is also the order of their ends.
        last_met = first_met = bisect_right(self._starts, end)
        while first_met and start <= self._windows[self._starts[first_met - 1]][_END]:
            first_met -= 1
        met = self._starts[first_met:last_met]
        if not met:
            self._starts.insert(first_met, start)
            return start, end
        first = min(start, met[0])
        self._starts[first_met:last_met] = [first]
        records = [self._windows.pop(other) for other in met]
        last = max(end, *(record[_END] for record in records))
        for other, record in zip(met, records, strict=True):
            if other != first and record[_TOLD]:
                self._take_back(other, record, is_final=record[_FINAL] is not None)
        if met != [first]:
            parts = [self._slice(other) for other in met]
            for other in met:
                del self._slices[other]
            self._slices[first] = self._evaluation.merge(parts)
        self._windows[first] = [
            last,
            records[0][_TOLD] if met[0] == first else 0,  # no window with this start has emitted a result
            records[0][_FINAL] if met[0] == first else None,
            sum(record[_SINCE] for record in records),
            min(record[_ASKED] for record in records),
        ]
        return first, last

    def settle(self) -> Outcome:
        """Emit the results that are due, forget what is done, and say when to be called again."""
        now, wall = self._clock.now, self._clock.wall
        every = self._triggers.early_every
        wakes: list[int] = []
        wakes_wall: list[int] = []
        for start, record in sorted(self._windows.items(), key=lambda item: (item[1][_END], item[0])):
            end = record[_END]
            if end <= now:
                if record[_SINCE] or record[_FINAL] != end:
                    self._emit(start, record, is_final=True)
                if end + self._allowed <= now:
                    del self._windows[start]
                else:
                    wakes.append(end + self._allowed)
                continue
            wakes.append(end)
            if every is not None and record[_SINCE]:
                if record[_ASKED] + every <= wall:
                    self._emit(start, record, is_final=False)
                else:
                    wakes_wall.append(record[_ASKED] + every)
        if not self._windows:
            return Outcome(None, self._rows)
        # Windows end in the order of their starts, so a slice before the first window is in no window.
        first = min(self._windows)
        slices = [[at, self._slice(at)] for at in self._slices if at >= first]
        kept = [slices, [[start, record] for start, record in self._windows.items()]]
        return Outcome(kept, self._rows, min(wakes), min(wakes_wall, default=None))

    def _emit(self, start: int, record: _Record, *, is_final: bool) -> None:
        end = record[_END]
        parts = [self._slice(at) for at in sorted(at for at in self._slices if start <= at < end)]
        results = list(self._evaluation.results(self._key, self._evaluation.merge(parts)))
        if results:
            revision = self._revision(record, is_final=is_final)
            self._rows += [(RESULT, (start, end, *revision, *values)) for values in results]
        elif record[_TOLD]:
            self._take_back(start, record, is_final=is_final)
        if results or record[_TOLD]:
            record[_TOLD] += 1
        record[_SINCE] = 0
        record[_ASKED] = self._clock.wall
        if is_final:
            record[_FINAL] = end

    def _take_back(self, start: int, record: _Record, *, is_final: bool) -> None:
        nothing = (None,) * len(self._evaluation.columns)
        self._rows.append((RESULT, (start, start, *self._revision(record, is_final=is_final), *nothing)))

    def _revision(self, record: _Record, *, is_final: bool) -> Values:
        """The number of a result; nothing if a window emits one result, even if it was opened under other triggers."""
        return (record[_TOLD], is_final) if self._triggers.has_revisions else ()

    def _slice(self, at: int) -> Any:
        """What is kept of a slice, with all rows that came."""
        rows = self._gathered.pop(at, None)
        if rows is not None:
            self._slices[at] = self._evaluation.take(self._slices[at], rows)
        return self._slices[at]
