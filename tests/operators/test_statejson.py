"""State survives a way through JSON, whatever its type; what is not of its type is not guessed."""

import json
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from lockgate.dataflow.state import list_of, map_of, value
from lockgate.operators.keyedstate import State
from lockgate.operators.statejson import as_json, as_text, from_json, key_texts, read_state
from lockgate.operators.statetypes import Type, read_type

PLAIN = ("STRING", "INT", "BIGINT", "DOUBLE", "FLOAT", "BOOLEAN", "TIMESTAMP", "DATE", "BINARY", "DECIMAL(30, 5)")


def make_type(rng: random.Random, depth: int = 2) -> str:
    kind = rng.choice((*PLAIN, "ARRAY", "MAP", "STRUCT")) if depth else rng.choice(PLAIN)
    if kind == "ARRAY":
        return f"ARRAY<{make_type(rng, depth - 1)}>"
    if kind == "MAP":
        return f"MAP<{rng.choice(PLAIN)}, {make_type(rng, depth - 1)}>"
    if kind == "STRUCT":
        return f"STRUCT<one: {make_type(rng, depth - 1)}, two: {make_type(rng, depth - 1)}>"
    return kind


def make_value(rng: random.Random, kind: Type) -> Any:
    if kind.name == "ARRAY":
        return [make_value(rng, kind.inner[0]) if rng.random() < 0.8 else None for _ in range(rng.randrange(4))]
    if kind.name == "MAP":
        return {make_value(rng, kind.inner[0]): make_value(rng, kind.inner[1]) for _ in range(rng.randrange(4))}
    if kind.name == "STRUCT":
        return {field: make_value(rng, inner) for field, inner in zip(kind.fields, kind.inner, strict=True)}
    return {
        "STRING": lambda: rng.choice(["", "true", "null", "1", "ä\n\"'", "😀"]),
        "INT": lambda: rng.randrange(-(1 << 31), 1 << 31),
        "BIGINT": lambda: rng.randrange(-(1 << 63), 1 << 63),
        "DOUBLE": lambda: rng.choice([0.1, -1e300, float("inf"), rng.random()]),
        "FLOAT": lambda: rng.random(),
        "BOOLEAN": lambda: rng.random() < 0.5,
        "TIMESTAMP": lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(microseconds=rng.randrange(10**15)),
        "DATE": lambda: date(2026, 1, 1) + timedelta(days=rng.randrange(9999)),
        "BINARY": lambda: rng.randbytes(rng.randrange(9)),
        "DECIMAL": lambda: Decimal(f"{rng.randrange(-(10**24), 10**24)}.{rng.randrange(10**5):05}"),
    }[kind.name]()


@pytest.mark.parametrize("seed", range(200))
def test_what_was_written_is_read_again(seed: int) -> None:
    rng = random.Random(seed)
    kind = read_type(make_type(rng))
    data = make_value(rng, kind)
    text = json.dumps(as_json(data))
    assert from_json(kind, json.loads(text, parse_float=Decimal)) == data


def test_states_are_read_by_their_declarations_and_the_rest_is_left_to_the_user() -> None:
    states: dict[str, State] = {"n": value("DECIMAL(38, 2)"), "l": list_of("DATE"), "m": map_of("INT", "BIGINT")}
    text = (
        '{"key": [1], "state": {"n": 123456789012345678901234567890.12, "l": ["2026-01-31"], "m": {"1": 2}, "x": 0.5}}'
    )
    assert read_state(text, states) == {
        "n": Decimal("123456789012345678901234567890.12"),
        "l": [date(2026, 1, 31)],
        "m": {1: 2},
        "x": 0.5,
    }


@pytest.mark.parametrize(
    ("kind", "data"),
    [("INT", "one"), ("INT", 1 << 31), ("BOOLEAN", "yes"), ("DATE", "soon"), ("BINARY", "*"), ("DECIMAL(4, 2)", "x")],
)
def test_what_does_not_fit_is_refused(kind: str, data: Any) -> None:
    with pytest.raises(ValueError, match=r"one|INT|yes|soon|BINARY|DECIMAL"):
        from_json(read_type(kind), data)


def test_a_user_may_show_something_else_under_the_name_of_a_state() -> None:
    assert read_state('{"state": {"n": {"of": 1.5}}}', {"n": value("INT")}) == {"n": {"of": 1.5}}
    with pytest.raises(ValueError, match="a state is a JSON object"):
        read_state('{"state": 3}', {})


def test_keys_are_text_and_null() -> None:
    assert key_texts(("a", None, 1, True, b"x")) == ["a", None, "1", "true", "eA=="]
    with pytest.raises(TypeError, match="object is no plain data"):
        as_text(object())
