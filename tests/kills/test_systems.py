"""Several systems in one job, and kills at every step of the decision: every row is everywhere once.

Kafka, PostgreSQL and files together, the latter two without Kafka, and two Kafka clusters of which each decides for
itself. PostgreSQL itself dies and comes back, executors die while they stage, drivers wake up too late.
"""

import random
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from kills.kill_matrix import Case, cases
from kills.kill_trial import Result, require
from lockgate.connectors.files.source import FileSource
from lockgate.connectors.postgres.sink import PostgresSink
from lockgate.dataflow.job import Job
from lockgate.dataflow.stream import stream
from lockgate.guarantees import Guarantee
from lockgate.lab.services.postgres import Postgres
from lockgate.runtime.run import run


@cases
def test_kills_leave_all_systems_with_every_row_once(case: Case, trial: Callable[..., Result]) -> None:
    require(trial(case))


@cases
def test_a_server_that_is_killed_loses_and_doubles_nothing(case: Case, trial: Callable[..., Result]) -> None:
    require(trial(case))


@cases
def test_a_server_that_is_killed_again_and_again_loses_and_doubles_nothing(
    case: Case, spark: SparkSession, server: Postgres, tmp_path: Path
) -> None:
    """In this process, because that takes seconds: the other trials start drivers of their own."""
    rng = random.Random(case.seed)
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
            there = 0 if kills == case.kills else count_rows(server)[0]
            if there > seen:
                time.sleep(rng.uniform(0, 0.3))  # anywhere in the next epoch
                server.kill()
                server.start()
                server.wait()
                kills, seen = kills + 1, there
    finally:
        started.stop()
    assert kills == case.kills
    assert count_rows(server) == (files_count * rows, files_count * rows)


def count_rows(server: Postgres) -> tuple[int, int]:
    """How many rows there are, and how many different ones."""
    with psycopg.connect(server.dsn) as connection:
        if connection.execute("SELECT to_regclass('killed')").fetchone() == (None,):
            return 0, 0
        found = connection.execute("SELECT count(*), count(DISTINCT id) FROM killed").fetchone()
        assert found is not None
        return found
