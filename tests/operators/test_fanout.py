"""Functions side by side: who answers in time is in it, who does not is named. Time moves when the test says so."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lockgate.operators.fanout import Ending, FanOutMachine, Joined, MachineClock, Score, Tally, describe_misfit

DEADLINE = 0.02


class Frozen:
    """A clock that stands still. Who waits lets time pass, once all calls have returned that are not held back."""

    def __init__(self) -> None:
        self.time = 100.0
        self.machine: FanOutMachine | None = None
        self.held = 0  # calls that will not return by themselves
        self.waits = 0

    def now(self) -> float:
        return self.time

    def wait(self, changed: threading.Condition, seconds: float) -> None:
        assert self.machine is not None
        self.waits += 1
        for _ in range(3000):
            if sum(lane.running for lane in self.machine._lanes) <= self.held:
                break
            changed.wait(0.01)
        else:
            pytest.fail("a call that should have returned did not")
        if not self.held:
            return
        self.time += seconds


class Held:
    """A function that returns when the test lets it."""

    def __init__(self, answer: Callable[[Any], Any] = lambda row: f"late {row}") -> None:
        self.free = threading.Event()
        self.answer = answer
        self.rows: list[Any] = []

    def __call__(self, row: Any) -> Any:
        self.rows.append(row)
        assert self.free.wait(60)
        return self.answer(row)


@contextmanager
def frozen(in_flight: int = 1, **functions: Callable[[Any], Any]) -> Iterator[tuple[FanOutMachine, Frozen]]:
    clock = Frozen()
    clock.machine = FanOutMachine(functions, deadline_seconds=DEADLINE, in_flight=in_flight, clock=clock)
    try:
        yield clock.machine, clock
    finally:
        for one in functions.values():
            if isinstance(one, Held):
                one.free.set()


def await_running(machine: FanOutMachine, name: str, calls: int) -> None:
    with machine._changed:
        for _ in range(3000):
            if next(lane.running for lane in machine._lanes if lane.name == name) == calls:
                return
            machine._changed.wait(0.01)
    pytest.fail(f"{name} has not come to {calls} calls")


def values(joined: Joined) -> dict[str, Any]:
    return {name: score.value for name, score in joined.scores.items()}


def endings(joined: Joined) -> dict[str, Ending]:
    return {name: score.ending for name, score in joined.scores.items()}


def test_all_that_answer_are_in_it_by_their_names() -> None:
    with frozen(double=lambda row: 2 * row, square=lambda row: row * row) as (machine, clock):
        (joined,) = machine.join([3])
    assert values(joined) == {"double": 6, "square": 9}
    assert (joined.missing, joined.seconds, clock.time) == ({}, 0.0, 100.0)


def test_the_functions_of_an_event_really_run_at_the_same_time() -> None:
    meeting = threading.Barrier(3)  # lets nobody pass before all are there

    def meet(row: Any) -> Any:
        meeting.wait(60)
        return row

    with frozen(a=meet, b=meet, c=meet) as (machine, _):
        assert [values(one) for one in machine.join([1, 2])] == [{"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 2, "c": 2}]


def test_a_function_that_does_not_answer_in_time_is_cut_off_and_the_others_are_kept() -> None:
    slow = Held()
    with frozen(slow=slow, quick=lambda row: row) as (machine, clock):
        clock.held = 1
        (joined,) = machine.join(["x"])
        assert endings(joined) == {"slow": Ending.TIMED_OUT, "quick": Ending.ANSWERED}
        assert joined.missing == {"slow": "it took longer than 20 ms"}
        assert joined.seconds == pytest.approx(DEADLINE)
        assert machine.running == {"slow": 1, "quick": 0}, "its call goes on, and nobody waits for it"


def test_an_answer_after_the_deadline_does_not_count_even_if_it_is_there_when_it_is_looked_up() -> None:
    clock = Frozen()

    def overrun(row: Any) -> Any:
        clock.time += DEADLINE * 1.5
        return row

    machine = FanOutMachine({"a": overrun}, deadline_seconds=DEADLINE, in_flight=1, clock=clock)
    clock.machine = machine
    (joined,) = machine.join([1])
    assert endings(joined) == {"a": Ending.TIMED_OUT}
    assert values(joined) == {"a": None}


def test_events_in_flight_have_deadlines_of_their_own_and_land_in_order() -> None:
    first = Held()
    with frozen(in_flight=3, f=lambda row: first(row) if row == 0 else row) as (machine, clock):
        clock.held = 1
        landed = machine.join(range(5))
        one = next(landed)
        assert endings(one) == {"f": Ending.TIMED_OUT}
        assert clock.time == pytest.approx(100 + DEADLINE)
        # Two of them had answered while it was waited for: none is late because of it.
        assert [values(other)["f"] for other in landed] == [1, 2, 3, 4]
        first.free.set()


def test_calls_that_do_not_come_back_are_bounded_and_the_function_is_called_again_when_one_has() -> None:
    stuck = Held()
    with frozen(in_flight=2, stuck=stuck, fine=lambda row: row) as (machine, clock):
        ends = []
        for row in range(6):
            clock.held = min(row + 1, 4)
            ends += [endings(joined)["stuck"] for joined in machine.join([row])]
        assert ends == [Ending.TIMED_OUT] * 4 + [Ending.SKIPPED] * 2
        assert machine.running["stuck"] == 4, "twice as many as may be in flight, and no more"
        (skipped,) = machine.join([6])
        assert "4 calls of it have not come back" in skipped.missing["stuck"]
        assert values(skipped)["fine"] == 6
        stuck.free.set()
        await_running(machine, "stuck", 0)
        clock.held = 0
        (again,) = machine.join([7])
        assert again.scores["stuck"] == Score(Ending.ANSWERED, "late 7")
        assert stuck.rows == [0, 1, 2, 3, 7]


def test_an_answer_that_comes_late_is_in_no_other_event() -> None:
    held = Held()
    with frozen(f=lambda row: held(row) if row == 0 else row) as (machine, clock):
        clock.held = 1
        (cut,) = machine.join([0])
        held.free.set()
        await_running(machine, "f", 0)
        clock.held = 0
        (next_one,) = machine.join([1])
        assert endings(cut)["f"] is Ending.TIMED_OUT
        assert values(next_one) == {"f": 1}


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


@pytest.mark.parametrize(
    ("error", "told"), [(KeyError("price"), "KeyError: 'price'"), (SystemExit(3), "SystemExit: 3"), (Mute(), "Mute")]
)
def test_a_function_that_raises_is_missing_with_the_reason_and_is_called_again(error: BaseException, told: str) -> None:
    def fail(row: Any) -> Any:
        if row == 1:
            raise error
        return row

    with frozen(bad=fail, good=lambda row: row) as (machine, _):
        first, second, third = machine.join([0, 1, 2])
    assert (first.missing, third.missing) == ({}, {})
    assert (endings(second)["bad"], second.missing) == (Ending.FAILED, {"bad": told})
    assert values(second)["good"] == 1


@pytest.mark.parametrize("text", ["x" * 5_000_000, "\ud800" * 1000], ids=["long", "no UTF-8"])
def test_a_reason_is_short_and_can_be_written(text: str) -> None:
    def fail(row: Any) -> Any:
        raise ValueError(text)

    with frozen(bad=fail) as (machine, _):
        (joined,) = machine.join([1])
    assert joined.missing["bad"].startswith("ValueError: ")
    assert len(joined.missing["bad"].encode()) < 3000
    shown = describe_misfit(text, "int32", ValueError(text))
    assert "is not of type int32" in shown
    assert len(shown.encode()) < 3000


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError("not even this")


@pytest.mark.parametrize(
    ("value", "error", "told"),
    [
        ("many", ValueError("no number\nat all"), "'many' is not of type int32: no number"),
        ("", ValueError(), "'' is not of type int32: "),
        (Shy(), ValueError("no number"), "<Shy instance at "),
        pytest.param(
            10**5000,
            ValueError("too large"),
            "a value of type int that cannot be shown is not of type int32: too large",
            id="digits",  # more than Python tells
        ),
        (1.5, Mute(), "1.5 is not of type int32: Mute"),
    ],
)
def test_a_value_that_is_no_score_is_reported_whatever_it_does_when_it_is_shown(
    value: Any, error: BaseException, told: str
) -> None:
    assert describe_misfit(value, "int32", error).startswith(told)


def test_none_is_an_answer() -> None:
    with frozen(f=lambda row: None) as (machine, _):
        (joined,) = machine.join([1])
    assert (joined.missing, endings(joined)) == ({}, {"f": Ending.ANSWERED})


def test_the_clock_of_the_machine_cuts_off_what_never_answers() -> None:
    stuck = Held()
    machine = FanOutMachine(
        {"stuck": stuck, "quick": lambda row: row}, deadline_seconds=0.5, in_flight=1, clock=MachineClock()
    )
    try:
        (joined,) = machine.join([1])
        assert joined.missing == {"stuck": "it took longer than 500 ms"}
        assert joined.seconds >= 0.5
    finally:
        stuck.free.set()


def joined_as(seconds: float, **ends: Ending) -> Joined:
    return Joined({name: Score(ending) for name, ending in ends.items()}, seconds)


def test_a_tally_counts_every_ending_and_tells_latencies_to_a_few_in_a_hundred() -> None:
    tally, other = Tally(), Tally()
    for milliseconds in range(1, 999):
        tally.count(joined_as(milliseconds / 1000, a=Ending.ANSWERED, b=Ending.ANSWERED))
    other.count(joined_as(0.999, a=Ending.ANSWERED, b=Ending.TIMED_OUT))
    other.count(joined_as(5.0, a=Ending.FAILED, b=Ending.SKIPPED))
    tally.add(other)
    report = tally.report()
    assert (report["events"], report["partial"]) == (1000, 2)
    assert report["functions"] == {
        "a": {"answered": 999, "timed_out": 0, "failed": 1, "skipped": 0},
        "b": {"answered": 998, "timed_out": 1, "failed": 0, "skipped": 1},
    }
    assert report["latency_ms_p50"] == pytest.approx(500, rel=0.02)
    assert report["latency_ms_p99"] == pytest.approx(990, rel=0.02)
    assert report["latency_ms_p999"] == pytest.approx(999, rel=0.02)


def test_a_tally_of_nothing_has_no_latency_and_an_instant_is_one() -> None:
    assert Tally().report()["latency_ms_p99"] is None
    tally = Tally()
    tally.count(joined_as(0.0, a=Ending.ANSWERED))
    assert tally.report()["latency_ms_p50"] == pytest.approx(0.001)


def test_threads_are_as_many_as_were_needed_at_once() -> None:
    with frozen(in_flight=2, f=lambda row: row) as (machine, _):
        assert [values(one)["f"] for one in machine.join(range(200))] == list(range(200))
        assert 1 <= machine._lanes[0].threads <= 2


def test_the_age_of_events_is_by_the_clock_of_the_driver_when_their_results_are_visible() -> None:
    told = Tally(began=1000.0)  # by the clock of a worker, which is wrong by half a minute
    for waited in (1.0, 2.0, 40.0):
        told.arrive(1000.0 - waited)
    for _ in range(3):
        told.count(joined_as(0.01, a=Ending.ANSWERED))
    out = told.publish(975.0)
    total = Tally()
    total.add(out)
    total.add(Tally(began=5.0).publish(6.0))  # a task whose events have no stamps
    report = total.report()
    assert (report["events"], report["stamped"]) == (3, 3)
    assert report["end_to_end_ms_p99"] == pytest.approx(15_000, rel=0.05)
    assert told.report()["end_to_end_ms_p99"] is None, "what is not out has no age"

    quick = Tally(began=1000.0)
    quick.arrive(1000.5)  # its stamp is ahead of the clock
    assert quick.publish(1002.0).report()["end_to_end_ms_p50"] == pytest.approx(2000, rel=0.02)


def test_a_machine_has_threads_while_calls_run() -> None:
    held = Held()
    with frozen(f=held) as (machine, clock):
        assert not machine.has_threads
        clock.held = 1
        list(machine.join([1]))
        assert machine.has_threads
