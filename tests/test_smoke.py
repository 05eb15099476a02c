"""The smoke ring: each source, each sink and each guarantee once, on real services, counted by independent readers.

`make test` runs it. What each part does under faults, with bad input and at its limits is in the tests of that part.
"""

import json
import signal
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest

from lockgate import (
    ConsoleSink,
    FileSink,
    FileSource,
    Guarantee,
    Job,
    KafkaSink,
    KafkaSource,
    MemorySink,
    MemorySource,
    MonitorSink,
    PostgresSink,
    SensorSource,
    SqliteSink,
    Stream,
    acks,
    stream,
)
from lockgate.connectors.files.reading import committed_files
from support.mqtt import running_broker, say_hello
from support.process import LOCKGATE, parameters, running
from support.records import count_ids, make_topics, read_json, send, unique
from support.runs import live, run_to_the_end, wait_for_run
from support.scraping import scrape
from support.sockets import line_server

pytestmark = [pytest.mark.system, pytest.mark.smoke]

EVENTS = 60
VALUE = "id BIGINT, name STRING"
EVERY_ID_ONCE = Counter(range(EVENTS))


def events() -> list[dict[str, Any]]:
    return [{"id": number, "name": f"name-{number % 3}"} for number in range(EVENTS)]


@pytest.fixture
def topics(kafka: str) -> tuple[str, str]:
    """One to read, with the events in it, and one to write."""
    read, write = make_topics(kafka, unique("smoke-in"), unique("smoke-out"))
    send(kafka, read, events(), partition=lambda event: event["id"] % 2)
    return read, write


@pytest.fixture
def read(kafka: str, topics: tuple[str, str]) -> Stream:
    return stream("events", KafkaSource(topic=topics[0], servers=kafka, value=VALUE))


# -- sources ----------------------------------------------------------------------------------------------------------


def from_files(place: Path) -> Stream:
    (place / "events").mkdir()
    for number in range(0, EVENTS, 20):
        lines = "\n".join(map(json.dumps, events()[number : number + 20]))
        (place / "events" / f"{number}.json").write_text(lines)
    return stream("events", FileSource(path=str(place / "events"), value=VALUE))


def from_sensors(place: Path) -> Stream:
    """Numbered by state, in which each event counts once."""
    readings = stream("readings", SensorSource(sensors=1, every="1 second", events=EVENTS, seed=7))
    return readings.key_by("sensor").rolling(count="count(*)").select(id="count - 1")


def from_memory(place: Path) -> Stream:
    return stream("events", MemorySource([tuple(event.values()) for event in events()], value=VALUE, per_epoch=25))


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("source", "guarantee"),
    [
        (from_files, Guarantee.AT_LEAST_ONCE),
        (from_sensors, Guarantee.EXACTLY_ONCE),
        (from_memory, Guarantee.END_TO_END_EXACTLY_ONCE),
    ],
    ids=lambda one: one.name if isinstance(one, Guarantee) else one.__name__,
)
def test_a_source_that_can_be_replayed_reaches_a_topic(
    source: Any, guarantee: Guarantee, kafka: str, tmp_path: Path
) -> None:
    (topic,) = make_topics(kafka, unique("smoke-out"))
    out = source(tmp_path).to("out", KafkaSink(topic=topic, servers=kafka))
    run_to_the_end(Job(unique("smoke"), out, guarantee=guarantee), tmp_path, rows_per_epoch=EVENTS // 2)
    assert count_ids(kafka, topic) == EVERY_ID_ONCE


@pytest.mark.usefixtures("spark")
def test_messages_reach_a_topic_at_least_once(kafka: str, tmp_path: Path) -> None:
    (topic,) = make_topics(kafka, unique("smoke-out"))
    with running_broker(tmp_path) as broker:
        numbers = stream("numbers", broker.source())
        out = numbers.to("out", KafkaSink(topic=topic, servers=kafka))
        job = Job(unique("smoke"), out, guarantee=Guarantee.AT_LEAST_ONCE, epoch="200 milliseconds")
        with live(job, tmp_path) as started:
            wait_for_run("a message", say_hello(broker, lambda: read_json(kafka, topic)), started, may_restart=True)
            broker.publish("plant/a", *range(EVENTS))
            wait_for_run("rows", lambda: {*range(EVENTS)} <= numbers_in(kafka, topic), started, may_restart=True)
    assert numbers_in(kafka, topic) == {-1, *range(EVENTS)}


def numbers_in(kafka: str, topic: str) -> set[int]:
    return {row["n"] for row in read_json(kafka, topic)}


SOCKET_JOB = """
from lockgate import Guarantee, Job, KafkaSink, SocketSource, stream


def job(port: int, servers: str, write: str) -> Job:
    events = stream("events", SocketSource(host="127.0.0.1", port=port, value="id BIGINT, name STRING", format="json"))
    return Job("socket", events.to("out", KafkaSink(topic=write, servers=servers)), guarantee=Guarantee.AT_MOST_ONCE)
"""


@pytest.mark.process
def test_a_socket_reaches_a_topic_at_most_once(kafka: str, tmp_path: Path) -> None:
    """In a driver of its own: an at-most-once job tries no task twice."""
    (topic,) = make_topics(kafka, unique("smoke-out"))
    (tmp_path / "job.py").write_text(SOCKET_JOB)
    with line_server(*(json.dumps(event) for event in events())) as server:
        words = ["run", "job.py", "--no-supervise", *parameters(port=server.port, servers=kafka, write=topic)]
        with running(*LOCKGATE, *words, cwd=tmp_path) as process:
            process.wait_for("all rows", lambda: len(count_ids(kafka, topic, isolation="read_uncommitted")) == EVENTS)
            assert process.end(signal.SIGTERM) == 0, process.text
    assert count_ids(kafka, topic) == EVERY_ID_ONCE


# -- sinks ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("spark")
def test_every_sink_gets_every_row_of_one_job(
    read: Stream, topics: tuple[str, str], kafka: str, dsn: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    memory, files, database = MemorySink(), tmp_path / "files", tmp_path / "rows.db"
    at_least_once = {"guarantee": Guarantee.AT_LEAST_ONCE}
    monitor = MonitorSink(metric="smoke_id", value="id", labels=("id",))
    job = Job(
        unique("smoke"),
        read.to("topic", KafkaSink(topic=topics[1], servers=kafka, key="name")),
        read.to("table", PostgresSink(table="rows", dsn=dsn, create=True)),
        read.to("files", FileSink(path=str(files))),
        read.to("database", SqliteSink(table="rows", path=str(database))),
        read.to("memory", memory, **at_least_once),
        read.to("screen", ConsoleSink(), **at_least_once),
        read.to("monitor", monitor, **at_least_once),
        guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
    )
    every_id = {("smoke_id", str(number)): number for number in range(EVENTS)}

    def is_done() -> bool:
        """The metric has all rows, and no epoch is under way: a stop would leave its transaction to the next run."""
        planned, committed = ([*(tmp_path / "checkpoint" / log).glob("[0-9]*")] for log in ("offsets", "commits"))
        return scrape(monitor) == every_id and len(planned) == len(committed)

    with live(job, tmp_path, rows_per_epoch=EVENTS // 2) as started:
        wait_for_run("all rows", is_done, started)
    assert count_ids(kafka, topics[1]) == EVERY_ID_ONCE
    with psycopg.connect(dsn) as connection:
        assert Counter(id for (id,) in connection.execute("SELECT id FROM rows")) == EVERY_ID_ONCE
    rows = [row for file in committed_files(str(files)) for row in pq.read_table(file).to_pylist()]
    assert Counter(row["id"] for row in rows) == EVERY_ID_ONCE
    with closing(sqlite3.connect(database)) as connection:
        assert Counter(id for (id,) in connection.execute("SELECT id FROM rows")) == EVERY_ID_ONCE
    assert Counter(row["id"] for row in memory.rows) == EVERY_ID_ONCE
    assert "name-2" in capfd.readouterr().out


# -- guarantees -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("spark")
def test_acknowledgements_lose_nothing(read: Stream, topics: tuple[str, str], kafka: str, tmp_path: Path) -> None:
    out = read.where("id >= 0").to("out", KafkaSink(topic=topics[1], servers=kafka, key="name"))
    dead_letters = MemorySink()
    tracking = acks(timeout="1 minute")
    job = Job(unique("smoke"), out, guarantee=Guarantee.AT_LEAST_ONCE, tracking=tracking, dead_letters=dead_letters)
    run_to_the_end(job, tmp_path, rows_per_epoch=EVENTS // 2)
    assert set(count_ids(kafka, topics[1])) == set(EVERY_ID_ONCE)
    assert dead_letters.rows == []
