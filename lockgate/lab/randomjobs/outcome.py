"""Outcome: what a real run of a random job showed. `trial.run_trial(spec, seed) -> Outcome` makes one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """The verdict on one run.

    `verdict` is one of:

        refused     the planner refused the job; nothing ran
        holds       every output keeps the guarantee that it has
        violated    an output does not: `what` says which rows are missing, doubled or wrong
        unknown     the run could not be judged: `what` says why (never counted as holds)
    """

    verdict: str
    what: tuple[str, ...] = ()
    seconds: float = 0.0
