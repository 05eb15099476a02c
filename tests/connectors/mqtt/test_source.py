"""Messages of a real broker: none is lost when a driver or an epoch dies, and the plan says what that is worth."""

import json
import random
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from lockgate import (
    Guarantee,
    Job,
    KafkaSink,
    MemorySink,
    Mode,
    MqttSource,
    PostgresSink,
    Run,
    explain,
    plan,
    run,
    stream,
)
from lockgate.connectors.mqtt import session as mqttsession
from lockgate.connectors.mqtt.session import Link, Session
from lockgate.errors import BadJob, BadMachine, Failed, Refused, UnparsableValue
from lockgate.lab.services import ports
from support.mqtt import LOGIN, Broker, running_broker, say_hello
from support.process import Process, program, running
from support.runs import live, wait_for_run
from support.waiting import wait_for


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with running_broker(tmp_path) as broker:
        yield broker


def reading(source: MqttSource, tmp_path: Path, sink: MemorySink, *columns: str) -> AbstractContextManager[Run]:
    numbers = stream("numbers", source)
    output = (numbers.select(*columns) if columns else numbers).to("out", sink)
    job = Job("numbers", output, guarantee=Guarantee.AT_LEAST_ONCE, epoch="200 milliseconds")
    return live(job, tmp_path, rows_per_epoch=15)


def wait_for_subscription(broker: Broker, started: Run, sink: MemorySink) -> None:
    """Publish until something arrives: before the reader has subscribed, the broker keeps nothing for it."""
    before = len(sink.rows)
    is_there = say_hello(broker, lambda: len(sink.rows) > before)
    wait_for_run("a message", is_there, started, may_restart=True)


def counts(rows: list[Any]) -> Counter[int]:
    return Counter(row.n for row in rows if row.n >= 0)


# A query


@pytest.mark.system
@pytest.mark.usefixtures("spark")
def test_messages_arrive_typed_and_in_order_also_more_than_the_broker_has_in_flight(
    broker: Broker, tmp_path: Path
) -> None:
    sink = MemorySink()
    with reading(broker.source(), tmp_path, sink, "n", "_topic", "_timestamp", "_retained", "_position") as started:
        wait_for_subscription(broker, started, sink)
        begun = time.time()
        broker.publish("plant/a", *range(50))  # the window is 20: it moves on by acknowledgements alone
        broker.publish("plant/b", *range(50, 60), qos=0)
        broker.publish("elsewhere", 99)
        wait_for_run("rows", lambda: len(counts(sink.rows)) == 60, started, may_restart=True)
    rows = [row for row in sink.rows if row.n >= 0]
    assert [row.n for row in rows if row._topic == "plant/a"] == list(range(50))
    assert {row._topic for row in rows} == {"plant/a", "plant/b"}
    assert counts(rows) == Counter(range(60))
    assert all(begun - 1 <= row._timestamp.timestamp() <= time.time() for row in rows)
    assert not any(row._retained for row in rows)
    places = [row._position["at"] for row in sink.rows]
    assert places == sorted(set(places))
    assert max(Counter(sink.epochs).values()) <= 15


@pytest.mark.system
@pytest.mark.usefixtures("spark")
def test_a_value_that_does_not_parse_stops_the_job_and_nothing_of_its_epoch_is_lost(
    broker: Broker, tmp_path: Path
) -> None:
    sink = MemorySink()
    with reading(broker.source(), tmp_path, sink) as started:
        wait_for_subscription(broker, started, sink)
        broker.publish("plant/a", 1)
        wait_for_run("rows", lambda: 1 in counts(sink.rows), started, may_restart=True)
        broker.publish("plant/a", 2, '{"n": "three"}', 4)
        with pytest.raises(UnparsableValue) as caught:
            wait_for_run("rows", lambda: False, started, may_restart=True)
    assert "topic 'plant/a', offset " in caught.value.what
    assert '{"n": "three"}' in caught.value.what
    assert "source 'numbers', declared at test_source.py:" in caught.value.where
    broker.publish("plant/a", 5)  # the broker keeps it for the job
    # What came in an epoch of its own is complete and acknowledged: it does not come again.
    left = {"2", "three", "4", "5"} - {str(row.n) for row in sink.rows}
    mended = MemorySink()
    with reading(broker.source(value="n STRING"), tmp_path, mended) as started:
        wait_for_run("rows", lambda: len(mended.rows) >= len(left), started, may_restart=True)
    assert Counter(row.n for row in mended.rows) == Counter(left)


@pytest.mark.prove
@pytest.mark.usefixtures("spark")
def test_a_broker_that_stops_is_waited_for_and_read_on_from(
    broker: Broker, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def is_logged(text: str) -> bool:  # in the log of the session's driver
        return any(text in log.read_text() for log in tmp_path_factory.getbasetemp().glob("spark*/spark.log"))

    sink = MemorySink()
    with reading(broker.source(), tmp_path, sink) as started:
        wait_for_subscription(broker, started, sink)
        broker.publish("plant/a", *range(20))
        wait_for_run("rows", lambda: len(counts(sink.rows)) == 20, started, may_restart=True)
        broker.stop()
        wait_for_run(
            "rows", lambda: is_logged(f"broker 127.0.0.1:{broker.port} does not answer"), started, may_restart=True
        )
        broker.start()
        wait_for_subscription(broker, started, sink)
        broker.publish("plant/a", *range(20, 60))
        wait_for_run("rows", lambda: len(counts(sink.rows)) == 60, started, may_restart=True)
    assert counts(sink.rows) == Counter(range(60))
    assert is_logged(f"connected to 127.0.0.1:{broker.port} again, which has lost the session")


@pytest.mark.spark
def test_spark_asks_for_what_follows_an_epoch_only_when_it_is_in_the_commit_log(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What acknowledgements rest on; Spark does not promise it in words."""
    asked = tmp_path / "asked"
    commits = tmp_path / "checkpoint" / "commits"

    class Reader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
            return {"n": 0}

        def getDefaultReadLimit(self) -> ReadAllAvailable:  # noqa: N802
            return ReadAllAvailable()

        def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802
            committed = [int(one.name) for one in commits.glob("[0-9]*")]
            with asked.open("a") as file:
                file.write(f"{start['n']} {max(committed, default=-1) + 1}\n")
            return {"n": min(start["n"] + 1, 5)}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return [InputPartition(end["n"])]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            yield (partition.value,)

    class Counting(DataSource):
        @classmethod
        def name(cls) -> str:
            return "counting"

        def schema(self) -> str:
            return "n INT"

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
            return Reader()

    def lines() -> list[tuple[int, int]]:
        text = asked.read_text() if asked.exists() else ""
        return [(int(start), int(epochs)) for start, epochs in (line.split() for line in text.splitlines())]

    spark.dataSource.register(Counting)
    writer = spark.readStream.format("counting").load().writeStream.foreachBatch(lambda frame, epoch: frame.collect())
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        wait_for("all epochs", lambda: query.exception() is not None or lines()[-3:-1] == [(5, 5)] * 2)
        assert query.exception() is None
    finally:
        query.stop()
    # Each epoch has one row here, so an offset is the number of epochs before it. The last one is asked for again.
    assert all(start == epochs for start, epochs in lines())
    assert {start for start, _ in lines()} == set(range(6))


# Drivers that are killed


def driving(broker: Broker, folder: Path, guarantee: Guarantee) -> AbstractContextManager[Process]:
    """A driver in a process of its own, which writes numbers to files."""
    return running(*program("mqtt_numbers", folder, broker.port, guarantee.name), cwd=folder)


def numbers_out(folder: Path) -> Counter[int]:
    """What is in the files, except the numbers that only test whether a reader has subscribed."""
    files = [path for path in (folder / "out").glob("*.json") if path.name[0] not in "._"]
    lines = [line for path in files for line in path.read_text().splitlines()]
    return Counter(n for n in (json.loads(line)["n"] for line in lines) if n >= 0)


def publish_until_out(broker: Broker, process: Process, folder: Path, number: int) -> None:
    """Publish a number until it is out: before the reader has subscribed, the broker keeps nothing for it."""

    def is_out() -> bool:
        if number in numbers_out(folder):
            return True
        broker.publish("plant/first", number)
        return False

    process.wait_for(f"number {number}", is_out)


@pytest.mark.system
def test_a_driver_that_is_killed_between_receiving_and_committing_loses_nothing(broker: Broker, tmp_path: Path) -> None:
    done, held, later = range(30), range(1000, 1030), range(2000, 2005)
    with driving(broker, tmp_path, Guarantee.AT_LEAST_ONCE) as process:
        publish_until_out(broker, process, tmp_path, 500)
        broker.publish("plant/a", *done)
        process.wait_for("all numbers", lambda: numbers_out(tmp_path).keys() >= {*done})
        # When the next epoch is there, Spark has asked for it, and what is complete is acknowledged.
        broker.publish("plant/a", *held)
        process.wait_for("a number that is held", (tmp_path / "held").exists)
        process.kill()
        first = numbers_out(tmp_path)
    assert not any(n in first for n in held)
    broker.publish("plant/a", *later)
    (tmp_path / "free").touch()
    with driving(broker, tmp_path, Guarantee.AT_LEAST_ONCE) as process:
        process.wait_for("all numbers", lambda: numbers_out(tmp_path).keys() >= {*held, *later})
        process.kill()
        out = numbers_out(tmp_path)
    assert set(out) == {500, *done, *held, *later}
    assert all(out[n] == 1 for n in done)


@pytest.mark.prove
def test_an_at_most_once_job_does_not_repeat_what_it_had_in_hand(broker: Broker, tmp_path: Path) -> None:
    held = range(1000, 1010)
    with driving(broker, tmp_path, Guarantee.AT_MOST_ONCE) as process:
        publish_until_out(broker, process, tmp_path, 500)
        broker.publish("plant/a", *held)
        process.wait_for("a number that is held", (tmp_path / "held").exists)
        process.kill()
    (tmp_path / "free").touch()
    with driving(broker, tmp_path, Guarantee.AT_MOST_ONCE) as process:
        publish_until_out(broker, process, tmp_path, 501)
        broker.publish("plant/a", 1, 2, 3)
        process.wait_for("all numbers", lambda: numbers_out(tmp_path).keys() >= {1, 2, 3})
        process.kill()
        out = numbers_out(tmp_path)
    assert not any(n in out for n in held)
    assert all(out[n] == 1 for n in (1, 2, 3))


# A session, without Spark


def link(broker: Broker, **changes: Any) -> Link:
    given: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": broker.port,
        "topic": "plant/#",
        "client_id": "session",
        **LOGIN,
        "is_kept": True,
        "room": 100,
        "where": "source 'numbers'",
    }
    return Link(**{**given, **changes})


@contextmanager
def opened(wanted: Link, broker: Broker) -> Iterator[Session]:
    """A session that has subscribed, and has one message in epoch 0."""
    session = Session(wanted)
    try:

        def is_subscribed() -> bool:
            broker.publish("plant/hello", -1)
            return session.number(0, 1) == 1

        wait_for("a subscription", is_subscribed)
        yield session
    finally:
        session.close()


@pytest.mark.system
def test_messages_that_come_again_after_a_lost_connection_are_known(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(link(broker), broker) as session:
        session.complete(1)
        broker.publish("plant/a", 1, 2, 3)
        last = json.dumps({"n": 3}).encode()
        wait_for(
            "the last message",
            lambda: any(one.payload == last for _, one in session.numbered(0, session.number(1, 50))),
        )
        end = session.number(1, 50)
        numbered = session.numbered(1, end)
        connection = session._client.socket()
        assert connection is not None
        connection.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]
        wait_for("a connection", lambda: "again, which has kept the session" in caplog.text)
        broker.publish("plant/a", 4)
        wait_for("another message", lambda: session.number(end, 50) > end)
        assert session.numbered(1, end) == numbered
        assert [one.payload for _, one in session.numbered(end, session.number(end, 50))] == [
            json.dumps({"n": 4}).encode()
        ]
        session.complete(end + 1)
    with opened(link(broker), broker) as session:
        assert [one.payload for _, one in session.numbered(0, 9)] == [json.dumps({"n": -1}).encode()]


@pytest.mark.system
def test_two_readers_of_one_session_are_kept_separate(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqttsession, "_PREDECESSOR_SECONDS", 0.5)
    with opened(link(broker), broker):
        with pytest.raises(Failed, match="has another reader on this machine"):
            Session(link(broker))
        Session(link(broker, client_id="another")).close()
    Session(link(broker)).close()


@pytest.mark.system
def test_messages_without_acknowledgement_are_held_up_to_a_limit_and_a_loss_is_reported(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(link(broker, is_kept=False, room=5), broker) as session:
        broker.publish("plant/a", *range(20))

        def is_loss_told() -> bool:
            session.number(1, 0)  # takes nothing
            return "messages dropped: they came faster than epochs" in caplog.text

        wait_for("the loss", is_loss_told)
        assert session.number(1, 1_000) == 1 + 5


# What is refused before anything runs


def check(source: MqttSource, guarantee: Guarantee = Guarantee.AT_LEAST_ONCE, **given: Any) -> None:
    run(Job("job", stream("numbers", source).to("out", MemorySink()), guarantee=guarantee), **given)


@pytest.mark.system
def test_a_bad_login_is_refused_with_the_fix(broker: Broker) -> None:
    with pytest.raises(Refused, match=r"refuses the connection: Not authorized") as caught:
        check(broker.source(password="guess"))
    assert "username= and password=" in caught.value.fix
    assert "guess" not in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "nowhere.invalid"])
def test_a_broker_that_does_not_answer_is_refused(host: str) -> None:
    (port,) = ports.choose(1, random.Random())
    with pytest.raises(Refused, match=f"no MQTT broker answers at {host}:{port} ") as caught:
        check(MqttSource(topic="t", host=host, port=port, value="n INT"))
    assert "source 'numbers', declared at test_source.py:" in caught.value.where


def test_a_client_library_that_is_missing_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "paho.mqtt.client", None)
    with pytest.raises(BadMachine) as caught:
        check(MqttSource(topic="t", host="h", value="n INT"))
    assert caught.value.fix == "pip install 'lockgate[mqtt]'"


SOURCE = MqttSource(topic="plant/+/temperature", host="broker", value="n INT", username="meter", password="s3cret")


def test_a_run_that_ends_by_itself_and_a_place_to_start_from_are_refused() -> None:
    with pytest.raises(Refused, match="an MQTT broker never reports that everything is read"):
        check(SOURCE, until_caught_up=True)
    with pytest.raises(BadJob, match="cannot be read from 'latest' on"):
        check(SOURCE, start="latest")


def test_real_time_mode_is_refused() -> None:
    output = stream("numbers", SOURCE).to("out", KafkaSink(topic="out", servers="h:1"))
    with pytest.raises(BadJob, match="it cannot read from a MqttSource"):
        plan(Job("job", output, guarantee=Guarantee.AT_LEAST_ONCE, mode=Mode.REAL_TIME))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"topic": ""}, "topic='' is not the name of a topic"),
        ({"host": None}, "host=None is not the name of a host"),
        ({"topic": "plant/#/a"}, "is not a filter of topics"),
        ({"topic": "plant/a+"}, "is not a filter of topics"),
        ({"topic": "$share/group/plant"}, "is shared among several readers"),
        ({"port": 0}, "port=0 is no port"),
        ({"client_id": ""}, "client_id='' does not name a session"),
        ({"username": None}, "a password= needs a username="),
        ({"format": "xml"}, "format='xml' is not known"),
    ],
)
def test_what_cannot_be_meant_is_refused(changes: dict[str, Any], told: str) -> None:
    given = {"topic": "t", "host": "h", "value": "n INT", "username": "u", "password": "p", **changes}
    with pytest.raises(BadJob) as caught:
        plan(Job("job", stream("in", MqttSource(**given)).to("out", MemorySink()), guarantee=Guarantee.AT_LEAST_ONCE))
    assert told in caught.value.what


# What it is worth


def test_the_plan_says_what_an_acknowledgement_is_worth_and_how_a_log_lifts_the_rest() -> None:
    table = PostgresSink(table="t", dsn="postgresql://host/db", key="n")  # repeated rows replace themselves
    job = Job("job", stream("numbers", SOURCE).to("out", table), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)
    planned = plan(job)
    assert planned.reached is Guarantee.AT_LEAST_ONCE
    refusal = planned.refusal()
    assert refusal is not None
    assert "reaches at-least-once: an MQTT broker keeps a message until it is acknowledged" in refusal.what
    assert "put a log in front of it: an at-least-once job from this source into a topic" in refusal.fix
    assert refusal.fix.endswith("or declare Guarantee.AT_LEAST_ONCE")
    text = " ".join(explain(job).split())
    assert "none is lost, but after a failure it sends unacknowledged messages again" in text
    assert "put a log in front of it" in text


@pytest.mark.parametrize("guarantee", [Guarantee.AT_MOST_ONCE, Guarantee.AT_LEAST_ONCE])
def test_what_is_declared_at_or_below_at_least_once_is_kept(guarantee: Guarantee) -> None:
    output = stream("numbers", SOURCE).to("out", MemorySink())
    assert plan(Job("job", output, guarantee=guarantee)).refusal() is None


def test_the_password_is_not_shown() -> None:
    assert "s3cret" not in repr(SOURCE)
    job = Job("job", stream("numbers", SOURCE).to("out", MemorySink()), guarantee=Guarantee.AT_LEAST_ONCE)
    assert "s3cret" not in explain(job)
