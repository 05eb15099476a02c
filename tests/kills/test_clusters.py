"""Two Kafka clusters in one job: each decides for itself, one after the other, and kills come in between."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from kill_clusters import ClustersTrial
from kill_harness import Marked, Result

from lockgate.services.stack import Stack

SEED = 47
TASK = ["RECEIVE", "HALF", "EMIT"]
DRIVER = ["CLAIM", "LEDGER_READ", "VOTES", "BEFORE_END", "AFTER_END", "BEFORE_SPARK_COMMIT"]


def require(
    faults: list[tuple[str, str, int]], kafka: str, own_stack: Stack, trial: Callable[..., Result], marks: Path
) -> None:
    second = own_stack.status().kafka.servers
    assert second is not None
    assert second != kafka
    trouble = Marked("two clusters", faults, marks)
    result = trial(kafka, "two clusters", trouble, seed=SEED, kind=ClustersTrial, second=second)
    assert result.verdict.holds, f"{result.verdict}; seed {result.seed}"
    assert not result.gave_up, result.gave_up
    assert result.kills_total == len(faults)


@pytest.mark.system
def test_a_kill_between_two_clusters_leaves_both_with_every_row_once(
    kafka: str, own_stack: Stack, trial: Callable[..., Result], tmp_path: Path
) -> None:
    # Passed once for each cluster: an odd one is when the first has the epoch and the second has not.
    require([("AFTER_END", "kill", 3)], kafka, own_stack, trial, tmp_path / "marks")


@pytest.mark.prove
def test_kills_at_every_step_leave_two_clusters_with_every_row_once(
    kafka: str, own_stack: Stack, trial: Callable[..., Result], tmp_path: Path
) -> None:
    rng = random.Random(SEED)
    faults = [(point, "kill", 1 if point == "CLAIM" else rng.randrange(2, 6)) for point in [*TASK * 3, *DRIVER * 3]]
    rng.shuffle(faults)
    require(faults, kafka, own_stack, trial, tmp_path / "marks")
