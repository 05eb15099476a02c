"""Chance above state: a replay could build other state, so no ledger may skip the epoch."""

from collections.abc import Callable

import pytest

from lockgate import FileSource, Guarantee, Job, KafkaSink, PostgresSink, SqliteSink, Stream, plan, stream
from lockgate.dataflow.endpoints import Sink
from lockgate.errors import BadJob
from lockgate.planner.nondeterminism import is_nondeterministic_above_state
from lockgate.planner.passes import way_of
from lockgate.planner.physical import is_exact
from lockgate.planner.plan import Plan

LEAST = Guarantee.AT_LEAST_ONCE
UPSERT = SqliteSink(path="/tmp/t.db", table="t", key="id")


def events() -> Stream:
    return stream("in", FileSource(path="in", value="id BIGINT, v BIGINT"))


def counted(rows: Stream) -> Stream:
    return rows.key_by("id").rolling(n="count(*)")


def plan_of(rows: Stream, sink: Sink = UPSERT, guarantee: Guarantee = LEAST, dead_letters: Sink | None = None) -> Plan:
    return plan(Job("job", rows.to("out", sink), guarantee=guarantee, dead_letters=dead_letters))


ABOVE: dict[str, Callable[[], Stream]] = {
    "a select": lambda: counted(events().select(id="cast(rand() * 10 as BIGINT)")),
    "a function": lambda: counted(events().map(lambda row: row, "id BIGINT, v BIGINT", deterministic=False)),
    "an aggregate": lambda: events().key_by("id").rolling(n="sum(rand())"),
    "a transform": lambda: events().transform(lambda frame: frame, deterministic=False),
    "far above": lambda: counted(counted(events().where("rand() < 0.5")).select("id", m="n")).where("n > 1"),
}
HARMLESS: dict[str, Callable[[], Stream]] = {
    "no chance": lambda: counted(events()),
    "no state": lambda: events().select("id", r="rand()"),
    "chance below state": lambda: counted(events()).select("id", r="rand()"),
}


@pytest.mark.parametrize("rows", ABOVE)
def test_an_upsert_whose_replay_could_have_other_rows_is_written_without_the_ledger(rows: str) -> None:
    planned = plan_of(ABOVE[rows]())
    assert not is_exact(planned.logical, planned.logical.node("out"))
    assert planned.reached is LEAST


@pytest.mark.parametrize("rows", HARMLESS)
@pytest.mark.parametrize("sink", [UPSERT, PostgresSink(table="t", dsn="host=h", key="id")])
def test_any_other_upsert_is_written_with_the_ledger(rows: str, sink: Sink) -> None:
    planned = plan_of(HARMLESS[rows](), sink)
    assert is_exact(planned.logical, planned.logical.node("out"))


def test_more_than_at_least_once_is_refused_above_state() -> None:
    planned = plan_of(ABOVE["a select"](), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)
    assert planned.reached is LEAST
    assert planned.refusal() is not None


@pytest.mark.parametrize("rows", ["a select", "no chance"])
def test_dead_letters_by_key_depend_on_all_state_of_the_job(rows: str) -> None:
    letters = SqliteSink(path="/tmp/t.db", table="letters", key=("step", "reason"))
    graph = plan_of({**ABOVE, **HARMLESS}[rows](), KafkaSink(topic="t", servers="h:1"), dead_letters=letters).logical
    assert is_nondeterministic_above_state(graph, graph.node("dead-letters")) == (rows == "a select")


# -- a part of a split that is not deterministic: an event is in it for all that reads the part, or for none -----------


def outputs(*rows: Stream) -> Job:
    ends = [one.to(f"out-{number}", KafkaSink(topic=f"out-{number}", servers="h:1")) for number, one in enumerate(rows)]
    return Job("job", *ends, guarantee=LEAST)


def red() -> Stream:
    return events().split(red="rand() < 0.5", blue="id > 1")["red"]


def test_a_part_with_state_behind_one_of_its_branches_is_refused() -> None:
    part = red()
    with pytest.raises(BadJob, match="part 'red' would be computed 2 times"):
        plan(outputs(part, counted(part)))


def test_two_outputs_of_a_part_are_one_pass_over_its_rows() -> None:
    part = red()
    planned = plan(outputs(part, part.where("id > 5")))
    ways = [way_of(planned.logical, node) for node in planned.logical.of_kind("sink")]
    assert {way.shared for way in ways if way is not None} == {"red"}
