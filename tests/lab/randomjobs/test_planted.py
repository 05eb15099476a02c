"""Each hole that the planner had is planted back, and the generator finds it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from lab.randomjobs import planted
from lockgate.lab.randomjobs.check import compare
from lockgate.lab.randomjobs.draw import draw
from lockgate.lab.randomjobs.spec import Spec

Plant = Callable[[pytest.MonkeyPatch], None]


def is_claim_found(spec: Spec) -> bool:
    """Does the plan claim more than the model?"""
    return bool(compare(spec).violations)


@pytest.mark.parametrize(
    ("plant", "jobs"),
    [(planted.plant_chance, 100), (planted.plant_at_most_once, 100), (planted.plant_functions, 1_000)],
)
def test_the_plan_alone_shows_a_hole_that_is_planted(plant: Plant, jobs: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        found = next((seed for seed in range(jobs) if is_claim_found(draw(Random(seed)))), None)
    assert found is not None
    print(f"{plant.__name__}: found by job {found + 1}")
    assert not is_claim_found(draw(Random(found))), "it is there without the plant as well"
