"""Read all of a small table as one snapshot: exactly the declared columns, or an error that says what is wrong.

Spark reads files, on any file system that it reaches. One statement reads a table in PostgreSQL, so it sees one state.
A value that does not fit its declared type is refused and never changed. Every worker holds the whole table, so its
size has a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from lockgate.connectors.postgres.connect import connect, translated_errors
from lockgate.connectors.postgres.tableschema import TableColumn, find_table, parse_name
from lockgate.dataflow.locations import Files, ServerTable
from lockgate.dataflow.table import ReadTable, TableRows
from lockgate.errors import Failed, InvariantBroken, LockgateError, Refused
from lockgate.failures import first_cause
from lockgate.runtime.snapshots import Snapshot, take_snapshot
from lockgate.spark.tablejoin import schema_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ROWS_MAX = 1_000_000
BYTES_MAX = 128 * 1024 * 1024
"""The largest size of a table. Every worker process holds it once, with an index of its keys."""

_PATIENCE = timedelta(seconds=5)
_TEXTS = ("string", "char", "varchar")


def read_snapshot(step: ReadTable, spark: SparkSession, where: str) -> Snapshot:
    """The table as it is now."""
    import pyarrow as pa
    from pyarrow import parquet

    sink = pa.BufferOutputStream()
    parquet.write_table(_read(step.rows, spark, where), sink, compression="zstd")
    return take_snapshot(sink.getvalue().to_pybytes())


def _read(rows: TableRows, spark: SparkSession, where: str) -> pa.Table:
    schema, location = schema_of(rows), rows.location
    if isinstance(location, Files):
        return _fitted(_read_files(location, rows.schema, schema, spark, where), schema, where)
    if isinstance(location, ServerTable):
        return _fitted(_read_postgres(location, schema, where), schema, where)
    raise InvariantBroken(f"no code reads a {type(rows).__name__}", where=where, fix="report this")


def _read_files(files: Files, ddl: str, schema: StructType, spark: SparkSession, where: str) -> pa.Table:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        frame = _frame(files, schema, spark, where)
        return frame.limit(ROWS_MAX + 1).toArrow()
    except (PySparkException, Py4JError) as error:
        raise Failed(
            f"{files.path} cannot be read as {files.format} of ({ddl}): {first_cause(str(error))}",
            where=where,
            fix="correct the path, the format or the schema of the table, or the file itself",
        ) from error


def _frame(files: Files, schema: StructType, spark: SparkSession, where: str) -> DataFrame:
    options = {"mode": "FAILFAST"}
    if files.format == "csv":
        # Spark compares the header with the schema, so that a column that moved is not read as another one.
        options |= {"header": str(files.has_header).lower(), "enforceSchema": "false"}
    if files.format == "parquet":
        # Spark would return null for a column that the files lack.
        names = {name.lower() for name in spark.read.parquet(files.path).columns}
        lacking = [name for name in schema.names if name.lower() not in names]
        if lacking:
            raise _lacks(lacking, f"the file {files.path}", where)
    return spark.read.format(files.format).schema(schema).options(**options).load(files.path)


def _read_postgres(table: ServerTable, schema: StructType, where: str) -> list[list[Any]]:
    """The columns, as lists of values."""
    from psycopg.sql import SQL, Identifier, Literal

    name = parse_name(table.table, where)
    with (
        connect(table.dsn, where=where, name="lockgate table", patience=_PATIENCE) as connection,
        translated_errors(where=where),
    ):
        found = find_table(connection, name, rights=("SELECT",))
        if found is None:
            raise Refused(
                f"there is no table {name}, or it is not in the search path",
                where=where,
                fix="correct table= or the dsn",
            )
        if found.lacking:
            raise Refused(
                f"the user has no right to read table {name}", where=where, fix="GRANT SELECT on it to that user"
            )
        columns = [_column(name, found.columns) for name in schema.names]
        lacking = [name for name, column in zip(schema.names, columns, strict=True) if column is None]
        if lacking:
            raise _lacks(lacking, f"table {name}", where)
        chosen = [
            SQL("{}::text" if field.dataType.typeName() in _TEXTS else "{}").format(Identifier(column.name))
            for field, column in zip(schema.fields, columns, strict=True)
            if column is not None
        ]
        statement = SQL("SELECT {} FROM {} LIMIT {}").format(
            SQL(", ").join(chosen), found.name.sql, Literal(ROWS_MAX + 1)
        )
        values = connection.execute(statement).fetchall()
    return [list(column) for column in zip(*values, strict=True)] or [[] for _ in chosen]


def _fitted(columns: pa.Table | Sequence[Sequence[Any]], schema: StructType, where: str) -> pa.Table:
    """The columns in exactly the declared types."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    wanted = to_arrow_schema(schema, timezone="UTC")
    arrays = []
    for field, column in zip(wanted, columns.columns if isinstance(columns, pa.Table) else columns, strict=True):
        _refuse_bent(column, field, where)
        try:
            made = column.cast(field.type) if isinstance(column, pa.ChunkedArray) else pa.array(column, type=field.type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise _misfit(f"does not fit {field.type}: {str(error).splitlines()[0]}", field.name, where) from error
        if made.null_count and not field.nullable:
            raise _misfit("is declared NOT NULL, and has nulls", field.name, where)
        arrays.append(made)
    rows = pa.table(arrays, names=wanted.names)
    if len(rows) > ROWS_MAX or rows.nbytes > BYTES_MAX:
        size = f"more than {ROWS_MAX:,} rows" if len(rows) > ROWS_MAX else f"{rows.nbytes / 2**20:,.0f} MB"
        raise Refused(
            f"the table is too large, {size}: every worker holds all of it, so the limit is {ROWS_MAX:,} rows and"
            f" {BYTES_MAX // 2**20} MB",
            where=where,
            fix="remove columns from its schema, name a smaller file or a view; or read it as a stream and join that"
            " within= a time",
        )
    return rows


def _refuse_bent(values: Iterable[Any], field: pa.Field, where: str) -> None:
    """Refuse values that Arrow would silently cut: the fraction of a number, the time of a day."""
    from pyarrow import ChunkedArray, types

    kind = int if types.is_integer(field.type) else date if types.is_date(field.type) else None
    if kind is not None and not isinstance(values, ChunkedArray):  # Spark returns the declared type
        wrong = next((value for value in values if value is not None and type(value) is not kind), None)
        if wrong is not None:
            raise _misfit(f"does not fit {field.type}: {wrong!r}", field.name, where)


def _column(name: str, columns: Sequence[TableColumn]) -> TableColumn | None:
    exact = [column for column in columns if column.name == name]
    alike = exact or [column for column in columns if column.name.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else None


def _lacks(names: Sequence[str], what: str, where: str) -> Refused:
    return Refused(f"{what} lacks the column {', '.join(names)}", where=where, fix="correct the schema of the table")


def _misfit(what: str, column: str, where: str) -> LockgateError:
    return Failed(
        f"column {column!r} of the table {what}", where=where, fix="correct the schema of the table, or its rows"
    )
