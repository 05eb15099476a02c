"""Fill the archives of classes: start each program, let it do a little of everything, and end it.

Each runs in a process and a directory of its own, which are removed afterwards. This is for speed alone: an error here
is reported and changes nothing.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from lockgate.modulepath import module_path
from lockgate.provision.classes import broker_classes, spark_classes
from lockgate.provision.jars import broker_jars
from lockgate.provision.java import find_java

LIMIT = timedelta(minutes=5)

# Loaded by other processes of Spark than the one that is warmed up.
_ELSEWHERE = (
    "org.apache.spark.deploy.master.Master",
    "org.apache.spark.deploy.worker.Worker",
    "org.apache.spark.deploy.worker.ExecutorRunner",
    "org.apache.spark.executor.CoarseGrainedExecutorBackend",
    "org.apache.spark.scheduler.cluster.StandaloneSchedulerBackend",
    "org.apache.spark.deploy.client.StandaloneAppClient",
)


def make_archives(tell: Callable[[str], None]) -> None:
    """Make the archives that are missing."""
    java = find_java()
    for archive in (spark_classes(), broker_classes(broker_jars())):
        if archive.options(java):
            continue
        tell(f"archiving the classes of {archive.name} (once, less than a minute) ...")
        if not archive.make(java, partial(_fill, archive.name)):
            tell(f"  not possible here: processes of {archive.name} start without it, more slowly")


def _fill(name: str, file: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="lockgate-classes-") as directory:
        kept = {key: text for key, text in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
        # A session of its own, so that Python and the JVM under it can be ended together.
        child = subprocess.Popen(
            [sys.executable, "-m", __name__, name, str(file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=directory,
            env={**kept, "PYTHONPATH": module_path(), "TMPDIR": directory},
            start_new_session=True,
        )
        try:
            child.wait(timeout=LIMIT.total_seconds())
        except subprocess.TimeoutExpired:
            pass
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


# -- in the process of its own ----------------------------------------------------------------------------------------


def _archive_at_end(file: Path) -> str:
    """For a JVM that lives a moment: compiling well would take longer than it saves."""
    return f'-XX:TieredStopAtLevel=1 "-XX:ArchiveClassesAtExit={file}"'


def _warm_spark(file: Path) -> None:
    """A small stream through what every job uses: JSON, a window with state, Python by batch and by Arrow."""
    from pyspark.sql import functions as F

    from lockgate.spark.session import SessionPlan, open_session

    os.environ["SPARK_SUBMIT_OPTS"] = _archive_at_end(file)
    Path("in").mkdir()
    Path("in", "readings.json").write_text('{"sensor": "a", "value": 1.5, "at": "2026-01-01T00:00:00Z"}\n' * 100)
    spark = open_session(SessionPlan(app="warm-up", master=None, jars=(), log_file=Path("spark.log").absolute()))
    spark.conf.set("spark.sql.shuffle.partitions", "2")

    def same(batches: Iterator[Any]) -> Iterator[Any]:
        return batches

    def write(frame: Any, epoch: int) -> None:
        sent = frame.mapInArrow(same, frame.schema).repartition(2)
        sent.selectExpr("to_json(struct(*))").write.mode("overwrite").text(f"out-{epoch}")

    read = F.from_json("value", "sensor string, value double, at timestamp")
    rows = spark.readStream.text("in").select(read.alias("read")).select("read.*").where("value > 1")
    counts = rows.withWatermark("at", "1 minute").groupBy(F.window("at", "1 minute"), "sensor").agg(F.avg("value"))
    chosen = counts.selectExpr("window.start as start", "sensor")
    started = chosen.writeStream.outputMode("update").option("checkpointLocation", "checkpoint").foreachBatch(write)
    started.trigger(availableNow=True).start().awaitTermination()

    context: Any = spark.sparkContext
    for name in _ELSEWHERE:
        context._jvm.java.lang.Class.forName(name)
    process = context._gateway.proc
    context.stop()
    process.stdin.close()  # tells it to end, and at its end it writes the archive
    process.wait()


def _warm_broker(file: Path) -> None:
    """A broker that is asked for a topic and a record."""
    from lockgate.connectors.kafka.topics import create_topics
    from lockgate.lab.services.stack import Stack

    stack = Stack(Path("services").absolute(), brokers=1)
    os.environ["JDK_JAVA_OPTIONS"] = _archive_at_end(file)
    stack.up(postgres=False)
    try:
        create_topics(stack.status().kafka.servers or "", ["warm-up"], where="warm-up")
    finally:
        stack.down()
        shutil.rmtree("services")


if __name__ == "__main__":
    {"spark": _warm_spark, "broker": _warm_broker}[sys.argv[1]](Path(sys.argv[2]))
