"""The tally of a hunt: how many jobs were drawn, accepted, run and judged, and what was found.

drawn       all jobs; `verdicts` says what plan and model say of them
accepted    the plan accepts them; in a hunt with runs each of them is started
refused     those whose start refused them, by reason: no plan can know it
run         those that ran: judged (held or violated), unknown (by reason) or failed
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from lockgate.lab.randomjobs.check import Comparison, kinds_of
from lockgate.lab.randomjobs.outcome import JUDGED, Outcome
from lockgate.lab.randomjobs.spec import Spec

_SEEDS_KEPT = 5


@dataclass(frozen=True)
class Finding:
    """A job that violates or fails: its seed, what it shows, and the smallest job that still shows it."""

    seed: int
    what: tuple[str, ...]
    spec: Spec
    verdict: str = "violated"


@dataclass(frozen=True)
class Seen:
    """What one job showed."""

    seed: int
    verdict: str
    is_accepted: bool
    kinds: tuple[str, ...]
    stricter: tuple[str, ...]
    outcome: Outcome | None
    finding: Finding | None

    @classmethod
    def of(
        cls,
        spec: Spec,
        seed: int,
        compared: Comparison,
        outcome: Outcome | None = None,
        finding: Finding | None = None,
    ) -> Seen:
        """Of a job, what plan, model and run say."""
        is_accepted = not compared.planned.is_refused
        return cls(seed, compared.verdict, is_accepted, kinds_of(spec), compared.stricter, outcome, finding)


@dataclass
class Reason:
    """Why some jobs were refused at their start, or could not be judged: how many, and the first of them."""

    jobs: int = 0
    seeds: list[int] = field(default_factory=list)

    def add(self, seed: int) -> None:
        """One more."""
        self.jobs += 1
        if len(self.seeds) < _SEEDS_KEPT:
            self.seeds.append(seed)


@dataclass
class Tally:
    """What was found so far."""

    jobs: int = 0
    accepted: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    kinds: dict[str, Counter[str]] = field(default_factory=dict)
    stricter: Counter[tuple[str, str]] = field(default_factory=Counter)  # by (what, kinds of the steps)
    runs: Counter[str] = field(default_factory=Counter)  # by verdict of the outcome
    apart: Counter[str] = field(default_factory=Counter)  # runs that hold, by what they did not exercise
    unknown: dict[str, Reason] = field(default_factory=dict)
    refused: dict[str, Reason] = field(default_factory=dict)
    run_seconds: float = 0.0
    finding: Finding | None = None

    @property
    def run(self) -> int:
        """How many jobs ran."""
        return self.runs.total() - self.runs["refused"]

    @property
    def judged(self) -> int:
        """How many of those that ran could be compared with an answer."""
        return sum(self.runs[verdict] for verdict in JUDGED)

    def add(self, seen: Seen) -> None:
        """Count one job."""
        self.jobs += 1
        self.accepted += seen.is_accepted
        self.verdicts[seen.verdict] += 1
        for kind in seen.kinds:
            self.kinds.setdefault(kind, Counter())[seen.verdict] += 1
        for what in seen.stricter:
            self.stricter[(pattern(what), ", ".join(seen.kinds))] += 1
        self.finding = seen.finding
        outcome = seen.outcome
        if outcome is None:
            return
        self.runs[outcome.verdict] += 1
        self.run_seconds += outcome.seconds
        if outcome.verdict == "holds":
            self.apart.update(outcome.apart)
        reasons = {"unknown": self.unknown, "refused": self.refused}.get(outcome.verdict)
        if reasons is not None:
            reason = pattern(outcome.what[0]) if outcome.what else "no reason given"
            reasons.setdefault(reason, Reason()).add(seen.seed)


def pattern(what: str) -> str:
    """What is said of a job, without the names of its parts."""
    words = what.partition("\n")[0].split("'")
    return re.sub(r"\boutput out\d+", "an output", re.sub(r"^[\w-]+: unknown: ", "", "'...'".join(words[::2])))
