"""Lay out texts in columns for people. A terminal, a pipe and a file get the same lines.

No value is cut, and no character of it moves a cursor, begins another line or passes for markup. Rich says how many
columns of a terminal a text fills. Its own tables are not used: they take fifty times as long, and dead letters may be
many.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Sequence

from lockgate.escaping import escape

AFTER_FIRST = range(1, 1000)
"""All columns but the first."""

_ROOM_MIN = 20  # with less room for a text beside its head, lines get longer than `width`


def columns(
    rows: Iterable[Sequence[str]], *, right: Collection[int] = (), indent: int = 0, width: int | None = None
) -> list[str]:
    r"""The lines of a table.

    Args:
        right: the numbers of the columns that are aligned to the right.
        width: if it is given, the last column is wrapped below itself, so that lines are no longer than this.

    >>> columns([["side", "events/s"], ["大", "7\n"]], right=AFTER_FIRST)
    ['side  events/s', '大         7\\n']
    """
    from rich.cells import cell_len

    table = [[escape(cell) for cell in row] for row in rows]
    rooms = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    lines = []
    for row in table:
        blanks = [" " * (room - cell_len(cell)) for cell, room in zip(row, rooms, strict=True)]
        cells = [
            blank + cell if index in right else cell + blank
            for index, (cell, blank) in enumerate(zip(row, blanks, strict=True))
        ]
        head = " " * indent + "".join(f"{cell}  " for cell in cells[:-1])
        lines += [f"{head}{cells[-1]}".rstrip()] if width is None else wrap(cells[-1], width, head)
    return lines


def wrap(text: str, width: int, head: str = "") -> list[str]:
    """The lines of a text beside a head; they stay on its right.

    >>> wrap("all that a reader sees", 26, "lost  ")
    ['lost  all that a reader', '      sees']
    """
    from rich.cells import cell_len

    head = escape(head)
    room = max(width - cell_len(head), _ROOM_MIN)
    lines = textwrap.wrap(escape(text), room, break_on_hyphens=False)
    return [f"{head}{lines[0]}" if lines else head.rstrip(), *(" " * cell_len(head) + line for line in lines[1:])]
