"""A picture as text, for a terminal.

A drawing is at most as wide as the terminal. Otherwise every line would be broken, and no line could be followed. So
drawings are tried from the most to the least readable, and the first that fits is taken. Most are rejected before
anything is placed, because their boxes and lanes alone are too wide.
"""

from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise

from rich.cells import cell_len

from lockgate.planner.layers import Layers
from lockgate.planner.layout import Layout, Needs, Shape, Spacing, lay_out, least_size
from lockgate.planner.picture import Box, Picture, cut, printable

_UP, _RIGHT, _DOWN, _LEFT = 1, 2, 4, 8
_LINES = {
    _UP | _DOWN: "│",
    _LEFT | _RIGHT: "─",
    _DOWN | _RIGHT: "┌",
    _DOWN | _LEFT: "┐",
    _UP | _RIGHT: "└",
    _UP | _LEFT: "┘",
    _UP | _DOWN | _RIGHT: "├",
    _UP | _DOWN | _LEFT: "┤",
    _DOWN | _LEFT | _RIGHT: "┬",
    _UP | _LEFT | _RIGHT: "┴",
    _UP | _DOWN | _LEFT | _RIGHT: "┼",
}

# Corners from the top left, clockwise, then level and upright border, then the outlet to the right and to below.
_BORDERS = {"source": "╭╮╯╰─│├┬", "sink": "╭╮╯╰─│├┬", "state": "╔╗╝╚═║╟╤"}
_PLAIN_BORDER = "┌┐┘└─│├┬"

_LEVEL = Spacing(box_gap=1, lane_gap=1, part_gap=1, lead=1, pitch=2, tail=3, clearance=1)
_UPRIGHT = Spacing(box_gap=2, lane_gap=2, part_gap=4, lead=1, pitch=1, tail=1, clearance=1)

_LEVEL_ROOMS = [(40, 24), (28, 20), (22, 16)]  # for the text of a box, for a label
_UPRIGHT_ROOMS = [(36, 24), (36, 14), (24, 14), (18, 10)]
_LAST_ROOMS = [(12, 8), (8, 4)]


def draw_text(picture: Picture, width: int = 100) -> str:
    """Draw with box characters: left to right if that fits `width` (at least 40), else top to bottom.

    >>> from lockgate.planner.picture import Arrow
    >>> print(draw_text(Picture("", (Box("a", "in", kind="source"), Box("b", "out")), (Arrow("a", "b"),))))
    ╭────╮    ┌─────┐
    │ in ├───▶│ out │
    ╰────╯    └─────┘
    """
    width = max(width, 40)
    heading = [cut(printable(picture.title), width, cell_len), ""] if picture.title.strip() else []
    return "\n".join(heading + _first_that_fits(picture, width)).rstrip()


def _first_that_fits(picture: Picture, width: int) -> list[str]:
    """The rows of the first drawing that fits, else of the narrowest."""
    layers = Layers(picture)
    if not picture.boxes:
        return ["(nothing to draw)"]
    narrowest: tuple[int, _Drawing] | None = None
    for drawing in _drawings(picture, layers, width):
        needed = drawing.least_width
        if needed <= width:
            needed = drawing.width
            if needed <= width:
                return drawing.rows()
        # Upright and without a limit a drawing may be much wider than necessary: the same with a limit comes later.
        if (drawing.level or drawing.limit) and (narrowest is None or needed < narrowest[0]):
            narrowest = (needed, drawing)
    return narrowest[1].rows() if narrowest else []


def _drawings(picture: Picture, layers: Layers, width: int) -> Iterator["_Drawing"]:
    """All ways to draw a picture, from the most to the least readable."""
    words = [printable(text) for box in picture.boxes for text in (box.title, *box.lines)]
    most = max(map(cell_len, words)), max((cell_len(printable(arrow.label)) for arrow in picture.arrows), default=0)

    def draw(
        layers: Layers, rooms: list[tuple[int, int]], level: bool = False, limit: int | None = None
    ) -> Iterator["_Drawing"]:
        # Unused room makes no difference: a size that would give the same drawing is not tried again.
        for box_room, label_room in dict.fromkeys((min(box, most[0]), min(label, most[1])) for box, label in rooms):
            yield _Drawing(picture, layers, box_room, label_room, level, limit)

    yield from draw(layers, _LEVEL_ROOMS, level=True)
    yield from draw(layers, _UPRIGHT_ROOMS)
    if layers.part_count > 1:
        layers = Layers(picture, parts_in_a_row=True)
    yield from draw(layers, _UPRIGHT_ROOMS, limit=width)
    for count in range(min(layers.most_boxes - 1, 6), 0, -1):
        layers = Layers(picture, boxes_per_layer=count, parts_in_a_row=True)
        yield from draw(layers, _UPRIGHT_ROOMS, limit=width)
    yield from draw(layers, _LAST_ROOMS, limit=width)


class _Drawing:
    """One way to draw: `level` flows to the right, otherwise down; text that is too long is cut."""

    def __init__(
        self, picture: Picture, layers: Layers, box_room: int, label_room: int, level: bool, limit: int | None
    ) -> None:
        self.picture, self.layers, self.level, self.limit = picture, layers, level, limit
        self.labels = [cut(printable(arrow.label), label_room, cell_len) for arrow in picture.arrows]
        self.title = {box.id: cut(printable(box.title), box_room, cell_len) for box in picture.boxes}
        self.lines = {box.id: [cut(printable(line), box_room, cell_len) for line in box.lines] for box in picture.boxes}
        incoming: dict[str, list[str]] = defaultdict(list)
        for arrow, label in zip(picture.arrows, self.labels, strict=True):
            incoming[arrow.target].append(label)
        self.needs = Needs(
            shapes=[self._shape(box.id, incoming[box.id]) for box in picture.boxes],
            labels=[(cell_len(label) + 1 if level else 1) if label else 0 for label in self.labels],
            spacing=_LEVEL if level else _UPRIGHT,
        )

    @property
    def least_width(self) -> int:
        along, across = least_size(self.layers, self.needs)
        return along if self.level else across

    @cached_property
    def layout(self) -> Layout:
        return lay_out(self.layers, self.needs, limit=self.limit)

    @property
    def width(self) -> int:
        return self.layout.along if self.level else self.layout.across

    def _shape(self, box: str, incoming: list[str]) -> Shape:
        in_border = 2 * bool(self.lines[box])
        columns = max(cell_len(self.title[box]) + in_border, *map(cell_len, self.lines[box]), 0) + 4
        rows = max(len(self.lines[box]), 1) + 2
        label = max(map(cell_len, incoming), default=0)
        pitch = 2 if self.level else max(4, label + 3)
        span = max(len(incoming) - 1, 0) * pitch + 1
        across = max(rows if self.level else columns, span + 2)
        start = (across - span) // 2 if incoming else 0
        overhang = 0 if self.level or not label else max(0, start + span + 1 + label - across)
        return Shape(
            along=columns if self.level else rows,
            across=across,
            inlets=tuple(range(start, start + span, pitch)) if incoming else (),
            outlet=(across - 1) // 2,
            overhang=overhang,
        )

    def _at(self, along: int, across: int) -> tuple[int, int]:
        """The column and row of a point of the layout."""
        return (along, across) if self.level else (across, along)

    def rows(self) -> list[str]:
        width, height = self._at(self.layout.along, self.layout.across)
        grid = [[" "] * width for _ in range(height)]
        for box, area in zip(self.picture.boxes, self.layout.boxes, strict=True):
            self._draw_box(grid, box, area)
        self._draw_arrows(grid)
        for label, (along, across) in zip(self.labels, self.layout.labels, strict=True):
            column, row = (along + 1, across - 1) if self.level else (across + 2, along)
            _write(grid, column, row, label)
        return ["".join(row).rstrip() for row in grid]

    def _draw_box(self, grid: list[list[str]], box: Box, area: tuple[int, int, int, int]) -> None:
        border = _BORDERS.get(box.kind, _PLAIN_BORDER)
        along, across, size_along, size_across = area
        left, top = self._at(along, across)
        width, height = self._at(size_along, size_across)
        right, bottom = left + width - 1, top + height - 1
        for column in range(left, right):
            grid[top][column] = grid[bottom][column] = border[4]
        for row in range(top, bottom):
            grid[row][left] = grid[row][right] = border[5]
        grid[top][left], grid[top][right] = border[0], border[1]
        grid[bottom][right], grid[bottom][left] = border[2], border[3]
        if self.lines[box.id]:
            _write(grid, left + 2, top, f" {self.title[box.id]} ")
            for row, line in enumerate(self.lines[box.id], start=top + 1):
                _write(grid, left + 2, row, line)
        else:
            title = self.title[box.id]
            _write(grid, left + (width - cell_len(title)) // 2, (top + bottom) // 2, title)

    def _draw_arrows(self, grid: list[list[str]]) -> None:
        kinds = {box.id: box.kind for box in self.picture.boxes}
        strokes: dict[tuple[int, int], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        heads = []
        for arrow, route in zip(self.picture.arrows, self.layout.routes, strict=True):
            for (along, across), (next_along, next_across) in pairwise(route):
                column, row = self._at(along, across)
                end_column, end_row = self._at(next_along, next_across)
                while (column, row) != (end_column, end_row):
                    step = _step(column, row, end_column, end_row)
                    strokes[column, row][arrow.source] |= step[2]
                    column, row = column + step[0], row + step[1]
                    strokes[column, row][arrow.source] |= step[3]
            along, across = route[0]
            column, row = self._at(along - 1, across)
            grid[row][column] = _BORDERS.get(kinds[arrow.source], _PLAIN_BORDER)[6 if self.level else 7]
            # The outlet on the border is the far end of the first stroke.
            strokes[self._at(along, across)][arrow.source] |= _LEFT if self.level else _UP
            heads.append(self._at(route[-1][0] - 1, route[-1][1]))
            del strokes[self._at(*route[-1])]  # the line ends before the border of its target
        for (column, row), by_source in strokes.items():
            # Two lines in one place cross, and the upright one stays whole.
            grid[row][column] = "│" if len(by_source) > 1 else _LINES[next(iter(by_source.values()))]
        for column, row in heads:
            grid[row][column] = "▶" if self.level else "▼"


def _step(column: int, row: int, end_column: int, end_row: int) -> tuple[int, int, int, int]:
    """One step towards the end: columns, rows, the side by which a cell is left, the side of the next."""
    if column != end_column:
        return (1, 0, _RIGHT, _LEFT) if column < end_column else (-1, 0, _LEFT, _RIGHT)
    return (0, 1, _DOWN, _UP) if row < end_row else (0, -1, _UP, _DOWN)


def _write(grid: list[list[str]], column: int, row: int, text: str) -> None:
    for char in text:
        filled = cell_len(char)
        if filled == 0:
            grid[row][column - 1] += char  # an accent belongs to the character before it
            continue
        grid[row][column] = char
        if filled == 2:
            grid[row][column + 1] = ""
        column += filled
