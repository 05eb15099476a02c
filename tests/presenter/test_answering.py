"""Who asks for a transaction gets its newest answer, and is told where nobody knows it; and questions are counted."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from lockgate.presenter.answering import Answering, AnswerSource
from lockgate.presenter.answers import Answer
from lockgate.presenter.figures import METRICS, Tally
from lockgate.runtime.metrics.prometheus import page_of
from lockgate.runtime.metrics.server import listen


def answer(id: str = "t1", revision: int = 1, missing: tuple[str, ...] = ("amount",)) -> Answer:
    return Answer(id=id, revision=revision, scores={"place": 0.4}, missing=missing, arrived=100.0, answered=100.018)


@pytest.fixture
def answers() -> dict[str, Answer]:
    """What is known."""
    return {}


@pytest.fixture
def tally() -> Tally:
    return Tally(("amount", "place"))


@pytest.fixture
def troubles() -> list[str]:
    """What is wrong; empty where all is well."""
    return []


@pytest.fixture
def client(answers: dict[str, Answer], tally: Tally, troubles: list[str]) -> Iterator[http.client.HTTPConnection]:
    source = AnswerSource(
        ask=answers.get,
        asked=tally.note_question,
        facts=tally.facts,
        metrics=page_of("presenter", tally.figures, METRICS),
        trouble=lambda: next(iter(troubles), None),
    )
    listening = listen("0")
    port = listening.getsockname()[1]
    answering = Answering(listening, source)
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


def test_the_newest_answer_is_served(client: http.client.HTTPConnection, answers: dict[str, Answer]) -> None:
    answers["t1"] = answer()
    status, told = ask(client, "/transactions/t1")
    assert status == 200
    assert (told["revision"], told["is_partial"], told["missing"]) == (1, True, ["amount"])
    answers["t1"] = answer(revision=2, missing=())
    status, told = ask(client, "/transactions/t1")
    assert (told["revision"], told["is_final"]) == (2, True)


def test_an_id_may_have_any_characters(client: http.client.HTTPConnection, answers: dict[str, Answer]) -> None:
    answers["a b/c"] = answer(id="a b/c")
    status, told = ask(client, "/transactions/a%20b%2Fc?why=curious")
    assert (status, told["id"]) == (200, "a b/c")


def test_an_unknown_transaction_is_not_found(client: http.client.HTTPConnection) -> None:
    status, told = ask(client, "/transactions/t9")
    assert (status, told["id"]) == (404, "t9")
    assert "ask the result store" in told["reason"]


def test_questions_are_counted_by_what_was_known_and_timed(
    client: http.client.HTTPConnection, answers: dict[str, Answer], tally: Tally
) -> None:
    answers["t1"] = answer()
    for id in ("t1", "t9", "t1"):
        ask(client, f"/transactions/{id}")
    _, page = ask(client, "/metrics")
    assert 'lockgate_presenter_questions_total{answer="known",lockgate_job="presenter"} 2.0' in page
    assert 'lockgate_presenter_questions_total{answer="unknown",lockgate_job="presenter"} 1.0' in page
    assert 'lockgate_presenter_question_seconds{lockgate_job="presenter",quantile="0.99"}' in page
    assert tally.facts()["questions"] == {"known": 2, "unknown": 1}
    assert tally.facts()["question"]["count"] == 3


def test_figures_and_health_are_served(client: http.client.HTTPConnection) -> None:
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
