"""Spark's own log is a file of a bounded size, however long a job runs; settings that it has to know, it knows."""

import sys
import textwrap
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from support.process import run

LOG = """
    from pathlib import Path
    from lockgate.spark import session

    session.LOG_FILE_MB = 1
    plan = session.SessionPlan(app="log", master="local[1]", jars=(), log_file=Path("100%/job.spark.log").absolute())
    spark = session.open_session(plan)
    log = spark.sparkContext._jvm.org.apache.logging.log4j.LogManager.getLogger("test")
    for number in range(70):
        log.warn(f"line {number} " + "x" * 100_000)
    spark.stop()
"""


@pytest.mark.spark
@pytest.mark.process
def test_the_log_begins_anew_when_it_is_large_and_a_few_files_are_kept(tmp_path: Path) -> None:
    done = run(sys.executable, "-c", textwrap.dedent(LOG), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    files = {file.name: file for file in (tmp_path / "100%").iterdir()}
    del files["job.spark.log4j2.properties"]
    assert sorted(files) == ["job.spark.log", *(f"job.spark.log.{number}" for number in range(1, 5))]
    assert all(file.stat().st_size < 1.5 * 2**20 for file in files.values())
    assert "WARN test: line 69 " in files["job.spark.log"].read_text()
    assert "WARN test: line 0 " not in files["job.spark.log.4"].read_text()


@pytest.mark.spark
def test_rows_do_not_wait_in_an_exchange_of_real_time_mode(spark: SparkSession) -> None:
    """By default for 50 ms; Spark ignores a setting that it does not know, as after a change of its name."""
    name = "spark.shuffle.streaming.networkBufferMaxWaitTimeMs"
    assert spark.sparkContext.getConf().get(name) == "2"
    entry = spark._jvm.org.apache.spark.internal.config.ConfigEntry.findEntry(name)  # type: ignore[union-attr]
    assert entry is not None
    assert entry.defaultValueString() == "50"
