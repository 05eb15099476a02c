"""A stream joined with a table: the look-up against plain Python, the server, and all of it in Spark."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from lockgate import FileTable, Guarantee, Job, MemorySink, MemorySource, Stream, Table, stream, table, windows
from lockgate.errors import BadJob, EpochFailed, Failed, Refused
from lockgate.serving.rpc import Address
from lockgate.spark import tablejoin as looked_up
from lockgate.spark.tablejoin import Lookup
from lockgate.spark.tableserver import TableServer, fetch
from support.runs import run_to_the_end

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
KEYS = st.one_of(st.none(), st.integers(-3, 3))


def found(lookup: Lookup, *columns: list[Any], types: tuple[Any, ...] = (pa.int32(), pa.int32())) -> list[list[Any]]:
    arrays = [pa.array(column, type=kind) for column, kind in zip(columns, types, strict=False)]
    return [rows for lists in lookup.find(arrays) for rows in lists.to_pylist()]


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(st.tuples(KEYS, KEYS)), events=st.lists(st.tuples(KEYS, KEYS)), at_once=st.integers(1, 8))
def test_every_event_meets_the_rows_of_its_key_in_their_order(
    rows: list[tuple[Any, Any]], events: list[tuple[Any, Any]], at_once: int
) -> None:
    held = pa.table(
        {
            "a": pa.array([a for a, _ in rows], type=pa.int64()),
            "b": pa.array([b for _, b in rows], type=pa.int16()),
            "n": pa.array(range(len(rows)), type=pa.int32()),
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(looked_up, "ROWS_AT_ONCE", at_once)
        by_both = found(Lookup(held, ["a", "b"], ["n"]), [a for a, _ in events], [b for _, b in events])
        by_one = found(Lookup(held, ["b"], ["a", "n"]), [b for _, b in events])
    assert by_both == [[{"n": n} for n, row in enumerate(rows) if row == event and None not in row] for event in events]
    assert by_one == [
        [{"a": row[0], "n": n} for n, row in enumerate(rows) if b is not None and row[1] == b] for _, b in events
    ]


def test_many_rows_of_one_key_come_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looked_up, "ROWS_AT_ONCE", 10)
    held = pa.table({"k": ["x"] * 7 + ["y"], "n": list(range(8))})
    pieces = list(Lookup(held, ["k"], ["n"]).find([pa.array(["x", "y", "x", None, "x", "z"])]))
    assert [len(piece.values) for piece in pieces] == [8, 7, 7]
    assert sum(len(piece) for piece in pieces) == 6


def test_a_table_of_nothing_but_keys_says_how_often_it_has_them() -> None:
    held = pa.table({"k": pa.array([1, 2, 2], type=pa.int32())})
    assert [len(rows) for rows in found(Lookup(held, ["k"], []), [2, 3, 1])] == [2, 0, 1]


@pytest.mark.parametrize(
    ("kind", "value", "other"),
    [
        (pa.string(), "a", "b"),
        (pa.binary(), b"a", b"b"),
        (pa.bool_(), True, False),
        (pa.date32(), date(2026, 1, 1), date(2026, 1, 2)),
        (pa.timestamp("us", "UTC"), BEGIN, BEGIN + timedelta(microseconds=1)),
        (pa.timestamp("us"), datetime(2026, 1, 1), datetime(2026, 1, 2)),
        (pa.decimal128(10, 2), Decimal("1.10"), Decimal("1.11")),
        (pa.int8(), 1, 2),
    ],
)
def test_keys_of_every_type_are_found(kind: Any, value: Any, other: Any) -> None:
    held = pa.table({"k": pa.array([value], type=kind), "n": [7]})
    assert found(Lookup(held, ["k"], ["n"]), [value, other, None], types=(kind,)) == [[{"n": 7}], [], []]


# -- the server
# ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def table_server() -> Iterator[TableServer]:
    held = {("customers", "one"): b"x" * (20 << 20)}
    table_server = TableServer(
        lambda name, snapshot: held.get((name, snapshot), b""), host="127.0.0.1", bind="127.0.0.1"
    )
    yield table_server
    table_server.close()


def test_a_worker_gets_the_snapshot_that_it_asks_for(table_server: TableServer) -> None:
    assert fetch(table_server.address, "customers", "one") == b"x" * (20 << 20)
    with pytest.raises(EpochFailed, match="does not hold snapshot two"):
        fetch(table_server.address, "customers", "two")


def test_no_client_gets_a_table_without_the_secret(table_server: TableServer) -> None:
    stranger = replace(table_server.address, secret=b"guessed")
    with pytest.raises(EpochFailed, match="does not answer"):
        fetch(stranger, "customers", "one")
    assert b"guessed" not in repr(stranger).encode()


def test_a_closed_server_is_reported(table_server: TableServer) -> None:
    address: Address = table_server.address
    table_server.close()
    with pytest.raises(EpochFailed, match="does not answer"):
        fetch(address, "customers", "one")


# -- in Spark ----------------------------------------------------------------------------------------------------------

SCHEMA = "k INT, v INT, at TIMESTAMP"
EVENTS = [(n % 7 if n % 5 else None, n, BEGIN + timedelta(seconds=n)) for n in range(60)]


def source(rows: list[tuple[Any, ...]] = EVENTS, value: str = SCHEMA) -> Stream:
    return stream("events", MemorySource(rows, value=value, per_epoch=25))


def file_table(folder: Path, rows: dict[str, Any], schema: str) -> Table:
    parquet.write_table(pa.table(rows), folder / "names.parquet")
    return table(
        "names", FileTable(path=str(folder / "names.parquet"), format="parquet", schema=schema), refresh="1 hour"
    )


def rows_of(last: Stream, tmp_path: Path) -> Counter[tuple[Any, ...]]:
    sink = MemorySink()
    job = Job("enrich", last.to("out", sink), guarantee=Guarantee.AT_LEAST_ONCE)
    run_to_the_end(job, tmp_path)
    return Counter(tuple(row) for row in sink.rows)


NAMES = {"K": [1, 2, 2, 3, None], "name": ["one", "two", "zwei", None, "nobody"]}
NAMES_DDL = "K BIGINT, name STRING"


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("how", ["inner", "left"])
def test_events_meet_the_rows_of_a_table_as_in_sql(how: str, tmp_path: Path) -> None:
    names: dict[int, list[str | None]] = {1: ["one"], 2: ["two", "zwei"], 3: [None]}
    none = [None] if how == "left" else []
    expected = Counter((k, v, at, name) for k, v, at in EVENTS for name in names.get(k, none))
    joined = source().join(file_table(tmp_path, NAMES, NAMES_DDL), on="k", how=how)
    assert rows_of(joined, tmp_path) == expected


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_time_and_order_go_through_a_join_with_a_table(tmp_path: Path) -> None:
    joined = source().event_time("at", lateness="0 seconds").join(file_table(tmp_path, NAMES, NAMES_DDL), on="k")
    last = joined.key_by("name").window(windows.tumbling("20 seconds")).aggregate(n="count(*)", first="min(v)")
    names: dict[int, list[str | None]] = {1: ["one"], 2: ["two", "zwei"], 3: [None]}
    groups: dict[tuple[Any, ...], list[int]] = {}
    for k, v, _ in EVENTS[:40]:  # the last window stays open
        for name in names.get(k, []):
            groups.setdefault((name, BEGIN + timedelta(seconds=v // 20 * 20)), []).append(v)
    assert rows_of(last, tmp_path) == Counter(
        (name, start, start + timedelta(seconds=20), len(values), min(values))
        for (name, start), values in groups.items()
    )


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_rows_of_one_event_are_distinguished_and_stay_in_order(tmp_path: Path) -> None:
    joined = source().join(file_table(tmp_path, NAMES, NAMES_DDL), on="k").where("k = 2")
    last = joined.key_by("k").rolling(n="count(*)").select("v", "name", "n")
    met = [(v, name) for k, v, _ in EVENTS if k == 2 for name in ("two", "zwei")]
    assert rows_of(last, tmp_path) == Counter((*pair, number) for number, pair in enumerate(met, start=1))


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_values_of_every_type_come_out_as_they_are(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "k": pa.array([1], type=pa.int32()),
        "at_": pa.array([BEGIN + timedelta(microseconds=1)], type=pa.timestamp("us", "UTC")),
        "day": pa.array([date(2026, 2, 3)], type=pa.date32()),
        "price": pa.array([Decimal("-1.25")], type=pa.decimal128(10, 2)),
        "raw": pa.array([b"\x00\xff"], type=pa.binary()),
        "tags": pa.array([["a", None]], type=pa.list_(pa.string())),
        "place": pa.array([{"x": 1.5, "y": None}], type=pa.struct([("x", pa.float64()), ("y", pa.float64())])),
        "flag": pa.array([True]),
    }
    ddl = (
        "k INT, at_ TIMESTAMP, day DATE, price DECIMAL(10, 2), raw BINARY, tags ARRAY<STRING>,"
        " place STRUCT<x: DOUBLE, y: DOUBLE>, flag BOOLEAN"
    )
    sink = MemorySink()
    joined = source([(1, 0, BEGIN)]).join(file_table(tmp_path, values, ddl), on="k").select(*values)
    job = Job("types", joined.to("out", sink), guarantee=Guarantee.AT_LEAST_ONCE)
    run_to_the_end(job, tmp_path)
    (row,) = sink.rows
    expected = {name: column[0].as_py() for name, column in values.items()}
    told = row.asDict(recursive=True)
    assert {name: bytes(value) if name == "raw" else value for name, value in told.items()} == expected


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_list_of_keys_lets_through_what_is_on_it(tmp_path: Path) -> None:
    known = file_table(tmp_path, {"k": [1, 3], "v": [1, 3]}, "v BIGINT, k BIGINT")
    random_rows = [(random.Random(n).randrange(4), n % 4, BEGIN) for n in range(50)]
    expected = Counter(row for row in random_rows if row[0] == row[1] and row[0] in (1, 3))
    assert rows_of(source(random_rows).join(known, on=["k", "v"]), tmp_path) == expected


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("k STRING, name STRING", "column 'k' is int in the stream and string in table 'names'"),
        ("k INT, name STRING, lost INT", "lacks the column lost"),
        ("k BIGINT, name INT", "cannot be read as parquet"),
        ("k BIGINT, name STRING NOT NULL", "is declared NOT NULL"),
    ],
)
def test_a_table_that_does_not_fit_stops_the_job_before_it_runs(schema: str, told: str, tmp_path: Path) -> None:
    joined = source().join(file_table(tmp_path, {"k": [1, 2], "name": ["one", None]}, schema), on="k")
    with pytest.raises((BadJob, Refused, Failed)) as caught:
        rows_of(joined, tmp_path)
    assert told in caught.value.what
    assert "test_tablejoin.py" in caught.value.where


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("sql", "told"), [(["v"], "column 'k' does not exist"), (["k", "'x' AS NAME"], "have a column name")]
)
def test_what_only_spark_can_know_is_refused_too(sql: list[str], told: str, tmp_path: Path) -> None:
    opaque = source().transform(lambda frame: frame.selectExpr(*sql))
    with pytest.raises(BadJob) as caught:
        rows_of(opaque.join(file_table(tmp_path, NAMES, NAMES_DDL), on="k"), tmp_path)
    assert told in caught.value.what


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_keys_that_are_equal_only_nearly_are_refused(tmp_path: Path) -> None:
    rows = source([(1.5, 1)], value="k DOUBLE, v INT")
    with pytest.raises(BadJob, match="column 'k' of type double cannot be looked up"):
        rows_of(rows.join(file_table(tmp_path, {"k": [1.5], "name": ["x"]}, "k DOUBLE, name STRING"), on="k"), tmp_path)
