"""The large numbers: at least 200 kills, over every point of the protocol and at any moment; `make prove-all`."""

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from kill_harness import Marked, PausedMachine, Random, Result, Zombies

from lockgate.faultpoints import FaultPoint
from lockgate.services.spark import SparkCluster
from lockgate.services.stack import Stack

pytestmark = pytest.mark.prove

SEED = 20
KILLS = 200
TRIALS = 18
# Rows are sent without a transaction below the guarantee that is shown here; test_failures.py kills there.
DRIVER = [point.name for point in FaultPoint if not point.is_in_task and point is not FaultPoint.SENT]
TASK = [point.name for point in FaultPoint if point.is_in_task and point is not FaultPoint.STATE_UPDATE]
STATE = [FaultPoint.STATE_UPDATE.name]  # passed where a Python function keeps the state; Spark's own have no such point


@pytest.fixture
def servers(own_stack: Stack) -> str:
    servers = own_stack.status().kafka.servers
    assert servers is not None
    return servers


def faults_at(points: list[str], action: str, count: int, rng: random.Random) -> list[tuple[str, str, int]]:
    """So many faults at each point; later passings are hit too, so that epochs succeed in between."""
    once = ("CLAIM", "RECOVERY")  # passed once by a driver that lives
    faults = [(point, action, 1 if point in once else rng.randrange(2, 4)) for point in points for _ in range(count)]
    rng.shuffle(faults)
    return faults


def require(result: Result, *, may_give_up: str | None = None) -> None:
    """It holds, and the job never gave up by itself but for the one reason that is the trouble's own."""
    assert result.verdict.holds, f"{result.verdict}; seed {result.seed}"
    surprises = [told for told in result.gave_up if may_give_up is None or not re.search(may_give_up, told)]
    assert not surprises, surprises


@pytest.mark.parametrize(
    ("workload", "count"), [("keyed", 7), ("split", 6), ("alike", 4), ("spread", 4), ("windows", 3), ("rolling", 2)]
)
def test_workers_that_are_killed_at_every_point_lose_and_double_nothing(
    workload: str, count: int, servers: str, trial: Callable[..., Result], tmp_path: Path
) -> None:
    points = TASK + STATE if workload == "rolling" else TASK
    faults = faults_at(points, "kill", count, random.Random(SEED))
    result = trial(servers, workload, Marked("workers", faults, tmp_path / "marks"), seed=SEED)
    require(result)
    assert result.verdict.aborted_in_log > 0


@pytest.mark.parametrize(("workload", "count"), [("keyed", 1), ("rolling", 1), ("split", 1)])
def test_drivers_that_are_killed_at_every_point_lose_and_double_nothing(
    workload: str, count: int, servers: str, trial: Callable[..., Result], tmp_path: Path
) -> None:
    faults = faults_at(DRIVER, "kill", count, random.Random(SEED + 1))
    result = trial(servers, workload, Marked("drivers", faults, tmp_path / "marks"), seed=SEED + 1)
    require(result)
    assert result.verdict.aborted_in_log > 0


@pytest.mark.parametrize("workload", ["keyed", "rolling"])
def test_executors_that_are_killed_at_every_point_lose_and_double_nothing(
    workload: str, servers: str, cluster: SparkCluster, trial: Callable[..., Result], tmp_path: Path
) -> None:
    faults = faults_at(TASK, "kill-jvm", 2 if workload == "keyed" else 1, random.Random(SEED + 2))
    trouble = Marked("executors", faults, tmp_path / "marks")
    result = trial(servers, workload, trouble, seed=SEED + 2, cluster=cluster)
    require(result)
    assert result.verdict.aborted_in_log > 0


@pytest.mark.parametrize(("workload", "drivers", "workers"), [("split", 3, 10), ("windows", 2, 8)])
def test_processes_that_are_killed_at_any_moment_lose_and_double_nothing(
    workload: str, drivers: int, workers: int, servers: str, trial: Callable[..., Result]
) -> None:
    trouble = Random("any moment", {"driver": drivers, "worker": workers}, SEED + 3, pause=(0.2, 3))
    require(trial(servers, workload, trouble, seed=SEED + 3))


def test_executors_that_are_killed_at_any_moment_lose_and_double_nothing(
    servers: str, cluster: SparkCluster, trial: Callable[..., Result]
) -> None:
    trouble = Random("any moment", {"executor": 6}, SEED + 4, pause=(0.5, 5))
    require(trial(servers, "split", trouble, seed=SEED + 4, cluster=cluster))


@pytest.mark.parametrize("workload", ["keyed", "rolling"])
def test_a_broker_that_is_killed_at_any_moment_loses_and_doubles_nothing(
    workload: str, servers: str, own_stack: Stack, trial: Callable[..., Result]
) -> None:
    trouble = Random("any moment", {"broker": 4}, SEED + 5, pause=(0.5, 3))
    require(trial(servers, workload, trouble, seed=SEED + 5, stack=own_stack))


def test_stopped_drivers_and_workers_that_wake_up_too_late_write_nothing(
    servers: str, trial: Callable[..., Result], tmp_path: Path
) -> None:
    points = ["ADD", "EMIT", "LEDGER_READ", "BEFORE_END", "AFTER_END"]
    result = trial(servers, "keyed", Zombies("zombies", points, tmp_path / "marks"), seed=SEED + 6)
    require(result)
    assert result.verdict.aborted_in_log > 0


def test_a_machine_that_was_paused_and_wakes_up_too_late_writes_nothing(
    servers: str, cluster: SparkCluster, trial: Callable[..., Result], tmp_path: Path
) -> None:
    trouble = PausedMachine("ADD", tmp_path / "mark")
    require(trial(servers, "keyed", trouble, seed=SEED + 7, cluster=cluster))


# Written to the end of a job file: the driver does not believe its ledger, and writes every epoch that it is given.
DEAF = """

from lockgate.commit import protocol

protocol.decide = lambda entry, epoch, **more: protocol.Step.WRITE
"""


def test_a_protocol_that_does_not_ask_its_ledger_and_a_reader_that_sees_everything_are_caught(
    servers: str, trial: Callable[..., Result], tmp_path: Path
) -> None:
    faults = [("HALF", "kill", 2), ("AFTER_END", "kill", 2)]
    trouble = Marked("planted", faults, tmp_path / "marks")
    result = trial(servers, "keyed", trouble, seed=SEED + 8, planted=DEAF, isolation="read_uncommitted")
    assert result.verdict.duplicated
    assert result.verdict.aborted
    assert not result.verdict.lost


def test_all_these_kills_are_two_hundred_and_more_over_every_point(results: list[Result]) -> None:
    hit = {point for result in results for point in result.kills}
    if len(results) < TRIALS:
        pytest.skip("only after all the others")
    assert sum(result.kills_total for result in results) >= KILLS
    assert not {*DRIVER, *TASK, *STATE} - hit
    assert all(result.verdict.holds for result in results)
