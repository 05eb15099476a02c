"""What the topics say afterwards: how long scores and answers took, and how many answers were partial. Pure.

Everything is counted by the stamps that the broker gave the records when it had them: one clock, and nobody's own word.
An analyser commits at the end of an epoch, and scores nothing meanwhile. So a score whose payment came within a second
of such a commit counts as one at an epoch's end, and is told apart; none is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockgate.demo import terminal
from lockgate.presenter.latencies import Latencies

NEAR_MS = 1000
"""So close to the commit of an epoch is at its end."""


@dataclass(frozen=True)
class Given:
    """An answer, as the result topic has it."""

    at_ms: int
    is_partial: bool
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Phase:
    """A part of the show: what was done to an analyser meanwhile."""

    name: str
    begin_ms: int
    end_ms: int


@dataclass(frozen=True)
class Stamps:
    """When what was in its topic, in milliseconds since 1970."""

    arrivals: Mapping[str, int]  # by the payment's id
    scores: Mapping[str, Mapping[str, int]]  # by analyser, by id: the first one
    answers: Mapping[str, Sequence[Given]]  # by id, in their order
    epoch_ends: Mapping[str, Sequence[int]]  # by analyser
    phases: Sequence[Phase]
    deadline_ms: int


@dataclass
class PhaseCount:
    """The answers of a phase."""

    payments: int = 0
    unanswered: int = 0
    partial: int = 0
    missed: int = 0
    replaced: int = 0
    missing: Counter[str] = field(default_factory=Counter)  # by analyser
    first: Latencies = field(default_factory=Latencies)
    full: Latencies = field(default_factory=Latencies)

    def count(self, arrived: int, given: Sequence[Given], deadline_ms: int) -> None:
        """Add a payment."""
        self.payments += 1
        if not given:
            self.unanswered += 1
            return
        first = given[0]
        self.partial += first.is_partial
        self.missed += first.at_ms - arrived > deadline_ms
        self.missing.update(first.missing)
        self.first.add((first.at_ms - arrived) / 1000)
        full = next((one for one in given if not one.is_partial), None)
        if full is not None:
            self.replaced += first.is_partial
            self.full.add((full.at_ms - arrived) / 1000)

    def facts(self) -> dict[str, Any]:
        """As plain data."""
        answered = self.payments - self.unanswered
        return {
            "payments": self.payments,
            "unanswered": self.unanswered,
            "partial": self.partial,
            "partial_share": round(self.partial / answered, 4) if answered else None,
            "replaced": self.replaced,
            "missed_deadlines": self.missed,
            "missing": dict(self.missing),
            "answer": self.first.facts(),
            "full_answer": self.full.facts(),
        }


def count_answers(stamps: Stamps) -> dict[str, PhaseCount]:
    """The answers of each phase; a payment belongs to the phase in which it came."""
    counts = {phase.name: PhaseCount() for phase in stamps.phases}
    for id, arrived in stamps.arrivals.items():
        for phase in stamps.phases:
            if phase.begin_ms <= arrived < phase.end_ms:
                counts[phase.name].count(arrived, stamps.answers.get(id, ()), stamps.deadline_ms)
    return counts


@dataclass
class ScoreTimes:
    """How long the scores of some payments took, and how many payments never got one."""

    latencies: Latencies = field(default_factory=Latencies)
    unscored: int = 0
    longest_ms: int | None = None

    def count(self, arrived: int, scored: int | None) -> None:
        """Add a payment."""
        if scored is None:
            self.unscored += 1
            return
        self.latencies.add((scored - arrived) / 1000)
        self.longest_ms = max(scored - arrived, self.longest_ms or 0)

    def facts(self) -> dict[str, Any]:
        """As plain data."""
        return {**self.latencies.facts(), "ms_max": self.longest_ms, "unscored": self.unscored}


def time_scores(stamps: Stamps, phase: Phase) -> dict[str, dict[str, ScoreTimes]]:
    """For each analyser how long its scores of a phase took: `between` epoch ends, at `epoch_ends`, and `all`."""
    found: dict[str, dict[str, ScoreTimes]] = {}
    for analyser, scores in stamps.scores.items():
        kinds = {"between": ScoreTimes(), "epoch_ends": ScoreTimes(), "all": ScoreTimes()}
        ends = sorted(stamps.epoch_ends.get(analyser, ()))
        for id, arrived in stamps.arrivals.items():
            if phase.begin_ms <= arrived < phase.end_ms:
                kinds["epoch_ends" if _is_near(arrived, ends) else "between"].count(arrived, scores.get(id))
                kinds["all"].count(arrived, scores.get(id))
        found[analyser] = kinds
    return found


def count_epoch_ends(stamps: Stamps, phase: Phase) -> dict[str, int]:
    """For each analyser the ends of epochs that scores of a phase may be at."""
    begin, end = phase.begin_ms - NEAR_MS, phase.end_ms + NEAR_MS
    return {
        analyser: sum(begin <= one < end for one in stamps.epoch_ends.get(analyser, ())) for analyser in stamps.scores
    }


def count_unscored(stamps: Stamps) -> dict[str, int]:
    """For each analyser the payments that it has given no score, to the end."""
    return {analyser: sum(id not in scores for id in stamps.arrivals) for analyser, scores in stamps.scores.items()}


@dataclass(frozen=True)
class Measured:
    """All of it. Scores are timed in the first phase, in which nothing is done to anybody."""

    stamps: Stamps
    table: Mapping[str, int]  # of the result store: rows, and how many have all scores

    def facts(self) -> dict[str, Any]:
        """As plain data."""
        first = self.stamps.phases[0]
        timed = time_scores(self.stamps, first)
        return {
            "deadline_ms": self.stamps.deadline_ms,
            "phases": {name: count.facts() for name, count in count_answers(self.stamps).items()},
            "scores": {
                analyser: {kind: times.facts() for kind, times in kinds.items()} for analyser, kinds in timed.items()
            },
            "epoch_ends": {analyser: len(ends) for analyser, ends in self.stamps.epoch_ends.items()},
            "epoch_ends_timed": count_epoch_ends(self.stamps, first),
            "stall_ms_max": {analyser: kinds["epoch_ends"].longest_ms for analyser, kinds in timed.items()},
            "unscored": count_unscored(self.stamps),
            "table": dict(self.table),
        }

    def text(self) -> str:
        """As tables."""
        facts = self.facts()
        scores = [
            {
                "analyser": analyser,
                "payments": _KINDS[kind],
                "scored": told["count"],
                "never": told["unscored"],
                **_columns(told),
                "longest ms": _number(told["ms_max"]),
            }
            for analyser, kinds in facts["scores"].items()
            for kind, told in kinds.items()
            if told["count"] or told["unscored"]
        ]
        answers = [
            {
                "phase": name,
                "payments": told["payments"],
                "unanswered": told["unanswered"],
                "partial": told["partial"],
                "share": "-" if told["partial_share"] is None else f"{told['partial_share']:.1%}",
                "replaced later": told["replaced"],
                f"behind {facts['deadline_ms']} ms": told["missed_deadlines"],
                **_columns(told["answer"]),
            }
            for name, told in facts["phases"].items()
        ]
        first = self.stamps.phases[0].name
        missing = [f"  {name}: {_listed(told['missing'])}" for name, told in facts["phases"].items()]
        rows, whole, came = self.table["rows"], self.table["whole"], len(self.stamps.arrivals)
        lines = [
            f"From a payment's arrival to its scores, while nothing was stopped ({first})",
            terminal.table(scores),
            f"Ends of epochs meanwhile: {_listed(facts['epoch_ends_timed'])}",
            f"Longest stall at one, in ms: {_listed(facts['stall_ms_max'])}",
            f"Never scored, to the end of the show: {_listed(facts['unscored'])}",
            "",
            "From a payment's arrival to its answer, by what was done meanwhile",
            terminal.table(answers),
            "Scores that answers had to do without",
            *missing,
            "",
            f"In the table: {rows:,} of {came:,} payments, {whole:,} with all scores",
        ]
        return "\n".join(lines)


_KINDS = {"between": "between epoch ends", "epoch_ends": "at epoch ends", "all": "all"}


def _columns(told: Mapping[str, Any]) -> dict[str, object]:
    names = {"ms_p50": "p50 ms", "ms_p99": "p99 ms", "ms_p999": "p99.9 ms"}
    return {shown: _number(told[name]) for name, shown in names.items()}


def _number(value: float | None) -> object:
    return "-" if value is None else float(value)


def _listed(counts: Mapping[str, int | None]) -> str:
    return ", ".join(f"{name} {'-' if count is None else f'{count:,}'}" for name, count in counts.items()) or "none"


def _is_near(moment: int, ends: Iterable[int]) -> bool:
    return any(abs(moment - end) <= NEAR_MS for end in ends)
