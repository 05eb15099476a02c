"""The newest answer of each transaction: there at once, waited for where it may come, and not kept for ever."""

import threading
import time

import pytest

from lockgate.presenter.answers import Answer, Answers


def answer(id: str = "t1", revision: int = 1, missing: tuple[str, ...] = ("amount",)) -> Answer:
    return Answer(id=id, revision=revision, scores={"place": 0.4}, missing=missing, arrived=100.0, answered=100.018)


@pytest.fixture
def answers() -> Answers:
    return Answers(held_max=3)


def get(answers: Answers, id: str, seconds: float = 0.0, *, is_under_way: bool = False) -> Answer | None:
    return answers.get(id, seconds=seconds, is_under_way=lambda _: is_under_way)


def test_an_unknown_transaction_is_not_found_when_the_time_is_over(answers: Answers) -> None:
    assert get(answers, "t9", 0.01) is None
    answers.put(answer(id="t9"))
    assert get(answers, "t9") is not None


def test_what_may_be_coming_is_reported_when_it_comes(answers: Answers) -> None:
    later = threading.Timer(0.05, answers.put, [answer()])
    later.start()
    began = time.monotonic()
    assert get(answers, "t1", 30.0) is not None
    assert time.monotonic() - began < 20.0, "and not when the time is over"
    later.join()


def test_what_is_under_way_is_waited_for_however_long_it_takes(answers: Answers) -> None:
    later = threading.Timer(0.2, answers.put, [answer()])
    later.start()
    assert get(answers, "t1", 0.001, is_under_way=True) is not None
    later.join()


def test_what_arrives_during_a_wait_is_waited_for_from_then_on(answers: Answers) -> None:
    came = time.monotonic() + 0.05
    later = threading.Timer(0.2, answers.put, [answer()])
    later.start()
    assert answers.get("t1", seconds=0.1, is_under_way=lambda _: time.monotonic() > came) is not None
    later.join()


def test_it_is_known_whether_a_transaction_was_answered(answers: Answers) -> None:
    assert not answers.has("t1")
    answers.put(answer())
    assert answers.has("t1")


def test_the_oldest_answers_make_room(answers: Answers) -> None:
    for number in range(5):
        answers.put(answer(id=str(number)))
    assert [get(answers, str(number)) is not None for number in range(5)] == [False, False, True, True, True]
