"""Holds, broken or unknown: the verdict of a proof, from its trials.

A trial with faults at several points counts its findings at each point, because the cause is unknown. In the totals
every trial counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from lockgate.lab.prove.counterexample import Counterexample, explain
from lockgate.lab.prove.settings import Settings
from lockgate.lab.rig.history import Fault, History, Reader, Sent
from lockgate.lab.rig.judge.checkers import Strike, check
from lockgate.lab.rig.judge.findings import Finding, Outcome, combine, outcome_of
from lockgate.lab.rig.judge.promises import Promises
from lockgate.lab.rig.judge.recovery import recoveries

WRONGS = ("lost", "duplicated", "foreign", "aborted seen", "disordered", "split epochs", "wrong aggregates")
"""The checkers whose count is one of rows."""


@dataclass(frozen=True)
class Check:
    """How one checker ended, as it is kept."""

    outcome: Outcome
    count: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Trial:
    """What one trial has shown; (seed, number) says which one it is."""

    seed: int
    number: int
    due: tuple[Strike, ...]
    struck: tuple[Strike, ...]
    checks: Mapping[str, Check]
    event_count: int = 0
    row_count: int = 0  # committed
    aborted_row_count: int = 0  # left in the log by transactions that were given up
    recoveries_seconds: tuple[float, ...] = ()
    seconds: float = 0.0
    counterexample: Counterexample | None = None

    @cached_property
    def outcome(self) -> Outcome:
        """Holds, broken or unknown."""
        return outcome_of({name: one.outcome for name, one in self.checks.items()})

    @property
    def reason(self) -> str:
        """Why it is broken or unknown."""
        return next((one.reason for one in self.checks.values() if one.outcome is self.outcome), "")

    def count(self, checker: str) -> int:
        """How much a checker has found."""
        return self.checks[checker].count if checker in self.checks else 0

    def as_json(self) -> dict[str, Any]:
        """As plain data."""
        checks = {name: {**asdict(one), "outcome": one.outcome.value} for name, one in self.checks.items()}
        return {**asdict(self), "checks": checks}

    @classmethod
    def of_json(cls, plain: Mapping[str, Any]) -> Trial:
        """Read what `as_json` has written."""
        checks = {
            name: Check(Outcome(one["outcome"]), one["count"], one["reason"]) for name, one in plain["checks"].items()
        }
        example = plain["counterexample"]
        read = {
            "due": _strikes(plain["due"]),
            "struck": _strikes(plain["struck"]),
            "checks": checks,
            "recoveries_seconds": tuple(plain["recoveries_seconds"]),
            "counterexample": None if example is None else Counterexample.of_json(example),
        }
        return cls(**{**plain, **read})


def judge(
    history: History,
    promises: Promises,
    settings: Settings | None,
    *,
    seed: int,
    number: int,
    due: Sequence[Strike],
    seconds: float,
) -> Trial:
    """What a trial has shown; `due` are the faults that had to strike, `seconds` how long it took.

    Without settings there is no command that replays it, and so no counterexample.
    """
    findings = check(history, promises, due=due)
    broken = next((one for one in findings if one.outcome is Outcome.BROKEN), None)
    there = [row for output in promises for row in history.read_by(Reader.AFTER, output)]
    written = [row for output in promises for row in history.read_by(Reader.LOG, output)]
    return Trial(
        seed=seed,
        number=number,
        due=tuple(due),
        struck=tuple((fault.kind, fault.point) for fault in history.of(Fault)),
        checks={one.checker: _kept(one) for one in findings},
        event_count=len(history.of(Sent)),
        row_count=len(there),
        aborted_row_count=len({row.place for row in written} - {row.place for row in there}),
        recoveries_seconds=tuple(took for _, took in recoveries(history) if took is not None),
        seconds=seconds,
        counterexample=None
        if broken is None or settings is None
        else explain(history, broken, replay=settings.replay(seed=seed, number=number)),
    )


def unknown(*, seed: int, number: int, due: Sequence[Strike], reason: str, seconds: float) -> Trial:
    """A trial that could not be brought to its end: nothing is known, and that counts."""
    checks = {"tried": Check(Outcome.UNKNOWN, reason=reason)}
    return Trial(seed=seed, number=number, due=tuple(due), struck=(), checks=checks, seconds=seconds)


@dataclass(frozen=True)
class Cell:
    """All trials of one fault at one point."""

    outcome: Outcome
    trial_count: int
    strike_count: int
    broken_count: int
    unknown_count: int
    wrongs: Mapping[str, int]  # rows, by checker


@dataclass(frozen=True)
class Verdict:
    """The end of a proof."""

    settings: Settings
    trials: tuple[Trial, ...]

    @cached_property
    def outcome(self) -> Outcome:
        """Holds, broken or unknown."""
        return combine(trial.outcome for trial in self.trials)

    @property
    def holds(self) -> bool:
        """Did it hold in every trial?"""
        return self.outcome is Outcome.HOLDS

    @property
    def lost(self) -> int:
        """Rows that had to come and did not."""
        return self.count("lost")

    @property
    def duplicated(self) -> int:
        """Copies of rows beyond those that they have."""
        return self.count("duplicated")

    @property
    def counterexample(self) -> Counterexample | None:
        """Of the first broken trial."""
        return next((trial.counterexample for trial in self.trials if trial.counterexample is not None), None)

    @property
    def event_count(self) -> int:
        """Events sent, in all trials."""
        return sum(trial.event_count for trial in self.trials)

    @property
    def strike_count(self) -> int:
        """Faults that struck."""
        return sum(len(trial.struck) for trial in self.trials)

    @property
    def kill_count(self) -> int:
        """Those of them that killed something; what was only stopped or cut off is no kill."""
        return sum(kind.startswith("kill") for trial in self.trials for kind, _ in trial.struck)

    @property
    def recoveries_seconds(self) -> tuple[float, ...]:
        """From a fault to the first new row, shortest first."""
        return tuple(sorted(took for trial in self.trials for took in trial.recoveries_seconds))

    def count(self, checker: str) -> int:
        """How much a checker has found in all trials."""
        return sum(trial.count(checker) for trial in self.trials)

    def of(self, outcome: Outcome) -> tuple[Trial, ...]:
        """The trials that ended so."""
        return tuple(trial for trial in self.trials if trial.outcome is outcome)

    @cached_property
    def table(self) -> dict[Strike, Cell]:
        """Every fault at every point where it struck or was to strike, in the order of their first trials."""
        cells: dict[Strike, list[Trial]] = {}
        for trial in self.trials:
            for strike in dict.fromkeys((*trial.due, *trial.struck)):
                cells.setdefault(strike, []).append(trial)
        return {strike: _cell(strike, trials) for strike, trials in cells.items()}


def _cell(strike: Strike, trials: Sequence[Trial]) -> Cell:
    return Cell(
        outcome=combine(trial.outcome for trial in trials),
        trial_count=len(trials),
        strike_count=sum(trial.struck.count(strike) for trial in trials),
        broken_count=sum(trial.outcome is Outcome.BROKEN for trial in trials),
        unknown_count=sum(trial.outcome is Outcome.UNKNOWN for trial in trials),
        wrongs={name: sum(trial.count(name) for trial in trials) for name in WRONGS},
    )


def _kept(finding: Finding) -> Check:
    return Check(finding.outcome, finding.count, finding.reason)


def _strikes(plain: Iterable[Sequence[str]]) -> tuple[Strike, ...]:
    return tuple((kind, point) for kind, point in plain)
