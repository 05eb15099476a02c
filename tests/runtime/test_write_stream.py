"""write_stream: a plain PySpark program, its own session and its own DataFrames, exactly-once into Kafka."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, TopicPartition
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lockgate import ConsoleSink, KafkaSink, write_stream
from lockgate.checkpoints.locking import is_locked
from lockgate.checkpoints.marker import is_marked
from lockgate.checkpoints.tree import LocalTree
from lockgate.cli import main as cli
from lockgate.connectors.kafka.topics import create_topics
from lockgate.errors import BadJob, Refused
from lockgate.runtime.gaps import Gaps
from lockgate.spark.session import KEEPS_RETRIES_TRUE
from support.records import make_topics, read, send, unique
from support.waiting import wait_for

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[2]


class Program:
    """What a user's program has: a session, a topic to read, a place for its checkpoint."""

    def __init__(self, spark: SparkSession, servers: str, place: Path) -> None:
        self.spark, self.servers, self.place = spark, servers, place
        self.name = unique("program")
        make_topics(servers, f"{self.name}-in", partitions=3)
        self.send(range(300))

    def send(self, ids: range) -> None:
        send(self.servers, f"{self.name}-in", map(str, ids), key=lambda text: f"k{int(text) % 7}")

    def frame(self) -> DataFrame:
        reader = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.servers)
        reader = reader.option("subscribe", f"{self.name}-in").option("startingOffsets", "earliest")
        return reader.option("maxOffsetsPerTrigger", 100).option("kafka.isolation.level", "read_committed").load()

    def sink(self, **options: Any) -> KafkaSink:
        return KafkaSink(servers=self.servers, **{"topic": f"{self.name}-out", **options})

    @property
    def checkpoint(self) -> str:
        return str(self.place / "checkpoint")

    def run(self, frame: DataFrame, sink: KafkaSink, *, mode: str = "append", adopt: bool = False) -> None:
        writer = write_stream(frame, to=sink, name=self.name, checkpoint=self.checkpoint, adopt=adopt)
        finish(writer.outputMode(mode))

    def read(self, topic: str | None = None) -> list[Any]:
        return read(self.servers, topic or f"{self.name}-out")


def finish(writer: Any) -> None:
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.exception() is None


@pytest.fixture
def program(spark: SparkSession, kafka: str, tmp_path: Path) -> Program:
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", 2)
    session.conf.set("spark.sql.session.timeZone", "America/New_York")  # a user's own; what is written is in UTC
    return Program(session, kafka, tmp_path)


def test_a_frame_with_the_columns_of_sparks_sink_is_written_as_it_is(program: Program) -> None:
    program.run(program.frame().select("key", "value"), program.sink())
    program.send(range(300, 400))
    program.run(program.frame().select("key", "value"), program.sink())
    rows = Counter((record.key, record.value) for record in program.read())
    assert rows == Counter({(f"k{number % 7}".encode(), str(number).encode()): 1 for number in range(400)})


def test_a_query_that_runs_holds_its_checkpoint_and_lets_go_when_it_ends(program: Program) -> None:
    frame = program.frame().select("key", "value")
    query = write_stream(frame, to=program.sink(), name=program.name, checkpoint=program.checkpoint).start()
    wait_for("progress", lambda: query.lastProgress is not None and is_locked(Path(program.checkpoint)))
    query.stop()
    wait_for("the end of the query", lambda: not is_locked(Path(program.checkpoint)))
    assert query.exception() is None


def test_any_other_frame_is_written_as_json_with_times_in_utc(program: Program) -> None:
    moment = F.to_timestamp(F.lit("2026-07-01T08:00:00+02:00")).alias("at")
    program.run(program.frame().select(F.col("value").cast("string").alias("id"), moment), program.sink(key="id"))
    rows = {record.key: json.loads(record.value) for record in program.read()}
    assert len(rows) == 300
    assert rows[b"17"] == {"id": "17", "at": "2026-07-01T06:00:00.000000Z"}


def test_a_stateful_frame_counts_every_event_once(program: Program) -> None:
    def counts() -> DataFrame:
        return program.frame().groupBy(F.col("key").cast("string").alias("name")).count()

    program.run(counts(), program.sink(key="name"), mode="update")
    program.send(range(300, 350))
    program.run(counts(), program.sink(key="name"), mode="update")
    last: dict[str, int] = {}
    for record in program.read():
        last.update({json.loads(record.value)["name"]: json.loads(record.value)["count"]})
    assert last == Counter(f"k{number % 7}" for number in range(350))


def test_rows_are_routed_to_the_topic_that_a_column_names(program: Program) -> None:
    topics = [f"{program.name}-{number}" for number in range(3)]
    create_topics(program.servers, topics, partitions=2, where="test")
    number = F.col("value").cast("string").cast("int")
    routed = program.frame().select(
        F.concat(F.lit(f"{program.name}-"), (number % 3).cast("string")).alias("topic"), "key", "value"
    )
    program.run(routed, program.sink(topic=None, route="topic"))
    for index, topic in enumerate(topics):
        assert Counter(int(record.value) for record in program.read(topic)) == Counter(range(index, 300, 3))


def test_a_checkpoint_of_sparks_own_sink_is_adopted_and_given_back(program: Program) -> None:
    def on_sparks_sink() -> Any:
        writer = program.frame().select("key", "value").writeStream.format("kafka")
        writer = writer.option("kafka.bootstrap.servers", program.servers).option("topic", f"{program.name}-out")
        return writer.option("checkpointLocation", program.checkpoint)

    create_topics(program.servers, [f"{program.name}-out"], partitions=2, where="test")
    finish(on_sparks_sink())
    program.send(range(300, 400))
    frame = program.frame().select("key", "value")
    with pytest.raises(Exception, match="its ledger is empty or gone"):
        program.run(frame, program.sink())
    assert not is_marked(LocalTree(Path(program.checkpoint)), program.name)
    program.run(frame, program.sink(), adopt=True)
    program.send(range(400, 450))
    program.run(frame, program.sink())  # adopted once, it is like any other
    program.send(range(450, 500))
    finish(on_sparks_sink())
    assert Counter(int(record.value) for record in program.read()) == Counter(range(500))


def test_a_first_epoch_that_never_commits_can_be_planned_again(program: Program) -> None:
    failing = program.frame().select("key", F.raise_error(F.lit("not today")).cast("binary").alias("value"))
    with pytest.raises(Exception, match="not today"):
        program.run(failing, program.sink())
    assert is_marked(LocalTree(Path(program.checkpoint)), program.name)
    where = ["--servers", program.servers, "--checkpoint", program.checkpoint]
    assert cli.main(["checkpoints", "rollback", program.name, "--uncommitted", "--yes", *where]) == 0
    program.run(program.frame().select("key", "value"), program.sink())
    assert Counter(int(record.value) for record in program.read()) == Counter(range(300))


def test_what_cannot_be_kept_is_refused_before_anything_runs(program: Program) -> None:
    frame, sink = program.frame(), program.sink()
    with pytest.raises(BadJob, match="not a stream"):
        write_stream(program.spark.range(3).toDF("value"), to=sink, name="x", checkpoint="/nowhere")
    with pytest.raises(BadJob, match="takes a KafkaSink"):
        write_stream(frame, to=ConsoleSink(), name="x", checkpoint="/nowhere")  # type: ignore[arg-type]
    with pytest.raises(BadJob, match="cannot be named"):
        write_stream(frame, to=sink, name="a b", checkpoint="/nowhere")
    with pytest.raises(BadJob, match="no column 'nothing'"):
        write_stream(frame, to=program.sink(topic=None, route="nothing"), name="x", checkpoint="/nowhere")
    bad = frame.select("value", F.col("partition").cast("string"))
    with pytest.raises(BadJob, match="column 'partition' is of type string"):
        write_stream(bad, to=sink, name="x", checkpoint="/nowhere")
    with pytest.raises(BadJob, match="no column 'ip'"):
        write_stream(frame.select("offset"), to=program.sink(key="ip"), name="x", checkpoint="/nowhere")
    with pytest.raises(BadJob, match="names others for key"):
        write_stream(frame.select("key", "value"), to=program.sink(key="value"), name="x", checkpoint="/nowhere")
    lossy = program.spark.readStream.format("kafka").option("kafka.bootstrap.servers", program.servers)
    lossy = lossy.option("subscribe", "any").option("failOnDataLoss", "false").load()
    with pytest.raises(BadJob, match="failOnDataLoss=false"):
        write_stream(lossy, to=sink, name="x", checkpoint="/nowhere")
    socket = program.spark.readStream.format("socket").option("host", "127.0.0.1").option("port", 9).load()
    with pytest.raises(BadJob, match="a socket cannot be read again"):
        write_stream(socket, to=sink, name="x", checkpoint="/nowhere")
    wild = frame.withColumn("lot", F.rand()).groupBy("lot").count()
    with pytest.raises(BadJob, match=r"rand\(.* is not deterministic and feeds state"):
        write_stream(wild, to=sink, name="x", checkpoint="/nowhere")
    by_clock = frame.withColumn("lot", F.expr("now()")).groupBy("lot").count()
    with pytest.raises(BadJob, match=r"now\(\).* is not deterministic and feeds state"):
        write_stream(by_clock, to=sink, name="x", checkpoint="/nowhere")
    first_come = frame.dropDuplicates(["key"]).groupBy("partition").count()
    with pytest.raises(BadJob, match="Deduplicate is not deterministic and feeds state"):
        write_stream(first_come, to=sink, name="x", checkpoint="/nowhere")
    for name in KEEPS_RETRIES_TRUE:
        session = program.spark.newSession()
        session.conf.set(name, "false")
        other = session.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
        with pytest.raises(Refused, match=f"{name} is off") as refused:
            write_stream(other, to=sink, name="x", checkpoint="/nowhere")
        assert re.fullmatch(r"write_stream 'x', called at .*test_write_stream\.py:\d+", refused.value.where)
    with pytest.raises(Refused, match="Spark Connect"):
        write_stream(object(), to=sink, name="x", checkpoint="/nowhere")  # type: ignore[arg-type]


def test_what_keeps_retries_true_is_looked_at_again_when_the_query_runs(program: Program) -> None:
    name = next(iter(KEEPS_RETRIES_TRUE))
    program.spark.conf.set(name, "TRUE")
    frame = program.frame().select("key", "value")
    writer = write_stream(frame, to=program.sink(), name=program.name, checkpoint=program.checkpoint)
    program.spark.conf.set(name, "false")
    with pytest.raises(Exception, match=f"{name} is off"):
        finish(writer)
    program.spark.conf.set(name, "true")
    program.run(frame, program.sink())
    assert Counter(int(record.value) for record in program.read()) == Counter(range(300))


@pytest.mark.parametrize("is_late", [False, True], ids=["between two runs", "while an epoch is read"])
def test_records_that_are_gone_before_they_were_read_are_reported_with_partition_and_range(
    is_late: bool, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    (topic,) = make_topics(program.servers, f"{program.name}-one", partitions=1)
    look = Gaps.look

    def run() -> None:
        reader = program.spark.readStream.format("kafka").option("kafka.bootstrap.servers", program.servers)
        reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
        program.run(reader.load().select("value"), program.sink())

    def remove() -> None:
        admin = KafkaAdminClient(bootstrap_servers=program.servers)
        admin.delete_records({TopicPartition(topic, 0): 150})
        admin.close()

    def look_and_remove(gaps: Gaps, epoch: int) -> None:
        look(gaps, epoch)
        remove()

    send(program.servers, topic, map(str, range(100)))
    run()
    send(program.servers, topic, map(str, range(100, 200)))
    if is_late:
        monkeypatch.setattr(Gaps, "look", look_and_remove)
    else:
        remove()
    with pytest.raises(StreamingQueryException) as stopped:
        run()
    told = str(stopped.value)
    assert f"topic '{topic}', partition 0: offsets [100, 150), at most 50 records" in told
    assert re.search(r"where: topic .*; write_stream .*, called at .*test_write_stream\.py:\d+", told)
    assert "startingOffsets" in told
    assert "failOnDataLoss" not in told
    assert Counter(int(record.value) for record in program.read()) == Counter(range(100))


@pytest.mark.parametrize("page", ["README.md", "docs/GUARANTEES.md"])
def test_the_program_of_the_docs_runs_as_it_stands_there(page: str, program: Program) -> None:
    (text,) = re.findall(r"```python\n(from lockgate import KafkaSink, write_stream\n.*?)```", text_of(page), re.DOTALL)
    text = text.replace('"/data/orders"', repr(program.checkpoint)).replace('name="orders"', f"name={program.name!r}")
    text = text.replace('topic="out"', f'topic="{program.name}-out"')
    names: dict[str, Any] = {"frame": program.frame().select("key", "value"), "servers": program.servers}
    exec(text, names)  # noqa: S102 - the page is ours
    query = names["query"]
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert Counter(int(record.value) for record in program.read()) == Counter(range(300))


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


PLAIN_PROGRAM = """
import sys
from pyspark.sql import SparkSession
from lockgate import KafkaSink, write_stream
from lockgate.provision.kafkajars import kafka_jars

servers, name, place = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").config("spark.jars", ",".join(map(str, kafka_jars())))
spark = spark.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1").getOrCreate()
read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", f"{name}-in")
frame = read.option("startingOffsets", "earliest").load().select("key", "value")
query = write_stream(frame, to=KafkaSink(topic=f"{name}-out", servers=servers), name=name, checkpoint=place)
query.trigger(availableNow=True).start().awaitTermination()
"""


@pytest.mark.process
@pytest.mark.parametrize("is_told", [False, True], ids=["python3 of PATH", "PYSPARK_PYTHON"])
def test_workers_of_a_program_would_be_a_python_without_lockgate(
    is_told: bool, program: Program, tmp_path: Path
) -> None:
    file, other = tmp_path / "program.py", tmp_path / "other"
    file.write_text(PLAIN_PROGRAM)
    venv.create(other, with_pip=False)
    kept = {name: os.environ[name] for name in ("HOME", "JAVA_HOME", "LOCKGATE_CACHE") if name in os.environ}
    environ = {**kept, "PATH": f"{other / 'bin'}:/usr/bin:/bin"}
    if is_told:
        environ["PYSPARK_PYTHON"] = str(other / "bin" / "python3")
    command = [sys.executable, str(file), program.servers, program.name, program.checkpoint]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    if is_told:
        assert "the Python of Spark's workers cannot write this stream" in done.stderr
        assert f"PYSPARK_PYTHON={sys.executable}" in done.stderr
        assert not Path(program.checkpoint).exists()
    else:
        assert done.returncode == 0, done.stderr
        assert Counter(int(record.value) for record in program.read()) == Counter(range(300))
