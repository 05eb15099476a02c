"""Random jobs, run with drivers that die: each output keeps what the plan says of it."""

import pytest
from pyspark.sql import SparkSession

from lockgate.lab.randomjobs.hunt import Tally, hunt
from lockgate.lab.randomjobs.jobfile import events_text, job_text
from lockgate.lab.randomjobs.trial import run_trial

# As long as many other tests together, so it has a process of its own.
pytestmark = pytest.mark.xdist_group("trials")


def run_jobs(first_seed: int, jobs: int) -> Tally:
    """Draw so many jobs, and run those that the plan accepts; the first violation ends it."""
    tally = Tally()
    for tally in hunt(first_seed, jobs, run_trial):
        if tally.finding is not None:
            break
    return tally


def check(tally: Tally) -> None:
    """No violation, and most runs could be judged."""
    if (found := tally.finding) is not None:
        shown = "\n".join([*found.what, job_text(found.spec), events_text(found.spec)])
        pytest.fail(f"lockgate simulate --jobs 1 --seed {found.seed}\n{shown}")
    print(f"{tally.jobs} jobs were drawn; {dict(tally.runs)}")
    assert tally.runs.total() > tally.jobs / 5, "the plan refuses nearly all jobs"
    assert tally.runs["holds"] > tally.runs.total() / 2, tally.unknown


@pytest.mark.slow
def test_a_hundred_random_jobs_keep_what_the_plan_says(spark: SparkSession) -> None:
    check(run_jobs(0, 100))


@pytest.mark.prove
def test_two_thousand_random_jobs_keep_what_the_plan_says(spark: SparkSession) -> None:
    check(run_jobs(10_000, 2_000))
