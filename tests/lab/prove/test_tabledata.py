"""The tables of a job are there, with the columns that it declares, before it runs."""

import csv
import json
from pathlib import Path

import psycopg
import pyarrow.parquet as pq
import pytest

from lockgate import FileTable, PostgresTable
from lockgate.errors import Refused
from lockgate.lab.prove.redirect import TablePlace
from lockgate.lab.prove.tabledata import fill_tables

SCHEMA = "k STRING, n INT, d DECIMAL(6,2), b BOOLEAN, day DATE, at TIMESTAMP, raw BINARY"
ROW = {
    "k": "a,b",
    "n": 7,
    "d": 12.5,
    "b": True,
    "day": "2026-01-01",
    "at": "2026-01-01T00:00:00.250+00:00",
    "raw": "AAE=",
}
ROWS = [ROW, {**dict.fromkeys(ROW), "k": "none"}]


@pytest.mark.parametrize("header", [True, False])
def test_csv_has_a_header_where_the_job_reads_one(tmp_path: Path, header: bool) -> None:
    table = FileTable(path=str(tmp_path / "t"), format="csv", schema="k STRING, n INT, b BOOLEAN", header=header)
    fill_tables([TablePlace("t", table)], {"t": ROWS})
    lines = list(csv.reader((tmp_path / "t").read_text().splitlines()))
    assert lines == [*([["k", "n", "b"]] if header else []), ["a,b", "7", "true"], ["none", "", ""]]


def test_json_has_a_line_for_each_row(tmp_path: Path) -> None:
    table = FileTable(path=str(tmp_path / "below" / "t"), format="json", schema=SCHEMA)
    fill_tables([TablePlace("t", table)], {"t": ROWS})
    assert [json.loads(line) for line in (tmp_path / "below" / "t").read_text().splitlines()] == ROWS


def test_parquet_has_the_types_of_the_schema(tmp_path: Path) -> None:
    table = FileTable(path=str(tmp_path / "t"), format="parquet", schema=SCHEMA)
    fill_tables([TablePlace("t", table)], {"t": ROWS})
    found = pq.read_table(tmp_path / "t")
    kinds = ["string", "int32", "decimal128(6, 2)", "bool", "date32[day]", "timestamp[us, tz=UTC]", "binary"]
    assert [str(kind) for kind in found.schema.types] == kinds
    assert str(found.to_pylist()[0]["d"]) == "12.50"
    nested = FileTable(path=str(tmp_path / "n"), format="parquet", schema="x ARRAY<INT>")
    with pytest.raises(Refused, match="in Parquet"):
        fill_tables([TablePlace("n", nested)], {"n": [{"x": [1]}]})


@pytest.mark.system
def test_a_table_of_postgresql_is_re_created_and_filled(dsn: str) -> None:
    table = PostgresTable(table="filled", dsn=dsn, schema=f"{SCHEMA}, tags ARRAY<STRING>")
    for _ in range(2):
        fill_tables([TablePlace("t", table)], {"t": [{**row, "tags": ["x"]} for row in ROWS]})
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT k, n, d::text, raw, tags FROM filled ORDER BY k").fetchall()
    assert found == [("a,b", 7, "12.50", b"\x00\x01", ["x"]), ("none", None, None, None, ["x"])]
