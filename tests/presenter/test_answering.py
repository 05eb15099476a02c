"""Who asks for a transaction gets its newest answer, waits for it as long as it may take, and else is told so."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lockgate.presenter.answering import Answering, Answers, Desk
from lockgate.presenter.figures import METRICS, Tally
from lockgate.presenter.gathering import Answer
from lockgate.runtime.metrics.prometheus import page_of
from lockgate.runtime.metrics.server import listen


def answer(id: str = "t1", revision: int = 1, missing: tuple[str, ...] = ("amount",)) -> Answer:
    return Answer(id=id, revision=revision, scores={"place": 0.4}, missing=missing, arrived=100.0, answered=100.018)


@pytest.fixture
def answers() -> Answers:
    return Answers(held_max=3)


@pytest.fixture
def troubles() -> list[str]:
    """What is wrong; empty where all is well."""
    return []


@pytest.fixture
def client(answers: Answers, troubles: list[str]) -> Iterator[http.client.HTTPConnection]:
    tally = Tally(("amount", "place"))
    page = page_of("presenter", tally.figures, METRICS)
    desk = Desk(
        answers, patience_seconds=5.0, facts=tally.facts, metrics=page, trouble=lambda: next(iter(troubles), None)
    )
    listening = listen("0")
    port = listening.getsockname()[1]
    answering = Answering(listening, desk)
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        yield client
    finally:
        client.close()
        answering.stop()


def ask(client: http.client.HTTPConnection, path: str) -> tuple[int, Any]:
    client.request("GET", path)
    response = client.getresponse()
    content = response.read()
    is_json = response.headers["Content-Type"] == "application/json"
    return response.status, json.loads(content) if is_json else content.decode()


def test_the_newest_answer_is_told(client: http.client.HTTPConnection, answers: Answers) -> None:
    answers.put(answer())
    status, told = ask(client, "/transactions/t1")
    assert status == 200
    assert (told["revision"], told["is_partial"], told["missing"]) == (1, True, ["amount"])
    answers.put(answer(revision=2, missing=()))
    status, told = ask(client, "/transactions/t1")
    assert (told["revision"], told["is_final"]) == (2, True)


def test_a_transaction_under_way_is_waited_for(client: http.client.HTTPConnection, answers: Answers) -> None:
    later = threading.Timer(0.05, answers.put, [answer(id="a b")])
    later.start()
    began = time.monotonic()
    status, told = ask(client, "/transactions/a%20b")
    assert (status, told["id"]) == (200, "a b")
    assert time.monotonic() - began < 4.0, "it is told when it comes, and not when the time is over"
    later.join()


def test_what_nobody_knows_is_not_found_when_the_time_is_over(answers: Answers) -> None:
    assert answers.get("t9", seconds=0.01) is None
    answers.put(answer(id="t9"))
    assert answers.get("t9", seconds=0.0) is not None


def test_it_is_known_whether_the_full_answer_is_out(answers: Answers) -> None:
    assert not answers.has_final("t1")
    answers.put(answer())
    assert not answers.has_final("t1")
    answers.put(answer(revision=2, missing=()))
    assert answers.has_final("t1")


def test_the_oldest_answers_make_room(answers: Answers) -> None:
    for number in range(5):
        answers.put(answer(id=str(number)))
    assert [answers.get(str(number), seconds=0.0) is not None for number in range(5)] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_figures_and_health_are_told(client: http.client.HTTPConnection) -> None:
    assert ask(client, "/health") == (200, {"status": "working"})
    status, told = ask(client, "/figures")
    assert (status, told["transactions"]) == (200, 0)
    status, page = ask(client, "/metrics")
    assert status == 200
    assert 'lockgate_presenter_transactions_total{lockgate_job="presenter"} 0.0' in page
    assert ask(client, "/elsewhere")[0] == 404


def test_health_says_what_is_wrong(client: http.client.HTTPConnection, troubles: list[str]) -> None:
    troubles.append("Kafka has not answered for 12 s")
    assert ask(client, "/health") == (503, {"status": "not reading", "reason": "Kafka has not answered for 12 s"})
    troubles.clear()
    assert ask(client, "/health")[0] == 200
