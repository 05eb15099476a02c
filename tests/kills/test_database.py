"""PostgreSQL itself dies and comes back, executors die while they stage, drivers wake up too late: every row once."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kill_harness import Crashes, Marked, Random, Result, Zombies
from kill_systems import SystemsTrial
from pyspark.sql import SparkSession

from lockgate.dataflow.job import Job
from lockgate.dataflow.stream import stream
from lockgate.guarantees import Guarantee
from lockgate.runtime.run import run
from lockgate.services.postgres import Postgres
from lockgate.services.spark import SparkCluster
from lockgate.sinks.postgres import PostgresSink
from lockgate.sources.files import FileSource

SEED = 41
KILLS = 4
TASK = ["RECEIVE", "HALF", "EMIT"]
DRIVER = ["LEDGER_READ", "STAGED", "VOTES", "BEFORE_END", "AFTER_END", "PUBLISH", "BEFORE_SPARK_COMMIT"]
WORKLOADS = ["table and files", "three systems"]  # PostgreSQL decides in the first, and follows Kafka in the second


@pytest.fixture
def database_trial(kafka: str, server: Postgres, trial: Callable[..., Result]) -> Callable[..., Result]:
    """Runs a job into a PostgreSQL that may be killed; counted by SQL, every row has to be there once."""

    def run(workload: str, trouble: object, kills: int, *, cluster: SparkCluster | None = None) -> Result:
        more = {"kind": SystemsTrial, "dsn": server.dsn, "server": server, "cluster": cluster}
        result = trial(kafka, workload, trouble, seed=SEED, **more)
        assert result.verdict.holds, f"{result.verdict}; seed {result.seed}"
        assert not result.gave_up, result.gave_up
        assert result.kills_total == kills
        return result

    return run


@pytest.mark.system
def test_a_server_that_is_killed_again_and_again_loses_and_doubles_nothing(
    spark: SparkSession, server: Postgres, tmp_path: Path
) -> None:
    """In this process, because that takes seconds: the trials below start drivers of their own."""
    rng = random.Random(SEED)
    files, files_count, rows = tmp_path / "in", 12, 5_000
    files.mkdir()
    for number in range(files_count):
        ids = pa.table({"id": range(number * rows, (number + 1) * rows)})
        pq.write_table(ids, files / f"{number:02}.parquet")
    sink = PostgresSink(table="killed", dsn=server.dsn, create=True)
    numbers = stream("numbers", FileSource(path=str(files), value="id BIGINT", format="parquet"))
    job = Job("killed", numbers.to("out", sink), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)
    # A file is an epoch, whatever the limit is that it exceeds.
    checkpoint, log = str(tmp_path / "checkpoint"), tmp_path / "log"
    started = run(job, checkpoint=checkpoint, until_caught_up=True, rows_per_epoch=1, log_file=log, wait=False)
    kills, seen = 0, 0
    try:
        while not started.wait(timeout=0.02):
            there = 0 if kills == KILLS else count_rows(server)[0]
            if there > seen:
                time.sleep(rng.uniform(0, 0.3))  # anywhere in the next epoch
                server.kill()
                server.start()
                server.wait()
                kills, seen = kills + 1, there
    finally:
        started.stop()
    assert kills == KILLS
    assert count_rows(server) == (files_count * rows, files_count * rows)


def count_rows(server: Postgres) -> tuple[int, int]:
    """How many rows there are, and how many different ones."""
    with psycopg.connect(server.dsn) as connection:
        if connection.execute("SELECT to_regclass('killed')").fetchone() == (None,):
            return 0, 0
        found = connection.execute("SELECT count(*), count(DISTINCT id) FROM killed").fetchone()
        assert found is not None
        return found


@pytest.mark.prove
def test_a_server_that_is_killed_between_staging_and_publishing_loses_and_doubles_nothing(
    database_trial: Callable[..., Result], tmp_path: Path
) -> None:
    points = [("STAGED", 2), ("PUBLISH", 7)]
    trouble = Crashes("server", points, tmp_path / "marks", stays_away=frozenset({"STAGED"}))
    result = database_trial("three systems", trouble, len(points))
    assert result.starts == 1, "the driver itself was to wait"


@pytest.mark.prove
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_server_that_is_killed_at_every_step_loses_and_doubles_nothing(
    workload: str, database_trial: Callable[..., Result], tmp_path: Path
) -> None:
    rng = random.Random(SEED)
    points = [(point, hit) for point in [*TASK, *DRIVER] for hit in (rng.randrange(2, 6), rng.randrange(6, 30))]
    trouble = Crashes("server", points, tmp_path / "marks", stays_away=frozenset({"HALF", "VOTES", "AFTER_END"}))
    assert database_trial(workload, trouble, len(points)).starts == 1


@pytest.mark.prove
@pytest.mark.parametrize("workload", WORKLOADS)
def test_servers_drivers_and_workers_that_are_killed_at_any_moment_lose_and_double_nothing(
    workload: str, database_trial: Callable[..., Result]
) -> None:
    targets = {"server": 8, "driver": 2, "worker": 4}
    database_trial(workload, Random("any moment", targets, SEED, pause=(0.1, 3)), sum(targets.values()))


@pytest.mark.prove
@pytest.mark.parametrize("workload", WORKLOADS)
def test_executors_that_are_killed_while_they_stage_lose_and_double_nothing(
    workload: str, cluster: SparkCluster, database_trial: Callable[..., Result], tmp_path: Path
) -> None:
    faults = [(point, "kill-jvm", hit) for point in TASK for hit in (2, 3)]
    trouble = Marked("executors", faults, tmp_path / "marks")
    database_trial(workload, trouble, len(faults), cluster=cluster)


@pytest.mark.prove
@pytest.mark.parametrize("workload", WORKLOADS)
def test_stopped_drivers_and_workers_that_wake_up_too_late_change_nothing(
    workload: str, database_trial: Callable[..., Result], tmp_path: Path
) -> None:
    points = ["HALF", "EMIT", "LEDGER_READ", "STAGED", "BEFORE_END", "AFTER_END", "PUBLISH"]
    assert database_trial(workload, Zombies("zombies", points, tmp_path / "marks"), 0).stops == len(points)
