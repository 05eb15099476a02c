"""The result of a proof: in one sentence, as facts for programs, and as lines for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lockgate.columns import columns, wrap
from lockgate.escaping import visible
from lockgate.faultpoints import FaultPoint
from lockgate.guarantees import Guarantee
from lockgate.lab.prove.verdict import Cell, Trial, Verdict
from lockgate.lab.rig.faults import Kind
from lockgate.lab.rig.judge.findings import Outcome, combine

MEANINGS = {
    "lost": "rows that had to come and are not there when all is over",
    "duplicated": "copies of rows beyond those that the job undisturbed has",
    "foreign": "rows that the job undisturbed has not at all",
    "aborted seen": "rows that a reader of committed records was given at any moment, and that are gone in the end",
    "disordered": "rows of one key that left in another order than their events came",
    "split epochs": "places where an epoch became visible in pieces",
    "wrong aggregates": "differences to the same computed at once over all events",
    "open transactions": "partitions in which a transaction was left open",
    "taken over": "times that a driver went on after another one had taken over",
    "recovery": "new rows came after every fault",
    "tried": "every fault struck that was due, and there was something to break",
}
"""What each checker counts, or asks."""

ABOUT_THE_TRIALS = ("recovery", "tried")
"""The checkers that ask whether something was tried at all; they count nothing."""

PROMISES = {
    Guarantee.AT_MOST_ONCE: "an event takes effect once or not at all: nothing is doubled, something may be lost",
    Guarantee.AT_LEAST_ONCE: "every event takes effect: nothing is lost, something may come twice",
    Guarantee.EXACTLY_ONCE: "every event counts once in state: nothing is lost or wrong, rows may be written twice",
    Guarantee.END_TO_END_EXACTLY_ONCE: "every event takes effect once, in all that a reader can ever see: "
    "nothing is lost, doubled, wrong or taken back",
}
"""What each guarantee says, in plain words."""

FAILURES_MAX = 10
"""How many of the trials that do not hold are shown one by one."""

_SHARES = {"p50": 0.5, "p99": 0.99, "longest": 1.0}
_MEANING_ROOM_MIN = 60  # in less room than this, the meaning of a check is omitted


UNSTEADY = (
    "The job may give other rows in another run, so what came could not be compared with what an undisturbed run gave:"
)


@dataclass(frozen=True)
class Report:
    """A verdict with what is said about it."""

    verdict: Verdict
    machine: Mapping[str, str]
    command: str  # that made it
    skipped: Mapping[str, str] = field(default_factory=dict)  # faults that could not be tried here: why
    unsteady: Sequence[str] = ()  # why another run of the job may give other rows, so that none could be compared

    @property
    def sentence(self) -> str:
        """What was proven, or was not."""
        verdict, settings = self.verdict, self.verdict.settings
        promise = f"its guarantee, {settings.guarantee.label}"
        trials, faults = _number(len(verdict.trials), "trial"), _number(verdict.strike_count, "fault")
        rows = f"{_number(verdict.event_count, 'event')}, {self.told('lost')}, {self.told('duplicated')}"
        if verdict.outcome is Outcome.HOLDS:
            return f"{settings.job} kept {promise}, through {faults} in {trials}: {rows}."
        if verdict.outcome is Outcome.BROKEN:
            broken = len(verdict.of(Outcome.BROKEN))
            return f"{settings.job} broke {promise}, in {broken:,} of {trials} with {faults}: {rows}."
        if not verdict.trials:
            return f"Nothing is known of {settings.job} and {promise}: no trial has been run."
        unknown = len(verdict.of(Outcome.UNKNOWN))
        return f"It is not known whether {settings.job} keeps {promise}: {unknown:,} of {trials} could not be judged."

    @property
    def promise(self) -> str:
        """What was promised."""
        guarantee = self.verdict.settings.guarantee
        return f"{guarantee.label.capitalize()} promises: {PROMISES[guarantee]}."

    @property
    def allowed(self) -> str:
        """How often that happened which the guarantee does not promise to keep away; empty where it promises all."""
        verdict = self.verdict
        if verdict.settings.guarantee is Guarantee.END_TO_END_EXACTLY_ONCE:
            return ""
        found = [f"{verdict.count(name):,} {name}" for name in MEANINGS if self.is_loose(name) and verdict.count(name)]
        if not found:
            return "What it allows did not happen." if verdict.holds else ""
        return f"What it allows did happen: {', '.join(found)}, beside {_number(self.row_count, 'row')} that came."

    def is_loose(self, checker: str) -> bool:
        """Was it never promised, in any trial that could be judged?"""
        asked = (trial.checks.get(checker) for trial in self.verdict.trials)
        return {one.outcome for one in asked if one is not None} == {Outcome.NOT_PROMISED}

    @property
    def left_out(self) -> str:
        """That faults were skipped, if some were."""
        if not self.skipped:
            return ""
        kinds = "1 kind of fault" if len(self.skipped) == 1 else f"{len(self.skipped)} kinds of faults"
        return f"{kinds} could not be tried here: {', '.join(self.skipped)}."

    def told(self, checker: str) -> str:
        """A count in words, and whether the guarantee allows it."""
        number = self.verdict.count(checker)
        is_allowed = number and self.check(checker) is Outcome.NOT_PROMISED
        return f"{number:,} {checker}" + (" (which it allows)" if is_allowed else "")

    def check(self, checker: str) -> Outcome:
        """How a checker ended over all trials; where it was not asked, it is not known."""
        asked = (trial.checks.get(checker) for trial in self.verdict.trials)
        found = {Outcome.UNKNOWN if one is None else one.outcome for one in asked}
        return Outcome.NOT_PROMISED if found == {Outcome.NOT_PROMISED} else combine(found)

    def result(self, checker: str) -> str:
        """How a checker ended in words, with the number of trials where it is not the same in all."""
        outcome, trials = self.check(checker), self.verdict.trials
        asked = (trial.checks.get(checker) for trial in trials)
        alike = sum((Outcome.UNKNOWN if one is None else one.outcome) is outcome for one in asked)
        return outcome.value if alike in (0, len(trials)) else f"{outcome.value} in {alike:,} of {len(trials):,}"

    def why_unknown(self, checker: str) -> str:
        """Why a checker could not say how it ended, by the first such trial; one that was not judged tells its own."""
        asked = (trial.checks.get(checker) for trial in self.verdict.trials)
        return next((one.reason for one in asked if one is not None and one.outcome is Outcome.UNKNOWN), "")

    @property
    def row_count(self) -> int:
        """Rows that a reader of committed records had in the end, in all trials."""
        return sum(trial.row_count for trial in self.verdict.trials)

    @property
    def seconds(self) -> float:
        """How long all trials took."""
        return sum(trial.seconds for trial in self.verdict.trials)

    @property
    def seeds(self) -> list[int]:
        """The seeds of the trials."""
        return sorted({trial.seed for trial in self.verdict.trials})

    @property
    def points(self) -> list[str]:
        """The points of the table, in the order in which an epoch passes them; other moments come last."""
        order = [point.name for point in FaultPoint]
        found = {point for _, point in self.verdict.table}
        return [*(point for point in order if point in found), *sorted(found.difference(order))]

    @property
    def faults(self) -> list[str]:
        """The faults of the table, in the order in which the docs tell them."""
        order = [kind.value for kind in Kind]
        found = {kind for kind, _ in self.verdict.table}
        return [*(kind for kind in order if kind in found), *sorted(found.difference(order))]

    @property
    def recovery(self) -> dict[str, float] | None:
        """Seconds from a fault to the first new row; None where no row came after one."""
        took = self.verdict.recoveries_seconds
        if not took:
            return None
        return {name: took[math.ceil(share * len(took)) - 1] for name, share in _SHARES.items()}

    def failures(self) -> list[tuple[Trial, str]]:
        """The first trials that are broken, then those that are unknown, each with the command that runs it again."""
        verdict = self.verdict
        found = (*verdict.of(Outcome.BROKEN), *verdict.of(Outcome.UNKNOWN))[:FAILURES_MAX]
        return [(trial, verdict.settings.replay(seed=trial.seed, number=trial.number)) for trial in found]

    def other_failures(self) -> list[tuple[Trial, str]]:
        """Those of them that the counterexample does not tell already."""
        example = self.verdict.counterexample
        return [(one, again) for one, again in self.failures() if example is None or one.counterexample is not example]

    def as_json(self) -> dict[str, Any]:
        """The facts as plain data."""
        verdict = self.verdict
        example = verdict.counterexample
        return {
            "verdict": verdict.outcome.value,
            "holds": verdict.holds,
            "lost": verdict.lost,
            "duplicated": verdict.duplicated,
            "counterexample": None if example is None else example.as_json(),
            "sentence": self.sentence,
            "promise": self.promise,
            "settings": verdict.settings.as_json(),
            "trials": len(verdict.trials),
            "broken": len(verdict.of(Outcome.BROKEN)),
            "unknown": len(verdict.of(Outcome.UNKNOWN)),
            "events": verdict.event_count,
            "rows": self.row_count,
            "faults": verdict.strike_count,
            "kills": verdict.kill_count,
            "checks": {
                name: {
                    "outcome": self.check(name).value,
                    "count": verdict.count(name),
                    "why_unknown": self.why_unknown(name),
                }
                for name in MEANINGS
            },
            "unsteady": list(self.unsteady),
            "table": [
                {"fault": kind, "point": point, **asdict(cell), "outcome": cell.outcome.value}
                for (kind, point), cell in verdict.table.items()
            ],
            "skipped": dict(self.skipped),
            "recovery_seconds": self.recovery,
            "failures": [
                {
                    "seed": trial.seed,
                    "number": trial.number,
                    "outcome": trial.outcome.value,
                    "reason": trial.reason,
                    "replay": replay,
                }
                for trial, replay in self.failures()
            ],
            "seeds": self.seeds,
            "command": self.command,
            "machine": dict(self.machine),
        }

    def as_text(self, width: int) -> str:
        """For a terminal; nothing but commands, which are to be copied, is wider than asked for."""
        verdict = self.verdict
        blocks = [
            wrap(f"{verdict.outcome.value.upper()}: {self.sentence}", width),
            [line for told in (self.promise, self.allowed) if told for line in wrap(told, width)],
            self._unsteady_lines(width),
            self._fault_lines(width),
            self._skipped_lines(width),
            self._check_lines(width),
        ]
        if self.recovery is not None:
            told = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.recovery.items())
            blocks.append(wrap(f"From a fault to the first new row: {told}.", width))
        if verdict.counterexample is not None:
            blocks.append(["The counterexample", *verdict.counterexample.lines(width)])
        for trial, replay in self.other_failures():
            told = f"{trial.outcome.value}: seed {trial.seed}, trial {trial.number}: {trial.reason}"
            blocks.append([*wrap(told, width), f"  again: {visible(replay)}"])
        return "\n\n".join("\n".join(block) for block in blocks if block)

    def _fault_lines(self, width: int) -> list[str]:
        """A fault a line, since a table of all points is wider than a terminal."""
        table = self.verdict.table
        rows = []
        for kind in self.faults:
            found = [(point, table[kind, point]) for point in self.points if (kind, point) in table]
            total = sum(cell.strike_count for _, cell in found)
            # A point and its number stay together: the blank between them comes in when lines are made.
            told = ", ".join(f"{point} {cell_text(cell)}".replace(" ", "~") for point, cell in found)
            rows.append((kind, f"{total:,}", told))
        lines = [line.replace("~", " ") for line in columns(rows, right=(1,), indent=2, width=width)]
        return ["How often each fault struck, and at which point", *lines] if lines else []

    def _unsteady_lines(self, width: int) -> list[str]:
        lines = [line for reason in self.unsteady for line in wrap(reason, width, "  ")]
        return [*wrap(UNSTEADY, width), *lines] if lines else []

    def _skipped_lines(self, width: int) -> list[str]:
        lines = columns(self.skipped.items(), indent=2, width=width)
        return ["Skipped: could not be tried here", *lines] if lines else []

    def _check_lines(self, width: int) -> list[str]:
        results = {name: self.result(name) for name in MEANINGS}
        names, room = max(map(len, results)), max(map(len, results.values()))
        lines = ["What was checked, and how much of it was found"]
        for name, result in results.items():
            number = "" if name in ABOUT_THE_TRIALS else f"{self.verdict.count(name):,}"
            head = f"  {name:<{names}}  {result:<{room}}  {number:>7}"
            is_told = width - len(head) - 2 >= _MEANING_ROOM_MIN
            lines += wrap(MEANINGS[name], width, f"{head}  ") if is_told else [head.rstrip()]
            why = self.why_unknown(name)
            lines += wrap(f"not known: {why}", width, "    ") if why else []
        return lines


def cell_text(cell: Cell) -> str:
    """How often it struck, and in how many trials that is not known to have been harmless."""
    told = [f"{cell.broken_count:,} broken"] if cell.broken_count else []
    told += [f"{cell.unknown_count:,} unknown"] if cell.unknown_count else []
    return f"{cell.strike_count:,}" + (f" ({', '.join(told)})" if told else "")


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
