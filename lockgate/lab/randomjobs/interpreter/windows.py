"""Windows: which rows are in which window, which rows are late, and how often a window has a result (docs/WINDOWS.md).

The watermark that acts in an epoch is `acting[epoch]`. Before an epoch takes its rows, everything that this watermark
closes is closed: a silent epoch follows each move of the watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from lockgate.lab.randomjobs.interpreter.rows import Row, Undetermined
from lockgate.lab.randomjobs.spec import START, Window

BY_TIME = ("tumbling", "sliding", "session")

_START_S = int(START.timestamp())

Watermarks = Sequence[int | None]
"""The watermark that acts in each epoch; None while no time is known."""

Span = tuple[int, int]


@dataclass(frozen=True)
class Told:
    """A result of a window, from its rows in arrival order; without rows it takes an earlier result back."""

    span: Span | None  # None: the bounds depend on the clock
    rows: tuple[Row, ...]
    came: float  # the epoch; results that time closed are between two epochs
    revision: int = 0


@dataclass(frozen=True)
class Missed:
    """A row that came too late for a window."""

    row: Row
    span: Span


def spans_of(window: Window, time: int) -> list[Span]:
    """The windows by time that an event is in. They begin at multiples of their size, or slide, since 1970."""
    if window.kind == "session":
        return [(time, time + window.size_seconds)]
    every = window.size_seconds if window.kind == "tumbling" else window.every_seconds
    last = time - (time + _START_S) % every
    return [(start, start + window.size_seconds) for start in range(last, time - window.size_seconds, -every)]


def time_windows(
    window: Window, rows: Sequence[Row], acting: Watermarks, allowed: int | None
) -> tuple[list[Told], list[Missed]]:
    """The results of one key, told once; with `allowed`, told again when a late event corrects them."""
    missed: list[Missed] = []
    if window.kind == "session":
        return _sessions(window.size_seconds, rows, acting, allowed, missed), missed
    open_windows: dict[Span, _Kept] = {}
    told: list[Told] = []
    for arrived, watermark in _by_epoch(rows, acting):
        _close(open_windows.values(), watermark, told, acting)
        touched: dict[Span, _Kept] = {}
        for row in arrived:
            for span in spans_of(window, _time(row)):
                if _is_late(row, span[1] + (allowed or 0), watermark):
                    missed.append(Missed(row, span))
                    continue
                touched[span] = kept = open_windows.setdefault(span, _Kept(*span))
                kept.rows.append(row)
        _correct(touched.values(), watermark, told)
    _close(open_windows.values(), None, told, acting, at_end=True)
    return told, missed


@dataclass(eq=False)
class _Kept:
    """A window by time that is kept; `revision` is that of its next result."""

    start: int
    end: int
    rows: list[Row] = field(default_factory=list)
    revision: int = 0
    is_told: bool = False

    def tell(self, told: list[Told], came: float) -> None:
        told.append(Told((self.start, self.end), tuple(self.rows), came, self.revision))
        self.revision += 1
        self.is_told = True


def _sessions(
    gap: int, rows: Sequence[Row], acting: Watermarks, allowed: int | None, missed: list[Missed]
) -> list[Told]:
    sessions: list[_Kept] = []
    told: list[Told] = []
    for arrived, watermark in _by_epoch(rows, acting):
        _close(sessions, watermark, told, acting)
        if watermark is not None:
            sessions = [one for one in sessions if one.end + (allowed or 0) > watermark]
        touched: list[_Kept] = []
        for row in arrived:
            start, end = _time(row), _time(row) + gap
            if _is_late(row, end + (allowed or 0), watermark):
                missed.append(Missed(row, (start, end)))
                continue
            near = [one for one in sessions if one.start <= end and start <= one.end]
            first = min([start, *(one.start for one in near)])
            joined = next((one for one in near if one.start == first), _Kept(first, end))
            for other in near:
                if other is not joined:
                    joined.rows += other.rows
                    if other.revision:  # a result with this start was given: take it back
                        told.append(Told((other.start, other.start), (), row.epoch, other.revision))
            joined.rows.append(row)
            joined.end = max([end, *(one.end for one in near)])
            joined.is_told = joined.is_told and watermark is not None and joined.end <= watermark
            sessions = [*(one for one in sessions if one not in near), joined]
            touched.append(joined)
        _correct([one for one in sessions if one in touched], watermark, told)
    _close(sessions, None, told, acting, at_end=True)
    return told


def _by_epoch(rows: Iterable[Row], acting: Watermarks) -> Iterable[tuple[list[Row], int | None]]:
    arrived: dict[int, list[Row]] = {}
    for row in rows:
        arrived.setdefault(row.epoch, []).append(row)
    for epoch in sorted(arrived):
        yield arrived[epoch], acting[epoch]


def _close(
    windows: Iterable[_Kept], watermark: int | None, told: list[Told], acting: Watermarks, *, at_end: bool = False
) -> None:
    for one in windows:
        if not one.is_told and (at_end or (watermark is not None and one.end <= watermark)):
            one.tell(told, _closed(one.end, acting))


def _closed(end: int, acting: Watermarks) -> float:
    """When time closes a window: in the silent epoch before the first one in which the watermark is at its end."""
    passed = (epoch for epoch, watermark in enumerate(acting) if watermark is not None and end <= watermark)
    return next(passed, len(acting)) - 0.5


def _correct(touched: Iterable[_Kept], watermark: int | None, told: list[Told]) -> None:
    """Tell again what is over already: all late events of an epoch give one result."""
    for one in touched:
        if watermark is not None and one.end <= watermark:
            one.tell(told, one.rows[-1].epoch)


def _is_late(row: Row, end: int, watermark: int | None) -> bool:
    return row.can_be_late and watermark is not None and end <= watermark


def _time(row: Row) -> int:
    if row.time is None:
        raise Undetermined("a window goes by the clock")
    return row.time


def count_windows(window: Window, rows: Sequence[Row], holds: Callable[[Row], bool]) -> list[Told]:
    """The results of one key for windows by count or condition, from its rows in arrival order."""
    told: list[Told] = []
    begin = 0
    for number, row in enumerate(rows, start=1):
        if window.kind == "tumbling_count" and number % window.count == 0:
            begin = number - window.count
        elif window.kind == "sliding_count" and number % window.every_count == 0:
            begin = max(0, number - window.count)
        elif window.kind != "until" or not holds(row):
            continue
        told.append(_of_rows(tuple(rows[begin:number])))
        begin = number
    return told


def _of_rows(rows: tuple[Row, ...]) -> Told:
    times = [row.time for row in rows if row.time is not None]
    return Told((min(times), max(times)) if len(times) == len(rows) else None, rows, rows[-1].epoch)
