"""Each hole that the planner had is planted back, and the generator finds it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from pyspark.sql import SparkSession

from lab.randomjobs import planted
from lockgate.lab.randomjobs.check import compare
from lockgate.lab.randomjobs.draw import draw
from lockgate.lab.randomjobs.jobfile import job_text
from lockgate.lab.randomjobs.model import is_refused_at_start
from lockgate.lab.randomjobs.spec import Spec
from lockgate.lab.randomjobs.trial import run_trial

Plant = Callable[[pytest.MonkeyPatch], None]


def is_claim_found(spec: Spec) -> bool:
    """Does the plan claim more than the model?"""
    return bool(compare(spec).violations)


def is_any(spec: Spec) -> bool:
    """May the hole show in any job?"""
    return True


def has_forgotten(spec: Spec) -> bool:
    """Does a job use a function that is forgotten? Any other one is planned as without the hole."""
    return any(name in job_text(spec) for name in planted.FORGOTTEN)


@pytest.mark.parametrize(
    ("plant", "may_show", "jobs"),
    [
        (planted.plant_chance, is_any, 200),
        (planted.plant_at_most_once, is_any, 200),
        (planted.plant_functions, has_forgotten, 5_000),
    ],
)
def test_the_plan_alone_shows_a_hole_that_is_planted(plant: Plant, may_show: Callable[[Spec], bool], jobs: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        specs = ((seed, draw(Random(seed))) for seed in range(jobs))
        found = next((seed for seed, spec in specs if may_show(spec) and is_claim_found(spec)), None)
    assert found is not None
    print(f"{plant.__name__}: found by job {found + 1}")
    assert not is_claim_found(draw(Random(found))), "it is there without the plant as well"


@pytest.mark.slow
def test_a_run_shows_a_hole_that_is_planted(spark: SparkSession) -> None:
    """A transform that is declared wrongly: a plan cannot see it, and the job has to be refused when it starts."""
    found = next(
        seed
        for seed in range(1_000)
        if is_refused_at_start(draw(Random(seed))) and not compare(draw(Random(seed))).planned.is_refused
    )
    with pytest.MonkeyPatch.context() as patch:
        planted.plant_transform(patch)
        assert run_trial(draw(Random(found)), found).verdict == "violated"
    print(f"plant_transform: found by job {found + 1}")
    assert run_trial(draw(Random(found)), found).verdict == "refused"


@pytest.mark.slow
def test_a_run_shows_an_upsert_that_is_lifted_without_a_fence(spark: SparkSession) -> None:
    """A slow driver writes its older row over the newer one; the ledger of a transaction stops it."""
    spec, seed = draw(Random(3_181)), 3_181
    with pytest.MonkeyPatch.context() as patch:
        planted.plant_upsert(patch)
        assert run_trial(spec, seed).verdict == "violated"
    assert run_trial(spec, seed).verdict == "holds"
