"""The windows of a key that are not done yet: what they hold, what was said of them, and what is said next.

Rows are kept in slices, each row once, however many windows overlap: a window is the slices between its start and its
end, one after the other. Of each window there is a small record beside them. Rows that come are gathered, and join
their slice when something is said of it: where single rows may give results, joining each would copy all before it.

    open        its end is ahead of the watermark; a trigger may ask for early results
    closed      the watermark has reached its end: the final result is told
    corrected   while `allowed` lasts, rows that come after the end change the result, which is told again
    done        forgotten; a row for it is late

Where a window may be told more than once its results are numbered: `revision` counts them from 0, and the one with the
highest number is the one that holds. `is_final` says that the watermark had reached the end of the window.

Sessions that meet become one, and the one keeps the earliest start. What was told of the others is then taken back: a
row with the old `window_start`, the next revision, null for every aggregate, and a `window_end` equal to the
`window_start`, which no real window has. It is final if what it takes back was. The same row takes a result back whose
function has nothing more to say.
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

# A record: the end; how many results were told; the end that a final one was told for; how many rows came since the
# last result; the processing time of the last result, or of the first row.
_END, _TOLD, _FINAL, _SINCE, _ASKED = range(5)
_Record = list[Any]


@dataclass(frozen=True)
class Triggers:
    """When a window is told beside the moment that the watermark reaches its end.

    Durations are microseconds. `allowed` is for how long rows behind the end still correct the result, None where they
    never do; with `is_on_late` each such row gives a result of its own, without it the rows of an epoch give one.
    Early results come `early_every` of processing time where something changed, or after every `early_events` rows.
    """

    allowed: int | None = None
    is_on_late: bool = False
    early_every: int | None = None
    early_events: int | None = None

    @property
    def has_revisions(self) -> bool:
        """May a window be told more than once?"""
        return self.allowed is not None or self.early_every is not None or self.early_events is not None

    @property
    def is_per_row(self) -> bool:
        """May a single row give a result?"""
        return self.is_on_late or self.early_events is not None


class OpenWindows:
    """The windows of one key, for the time of one step."""

    def __init__(self, evaluation: Evaluation, triggers: Triggers, key: Key, state: Any, clock: Clock) -> None:
        slices, windows = ({}, {}) if state is None else state
        self._slices: dict[int, Any] = dict(slices)
        self._gathered: dict[int, list[Values]] = {}  # rows that have not joined their slice yet
        self._windows: dict[int, _Record] = {start: list(record) for start, record in windows.items()}
        self._starts: list[int] = sorted(windows)  # kept up by `meet`, which alone looks at it
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
        """Rows of the slice that begins at `at`, which all of these windows (start, end) hold."""
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
                    self._tell(start, record, is_final=True)
            elif triggers.early_events is not None and record[_SINCE] >= triggers.early_events:
                self._tell(start, record, is_final=False)

    def meet(self, start: int, end: int) -> tuple[int, int]:
        """Make one session of this one and all that it touches; its start and end."""
        # Sessions never overlap: in the order of their starts they are in that of their ends.
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
            records[0][_TOLD] if met[0] == first else 0,  # no window of this start was told yet
            records[0][_FINAL] if met[0] == first else None,
            sum(record[_SINCE] for record in records),
            min(record[_ASKED] for record in records),
        ]
        return first, last

    def settle(self) -> Outcome:
        """Tell what the time asks for, forget what is done, and say when to be woken."""
        now, wall = self._clock.now, self._clock.wall
        every = self._triggers.early_every
        wakes: list[int] = []
        wakes_wall: list[int] = []
        for start, record in sorted(self._windows.items(), key=lambda item: (item[1][_END], item[0])):
            end = record[_END]
            if end <= now:
                if record[_SINCE] or record[_FINAL] != end:
                    self._tell(start, record, is_final=True)
                if end + self._allowed <= now:
                    del self._windows[start]
                else:
                    wakes.append(end + self._allowed)
                continue
            wakes.append(end)
            if every is not None and record[_SINCE]:
                if record[_ASKED] + every <= wall:
                    self._tell(start, record, is_final=False)
                else:
                    wakes_wall.append(record[_ASKED] + every)
        if not self._windows:
            return Outcome(None, self._rows)
        # Windows are done in the order of their starts, so what begins before all of them is in none of them.
        first = min(self._windows)
        slices = {at: self._slice(at) for at in self._slices if at >= first}
        return Outcome((slices, self._windows), self._rows, min(wakes), min(wakes_wall, default=None))

    def _tell(self, start: int, record: _Record, *, is_final: bool) -> None:
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
        """What numbers a result; nothing where a window is told once, also if that was otherwise when it opened."""
        return (record[_TOLD], is_final) if self._triggers.has_revisions else ()

    def _slice(self, at: int) -> Any:
        """What is kept of a slice, with all rows that came."""
        rows = self._gathered.pop(at, None)
        if rows is not None:
            self._slices[at] = self._evaluation.take(self._slices[at], rows)
        return self._slices[at]
