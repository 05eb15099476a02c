"""The live line: what a run tells of itself after an epoch."""

from lockgate.operators.fanout import Ending, Joined, Score, Tally
from lockgate.runtime.progress import Progress


def line_of(tally: Tally) -> str:
    return Progress(
        epoch=3,
        events_total=2,
        events_per_second=1.0,
        lag=0,
        watermark=None,
        epoch_ms=240,
        fan_outs={"scores": tally.report()},
    ).line()


def tally(*, is_stamped: bool) -> Tally:
    made = Tally(began=1000.0)
    for ending in (Ending.ANSWERED, Ending.TIMED_OUT):
        made.count(Joined({"a": Score(ending)}, 0.02))
        if is_stamped:
            made.arrive(999.0)
    return made.publish(1000.5)


def test_the_latency_from_end_to_end_stands_beside_that_of_a_fan_out() -> None:
    shown = line_of(tally(is_stamped=True))
    functions, rest = shown.split(" | scores p99 ")[1].split(" ms, end to end p99 ")
    age, partial = rest.split(" ms, ")
    assert abs(float(functions) - 20) < 0.5
    assert abs(int(age.replace(",", "")) - 1500) < 40, "and not the 240 ms of the epoch"
    assert partial == "1 of 2 partial"


def test_where_no_source_says_when_events_came_it_is_not_known() -> None:
    assert " ms, end to end -, 1 of 2 partial" in line_of(tally(is_stamped=False))


def test_a_fan_out_without_events_has_nothing_to_tell() -> None:
    assert "scores" not in line_of(Tally())
