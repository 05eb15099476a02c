"""The drawings of a proof's page: how long recoveries took, and the time line of a counterexample.

They are parts of an HTML document, whose style gives them the colours of its light and its dark dress.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from html import escape
from itertools import count

from lockgate.proof.counterexample import LANES, Moment

_BINS_MAX = 24
_WIDTH, _HEIGHT, _LEFT, _BASE = 640, 170, 8, 140

_LINE_WIDTH, _ROW, _HEAD = 960, 30, 46
_TIME_ROOM, _LANE_ROOM, _TEXT_AT = 84, 56, 380
_CHARACTERS = 84  # that surely fit behind the lanes


def draw_histogram(seconds: Sequence[float]) -> str:
    """How many recoveries took how long."""
    width = _bin_width(max(seconds))
    bins = Counter(int(took // width) for took in seconds)
    number = max(bins) + 1
    each = (_WIDTH - 2 * _LEFT) / number
    most = max(bins.values())
    body = []
    for index, found in sorted(bins.items()):
        height = max(2.0, found / most * (_BASE - 26))
        x, y = _LEFT + index * each, _BASE - height
        body.append(
            f'<rect class="bar" x="{x + 1:.1f}" y="{y:.1f}" width="{max(each - 2, 1):.1f}" height="{height:.1f}">'
            f"<title>{index * width:g} to {(index + 1) * width:g} s: {found:,}</title></rect>"
            f'<text class="small middle" x="{x + each / 2:.1f}" y="{y - 5:.1f}">{found:,}</text>'
        )
    body.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _LEFT}" y1="{_BASE}" y2="{_BASE}"/>')
    every = math.ceil(number / 8)  # labels that do not run into each other
    for index in range(0, number + 1, every):
        anchor = "start" if index == 0 else "end" if index == number else "middle"
        body.append(
            f'<text class="small {anchor}" x="{_LEFT + index * each:.1f}" y="{_BASE + 18}">{index * width:g} s</text>'
        )
    return _svg(_WIDTH, _HEIGHT, f"Seconds from a fault to the first new row, {len(seconds):,} times", body)


def _bin_width(longest: float) -> float:
    """The finest of 0.1, 0.2, 0.5, 1, 2, 5, ... seconds that does with few bins."""
    widths = (step * 10.0**power for power in count(-1) for step in (1, 2, 5))
    return next(width for width in widths if longest / width < _BINS_MAX)


def draw_time_line(moments: Sequence[Moment]) -> str:
    """One moment a line, from the first to the last, a dot in the lane of whom it happened to."""
    height = _HEAD + _ROW * len(moments) + 6
    body = []
    for lane in LANES:
        x = _lane(lane)
        body.append(f'<text class="small middle" x="{x}" y="18">{lane}</text>')
        body.append(f'<line class="axis" x1="{x}" x2="{x}" y1="28" y2="{height - 6}"/>')
    path = " ".join(f"{_lane(moment.lane)},{_y(index)}" for index, moment in enumerate(moments))
    body.append(f'<polyline class="thread" points="{path}"/>')
    for index, moment in enumerate(moments):
        x, y = _lane(moment.lane), _y(index)
        text = moment.text if len(moment.text) <= _CHARACTERS else moment.text[: _CHARACTERS - 1] + "…"
        body.append(
            f"<g><title>{escape(moment.text)}</title>"
            f'<text class="small end" x="{_TIME_ROOM - 14}" y="{y + 4}">{moment.at_seconds:.3f} s</text>'
            f'<circle class="{moment.lane}" cx="{x}" cy="{y}" r="6"/>'
            f'<text x="{_TEXT_AT}" y="{y + 4}">{escape(text)}</text></g>'
        )
    return _svg(_LINE_WIDTH, height, "What happened to the event, in order", body)


def _lane(name: str) -> int:
    return _TIME_ROOM + _LANE_ROOM // 2 + _LANE_ROOM * LANES.index(name)


def _y(index: int) -> int:
    return _HEAD + _ROW * index + _ROW // 2 - 6


def _svg(width: int, height: int, title: str, body: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">'
        f"<title>{escape(title)}</title>\n" + "\n".join(body) + "\n</svg>"
    )
