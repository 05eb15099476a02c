"""The drawings of a proof's page: how long recoveries took, and the time line of a counterexample.

They are parts of an HTML document, whose style gives them the colours of its light and its dark dress. The time line is
a table, so that long values break on a phone and a screen reader can follow it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from itertools import count

from lockgate.proof.counterexample import Moment, visible

_BINS_MAX = 24
_WIDTH, _HEIGHT, _LEFT, _TOP, _BASE = 640, 200, 8, 48, 170
_NEAR = 0.75  # of the width: labels of marks behind it stand on their left

_SIGNS = {"event": "●", "driver": "▲", "fault": "✕", "epoch": "■", "reader": "◆"}


def draw_histogram(seconds: Sequence[float], marks: Mapping[str, float]) -> str:
    """How many recoveries took how long, with some of them marked by name."""
    width = _bin_width(max(seconds))
    bins = Counter(int(took // width) for took in seconds)
    number = max(bins) + 1
    each = (_WIDTH - 2 * _LEFT) / number
    most = max(bins.values())
    body = []
    for place, (name, took) in enumerate(marks.items()):
        at, level = _LEFT + took / width * each, 18 + 22 * (place % 2)
        anchor, beside = ("end", -5) if at > _NEAR * _WIDTH else ("start", 5)
        body.append(
            f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{level - 14}" y2="{_BASE}"/>'
            f'<text class="{anchor}" x="{at + beside:.1f}" y="{level}">{escape(name)} {took:.1f} s</text>'
        )
    for index, found in sorted(bins.items()):
        height = max(2.0, found / most * (_BASE - _TOP - 14))
        x, y = _LEFT + index * each, _BASE - height
        body.append(
            f'<rect class="bar" x="{x + 1:.1f}" y="{y:.1f}" width="{max(each - 2, 1):.1f}" height="{height:.1f}">'
            f"<title>{index * width:g} to {(index + 1) * width:g} s: {found:,}</title></rect>"
            f'<text class="small middle count" x="{x + each / 2:.1f}" y="{y - 5:.1f}">{found:,}</text>'
        )
    body.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _LEFT}" y1="{_BASE}" y2="{_BASE}"/>')
    every = math.ceil(number / 8)  # labels that do not run into each other
    for index in range(0, number + 1, every):
        anchor = "start" if index == 0 else "end" if index == number else "middle"
        body.append(
            f'<text class="small {anchor}" x="{_LEFT + index * each:.1f}" y="{_BASE + 20}">{index * width:g} s</text>'
        )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img">'
        f"<title>Seconds from a fault to the first new row, {len(seconds):,} times</title>\n"
        + "\n".join(body)
        + "\n</svg>"
    )


def _bin_width(longest: float) -> float:
    """The finest of 0.1, 0.2, 0.5, 1, 2, 5, ... seconds that does with few bins."""
    widths = (step * 10.0**power for power in count(-1) for step in (1, 2, 5))
    return next(width for width in widths if longest / width < _BINS_MAX)


def draw_time_line(moments: Sequence[Moment]) -> str:
    """One moment a line, from the first to the last: when, how long after the one before, to whom, what."""
    rows = []
    before = None
    for moment in moments:
        gap = "" if before is None else f"+{moment.at_seconds - before:.3f}"
        rows.append(
            f'<tr class="{moment.lane}" role="row"><td role="cell" class="number">{moment.at_seconds:.3f} s</td>'
            f'<td role="cell" class="number gap">{gap}</td>'
            f'<td role="cell" class="lane"><i aria-hidden="true">{_SIGNS[moment.lane]}</i>{moment.lane}</td>'
            f'<td role="cell" class="text">{escape(visible(moment.text))}</td></tr>'
        )
        before = moment.at_seconds
    head = "".join(f'<th role="columnheader" scope="col">{name}</th>' for name in ("at", "after", "who", "what"))
    return (
        '<table class="line" role="table"><caption>What became of it, in the order of time</caption>'
        f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>\n<tbody role="rowgroup">'
        + "\n".join(rows)
        + "</tbody></table>"
    )
