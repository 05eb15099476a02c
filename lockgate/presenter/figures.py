"""What a presenter counts, as figures of the same kind as those of a job.

A presenter has its own metrics because it is not a job: it has no epochs. What matters is how often an answer was full,
and how often it was in time. Latencies are quantiles since the start, as gauges: a histogram with fixed buckets could
not distinguish both 4 ms from 5 ms and 400 ms from 500 ms. One thread counts, and the readers copy what may grow.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockgate.presenter.latencies import QUANTILES, Latencies
from lockgate.runtime.metrics.figures import Figure, Metric

METRICS = (
    Metric("lockgate_presenter_transactions_total", "Transactions that arrived."),
    Metric("lockgate_presenter_answers_total", "Transactions by how they were answered first.", ("answer",)),
    Metric("lockgate_presenter_partial_share", "Of the first answers, the share with a score missing; 0 to 1."),
    Metric("lockgate_presenter_revised_total", "Further partial answers, for scores that arrived late."),
    Metric("lockgate_presenter_replaced_total", "Partial answers that the full one replaced."),
    Metric("lockgate_presenter_missed_deadlines_total", "Transactions whose first answer was written late, or never."),
    Metric("lockgate_presenter_missing_scores_total", "Scores that a first answer lacked.", ("analyser",)),
    Metric("lockgate_presenter_repeated_total", "Records that arrived again, which at-least-once allows.", ("what",)),
    Metric("lockgate_presenter_unreadable_total", "Records that are not JSON of the expected form.", ("topic",)),
    Metric("lockgate_presenter_forgotten_total", "Transactions that were dropped, by their newest answer.", ("as",)),
    Metric("lockgate_presenter_held_transactions", "Transactions in memory."),
    Metric("lockgate_presenter_unwritten_answers", "Answers on their way to the result topic."),
    Metric("lockgate_presenter_decided_seconds", "From arrival until the first answer was decided.", ("quantile",)),
    Metric("lockgate_presenter_answer_seconds", "From arrival until the first answer was written.", ("quantile",)),
    Metric("lockgate_presenter_full_answer_seconds", "From arrival until the full answer was written.", ("quantile",)),
    Metric(
        "lockgate_presenter_score_written_seconds",
        "From arrival until a score was written, by the stamps of both records.",
        ("analyser", "quantile"),
    ),
    Metric(
        "lockgate_presenter_score_seen_seconds",
        "From arrival until the presenter had a score.",
        ("analyser", "quantile"),
    ),
    Metric("lockgate_presenter_questions_total", "Questions about a transaction, known or unknown.", ("answer",)),
    Metric("lockgate_presenter_question_seconds", "From a question to its answer.", ("quantile",)),
)
"""Every metric of a presenter; docs/METRICS.md explains them."""

_KNOWN = ("known", "unknown")


@dataclass
class Tally:
    """The counts since the start."""

    analysers: Sequence[str]
    transactions: int = 0
    answers: Counter[str] = field(default_factory=Counter)  # full or partial
    revised: int = 0
    replaced: int = 0
    missed: int = 0
    missing: Counter[str] = field(default_factory=Counter)  # by analyser
    repeated: Counter[str] = field(default_factory=Counter)  # transaction or score
    unreadable: Counter[str] = field(default_factory=Counter)  # by topic
    forgotten: Counter[str] = field(default_factory=Counter)  # full, partial or unknown
    held: int = 0
    unwritten: int = 0
    decided: Latencies = field(default_factory=Latencies)
    first: Latencies = field(default_factory=Latencies)
    full: Latencies = field(default_factory=Latencies)
    written: dict[str, Latencies] = field(default_factory=dict)  # by analyser
    seen: dict[str, Latencies] = field(default_factory=dict)
    questions: Counter[str] = field(default_factory=Counter)  # known or unknown
    asked: Latencies = field(default_factory=Latencies)
    _asking: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        for analyser in self.analysers:
            self.written[analyser], self.seen[analyser] = Latencies(), Latencies()

    def note_question(self, is_known: bool, took: float) -> None:
        """Count an answered question. For any thread."""
        with self._asking:
            self.questions["known" if is_known else "unknown"] += 1
            self.asked.add(took)

    @property
    def partial_share(self) -> float | None:
        """The share of first answers that were partial; None before the first."""
        count = self.answers.total()
        return self.answers["partial"] / count if count else None

    @property
    def missed_share(self) -> float | None:
        """The share of transactions whose first answer was late, or never given; None before the first."""
        return self.missed / self.transactions if self.transactions else None

    def facts(self) -> dict[str, Any]:
        """As plain data, for `--json`."""
        return {
            "transactions": self.transactions,
            "full": self.answers["full"],
            "partial": self.answers["partial"],
            "partial_share": self.partial_share,
            "revised": self.revised,
            "replaced": self.replaced,
            "missed_deadlines": self.missed,
            "missed_share": self.missed_share,
            "missing": {analyser: self.missing[analyser] for analyser in self.analysers},
            "repeated": dict(self.repeated),
            "unreadable": dict(self.unreadable),
            "forgotten": dict(self.forgotten),
            "held": self.held,
            "unwritten": self.unwritten,
            "decided": self.decided.facts(),
            "answer": self.first.facts(),
            "full_answer": self.full.facts(),
            "score_written": {analyser: self.written[analyser].facts() for analyser in self.analysers},
            "score_seen": {analyser: self.seen[analyser].facts() for analyser in self.analysers},
            "questions": {how: self.questions[how] for how in _KNOWN},
            "question": self.asked.facts(),
        }

    def figures(self) -> list[Figure]:
        """As metrics."""
        found = [
            Figure("lockgate_presenter_transactions_total", self.transactions),
            Figure("lockgate_presenter_revised_total", self.revised),
            Figure("lockgate_presenter_replaced_total", self.replaced),
            Figure("lockgate_presenter_missed_deadlines_total", self.missed),
            Figure("lockgate_presenter_held_transactions", self.held),
            Figure("lockgate_presenter_unwritten_answers", self.unwritten),
        ]
        found += [Figure("lockgate_presenter_answers_total", self.answers[how], (how,)) for how in ("full", "partial")]
        if self.partial_share is not None:
            found.append(Figure("lockgate_presenter_partial_share", self.partial_share))
        found += _counted("lockgate_presenter_missing_scores_total", {one: self.missing[one] for one in self.analysers})
        found += _counted("lockgate_presenter_repeated_total", self.repeated)
        found += _counted("lockgate_presenter_unreadable_total", self.unreadable)
        found += _counted("lockgate_presenter_forgotten_total", self.forgotten)
        found += _counted("lockgate_presenter_questions_total", {how: self.questions[how] for how in _KNOWN})
        found += _quantiles("lockgate_presenter_question_seconds", self.asked, ())
        found += _quantiles("lockgate_presenter_decided_seconds", self.decided, ())
        found += _quantiles("lockgate_presenter_answer_seconds", self.first, ())
        found += _quantiles("lockgate_presenter_full_answer_seconds", self.full, ())
        for analyser in self.analysers:
            found += _quantiles("lockgate_presenter_score_written_seconds", self.written[analyser], (analyser,))
            found += _quantiles("lockgate_presenter_score_seen_seconds", self.seen[analyser], (analyser,))
        return found


def _counted(name: str, counts: Mapping[str, int]) -> list[Figure]:
    return [Figure(name, count, (label,)) for label, count in dict(counts).items()]


def _quantiles(name: str, latencies: Latencies, labels: tuple[str, ...]) -> list[Figure]:
    told = ((share, latencies.quantile(share)) for share in QUANTILES.values())
    return [Figure(name, seconds, (*labels, str(share))) for share, seconds in told if seconds is not None]
