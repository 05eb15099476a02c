"""Dead letters: which events the interpreter puts aside, and how those of a run are compared with them."""

from typing import Any

from lockgate.guarantees import Guarantee
from lockgate.lab.randomjobs.interpreter import Answer, expected
from lockgate.lab.randomjobs.interpreter.deadletters import compare_letters
from lockgate.lab.randomjobs.interpreter.rows import Letter
from lockgate.lab.randomjobs.spec import (
    Call,
    Event,
    EventTime,
    Made,
    Map,
    Output,
    Process,
    Rolling,
    Select,
    Sink,
    Source,
    Spec,
    Step,
    Where,
    Window,
    WindowAggregate,
)
from support.specs import COLUMNS, COUNT, TIMED, event

ONCE, AT_LEAST, AT_MOST = Guarantee.END_TO_END_EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE


def spec_of(*steps: Step, events: tuple[Event, ...], sink: Sink | None = None, **others: Any) -> Spec:
    return Spec(
        "job",
        sources=(Source("s", "kafka", COLUMNS, events),),
        steps=steps,
        outputs=(Output("o0", steps[-1].name, sink or Sink("memory")),),
        guarantee="END_TO_END_EXACTLY_ONCE",
        **others,
    )


def test_an_event_without_a_time_is_a_dead_letter_or_stops_the_job() -> None:
    window = WindowAggregate("w", "t", ("k",), Window("tumbling", 10), (COUNT,))
    events = (event(0, 1, "a", 0, None), event(0, 2, "a", 0, 1))
    with_letters = expected(spec_of(TIMED, window, events=events, dead_letters="kafka"))
    assert with_letters.letters == (Letter("t", ("s", 0, 0)),)
    stopped = expected(spec_of(TIMED, window, events=events))
    assert (stopped.stops, stopped.may_stop) == ("an event cannot be used by t", True)
    assert stopped.outputs["o0"].unknown is not None


def test_a_record_that_does_not_parse_and_a_function_that_raises_make_dead_letters_of_their_steps() -> None:
    made = Map("m", "s", ("id",), (Made("c", Call("py_share", ("v",))),))
    kept = Where("x", "m", Call("small", ("c",)))
    events = (event(0, 1, "a", 7, 1), Event(0, 1, (), "{"), event(1, 2, "a", 8, 1), event(1, 3, "a", None, 1))
    answer = expected(spec_of(made, kept, events=events, dead_letters="kafka"))
    assert answer.letters == (Letter("s", ("s", 1, 1)), Letter("m", ("s", 0, 0)))
    assert answer.offsets == {("s", 0): 0, ("s", 1): 0, ("s", 2): 1, ("s", 3): 2}
    flow = answer.outputs["o0"].flow
    assert flow is not None
    assert [*flow.rows] == []  # 12 is not small, and null is nothing
    assert not answer.may_stop


def test_state_is_as_if_the_event_had_not_come_that_its_function_raises_on() -> None:
    counted = Process("p", "s", ("k",), Call("shares", ("v",)))
    events = (event(0, 1, "a", 8, 1), event(0, 2, "a", 7, 1), event(0, 3, "a", 8, 1))
    answer = expected(spec_of(counted, events=events, dead_letters="kafka"))
    assert answer.letters == (Letter("p", ("s", 0, 1)),)
    flow = answer.outputs["o0"].flow
    assert flow is not None
    assert [row.values["shares"] for row in flow.rows] == [12, 24]


def test_random_values_that_a_function_may_raise_on_give_no_answer() -> None:
    noise = Select("n", "s", (), (Made("c", Call("noise")),))
    made = Map("m", "n", (), (Made("d", Call("py_share", ("c",))),))
    answer = expected(spec_of(noise, made, events=(event(0, 1, "a", 7, 1),), dead_letters="kafka"))
    assert (answer.letters, answer.may_stop) == (None, False)
    assert expected(spec_of(noise, made, events=(event(0, 1, "a", 7, 1),))).may_stop


def test_an_event_too_far_ahead_of_the_clock_is_a_dead_letter() -> None:
    timed = EventTime("t", "s", "at", 0, max_ahead_ms=30_500)
    events = (event(0, 1, "a", 0, 30), event(0, 2, "a", 0, 31))
    answer = expected(spec_of(timed, events=events, dead_letters="kafka"))
    assert answer.letters == (Letter("t", ("s", 0, 1)),)
    assert expected(spec_of(timed, events=events)).stops == "an event cannot be used by t"


def test_a_gauge_that_cannot_say_which_row_is_the_last_stops_the_job() -> None:
    sink = Sink("monitor", ("k",), value="id", latest="v")
    spec = spec_of(Where("x", "s", Call("present", ("k",))), events=(event(0, 1, "a", None, 1),), sink=sink)
    assert expected(spec).stops is not None


# As they are compared


def letter(source: str | None, offset: int, partition: int = 0) -> dict[str, Any]:
    return {"source": source, "part": f"topic-{partition:06}", "at": offset}


def wrong(answer: Answer, guarantee: Guarantee, *seen: dict[str, Any]) -> list[str]:
    found = [*compare_letters(answer, seen, guarantee)]
    assert not any(is_unknown for _, is_unknown in found)
    return [what for what, _ in found]


def answer_with(*letters: Letter, **others: Any) -> Answer:
    return Answer({}, letters, {("s", 0): 0, ("s", 1): 1}, **others)


def test_every_dead_letter_is_of_its_event() -> None:
    answer = answer_with(Letter("s", ("s", 0, 1)))
    assert wrong(answer, ONCE, letter("s", 1)) == []
    assert wrong(answer, ONCE) == ["1 dead letters are missing of source s, partition 0, offset 1"]
    assert len(wrong(answer, AT_LEAST, letter("s", 0))) == 2


def test_a_dead_letter_may_come_twice_only_if_its_output_may_repeat() -> None:
    answer, twice = answer_with(Letter("s", ("s", 0, 1))), (letter("s", 1), letter("s", 1))
    assert wrong(answer, ONCE, *twice) == ["2 dead letters, and not 1, are of source s, partition 0, offset 1"]
    assert wrong(answer, AT_LEAST, *twice) == []
    assert wrong(answer, AT_MOST) == []


def test_dead_letters_of_files_and_of_rows_without_a_place_are_counted() -> None:
    answer = answer_with(Letter("m", ("f", 0, 0)), Letter("m", ("f", 0, 3)), Letter("m", None), Letter("m", None))
    seen = (letter("f", 17), letter("f", 18), letter(None, 0))
    assert wrong(answer, ONCE, *seen) == []
    assert wrong(answer, ONCE, *seen[1:]) == ["1 dead letters are missing of source f"]


def test_dead_letters_that_cannot_be_determined_are_unknown() -> None:
    assert next(compare_letters(Answer({}, None), (), ONCE))[1]
    behind_state = answer_with(Letter("m", ("s", 0, 1), is_stateful=True))
    assert next(compare_letters(behind_state, (), AT_LEAST))[1]
    assert wrong(behind_state, ONCE, letter("s", 1)) == []


def test_a_dead_letter_behind_state_is_known_as_such() -> None:
    rolling = Rolling("r", "s", ("k",), (COUNT,))
    made = Map("m", "r", ("id",), (Made("c", Call("py_share", ("v",))),))
    answer = expected(spec_of(rolling, made, events=(event(0, 1, "a", 7, 1),), dead_letters="kafka"))
    assert answer.letters == (Letter("m", ("s", 0, 0), is_stateful=True),)
