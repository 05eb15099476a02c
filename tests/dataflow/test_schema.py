import pytest

from lockgate.dataflow.schema import Column, Schema, parse_ddl
from lockgate.errors import BadJob

WHERE = "source 'orders', declared at orders.py:7"


def names(ddl: str) -> tuple[str, ...]:
    return parse_ddl(ddl, WHERE).names


def test_names_types_and_nulls_are_read_in_order() -> None:
    assert parse_ddl("ip STRING, at TIMESTAMP NOT NULL, amount DECIMAL(10, 2)", WHERE).columns == (
        Column(name="ip", type="STRING"),
        Column(name="at", type="TIMESTAMP", is_nullable=False),
        Column(name="amount", type="DECIMAL(10, 2)"),
    )


@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        ("`odd name` STRING, b INT", ("odd name", "b")),
        ("ip: STRING, n: INT", ("ip", "n")),
        ("user STRUCT<name: STRING, tags: ARRAY<STRING>>, m MAP<STRING, INT>", ("user", "m")),
        ("a STRUCT<x INT COMMENT 'one, two', y: STRING NOT NULL>, b INT", ("a", "b")),
        ("a INT COMMENT 'it has a, comma', b INT", ("a", "b")),
        ("a LONG, b SHORT, c BYTE, d REAL, e VARIANT, f BINARY, g DATE", tuple("abcdefg")),
        ("a TIMESTAMP_NTZ, b TIMESTAMP_LTZ, c INTERVAL DAY TO SECOND", ("a", "b", "c")),
        # Words with a meaning in SQL that Spark takes as names all the same.
        (
            "timestamp TIMESTAMP, date DATE, value INT, key STRING, user STRING",
            ("timestamp", "date", "value", "key", "user"),
        ),
        ("check INT, unique INT, like INT, primary STRING", ("check", "unique", "like", "primary")),
        ("constraint STRING, foreign STRING, references INT", ("constraint", "foreign", "references")),
        ("select STRING, table STRING, order INT, group INT", ("select", "table", "order", "group")),
        ("a int,\n  b string not null", ("a", "b")),
    ],
)
def test_what_spark_reads_is_read(ddl: str, expected: tuple[str, ...]) -> None:
    assert names(ddl) == expected


@pytest.mark.parametrize(
    ("ddl", "why"),
    [
        ("", "names no column"),
        ("ip", "has no type"),
        ("ip STRNG", "cannot be read"),
        ("ip STRING ip2 STRING", "cannot be read"),
        ("ip STRING, IP INT", "column 'IP' is named twice"),
        ("a-b INT", "cannot be read"),
        ("a ARRAY<STRNG>", "cannot be read"),
        ("a STRUCT<", "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_schema_and_an_example(ddl: str, why: str) -> None:
    with pytest.raises(BadJob) as refused:
        parse_ddl(ddl, WHERE)
    assert repr(ddl) in refused.value.what
    assert why in refused.value.what
    assert refused.value.where == WHERE
    assert "ip STRING, at TIMESTAMP" in refused.value.fix


def test_a_column_is_found_in_any_case_as_spark_finds_it() -> None:
    schema = parse_ddl("userId STRING", WHERE)
    assert schema.find("USERID") == Column(name="userId", type="STRING")
    assert schema.find("user") is None


def test_a_schema_is_shown_with_what_is_not_known() -> None:
    assert str(Schema(columns=(Column(name="a", type="INT"), Column(name="b")))) == "a INT, b ?"
