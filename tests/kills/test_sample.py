"""A seeded sample of the kills: no row lost, none doubled, none of an aborted transaction seen, while processes die.

`make prove-all` runs the large numbers; LOCKGATE_KILL_SEED chooses another sample.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from kill_harness import Marked, Result

from lockgate.faultpoints import FaultPoint
from lockgate.services.spark import SparkCluster

pytestmark = pytest.mark.system

SEED = int(os.environ.get("LOCKGATE_KILL_SEED", "7"))
IN_TASK = [point.name for point in FaultPoint if point.is_in_task and point is not FaultPoint.STATE_UPDATE]
# Of the driver's points one before and one after the decision.
BEFORE_THE_END = ["CLAIM", "BEGIN", "RECOVERY", "LEDGER_READ", "VOTES", "MARKER", "BEFORE_END"]
AFTER_THE_END = ["AFTER_END", "BEFORE_SPARK_COMMIT"]


def test_drivers_and_workers_that_are_killed_lose_and_double_nothing(
    kafka: str, trial: Callable[..., Result], tmp_path: Path
) -> None:
    rng = random.Random(SEED)
    faults = [(point, "kill", 2) for point in rng.sample(IN_TASK, 3)]
    for point in (rng.choice(BEFORE_THE_END), rng.choice(AFTER_THE_END)):
        faults.append((point, "kill", 1 if point in ("CLAIM", "RECOVERY") else 2))
    result = trial(kafka, "split", Marked("sample", faults, tmp_path / "marks"), seed=SEED)
    assert result.verdict.holds, f"{result.verdict}; again with LOCKGATE_KILL_SEED={SEED}"
    assert result.kills_total == 5
    assert result.verdict.aborted_in_log > 0, "no kill has hit an open transaction"


def test_executors_of_a_cluster_that_are_killed_lose_and_double_nothing(
    kafka: str, cluster: SparkCluster, trial: Callable[..., Result], tmp_path: Path
) -> None:
    faults = [(point, "kill-jvm", 2) for point in ("HALF", "EMIT")]
    trouble = Marked("executors", faults, tmp_path / "marks")
    result = trial(kafka, "keyed", trouble, seed=SEED, cluster=cluster)
    assert result.verdict.holds, f"{result.verdict}; again with LOCKGATE_KILL_SEED={SEED}"
    assert result.kills_total == 2
    assert result.verdict.aborted_in_log > 0, "no kill has hit an open transaction"
