"""One transaction under one producer id, against a real broker and an independent reader."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from lockgate.connectors.kafka import transaction
from lockgate.connectors.kafka.codecs import Codec
from lockgate.connectors.kafka.encode import Records, encode
from lockgate.connectors.kafka.errorcodes import RETRIABLE, Code, name_of
from lockgate.connectors.kafka.topics import make_topic
from lockgate.connectors.kafka.transaction import EndUnknown, TransactionLost, Transactions
from lockgate.connectors.kafka.wire import Connection, Place, Producer, Unanswered
from lockgate.errors import EpochFailed, Refused, TopicGone
from support.records import consuming, read
from support.waiting import wait_for

pytestmark = pytest.mark.system


@pytest.fixture
def topic(connection: Connection) -> str:
    name = f"transaction-{uuid4().hex[:8]}"
    make_topic(connection, name, partitions=2, where="test")
    return name


@pytest.fixture
def transactions(connection: Connection) -> Transactions:
    return Transactions(connection, f"id-{uuid4().hex[:8]}", timeout_ms=60_000, where="test")


def batch(producer: Producer, values: list[bytes], sequence: int = 0) -> bytes:
    return encode(
        Records(keys=None, values=pa.array(values, pa.binary())),
        codec=Codec.NONE,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        now_ms=int(time.time() * 1000),
    )


def produce(connection: Connection, name: str, place: Place, data: bytes) -> int:
    """The broker's answer to one batch, once the partition is ready to give one."""
    while True:
        leader = connection.shapes([place[0]], is_fresh=True)[place[0]].leaders[place[1]]
        answer = connection.ask(connection.produce_request(name, place, data), node=leader)
        code = int(answer.responses[0].partition_responses[0].error_code)
        if code not in RETRIABLE:
            return code


def write(transactions: Transactions, producer: Producer, place: Place, *values: bytes) -> None:
    transactions.add(producer, [place])
    assert produce(transactions.connection, transactions.id, place, batch(producer, list(values))) == 0


def visible(kafka: str, topic: str) -> list[bytes]:
    """What a reader of committed records sees, up to the last stable offsets of now."""
    found = read(kafka, topic, up_to="visible")
    return [record.value for record in sorted(found, key=lambda record: (record.partition, record.offset))]


def test_begin_fences_the_older_producer_and_aborts_what_it_left_open(
    kafka: str, transactions: Transactions, topic: str
) -> None:
    old = transactions.begin()
    write(transactions, old, (topic, 0), b"old")
    new = transactions.begin()
    assert new.id == old.id
    assert new.epoch > old.epoch
    connection = transactions.connection
    late = produce(connection, transactions.id, (topic, 0), batch(old, [b"late"], sequence=1))
    assert late == Code.INVALID_PRODUCER_EPOCH
    assert connection.end_transaction(transactions.id, old, is_commit=True) == Code.PRODUCER_FENCED
    with pytest.raises(TransactionLost, match=r"PRODUCER_FENCED \(90\)"):
        transactions.end(old, is_commit=True)
    with pytest.raises(TransactionLost, match="adding partitions"):
        transactions.add(old, [(topic, 1)])
    write(transactions, new, (topic, 0), b"new")
    transactions.end(new, is_commit=True)
    transactions.wait_until_complete()
    assert visible(kafka, topic) == [b"new"]


def test_a_commit_shows_all_partitions_and_an_abort_none(kafka: str, transactions: Transactions, topic: str) -> None:
    first = transactions.begin()
    write(transactions, first, (topic, 0), b"a", b"b")
    write(transactions, first, (topic, 1), b"c")
    assert visible(kafka, topic) == []
    transactions.end(first, is_commit=True)
    transactions.wait_until_complete()
    assert visible(kafka, topic) == [b"a", b"b", b"c"]
    second = transactions.begin()
    write(transactions, second, (topic, 0), b"x")
    transactions.end(second, is_commit=False)
    transactions.wait_until_complete()
    assert visible(kafka, topic) == [b"a", b"b", b"c"]


def test_the_end_may_be_said_twice_but_not_taken_back(kafka: str, transactions: Transactions, topic: str) -> None:
    producer = transactions.begin()
    write(transactions, producer, (topic, 0), b"a")
    transactions.end(producer, is_commit=True)
    transactions.end(producer, is_commit=True)
    with pytest.raises(TransactionLost, match="INVALID_TXN_STATE"):
        transactions.end(producer, is_commit=False)
    transactions.wait_until_complete()
    assert visible(kafka, topic) == [b"a"]


def test_repeated_sequence_numbers_are_not_appended_twice_and_gaps_are_refused(
    kafka: str, transactions: Transactions, topic: str
) -> None:
    producer = transactions.begin()
    transactions.add(producer, [(topic, 0)])
    connection, place = transactions.connection, (topic, 0)
    assert produce(connection, transactions.id, place, batch(producer, [b"a", b"b"])) == 0
    assert produce(connection, transactions.id, place, batch(producer, [b"a", b"b"])) in (0, 46)
    gap = produce(connection, transactions.id, place, batch(producer, [b"d"], sequence=3))
    assert gap == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    stranger = produce(connection, transactions.id, (topic, 1), batch(producer, [b"x"]))
    assert stranger in (Code.TRANSACTION_ABORTABLE, Code.INVALID_TXN_STATE), "a partition that was not added"
    transactions.end(producer, is_commit=True)
    transactions.wait_until_complete()
    assert visible(kafka, topic) == [b"a", b"b"]


def test_a_transaction_that_times_out_is_lost_and_its_rows_are_never_seen(
    kafka: str, connection: Connection, topic: str
) -> None:
    transactions = Transactions(connection, f"id-{uuid4().hex[:8]}", timeout_ms=1000, where="test")
    producer = transactions.begin()
    write(transactions, producer, (topic, 0), b"slow")
    wait_for("the abort", lambda: connection.describe_transaction(transactions.id)[1].state == "CompleteAbort")
    late = produce(connection, transactions.id, (topic, 0), batch(producer, [b"late"], sequence=1))
    assert late == Code.INVALID_PRODUCER_EPOCH
    with pytest.raises(TransactionLost, match="timed out, or another writer"):
        transactions.end(producer, is_commit=True)
    assert visible(kafka, topic) == []


@pytest.mark.parametrize("has_effect", [True, False], ids=["it took effect", "it did not"])
def test_an_end_without_an_answer_is_unknown_and_never_guessed(
    has_effect: bool, kafka: str, connection: Connection, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions = Transactions(connection, f"id-{uuid4().hex[:8]}", timeout_ms=60_000, where="test")
    producer = transactions.begin()
    write(transactions, producer, (topic, 0), b"a")
    said = connection.end_transaction

    def lost(*facts: Any, **how: Any) -> int:
        if has_effect:
            said(*facts, **how)
        raise Unanswered("the line is dead")

    with monkeypatch.context() as patch:
        patch.setattr(connection, "settings", replace(connection.settings, delivery_timeout_ms=300))
        patch.setattr(connection, "end_transaction", lost)
        with pytest.raises(EndUnknown, match="the line is dead"):
            transactions.end(producer, is_commit=True)
    transactions.begin()  # who comes next finds it decided, or ends it
    assert visible(kafka, topic) == ([b"a"] if has_effect else [])


def test_an_answer_that_is_lost_once_is_asked_for_again(
    kafka: str, transactions: Transactions, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, calls = transactions.connection, []

    def lose_first(said: Callable[..., Any]) -> Callable[..., Any]:
        def say(*facts: Any, **how: Any) -> Any:
            answer = said(*facts, **how)
            calls.append(said.__name__)
            if calls.count(said.__name__) == 1:
                raise Unanswered("the line is dead")
            return answer

        return say

    for name in ("init_producer", "add_partitions", "end_transaction"):
        monkeypatch.setattr(connection, name, lose_first(getattr(connection, name)))
    producer = transactions.begin()
    write(transactions, producer, (topic, 0), b"a")
    transactions.end(producer, is_commit=True)
    transactions.wait_until_complete()
    assert [calls.count(name) >= 2 for name in ("init_producer", "add_partitions", "end_transaction")] == [True] * 3
    assert visible(kafka, topic) == [b"a"]


WRITER = """
import sys
sys.path[:0] = {tests!r}
import test_transaction as t
from lockgate.connectors.kafka.settings import read_settings
from lockgate.connectors.kafka.wire import Producer
connection = t.Connection(read_settings({servers!r}, {{}}, where="test"), where="test")
transactions = t.Transactions(connection, {name!r}, timeout_ms=60_000, where="test")
producer = Producer({id}, {epoch})
transactions.add(producer, [({topic!r}, {partition})])
for turn in range(6):
    data = t.batch(producer, [b"{partition}-%d" % turn], sequence=turn)
    assert t.produce(connection, {name!r}, ({topic!r}, {partition}), data) == 0
connection.close()
"""


def test_two_processes_write_one_transaction_under_one_producer_id(
    kafka: str, transactions: Transactions, topic: str
) -> None:
    producer = transactions.begin()
    facts = {"tests": [*map(str, Path(__file__).parents[:2])], "servers": kafka, "name": transactions.id}
    facts |= {"id": producer.id, "epoch": producer.epoch, "topic": topic}
    codes = [WRITER.format(**facts, partition=partition) for partition in range(2)]
    writers = [subprocess.Popen([sys.executable, "-c", code]) for code in codes]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0]
    assert visible(kafka, topic) == []
    code, view = transactions.connection.describe_transaction(transactions.id)
    assert (code, view.state, view.producer) == (0, "Ongoing", producer)
    assert view.partitions == ((topic, 0), (topic, 1))
    transactions.end(producer, is_commit=True)
    transactions.wait_until_complete()
    assert visible(kafka, topic) == [f"{place}-{turn}".encode() for place in range(2) for turn in range(6)]


def test_source_offsets_are_seen_only_with_the_commit(kafka: str, transactions: Transactions, topic: str) -> None:
    group = f"group-{uuid4().hex[:8]}"

    def committed() -> int | None:
        with consuming(kafka, [topic], group_id=group) as (consumer, places):
            return consumer.committed(places[0])  # type: ignore[no-any-return]

    first = transactions.begin()
    assert transactions.add_offsets(first, group, {(topic, 0): 17}) is None
    transactions.end(first, is_commit=False)
    transactions.wait_until_complete()
    assert committed() is None
    second = transactions.begin()
    assert transactions.add_offsets(second, group, {(topic, 0): 42}) is None
    transactions.end(second, is_commit=True)
    transactions.wait_until_complete()
    wait_for("the offset", lambda: committed() == 42)


def test_offsets_that_cannot_be_written_are_reported_in_words_and_spoil_nothing(
    kafka: str, transactions: Transactions, topic: str
) -> None:
    producer = transactions.begin()
    write(transactions, producer, (topic, 0), b"a")
    told = transactions.add_offsets(producer, "group", {("no-such-topic", 0): 1})
    assert told is None or "(" in told
    transactions.end(producer, is_commit=True)
    transactions.wait_until_complete()
    assert visible(kafka, topic) == [b"a"]


def test_a_time_out_that_the_broker_does_not_allow_is_refused_with_the_setting(connection: Connection) -> None:
    greedy = Transactions(connection, f"id-{uuid4().hex[:8]}", timeout_ms=2**31 - 1, where="sink 'out'")
    with pytest.raises(Refused, match="refuses a transaction") as caught:
        greedy.begin()
    assert "transaction.max.timeout.ms" in caught.value.fix


@pytest.mark.parametrize("is_gone", [False, True], ids=["too few partitions", "no such topic"])
def test_a_partition_that_does_not_exist_cannot_be_added(
    is_gone: bool, transactions: Transactions, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = transactions.begin()
    monkeypatch.setattr(transaction, "GONE_SECONDS", 0.3)
    with pytest.raises(TopicGone if is_gone else EpochFailed, match="does not exist" if is_gone else "cannot be added"):
        transactions.add(producer, [("no-such-topic", 0) if is_gone else (topic, 99)])
    assert "no-such-topic" not in transactions.connection.topic_names(), "nothing made it by asking"


@pytest.mark.parametrize(
    ("code", "name"), [(47, "INVALID_PRODUCER_EPOCH (47)"), (29, "TopicAuthorizationFailedError (29)")]
)
def test_codes_are_shown_by_kafkas_names(code: int, name: str) -> None:
    assert name_of(code) == name
