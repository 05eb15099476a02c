"""Hundreds of megabytes of dead letters: they pass no driver, and one that is too large says what it stands for."""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from lockgate import FileSource, Guarantee, Job, KafkaSink, KafkaSource, MemorySink, SqliteSink, stream
from lockgate.errors import Failed
from lockgate.faultpoints import Fault, as_environment
from lockgate.runtime import deadletterwriter as module
from lockgate.runtime.deadletters import DeadLetterStore
from support.files import put
from support.process import LOCKGATE, parameters, run
from support.records import consuming, make_topics, producing, read_json, send, unique
from support.runs import run_to_the_end
from support.waiting import Patience

EXACT = Guarantee.END_TO_END_EXACTLY_ONCE
VALUE = "k STRING, v INT"
SMALL_DRIVER = {"PYSPARK_SUBMIT_ARGS": "--driver-memory 512m pyspark-shell"}
RECORDS, RECORD_BYTES, PARTITIONS = 450, 900_000, 3

JOB = """
from lockgate import DeadLetters, Guarantee, Job, KafkaSink, KafkaSource, stream

def job(servers: str, name: str, guarantee: str = "END_TO_END_EXACTLY_ONCE", stop_after: int = 1000):
    read = stream("in", KafkaSource(topic=f"{name}-in", servers=servers, value="k STRING, v INT"))
    letters = KafkaSink(topic=f"{name}-letters", servers=servers, client={"max.request.size": "3000000"})
    return Job(
        name,
        read.to("out", KafkaSink(topic=f"{name}-out", servers=servers, key="k")),
        guarantee=Guarantee[guarantee],
        dead_letters=DeadLetters(letters, stop_after=stop_after),
    )
"""


def garbage(number: int) -> bytes:
    """A record that is no JSON, with bytes that are no text."""
    return b"\xff\x00%06d" % number + bytes([33 + number % 90]) * (RECORD_BYTES - 8)


def digest(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()


@pytest.fixture(scope="module")
def attack(kafka: str) -> str:
    """The name of a job whose topic has 450 records of 900 kB that do not parse, between 30 that do."""
    name = unique("large")
    make_topics(kafka, f"{name}-in", partitions=PARTITIONS)
    with producing(kafka, acks="all", max_request_size=2 << 20) as producer:
        for number in range(RECORDS):
            producer.send(f"{name}-in", garbage(number), partition=number % PARTITIONS)
            if number % 15 == 0:
                good = json.dumps({"k": f"k{number}", "v": number}).encode()
                producer.send(f"{name}-in", good, partition=number % PARTITIONS)
                producer.flush()
        producer.flush()
    return name


def make_job(kafka: str, place: Path, attack: str) -> list[str]:
    """A job file in a directory, and the words that run it; its outputs are new."""
    admin = KafkaAdminClient(bootstrap_servers=kafka)
    config = {"max.message.bytes": "3000000"}
    name = unique("large")
    try:
        admin.create_topics([NewTopic(f"{name}-letters", 2, 1, topic_configs=config)])
    finally:
        admin.close()
    make_topics(kafka, f"{name}-out")
    (place / "job.py").write_text(JOB.replace('f"{name}-in"', repr(f"{attack}-in")))
    return ["run", "job.py", "--until-caught-up", "--checkpoint", "checkpoint", *parameters(servers=kafka, name=name)]


def name_of(words: list[str]) -> str:
    return next(word.removeprefix("name=") for word in words if word.startswith("name="))


def letters_in(servers: str, topic: str) -> Iterator[dict[str, Any]]:
    """The letters that a reader of committed records sees, one by one: all at once are half a gigabyte."""
    with consuming(servers, [topic], fetch_max_bytes=8 << 20, max_partition_fetch_bytes=4 << 20) as (consumer, places):
        ends = consumer.end_offsets(places)
        patience = Patience(f"the end of {topic}")
        while any(consumer.position(place) < ends[place] for place in places):
            patience.check()
            for records in consumer.poll(timeout_ms=500, max_records=20).values():
                yield from (json.loads(record.value) for record in records)


def seen(servers: str, topic: str) -> Counter[tuple[str, int, str]]:
    """Where each dead letter comes from, and the digest of what it holds."""
    return Counter(
        (letter["part"], letter["at"], digest(base64.b64decode(letter["value"])))
        for letter in letters_in(servers, topic)
    )


def expected(attack: str) -> Counter[tuple[str, int, str]]:
    found: Counter[tuple[str, int, str]] = Counter()
    ends = [0] * PARTITIONS
    for number in range(RECORDS):
        partition = number % PARTITIONS
        found[f"{attack}-in-{partition:06d}", ends[partition], digest(garbage(number))] += 1
        ends[partition] += 2 if number % 15 == 0 else 1
    return found


@pytest.mark.slow
@pytest.mark.system
def test_more_than_the_driver_has_memory_for_is_written_once_although_the_job_is_killed(
    kafka: str, attack: str, tmp_path: Path
) -> None:
    words = make_job(kafka, tmp_path, attack)
    name, points = name_of(words), ("ASIDE", "HALF")
    faults = [Fault(point, "kill", mark=str(tmp_path / point)) for point in points]
    done = run(*LOCKGATE, *words, cwd=tmp_path, environ={**SMALL_DRIVER, **as_environment(faults)}, seconds=1_200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all((tmp_path / point).exists() for point in points)
    assert sorted(row["v"] for row in read_json(kafka, f"{name}-out")) == [*range(0, RECORDS, 15)]
    assert seen(kafka, f"{name}-letters") == expected(attack)
    assert "OutOfMemoryError" not in done.stderr


@pytest.mark.slow
@pytest.mark.system
def test_at_least_once_loses_no_large_dead_letter(kafka: str, attack: str, tmp_path: Path) -> None:
    words = [*make_job(kafka, tmp_path, attack), *parameters(guarantee="AT_LEAST_ONCE")]
    done = run(*LOCKGATE, *words, cwd=tmp_path, environ=SMALL_DRIVER, seconds=1_200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert seen(kafka, f"{name_of(words)}-letters") == expected(attack)


@pytest.mark.slow
@pytest.mark.system
def test_a_limit_stops_the_job_before_anything_of_the_epoch_is_written(kafka: str, attack: str, tmp_path: Path) -> None:
    words = [*make_job(kafka, tmp_path, attack), *parameters(stop_after=RECORDS - 1)]
    done = run(*LOCKGATE, *words, cwd=tmp_path, environ=SMALL_DRIVER, seconds=1_200)
    assert done.returncode == 1
    assert f"{RECORDS} events of job" in done.stdout + done.stderr
    name = name_of(words)
    assert read_json(kafka, f"{name}-out", f"{name}-letters") == []


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("guarantee", [EXACT, Guarantee.AT_LEAST_ONCE], ids=lambda one: one.name.lower())
def test_a_dead_letter_that_its_topic_does_not_take_says_what_it_stands_for(
    guarantee: Guarantee, kafka: str, tmp_path: Path
) -> None:
    name = unique("cut")
    make_topics(kafka, f"{name}-in", f"{name}-out", f"{name}-letters", partitions=1)
    large, small = garbage(1), b"no JSON"
    send(kafka, f"{name}-in", [large, small], key=lambda value: b"\xff" + value[:3], max_request_size=2 << 20)
    read = stream("in", KafkaSource(topic=f"{name}-in", servers=kafka, value=VALUE))
    job = Job(
        name,
        read.to("out", KafkaSink(topic=f"{name}-out", servers=kafka, key="k")),
        guarantee=guarantee,
        dead_letters=KafkaSink(topic=f"{name}-letters", servers=kafka),
    )
    run_to_the_end(job, tmp_path)
    store = DeadLetterStore(job, checkpoint=str(tmp_path / "checkpoint"))
    first, second = sorted(store.letters(), key=lambda letter: letter.at or 0)
    assert (second.value, second.key, second.reason) == (small, b"\xffno ", f"it is not JSON of ({VALUE})")
    assert (first.value, first.key, first.headers, first.timestamp) == (None, None, (), None)
    assert (first.source, first.part, first.at) == ("in", f"{name}-in-000000", 0)
    assert "the event itself is not in this dead letter: as a record it has" in first.reason
    assert f"its value has {len(large)} bytes, SHA-256 {digest(large)}" in first.reason
    key = b"\xff" + large[:3]
    assert f"its key has 4 bytes, SHA-256 {digest(key)}" in first.reason
    assert 10_000 <= len(first.shown) < 11_000
    unsent, sent = store.send([first, second])
    assert (unsent.is_sent, sent.is_sent) == (False, True)
    assert "it was too large" in str(unsent.told)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "make", [lambda place: MemorySink(), lambda place: SqliteSink(table="t", path=f"{place}/t.db")]
)
def test_what_a_sink_in_the_driver_has_no_memory_for_stops_the_job_first(
    make: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DRIVER_PART", 1 << 40)
    (tmp_path / "in").mkdir()
    put(tmp_path / "in", '{"k":"a","v":2}', "nonsense")
    sink = MemorySink()
    read = stream("in", FileSource(path=str(tmp_path / "in"), value=VALUE))
    job = Job("driver", read.to("out", sink), guarantee=Guarantee.AT_LEAST_ONCE, dead_letters=make(tmp_path))
    with pytest.raises(Failed, match="of dead letters are more than the driver can take") as stopped:
        run_to_the_end(job, tmp_path)
    assert "--rows-per-epoch" in stopped.value.fix
    assert sink.rows == []
    monkeypatch.undo()
    run_to_the_end(job, tmp_path)
    assert len(sink.rows) == 1
