"""The presenter beside a real Kafka, as a process of its own: answers in time, partial and full, and a clean end."""

import contextlib
import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from lockgate.cli.main import main
from lockgate.kafka.topics import create_topics
from lockgate.presenter.gathering import Limits
from lockgate.presenter.presenter import Places, Presenter
from lockgate.services.stack import Stack

PATIENCE = 60.0
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
    assert option in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["sasl.password"], "'sasl.password' is no setting with a value"),
        (["=secret"], "'' is no setting with a value"),
        (["group.id=mine"], "'group.id' is the presenter's own"),
        (["bootstrap.servers=elsewhere:1"], "fix:   --servers HOST:PORT"),
        (["client.id=a", "client.id=b"], "'client.id' is set twice"),
        (["sasl.passwort=secret"], 'No such configuration property: "sasl.passwort"'),
        (["security.protocol=secret"], 'for configuration property "security.protocol"'),
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


# -- what records do, without Kafka -----------------------------------------------------------------------------------


class Moment:
    """A clock that stands still until it is moved."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def presenter_at(moment: Moment) -> Presenter:
    places = Places("127.0.0.1:1", "transactions", {"amount": "scores-amount"}, "results")
    return Presenter(places, Limits(kept=5.0), clock=moment)


@pytest.mark.parametrize("value", [None, b"no JSON", rb'{"id": "\ud800"}', b'{"id": null}', b"[" * 100_000])
def test_a_record_that_cannot_be_read_is_counted_and_ends_nothing(value: bytes | None) -> None:
    presenter = presenter_at(Moment())
    for topic in ("transactions", "scores-amount"):
        assert presenter.take(topic, value, stamp=100.0) is None
    assert presenter.take("scores-amount", b'{"id": "t1", "score": NaN}', stamp=100.0) is None
    assert presenter.tally.unreadable == {"transactions": 1, "scores-amount": 2}
    assert presenter.take("transactions", b'{"id": "t1"}', stamp=100.0) is None
    answer = presenter.take("scores-amount", b'{"id": "t1", "score": 0.5}', stamp=100.0)
    assert answer is not None
    assert answer.scores == {"amount": 0.5}


def test_a_transaction_that_comes_again_after_it_was_forgotten_does_not_replace_its_full_answer() -> None:
    moment = Moment()
    presenter = presenter_at(moment)
    presenter.take("transactions", b'{"id": "t1"}', stamp=100.0)
    answer = presenter.take("scores-amount", b'{"id": "t1", "score": 0.5}', stamp=100.0)
    assert answer is not None
    presenter.answers.put(answer)
    moment.now = 200.0
    presenter.cut()
    assert presenter.tally.forgotten == {"full": 1}
    assert presenter.take("transactions", b'{"id": "t1"}', stamp=200.0) is None
    moment.now = 201.0
    assert presenter.cut() == []
    assert presenter.tally.repeated == {"transaction": 1}
    assert presenter.tally.transactions == 1


def test_a_presenter_that_does_not_read_is_not_well() -> None:
    assert presenter_at(Moment()).trouble() == "it has not begun to read, or has ended"


# -- beside Kafka -----------------------------------------------------------------------------------------------------


@pytest.mark.system
def test_transactions_are_answered_in_part_at_the_deadline_and_in_full_later(kafka: str, tmp_path: Path) -> None:
    tag = uuid4().hex[:8]
    topics = {name: f"{name}-{tag}" for name in ("transactions", "amount", "place", "results")}
    create_topics(kafka, list(topics.values()), partitions=2, where="test")
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 0})

    def send(name: str, value: dict[str, Any] | bytes) -> None:
        if isinstance(value, bytes):
            producer.produce(topics[name], value)
        else:
            producer.produce(topics[name], json.dumps(value).encode(), str(value["id"]).encode())
        assert producer.flush(PATIENCE) == 0

    command = [sys.executable, "-m", "lockgate.cli.main", "present", "--json", "--servers", kafka]
    command += ["--transactions", topics["transactions"], "--results", topics["results"], "--deadline", "200 ms"]
    command += ["--score", f"amount={topics['amount']}", "--score", f"place={topics['place']}"]
    send("transactions", {"id": "before"})
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())["address"]
            client = http.client.HTTPConnection(address.removeprefix("http://"), timeout=PATIENCE)

            def ask(path: str) -> tuple[int, Any]:
                client.request("GET", path)
                response = client.getresponse()
                return response.status, json.loads(response.read())

            # In part at the deadline: whoever asks meanwhile waits for it.
            send("place", {"id": "t1", "score": 0.9})
            send("transactions", {"id": "t1", "card": "c1"})
            status, told = wait_for(lambda: ask("/transactions/t1"), lambda found: found[0] == 200)
            assert (told["revision"], told["is_partial"], told["missing"]) == (1, True, ["amount"])
            assert told["scores"] == {"place": 0.9}
            assert told["answered_ms"] - told["arrived_ms"] >= 196

            # In full when the last score comes, which replaces it; what comes again, or is broken, changes nothing.
            send("amount", {"id": "t1", "score": 0.25})
            send("amount", {"id": "t1", "score": 0.75})
            send("transactions", {"id": "t1", "card": "c1"})
            send("place", b"no JSON")
            send("place", {"id": "t1", "score": "high"})
            status, told = wait_for(lambda: ask("/transactions/t1"), lambda found: bool(found[1]["is_final"]))
            assert (status, told["revision"], told["risk"]) == (200, 2, 0.9)
            assert told["scores"] == {"amount": 0.25, "place": 0.9}

            # In full at once, and nobody knows what was never sent, or was there before it began.
            for name in ("transactions", "amount", "place"):
                send(name, {"id": "t2", "score": 0.5})
            status, told = wait_for(
                lambda: ask("/transactions/t2"), lambda found: found[0] == 200 and found[1]["is_final"]
            )
            assert told["scores"] == {"amount": 0.5, "place": 0.5}
            assert ask("/transactions/t3")[0] == 404
            assert ask("/transactions/before")[0] == 404
            assert ask("/health") == (200, {"status": "working"})
            _, figures = wait_for(lambda: ask("/figures"), lambda found: found[1]["repeated"].get("transaction") == 1)
            client.close()
            process.send_signal(signal.SIGTERM)
            facts = json.loads(process.stdout.readline())
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
    assert facts["transactions"] == facts["full"] + facts["partial"] == 2
    assert facts["repeated"] == {"score": 1, "transaction": 1}
    assert facts["unreadable"] == {topics["place"]: 2}
    assert facts["score_written"]["place"]["count"] == facts["score_seen"]["amount"]["count"] == 2
    assert figures["transactions"] == 2

    # The result topic has them by id, the full one last.
    published = read(kafka, topics["results"])
    assert all(key == told["id"] for key, told in published)
    assert [(told["revision"], told["is_partial"]) for key, told in published if key == "t1"] == [(1, True), (2, False)]
    assert [told["is_final"] for key, told in published if key == "t2"][-1] is True
    assert {key for key, _ in published} == {"t1", "t2"}


@pytest.mark.system
def test_a_presenter_says_so_while_kafka_is_away(tmp_path: Path) -> None:
    own = Stack(tmp_path / "services", brokers=1)
    own.up(postgres=False)
    try:
        servers = own.status().kafka.servers or ""
        topics = ["transactions", "amount", "results"]
        create_topics(servers, topics, partitions=1, where="test")
        command = [sys.executable, "-m", "lockgate.cli.main", "present", "--json", "--servers", servers]
        command += ["--transactions", "transactions", "--score", "amount=amount", "--results", "results"]
        command += ["--client", "client.id=teller"]
        errors = tmp_path / "errors"
        with (
            errors.open("w") as err,
            subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=err, text=True) as process,
        ):
            try:
                assert process.stdout is not None
                address = json.loads(process.stdout.readline())["address"].removeprefix("http://")

                def health() -> tuple[int, Any]:
                    with contextlib.closing(http.client.HTTPConnection(address, timeout=PATIENCE)) as client:
                        client.request("GET", "/health")
                        response = client.getresponse()
                        return response.status, json.loads(response.read())

                assert health() == (200, {"status": "working"})
                own.kill_broker(1)
                _, told = wait_for(health, lambda found: found[0] == 503)
                assert told["reason"].startswith("Kafka has not answered for ")
                own.up(postgres=False)
                wait_for(health, lambda found: found[0] == 200)
                process.send_signal(signal.SIGTERM)
                assert process.wait(PATIENCE) == 0
            finally:
                process.kill()
        begins, ends = errors.read_text().splitlines()
        assert begins.startswith("Kafka does not answer: partition 0 of topic 'transactions': ")
        assert ends.startswith("Kafka answers again, after ")
    finally:
        own.down()


@pytest.mark.system
def test_a_topic_that_is_not_there_is_refused(kafka: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lockgate.cli.main", "present", "--servers", kafka, "--transactions", "nowhere"]
    command += ["--score", "amount=neither", "--results", "no-results"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 2
    assert "'nowhere' is not there" in done.stderr


def wait_for(look: Callable[[], tuple[int, Any]], is_there: Callable[[tuple[int, Any]], bool]) -> tuple[int, Any]:
    ends = time.monotonic() + PATIENCE
    while not is_there(found := look()):
        assert time.monotonic() < ends, found
        time.sleep(0.01)
    return found


def read(servers: str, topic: str) -> list[tuple[str, Any]]:
    """Keys and values, up to the end of the topic, in the order of each partition."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "test", "isolation.level": "read_committed"})
    try:
        partitions = consumer.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
        places = [TopicPartition(topic, number, 0) for number in partitions]
        left = sum(consumer.get_watermark_offsets(place, timeout=PATIENCE)[1] for place in places)
        consumer.assign(places)
        found = []
        while len(found) < left:
            message = consumer.poll(PATIENCE)
            assert message is not None, found
            assert message.error() is None
            found.append((message.key().decode(), json.loads(message.value())))
        return found
    finally:
        consumer.close()
