"""Measure from the topics how long scores and answers took, and how many answers were partial. Pure.

All times are the broker's timestamps of the records: one independent clock, in whole milliseconds. An analyser commits
at the end of an epoch, and scores nothing during the commit. So a score whose payment arrived within a second of such a
commit counts as one at the end of an epoch, and is listed separately. All scores are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockgate.lab.demo import terminal
from lockgate.presenter.latencies import Latencies

NEAR_MS = 1000
"""Within this time of the commit of an epoch, a payment is at its end."""

BAR_MS = {"ms_p50": 5, "ms_p99": 20}
"""The goal for scores between epoch ends, at 1,000 payments per second."""

BETWEEN, ALL = "between these", "all"
"""Payments outside all phases (starts, warm-up, catching up), and all payments."""


@dataclass(frozen=True)
class Given:
    """An answer in the result topic."""

    at_ms: int
    is_partial: bool
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Phase:
    """A phase of the show, named after what is done to an analyser."""

    name: str
    begin_ms: int
    end_ms: int


@dataclass(frozen=True)
class Stamps:
    """When each record was in its topic, in milliseconds since 1970."""

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
            self.missed += 1
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
            "missed_share": round(self.missed / self.payments, 4) if self.payments else None,
            "missing": dict(self.missing),
            "answer": self.first.facts(),
            "full_answer": self.full.facts(),
        }


def count_answers(stamps: Stamps) -> dict[str, PhaseCount]:
    """The answers of each phase, of the times between, and all; a payment belongs to the phase of its arrival."""
    counts = {name: PhaseCount() for name in (*(phase.name for phase in stamps.phases), BETWEEN, ALL)}
    for id, arrived in stamps.arrivals.items():
        came = (phase.name for phase in stamps.phases if phase.begin_ms <= arrived < phase.end_ms)
        for name in (next(came, BETWEEN), ALL):
            counts[name].count(arrived, stamps.answers.get(id, ()), stamps.deadline_ms)
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
        told = self.latencies.facts()
        if self.longest_ms is not None:  # a quantile has an error of 1 %, and could exceed the longest
            told |= {name: min(told[name] or 0, self.longest_ms) for name in ("ms_p50", "ms_p99", "ms_p999")}
        return {**told, "ms_max": self.longest_ms, "unscored": self.unscored}


def time_scores(stamps: Stamps, phase: Phase) -> dict[str, dict[str, ScoreTimes]]:
    """For each analyser the latencies of its scores in a phase: `between` epoch ends, at `epoch_ends`, and `all`."""
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
    """For each analyser the payments without a score at the end."""
    return {analyser: sum(id not in scores for id in stamps.arrivals) for analyser, scores in stamps.scores.items()}


@dataclass(frozen=True)
class Measured:
    """All measurements. Scores are timed in the phases without a disturbance."""

    stamps: Stamps
    table: Mapping[str, int]  # of the result store: rows, and how many have all scores
    timed: int  # how many phases, from the first, are timed

    def facts(self) -> dict[str, Any]:
        """As plain data."""
        phases = self.stamps.phases[: self.timed]
        return {
            "deadline_ms": self.stamps.deadline_ms,
            "phases": {name: count.facts() for name, count in count_answers(self.stamps).items()},
            "scores": {phase.name: self._scores(phase) for phase in phases},
            "epoch_ends": {analyser: len(ends) for analyser, ends in self.stamps.epoch_ends.items()},
            "unscored": count_unscored(self.stamps),
            "table": dict(self.table),
        }

    def _scores(self, phase: Phase) -> dict[str, dict[str, Any]]:
        ends = count_epoch_ends(self.stamps, phase)
        found: dict[str, dict[str, Any]] = {}
        for analyser, kinds in time_scores(self.stamps, phase).items():
            told = {kind: times.facts() for kind, times in kinds.items()}
            found[analyser] = {
                **told,
                "epoch_ends_seen": ends[analyser],
                "stall_ms_max": told["epoch_ends"]["ms_max"],
                "meets_bar": _meets_bar(told["between"]),
            }
        return found

    def text(self) -> str:
        """As tables."""
        return as_text(self.facts())


def as_text(facts: Mapping[str, Any]) -> str:
    """The measurements as tables, from the plain data."""
    answers = [
        {
            "phase": name,
            "payments": told["payments"],
            "unanswered": told["unanswered"],
            "partial": told["partial"],
            "share": _share(told["partial_share"]),
            "replaced later": told["replaced"],
            f"behind {facts['deadline_ms']} ms": told["missed_deadlines"],
            "late": _share(told["missed_share"]),
            **_columns(told["answer"]),
        }
        for name, told in facts["phases"].items()
    ]
    rows, whole, came = facts["table"]["rows"], facts["table"]["whole"], facts["phases"][ALL]["payments"]
    lines = [
        *(line for name, scores in facts["scores"].items() for line in _score_lines(name, scores)),
        f"Never scored, to the end of the show: {_listed(facts['unscored'])}",
        "",
        "From a payment's arrival to its answer, by phase",
        terminal.table(answers),
        "Scores that answers lacked",
        *(f"  {name}: {_listed(told['missing'])}" for name, told in facts["phases"].items()),
        "",
        f"In the table: {rows:,} of {came:,} payments, {whole:,} with all scores",
    ]
    return "\n".join(lines)


def _score_lines(phase: str, scores: Mapping[str, Mapping[str, Any]]) -> list[str]:
    rows = [
        {
            "analyser": analyser,
            "payments": _KINDS[kind],
            "scored": told[kind]["count"],
            "never": told[kind]["unscored"],
            **_columns(told[kind]),
            "longest ms": _number(told[kind]["ms_max"]),
        }
        for analyser, told in scores.items()
        for kind in _KINDS
        if told[kind]["count"] or told[kind]["unscored"]
    ]
    words = {True: "met", False: "missed", None: "-"}
    bar = ", ".join(f"{analyser} {words[told['meets_bar']]}" for analyser, told in scores.items())
    return [
        f"From a payment's arrival to its scores ({phase})",
        terminal.table(rows),
        f"Goal between epoch ends: p50 {BAR_MS['ms_p50']} ms, p99 {BAR_MS['ms_p99']} ms: {bar}",
        f"Ends of epochs: {_listed({name: told['epoch_ends_seen'] for name, told in scores.items()})}",
        f"Longest stall at one, in ms: {_listed({name: told['stall_ms_max'] for name, told in scores.items()})}",
        "",
    ]


def _meets_bar(told: Mapping[str, Any]) -> bool | None:
    """Do scores meet the goal? None without scores; no if a payment has none."""
    if not told["count"] and not told["unscored"]:
        return None
    return not told["unscored"] and all(told[name] <= limit for name, limit in BAR_MS.items())


_KINDS = {"between": "between epoch ends", "epoch_ends": "at epoch ends", "all": "all"}


def _columns(told: Mapping[str, Any]) -> dict[str, object]:
    names = {"ms_p50": "p50 ms", "ms_p99": "p99 ms", "ms_p999": "p99.9 ms"}
    return {shown: _number(told[name]) for name, shown in names.items()}


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _number(value: float | None) -> object:
    return "-" if value is None else float(value)


def _listed(counts: Mapping[str, int | None]) -> str:
    return ", ".join(f"{name} {'-' if count is None else f'{count:,}'}" for name, count in counts.items()) or "none"


def _is_near(moment: int, ends: Iterable[int]) -> bool:
    return any(abs(moment - end) <= NEAR_MS for end in ends)
