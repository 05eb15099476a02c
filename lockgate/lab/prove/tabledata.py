"""The tables of a job under proof: filled before it runs, at its site.

Files        one file, of the format that the job reads
ServerTable  a table of the site's PostgreSQL, created from the columns that the job declares
"""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockgate.connectors.postgres.connect import connect
from lockgate.connectors.postgres.tableschema import RowColumn, create_statement, parse_name
from lockgate.dataflow.locations import Files, ServerTable
from lockgate.dataflow.schema import Column
from lockgate.errors import Refused
from lockgate.lab.prove.redirect import TablePlace
from lockgate.lab.prove.values import digits_of, kind_of

if TYPE_CHECKING:
    import pyarrow as pa

Rows = Sequence[Mapping[str, Any]]


def fill_tables(places: Sequence[TablePlace], rows: Mapping[str, Rows]) -> None:
    """Put the rows of each table, by its name, where the job reads it."""
    for place in places:
        where = f"table {place.name!r}"
        columns = place.rows.columns(where).columns
        location = place.rows.location
        if isinstance(location, Files):
            _write_file(location, columns, rows[place.name], where)
        else:
            assert isinstance(location, ServerTable)
            _write_postgres(location, columns, rows[place.name], where)


def _write_file(table: Files, columns: Sequence[Column], rows: Rows, where: str) -> None:
    path = Path(table.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if table.format == "json":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif table.format == "csv":
        path.write_text(_as_csv(columns, rows, has_header=table.has_header))
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        arrays = [
            pa.array([_plain(row.get(column.name), column) for row in rows], type=_arrow_type(column, where))
            for column in columns
        ]
        pq.write_table(pa.Table.from_arrays(arrays, names=[column.name for column in columns]), path)


def _as_csv(columns: Sequence[Column], rows: Rows, *, has_header: bool) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if has_header:
        writer.writerow(column.name for column in columns)
    for row in rows:
        values = (row.get(column.name) for column in columns)
        writer.writerow(str(value).lower() if isinstance(value, bool) else value for value in values)
    return text.getvalue()


def _arrow_type(column: Column, where: str) -> pa.DataType:
    import pyarrow as pa

    kind = kind_of(column) or ""
    known = {
        "TINYINT": pa.int8(),
        "SMALLINT": pa.int16(),
        "INT": pa.int32(),
        "BIGINT": pa.int64(),
        "FLOAT": pa.float32(),
        "DOUBLE": pa.float64(),
        "BOOLEAN": pa.bool_(),
        "DATE": pa.date32(),
        "TIMESTAMP": pa.timestamp("us", tz="UTC"),
        "TIMESTAMP_NTZ": pa.timestamp("us"),
        "BINARY": pa.binary(),
        **dict.fromkeys(("STRING", "VARCHAR", "CHAR"), pa.string()),
    }
    if kind == "DECIMAL":
        whole, behind = digits_of(column)
        return pa.decimal128(whole + behind, behind)
    if kind not in known:
        raise Refused(
            f"no rows are made for column {column.name!r} of type {column.type} in Parquet",
            where=where,
            fix="read that table as JSON, or without the column",
        )
    return known[kind]


def _plain(value: Any, column: Column) -> Any:
    """A value of JSON as Arrow takes it."""
    kind = kind_of(column)
    if value is None:
        return None
    if kind == "DATE":
        return date.fromisoformat(value)
    if kind in ("TIMESTAMP", "TIMESTAMP_NTZ"):
        return datetime.fromisoformat(value)
    if kind == "DECIMAL":
        return Decimal(str(value)).quantize(Decimal(1).scaleb(-digits_of(column)[1]))
    return base64.b64decode(value) if kind == "BINARY" else value


def _write_postgres(table: ServerTable, columns: Sequence[Column], rows: Rows, where: str) -> None:
    from psycopg.sql import SQL, Identifier

    name = parse_name(table.table, where)
    made = [RowColumn(column.name, (column.type or "string").lower().replace(" ", "")) for column in columns]
    connection = connect(table.dsn, where=where, name="lockgate")
    try:
        connection.execute(SQL("DROP TABLE IF EXISTS {}").format(name.sql))
        connection.execute(create_statement(name, made, (), where))
        names = SQL(", ").join(Identifier(column.name) for column in columns)
        marks = SQL(", ").join(SQL("%s") for _ in columns)
        with connection.cursor() as cursor:
            cursor.executemany(
                SQL("INSERT INTO {} ({}) VALUES ({})").format(name.sql, names, marks),
                [[_as_parameter(row.get(column.name), column) for column in columns] for row in rows],
            )
        connection.commit()
    finally:
        connection.close()


def _as_parameter(value: Any, column: Column) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else _plain(value, column)
