"""The presenter beside a real Kafka, as a process of its own: answers in time, partial and full, and a clean end."""

import contextlib
import http.client
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from lockgate.cli.main import main
from lockgate.cli.present import summary
from lockgate.connectors.kafka.settings import read_settings
from lockgate.connectors.kafka.topics import make_topic
from lockgate.connectors.kafka.wire import Connection
from lockgate.errors import Failed
from lockgate.lab.services.stack import Stack
from lockgate.presenter import presenter as module
from lockgate.presenter.answers import Answer
from lockgate.presenter.figures import Tally
from lockgate.presenter.gathering import Limits
from lockgate.presenter.presenter import Places, Presenter
from support import records
from support.cli import call
from support.process import LOCKGATE, Process, running
from support.records import as_bytes, make_topics, unique
from support.waiting import PATIENCE_SECONDS, wait_for

PLACES = ["--servers", "127.0.0.1:1", "--transactions", "payments", "--results", "results"]


@pytest.mark.parametrize(
    "words",
    [
        ["--score", "amount"],
        ["--score", "=scores"],
        ["--score", "amount=one", "--score", "amount=two"],
        ["--score", "amount=one", "--score", "place=one"],
        ["--score", "amount=payments"],
    ],
)
def test_an_analyser_without_a_topic_of_its_own_is_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["present", *PLACES, *words]) == 2
    assert "--score" in capsys.readouterr().err


@pytest.mark.parametrize("topic", ["payments", "scores"])
def test_answers_do_not_go_where_something_is_read(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["present", *PLACES, "--score", "amount=scores", "--results", topic]) == 2
    error = capsys.readouterr().err
    assert f"topic '{topic}' is one that the presenter reads" in error
    assert "where: --results" in error


@pytest.fixture
def handlers() -> Iterator[None]:
    """The signal handlers of the tests, given back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("option", "word"), [("--deadline", "soon"), ("--deadline", "0 s"), ("--listen", "nowhere")])
@pytest.mark.usefixtures("handlers")
def test_a_deadline_or_a_place_that_is_none_is_refused(
    option: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["present", *PLACES, "--score", "a=b", option, word]) == 2
    told = capsys.readouterr().err
    assert option in told
    assert "declared at" not in told, "nobody has written a line of Python"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["sasl.password"], "'sasl.password' is no setting with a value"),
        (["=secret"], "'' is no setting with a value"),
        (["group.id=mine"], "'group.id' is the presenter's own"),
        (["bootstrap.servers=elsewhere:1"], "fix:   --servers HOST:PORT"),
        (["metadata.broker.list=elsewhere:1"], "fix:   --servers HOST:PORT"),
        (["queue.buffering.max.ms=900"], "'queue.buffering.max.ms' is the presenter's own"),
        (
            ["transactional.id=x"],
            "'transactional.id' is not for a presenter: answers are written without a transaction",
        ),
        (["delivery.report.only.error=true"], "'delivery.report.only.error' is not for a presenter: the report"),
        (["error_cb=print"], "'error_cb' is not known for the presenter"),
        (["client.id=a", "client.id=b"], "'client.id' is set twice"),
        (["sasl.passwort=secret"], "'sasl.passwort' is not known for the presenter"),
        (["acks=many"], 'for configuration property "request.required.acks"'),
        (["security.protocol=TLS"], "security.protocol='TLS' is not known"),
        (["security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN"], "sasl.username and sasl.password must be set"),
    ],
)
@pytest.mark.usefixtures("handlers")
def test_a_setting_that_the_client_does_not_take_is_refused(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [one for word in words for one in ("--client", word)]
    assert main(["present", *PLACES, "--score", "a=b", *settings]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert "--client" in error


# -- without Kafka ----------------------------------------------------------------------------------------------------


class Moment:
    """A clock that stands still until it is moved."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def presenter_at(clock: Callable[[], float], limits: Limits | None = None) -> Presenter:
    places = Places("127.0.0.1:1", "transactions", {"amount": "scores-amount", "place": "scores-place"}, "results")
    return Presenter(places, limits or Limits(), clock=clock)


@pytest.mark.parametrize("value", [None, b"no JSON", rb'{"id": "\ud800"}', b'{"id": null}', b"[" * 100_000])
def test_a_record_that_cannot_be_read_is_counted_and_ends_nothing(value: bytes | None) -> None:
    presenter = presenter_at(Moment())
    for topic in ("transactions", "scores-amount"):
        assert presenter.take(topic, value, stamp=100.0) is None
    assert presenter.take("scores-amount", b'{"id": "t1", "score": NaN}', stamp=100.0) is None
    assert presenter.tally.unreadable == {"transactions": 1, "scores-amount": 2}
    assert presenter.take("transactions", b'{"id": "t1"}', stamp=100.0) is None
    assert presenter.take("scores-place", b'{"id": "t1", "score": 0.25}', stamp=100.0) is None
    answer = presenter.take("scores-amount", b'{"id": "t1", "score": 0.5}', stamp=100.0)
    assert answer is not None
    assert answer.scores == {"amount": 0.5, "place": 0.25}


def test_a_question_before_the_record_arrives_is_answered_at_its_deadline() -> None:
    presenter = presenter_at(time.time)
    found: list[Answer | None] = []
    asking = threading.Thread(target=lambda: found.append(presenter.ask("t1")))
    asking.start()
    time.sleep(0.1)  # many deadlines: so long a sender may collect records
    presenter.take("transactions", b'{"id": "t1"}', stamp=time.time())
    time.sleep(0.02)
    presenter.cut()
    asking.join()
    assert found[0] is not None
    assert found[0].missing == ("amount", "place")


def test_a_question_about_a_transaction_that_arrived_waits_for_its_deadline_however_late_it_is() -> None:
    moment = Moment()
    presenter = presenter_at(moment, Limits(deadline=0.001, margin=0.0, behind=0.0))
    presenter.take("transactions", b'{"id": "t1"}', stamp=100.0)
    moment.now += 60.0
    later = threading.Timer(0.1, presenter.cut)
    later.start()
    assert presenter.ask("t1") is not None
    assert presenter.ask("t2") is None
    later.join()


def test_a_presenter_that_does_not_read_is_not_well() -> None:
    assert presenter_at(Moment()).trouble() == "it has not started to read, or has ended"


@dataclass
class Record:
    """A record that was read, or written."""

    topic_name: str
    content: dict[str, Any]
    stamp: tuple[int, int] = (TIMESTAMP_LOG_APPEND_TIME, 0)

    def topic(self) -> str:
        return self.topic_name

    def value(self) -> bytes:
        return json.dumps(self.content).encode()

    def timestamp(self) -> tuple[int, int]:
        return self.stamp

    def error(self) -> None:
        return None


class Kafka:
    """Consumer and producer of a presenter in one: has records, takes answers and reports what becomes of them."""

    def __init__(self, records: list[Record], clock: Moment, is_over: threading.Event) -> None:
        self.records, self.clock, self.is_over = records, clock, is_over
        self.count, self.is_assigned = len(records), False
        self.written: list[dict[str, Any]] = []
        self.waits: list[float] = []
        self.reports: list[tuple[dict[str, Any], Callable[[Any, Any], None]]] = []
        self.reported: Callable[[dict[str, Any]], tuple[Any, tuple[int, int]]] = lambda _: (
            None,
            (TIMESTAMP_LOG_APPEND_TIME, round(clock.now * 1000) + 1),
        )

    def list_topics(self, topic: str, timeout: float) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions={0: None, 1: None})})

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        return 0, self.count if self.is_assigned and (place.topic, place.partition) == ("transactions", 0) else 0

    def assign(self, places: list[TopicPartition]) -> None:
        """They are read from their ends; all records come behind that."""
        self.is_assigned = True

    def position(self, places: list[TopicPartition]) -> list[TopicPartition]:
        read = self.count - len(self.records)
        return [TopicPartition(place.topic, place.partition, read or OFFSET_INVALID) for place in places]

    def close(self) -> None:
        """Nothing is open."""

    def poll(self, seconds: float) -> Any:
        self.waits.append(seconds)
        if not self.records:
            self.is_over.set()
        return self.records.pop(0) if self.records else None

    def consume(self, num_messages: int, timeout: float) -> list[Record]:
        read, self.records = self.records[:num_messages], self.records[num_messages:]
        return read

    def produce(self, topic: str, value: bytes, key: bytes, on_delivery: Callable[[Any, Any], None]) -> None:
        assert (topic, json.loads(value)["id"]) == ("results", key.decode())
        self.reports.append((json.loads(value), on_delivery))

    def flush(self, seconds: float) -> int:
        for answer, on_delivery in self.reports:
            error, stamp = self.reported(answer)
            if error is None:
                self.written.append(answer)
            on_delivery(error, Record("results", answer, stamp))
        return 0


def run(presenter: Presenter, kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a presenter read all records there are, and then end."""
    producer = SimpleNamespace(produce=kafka.produce, flush=kafka.flush, poll=lambda seconds: 0)
    monkeypatch.setattr(presenter, "_clients", lambda: (kafka, kafka, producer))
    presenter.run(kafka.is_over)


def came(id: str, at: float = 100.0) -> Record:
    return Record("transactions", {"id": id}, (TIMESTAMP_LOG_APPEND_TIME, round(at * 1000)))


def test_a_question_before_the_end_is_answered_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = Moment()
    presenter = presenter_at(moment)
    kafka = Kafka([came(str(number)) for number in range(20)], moment, threading.Event())
    run(presenter, kafka, monkeypatch)
    assert [answer["id"] for answer in kafka.written] == [str(number) for number in range(20)]
    facts = presenter.tally.facts()
    assert facts["transactions"] == facts["full"] + facts["partial"] == facts["answer"]["count"] == 20
    assert (facts["missed_deadlines"], facts["unwritten"]) == (0, 0)


def test_a_question_that_was_not_read_yet_is_answered_at_the_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    moment, is_over = Moment(), threading.Event()
    presenter = presenter_at(moment)
    kafka = Kafka([came(str(number)) for number in range(5000)], moment, is_over)
    is_over.set()
    run(presenter, kafka, monkeypatch)
    assert {answer["id"] for answer in kafka.written} == {str(number) for number in range(5000)}


def test_what_is_in_an_open_transaction_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    moment, is_over = Moment(), threading.Event()
    presenter = presenter_at(moment)
    kafka = Kafka([came("t1")], moment, is_over)
    kafka.count += 7  # which nobody can read
    monkeypatch.setattr(module, "_SILENT_SECONDS", 0.01)
    is_over.set()
    run(presenter, kafka, monkeypatch)
    assert [answer["id"] for answer in kafka.written] == ["t1"]


def test_the_deadline_is_held_against_the_stamp_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = Moment()
    presenter = presenter_at(moment)
    kafka = Kafka([came("quick"), came("slow")], moment, threading.Event())
    kafka.reported = lambda answer: (None, (TIMESTAMP_LOG_APPEND_TIME, 100_020 if answer["id"] == "quick" else 100_021))
    run(presenter, kafka, monkeypatch)
    assert presenter.tally.missed == 1
    assert presenter.tally.facts()["answer"]["ms_p99"] == pytest.approx(21, rel=0.02)


def test_without_stamps_of_the_broker_the_report_is_what_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = Moment()
    presenter = presenter_at(moment)
    kafka = Kafka([came("t1")], moment, threading.Event())

    def report(answer: dict[str, Any]) -> tuple[None, tuple[int, int]]:
        moment.now = 100.030
        return None, (TIMESTAMP_CREATE_TIME, 100_000)

    kafka.reported = report
    run(presenter, kafka, monkeypatch)
    assert presenter.tally.missed == 1
    assert presenter.tally.facts()["answer"]["ms_p50"] == pytest.approx(30, rel=0.02)


def test_without_stamps_of_the_broker_reports_are_looked_for_every_few_milliseconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moment = Moment()
    kafka = Kafka([came("t1", at=99.0)], moment, threading.Event())
    run(presenter_at(moment), kafka, monkeypatch)
    assert kafka.waits == [0.05, 0.002], "an answer is on its way since the first turn"


def test_an_answer_that_cannot_be_written_is_a_missed_deadline_and_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = Moment()
    presenter = presenter_at(moment)
    kafka = Kafka([came("t1"), came("t2")], moment, threading.Event())
    error = KafkaError(KafkaError._MSG_TIMED_OUT)
    kafka.reported = lambda answer: (error if answer["id"] == "t1" else None, (TIMESTAMP_LOG_APPEND_TIME, 100_001))
    with pytest.raises(Failed, match="answers could not be written: Local: Message timed out"):
        run(presenter, kafka, monkeypatch)
    assert (presenter.tally.missed, presenter.tally.first.count) == (1, 1)


def test_an_answer_that_the_client_does_not_take_is_reported_with_its_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moment = Moment()
    kafka = Kafka([came("t1")], moment, threading.Event())

    def refuse(*_: object, **__: object) -> None:
        raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))

    monkeypatch.setattr(kafka, "produce", refuse)
    with pytest.raises(Failed) as told:
        run(presenter_at(moment), kafka, monkeypatch)
    assert "Message size too large" in told.value.what
    assert "transaction 't1', topic 'results'" in told.value.where
    assert "--client" in told.value.fix


def test_the_leaders_of_every_partition_are_asked_also_of_the_result_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def ask_once(ask: Callable[[], str | None], reach: object) -> SimpleNamespace:
        ask()
        return SimpleNamespace(stop=lambda: None)

    def wrong_with(asker: object, places: list[TopicPartition]) -> None:
        asked.extend((place.topic, place.partition) for place in places)

    monkeypatch.setattr("lockgate.presenter.presenter.Asking", ask_once)
    monkeypatch.setattr("lockgate.presenter.presenter.wrong_with", wrong_with)
    run(presenter_at(Moment()), Kafka([], Moment(), threading.Event()), monkeypatch)
    topics = ("transactions", "scores-amount", "scores-place", "results")
    assert asked == [(topic, partition) for topic in topics for partition in (0, 1)]


def test_the_summary_has_the_shares_of_partial_and_of_missed_answers() -> None:
    tally = Tally(("amount",))
    nothing = "0 transactions: 0 answered in full, 0 in part, 0 of them replaced later; 0 after the deadline"
    assert summary(tally.facts()) == nothing
    tally.transactions, tally.missed, tally.replaced = 1000, 18, 950
    tally.answers.update({"full": 40, "partial": 960})
    assert summary(tally.facts()) == (
        "1,000 transactions: 40 answered in full, 960 in part (96.0%), 950 of them replaced later; "
        "18 after the deadline (1.8%)"
    )


# -- beside Kafka -----------------------------------------------------------------------------------------------------


@pytest.mark.system
@pytest.mark.process
def test_transactions_are_answered_in_part_at_the_deadline_and_in_full_later(kafka: str, tmp_path: Path) -> None:
    topics = {name: unique(name) for name in ("transactions", "amount", "place", "results")}
    make_topics(kafka, *topics.values())

    def send(name: str, value: dict[str, Any] | bytes) -> None:
        key = None if isinstance(value, bytes) else as_bytes(value["id"])
        producer.send(topics[name], as_bytes(value), key=key).get(PATIENCE_SECONDS)

    words = ["--servers", kafka, "--transactions", topics["transactions"], "--results", topics["results"]]
    words += ["--deadline", "200 ms", "--score", f"amount={topics['amount']}", "--score", f"place={topics['place']}"]
    records.send(kafka, topics["transactions"], [{"id": "before"}])
    with records.producing(kafka) as producer, presenting(words, tmp_path) as (process, address):
        client = http.client.HTTPConnection(address, timeout=PATIENCE_SECONDS)

        def receive() -> tuple[int, Any]:
            response = client.getresponse()
            return response.status, json.loads(response.read())

        def ask(path: str) -> tuple[int, Any]:
            client.request("GET", path)
            return receive()

        # In part at the deadline: whoever asks meanwhile waits for it, and whoever has asked before it came.
        send("place", {"id": "t1", "score": 0.9})
        client.request("GET", "/transactions/t1")
        time.sleep(0.1)
        send("transactions", {"id": "t1", "card": "c1"})
        status, told = receive()
        if status == 404:  # a machine that is so busy that nobody has read it for a second
            status, told = wait_for("t1", lambda: ask("/transactions/t1"), until=lambda found: found[0] == 200)
        assert (told["revision"], told["is_partial"], told["missing"]) == (1, True, ["amount"])
        assert told["scores"] == {"place": 0.9}
        assert told["answered_ms"] - told["arrived_ms"] >= 196

        # In full when the last score comes, which replaces it; what comes again, or is broken, changes nothing.
        send("amount", {"id": "t1", "score": 0.25})
        send("amount", {"id": "t1", "score": 0.75})
        send("transactions", {"id": "t1", "card": "c1"})
        send("place", b"no JSON")
        send("place", {"id": "t1", "score": "high"})
        status, told = wait_for("t1", lambda: ask("/transactions/t1"), until=lambda found: found[1]["is_final"])
        assert (status, told["revision"], told["risk"]) == (200, 2, 0.9)
        assert told["scores"] == {"amount": 0.25, "place": 0.9}

        # In full at once, and nobody knows what was never sent, or was there before it began.
        for name in ("transactions", "amount", "place"):
            send(name, {"id": "t2", "score": 0.5})
        status, told = wait_for(
            "t2", lambda: ask("/transactions/t2"), until=lambda found: found[0] == 200 and found[1]["is_final"]
        )
        assert told["scores"] == {"amount": 0.5, "place": 0.5}
        assert ask("/transactions/t3")[0] == 404
        assert ask("/transactions/before")[0] == 404
        assert ask("/health") == (200, {"status": "working"})
        _, figures = wait_for(
            "a repetition", lambda: ask("/figures"), until=lambda found: found[1]["repeated"].get("transaction") == 1
        )
        client.close()
        facts = end(process)
    assert facts["transactions"] == facts["full"] + facts["partial"] == 2
    assert facts["repeated"] == {"score": 1, "transaction": 1}
    assert facts["unreadable"] == {topics["place"]: 2}
    assert facts["score_written"]["place"]["count"] == facts["score_seen"]["amount"]["count"] == 2
    assert figures["transactions"] == 2

    # The result topic has them by id, the full one last.
    published = [(key, told) for key, told, _ in stamped(kafka, topics["results"])]
    assert all(key == told["id"] for key, told in published)
    assert [(told["revision"], told["is_partial"]) for key, told in published if key == "t1"] == [(1, True), (2, False)]
    assert [told["is_final"] for key, told in published if key == "t2"][-1] is True
    assert {key for key, _ in published} == {"t1", "t2"}


@pytest.mark.system
@pytest.mark.process
@pytest.mark.parametrize("clock", ["LogAppendTime", "CreateTime"])
def test_a_clean_end_answers_all_that_came_and_counts_what_the_topic_has(
    clock: str, kafka: str, tmp_path: Path
) -> None:
    topics = {name: unique(name) for name in ("transactions", "amount", "results")}
    connection = Connection(read_settings(kafka, {}, where="test"), where="test")
    for name in topics.values():
        make_topic(connection, name, partitions=1, configs={"message.timestamp.type": clock}, where="test")
    connection.close()
    words = ["--servers", kafka, "--transactions", topics["transactions"], "--results", topics["results"]]
    words += ["--deadline", "2 minutes", "--score", f"amount={topics['amount']}"]
    with presenting(words, tmp_path) as (process, address):
        records.send(kafka, topics["transactions"], [{"id": number} for number in range(20)])
        client = http.client.HTTPConnection(address, timeout=PATIENCE_SECONDS)

        def look() -> tuple[int, Any]:
            client.request("GET", "/figures")
            response = client.getresponse()
            return response.status, json.loads(response.read())

        wait_for("all transactions", look, until=lambda found: found[1]["transactions"] == 20)
        client.close()
        facts = end(process)
    assert facts["transactions"] == facts["partial"] == facts["answer"]["count"] == 20
    assert (facts["missed_deadlines"], facts["unwritten"]) == (0, 0)
    published = stamped(kafka, topics["results"])
    assert {key for key, _, _ in published} == {str(number) for number in range(20)}
    if clock == "LogAppendTime":
        longest = max(stamp - told["arrived_ms"] for _, told, stamp in published)
        assert facts["answer"]["ms_p999"] == pytest.approx(longest, rel=0.02, abs=0.1)


@pytest.mark.system
@pytest.mark.process
def test_a_presenter_says_so_while_kafka_is_away(own_stack: Stack, tmp_path: Path) -> None:
    servers = own_stack.kafka.servers
    make_topics(servers, "transactions", "amount", "results", partitions=1)
    words = ["--servers", servers, "--transactions", "transactions", "--score", "amount=amount"]
    words += ["--results", "results", "--client", "client.id=teller"]
    with presenting(words, tmp_path) as (process, address):

        def health() -> tuple[int, Any]:
            with contextlib.closing(http.client.HTTPConnection(address, timeout=PATIENCE_SECONDS)) as client:
                client.request("GET", "/health")
                response = client.getresponse()
                return response.status, json.loads(response.read())

        assert health() == (200, {"status": "working"})
        own_stack.kill_broker(1)
        _, told = wait_for("trouble", health, until=lambda found: found[0] == 503)
        assert told["reason"].startswith("Kafka has not answered for ")
        own_stack.up(postgres=False)
        wait_for("the end of the trouble", health, until=lambda found: found[0] == 200)
        end(process)
    begins, ends = process.said.splitlines()
    assert begins.startswith("Kafka does not answer: partition 0 of topic 'transactions': ")
    assert ends.startswith("Kafka answers again, after ")


@pytest.mark.system
def test_a_topic_that_is_not_there_is_refused(kafka: str) -> None:
    words = ["--servers", kafka, "--transactions", "nowhere", "--score", "amount=neither", "--results", "no-results"]
    done = call("present", *words)
    assert done.status == 2
    assert "'nowhere' does not exist" in done.err


@contextlib.contextmanager
def presenting(words: list[str], tmp_path: Path) -> Iterator[tuple[Process, str]]:
    """A presenter that runs, and its address."""
    with running(*LOCKGATE, "present", "--json", *words, cwd=tmp_path) as process:
        process.wait_for("an address", lambda: process.reports)
        yield process, process.reports[0]["address"].removeprefix("http://")


def end(process: Process) -> Any:
    """What a presenter has counted, when it has ended as it was asked to."""
    assert process.end(signal.SIGTERM) == 0
    return process.reports[-1]


def stamped(servers: str, topic: str) -> list[tuple[str, Any, int]]:
    """Keys, values and stamps, up to the end of the topic, in the order of each partition."""
    return [(one.key.decode(), json.loads(one.value), one.timestamp) for one in records.read(servers, topic)]
