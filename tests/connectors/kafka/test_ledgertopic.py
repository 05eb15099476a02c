"""The ledger as a topic of a real broker: what is read, what is waited for, and what is refused."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from lockgate.commit.ledger import Entry
from lockgate.connectors.kafka.ledgertopic import LedgerTopic, ledger_topic, transactional_id
from lockgate.connectors.kafka.topics import make_topic
from lockgate.connectors.kafka.transaction import TransactionLost, Transactions
from lockgate.connectors.kafka.wire import Connection, Fetched, Producer, Unanswered
from lockgate.errors import BadMachine, EpochFailed, LedgerMismatch
from support.waiting import wait_for

pytestmark = pytest.mark.system


@pytest.fixture
def job() -> str:
    return f"job-{uuid4().hex[:8]}"


@pytest.fixture
def transactions(connection: Connection, job: str) -> Transactions:
    return Transactions(connection, transactional_id(job), timeout_ms=60_000, where="test")


@pytest.fixture
def ledger(connection: Connection, job: str) -> LedgerTopic:
    ledger = LedgerTopic(connection, job, where="test")
    assert ledger.ensure([])
    return ledger


def entry(number: int) -> Entry:
    return Entry(run="run", query="query", epoch=number, digest=f"digest-{number}", at="now")


def write(ledger: LedgerTopic, transactions: Transactions, number: int) -> Producer:
    producer = transactions.begin()
    ledger.read()  # as the protocol has it: fenced, then read, then written
    transactions.add(producer, [ledger.place])
    ledger.write(entry(number), producer)
    return producer


def commit(ledger: LedgerTopic, transactions: Transactions, number: int) -> None:
    transactions.end(write(ledger, transactions, number), is_commit=True)


def delete(connection: Connection, name: str) -> None:
    connection.admin.delete_topics([name])
    wait_for("the end of the topic", lambda: not connection.shapes([name], is_fresh=True))


def test_the_last_committed_entry_is_read(ledger: LedgerTopic, transactions: Transactions) -> None:
    assert ledger.read() is None
    assert ledger.peek() is None
    for number in range(3):
        commit(ledger, transactions, number)
        assert ledger.read() == entry(number)
    transactions.wait_until_complete()
    assert ledger.peek() == entry(2)


def test_an_entry_that_does_not_stand_behind_what_was_read_ends_the_try(
    ledger: LedgerTopic, transactions: Transactions, job: str
) -> None:
    """As after a read from a broker that leads no more; here somebody else writes in between."""
    commit(ledger, transactions, 0)
    assert ledger.read() == entry(0)
    commit(LedgerTopic(ledger.connection, job, where="test"), transactions, 1)
    producer = transactions.begin()
    transactions.add(producer, [ledger.place])
    with pytest.raises(EpochFailed, match="but the next entry is at"):
        ledger.write(entry(2), producer)
    transactions.end(producer, is_commit=False)
    assert ledger.read() == entry(1)


def test_an_aborted_entry_is_not_seen(ledger: LedgerTopic, transactions: Transactions, job: str) -> None:
    commit(ledger, transactions, 0)
    for number in (1, 2):
        transactions.end(write(ledger, transactions, number), is_commit=False)
    assert ledger.read() == entry(0)
    transactions.wait_until_complete()
    fresh = LedgerTopic(ledger.connection, job, where="test")
    assert fresh.read() == fresh.peek() == entry(0)
    commit(ledger, transactions, 3)
    transactions.end(write(ledger, transactions, 4), is_commit=False)
    assert ledger.read() == fresh.read() == entry(3)


def test_hundreds_of_entries_are_read_from_the_start_and_on_from_the_last_position(
    ledger: LedgerTopic, transactions: Transactions, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = time.monotonic()
    count = 0
    while count < 300 and (count < 120 or time.monotonic() - begun < 8):
        producer = write(ledger, transactions, count)
        transactions.end(producer, is_commit=count % 7 != 6)
        count += 1
    last = max(number for number in range(count) if number % 7 != 6)
    fetched: list[int] = []
    fetch = ledger.connection.fetch

    def in_small_pieces(place: Any, offset: int, **how: Any) -> Fetched:
        fetched.append(offset)
        return fetch(place, offset, **{**how, "max_bytes": 2000})

    monkeypatch.setattr(ledger.connection, "fetch", in_small_pieces)
    fresh = LedgerTopic(ledger.connection, job, where="test")
    assert fresh.read() == entry(last)
    assert len(fetched) > 10, "it took many pieces"
    assert fresh.peek() == entry(last)
    until = fresh._position
    commit(ledger, transactions, count)
    fetched.clear()
    assert fresh.read() == entry(count)
    assert min(fetched) == until


def test_a_read_waits_until_the_open_transaction_is_ended(
    ledger: LedgerTopic, transactions: Transactions, connection: Connection
) -> None:
    commit(ledger, transactions, 0)
    producer = write(ledger, transactions, 1)
    found: list[Entry | None] = []
    reader = threading.Thread(target=lambda: found.append(ledger.read()))
    reader.start()
    reader.join(timeout=1.0)
    assert reader.is_alive(), "the last stable offset is behind the high watermark"
    assert LedgerTopic(connection, ledger._job, where="test").peek() == entry(0), "a peek waits for nobody"
    transactions.end(producer, is_commit=True)
    reader.join(timeout=20)
    assert found == [entry(1)]


def test_a_read_that_waits_too_long_says_what_holds_it_back(
    ledger: LedgerTopic, transactions: Transactions, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = write(ledger, transactions, 0)
    monkeypatch.setattr(connection, "settings", replace(connection.settings, delivery_timeout_ms=300))
    with pytest.raises(EpochFailed, match="a transaction is still open in it") as caught:
        ledger.read()
    assert "lockgate transactions list" in caught.value.fix
    transactions.end(producer, is_commit=False)


def test_an_entry_of_a_fenced_writer_is_refused(ledger: LedgerTopic, transactions: Transactions) -> None:
    old = write(ledger, transactions, 0)
    transactions.begin()
    with pytest.raises(TransactionLost, match="the marker was refused: INVALID_PRODUCER_EPOCH"):
        ledger.write(entry(1), old)
    assert ledger.read() is None


def test_an_entry_outside_of_the_transaction_is_refused(ledger: LedgerTopic, transactions: Transactions) -> None:
    with pytest.raises(TransactionLost, match="the marker was refused"):
        ledger.write(entry(0), transactions.begin())


@pytest.mark.parametrize("is_made_anew", [False, True], ids=["deleted", "made anew, empty"])
def test_a_ledger_that_was_taken_away_stops_the_job(
    is_made_anew: bool, ledger: LedgerTopic, transactions: Transactions, connection: Connection, job: str
) -> None:
    commit(ledger, transactions, 0)
    assert ledger.read() == entry(0)
    transactions.wait_until_complete()
    delete(connection, ledger.name)
    if is_made_anew:
        make_topic(connection, ledger.name, partitions=1, where="test")
    with pytest.raises(LedgerMismatch, match="has lost records" if is_made_anew else "is gone") as caught:
        ledger.read()
    assert f"lockgate ledger set {job}" in caught.value.fix
    if not is_made_anew:
        with pytest.raises(LedgerMismatch, match="is gone"):
            ledger.write(entry(1), Producer(0, 0))
        assert not connection.shapes([ledger.name], is_fresh=True), "nothing made it by asking"


def test_a_deleted_ledger_is_noticed_although_its_leader_is_remembered(
    ledger: LedgerTopic, transactions: Transactions, connection: Connection
) -> None:
    commit(ledger, transactions, 0)
    ledger.read()
    transactions.wait_until_complete()
    remembered = connection.shapes([ledger.name])
    delete(connection, ledger.name)
    connection._leaders.update(remembered)
    with pytest.raises(LedgerMismatch, match="is gone"):
        ledger.read()
    connection._leaders.update(remembered)
    with pytest.raises(LedgerMismatch, match="is gone"):
        ledger.peek()


def test_a_ledger_is_never_made_by_looking_for_it(connection: Connection, job: str) -> None:
    """The broker of the tests makes a topic for whoever asks for one without saying that he does not want it."""
    ledger = LedgerTopic(connection, job, where="test")
    assert not ledger.exists
    looks: list[Callable[[], object]] = [ledger.read, ledger.peek, lambda: ledger.write(entry(0), Producer(0, 0))]
    for look in looks:
        with pytest.raises(LedgerMismatch, match="is gone"):
            look()
    assert ledger_topic(job) not in connection.topic_names()


def test_a_ledger_is_made_with_the_settings_it_needs_and_found_again(connection: Connection, job: str) -> None:
    output = f"out-{uuid4().hex[:8]}"
    make_topic(connection, output, partitions=3, configs={"min.insync.replicas": "1"}, where="test")
    ledger = LedgerTopic(connection, job, where="test")
    assert ledger.ensure([output])
    assert not ledger.ensure([output])
    shape = connection.shapes([ledger.name])[ledger.name]
    configs = connection.configs(topics=[ledger.name])[ledger.name]
    assert (shape.partitions, shape.replication) == (1, 1)
    assert configs["cleanup.policy"] == "compact"
    assert configs["unclean.leader.election.enable"] == "false"
    assert configs["min.insync.replicas"] == "1"


@pytest.mark.parametrize(
    ("partitions", "configs", "what"),
    [
        (1, {"cleanup.policy": "delete"}, "cleanup.policy=delete"),
        (1, {"cleanup.policy": "compact,delete"}, "cleanup.policy=compact,delete"),
        (1, {"cleanup.policy": "compact", "unclean.leader.election.enable": "true"}, "unclean.leader.election"),
        (2, {"cleanup.policy": "compact"}, "2 partitions"),
    ],
)
def test_a_topic_that_may_forget_what_is_committed_is_refused(
    partitions: int, configs: dict[str, str], what: str, connection: Connection, job: str
) -> None:
    make_topic(connection, ledger_topic(job), partitions=partitions, configs=configs, where="test")
    with pytest.raises(BadMachine, match=what) as caught:
        LedgerTopic(connection, job, where="test").ensure([])
    assert "cleanup.policy=compact" in caught.value.fix


def test_an_answer_of_a_broker_that_leads_no_more_is_not_an_empty_ledger(
    ledger: LedgerTopic, transactions: Transactions, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(ledger, transactions, 0)
    transactions.wait_until_complete()
    fetch, said = connection.fetch, ["6", "silence", "3"]

    def by_and_by(place: Any, offset: int, **how: Any) -> Fetched:
        if not said:
            return fetch(place, offset, **how)
        if said.pop(0) == "silence":
            raise Unanswered("the line is dead")
        return Fetched(6, -1, -1, b"", ())

    monkeypatch.setattr(connection, "fetch", by_and_by)
    assert ledger.peek() == entry(0)
    said += ["6", "silence", "3"]
    assert ledger.read() == entry(0)


def test_a_marker_is_written_once_although_answers_are_lost(
    ledger: LedgerTopic, transactions: Transactions, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = transactions.begin()
    transactions.add(producer, [ledger.place])
    ask, look, lost = connection.ask, connection.shapes, ["produce", "produce"]

    def lose(request: Any, **how: Any) -> Any:
        answer = ask(request, **how)
        if lost and "ProduceRequest" in type(request).__name__:
            lost.pop()
            raise Unanswered("the line is dead")
        return answer

    def look_in_vain(topics: Any, *, is_fresh: bool = False) -> Any:
        if is_fresh and lost:
            raise Unanswered("nobody is there")
        return look(topics, is_fresh=is_fresh)

    monkeypatch.setattr(connection, "ask", lose)
    monkeypatch.setattr(connection, "shapes", look_in_vain)
    ledger.write(entry(0), producer)
    transactions.end(producer, is_commit=True)
    transactions.begin()  # fenced before it is read, as it always is: then the end of the transaction is there too
    assert ledger.read() == entry(0)
    assert ledger._position == 2, "one record and the end of its transaction"
