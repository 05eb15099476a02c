"""The model of the guarantees against the table of docs/GUARANTEES.md, every combination of it that a job can have."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from lockgate.guarantees import Guarantee
from lockgate.lab.randomjobs.model import judge
from lockgate.lab.randomjobs.spec import (
    Call,
    Column,
    EventTime,
    FanOut,
    FlatMap,
    Join,
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
    Transform,
    Where,
)

DOCS = Path(__file__).parents[3] / "docs" / "GUARANTEES.md"
SOURCES = {"replayable": "kafka", "acknowledged": "mqtt", "not replayable": "socket"}
FUNCTIONS = ("deterministic", "not deterministic", "not deterministic above state", "not deterministic below state")
STATES = ("none", "sum", "max")
MODES = {"micro-batch": "MICRO_BATCH", "real-time": "REAL_TIME"}
SINKS = {
    # The sink, and what its output declares: less than end-to-end makes it plain.
    "plain": (Sink("kafka"), "EXACTLY_ONCE"),
    "idempotent": (Sink("monitor", ("id",), value="id", latest="id"), "EXACTLY_ONCE"),
    "transactional": (Sink("kafka"), "END_TO_END_EXACTLY_ONCE"),
}
EVENTS = (Column("id", "BIGINT"), Column("n", "BIGINT"))


def rows_of_the_table() -> list[list[str]]:
    section = DOCS.read_text(encoding="utf-8").split("## How a guarantee is derived\n")[1].split("\n## ")[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    first = lines.index(["source", "state", "functions", "sink", "mode", "reached", "weakest part"])
    return [line for line in lines[first + 2 :] if len(line) == 7]


def cases() -> list[tuple[str, ...]]:
    found = []
    for source, state, functions, sink, mode, reached, _ in rows_of_the_table():
        options = [
            SOURCES if source == "any" else [source],
            STATES if state == "any" else state.split(", "),
            FUNCTIONS if functions == "any" else functions.split(", "),
            SINKS if sink == "any" else [sink],
            MODES if mode == "any" else [mode],
        ]
        for one in itertools.product(*options):
            if ("state" in one[2]) == (one[1] != "none") or one[2] == "deterministic":
                found.append((*one, reached))
    return found


def job(
    steps: tuple[Step, ...], sink: Sink, guarantee: str, *, source: str = "kafka", mode: str = "MICRO_BATCH"
) -> Spec:
    outputs = (Output("out", steps[-1].name if steps else "s", sink, guarantee),)
    return Spec("job", (Source("s", source, EVENTS),), steps, outputs, "END_TO_END_EXACTLY_ONCE", mode)


def noise(name: str, given: str) -> Select:
    return Select(name, given, ("id", "n"), (Made(f"{name}_c", Call("noise")),))


def test_the_table_is_read() -> None:
    assert len(cases()) > 100


@pytest.mark.parametrize("case", cases(), ids=", ".join)
def test_the_model_is_the_table(case: tuple[str, ...]) -> None:
    source, state, functions, sink, mode, reached = case
    steps: list[Step] = []
    if functions.endswith("above state"):
        steps.append(noise("above", "s"))
    if state != "none":
        aggregate = Made("total", Call("sum" if state == "sum" else "max", ("n",)))
        steps.append(Rolling("state", steps[-1].name if steps else "s", ("id",), (aggregate,)))
    if functions in ("not deterministic", "not deterministic below state"):
        steps.append(noise("below", steps[-1].name if steps else "s"))
    to, guarantee = SINKS[sink]
    judged = judge(job(tuple(steps), to, guarantee, source=SOURCES[source], mode=MODES[mode]))
    assert Guarantee(judged.outputs["out"]).label == reached


def test_an_at_most_once_job_reaches_no_more() -> None:
    spec = Spec(
        "job", (Source("s", "kafka", EVENTS),), (), (Output("out", "s", Sink("postgres", ("id",))),), "AT_MOST_ONCE"
    )
    assert judge(spec).reached.name == "AT_MOST_ONCE"


@pytest.mark.parametrize(("is_declared", "reached"), [(True, "END_TO_END_EXACTLY_ONCE"), (False, "AT_LEAST_ONCE")])
def test_a_transform_is_state_if_state_is_a_danger(is_declared: bool, reached: str) -> None:
    steps = (Transform("x", "s", ("id", "n"), (), is_declared),)
    assert judge(job(steps, Sink("kafka"), "END_TO_END_EXACTLY_ONCE")).reached.name == reached


@pytest.mark.parametrize(("key", "reached"), [("id", "END_TO_END_EXACTLY_ONCE"), ("score", "AT_LEAST_ONCE")])
def test_scores_of_a_fan_out_are_lifted_by_a_key_of_the_event_alone(key: str, reached: str) -> None:
    steps = (FanOut("x", "s", (Made("score", Call("py_twice", ("n",))),)),)
    assert (
        judge(job(steps, Sink("monitor", (key,), value="n", latest="n"), "AT_LEAST_ONCE")).outputs["out"].name
        == reached
    )


@pytest.mark.parametrize(("latest", "reached"), [("id", "END_TO_END_EXACTLY_ONCE"), ("score", "AT_LEAST_ONCE")])
def test_a_gauge_without_labels_has_a_key_that_no_score_changes(latest: str, reached: str) -> None:
    steps = (FanOut("x", "s", (Made("score", Call("py_twice", ("n",))),)),)
    sink = Sink("monitor", value="n", latest=latest)
    assert judge(job(steps, sink, "AT_LEAST_ONCE")).outputs["out"].name == reached


def test_dead_letters_in_memory_hold_back_a_job_that_is_declared_end_to_end() -> None:
    spec = job((), Sink("kafka"), "END_TO_END_EXACTLY_ONCE")
    assert not judge(replace(spec, dead_letters="kafka")).is_refused
    assert judge(replace(spec, dead_letters="memory")).is_refused


def test_dead_letters_come_from_every_step_also_from_sql_above_a_join() -> None:
    steps = (
        EventTime("left", "s", "id", 1),
        noise("x", "left"),
        Select("renamed", "s", ("id",), (Made("m", Call("noise")),)),
        EventTime("right", "renamed", "m", 1),
        Join("j", "x", "right", ("id",), 60),
    )
    judged = judge(replace(job(steps, Sink("kafka"), "AT_LEAST_ONCE"), dead_letters="kafka"))
    assert judged.outputs["dead-letters"].name == "AT_LEAST_ONCE"
    assert judged.declared["dead-letters"].name == "END_TO_END_EXACTLY_ONCE"


def test_a_job_is_refused_if_every_output_declares_less_than_it_does() -> None:
    assert judge(job((), Sink("console"), "AT_LEAST_ONCE")).is_refused
    assert not judge(replace(job((), Sink("console"), "AT_LEAST_ONCE"), guarantee="AT_LEAST_ONCE")).is_refused


def test_a_second_cluster_needs_the_same_rows_again() -> None:
    steps = (noise("x", "s"), noise("y", "s"))
    spec = job(steps, Sink("kafka"), "END_TO_END_EXACTLY_ONCE")
    first, other = Output("a", "s", Sink("kafka")), Output("b", "x", Sink("kafka", cluster=2))
    assert judge(replace(spec, outputs=(other,))).reached.name == "END_TO_END_EXACTLY_ONCE", "it is the only one"
    assert judge(replace(spec, outputs=(first, other))).outputs["b"].name == "AT_LEAST_ONCE"
    assert (
        judge(replace(spec, outputs=(first, replace(other, input="s")))).outputs["b"].name == "END_TO_END_EXACTLY_ONCE"
    )
    letters = replace(spec, outputs=(replace(first, input="x"),), dead_letters="kafka")
    assert not judge(letters).is_refused
    assert judge(replace(letters, letters_cluster=2)).is_refused


WILD = noise("x", "s")
LOW, HIGH = Where("low", "x", Call("small", ("x_c",))), Where("high", "x", Call("large", ("x_c",)))
BRANCHES: dict[str, tuple[tuple[Step, ...], tuple[str, ...], bool]] = {
    "conditions in SQL": ((WILD, LOW, HIGH), ("low", "high"), False),
    "the same output twice": ((WILD,), ("x", "x"), False),
    "a split": (
        (WILD, Split("p", "x", (Part("red", Call("small", ("n",))), Part("blue", Call("large", ("n",)))))),
        ("p.red", "p.blue"),
        False,
    ),
    "merged branches": ((WILD, LOW, HIGH, Merge("m", ("low", "high"))), ("m",), False),
    "a function on one branch": ((WILD, Map("f", "x", ("id",))), ("x", "f"), False),
    "state on one branch": (
        (WILD, Rolling("r", "x", ("id",), (Made("c", Call("count")),))),
        ("x", "r"),
        True,
    ),
    "state behind merged branches": (
        (WILD, LOW, HIGH, Merge("m", ("low", "high")), Rolling("r", "m", ("id",), (Made("c", Call("count")),))),
        ("r",),
        True,
    ),
    "a transform on one branch": ((WILD, Transform("t", "x", ("id",))), ("x", "t"), True),
    "the time of the epoch behind a function on one branch": (
        (WILD, Map("f", "x", ("id",)), Select("t", "f", ("id",), (Made("c", Call("epoch_time")),))),
        ("x", "t"),
        True,
    ),
    "a part of chance with state": (
        (Split("p", "s", (Part("red", Call("coin")),)), Rolling("r", "p.red", ("id",), (Made("c", Call("count")),))),
        ("p.red", "r"),
        True,
    ),
    "nothing of chance": ((FlatMap("f", "s", ("id",), Made("c", Call("both", ("n",)))),), ("f", "s"), False),
}


@pytest.mark.parametrize("branches", BRANCHES)
def test_what_would_be_computed_several_times_is_refused_if_nothing_can_keep_it(branches: str) -> None:
    steps, ends, is_refused = BRANCHES[branches]
    outputs = tuple(Output(f"out{number}", end, Sink("kafka")) for number, end in enumerate(ends))
    spec = Spec("job", (Source("s", "kafka", EVENTS),), steps, outputs, "AT_LEAST_ONCE")
    assert judge(spec).is_refused is is_refused
