"""Kafka, PostgreSQL and files in one job, and the latter two without Kafka: kills at every step of the decision."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from kill_harness import Marked, Result, require
from kill_systems import SystemsTrial

from lockgate.services.stack import Stack

SEED = 31
TASK = ["RECEIVE", "HALF", "EMIT"]
DRIVER = ["CLAIM", "LEDGER_READ", "STAGED", "VOTES", "BEFORE_END", "AFTER_END", "PUBLISH", "BEFORE_SPARK_COMMIT"]


@pytest.fixture
def dsn(stack: Stack) -> str:
    dsn = stack.status().postgres.dsn
    assert dsn is not None
    return dsn


@pytest.mark.system
def test_a_sample_of_kills_leaves_three_systems_with_every_row_once(
    kafka: str, dsn: str, trial: Callable[..., Result], tmp_path: Path
) -> None:
    faults = [("PUBLISH", "kill", 2), ("HALF", "kill", 3)]  # between two publishes; while rows are staged or written
    trouble = Marked("sample", faults, tmp_path / "marks")
    require(trial(kafka, "three systems", trouble, seed=SEED, kind=SystemsTrial, dsn=dsn), len(faults))


@pytest.mark.prove
@pytest.mark.parametrize("workload", ["three systems", "table and files"])
def test_kills_at_every_step_leave_all_systems_with_every_row_once(
    workload: str, kafka: str, dsn: str, trial: Callable[..., Result], tmp_path: Path
) -> None:
    rng = random.Random(SEED)
    faults = [(point, "kill", 1 if point == "CLAIM" else rng.randrange(2, 5)) for point in [*TASK * 3, *DRIVER * 2]]
    rng.shuffle(faults)
    trouble = Marked("every step", faults, tmp_path / "marks")
    require(trial(kafka, workload, trouble, seed=SEED, kind=SystemsTrial, dsn=dsn), len(faults))
