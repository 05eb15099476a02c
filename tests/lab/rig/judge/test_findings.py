"""Broken outweighs unknown, and unknown outweighs holds."""

import pytest

from lockgate.lab.rig.judge.findings import Outcome, combine, outcome_of

HOLDS, BROKEN, UNKNOWN, NOT_PROMISED = Outcome


@pytest.mark.parametrize(
    ("outcomes", "together"),
    [
        ([HOLDS, HOLDS], HOLDS),
        ([HOLDS, UNKNOWN], UNKNOWN),
        ([UNKNOWN, BROKEN, HOLDS], BROKEN),
        ([HOLDS, NOT_PROMISED], HOLDS),
        ([NOT_PROMISED], UNKNOWN),
        ([], UNKNOWN),
    ],
)
def test_broken_outweighs_unknown_and_unknown_outweighs_holds(outcomes: list[Outcome], together: Outcome) -> None:
    assert combine(outcomes) is together


def test_that_every_fault_struck_and_the_job_recovered_says_nothing_of_the_guarantee() -> None:
    about_the_trial = {"tried": HOLDS, "recovery": HOLDS}
    assert outcome_of({**about_the_trial, "lost": NOT_PROMISED}) is UNKNOWN
    assert outcome_of({**about_the_trial, "lost": HOLDS}) is HOLDS
    assert outcome_of({**about_the_trial, "tried": UNKNOWN, "lost": HOLDS}) is UNKNOWN
