"""Rows that a table would refuse become dead letters, and the others are written."""

from pathlib import Path

import psycopg
import pytest

from lockgate import FileSource, Guarantee, Job, MemorySink, PostgresSink, stream
from support.runs import run_to_the_end

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("spark")]


def test_rows_that_a_table_would_refuse(dsn: str, tmp_path: Path) -> None:
    table = "refused"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {table} (k VARCHAR(5) NOT NULL, v INT)")
    lines = ['{"k":"a","v":1}', '{"k":"too long","v":2}', '{"v":3}', r'{"k":"z\u0000","v":4}']
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.json").write_text("\n".join(lines))
    letters = MemorySink()
    read = stream("in", FileSource(path=str(tmp_path / "in"), value="k STRING, v INT"))
    rows = read.to("rows", PostgresSink(table=table, dsn=dsn))
    job = Job("letters", rows, guarantee=Guarantee.AT_LEAST_ONCE, dead_letters=letters)
    run_to_the_end(job, tmp_path)
    with psycopg.connect(dsn) as connection:
        assert connection.execute(f"SELECT k, v FROM {table}").fetchall() == [("a", 1)]
    assert sorted((bytes(row.value).decode(), row.reason) for row in letters.rows) == [
        (lines[1], "k is longer than the table takes: character varying(5)"),
        (lines[3], "k holds a zero byte, which no text in PostgreSQL has"),
        (lines[2], "k is null, and the table takes none there"),
    ]


def test_a_row_that_removes_its_key_needs_no_other_column(dsn: str, tmp_path: Path) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE customers (id INT PRIMARY KEY, name TEXT NOT NULL, n INT NOT NULL DEFAULT 0)")
        connection.execute("INSERT INTO customers VALUES (7, 'seven', 1), (8, 'eight', 1)")
    (tmp_path / "in").mkdir()
    lines = ['{"id":7,"op":"d"}', '{"id":8,"op":"u","name":"x"}', '{"op":"d","name":"y","n":1}']
    (tmp_path / "in" / "rows.json").write_text("\n".join(lines))
    letters = MemorySink()
    read = stream("in", FileSource(path=str(tmp_path / "in"), value="id INT, op STRING, name STRING, n INT"))
    sink = PostgresSink(table="customers", dsn=dsn, key="id", deleted="name IS NULL")
    out = read.where("op IS NOT NULL").select("id", "name", "n").to("rows", sink)
    job = Job("letters", out, guarantee=Guarantee.AT_LEAST_ONCE, dead_letters=letters)
    run_to_the_end(job, tmp_path)
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT id, name FROM customers").fetchall() == [(8, "eight")]
    assert sorted((bytes(row.value).decode(), row.reason) for row in letters.rows) == [
        (lines[1], "n is null, and the table takes none there"),
        (lines[2], "id is null, and the table takes none there"),
    ]
