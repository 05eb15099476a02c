"""Kafka is away: who asks for the health is told, and so is whoever reads along, once when it begins and ends."""

import threading

import pytest

from lockgate.presenter.reachability import Asking, Reachability


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_short_absence_is_nothing(clock: Clock) -> None:
    told: list[str] = []
    reach = Reachability(10.0, clock, told.append)
    clock.now += 9
    reach.note("broker down")
    assert reach.trouble() is None
    reach.note(None)
    clock.now += 9
    assert reach.trouble() is None
    assert told == []


def test_a_long_absence_is_reported_once_when_it_begins_and_once_when_it_ends(clock: Clock) -> None:
    told: list[str] = []
    reach = Reachability(10.0, clock, told.append)
    for _ in range(4):
        clock.now += 5
        reach.note("broker down")
    assert reach.trouble() == "Kafka has not answered for 20 s: broker down"
    reach.note(None)
    assert reach.trouble() is None
    reach.note(None)
    assert told == ["Kafka does not answer: broker down", "Kafka answers again, after 20 s"]
    clock.now += 11
    reach.note("broker down")
    assert len(told) == 3, "the next absence is news again"


def test_without_questions_there_is_no_health_to_report(clock: Clock) -> None:
    reach = Reachability(10.0, clock, lambda line: None)
    clock.now += 11
    assert reach.trouble() == "Kafka has not answered for 11 s"


def test_asking_continues_until_it_is_stopped(clock: Clock) -> None:
    reach = Reachability(10.0, clock, lambda line: None)
    answers = iter(["broker down", None])
    is_asked = threading.Event()

    def ask() -> str | None:
        clock.now += 11
        answer = next(answers, None)
        if answer is None:
            is_asked.set()
        return answer

    asking = Asking(ask, reach, every=0.001)
    assert is_asked.wait(30)
    asking.stop()
    assert reach.trouble() is None
