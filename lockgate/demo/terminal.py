"""Results to look at in a terminal: tables, bars, small curves, time lines; as text, for whoever prints it.

Nothing hangs on the terminal's width or on colours: the same rows give the same text, in a terminal, a file and a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

_BAR_WIDTH = 40
_EIGHTHS = " ▏▎▍▌▋▊▉"
_LEVELS = "▁▂▃▄▅▆▇█"
_QUIET = "·"
_TICK_COLUMNS = 10

Number = int | float | Decimal
Span = tuple[datetime, datetime, str]
"""From, until, and the character that it is drawn with."""


def table(rows: Iterable[Mapping[str, object]]) -> str:
    """Rows below the names of their columns, numbers to the right; all rows have the columns of the first."""
    some = list(rows)
    if not some:
        return "(no rows)"
    names = list(some[0])
    columns = [[name, *(_text(row[name]) for row in some)] for name in names]
    widths = [max(map(len, column)) for column in columns]
    is_number = [all(isinstance(row[name], Number) for row in some) for name in names]
    lines = []
    for cells in zip(*columns, strict=True):
        aligned = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, is_number, strict=True)
        )
        lines.append("  ".join(aligned).rstrip())
    rule = "  ".join("─" * width for width in widths)
    return "\n".join([lines[0], rule, *lines[1:]])


def bars(values: Mapping[str, Number], unit: str = "") -> str:
    """A bar for each value, as long as it is a share of the greatest; none is below zero."""
    if not values:
        return "(no rows)"
    greatest = float(max(values.values()))
    width = max(map(len, values))
    return "\n".join(
        f"{name.ljust(width)}  {_bar(float(value), greatest)} {_text(value)} {unit}".rstrip()
        for name, value in values.items()
    )


def sparkline(values: Sequence[Number], floor: Number | None = None) -> str:
    """A character for each value, between the least (or `floor`) and the greatest."""
    if not values:
        return ""
    low = float(min(values) if floor is None else floor)
    reach = float(max(values)) - low
    top = len(_LEVELS) - 1
    return "".join(_LEVELS[round(top * (float(value) - low) / reach) if reach > 0 else 0] for value in values)


def timeline(lanes: Mapping[str, Iterable[Span]], *, begin: datetime, end: datetime, step: timedelta) -> str:
    """A lane for each name, a character for each step; of spans that meet in a step the last one is drawn."""
    columns = -((begin - end) // step)
    width = max(map(len, lanes), default=0)
    ticks = (begin + number * step for number in range(0, columns, _TICK_COLUMNS))
    lines = [f"{' ' * width}  " + "".join(f"{tick:%H:%M}".ljust(_TICK_COLUMNS) for tick in ticks).rstrip()]
    for name, spans in lanes.items():
        cells = [_QUIET] * columns
        for since, until, character in spans:
            first, last = (since - begin) // step, (until - begin) // step
            for number in range(max(first, 0), min(last, columns - 1) + 1):
                cells[number] = character
        lines.append(f"{name.ljust(width)}  {''.join(cells)}")
    return "\n".join(lines)


def clock(moment: datetime) -> str:
    """The time of day, with seconds only where there are any."""
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
