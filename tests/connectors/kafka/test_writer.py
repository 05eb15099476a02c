"""A task's writer: first against a connection of the test's own, then against real brokers, one of which is killed."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from kafka.record.memory_records import MemoryRecords
from pyspark.sql import SparkSession

from lockgate.connectors.kafka import writer as writers
from lockgate.connectors.kafka.encode import Records
from lockgate.connectors.kafka.errorcodes import Code
from lockgate.connectors.kafka.rights import Denied
from lockgate.connectors.kafka.settings import ClientSettings, read_settings
from lockgate.connectors.kafka.topics import describe_outputs, make_topic
from lockgate.connectors.kafka.transaction import TransactionLost, Transactions
from lockgate.connectors.kafka.wire import Connection, Place, Producer, TopicShape
from lockgate.connectors.kafka.writer import IN_FLIGHT_PER_PARTITION, RecordRefused, Writer, Written
from lockgate.errors import EpochFailed, TimeRefused, TopicGone
from lockgate.lab.services.stack import Stack
from support.records import read

NOW_MS = 1_700_000_000_000
LARGE = 1_048_588


def records(values: list[bytes], keys: list[bytes] | None = None) -> Records:
    return Records(keys=None if keys is None else pa.array(keys, pa.binary()), values=pa.array(values, pa.binary()))


# ---- a connection of the test's own: it answers what and when the test says


class Wire:
    """Takes batches, and answers each with a code of the script, at once or when asked to."""

    def __init__(self, *, codes: list[int | str] = [], is_slow: bool = False, **settings: Any) -> None:  # noqa: B006
        self.settings = replace(ClientSettings("nowhere:1"), **settings)
        self.codes: list[int | str] = list(codes)
        self.is_slow = is_slow
        self.posted: list[tuple[Place, bytes]] = []
        self.waiting: list[tuple[Place, bytes, Callable[..., None]]] = []
        self.appended: dict[Place, list[bytes]] = {}
        self._next: dict[Place, int] = {}
        self.looks = 0
        self.most_waiting: dict[Place, int] = {}
        self.most_bytes = 0
        self.has_topic = True

    def shapes(self, topics: list[str], *, is_fresh: bool = False) -> dict[str, TopicShape]:
        self.looks += is_fresh
        return {name: TopicShape(name, (1, 1, 1, 1), 1, "id") for name in topics} if self.has_topic else {}

    def produce_request(self, transactional_id: str, place: Place, batch: bytes) -> tuple[Place, bytes]:
        return place, batch

    def post(self, request: tuple[Place, bytes], *, node: int, done: Callable[..., None]) -> None:
        place, batch = request
        self.posted.append(request)
        self.waiting.append((place, batch, done))
        now = [one for one in self.waiting if one[0] == place]
        self.most_waiting[place] = max(self.most_waiting.get(place, 0), len(now))
        self.most_bytes = max(self.most_bytes, sum(len(data) for _, data, _ in self.waiting))
        if not self.is_slow:
            self.answer()

    def answer(self) -> None:
        place, data, done = self.waiting.pop(0)
        code = self.codes.pop(0) if self.codes else 0
        if code == 0:
            batch = MemoryRecords(data).next_batch()
            # As brokers do, it takes any sequence number from a producer that is new to the partition.
            if batch.base_sequence == self._next.get(place, batch.base_sequence):
                values = [bytes(record.value) for record in batch]
                self.appended.setdefault(place, []).extend(values)
                self._next[place] = batch.base_sequence + len(values)
            else:
                code = 45
        if isinstance(code, str):
            done(None, OSError(code))
        else:
            part = SimpleNamespace(error_code=code)
            done(SimpleNamespace(responses=[SimpleNamespace(partition_responses=[part])]), None)

    def answer_by_and_by(self, pause_seconds: float = 0.005) -> threading.Thread:
        """Answer one batch after the other, each when the writer has stopped to send."""

        def work() -> None:
            idle = 0
            while idle < 40:
                seen = len(self.posted)
                time.sleep(pause_seconds)
                idle = 0 if self.waiting else idle + 1
                if self.waiting and len(self.posted) == seen:
                    self.answer()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread


def writer_on(wire: Any) -> Writer:
    return Writer(wire, transactional_id="id", producer=Producer(7, 3), where="sink 'out'")


def values_of(batches: list[bytes]) -> list[bytes]:
    found = []
    for data in batches:
        read = MemoryRecords(data)
        while read.has_next():
            found += [bytes(record.value) for record in read.next_batch()]
    return found


def test_batches_of_a_partition_go_out_in_order_with_sequences_from_zero() -> None:
    wire = Wire(batch_bytes=200)
    writer = writer_on(wire)
    values = [b"value-%03d" % number for number in range(60)]
    for start in range(0, 60, 20):
        writer.write(("t", 1), records(values[start : start + 20]), max_message_bytes=LARGE, now_ms=NOW_MS)
    assert writer.finish() == [Written(("t", 1), 60, 59)]
    assert len(wire.posted) > 5
    assert all(len(data) <= 200 for _, data in wire.posted)
    assert values_of([data for _, data in wire.posted]) == values
    heads = [MemoryRecords(data).next_batch() for _, data in wire.posted]
    counts = [len(list(head)) for head in heads]
    assert [head.base_sequence for head in heads] == [sum(counts[:index]) for index in range(len(counts))]
    assert {(head.producer_id, head.producer_epoch, head.is_transactional) for head in heads} == {(7, 3, True)}


def test_at_most_five_batches_of_a_partition_are_in_flight() -> None:
    wire = Wire(is_slow=True, batch_bytes=100)
    answers = wire.answer_by_and_by()
    writer = writer_on(wire)
    for place in (("t", 0), ("t", 1)):
        writer.write(place, records([b"x" * 30] * 20), max_message_bytes=LARGE, now_ms=NOW_MS)
    writer.finish()
    answers.join()
    assert wire.most_waiting == {("t", 0): IN_FLIGHT_PER_PARTITION, ("t", 1): IN_FLIGHT_PER_PARTITION}


def test_what_is_in_flight_is_bounded_in_bytes_over_all_partitions() -> None:
    wire = Wire(is_slow=True, batch_bytes=3 << 20)
    answers = wire.answer_by_and_by(pause_seconds=0.05)
    writer = writer_on(wire)
    for turn in range(14):
        place = ("t", turn % 4)
        writer.write(place, records([b"x" * (3_000_000)]), max_message_bytes=4 << 20, now_ms=NOW_MS)
    writer.finish()
    answers.join()
    assert len(wire.posted) == 14
    assert 20 << 20 < wire.most_bytes <= 24 << 20


@pytest.mark.parametrize("before", [[], [0]], ids=["the first", "a later one"])
@pytest.mark.parametrize("trouble", [6, 19, 7, 3, 56, "the line is dead"])
def test_after_a_failure_that_passes_the_very_same_bytes_go_out_again_in_order(
    trouble: int | str, before: list[int]
) -> None:
    wire = Wire(codes=[*before, trouble], is_slow=True, batch_bytes=100)
    writer = writer_on(wire)
    values = [b"%030d" % number for number in range(8)]
    answers = wire.answer_by_and_by()
    writer.write(("t", 0), records(values), max_message_bytes=LARGE, now_ms=NOW_MS)
    assert writer.finish() == [Written(("t", 0), 8, 7)]
    answers.join()
    sent = [data for _, data in wire.posted]
    assert wire.appended == {("t", 0): values}
    assert values_of(list(dict.fromkeys(sent))) == values, "never other bytes for the same records"
    assert len(sent) > len(set(sent))
    assert wire.looks >= 1, "it asked who leads the partition now"


def test_a_batch_that_the_broker_has_already_counts_as_written() -> None:
    wire = Wire(codes=["the line is dead", Code.DUPLICATE_SEQUENCE_NUMBER])
    writer = writer_on(wire)
    writer.write(("t", 0), records([b"a"]), max_message_bytes=LARGE, now_ms=NOW_MS)
    assert writer.finish() == [Written(("t", 0), 1, 0)]


@pytest.mark.parametrize("code", [47, 48, 49, 90, 120])
def test_a_producer_that_is_fenced_has_lost_its_transaction(code: int) -> None:
    writer = writer_on(Wire(codes=[code]))
    writer.write(("t", 0), records([b"a"]), max_message_bytes=LARGE, now_ms=NOW_MS)
    with pytest.raises(TransactionLost, match=rf"\({code}\)") as caught:
        writer.finish()
    assert "topic 't', partition 0, sink 'out'" in caught.value.where


@pytest.mark.parametrize(
    ("code", "kind"),
    [(29, Denied), (53, Denied), (45, EpochFailed), (10, EpochFailed), (87, EpochFailed), (32, TimeRefused)],
)
def test_a_refusal_that_does_not_pass_is_shown_at_once(code: int, kind: type[Exception]) -> None:
    wire = Wire(codes=[code])
    writer = writer_on(wire)
    writer.write(("t", 0), records([b"a"]), max_message_bytes=LARGE, now_ms=NOW_MS)
    with pytest.raises(kind):
        writer.finish()
    assert len(wire.posted) == 1


def test_a_failure_that_lasts_ends_with_the_patience_of_the_settings() -> None:
    writer = writer_on(Wire(codes=[19] * 1000, delivery_timeout_ms=300))
    writer.write(("t", 0), records([b"a"]), max_message_bytes=LARGE, now_ms=NOW_MS)
    with pytest.raises(EpochFailed, match=r"could not be delivered.*NOT_ENOUGH_REPLICAS \(19\)") as caught:
        writer.finish()
    assert "min.insync.replicas" in caught.value.fix


def test_a_writer_that_waits_for_an_answer_behind_a_failure_does_not_spin() -> None:
    wire = Wire(is_slow=True, batch_bytes=100)
    writer = writer_on(wire)
    writer.write(("t", 0), records([b"first"]), max_message_bytes=LARGE, now_ms=NOW_MS)
    wire.answer()
    writer.write(("t", 0), records([b"x" * 30] * 4), max_message_bytes=LARGE, now_ms=NOW_MS)
    assert len(wire.waiting) > 1
    first = wire.waiting.pop(0)
    wire.codes = [19]
    wire.answer()
    wire.waiting.insert(0, first)  # the first answer is late, the second was a refusal
    begun = time.thread_time()
    threading.Timer(0.7, wire.answer_by_and_by).start()
    writer.finish()
    assert time.thread_time() - begun < 0.3


def test_a_record_that_is_too_large_is_named_by_key_and_size() -> None:
    wire = Wire()
    writer = writer_on(wire)
    with pytest.raises(RecordRefused, match=r"with key 'fat' is 5,0\d\d bytes; the topic takes at most 939") as caught:
        writer.write(("t", 2), records([b"a", b"x" * 5000], [b"thin", b"fat"]), max_message_bytes=1000, now_ms=NOW_MS)
    assert "topic 't', partition 2, sink 'out'" in caught.value.where
    assert "max.message.bytes" in caught.value.fix
    with pytest.raises(RecordRefused, match="without a key"):
        writer.write(("t", 2), records([b"x" * 5000]), max_message_bytes=1000, now_ms=NOW_MS)
    with pytest.raises(RecordRefused, match=r"with key '[\\xf]{90,120}…'"):
        writer.write(("t", 2), records([b"x" * 5000], [b"\xff" * 500]), max_message_bytes=1000, now_ms=NOW_MS)


# ---- real brokers


def visible(servers: str, topic: str, partitions: int) -> list[list[bytes]]:
    """What a reader of committed records sees of each partition, in its order."""
    found: list[list[bytes]] = [[] for _ in range(partitions)]
    for record in read(servers, topic, up_to="visible"):
        found[record.partition].append(record.value)
    return found


class Epoch:
    """One transaction with one writer."""

    def __init__(self, connection: Connection, topic: str, partitions: int, **configs: str) -> None:
        make_topic(connection, topic, partitions=partitions, configs=configs, where="test")
        self.places = [(topic, partition) for partition in range(partitions)]
        self.transactions = Transactions(connection, f"id-{uuid4().hex[:8]}", timeout_ms=60_000, where="test")
        self.producer = self.transactions.begin()
        self.transactions.add(self.producer, self.places)
        self.max_message_bytes = describe_outputs(connection, [topic], where="test")[topic].max_message_bytes
        self.writer = Writer(
            connection, transactional_id=self.transactions.id, producer=self.producer, where="sink 'out'"
        )

    def write(self, partition: int, values: list[bytes], keys: list[bytes] | None = None) -> None:
        self.writer.write(
            self.places[partition],
            records(values, keys),
            max_message_bytes=self.max_message_bytes,
            now_ms=int(time.time() * 1000),
        )

    def commit(self) -> list[Written]:
        written = self.writer.finish()
        self.transactions.end(self.producer, is_commit=True)
        self.transactions.wait_until_complete()
        return written


@pytest.fixture
def topic() -> str:
    return f"writer-{uuid4().hex[:8]}"


@pytest.mark.system
def test_rows_arrive_in_order_and_are_seen_only_when_committed(kafka: str, connection: Connection, topic: str) -> None:
    settings = replace(connection.settings, batch_bytes=2000)
    small = Connection(settings, where="test")
    epoch = Epoch(small, topic, 2)
    values = [[b"%d-%05d" % (partition, number) for number in range(3000)] for partition in range(2)]
    for start in range(0, 3000, 500):
        for partition in range(2):
            epoch.write(partition, values[partition][start : start + 500])
    written = epoch.writer.finish()
    assert written == [Written((topic, partition), 3000, 2999) for partition in range(2)]
    assert visible(kafka, topic, 2) == [[], []]
    epoch.commit()
    assert visible(kafka, topic, 2) == values
    small.close()


@pytest.mark.system
def test_a_record_larger_than_a_batch_but_not_than_the_topic_takes_is_written(
    kafka: str, connection: Connection, topic: str
) -> None:
    epoch = Epoch(connection, topic, 1, **{"max.message.bytes": str(3_000_000)})
    assert epoch.max_message_bytes == 3_000_000
    values = [b"small", b"x" * 2_900_000, b"small again"]
    epoch.write(0, values)
    epoch.commit()
    assert visible(kafka, topic, 1) == [values]
    with pytest.raises(RecordRefused, match=r"with key 'k' is 3,000,0\d\d bytes; the topic takes at most 2,999,939"):
        epoch.write(0, [b"x" * 3_000_000], [b"k"])


@pytest.mark.system
def test_a_time_that_the_broker_refuses_is_final_and_reported_in_its_own_words(
    connection: Connection, topic: str
) -> None:
    epoch = Epoch(connection, topic, 1, **{"message.timestamp.after.max.ms": "1000"})
    now_ms = int(time.time() * 1000)
    ahead = Records(keys=None, values=pa.array([b"a"], pa.binary()), timestamps_ms=np.array([now_ms + 60_000]))
    epoch.writer.write(epoch.places[0], ahead, max_message_bytes=epoch.max_message_bytes, now_ms=now_ms)
    with pytest.raises(TimeRefused, match=rf"Timestamp {now_ms + 60_000} of message .* out of range") as caught:
        epoch.writer.finish()
    assert f"topic {topic!r}, partition 0" in caught.value.where


@pytest.mark.system
def test_a_topic_that_is_deleted_in_mid_write_ends_with_a_clear_error(
    kafka: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "GONE_SECONDS", 1.0)
    connection = Connection(read_settings(kafka, {}, where="test"), where="test")
    epoch = Epoch(connection, topic, 1)
    epoch.write(0, [b"a"])
    epoch.writer.finish()
    connection.admin.delete_topics([topic])

    def write_on() -> None:
        while True:
            epoch.write(0, [b"b"])
            epoch.writer.finish()

    with pytest.raises(TopicGone, match=f"topic '{topic}' does not exist any more") as caught:
        write_on()
    assert f"topic '{topic}', partition 0" in caught.value.where
    assert "create it again with as many partitions" in caught.value.fix
    assert topic not in connection.topic_names(), "nothing made it by asking"
    connection.close()


@pytest.mark.spark
@pytest.mark.system
def test_javas_reader_takes_every_codec(kafka: str, spark: SparkSession) -> None:
    """Java's consumer, inside Spark: it shares no code with the writer, nor with the reader of the other tests."""
    name = f"codecs-{uuid4().hex[:8]}"
    expected = []
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        connection = Connection(read_settings(kafka, {"compression.type": codec}, where="test"), where="test")
        epoch = Epoch(connection, f"{name}-{codec}", 1)
        values = [b"%s-%05d-%s" % (codec.encode(), number, b"x" * (number % 300)) for number in range(2000)]
        epoch.write(0, values, [b"key-%d" % number for number in range(2000)])
        epoch.commit()
        lost = epoch.transactions.begin()
        epoch.transactions.add(lost, epoch.places)
        writer = Writer(connection, transactional_id=epoch.transactions.id, producer=lost, where="test")
        writer.write(epoch.places[0], records([b"aborted"]), max_message_bytes=LARGE, now_ms=NOW_MS)
        writer.finish()
        epoch.transactions.end(lost, is_commit=False)
        epoch.transactions.wait_until_complete()
        if codec != "snappy":  # its library is not among our dependencies; Java has its own
            assert visible(kafka, f"{name}-{codec}", 1) == [values]
        expected += values
        connection.close()
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka)
    seen = reader.option("subscribePattern", f"{name}-.*").option("kafka.isolation.level", "read_committed").load()
    rows = sorted(seen.select("topic", "offset", "value").collect())
    assert [bytes(row.value) for row in rows] == sorted(expected)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Three brokers, for a test that kills one."""
    three = Stack(tmp_path_factory.mktemp("three"), brokers=3)
    try:
        three.up(postgres=False)
        yield three
    finally:
        three.down()


@pytest.mark.system
def test_everything_arrives_once_and_in_order_although_a_leader_is_killed_in_mid_write(
    three: Stack, topic: str
) -> None:
    servers = three.status().kafka.servers
    assert servers is not None
    connection = Connection(replace(read_settings(servers, {}, where="test"), batch_bytes=4000), where="test")
    epoch = Epoch(connection, topic, 3)
    posted: dict[tuple[Place, int], set[bytes]] = {}
    flying: dict[Place, int] = {}
    most = 0
    repeated = 0
    post = connection.post

    def watch(request: Any, *, node: int, done: Callable[..., None]) -> None:
        nonlocal most, repeated
        part = request.topic_data[0]
        place = (part.name, part.partition_data[0].index)
        data = bytes(part.partition_data[0].records)
        sequence = MemoryRecords(data).next_batch().base_sequence
        repeated += (place, sequence) in posted
        posted.setdefault((place, sequence), set()).add(data)
        flying[place] = flying.get(place, 0) + 1
        most = max(most, flying[place])

        def landed(answer: Any, error: BaseException | None) -> None:
            flying[place] -= 1
            done(answer, error)

        post(request, node=node, done=landed)

    connection.post = watch  # type: ignore[method-assign]
    values: list[list[bytes]] = [[], [], []]
    victim = connection.shapes([topic])[topic].leaders[0]
    killer = threading.Thread(target=lambda: three.kill_broker(victim))
    for turn in range(120):
        if turn == 40:
            killer.start()
        for partition in range(3):
            new = [b"%d-%d-%05d" % (partition, turn, number) for number in range(100)]
            values[partition] += new
            epoch.write(partition, new)
        time.sleep(0.01)
    killer.join()
    written = epoch.commit()
    assert [one.records for one in written] == [12_000] * 3
    assert connection.shapes([topic], is_fresh=True)[topic].leaders[0] != victim
    assert visible(servers, topic, 3) == values
    assert all(len(data) == 1 for data in posted.values()), "the same bytes for the same sequence numbers"
    assert repeated > 0, "the kill came in mid-write"
    assert most == IN_FLIGHT_PER_PARTITION
    connection.close()
