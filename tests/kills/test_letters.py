"""Letters and acknowledgement while processes die: every event ends once, as a result or as a letter.

LOCKGATE_KILL_SEED chooses another sample.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from kill_harness import Marked, Random, Result, Trial, require
from kill_workloads import LETTERS, WORKLOADS

from lockgate.services.spark import SparkCluster

SEED = int(os.environ.get("LOCKGATE_KILL_SEED", "7"))
DRIVER = ["BEFORE_END", "AFTER_END", "BEFORE_SPARK_COMMIT"]


@pytest.mark.system
def test_an_event_is_once_a_result_or_once_a_letter_whoever_is_killed(
    kafka: str, trial: Callable[..., Result], tmp_path: Path
) -> None:
    rng = random.Random(SEED)
    faults = [(point, "kill", rng.randrange(2, 5)) for point in ("STATE_UPDATE", "EMIT", rng.choice(DRIVER))]
    require(trial(kafka, "letters", Marked("sample", faults, tmp_path / "marks"), seed=SEED), kills=3)


@pytest.mark.prove
def test_letters_of_drivers_that_are_killed_around_the_decision(
    kafka: str, trial: Callable[..., Result], tmp_path: Path
) -> None:
    faults = [(point, "kill", 2) for point in (*DRIVER, "VOTES", "MARKER", "BEGIN")]
    require(trial(kafka, "letters", Marked("drivers", faults, tmp_path / "marks"), seed=SEED + 1), kills=6)


@pytest.mark.prove
def test_letters_whose_executors_are_killed(
    kafka: str, cluster: SparkCluster, trial: Callable[..., Result], tmp_path: Path
) -> None:
    faults = [(point, "kill-jvm", 2) for point in ("STATE_UPDATE", "HALF", "EMIT")]
    trouble = Marked("executors", faults, tmp_path / "marks")
    require(trial(kafka, "letters", trouble, seed=SEED, cluster=cluster), kills=3)


@pytest.mark.prove
def test_letters_of_processes_that_are_killed_at_any_moment(kafka: str, trial: Callable[..., Result]) -> None:
    trouble = Random("any moment", {"driver": 3, "worker": 4}, SEED + 3, pause=(0.2, 3))
    require(trial(kafka, "letters", trouble, seed=SEED + 3), kills=7)


@pytest.mark.prove
def test_acks_lose_no_event_whoever_is_killed(kafka: str, tmp_path: Path) -> None:
    trouble = Random("any moment", {"driver": 1, "worker": 1}, SEED, pause=(0.2, 1))
    made = Trial(kafka, WORKLOADS["acks"], trouble, tmp_path / "trial", SEED)
    verdict = made.run().verdict
    assert not verdict.lost, verdict
    assert not verdict.unknown, verdict
    assert set(verdict.duplicated) <= set(made.workload.expected(made.sent, made.write)), "a row that no event has"
    assert not [row for row in made.seen() if row.topic.endswith(LETTERS)], "an event has used up its attempts"
