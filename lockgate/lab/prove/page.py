"""The page of a proof: one HTML document without other files, for light mode, dark mode and paper.

It has no script and no external address. So it can be attached to a pull request, mailed or kept for an auditor, and
looks the same everywhere. Words and signs repeat what colours say. `page.html.jinja` is its template, and `page.css`
its style.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count, groupby
from typing import Any

from lockgate.faultpoints import FaultPoint
from lockgate.lab.prove.report import ABOUT_THE_TRIALS, FAILURES_MAX, MEANINGS, UNSTEADY, Report
from lockgate.lab.rig.judge.findings import Outcome
from lockgate.lab.templates import render

_BINS_MAX = 24


def write_page(report: Report) -> str:
    """The whole document."""
    verdict, settings = report.verdict, report.verdict.settings
    sides = [(side, list(points)) for side, points in groupby(report.points, key=_side)]
    job = {
        "job": settings.job,
        "file": settings.file,
        "digest of its code": settings.job_digest,
        "declared guarantee": settings.guarantee.label,
        "seeds": ", ".join(map(str, report.seeds)) or "none",
    }
    return render(
        "prove/page.html.jinja",
        report=report,
        broken_count=len(verdict.of(Outcome.BROKEN)),
        unknown_count=len(verdict.of(Outcome.UNKNOWN)),
        sides=sides,
        edges={points[0] for _, points in sides[1:]},  # the first column of another side
        passages={point: FaultPoint[point].value for point in report.points if point in FaultPoint.__members__},
        unsteady=UNSTEADY,
        checks=_checks(report),
        about_the_trials=ABOUT_THE_TRIALS,
        meanings=MEANINGS,
        bins=_bins(verdict.recoveries_seconds) if report.recovery else None,
        failures_max=FAILURES_MAX,
        duration=_duration(report.seconds),
        facts={"Job": job, "Versions": settings.versions, "Machine": report.machine},
    )


def _side(point: str) -> str:
    """The part that passes a point, driver or task; for other places, their kind."""
    known = FaultPoint.__members__.get(point)
    return known.value.partition(":")[0] if known else "request" if point.isupper() else ""


def _checks(report: Report) -> dict[str, list[str]]:
    """The names of the checkers, by what they say about the promise."""
    about = [name for name in MEANINGS if name in ABOUT_THE_TRIALS]
    loose = [name for name in MEANINGS if name not in about and report.is_loose(name)]
    return {
        "promised" if report.row_count else "of which nothing is known": [
            name for name in MEANINGS if name not in (*about, *loose)
        ],
        "not promised, or not to be asked of this job: counted, and decides nothing": loose,
        "whether the trials are worth something": about,
    }


def _bins(seconds: Sequence[float]) -> dict[str, Any]:
    """How many recoveries took how long: the seconds of a bin, and the number of each bin that is not empty."""
    # The finest of 0.1, 0.2, 0.5, 1, 2, 5, ... seconds that does with few bins.
    widths = (step * 10.0**power for power in count(-1) for step in (1, 2, 5))
    width = next(width for width in widths if max(seconds) / width < _BINS_MAX)
    return {"width": width, "counts": sorted(Counter(int(took // width) for took in seconds).items())}


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
