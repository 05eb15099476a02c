"""The presenter beside a real Kafka, as a process of its own: answers in time, partial and full, and a clean end."""

import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from lockgate.cli.main import main
from lockgate.kafka.topics import create_topics

PATIENCE = 60.0


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
    places = ["--servers", "127.0.0.1:1", "--transactions", "payments", "--results", "results"]
    assert main(["present", *places, *words]) == 2
    assert "--score" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "word"), [("--deadline", "soon"), ("--listen", "nowhere")])
def test_a_deadline_or_a_place_that_is_none_is_refused(
    option: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--servers", "127.0.0.1:1", "--transactions", "payments", "--results", "results", "--score", "a=b"]
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert main(["present", *places, option, word]) == 2
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert option in capsys.readouterr().err


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
            send("transactions", {"id": "t1", "card": "c1"})
            send("place", {"id": "t1", "score": 0.9})
            status, told = wait_for(lambda: ask("/transactions/t1"), lambda found: found[0] == 200)
            assert (told["revision"], told["is_partial"], told["missing"]) == (1, True, ["amount"])
            assert told["scores"] == {"place": 0.9}
            assert told["answered_ms"] - told["arrived_ms"] >= 198

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
