"""What a reader sees, beside the answer: each kind of loss, repeat and disagreement is found, and nothing else is."""

import random
from dataclasses import replace
from typing import Any

import pytest

from lockgate.dataflow.deletes import DELETED
from lockgate.guarantees import Guarantee
from lockgate.lab.randomjobs import draw
from lockgate.lab.randomjobs.interpreter import Answer, Difference, compare, expected
from lockgate.lab.randomjobs.interpreter.symbols import Atom, Bindings, atoms_of, is_symbolic, value_of
from lockgate.lab.randomjobs.spec import (
    Call,
    Column,
    Detect,
    Event,
    EventTime,
    FlatMap,
    Made,
    Map,
    Merge,
    Output,
    Part,
    Rolling,
    Select,
    Sink,
    Source,
    Spec,
    Split,
    Step,
    Where,
    Window,
    WindowAggregate,
    moment,
)

ONCE = Guarantee.END_TO_END_EXACTLY_ONCE
STATE = Guarantee.EXACTLY_ONCE
AT_LEAST = Guarantee.AT_LEAST_ONCE
AT_MOST = Guarantee.AT_MOST_ONCE
COLUMNS = (Column("id", "BIGINT"), Column("k", "STRING"), Column("at", "TIMESTAMP"))
NOISE = Select("x", "s", ("id",), (Made("r", Call("noise")),))
COUNT = Made("n", Call("count"))

Rows = list[dict[str, Any]]


def answer_of(*steps: Step, ends: tuple[str, ...] = (), many: int = 4, sink: Sink | None = None) -> Answer:
    """The answer for events with ids from 0, a second apart, of keys a and b in turn."""
    events = tuple(Event(number // 2, 0, (number, "ab"[number % 2], number)) for number in range(many))
    outputs = tuple(
        Output(f"o{number}", end, sink or Sink("memory")) for number, end in enumerate(ends or (steps[-1].name,))
    )
    return expected(Spec("job", (Source("s", "kafka", COLUMNS, events),), steps, outputs, "EXACTLY_ONCE"))


def violations(answer: Answer, guarantee: Guarantee, *rows: Rows) -> list[Difference]:
    found = compare(answer, {f"o{number}": one for number, one in enumerate(rows)}, guarantee)
    assert not any(one.is_unknown for one in found)
    return found


PLAIN = answer_of(Select("x", "s", ("id",)))
IDS = [{"id": number} for number in range(4)]


@pytest.mark.parametrize(
    ("rows", "broken"),
    [
        (IDS, ()),
        (IDS[1:], (ONCE, STATE, AT_LEAST)),
        ([*IDS, IDS[0]], (ONCE, AT_MOST)),
        ([*IDS, {"id": 99}], (ONCE, STATE, AT_LEAST, AT_MOST)),
    ],
)
def test_rows_without_state(rows: Rows, broken: tuple[Guarantee, ...]) -> None:
    assert tuple(one for one in reversed(Guarantee) if violations(PLAIN, one, rows)) == broken


def test_times_of_a_reader_are_those_of_a_spec() -> None:
    answer = answer_of(Select("x", "s", ("at",)), many=1)
    assert not violations(answer, ONCE, [{"at": moment(0)}])
    assert violations(answer, ONCE, [{"at": moment(1)}])


# Values that the job does not determine

SPLIT = (NOISE, Where("lower", "x", Call("small", ("r",))), Where("upper", "x", Call("large", ("r",))))
TWO_BRANCHES = answer_of(*SPLIT, ends=("lower", "upper"), many=2)


def test_any_random_value_is_right() -> None:
    assert not violations(answer_of(NOISE, many=2), ONCE, [{"id": 0, "r": 7}, {"id": 1, "r": 7}])


def test_every_event_is_in_one_of_two_branches_that_exclude_each_other() -> None:
    low, high = {"id": 0, "r": 1}, {"id": 1, "r": 9}
    assert not violations(TWO_BRANCHES, ONCE, [low], [high])
    assert not violations(TWO_BRANCHES, ONCE, [low, {"id": 1, "r": 2}], [])


@pytest.mark.parametrize("guarantee", [ONCE, STATE, AT_LEAST])
def test_an_event_in_neither_branch_is_lost(guarantee: Guarantee) -> None:
    assert violations(TWO_BRANCHES, guarantee, [{"id": 0, "r": 1}], [])


@pytest.mark.parametrize("guarantee", [ONCE, AT_MOST])
def test_an_event_in_both_branches_is_doubled(guarantee: Guarantee) -> None:
    both = ([{"id": 0, "r": 1}], [{"id": 0, "r": 9}, {"id": 1, "r": 9}])
    assert violations(TWO_BRANCHES, guarantee, *both)


def test_an_epoch_that_was_repeated_may_draw_other_values_below_end_to_end_exactly_once() -> None:
    rows = ([{"id": 0, "r": 1}], [{"id": 0, "r": 9}, {"id": 1, "r": 9}])
    assert not violations(TWO_BRANCHES, AT_LEAST, *rows)


def test_a_row_in_the_wrong_branch_is_found() -> None:
    assert violations(TWO_BRANCHES, ONCE, [{"id": 0, "r": 9}], [{"id": 1, "r": 9}])


def test_branches_whose_random_draw_is_hidden_still_share_the_events() -> None:
    steps = (*SPLIT, Select("a", "lower", ("id",)), Select("b", "upper", ("id",)), Merge("m", ("a", "b")))
    merged = answer_of(*steps, many=3)
    assert not violations(merged, ONCE, [{"id": 0}, {"id": 1}, {"id": 2}])
    assert violations(merged, ONCE, [{"id": 0}, {"id": 0}, {"id": 2}])
    assert violations(merged, ONCE, [{"id": 0}, {"id": 1}])


def test_two_outputs_show_one_draw() -> None:
    step = Map("x", "s", ("id",), (Made("u", Call("py_fresh_id")),), deterministic=False)
    answer = answer_of(step, ends=("x", "x"), many=2)
    rows = [{"id": 0, "u": "p"}, {"id": 1, "u": "q"}]
    assert not violations(answer, ONCE, rows, rows[::-1])
    assert violations(answer, ONCE, rows, [{"id": 0, "u": "p"}, {"id": 1, "u": "other"}])


def test_what_follows_from_a_draw_has_to_follow() -> None:
    doubled = Select("y", "x", ("id",), (Made("twice", Call("twice", ("r",))),))
    answer = answer_of(NOISE, doubled, ends=("x", "y"), many=1)
    assert not violations(answer, ONCE, [{"id": 0, "r": 3}], [{"id": 0, "twice": 6}])
    assert violations(answer, ONCE, [{"id": 0, "r": 3}], [{"id": 0, "twice": 8}])


def test_parts_with_a_coin_of_their_own_may_both_hold() -> None:
    split = Split("p", "s", (Part("one", Call("coin")), Part("two", Call("coin"))))
    answer = answer_of(split, Select("a", "p.one", ("id",)), Select("b", "p.two", ("id",)), ends=("a", "b"), many=1)
    assert not violations(answer, ONCE, [{"id": 0}], [{"id": 0}])
    assert not violations(answer, ONCE, [], [])
    assert violations(answer, ONCE, [{"id": 0}, {"id": 0}], [])


def test_a_flat_map_that_draws_how_many_rows_it_gives() -> None:
    answer = answer_of(FlatMap("f", "s", (), Made("i", Call("maybe", ("id",))), deterministic=False), many=1)
    assert not violations(answer, ONCE, [])
    assert not violations(answer, ONCE, [{"i": 0}] * 2)
    assert violations(answer, ONCE, [{"i": 0}] * 3)


def test_rows_that_look_alike_are_counted() -> None:
    only = Select("y", "x", (), (Made("is", Call("is_even", ("r",))),))
    answer = answer_of(NOISE, only, many=40)
    assert not violations(answer, ONCE, [{"is": True}] * 25 + [{"is": False}] * 15)
    assert violations(answer, ONCE, [{"is": True}] * 25 + [{"is": False}] * 14)


# State

ROLLING = answer_of(Rolling("r", "s", ("k",), (COUNT,)), Select("y", "r", ("id", "n")))
COUNTED = [{"id": 0, "n": 1}, {"id": 1, "n": 1}, {"id": 2, "n": 2}, {"id": 3, "n": 2}]


def test_state_that_counted_an_event_twice_is_wrong_from_exactly_once_on() -> None:
    twice = [*COUNTED[:2], {"id": 2, "n": 3}, COUNTED[3]]
    broken = [one for one in Guarantee if violations(ROLLING, one, twice)]
    assert broken == [STATE, ONCE]
    assert [one for one in Guarantee if violations(ROLLING, one, [*COUNTED, COUNTED[0]])] == [AT_MOST, ONCE]


def test_state_that_lost_an_event_is_at_most_once() -> None:
    lost = [{"id": 2, "n": 1}, {"id": 3, "n": 1}]
    assert [one for one in Guarantee if violations(ROLLING, one, lost)] == [AT_LEAST, STATE, ONCE]
    low = [*COUNTED[:2], {"id": 2, "n": 1}, COUNTED[3]]
    assert violations(ROLLING, AT_LEAST, low)


WINDOWS = answer_of(
    EventTime("t", "s", "at", 0),
    WindowAggregate("w", "t", (), Window("tumbling", 2), (COUNT,)),
    Select("y", "w", ("window_start", "n")),
)


def test_windows_under_each_guarantee() -> None:
    right = [{"window_start": 0, "n": 2}, {"window_start": 2, "n": 2}]
    more = [right[0], {"window_start": 2, "n": 3}]
    parts = [{"window_start": 0, "n": 1}, {"window_start": 0, "n": 1}]
    assert not [one for one in Guarantee if violations(WINDOWS, one, right)]
    assert [one for one in Guarantee if violations(WINDOWS, one, more)] == [AT_MOST, STATE, ONCE]
    assert [one for one in Guarantee if violations(WINDOWS, one, parts)] == [AT_LEAST, STATE, ONCE]
    assert len([one for one in Guarantee if violations(WINDOWS, one, [{"window_start": 4, "n": 1}])]) == 4


# Tables


def table(*rows: tuple[int, str], guarantee: Guarantee = ONCE, sink: Sink | None = None) -> list[Difference]:
    """Differences of a table with key `k` over ids 0 to 3 of keys a, b, a, b."""
    answer = answer_of(Select("x", "s", ("id", "k")), sink=sink or Sink("postgres", key=("k",)))
    return violations(answer, guarantee, [{"id": id, "k": key} for id, key in rows])


def test_a_table_shows_the_last_row_of_each_key() -> None:
    assert not table((2, "a"), (3, "b"))
    assert table((0, "a"), (3, "b"))
    assert not table((0, "a"), (3, "b"), guarantee=AT_LEAST)
    assert table((2, "a"), guarantee=AT_LEAST)
    assert table((2, "a"), (0, "a"), (3, "b"), guarantee=AT_LEAST)
    assert not table((2, "a"), guarantee=AT_MOST)
    assert table((2, "a"), (3, "b"), (1, "c"), guarantee=AT_MOST)


def test_a_table_lacks_what_was_deleted() -> None:
    sink = Sink("sqlite", key=("k",), deleted=Call("even", ("id",)))
    assert not table((3, "b"), sink=sink)
    assert table((3, "b"), (2, "a"), sink=sink)


def test_a_gauge_shows_the_latest() -> None:
    sink = Sink("monitor", key=("k",), value="id", latest="id")
    assert not table((2, "a"), (3, "b"), sink=sink)
    assert table((0, "a"), (3, "b"), sink=sink)


# What cannot be judged


def test_what_was_not_observed_or_has_no_answer_is_unknown() -> None:
    assert [one.is_unknown for one in compare(PLAIN, {}, ONCE)] == [True]
    coin = answer_of(Where("c", "s", Call("coin")), Rolling("r", "c", ("k",), (COUNT,)))
    assert [one.is_unknown for one in compare(coin, {"o0": []}, AT_LEAST)] == [True]


# Drawn jobs: an answer fits itself, whatever was drawn, and a row that is lost shows


def one_run(answer: Answer, rng: random.Random) -> dict[str, Rows]:
    """What a right run could show: each atom is one of its samples."""
    flows = {name: one.flow for name, one in answer.outputs.items() if one.flow is not None}
    atoms: set[Atom] = set()
    for flow in flows.values():
        for row in flow.rows:
            atoms |= atoms_of(row.values) | atoms_of(row.guards)
    drawn = {atom: rng.choice(atom.samples) for atom in sorted(atoms, key=lambda atom: atom.name)}
    return {
        name: [
            _settled(row.values, drawn) for row in flow.rows if all(value_of(one, drawn) is True for one in row.guards)
        ]
        for name, flow in flows.items()
    }


def _settled(value: Any, drawn: Bindings) -> Any:
    if isinstance(value, dict):
        return {name: _settled(one, drawn) for name, one in value.items()}
    if isinstance(value, list):
        return [_settled(one, drawn) for one in value]
    return value_of(value, drawn)


def drawn_spec(seed: int) -> Spec:
    """A random job, whose outputs show every row."""
    spec = draw.draw(random.Random(seed))
    return replace(
        spec, outputs=tuple(replace(output, sink=replace(output.sink, system="memory")) for output in spec.outputs)
    )


@pytest.mark.parametrize("seed", range(0, 150, 5))
def test_an_answer_fits_itself_and_a_lost_row_shows(seed: int) -> None:
    for number in range(seed, seed + 5):
        answer, rng = expected(drawn_spec(number)), random.Random(number)
        rows = one_run(answer, rng)
        for guarantee in Guarantee:
            assert [one for one in compare(answer, rows, guarantee) if not one.is_unknown] == []
        for name, flow in ((name, one.flow) for name, one in answer.outputs.items()):
            plain = [row for row in flow.rows if not row.guards and not is_symbolic(row.values)] if flow else []
            if flow is None or len(plain) < len(flow.rows) or not plain:
                continue
            without = {**rows, name: rows[name][1:]}
            assert [one for one in compare(answer, without, ONCE) if not one.is_unknown], (number, name)
            twice = {**rows, name: [*rows[name], rows[name][0]]}
            assert [one for one in compare(answer, twice, ONCE) if not one.is_unknown], (number, name)


def test_late_rows_are_not_judged_where_a_replay_may_have_other_epochs() -> None:
    events = (Event(0, 0, (0, "a", 50)), Event(1, 0, (1, "a", 0)))
    steps = (
        EventTime("t", "s", "at", 0, "TO_SIDE_OUTPUT"),
        WindowAggregate("w", "t", (), Window("tumbling", 10), (COUNT,)),
    )
    outputs = (Output("o0", "w", Sink("memory")), Output("o1", "w.late", Sink("memory")))
    spec = Spec("job", (Source("s", "kafka", COLUMNS, events),), steps, outputs, "AT_LEAST_ONCE", mode="REAL_TIME")
    rows = [{"window_start": at, "window_end": at + 10, "n": 1} for at in (0, 50)]
    found = compare(expected(spec), {"o0": rows, "o1": []}, AT_LEAST)
    assert [(one.output, one.is_unknown) for one in found] == [("o1", True)]
    lost = compare(expected(spec), {"o0": rows[:1], "o1": []}, AT_LEAST)
    assert {one.output for one in lost if not one.is_unknown} == {"o0"}


def test_of_rows_of_one_key_the_one_that_came_last_is_known_also_behind_a_window() -> None:
    window = WindowAggregate(
        "w", "s", ("k",), Window("tumbling_count", count=1), (COUNT, Made("m", Call("max", ("id",))))
    )
    answer = answer_of(window, sink=Sink("postgres", ("k",)))
    flow = answer.outputs["o0"].flow
    assert flow is not None
    rows = [dict(row.values) | {"window_start": moment(0), "window_end": moment(0)} for row in flow.rows]
    last = [row for row in rows if row["m"] > 1]
    assert violations(answer, ONCE, last) == []
    assert len(violations(answer, ONCE, [row for row in rows if row["m"] < 2])) == 2


def test_nothing_says_which_match_of_a_key_comes_last() -> None:
    timed = EventTime("t", "s", "at", 0)
    found = Detect("d", "t", ("k",), Call("rises", ("id",)))
    answer = answer_of(timed, found, many=12, sink=Sink("postgres", ("k",)))
    flow = answer.outputs["o0"].flow
    assert flow is not None
    assert len(flow.rows) > 2
    rows = [dict(flow.rows[0].values)]
    assert any(one.is_unknown for one in compare(answer, {"o0": rows}, ONCE))


def test_a_record_without_a_value_is_another_one_than_the_row() -> None:
    answer = answer_of(Select("x", "s", ("id",)), sink=Sink("kafka", ("id",), Call("large", ("id",))), many=6)
    rows = [{"id": number, DELETED: number >= 5} for number in range(6)]
    assert violations(answer, ONCE, rows) == []
    assert len(violations(answer, ONCE, [row | {DELETED: False} for row in rows])) == 2  # one is missing, one too many


def test_any_record_may_be_without_a_value_if_chance_says_so() -> None:
    answer = answer_of(Select("x", "s", ("id",)), sink=Sink("kafka", ("id",), Call("coin")))
    assert violations(answer, ONCE, [{"id": number, DELETED: number % 2 == 0} for number in range(4)]) == []
