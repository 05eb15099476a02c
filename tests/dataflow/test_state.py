"""What an author may declare, and what is refused at the author's own line."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from lockgate.dataflow.state import (
    Context,
    StatefulFunction,
    check_function,
    check_travels,
    list_of,
    make_operator,
    map_of,
    value,
)
from lockgate.errors import BadJob
from lockgate.operators.contract import Clock, Time

HERE = Path(__file__).name
CLOCK = Clock(before=0, now=0, wall=0)


class Counting(StatefulFunction):
    schema = "team STRING NOT NULL, n BIGINT"
    total = value("long")
    seen = map_of("STRING", "STRUCT<at: TIMESTAMP, tags: ARRAY<STRING>>", ttl="1 hour")
    last = list_of("DECIMAL(5,2)", ttl=timedelta(days=1))

    def process(self, row: Any, context: Context) -> Iterator[Any]:
        self.total.set((self.total.get() or 0) + 1)
        yield row.team, self.total.get()


def test_a_function_gives_the_columns_of_its_schema() -> None:
    assert check_function(Counting()).names == ("team", "n")


def test_declarations_are_plain_data_in_one_spelling() -> None:
    hour_us = 3_600_000_000
    assert make_operator(Counting(), keys=("team",), columns=("team",)).state_schema == {
        "total": {"kind": "value", "type": "BIGINT", "ttl_us": None},
        "seen": {
            "kind": "map",
            "key": "STRING",
            "type": "STRUCT<at: TIMESTAMP, tags: ARRAY<STRING>>",
            "ttl_us": hour_us,
        },
        "last": {"kind": "list", "type": "DECIMAL(5, 2)", "ttl_us": 24 * hour_us},
    }


def test_an_operator_reads_the_columns_and_the_time_of_an_event() -> None:
    operator = make_operator(Counting(), keys=("team",), columns=("team", "at"), event_time="__time")
    assert operator.reads == ("team", "at", "__time")
    assert [side.columns for side in operator.sides] == [Counting.schema]
    assert make_operator(Counting(), keys=("team",), columns=("team", "at")).reads == ("team", "at")


def test_the_time_that_moves_a_function_follows_from_what_it_declares() -> None:
    class Plain(Counting):
        seen, last = None, None  # type: ignore[assignment]

    class Stateless(StatefulFunction):
        schema = "n INT"

        def process(self, row: Any, context: Context) -> None:
            return None

    class Waiting(Stateless):
        def on_timer(self, timer: Any, context: Context) -> None:
            return None

    assert make_operator(Stateless(), keys=(), columns=("a",)).time is Time.NONE
    assert make_operator(Waiting(), keys=(), columns=("a",)).time is Time.WALL
    assert make_operator(Counting(), keys=(), columns=("a",)).time is Time.WALL
    assert make_operator(Stateless(), keys=(), columns=("a",), event_time="__time").time is Time.EVENT
    assert make_operator(Plain(), keys=(), columns=("a",)).time is Time.NONE


def test_states_may_be_inherited_and_declared_by_an_object() -> None:
    class More(Counting):
        extra = value("INT")

        def __init__(self, ttl: str) -> None:
            self.own = value("STRING", ttl=ttl)

    schema = make_operator(More("5 seconds"), keys=("team",), columns=("team",)).state_schema
    assert set(schema) == {"total", "seen", "last", "extra", "own"}
    assert schema["own"]["ttl_us"] == 5_000_000


def test_a_frozen_dataclass_can_be_a_function() -> None:
    @dataclass(frozen=True)
    class Above(StatefulFunction):
        limit: int
        schema = "n BIGINT"
        total = value("BIGINT")

        def process(self, row: Any, context: Context) -> Iterator[Any]:
            self.total.set((self.total.get() or 0) + 1)
            if self.total.get() > self.limit:
                yield (self.total.get(),)

    operator = make_operator(Above(limit=1), keys=("a",), columns=("a",))
    assert operator.step((1,), None, [(0, 1), (1, 1)], CLOCK).rows == [(0, (2,))]


def test_a_class_that_travels_by_value_works_where_it_arrives() -> None:
    class Local(Counting):
        more = value("INT")

    operator = make_operator(Local(), keys=("team",), columns=("team",))
    operator.step(("a",), None, [(0, "a")], CLOCK)  # opened, with state in hand: that stays behind
    arrived = cloudpickle.loads(cloudpickle.dumps(operator))  # type: ignore[no-untyped-call]
    assert arrived.step(("a",), None, [(0, "a")], CLOCK).rows == [(0, ("a", 1))]
    assert arrived.state_schema == operator.state_schema


def test_the_declared_state_belongs_to_no_key() -> None:
    for use in (Counting().total.get, lambda: Counting().total.set(1), Counting().seen.items, Counting().last.clear):
        with pytest.raises(RuntimeError, match="state belongs to a key"):
            use()


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: value("NUMBER OF THINGS"), "the type of a state cannot be read: 'NUMBER OF THINGS'"),
        (lambda: value("VARIANT"), "the type of a state cannot be 'VARIANT': a state cannot hold VARIANT"),
        (lambda: value("STRUCT<a: INT NOT NULL>"), "the type of a state cannot be"),
        (lambda: value("INT, b INT"), "the type of a state cannot be 'INT, b INT'"),
        (lambda: value(""), "the type of a state cannot be read: ''"),
        (lambda: value(int), "the type of a state is written as text, not <class 'int'>"),  # type: ignore[arg-type]
        (lambda: list_of("LIST<INT>"), "the type of a state"),
        (lambda: map_of("ARRAY<INT>", "INT"), "the keys of a map cannot be ARRAY<INT>"),
        (lambda: value("INT", ttl="-1 second"), "the time to live of a state must be more than zero"),
        (lambda: list_of("INT", ttl="0 seconds"), "the time to live of a state must be more than zero"),
        (lambda: map_of("INT", "INT", ttl="soon"), "the time to live of a state is not a duration: 'soon'"),
    ],
)
def test_a_state_that_makes_no_sense_is_refused_at_its_line(make: Callable[[], object], what: str) -> None:
    with pytest.raises(BadJob) as refused:
        make()
    assert what in refused.value.what
    assert refused.value.where == f"declared at {HERE}:{make.__code__.co_firstlineno}"
    assert refused.value.fix


def nothing(self: object, row: object, context: object) -> None:
    return None


def make_class(**members: object) -> type[StatefulFunction]:
    return type("Made", (StatefulFunction,), {"schema": "n INT", "process": nothing, **members})


SHARED = value("INT")


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (make_class(schema="")(), "Made has no schema"),
        (make_class(schema=None)(), "Made has no schema"),
        (make_class(schema="n THING")(), "the schema 'n THING' cannot be read"),
        (make_class(process=StatefulFunction.process)(), "Made has no process method"),
        (make_class(), "process takes a StatefulFunction"),
        (len, "process takes a StatefulFunction, not <built-in function len>"),
        (make_class(on_timer=value("INT"))(), "Made has a state named 'on_timer', which is taken"),
        (make_class(schema=value("INT"))(), "Made has a state named 'schema', which is taken"),
        (make_class(one=SHARED, two=SHARED)(), "Made has one state under two names, 'one' and 'two'"),
        (
            type("Lower", (make_class(total=value("INT")),), {"total": value("STRING")})(),
            f"Lower has two states named 'total', one declared at {HERE}",
        ),
    ],
)
def test_a_function_that_cannot_run_is_refused_at_the_users_line(function: object, what: str) -> None:
    with pytest.raises(BadJob) as refused:
        check_function(function)
    assert what in refused.value.what
    assert HERE in refused.value.where
    assert refused.value.fix


def test_a_function_that_holds_what_cannot_travel_is_refused() -> None:
    function = Counting()
    check_travels(function, where="here")
    function.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(BadJob, match="Counting cannot be sent to the workers: TypeError"):
        check_travels(function, where="here")
