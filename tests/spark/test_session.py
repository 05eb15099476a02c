"""Spark's own log is a file of a bounded size, however long a job runs; settings that it has to know, it knows."""

import stat
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

FORGING = """
    from pathlib import Path
    from lockgate.spark import session

    plan = session.SessionPlan(app="log", master="local[1]", jars=(), log_file=Path("spark.log").absolute())
    jvm = session.open_session(plan).sparkContext._jvm
    log = jvm.org.apache.logging.log4j.LogManager.getLogger("test")
    event = "an event\\r\\n2026-01-01T00:00:00.000 ERROR forged: \\x1b[2J\\x9b\\tat forged.Frame"
    log.warn(event)
    why = jvm.java.lang.IllegalStateException(event)
    log.warn("outer", jvm.java.lang.RuntimeException(event, why))
"""


@pytest.mark.spark
@pytest.mark.process
def test_an_event_makes_no_line_of_its_own_in_the_log(tmp_path: Path) -> None:
    done = run(sys.executable, "-c", textwrap.dedent(FORGING), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "spark.log").read_text()
    lines = text.splitlines()
    quoted = "an event\\r\\n2026-01-01T00:00:00.000 ERROR forged: \\u001B[2J\\u009B\\tat forged.Frame"
    assert [line.partition("WARN test: ")[2] for line in lines if "WARN test: " in line] == [quoted, "outer"]
    assert f"java.lang.RuntimeException: {quoted}" in lines
    assert f"Caused by: java.lang.IllegalStateException: {quoted}" in lines
    assert [line for line in lines if line.startswith("\tat ")], "a trace has a line for each frame"
    assert [line for line in lines if "forged" in line and quoted not in line] == []
    assert all(character.isprintable() or character in "\n\t" for character in text)


@pytest.mark.spark
@pytest.mark.process
def test_the_log_rotates_when_it_is_large_and_a_few_files_are_kept(tmp_path: Path) -> None:
    done = run(sys.executable, "-c", textwrap.dedent(LOG), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    files = {file.name: file for file in (tmp_path / "100%").iterdir()}
    settings = files.pop("job.spark.log4j2.properties")
    assert stat.S_IMODE(settings.stat().st_mode) == 0o600, "who reads its token can forge lines"
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
