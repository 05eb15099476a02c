"""The bytes that KafkaSink writes are a contract with every reader, in any language."""

import json
import struct
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kafka.partitioner.default import murmur2

from lockgate import Guarantee, Job, KafkaSink, MemorySource, stream
from lockgate.connectors.kafka.topics import create_topics, existing_topics
from lockgate.errors import BadJob
from support.records import read
from support.runs import run_to_the_end

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("spark")]

AT = datetime(2026, 1, 1, 12, 30, 0, 123456, tzinfo=UTC)
Write = Callable[..., None]
ROWS = [(f"name-{n}", n, -n, AT, None if n % 2 else 0.5) for n in range(40)]
SCHEMA = "name STRING, n INT, big BIGINT, at TIMESTAMP, share DOUBLE"


@pytest.fixture(params=[Guarantee.AT_LEAST_ONCE, Guarantee.END_TO_END_EXACTLY_ONCE], ids=["plain", "transactional"])
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Write:
    """Write rows, once by Spark's own writer and once by ours: readers cannot tell one from the other."""

    def write_rows(sink: KafkaSink, rows: list[Any] = ROWS, schema: str = SCHEMA) -> None:
        source, name = stream("rows", MemorySource(rows, value=schema)), f"writer-{uuid4().hex[:8]}"
        job = Job(name, source.to("out", sink), guarantee=request.param)
        run_to_the_end(job, tmp_path, checkpoint=str(tmp_path / name))

    return write_rows


@pytest.fixture
def topic(kafka: str) -> str:
    name = f"out-{uuid4().hex[:8]}"
    create_topics(kafka, [name], partitions=5, where="test")
    return name


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("name", lambda row: row[0].encode()),
        ("n", lambda row: struct.pack(">i", row[1])),
        ("big", lambda row: struct.pack(">q", row[2])),
        (("name", "n", "share"), lambda row: json.dumps([row[0], row[1], row[4]], separators=(",", ":")).encode()),
    ],
    ids=["string", "int", "bigint", "several"],
)
def test_key_bytes_and_partitions_agree_with_javas(
    key: Any, expected: Any, kafka: str, topic: str, write: Write
) -> None:
    write(KafkaSink(topic=topic, servers=kafka, key=key))
    records = read(kafka, topic)
    assert sorted(record.key for record in records) == sorted(map(expected, ROWS))
    for record in records:
        assert record.partition == (murmur2(record.key) & 0x7FFFFFFF) % 5


def test_a_value_is_json_of_all_columns_with_nulls_and_times_in_utc(kafka: str, topic: str, write: Write) -> None:
    write(KafkaSink(topic=topic, servers=kafka, key="name"), rows=ROWS[:2])
    values = sorted(record.value for record in read(kafka, topic))
    assert values[1] == b'{"name":"name-1","n":1,"big":-1,"at":"2026-01-01T12:30:00.123456Z","share":null}'


def test_rows_are_routed_placed_and_deleted_by_column(kafka: str, write: Write) -> None:
    topics = [f"route-{uuid4().hex[:8]}" for _ in range(2)]
    create_topics(kafka, topics, partitions=3, where="test")
    rows = [("a", topics[0], 2, "keep"), ("b", topics[1], 1, "drop")]
    sink = KafkaSink(servers=kafka, route="topic", partition="place", key="id", deleted="word = 'drop'")
    write(sink, rows=rows, schema="id STRING, topic STRING, place INT, word STRING")
    (first,), (second,) = read(kafka, topics[0]), read(kafka, topics[1])
    assert (first.partition, first.key, json.loads(first.value)["word"]) == (2, b"a", "keep")
    assert (second.partition, second.key, second.value) == (1, b"b", None)


def test_text_and_csv_are_written_as_they_are(kafka: str, topic: str, write: Write) -> None:
    other = f"csv-{uuid4().hex[:8]}"
    write(
        KafkaSink(topic=topic, servers=kafka, key="id", format="text"),
        rows=[("x", "grüße")],
        schema="id STRING, line STRING",
    )
    write(
        KafkaSink(topic=other, servers=kafka, format="csv"),
        rows=[("x, y", 5)],
        schema="id STRING, n INT",
    )
    assert read(kafka, topic)[0].value == "grüße".encode()
    (record,) = read(kafka, other)
    assert (record.key, record.value) == (None, b'"x, y",5')
    assert other in existing_topics(kafka, where="test")


def test_a_key_without_agreed_bytes_is_refused_before_anything_is_written(kafka: str, topic: str, write: Write) -> None:
    with pytest.raises(BadJob, match="column 'share' of type double cannot be a key"):
        write(KafkaSink(topic=topic, servers=kafka, key="share"))


def test_headers_and_times_of_a_record_come_from_columns(kafka: str, topic: str, tmp_path: Path) -> None:
    sink = KafkaSink(topic=topic, servers=kafka, key="name", headers="notes", timestamp="at", client=LZ4)
    rows = stream("rows", MemorySource(ROWS[:3], value=SCHEMA)).select(
        "name", "at", notes="array(named_struct('key', 'n', 'value', cast(string(n) AS BINARY)))"
    )
    job = Job(f"writer-{uuid4().hex[:8]}", rows.to("out", sink), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)
    run_to_the_end(job, tmp_path)
    records = sorted(read(kafka, topic), key=lambda record: record.key)
    assert [record.headers for record in records] == [[("n", b"%d" % number)] for number in range(3)]
    assert {record.timestamp for record in records} == {int(AT.timestamp() * 1000)}
    assert records[0].value == b'{"name":"name-0"}'


LZ4 = {"compression.type": "lz4"}
