"""What a proof has shown: in one sentence, as facts for programs, and as lines for a terminal."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lockgate.faultpoints import FaultPoint
from lockgate.proof.findings import Outcome
from lockgate.proof.verdict import Cell, Trial, Verdict, combine

MEANINGS = {
    "lost": "rows that had to come and are not there when all is over",
    "duplicated": "copies of rows beyond those that the job undisturbed has",
    "foreign": "rows that the job undisturbed has not at all",
    "aborted seen": "rows that a reader of committed records was given at any moment, and that are gone in the end",
    "disordered": "rows of one key that left in another order than their events came",
    "split epochs": "places where an epoch became visible in pieces",
    "wrong aggregates": "differences to the same computed at once over all events",
    "open transactions": "partitions in which a transaction was left open",
    "recovery": "new rows came after every fault",
    "tried": "every fault struck that was due, and there was something to break",
}
"""What each checker counts, or asks."""

FAILURES_MAX = 10
"""How many of the trials that do not hold are shown one by one."""

_SHARES = {"half within": 0.5, "95 % within": 0.95, "longest": 1.0}


@dataclass(frozen=True)
class Report:
    """A verdict with what is said about it."""

    verdict: Verdict
    machine: Mapping[str, str]
    command: str  # that made it

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

    def told(self, checker: str) -> str:
        """A count in words, and whether the guarantee allows it."""
        number = self.verdict.count(checker)
        is_allowed = number and self.check(checker) is Outcome.NOT_PROMISED
        return f"{number:,} {checker}" + (", which it allows" if is_allowed else "")

    def check(self, checker: str) -> Outcome:
        """How a checker ended over all trials; where it was not asked, it is not known."""
        asked = (trial.checks.get(checker) for trial in self.verdict.trials)
        found = {Outcome.UNKNOWN if one is None else one.outcome for one in asked}
        return Outcome.NOT_PROMISED if found == {Outcome.NOT_PROMISED} else combine(found)

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
        """The faults of the table."""
        return sorted({kind for kind, _ in self.verdict.table})

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
            "settings": verdict.settings.as_json(),
            "trials": len(verdict.trials),
            "broken": len(verdict.of(Outcome.BROKEN)),
            "unknown": len(verdict.of(Outcome.UNKNOWN)),
            "events": verdict.event_count,
            "faults": verdict.strike_count,
            "kills": verdict.kill_count,
            "checks": {name: {"outcome": self.check(name).value, "count": verdict.count(name)} for name in MEANINGS},
            "table": [
                {"fault": kind, "point": point, **asdict(cell), "outcome": cell.outcome.value}
                for (kind, point), cell in verdict.table.items()
            ],
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
        """For a terminal."""
        verdict = self.verdict
        blocks = ["\n".join(textwrap.wrap(f"{verdict.outcome.value.upper()}: {self.sentence}", width)), self._table()]
        checks = ((name, self.check(name), verdict.count(name)) for name in MEANINGS)
        blocks.append("\n".join(f"{name:<19}{outcome.value:<14}{count:>8,}" for name, outcome, count in checks))
        if self.recovery is not None:
            told = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.recovery.items())
            blocks.append(f"from a fault to the first new row: {told}")
        for trial, replay in self.failures():
            told = f"{trial.outcome.value}: seed {trial.seed}, trial {trial.number}: {trial.reason}"
            blocks.append("\n".join([*textwrap.wrap(told, width), f"  again: {replay}"]))
        if verdict.counterexample is not None:
            blocks.append("\n".join(verdict.counterexample.lines()))
        return "\n\n".join(block for block in blocks if block)

    def _table(self) -> str:
        table = self.verdict.table
        if not table:
            return ""
        rows = [["faults at", *self.faults]]
        rows += [[point, *(cell_text(table.get((kind, point))) for kind in self.faults)] for point in self.points]
        rooms = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
        return "\n".join(
            f"{row[0]:<{rooms[0]}}"
            + "".join(f"  {text:>{room}}" for text, room in zip(row[1:], rooms[1:], strict=True))
            for row in rows
        )


def cell_text(cell: Cell | None) -> str:
    """How often it struck, and in how many trials that is not known to have been harmless."""
    if cell is None:
        return "-"
    told = [f"{cell.strike_count:,}"]
    told += [f"{cell.broken_count:,} broken"] if cell.broken_count else []
    told += [f"{cell.unknown_count:,} unknown"] if cell.unknown_count else []
    return ", ".join(told)


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
