"""Each hole that the planner had is planted back, and the generator finds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from pyspark.sql import SparkSession

from lab.randomjobs import planted
from lockgate.errors import BadJob
from lockgate.lab.randomjobs import hunt
from lockgate.lab.randomjobs.build import build
from lockgate.lab.randomjobs.check import compare
from lockgate.lab.randomjobs.draw import draw
from lockgate.lab.randomjobs.interpreter import OutputAnswer, expected
from lockgate.lab.randomjobs.jobfile import job_text
from lockgate.lab.randomjobs.model import is_refused_at_start
from lockgate.lab.randomjobs.outcome import Outcome
from lockgate.lab.randomjobs.spec import CHANGES, Spec, changes
from lockgate.lab.randomjobs.tally import Tally
from lockgate.lab.randomjobs.trial import run_trial
from lockgate.planner.passes import Cuts, find_cuts
from lockgate.planner.plan import plan

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
        (planted.plant_chance, is_any, 1_000),
        (planted.plant_at_most_once, is_any, 200),
        (planted.plant_functions, has_forgotten, 1_000),
        (planted.plant_clusters, is_any, 1_000),
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


def has_changed_file(spec: Spec) -> bool:
    """Does a file change after it was read?"""
    return any(change.how in CHANGES["file"] for change in changes(spec).values())


def has_other_topic(spec: Spec) -> bool:
    """Is a topic another one after it was read?"""
    return any(change.how in CHANGES["kafka"] for change in changes(spec).values())


def is_kept(spec: Spec) -> bool:
    """Does the plan compute a step once per epoch, and keep its rows for several branches?"""
    try:
        return find_cuts(plan(build(spec)).logical) != Cuts()
    except BadJob:
        return False


def is_replaced(spec: Spec) -> bool:
    """Does a later epoch replace a row of a table by its key, in an output below end-to-end exactly-once?"""
    return spec.guarantee != "AT_MOST_ONCE" and any(map(has_later_row, expected(spec).outputs.values()))


def has_later_row(answer: OutputAnswer) -> bool:
    """Do the rows of a key come in several epochs?"""
    sink = answer.output.sink
    if sink.system not in ("postgres", "sqlite") or not sink.key or answer.flow is None:
        return False
    epochs: dict[str, set[float | None]] = {}
    for row in answer.flow.rows:
        epochs.setdefault(str([row.values[name] for name in sink.key]), set()).add(row.out)
    return any(len(several) > 1 for several in epochs.values())


def hunt_with(
    plant: Plant | None, may_show: Callable[[Spec], bool], first: int, jobs: int, *, has_model: bool = True
) -> Tally:
    """Hunt with a hole, or without; only jobs in which it can show are run, and what is found stays as large as it is.

    The others count as unknown. Without the model nothing but a run can find anything.
    """

    def run(spec: Spec, seed: int) -> Outcome:
        return run_trial(spec, seed) if may_show(spec) else Outcome("unknown", ("the hole cannot show in it",))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hunt, "shrink", lambda spec, shows: spec)
        if not has_model:
            patch.setattr(hunt, "compare", lambda spec: replace(compare(spec), violations=()))
        if plant is not None:
            plant(patch)
        *_, tally = hunt.hunt(first, jobs, run)
    return tally


@pytest.mark.slow
def test_a_run_shows_that_branches_got_other_values(spark: SparkSession) -> None:
    """Without the model, which finds it before anything runs."""
    tally = hunt_with(planted.plant_chance_in_runs, is_kept, 0, 1_000, has_model=False)
    assert tally.finding is not None
    print(f"plant_chance, by a run: found by job {tally.jobs}, the {tally.judged}. that could be judged")
    assert any("random values" in what or "rows, and not" in what for what in tally.finding.what), tally.finding.what


@pytest.mark.slow
def test_a_run_shows_that_a_file_changed_after_it_was_read(spark: SparkSession) -> None:
    tally = hunt_with(planted.plant_files, has_changed_file, 0, 1_000)
    assert tally.finding is not None
    print(f"plant_files: found by job {tally.jobs}, the {tally.judged}. that could be judged")
    assert any("it has to stop: a file of" in what for what in tally.finding.what), tally.finding.what
    tally = hunt_with(None, has_changed_file, tally.finding.seed, 1)
    assert (tally.runs, tally.apart["it stopped, as it has to"]) == ({"holds": 1}, 1), tally.finding


@pytest.mark.slow
def test_a_run_shows_that_a_topic_was_created_again(spark: SparkSession) -> None:
    """The job has to stop: what the new topic has before the old offsets would be skipped."""
    tally = hunt_with(planted.plant_topics, has_other_topic, 0, 1_000)
    assert tally.finding is not None
    print(f"plant_topics: found by job {tally.jobs}, the {tally.judged}. that could be judged")
    assert any("it has to stop: the topic of" in what for what in tally.finding.what), tally.finding.what
    tally = hunt_with(None, has_other_topic, tally.finding.seed, 1)
    assert (tally.runs, tally.apart["it stopped, as it has to"]) == ({"holds": 1}, 1), tally.finding


@pytest.mark.slow
def test_a_run_shows_a_hole_that_is_planted(spark: SparkSession) -> None:
    """A transform that is declared wrongly: a plan cannot see it, and the job has to be refused when it starts."""
    tally = hunt_with(planted.plant_transform, is_refused_at_start, 0, 1_000)
    assert tally.finding is not None
    print(f"plant_transform: found by job {tally.jobs}")
    assert "the job ran, although a transform is not deterministic and is declared to be" in tally.finding.what
    tally = hunt_with(None, is_refused_at_start, tally.finding.seed, 1)
    assert (tally.finding, tally.runs) == (None, {"refused": 1})


@pytest.mark.slow
def test_a_run_shows_an_upsert_that_is_lifted_without_a_fence(spark: SparkSession) -> None:
    """A slow driver writes its older row over the newer one; the ledger of a transaction stops it."""
    tally = hunt_with(planted.plant_upsert, is_replaced, 0, 1_000)
    assert tally.finding is not None
    print(f"plant_upsert: found by job {tally.jobs}, the {tally.judged}. that could be judged")
    assert any("the row of its key should be" in what for what in tally.finding.what), tally.finding.what
    assert hunt_with(None, is_replaced, tally.finding.seed, 1).runs == {"holds": 1}
