"""Hunt: draw one job after the other, and compare it with the model, or with the model and a run.

Job `number` of seed S is drawn from the seed S + number, so a job that shows something is replayed as the only job of
its own seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from lockgate.lab.randomjobs.check import Comparison, compare, kinds_of
from lockgate.lab.randomjobs.draw import draw
from lockgate.lab.randomjobs.model import is_refused_at_start
from lockgate.lab.randomjobs.outcome import Outcome
from lockgate.lab.randomjobs.shrink import shrink
from lockgate.lab.randomjobs.spec import Spec

RunTrial = Callable[[Spec, int], Outcome]


@dataclass(frozen=True)
class Finding:
    """A job that violates: its seed, what is violated, and the smallest job that still is."""

    seed: int
    what: tuple[str, ...]
    spec: Spec


@dataclass
class Tally:
    """What was found so far."""

    jobs: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    kinds: dict[str, Counter[str]] = field(default_factory=dict)
    stricter: Counter[tuple[str, str]] = field(default_factory=Counter)  # by (what, kinds of the steps)
    runs: Counter[str] = field(default_factory=Counter)
    unknown: dict[int, tuple[str, ...]] = field(default_factory=dict)
    finding: Finding | None = None


def hunt(first_seed: int, jobs: int, run_trial: RunTrial | None = None) -> Iterator[Tally]:
    """The tally after every job; the last one holds the first violation, shrunk, if there is one."""
    tally = Tally()
    for seed in range(first_seed, first_seed + jobs):
        spec = draw(Random(seed))
        compared = compare(spec)
        _count(tally, spec, compared)
        what = compared.violations
        if what:
            tally.finding = Finding(seed, what, shrink(spec, _violates))
        elif run_trial is not None and not compared.planned.is_refused and not is_refused_at_start(spec):
            outcome = run_trial(spec, seed)
            tally.runs[outcome.verdict] += 1
            if outcome.verdict == "unknown":
                tally.unknown[seed] = outcome.what
            if outcome.verdict == "violated":
                tally.verdicts["violation"] += 1
                tally.finding = Finding(seed, outcome.what, _shrunk_by_runs(spec, seed, run_trial))
        yield tally
        if tally.finding is not None:
            return


def _count(tally: Tally, spec: Spec, compared: Comparison) -> None:
    tally.jobs += 1
    tally.verdicts[compared.verdict] += 1
    kinds = kinds_of(spec)
    for kind in kinds:
        tally.kinds.setdefault(kind, Counter())[compared.verdict] += 1
    for what in compared.stricter:
        tally.stricter[(_pattern(what), ", ".join(kinds))] += 1


def _pattern(what: str) -> str:
    """What is said of a job, without its names."""
    words = what.split("'")
    return "'...'".join(words[::2]).replace("output out0", "an output").replace("output out1", "an output")


def _violates(spec: Spec) -> bool:
    return bool(compare(spec).violations)


def _shrunk_by_runs(spec: Spec, seed: int, run_trial: RunTrial) -> Spec:
    """A run takes seconds, so a job is only made smaller as far as the plan still accepts it."""

    def violates(smaller: Spec) -> bool:
        if compare(smaller).planned.is_refused or is_refused_at_start(smaller):
            return False
        return run_trial(smaller, seed).verdict == "violated"

    return shrink(spec, violates)
