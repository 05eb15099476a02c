"""Records of a real topic: typed, committed ones only, from the place that was asked for."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from lockgate import Guarantee, Job, KafkaSource, MemorySink, stream
from lockgate.connectors.kafka.topics import create_topics
from lockgate.errors import BadJob, Refused, UnparsableValue
from support.records import producing
from support.runs import run_to_the_end

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("spark")]

Send = Callable[..., None]


@pytest.fixture
def topic(kafka: str) -> str:
    name = f"in-{uuid4().hex[:8]}"
    create_topics(kafka, [name], partitions=3, where="test")
    return name


@pytest.fixture
def send(kafka: str, topic: str) -> Send:
    def send_records(*records: dict[str, Any]) -> None:
        with producing(kafka) as producer:
            for record in records:
                producer.send(topic, **record).get(timeout=30)

    return send_records


def read_all(
    source: KafkaSource, tmp_path: Path, columns: list[str] | None = None, start: str | None = None
) -> list[Any]:
    sink = MemorySink()
    read = stream("records", source)
    job = Job(
        "records", (read.select(*columns) if columns else read).to("out", sink), guarantee=Guarantee.AT_LEAST_ONCE
    )
    run_to_the_end(job, tmp_path, start=start, rows_per_epoch=1000)
    return sink.rows


def test_a_value_that_does_not_parse_stops_the_job_with_topic_partition_and_offset_and_nothing_is_lost(
    kafka: str, topic: str, send: Send, tmp_path: Path
) -> None:
    send(
        {"value": b'{"id": 1}', "partition": 2},
        {"value": b'{"id": 2}', "partition": 2},
        {"value": b'{"id": "three"}', "partition": 2},
    )
    with pytest.raises(UnparsableValue) as caught:
        # A filter that the bad row would not pass, and a column that is not the value: neither hides it.
        read_all(KafkaSource(topic=topic, servers=kafka, value="id INT"), tmp_path, ["_offset"])
    assert f"topic {topic!r}, partition 2, offset 2" in caught.value.what
    assert '{"id": "three"}' in caught.value.what
    assert "source 'records', declared at test_source.py:" in caught.value.where
    # Declared as what it is, the same checkpoint goes on without a gap.
    rows = read_all(KafkaSource(topic=topic, servers=kafka, value="id STRING"), tmp_path)
    assert sorted(row.id for row in rows) == ["1", "2", "three"]


def test_a_tombstone_is_not_silently_null(kafka: str, topic: str, send: Send, tmp_path: Path) -> None:
    send({"key": b"a", "value": None, "partition": 0})
    with pytest.raises(UnparsableValue, match="no value \\(a tombstone\\)"):
        read_all(KafkaSource(topic=topic, servers=kafka, value="id INT"), tmp_path)


def test_a_tombstone_is_null_where_bytes_are_asked_for_and_may_be_null(
    kafka: str, topic: str, send: Send, tmp_path: Path
) -> None:
    send({"key": b"a", "value": None, "partition": 0})
    source = KafkaSource(topic=topic, servers=kafka, value="value BINARY", format="bytes")
    (row,) = read_all(source, tmp_path / "null")
    assert row.value is None
    with pytest.raises(UnparsableValue, match="no value \\(a tombstone\\)"):
        read_all(replace(source, value="value BINARY NOT NULL"), tmp_path / "not null")


def test_keys_headers_and_places_come_beside_the_value(kafka: str, topic: str, send: Send, tmp_path: Path) -> None:
    send(
        {
            "key": json.dumps(["x", 7]).encode(),
            "value": b"hello",
            "partition": 1,
            "headers": [("trace", b"t-1")],
            "timestamp_ms": 1_767_225_600_000,
        }
    )
    source = KafkaSource(topic=topic, servers=kafka, key="name STRING, n INT", value="line STRING", format="text")
    names = ["name", "n", "line", "_topic", "_partition", "_offset", "_timestamp", "_headers"]
    (row,) = read_all(source, tmp_path, names)
    assert tuple(row)[:6] == ("x", 7, "hello", topic, 1, 0)
    assert row._timestamp == datetime(2026, 1, 1, tzinfo=UTC)
    assert row._headers == [{"key": "trace", "value": b"t-1"}]


def test_a_run_starts_at_the_given_position(kafka: str, topic: str, send: Send, tmp_path: Path) -> None:
    old, new = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    for name, moment in (("old", old), ("new", new)):
        send(
            *({"value": name.encode(), "partition": p, "timestamp_ms": int(moment.timestamp() * 1000)} for p in (0, 1))
        )
    source = KafkaSource(topic=topic, servers=kafka, value="line STRING", format="text")
    since = f"{new - timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
    assert sorted(row.line for row in read_all(source, tmp_path / "a", start=since)) == ["new", "new"]
    assert read_all(source, tmp_path / "b", start="latest") == []
    with pytest.raises(Refused, match="not a place to start from"):
        read_all(source, tmp_path / "c", start="yesterday")


def test_a_topic_that_is_not_there_and_a_broker_that_does_not_answer_are_refused(kafka: str, tmp_path: Path) -> None:
    with pytest.raises(BadJob, match="topic 'nowhere' does not exist"):
        read_all(KafkaSource(topic="nowhere", servers=kafka, value="id INT"), tmp_path)
    with pytest.raises(Refused, match=r"no Kafka broker answers at 127\.0\.0\.1:1 "):
        read_all(KafkaSource(topic="any", servers="127.0.0.1:1", value="id INT"), tmp_path)
