"""What a fan-out is asked for with: functions and their types by the same names, a deadline, a policy."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import pytest

from lockgate import MemorySource, Partial, Stream, stream
from lockgate.dataflow.fanout import FanOut
from lockgate.errors import BadJob

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]

HERE = Path(__file__).name
SCHEMA = "amount DOUBLE, place DOUBLE"


def score(row: Any) -> float:
    return 1.0


def payments() -> Stream:
    return stream("payments", MemorySource([], value="id STRING, card STRING"))


def fan(**options: Any) -> FanOut:
    given = {"deadline": "20 ms", "schema": SCHEMA, "amount": score, "place": score, **options}
    step = payments().fan_out(**given).step
    assert isinstance(step, FanOut)
    return step


def test_a_fan_out_is_what_was_asked_for() -> None:
    step = fan(partial=Partial.DEAD_LETTER, in_flight=3)
    assert dict(step.functions) == {"amount": score, "place": score}
    assert (step.deadline, step.partial, step.in_flight) == (timedelta(milliseconds=20), Partial.DEAD_LETTER, 3)
    assert step.scores("here").names == ("amount", "place")
    assert fan(deadline=timedelta(seconds=1)).deadline == timedelta(seconds=1)
    assert fan().partial is Partial.PUBLISH


def test_its_functions_cannot_be_changed_behind_its_back() -> None:
    with pytest.raises(TypeError):
        fan().functions["amount"] = score  # type: ignore[index]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"schema": "amount DOUBLE"}, "function 'place' has no type in the schema"),
        ({"schema": f"{SCHEMA}, speed DOUBLE"}, "column 'speed' of the schema has no function"),
        ({"schema": "amount DOUBLE, Place DOUBLE"}, "column 'Place' of the schema has no function"),
        ({"schema": "amount DOUBLE NOT NULL, place DOUBLE"}, "amount is NOT NULL, and a score that is missing is null"),
        ({"schema": f"{SCHEMA}, missing INT", "missing": score}, "missing is the name of a column"),
        ({"schema": "amount, place"}, "cannot be read"),
        ({"schema": 7}, "schema= takes the types of the scores as DDL, not 7"),
        ({"amount": "score"}, "fan_out takes functions of a row, at least one, not amount='score'"),
        ({"partial": "publish"}, "partial= takes a Partial"),
        ({"in_flight": 0}, "in_flight= takes a whole number above zero, not 0"),
        ({"in_flight": True}, "in_flight= takes a whole number"),
        ({"deadline": "soon"}, "the deadline of a fan-out is not a duration"),
        ({"deadline": "0 seconds"}, "the deadline of a fan-out must be more than zero"),
    ],
)
def test_what_cannot_mean_anything_is_refused_with_the_users_line(options: dict[str, Any], told: str) -> None:
    with pytest.raises(BadJob) as refused:
        fan(**options)
    assert told in refused.value.what
    assert f"declared at {HERE}:" in refused.value.where
    assert refused.value.fix


def test_a_fan_out_of_nothing_is_refused() -> None:
    with pytest.raises(BadJob, match="at least one, not none"):
        payments().fan_out(deadline="20 ms", schema="a INT")


def as_int(row: Unknown) -> int:
    return 1


def as_text(row: Any) -> str | None:
    return None


def as_flag(row: Any) -> Optional[bool]:  # noqa: UP045 - both forms are in use
    return None


def as_anything(row: Any) -> Any:
    return 1.0


def as_list(row: Any) -> list[float]:
    return []


def as_either(row: Any) -> int | str:
    return 1


def as_unknown(row: Any) -> Unknown:
    return 1


class Model:
    """A callable with columns of its own, which are no annotations of what it gives."""

    threshold: int = 3

    def __call__(self, row: Any) -> float:
        return 1.0

    def grade(self, row: Any) -> int:
        return 1


def unannotated(row):  # type: ignore[no-untyped-def]
    return 1.0


def evaluated(row):  # type: ignore[no-untyped-def]
    return 1


evaluated.__annotations__ = {"return": int}


@pytest.mark.parametrize(
    ("function", "type_"),
    [
        (score, "DOUBLE"),
        (as_int, "BIGINT"),
        (as_text, "STRING"),
        (as_flag, "BOOLEAN"),
        (as_anything, "DOUBLE"),
        (unannotated, "DOUBLE"),
        (evaluated, "BIGINT"),
        (lambda row: 1.0, "DOUBLE"),
        (functools.partial(as_int), "BIGINT"),
        (Model(), "DOUBLE"),
        (Model().grade, "BIGINT"),
        (max, "DOUBLE"),
    ],
)
def test_without_a_schema_a_function_says_what_it_gives(function: Callable[[Any], Any], type_: str) -> None:
    step = payments().fan_out(deadline="20 ms", order=function, place=score).step
    assert isinstance(step, FanOut)
    assert [(column.name, column.type) for column in step.scores("here").columns] == [
        ("order", type_),
        ("place", "DOUBLE"),
    ]


@pytest.mark.parametrize(
    ("function", "told"), [(as_list, "list[float]"), (as_either, "int | str"), (as_unknown, "Unknown")]
)
def test_what_does_not_say_the_type_of_a_column_is_refused(function: Callable[[Any], Any], told: str) -> None:
    with pytest.raises(BadJob) as refused:
        payments().fan_out(deadline="20 ms", amount=score, place=function)
    assert f"function 'place' returns {told}" in refused.value.what
    assert f"declared at {HERE}:" in refused.value.where
    assert 'schema="place DOUBLE, ..."' in refused.value.fix
    assert payments().fan_out(deadline="20 ms", schema=SCHEMA, amount=score, place=function)


async def ask(row: Any) -> float:
    return 1.0


async def ask_often(row: Any) -> AsyncIterator[float]:
    yield 1.0


class Asking:
    async def __call__(self, row: Any) -> float:
        return 1.0


@pytest.mark.parametrize("function", [ask, ask_often, Asking(), functools.partial(ask)])
@pytest.mark.parametrize("schema", [SCHEMA, None])
def test_a_wait_that_is_too_long_is_refused(function: Any, schema: str | None) -> None:
    with pytest.raises(BadJob) as refused:
        fan(place=function, schema=schema)
    assert "function 'place' is async" in refused.value.what
    assert f"declared at {HERE}:" in refused.value.where
    assert "def" in refused.value.fix
