"""Random jobs, run with drivers that die: each output keeps what the plan says of it."""

import os
from contextlib import closing
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from lab.randomjobs import planted
from lockgate.lab.randomjobs.hunt import hunt
from lockgate.lab.randomjobs.jobfile import events_text, job_text
from lockgate.lab.randomjobs.spec import CHANGES, Change, Column, Event, Output, Sink, Source, Spec
from lockgate.lab.randomjobs.tally import Tally
from lockgate.lab.randomjobs.trial import run_trial

# As long as many other tests together, so it has a process of its own.
pytestmark = pytest.mark.xdist_group("trials")

_DRAWN_PER_RUN = 3
"""So many jobs are drawn at most for one that runs: the plan refuses some."""


def run_jobs(first_seed: int, runs: int, *, processes: int = 1) -> Tally:
    """Draw jobs until so many ran; the first finding ends it."""
    tally = Tally()
    with closing(hunt(first_seed, _DRAWN_PER_RUN * runs, run_trial, processes=processes)) as tallies:
        for tally in tallies:
            if tally.finding is not None or tally.run == runs:
                break
    return tally


def check(tally: Tally, runs: int) -> None:
    """No violation, no failure, and most runs could be judged."""
    if (found := tally.finding) is not None:
        shown = "\n".join([*found.what, job_text(found.spec), events_text(found.spec)])
        pytest.fail(f"{found.verdict}: lockgate simulate --jobs 1 --seed {found.seed}\n{shown}")
    print(f"{tally.jobs} jobs were drawn, {tally.accepted} accepted, {tally.run} run, {tally.judged} judged")
    print(f"unknown: {tally.unknown}\nrefused: {tally.refused}\nholds without: {tally.apart}")
    assert tally.run == runs, "the plan refuses nearly all jobs"
    assert tally.runs["failed"] == 0
    assert tally.judged > runs / 2, tally.unknown


@pytest.mark.slow
@pytest.mark.parametrize("how", CHANGES["kafka"])
@pytest.mark.parametrize("epoch", [1, 2], ids=["while it runs", "at its end"])
def test_a_topic_that_is_another_one_stops_the_job_by_the_products_own_comparison(
    how: str, epoch: int, spark: SparkSession
) -> None:
    source = Source("s1", "kafka", (Column("id", "BIGINT"),), tuple(Event(one, 0, (one,)) for one in range(2)))
    spec = Spec("copy", (source,), (), (Output("out0", "s1", Sink("kafka")),), "END_TO_END_EXACTLY_ONCE")
    changed = replace(spec, sources=(replace(source, change=Change(epoch, how)),))
    found = run_trial(changed, 1)
    assert (found.verdict, found.apart) == ("holds", ("it stopped, as it has to",))
    assert ("created again" if how == "recreate" else "in another Kafka cluster (cluster-2)") in found.what[0]
    with pytest.MonkeyPatch.context() as patch:
        planted.plant_topics(patch)
        found = run_trial(changed, 1)
    assert found.verdict == "violated"
    assert "the topic of s1 changed after it was read" in found.what[0]
    assert run_trial(spec, 1).verdict == "holds"


@pytest.mark.slow
def test_a_hundred_random_jobs_keep_what_the_plan_says(spark: SparkSession) -> None:
    check(run_jobs(0, 100), 100)


@pytest.mark.prove
def test_two_thousand_random_jobs_keep_what_the_plan_says() -> None:
    check(run_jobs(10_000, 2_000, processes=os.cpu_count() or 1), 2_000)
