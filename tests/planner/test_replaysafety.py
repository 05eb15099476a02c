"""An event may come again where the step that it failed in stood between it and everything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lockgate.connectors.local.memorysink import MemorySink
from lockgate.connectors.local.memorysource import MemorySource
from lockgate.dataflow import exchange
from lockgate.dataflow.job import Job
from lockgate.dataflow.stream import Output, Stream, stream
from lockgate.guarantees import Guarantee
from lockgate.planner.logical import build_logical
from lockgate.planner.replaysafety import find_hindrances

VALUE = "k STRING, v INT, at TIMESTAMP"


def events(name: str = "in") -> Stream:
    return stream(name, MemorySource([], value=VALUE))


def same(row: Any) -> Any:
    return row


def mapped(rows: Stream, **options: Any) -> Stream:
    return rows.map(same, schema=VALUE, **options)


def to(name: str, rows: Stream) -> Output:
    return rows.to(name, MemorySink())


def hindrances(*outputs: Output, step: str = "map", source: str = "in", is_child: bool = False) -> tuple[str, ...]:
    job = Job("again", *outputs, guarantee=Guarantee.AT_LEAST_ONCE, dead_letters=MemorySink())
    return find_hindrances(build_logical(job), step=step, source=source, is_child=is_child)


def one_way() -> list[Output]:
    return [to("out", mapped(events().where("v > 0").select("k", "v", "at")))]


def two_outputs_behind_it() -> list[Output]:
    made = mapped(events())
    return [to("one", made.where("v > 0")), to("two", made.key_by("k").rolling(n="count(*)"))]


def state_behind_it() -> list[Output]:
    return [to("out", mapped(events()).key_by("k").rolling(n="count(*)"))]


def another_source_with_state() -> list[Output]:
    other = events("other").key_by("k").rolling(n="count(*)")
    return [to("out", mapped(events()).merge(other.select("k", "v", "at"))), to("two", events("third"))]


@pytest.mark.parametrize("job", [one_way, two_outputs_behind_it, state_behind_it, another_source_with_state])
def test_nothing_prevents_a_replay_if_the_step_stands_before_everything_else(job: Callable[[], list[Output]]) -> None:
    assert hindrances(*job()) == ()


def test_nothing_has_an_event_that_its_source_could_not_parse() -> None:
    read = events()
    outputs = to("one", mapped(read)), to("two", read.key_by("k").rolling(n="count(*)"))
    assert hindrances(*outputs, step="in") == ()


def test_an_output_past_the_step_has_it_already() -> None:
    read = events()
    found = hindrances(to("one", mapped(read)), to("two", read.select("k")), to("three", read.where("v > 0")))
    assert found == ("output 'two' has the event already", "output 'three' has the event already")


def test_the_step_and_a_way_past_it_may_meet_again() -> None:
    read = events()
    assert hindrances(to("out", mapped(read).merge(read))) == ("output 'out' has the event already",)


def test_ways_of_one_event_that_meet_before_the_step_may_have_fared_differently() -> None:
    read = events()
    merged = read.where("v > 1").merge(read.where("v < 9"))
    (found,) = hindrances(to("out", mapped(merged)))
    assert "brings several ways of the event together" in found


def test_the_dead_letters_themselves_are_no_output_that_has_it() -> None:
    twice = to("out", mapped(mapped(events())))
    assert hindrances(twice, step="map") == ()
    assert hindrances(twice, step="map-2") == ()


def test_state_before_the_step_has_it_already() -> None:
    totals = events().key_by("k").rolling(n="count(*)")
    found = hindrances(to("out", mapped(totals.select("k", "v", "at"))))
    assert found == ("rolling 'rolling' has it in its state already",)
    # The step itself keeps nothing of an event that it failed on.
    assert hindrances(to("out", totals), step="rolling") == ()


def test_a_join_before_the_step_has_it_already() -> None:
    left = events().event_time("at", lateness="1 second")
    right = events("other").select("k", w="v", seen="at").event_time("seen", lateness="1 second")
    joined = left.join(right, on="k", within="1 minute")
    assert "join 'join' has it in its state already" in hindrances(to("out", mapped(joined.select("k", "v", "at"))))


def test_children_of_an_event_have_continued() -> None:
    split = events().flat_map(lambda row: [row, row], schema=VALUE)
    outputs = to("out", mapped(split))
    assert hindrances(outputs, is_child=True) == ("the event was split into several rows, and the others have gone on",)
    assert hindrances(outputs, step="flat_map") == ()


def test_what_may_have_made_several_rows_of_it() -> None:
    assert hindrances(to("out", mapped(events().exchange(exchange.broadcast())))) == (
        "exchange 'exchange' may have made several rows of it",
    )
    assert hindrances(to("out", mapped(events().exchange(exchange.random())))) == ()
    exploded = events().select("v", "at", k="explode(split(k, ' '))")
    assert hindrances(to("out", mapped(exploded))) == ("select 'select' may have made several rows of it",)
    assert hindrances(to("out", exploded), step="select") == ("select 'select' may have made several rows of it",)
    transformed = events().transform(lambda frame: frame)
    assert hindrances(to("out", mapped(transformed))) == ("transform 'transform' may have made several rows of it",)


def test_a_function_that_is_not_deterministic_is_computed_once_and_fails_for_all_outputs() -> None:
    made = mapped(events(), deterministic=False)
    assert hindrances(to("one", made)) == ()
    assert hindrances(to("one", made), to("two", made.where("v > 0"))) == ()


def test_sql_that_fails_is_a_step_like_others() -> None:
    halves = events().select("k", "v", "at", half="10 / v")
    assert hindrances(to("one", halves), to("two", halves.where("v > 0")), step="select") == ()
    parts = events().split(small="10 / v > 5", large="v > 2")
    outputs = to("small", parts["small"]), to("large", parts["large"])
    assert hindrances(*outputs, step="small") == ("output 'large' has the event already",)


def test_sql_that_is_not_deterministic_is_computed_once_and_fails_for_all_outputs() -> None:
    made = events().select("k", "v", "at", x="10 div cast(rand() * 10 AS INT)")
    assert hindrances(to("one", made), to("two", made.where("v > 0")), step="select") == ()


def test_steps_that_are_gone_are_unknown() -> None:
    (told,) = hindrances(*one_way(), step="old")
    assert "'old' or 'in' is not in the job any more" in told
