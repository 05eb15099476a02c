"""Bars, one panel for each measure, as a stand-alone SVG document that follows the reader's choice of light or dark.

Measures have scales of their own, so a bar is compared within its panel only; its number stands beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_WIDTH, _MARGIN = 860, 24
_LABEL_ROOM, _NUMBER_ROOM = 190, 90
_ROW, _BAR = 22, 14
_STYLE = """\
.lc-paper{fill:#fbfbfa}.lc-text{fill:#1c2430}.lc-title{fill:#46505e}.lc-bar{fill:#5b8fb9}.lc-axis{stroke:#dadde1}
@media (prefers-color-scheme:dark){
.lc-paper{fill:#14181d}.lc-text{fill:#eef1f4}.lc-title{fill:#b9c2cc}.lc-bar{fill:#4f86b3}.lc-axis{stroke:#313942}}
.lc-text,.lc-title{font-family:system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif;font-size:12px}
.lc-title{font-weight:600}.lc-head{font-size:16px;font-weight:600}"""


@dataclass(frozen=True)
class Panel:
    """One measure: a label, a value (None where it was not seen) and its text, for each bar."""

    title: str
    bars: tuple[tuple[str, float | None, str], ...]


def draw(title: str, panels: Sequence[Panel]) -> str:
    """All panels, one below the other."""
    y = _MARGIN + 16
    body = [f'<text class="lc-text lc-head" x="{_MARGIN}" y="{y}">{escape(title)}</text>']
    for panel in panels:
        y += 36
        body.append(f'<text class="lc-title" x="{_MARGIN}" y="{y}">{escape(panel.title)}</text>')
        y += 8
        body.append(_axis(y, len(panel.bars)))
        most = max((value for _, value, _ in panel.bars if value is not None), default=0.0)
        for label, value, text in panel.bars:
            body.append(_bar(y, label, (value or 0.0) / most if most else 0.0, text))
            y += _ROW
    height = y + _MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
        f' role="img"><title>{escape(title)}</title><style>{_STYLE}</style>'
        f'<rect class="lc-paper" width="{_WIDTH}" height="{height}"/>\n' + "\n".join(body) + "\n</svg>"
    )


def _axis(y: int, rows: int) -> str:
    x = _MARGIN + _LABEL_ROOM
    return f'<line class="lc-axis" x1="{x}" x2="{x}" y1="{y}" y2="{y + rows * _ROW}"/>'


def _bar(y: int, label: str, share: float, text: str) -> str:
    x = _MARGIN + _LABEL_ROOM
    length = share * (_WIDTH - 2 * _MARGIN - _LABEL_ROOM - _NUMBER_ROOM)
    line = y + _ROW / 2 + 4
    return (
        f'<text class="lc-text" x="{_MARGIN}" y="{line}">{escape(label)}</text>'
        f'<rect class="lc-bar" x="{x}" y="{y + (_ROW - _BAR) / 2}" width="{length:.1f}" height="{_BAR}"/>'
        f'<text class="lc-text" x="{x + length + 6:.1f}" y="{line}">{escape(text)}</text>'
    )
