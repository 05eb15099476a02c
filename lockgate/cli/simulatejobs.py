"""The part of `lockgate simulate` that draws random jobs: `--jobs N`."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from lockgate.cli.progress import progress
from lockgate.columns import AFTER_FIRST, columns
from lockgate.errors import Refused

if TYPE_CHECKING:
    from lockgate.lab.randomjobs.hunt import RunTrial
    from lockgate.lab.randomjobs.tally import Finding, Reason, Tally

_STRICTER_SHOWN = 20
_JOBS_FOR_A_PROCESS = {False: 20, True: 500}  # by --plan-only: below that, a further process only costs its start
_VERDICTS = ("accepted", "refused", "stricter", "violation")


def simulate_jobs(arguments: argparse.Namespace) -> int:
    """Draw jobs, compare, and report."""
    from lockgate.lab.randomjobs.hunt import hunt
    from lockgate.lab.randomjobs.tally import Tally

    _check(arguments)
    run: RunTrial | None = None
    if not arguments.plan_only:
        from lockgate.lab.randomjobs.trial import run_trial

        run = run_trial
    began = time.monotonic()
    tally = Tally()
    with progress(arguments.jobs, "jobs") as show:
        for tally in hunt(arguments.seed, arguments.jobs, run, processes=_processes(arguments)):
            show(tally.jobs)
    seconds = time.monotonic() - began
    if arguments.json:
        print(json.dumps(_facts(arguments, tally, seconds), indent=2))
    else:
        _print(arguments, tally, seconds)
    return 0 if _verdict(arguments, tally) == "holds" else 1


def _check(arguments: argparse.Namespace) -> None:
    others = {"--mutant": arguments.mutant, "--schedules": arguments.schedules, "--keep": arguments.keep}
    for option, value in others.items():
        if value is not None:
            raise Refused(
                f"{option} says which schedules of the commit protocol are run; --jobs draws jobs",
                where="command line",
                fix=f"omit {option}, or omit --jobs",
            )
    for option, value in (("--jobs", arguments.jobs), ("--processes", arguments.processes)):
        if value is not None and value < 1:
            raise Refused(f"{option} {value} is too small", where="command line", fix="give at least 1")


def _processes(arguments: argparse.Namespace) -> int:
    given: int | None = arguments.processes
    return given or max(1, min(os.cpu_count() or 1, arguments.jobs // _JOBS_FOR_A_PROCESS[arguments.plan_only]))


def _verdict(arguments: argparse.Namespace, tally: Tally) -> str:
    if tally.finding is not None:
        return "failed" if tally.finding.verdict == "failed" else "broken"
    # A hunt that had to run jobs, accepted some and judged none has shown nothing.
    has_shown = arguments.plan_only or tally.accepted == 0 or tally.judged + tally.runs["refused"] > 0
    return "holds" if has_shown else "unknown"


def _replay(finding: Finding, arguments: argparse.Namespace) -> str:
    return f"lockgate simulate --jobs 1 --seed {finding.seed}" + (" --plan-only" if arguments.plan_only else "")


def _facts(arguments: argparse.Namespace, tally: Tally, seconds: float) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "verdict": _verdict(arguments, tally),
        "first_seed": arguments.seed,
        "plan_only": arguments.plan_only,
        "jobs": tally.jobs,
        "accepted": tally.accepted,
        "run": tally.run,
        "judged": tally.judged,
        "seconds": round(seconds, 2),
        "run_seconds": round(tally.run_seconds, 2),
        "verdicts": dict(tally.verdicts),
        "step_kinds": {kind: dict(counts) for kind, counts in sorted(tally.kinds.items())},
        "stricter": [
            {"what": what, "steps": kinds, "jobs": count} for (what, kinds), count in tally.stricter.most_common()
        ],
        "runs": dict(tally.runs),
        "holds_without": dict(tally.apart),
        "unknown": _reasons(tally.unknown),
        "refused_at_start": _reasons(tally.refused),
    }
    if tally.finding is not None:
        from lockgate.lab.randomjobs.jobfile import events_text, job_text
        from lockgate.lab.randomjobs.spec import to_json

        facts["finding"] = {
            "seed": tally.finding.seed,
            "verdict": tally.finding.verdict,
            "what": list(tally.finding.what),
            "replay": _replay(tally.finding, arguments),
            "job": job_text(tally.finding.spec),
            "events": events_text(tally.finding.spec),
            "spec": json.loads(to_json(tally.finding.spec)),
        }
    return facts


def _reasons(reasons: dict[str, Reason]) -> list[dict[str, Any]]:
    ordered = sorted(reasons.items(), key=lambda one: -one[1].jobs)
    return [{"what": what, "jobs": reason.jobs, "seeds": reason.seeds} for what, reason in ordered]


def _print(arguments: argparse.Namespace, tally: Tally, seconds: float) -> None:
    counts = ", ".join(f"{tally.verdicts[one]:,} {one}" for one in _VERDICTS)
    print(f"{tally.jobs:,} jobs, {seconds:.1f} s: {counts}")
    if not arguments.plan_only:
        _print_runs(tally)
    kinds = [(kind, *(f"{found[one]:,}" for one in _VERDICTS)) for kind, found in sorted(tally.kinds.items())]
    print("", *columns([("step", *_VERDICTS), *kinds], right=AFTER_FIRST), sep="\n")
    if tally.stricter:
        print("\nstricter than the model (no failure), the most frequent:")
        summed = Counter[str]()
        for (reason, _), count in tally.stricter.items():
            summed[reason] += count
        most = [(f"{count:,}", reason) for reason, count in summed.most_common(_STRICTER_SHOWN)]
        print(*columns(most, right=(0,), indent=2), sep="\n")
    print()
    _print_end(arguments, tally)


def _print_runs(tally: Tally) -> None:
    """Print how many of the drawn jobs ran, how many of these could be judged, and why the others could not."""
    runs = tally.runs
    print(
        f"{tally.accepted:,} accepted jobs: {runs['refused']:,} refused at their start, {tally.run:,} run in"
        f" {tally.run_seconds:,.1f} s; {tally.judged:,} judged, {runs['unknown']:,} unknown, {runs['failed']:,} failed,"
        f" {runs['violated']:,} violated"
    )
    for title, reasons in (("refused at start", tally.refused), ("unknown", tally.unknown)):
        for one in _reasons(reasons):
            print(f"  {title}: {one['jobs']:,} jobs: {one['what']} (seeds {', '.join(map(str, one['seeds']))})")
    for what, count in tally.apart.most_common():
        print(f"  holds, but {what}: {count:,} jobs")


def _print_end(arguments: argparse.Namespace, tally: Tally) -> None:
    verdict = _verdict(arguments, tally)
    judged = f"{tally.judged:,} of {tally.accepted:,} accepted jobs were judged"
    if verdict == "unknown":
        print(f"unknown: {judged}; the reasons are above")
    elif tally.finding is None:
        shown = "" if arguments.plan_only else f"; {judged}"
        print(f"holds: no job is accepted that must not be, and none is said to reach more than it does{shown}")
    else:
        from lockgate.lab.randomjobs.jobfile import events_text, job_text

        print(job_text(tally.finding.spec), events_text(tally.finding.spec), "", sep="\n")
        print(f"{verdict} by seed {tally.finding.seed}: {'; '.join(tally.finding.what)}")
        print(f"  again: {_replay(tally.finding, arguments)}")
