"""Draw results as text: tables, bars, small curves, time lines.

Nothing depends on the terminal's width or colours: the same rows give the same text in a terminal, a file and a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

from lockgate.columns import columns

_BAR_WIDTH = 40
_EIGHTHS = " ▏▎▍▌▋▊▉"
_LEVELS = "▁▂▃▄▅▆▇█"
_QUIET = "·"
_TICK_COLUMNS = 10

Number = int | float | Decimal
Span = tuple[datetime, datetime, str]
"""From, until, and the character that it is drawn with."""


def table(rows: Iterable[Mapping[str, object]]) -> str:
    """Rows below the names of their columns, numbers right-aligned; all rows have the columns of the first."""
    some = list(rows)
    if not some:
        return "(no rows)"
    names = list(some[0])
    texts = [[_text(row[name]) for name in names] for row in some]
    rule = ["─" * max(map(len, column)) for column in zip(names, *texts, strict=True)]
    numbers = [index for index, name in enumerate(names) if all(isinstance(row[name], Number) for row in some)]
    return "\n".join(columns([names, rule, *texts], right=numbers))


def bars(values: Mapping[str, Number], unit: str = "") -> str:
    """A bar for each value, as a share of the greatest value; no value is below zero."""
    if not values:
        return "(no rows)"
    greatest = float(max(values.values()))
    drawn = ((name, f"{_bar(float(value), greatest)} {_text(value)} {unit}") for name, value in values.items())
    return "\n".join(columns(drawn))


def sparkline(values: Sequence[Number], floor: Number | None = None) -> str:
    """A character for each value, between the least (or `floor`) and the greatest."""
    if not values:
        return ""
    low = float(min(values) if floor is None else floor)
    reach = float(max(values)) - low
    top = len(_LEVELS) - 1
    return "".join(_LEVELS[round(top * (float(value) - low) / reach) if reach > 0 else 0] for value in values)


def timeline(lanes: Mapping[str, Iterable[Span]], *, begin: datetime, end: datetime, step: timedelta) -> str:
    """A lane for each name, a character for each step; if spans overlap in a step, the last one is drawn."""
    steps = -((begin - end) // step)
    ticks = (begin + number * step for number in range(0, steps, _TICK_COLUMNS))
    rows = [("", "".join(f"{tick:%H:%M}".ljust(_TICK_COLUMNS) for tick in ticks))]
    for name, spans in lanes.items():
        cells = [_QUIET] * steps
        for since, until, character in spans:
            first, last = (since - begin) // step, (until - begin) // step
            for number in range(max(first, 0), min(last, steps - 1) + 1):
                cells[number] = character
        rows.append((name, "".join(cells)))
    return "\n".join(columns(rows))


def clock(moment: datetime) -> str:
    """The time of day, with seconds only if there are any."""
    return f"{moment:%H:%M}" if moment.second == 0 else f"{moment:%H:%M:%S}"


def _bar(value: float, greatest: float) -> str:
    eighths = round(8 * _BAR_WIDTH * value / greatest) if greatest > 0 else 0
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _text(value: object) -> str:
    if isinstance(value, datetime):
        return clock(value)
    if isinstance(value, bool) or not isinstance(value, Number):
        return str(value)
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
