"""Outcome: what a real run of a random job showed. `trial.run_trial(spec, seed) -> Outcome` makes one."""

from __future__ import annotations

from dataclasses import dataclass

FINDINGS = ("violated", "failed")
"""The verdicts that end a hunt."""

JUDGED = ("holds", "violated")
"""The verdicts of runs that the interpreter has an answer for."""


@dataclass(frozen=True)
class Outcome:
    """The verdict on one run of a job that the plan accepts.

    `verdict` is one of:

        refused     the start refused the job, for a reason that no plan can know
        holds       every output keeps the guarantee that it has
        violated    an output does not, or the job ran and had to be refused: `what` says which rows are missing,
                    doubled or wrong
        failed      the job did not start, or did not reach its end, and had to: `what` begins with the kind of error
        unknown     the run reached its end, and could not be judged: `what` says why (never counted as holds)

    `apart` says what a run did not exercise, for example that no driver died in it.
    """

    verdict: str
    what: tuple[str, ...] = ()
    seconds: float = 0.0
    apart: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What a smaller job has to show as well: the verdict, and of a failure its kind of error."""
        return f"failed: {self.what[0].partition(':')[0]}" if self.verdict == "failed" else self.verdict
