"""Types of state: read from text, and what fits them."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row

from lockgate.operators.statetypes import converter, read_type

UTC = UTC
SCALARS = ("STRING", "INT", "BIGINT", "FLOAT", "DOUBLE", "BOOLEAN", "TIMESTAMP", "DATE", "BINARY", "DECIMAL(12, 3)")


class Colour(StrEnum):
    RED = "red"


def types() -> st.SearchStrategy[str]:
    scalars = st.sampled_from(SCALARS)
    names = st.lists(st.sampled_from(["a", "b", "C", "`d e`", "`f``g`"]), min_size=1, max_size=3, unique=True)
    return st.recursive(
        scalars,
        lambda inner: (
            inner.map(lambda kind: f"ARRAY<{kind}>")
            | st.tuples(scalars, inner).map(lambda kinds: f"MAP<{kinds[0]}, {kinds[1]}>")
            | st.tuples(names, inner).map(lambda parts: f"STRUCT<{', '.join(f'{n}: {parts[1]}' for n in parts[0])}>")
        ),
        max_leaves=4,
    )


@given(types())
def test_a_type_is_written_as_it_is_read(text: str) -> None:
    assert str(read_type(text)) == text


@pytest.mark.parametrize(("text", "digits"), [("DECIMAL", (10, 0)), ("DECIMAL(5)", (5, 0)), ("decimal(5, 2)", (5, 2))])
def test_a_decimal_has_the_digits_that_spark_gives_it(text: str, digits: tuple[int, int]) -> None:
    assert read_type(text).digits == digits


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("VARIANT", "a state cannot hold VARIANT"),
        ("ARRAY<TINYINT>", "a state cannot hold TINYINT"),
        ("STRUCT<a: INT NOT NULL>", "'NOT' stands where"),
        ("MAP<ARRAY<INT>, INT>", "a map's key cannot be ARRAY<INT>"),
        ("INT INT", "'INT' has no place"),
        ("ARRAY<INT", "'its end' stands where"),
        ("", "a state cannot hold ITS END"),
    ],
)
def test_what_is_no_type_of_a_state_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_type(text)


@pytest.mark.parametrize(
    ("type", "value", "kept"),
    [
        ("STRING", "a", "a"),
        ("STRING", Colour.RED, "red"),
        ("INT", -(2**31), -(2**31)),
        ("BIGINT", 2**63 - 1, 2**63 - 1),
        ("BIGINT", np.int32(5), 5),
        ("DOUBLE", 1.5, 1.5),
        ("DOUBLE", 2, 2.0),
        ("FLOAT", np.float64(1.5), 1.5),
        ("BOOLEAN", True, True),
        ("DATE", date(2024, 2, 29), date(2024, 2, 29)),
        ("BINARY", bytearray(b"ab"), b"ab"),
        ("DECIMAL(5, 2)", Decimal("1.5"), Decimal("1.50")),
        ("DECIMAL(5, 2)", 7, Decimal("7.00")),
        ("TIMESTAMP", datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC)),
        (
            "TIMESTAMP",
            datetime(2024, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))),
            datetime(2024, 1, 1, tzinfo=UTC),
        ),
        ("TIMESTAMP", pd.Timestamp("2024-01-01T00:00:01Z"), datetime(2024, 1, 1, 0, 0, 1, tzinfo=UTC)),
        ("ARRAY<INT>", (1, None), [1, None]),
        ("MAP<STRING, INT>", {"a": 1, "b": None}, {"a": 1, "b": None}),
        ("STRUCT<a: INT, b: STRING>", {"b": None, "a": 1}, {"a": 1, "b": None}),
        ("STRUCT<a: INT, b: STRUCT<c: INT>>", Row(a=1, b=Row(c=2)), {"a": 1, "b": {"c": 2}}),
    ],
)
def test_what_fits_becomes_plain_data(type: str, value: object, kept: object) -> None:
    made = converter(read_type(type))(value)
    assert made == kept
    assert made.__class__ is kept.__class__


@pytest.mark.parametrize(
    ("type", "value"),
    [
        ("STRING", 1),
        ("STRING", b"a"),
        ("INT", 2**31),
        ("INT", "1"),
        ("INT", True),
        ("INT", 1.0),
        ("BIGINT", 2**63),
        ("DOUBLE", "1.5"),
        ("DOUBLE", True),
        ("DOUBLE", Decimal(1)),
        ("BOOLEAN", 1),
        ("DATE", datetime(2024, 1, 1)),
        ("TIMESTAMP", date(2024, 1, 1)),
        ("TIMESTAMP", 0),
        ("BINARY", "a"),
        ("DECIMAL(5, 2)", Decimal("1.234")),
        ("DECIMAL(5, 2)", Decimal(1000)),
        ("DECIMAL(5, 2)", Decimal("NaN")),
        ("DECIMAL(5, 2)", 1.5),
        ("ARRAY<INT>", [1, "b"]),
        ("ARRAY<INT>", "12"),
        ("MAP<STRING, INT>", {1: 1}),
        ("MAP<STRING, INT>", {None: 1}),
        ("MAP<STRING, INT>", [("a", 1)]),
        ("STRUCT<a: INT, b: INT>", {"a": 1}),
        ("STRUCT<a: INT>", {"a": 1, "b": 2}),
        ("STRUCT<a: INT>", (1,)),
    ],
)
def test_what_does_not_fit_is_refused_by_its_type(type: str, value: object) -> None:
    with pytest.raises(ValueError, match="is not of type"):
        converter(read_type(type))(value)


def test_a_long_value_is_reported_in_short() -> None:
    with pytest.raises(ValueError, match="is not of type INT") as refused:
        converter(read_type("INT"))("x" * 10_000)
    assert len(str(refused.value)) < 100


@pytest.mark.parametrize(
    ("type", "value", "change"),
    [
        ("ARRAY<ARRAY<INT>>", [[1]], lambda made: made[0].append(2)),
        ("STRUCT<a: ARRAY<INT>>", {"a": [1]}, lambda made: made["a"].append(2)),
        ("MAP<INT, ARRAY<INT>>", {1: [1]}, lambda made: made[1].append(2)),
    ],
)
def test_what_is_made_of_parts_is_copied_to_the_ground(type: str, value: Any, change: Any) -> None:
    before = repr(value)
    change(converter(read_type(type))(value))
    assert repr(value) == before
    assert isinstance(value, Mapping | list)
