"""The part of `lockgate simulate` that draws random jobs: `--jobs N`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from lockgate.errors import Refused

if TYPE_CHECKING:
    from lockgate.lab.randomjobs.hunt import Finding, RunTrial, Tally

_TELL_SECONDS = 2.0
_STRICTER_SHOWN = 20


def simulate_jobs(arguments: argparse.Namespace) -> int:
    """Draw jobs, compare, and say what was found."""
    from lockgate.lab.randomjobs.hunt import Tally, hunt

    if arguments.jobs < 1:
        raise Refused(f"--jobs {arguments.jobs} is too small", where="command line", fix="give at least 1")
    run: RunTrial | None = None
    if not arguments.plan_only:
        from lockgate.lab.randomjobs.trial import run_trial

        run = run_trial
    began = told_at = time.monotonic()
    tally = Tally()
    for tally in hunt(arguments.seed, arguments.jobs, run):
        now = time.monotonic()
        if now - told_at > _TELL_SECONDS:
            told_at = now
            rate = tally.jobs / (now - began)
            left = (arguments.jobs - tally.jobs) / rate
            print(
                f"  {tally.jobs:,} of {arguments.jobs:,} jobs, {rate:,.1f} a second, about {left:,.0f} s to go",
                file=sys.stderr,
                flush=True,
            )
    seconds = time.monotonic() - began
    if arguments.json:
        print(json.dumps(_facts(arguments, tally, seconds), indent=2))
    else:
        _print(arguments, tally, seconds)
    return 0 if tally.finding is None else 1


def _replay(finding: Finding, arguments: argparse.Namespace) -> str:
    return f"lockgate simulate --jobs 1 --seed {finding.seed}" + (" --plan-only" if arguments.plan_only else "")


def _facts(arguments: argparse.Namespace, tally: Tally, seconds: float) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "verdict": "holds" if tally.finding is None else "broken",
        "first_seed": arguments.seed,
        "plan_only": arguments.plan_only,
        "jobs": tally.jobs,
        "seconds": round(seconds, 2),
        "verdicts": dict(tally.verdicts),
        "step_kinds": {kind: dict(counts) for kind, counts in sorted(tally.kinds.items())},
        "stricter": [
            {"what": what, "steps": kinds, "jobs": count} for (what, kinds), count in tally.stricter.most_common()
        ],
        "runs": dict(tally.runs),
        "unknown": {str(seed): list(what) for seed, what in tally.unknown.items()},
    }
    if tally.finding is not None:
        from lockgate.lab.randomjobs.jobfile import events_text, job_text
        from lockgate.lab.randomjobs.spec import to_json

        facts["finding"] = {
            "seed": tally.finding.seed,
            "what": list(tally.finding.what),
            "replay": _replay(tally.finding, arguments),
            "job": job_text(tally.finding.spec),
            "events": events_text(tally.finding.spec),
            "spec": json.loads(to_json(tally.finding.spec)),
        }
    return facts


def _print(arguments: argparse.Namespace, tally: Tally, seconds: float) -> None:
    verdicts = ("accepted", "refused", "stricter", "violation")
    counts = ", ".join(f"{tally.verdicts[one]:,} {one}" for one in verdicts)
    print(f"{tally.jobs:,} jobs, {seconds:.1f} s: {counts}")
    if tally.runs:
        print("runs: " + ", ".join(f"{count:,} {verdict}" for verdict, count in sorted(tally.runs.items())))
    for seed, what in tally.unknown.items():
        print(f"  unknown: seed {seed}: {what[0] if what else 'no reason given'}")
    print()
    print(f"{'step':<18}" + "".join(f"{one:>12}" for one in verdicts))
    for kind, by_verdict in sorted(tally.kinds.items()):
        print(f"{kind:<18}" + "".join(f"{by_verdict[one]:>12,}" for one in verdicts))
    if tally.stricter:
        print("\nstricter than the model (no failure), the most frequent:")
        summed = Counter[str]()
        for (reason, _), count in tally.stricter.items():
            summed[reason] += count
        for reason, count in summed.most_common(_STRICTER_SHOWN):
            print(f"{count:>8,}  {reason}")
    print()
    if tally.finding is None:
        print("holds: no job is accepted that must not be, and none is said to reach more than it does")
        return
    from lockgate.lab.randomjobs.jobfile import events_text, job_text

    print(job_text(tally.finding.spec), events_text(tally.finding.spec), "", sep="\n")
    print(f"broken by seed {tally.finding.seed}: {'; '.join(tally.finding.what)}")
    print(f"  again: {_replay(tally.finding, arguments)}")
