"""When a job is started again: by what it ended with, with growing pauses, and not more often than the hour allows."""

import random

import pytest

from lockgate.connectors.kafka.wire import NoBroker
from lockgate.connectors.kafka.writer import RecordRefused
from lockgate.errors import (
    BadJob,
    BadMachine,
    CheckpointDamaged,
    EpochFailed,
    EpochTooLong,
    Failed,
    Fenced,
    FunctionFailed,
    InvariantBroken,
    LedgerMismatch,
    LockgateError,
    OverClaim,
    RecordsGone,
    Refused,
    RowRefused,
    TimeRefused,
    TooManyLetters,
    TopicGone,
    UnparsableValue,
    Unreachable,
)
from lockgate.runtime.restarts import PERSON as DECIDE
from lockgate.runtime.restarts import ROW_FAILURES_MAX, Ended, GiveUp, Restarts

PERSON = [
    BadJob,
    OverClaim,
    Refused,
    Fenced,
    LedgerMismatch,
    CheckpointDamaged,
    TopicGone,
    RecordsGone,
    EpochTooLong,
    TimeRefused,
    TooManyLetters,
    InvariantBroken,
]


def error(kind: type[LockgateError], what: str = "it broke") -> LockgateError:
    return kind(f"{what}\nin two lines", "here", "so")


def ended(
    kind: type[LockgateError], *, epochs: int = 0, place: str | None = "from epoch 3", what: str = "it broke"
) -> Ended:
    return Ended.by(error(kind, what), Ended(why="", place=place, epochs=epochs))


@pytest.mark.parametrize("kind", PERSON)
def test_what_a_person_has_to_decide_is_not_tried_again(kind: type[LockgateError]) -> None:
    assert Restarts().after(ended(kind, epochs=5), 0.0) == GiveUp(DECIDE)


@pytest.mark.parametrize("kind", [Failed, EpochFailed, BadMachine, NoBroker])
def test_what_may_pass_is_tried_again_and_reported_in_a_line(kind: type[LockgateError]) -> None:
    one = ended(kind)
    assert isinstance(Restarts().after(one, 0.0), float)
    assert (one.why, one.place) == ("it broke", "from epoch 3")


@pytest.mark.parametrize("kind", [Refused, BadMachine, NoBroker, Unreachable])
def test_what_is_refused_before_it_ever_ran_is_refused(kind: type[LockgateError]) -> None:
    assert Restarts().after(ended(kind, place=None), 0.0) == GiveUp(DECIDE)


@pytest.mark.parametrize("kind", [BadMachine, NoBroker, Unreachable])
def test_what_does_not_answer_is_waited_for_once_it_has_run(kind: type[LockgateError]) -> None:
    restarts = Restarts()
    assert isinstance(restarts.after(ended(Failed, epochs=5), 0.0), float)
    for minute in range(200):
        assert isinstance(restarts.after(ended(kind, place=None), 60.0 * minute), float)
    assert restarts.place == "from epoch 3"


@pytest.mark.parametrize("kind", [BadMachine, NoBroker, Unreachable])
def test_what_does_not_answer_is_waited_for_by_a_new_supervisor_of_a_job_with_a_past(kind: type[LockgateError]) -> None:
    restarts = Restarts()
    one = Ended.by(error(kind), Ended(why="", has_past=True))
    for minute in range(200):
        assert isinstance(restarts.after(one, 60.0 * minute), float)
    assert not restarts.has_run, "what is done once in a life is not done yet"


def test_what_is_refused_for_another_reason_is_refused_whatever_the_past() -> None:
    past = Ended(why="", has_past=True)
    assert Restarts().after(Ended.by(error(Refused), past), 0.0) == GiveUp(DECIDE)
    assert Restarts().after(Ended(why="a bug", is_refused=True, has_past=True), 0.0) == GiveUp(DECIDE)


def test_what_a_person_has_to_decide_is_so_also_after_it_has_run() -> None:
    restarts = Restarts()
    assert isinstance(restarts.after(ended(Failed, epochs=5), 0.0), float)
    assert restarts.after(ended(Refused, place=None), 0.0) == GiveUp(DECIDE)


def test_a_failure_before_it_ever_ran_is_tried_again() -> None:
    assert isinstance(Restarts().after(ended(Failed, place=None), 0.0), float)


def test_one_that_may_not_continue_is_not_started_again_whatever_ends_it() -> None:
    told = Ended(why="", place="with what comes next", final="it would repeat events")
    assert Restarts().after(told, 0.0) == GiveUp("it would repeat events")
    assert Restarts().after(Ended.by(error(EpochFailed), told), 0.0) == GiveUp("it would repeat events")


@pytest.mark.parametrize("kind", [FunctionFailed, UnparsableValue, RowRefused, RecordRefused])
def test_a_row_that_the_code_or_the_sink_fails_on_is_tried_a_few_times(kind: type[LockgateError]) -> None:
    restarts = Restarts()
    told = [restarts.after(ended(kind, epochs=2 if number == 0 else 0), 0.0) for number in range(ROW_FAILURES_MAX)]
    assert [isinstance(one, GiveUp) for one in told] == [False] * (ROW_FAILURES_MAX - 1) + [True]


def test_failures_on_rows_with_epochs_in_between_do_not_add_up() -> None:
    restarts = Restarts()
    told = [restarts.after(ended(FunctionFailed, epochs=1), 0.0) for _ in range(3 * ROW_FAILURES_MAX)]
    assert not any(isinstance(one, GiveUp) for one in told)


def test_the_same_failure_again_and_again_is_the_end() -> None:
    restarts = Restarts(same_failures_max=4)
    assert isinstance(restarts.after(ended(Failed, what="another one"), 0.0), float)
    told = [restarts.after(ended(Failed), 0.0) for _ in range(4)]
    assert [isinstance(one, GiveUp) for one in told] == [False] * 3 + [True]
    assert told[-1] == GiveUp("it failed in the same way 4 times in a row")


def test_the_same_failure_with_epochs_in_between_is_not() -> None:
    restarts = Restarts(same_failures_max=2)
    told = [restarts.after(ended(Failed, epochs=1), 0.0) for _ in range(10)]
    assert not any(isinstance(one, GiveUp) for one in told)


def test_epochs_without_a_decision_are_no_such_failures() -> None:
    restarts = Restarts(same_failures_max=2)
    told = [restarts.after(ended(EpochFailed), 0.0) for _ in range(10)]
    assert not any(isinstance(one, GiveUp) for one in told)


class Most(random.Random):
    def uniform(self, a: float, b: float) -> float:
        return b


def test_pauses_grow_without_progress_and_restart_from_the_shortest_with_progress() -> None:
    restarts = Restarts(rng=Most())
    pauses = [restarts.after(ended(Failed), 0.0) for _ in range(9)]
    assert pauses == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 60.0]
    assert restarts.after(ended(Failed, epochs=1), 0.0) == 1.0


def test_one_that_has_worked_for_a_minute_before_it_was_killed_is_started_at_once() -> None:
    restarts = Restarts(rng=Most())
    for _ in range(9):
        restarts.after(ended(Failed), 0.0)
    assert restarts.after(ended(Failed), 0.0, lived=20.0) == 40.0
    assert restarts.after(ended(Failed), 0.0, lived=300.0) == 1.0


def test_pauses_are_not_alike() -> None:
    pauses = {Restarts(rng=random.Random(seed)).after(ended(Failed), 0.0) for seed in range(20)}
    assert len(pauses) == 20
    assert all(isinstance(one, float) and 1.0 <= one <= 2.0 for one in pauses)


def test_there_is_a_limit_per_hour_and_an_hour_later_there_is_room_again() -> None:
    restarts = Restarts(per_hour=3)
    for second in range(3):
        assert isinstance(restarts.after(ended(Failed, epochs=1), float(second)), float)
    told = restarts.after(ended(Failed, epochs=1), 3.0)
    assert isinstance(told, GiveUp)
    assert "3 times within an hour" in told.why
    assert isinstance(restarts.after(ended(Failed, epochs=1), 3600.0), float)
    assert isinstance(restarts.after(ended(Failed, epochs=1), 3600.5), GiveUp)
    assert restarts.count == 4


@pytest.mark.parametrize("start", [0.1, 5.0, 30.0, 45.0, 59.0, 90.0])
def test_a_broker_that_is_away_for_a_night_does_not_use_the_limit_up(start: float) -> None:
    restarts, now = Restarts(rng=random.Random(1)), 0.0
    assert isinstance(restarts.after(ended(Failed, epochs=1), now), float)
    while now < 10 * 3600:
        pause = restarts.after(ended(NoBroker, place=None), now, lived=start)
        assert isinstance(pause, float)
        now += pause + start  # that finds nobody
