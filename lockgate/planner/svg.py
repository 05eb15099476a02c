"""A picture as a stand-alone SVG document, for a page.

The document needs no other file: no script, no font, no style sheet. It follows the reader's choice of light or dark,
has the full text for a screen reader or a tooltip, and never lets text out of its box. The font is unknown, so text is
measured too wide rather than too narrow.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from rich.cells import cell_len

from lockgate.planner.layers import Layers
from lockgate.planner.layout import Layout, Needs, Shape, Spacing, lay_out
from lockgate.planner.picture import Arrow, Box, Picture, cut, printable

_LEVEL = Spacing(box_gap=26, lane_gap=22, part_gap=40, lead=22, pitch=14, tail=34, clearance=10)
_UPRIGHT = Spacing(box_gap=28, lane_gap=24, part_gap=48, lead=20, pitch=14, tail=26, clearance=10)
_WIDE = 1500  # a level drawing wider than this turns upright: reduced to a page it could not be read
_MARGIN, _PAD = 32, 16
_TEXT_ROOM, _LABEL_ROOM = 260, 170
_KINDS = ("source", "step", "state", "sink")

# Plain properties first, because not every viewer knows variables; a viewer that prefers dark overrides them. Every
# class has a prefix, so the drawing does not change the style of a page that contains it.
_LIGHT = {
    ".lg-paper": "fill:#fbfbfa",
    ".lg-heading,.lg-title,.lg-strong": "fill:#1c2430",
    ".lg-line,.lg-note": "fill:#46505e",
    ".lg-label": "fill:#55606f",
    ".lg-edge": "stroke:#77828f",
    ".lg-head": "fill:#77828f",
    ".lg-rule": "stroke:#dadde1",
    ".lg-step": "fill:#ffffff;stroke:#9aa4b0",
    ".lg-source": "fill:#eef5fb;stroke:#5b8fb9",
    ".lg-state": "fill:#f6f1fb;stroke:#8d6fb3",
    ".lg-sink": "fill:#eef7f1;stroke:#57997a",
    ".lg-kind-step": "fill:#5b6673",
    ".lg-kind-source": "fill:#2b628f",
    ".lg-kind-state": "fill:#67478f",
    ".lg-kind-sink": "fill:#2a6b4d",
}
_DARK = {
    ".lg-paper": "fill:#14181d",
    ".lg-heading,.lg-title,.lg-strong": "fill:#eef1f4",
    ".lg-line,.lg-note": "fill:#b9c2cc",
    ".lg-label": "fill:#a7b1bc",
    ".lg-edge": "stroke:#8390a0",
    ".lg-head": "fill:#8390a0",
    ".lg-rule": "stroke:#313942",
    ".lg-step": "fill:#1d232a;stroke:#66717e",
    ".lg-source": "fill:#172633;stroke:#4f86b3",
    ".lg-state": "fill:#241d31;stroke:#8f74b8",
    ".lg-sink": "fill:#17291f;stroke:#4f9273",
    ".lg-kind-step": "fill:#a0abb7",
    ".lg-kind-source": "fill:#86b9e2",
    ".lg-kind-state": "fill:#bda3e0",
    ".lg-kind-sink": "fill:#82c7a4",
}
_TYPE = """\
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
.lg-heading{font-size:17px;font-weight:600}
.lg-title{font-size:14px;font-weight:600}
.lg-line,.lg-note{font-size:12px}
.lg-strong{font-size:13px;font-weight:600}
.lg-label{font-size:11px}
.lg-caption{font-size:9px;font-weight:600;letter-spacing:1px}
.lg-box{stroke-width:1.5}
.lg-inner{fill:none;stroke-width:1}
.lg-edge{fill:none;stroke-width:1.5}
.lg-rule{stroke-width:1}"""


def draw_svg(pictures: Sequence[Picture], footer: Sequence[str] = ()) -> str:
    """Draw all pictures, one below the other, and then the footer lines, as one SVG document.

    The first footer line is stronger than the rest: it is for the guarantee, the others for its reasons.
    """
    drawings = [_Drawing.of(picture) for picture in pictures]
    width = max([480] + [drawing.width for drawing in drawings])
    body: list[str] = []
    y = _MARGIN
    for drawing in drawings:
        if body:
            y += 44
        heading = cut(printable(drawing.picture.title), width, _HEADING)
        if heading:
            body.append(_text("lg-heading", _MARGIN, y + 15, heading))
            y += 40
        body += drawing.elements(_MARGIN, y)
        y += drawing.height
    if footer:
        if body:
            y += 36
            body.append(f'<line class="lg-rule" x1="{_MARGIN}" y1="{y}" x2="{_MARGIN + width}" y2="{y}"/>')
            y += 14
        for index, text in enumerate(footer):
            names, measure = ("lg-note", _LINE) if index else ("lg-strong", _STRONG)
            for line in _wrap(printable(text), min(width, 860), measure):
                y += 20
                body.append(_text(names, _MARGIN, y - 4, line))
            y += 4
    width, height = width + 2 * _MARGIN, y + _MARGIN
    title = ", ".join(filter(None, (printable(picture.title) for picture in pictures))) or "Graph"
    light, dark = ("\n".join(f"{names}{{{style}}}" for names, style in styles.items()) for styles in (_LIGHT, _DARK))
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}"'
                f' viewBox="0 0 {width} {height}" style="max-width:100%;height:auto">'
            ),
            f"<title>{escape(title)}</title>",
            f"<style>\n{_TYPE}\n{light}\n@media (prefers-color-scheme:dark){{\n{dark}\n}}\n</style>",
            (
                '<defs><marker id="lg-head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="9" markerHeight="9"'
                ' markerUnits="userSpaceOnUse" orient="auto">'
                '<path class="lg-head" d="M0 0.5L10 5L0 9.5Z"/></marker></defs>'
            ),
            f'<rect class="lg-paper" width="{width}" height="{height}" rx="12"/>',
            *body,
            "</svg>",
        ]
    )


def _pixels(size: int, strong: bool = False) -> Callable[[str], int]:
    """Measure text set in `size` pixels: too wide rather than too narrow, because the font is unknown."""

    def measure(text: str) -> int:
        em = sum(_char_em(char) for char in text)
        return round(em * size * (1.1 if strong else 1.0) + 0.5)

    return measure


def _char_em(char: str) -> float:
    if char in "ijl.,:;|!'`I ":
        return 0.36
    if char in 'frt()[]{}/\\-"':
        return 0.43
    if char in "mwMW@%…—":
        return 1.0
    if cell_len(char) == 2:
        return 1.0
    if char.isascii():
        return 0.74 if char.isupper() else 0.64
    return 0.85


_HEADING, _TITLE, _STRONG = _pixels(17, strong=True), _pixels(14, strong=True), _pixels(13, strong=True)
_LINE, _LABEL, _CAPTION = _pixels(12), _pixels(11), _pixels(9, strong=True)


@dataclass(frozen=True)
class _Drawing:
    """One picture, laid out; `level` flows to the right, otherwise down."""

    picture: Picture
    level: bool
    layout: Layout

    @classmethod
    def of(cls, picture: Picture) -> "_Drawing":
        layers = Layers(picture)
        level = cls(picture, True, lay_out(layers, cls._needs(picture, level=True)))
        if level.width <= _WIDE:
            return level
        upright = cls(picture, False, lay_out(layers, cls._needs(picture, level=False)))
        return upright if upright.width < level.width else level

    @classmethod
    def _needs(cls, picture: Picture, level: bool) -> Needs:
        labels = [_LABEL(_label(arrow)) for arrow in picture.arrows]
        incoming: dict[str, list[int]] = defaultdict(list)
        for arrow, label in zip(picture.arrows, labels, strict=True):
            incoming[arrow.target].append(label)
        return Needs(
            shapes=[cls._shape(box, incoming[box.id], level) for box in picture.boxes],
            labels=labels if level else [16 if label else 0 for label in labels],
            spacing=_LEVEL if level else _UPRIGHT,
        )

    @staticmethod
    def _shape(box: Box, incoming: list[int], level: bool) -> Shape:
        texts = [_TITLE(cut(printable(box.title), _TEXT_ROOM, _TITLE))]
        texts += [_LINE(cut(printable(line), _TEXT_ROOM, _LINE)) for line in box.lines]
        texts += [_CAPTION(_kind(box).upper()) + len(_kind(box))]
        # A multiple of two, so centres of boxes of one layer meet exactly, and lines stay straight.
        width = (max(max(texts) + 2 * _PAD, 88) + 1) // 2 * 2
        height = 54 + 16 * len(box.lines) + (4 if box.lines else 0)
        label = max(incoming, default=0)
        pitch = (26 if label else 20) if level else max(24, label + 20)
        span = max(len(incoming) - 1, 0) * pitch
        across = max(height if level else width, span + 36)
        start = (across - span) // 2
        return Shape(
            along=width if level else height,
            across=across,
            inlets=tuple(start + pitch * index for index in range(len(incoming))),
            outlet=across // 2,
            overhang=0 if level or not label else max(0, start + span + 8 + label - across),
        )

    @property
    def width(self) -> int:
        return self.layout.along if self.level else self.layout.across

    @property
    def height(self) -> int:
        return self.layout.across if self.level else self.layout.along

    def elements(self, left: int, top: int) -> list[str]:
        def at(along: int, across: int) -> tuple[int, int]:
            return (left + along, top + across) if self.level else (left + across, top + along)

        drawn = []
        for route in self.layout.routes:
            corners = [at(*corner) for corner in route]
            drawn.append(f'<path class="lg-edge" d="{_rounded(corners)}" marker-end="url(#lg-head)"/>')
        for arrow, (along, across) in zip(self.picture.arrows, self.layout.labels, strict=True):
            label = _label(arrow)
            if label:
                x, y = at(along, across)
                x, y = (x + 12, y - 6) if self.level else (x + 8, y + 14)
                drawn.append(_text("lg-label", x, y, label))
        for box, (along, across, size_along, size_across) in zip(self.picture.boxes, self.layout.boxes, strict=True):
            x, y = at(along, across)
            width, height = (size_along, size_across) if self.level else (size_across, size_along)
            drawn.append(_box(box, x, y, width, height))
        return drawn


def _label(arrow: Arrow) -> str:
    return cut(printable(arrow.label), _LABEL_ROOM, _LABEL)


def _kind(box: Box) -> str:
    return box.kind if box.kind in _KINDS else "step"


def _box(box: Box, x: int, y: int, width: int, height: int) -> str:
    kind = _kind(box)
    corner = 20 if kind in ("source", "sink") else 8
    words = [printable(word) for word in (box.title, *box.lines)]
    parts = [
        f"<g><title>{escape(chr(10).join(words))}</title>",
        f'<rect class="lg-box lg-{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="{corner}"/>',
    ]
    if kind == "state":
        parts.append(
            f'<rect class="lg-state lg-inner" style="fill:none" x="{x + 4}" y="{y + 4}"'
            f' width="{width - 8}" height="{height - 8}" rx="{corner - 3}"/>'
        )
    block = 38 + 16 * len(box.lines) + (4 if box.lines else 0)
    base = y + (height - block) // 2
    parts.append(_text(f"lg-caption lg-kind-{kind}", x + _PAD, base + 9, kind.upper()))
    parts.append(_text("lg-title", x + _PAD, base + 28, cut(words[0], _TEXT_ROOM, _TITLE)))
    for index, line in enumerate(words[1:]):
        parts.append(_text("lg-line", x + _PAD, base + 48 + 16 * index, cut(line, _TEXT_ROOM, _LINE)))
    return "".join(parts) + "</g>"


def _text(names: str, x: int, y: int, text: str) -> str:
    return f'<text class="{names}" x="{x}" y="{y}">{escape(text)}</text>'


def _rounded(corners: Sequence[tuple[int, int]]) -> str:
    """The path along the corners, each taken as a curve of at most half of its shorter side."""
    path = [f"M{corners[0][0]} {corners[0][1]}"]
    for before, corner, after in zip(corners, corners[1:], corners[2:], strict=False):
        radius = min(9.0, _distance(before, corner) / 2, _distance(corner, after) / 2)
        if radius:
            start, end = _towards(corner, before, radius), _towards(corner, after, radius)
            path.append(f"L{start}Q{corner[0]} {corner[1]} {end}")
    return "".join(path) + f"L{corners[-1][0]} {corners[-1][1]}"


def _distance(one: tuple[int, int], other: tuple[int, int]) -> int:
    return abs(one[0] - other[0]) + abs(one[1] - other[1])


def _towards(start: tuple[int, int], end: tuple[int, int], by: float) -> str:
    share = by / _distance(start, end)
    return f"{start[0] + (end[0] - start[0]) * share:g} {start[1] + (end[1] - start[1]) * share:g}"


def _wrap(text: str, room: int, measure: Callable[[str], int]) -> list[str]:
    lines = [""]
    for word in text.split():
        while word:
            joined = f"{lines[-1]} {word}" if lines[-1] else word
            if measure(joined) <= room:
                lines[-1], word = joined, ""
            elif lines[-1]:
                lines.append("")
            else:  # one word longer than a line
                end = max(1, next((n for n in range(len(word), 0, -1) if measure(word[:n]) <= room), 1))
                lines[-1], word = word[:end], word[end:]
                lines.append("")
    return lines if lines[-1] or len(lines) == 1 else lines[:-1]
