"""The letters of a job as its sink of letters has them, without Spark: what is committed, as plain values by column.

    KafkaSink                  the topic, as a read_committed reader sees it; JSON
    PostgresSink, SqliteSink   the table
    FileSink                   Parquet and JSON on this machine's disk: the files that manifests name, or, for less than
                               end-to-end exactly-once, all that are there

Bytes are in base64 where the sink writes JSON, and times are text where it has none.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

from lockgate.dataflow.deadletters import LETTER
from lockgate.dataflow.endpoints import Sink
from lockgate.dataflow.schema import parse_ddl
from lockgate.errors import Refused
from lockgate.files.reading import committed_files
from lockgate.files.system import local_path
from lockgate.kafka.reading import read_committed
from lockgate.kafka.settings import read_settings
from lockgate.postgres.connect import connect, told
from lockgate.postgres.tables import find_table, parse_name
from lockgate.sinks.files import FileSink
from lockgate.sinks.kafka import KafkaSink
from lockgate.sinks.postgres import PostgresSink
from lockgate.sinks.sqlite import SqliteSink
from lockgate.untrusted import read_object

COLUMNS = parse_ddl(LETTER, "dead letters").names
_PATIENCE = timedelta(seconds=30)
_RUN_FIRST = "the job makes it with its first epoch: run it once, or correct dead_letters="


def read_rows(sink: Sink, job: str, *, is_exact: bool, where: str) -> Iterator[Mapping[str, Any]]:
    """The letters of a job, by column, in no order; of an epoch that was repeated perhaps twice."""
    if isinstance(sink, KafkaSink):
        found = _from_kafka(sink, where)
    elif isinstance(sink, PostgresSink):
        found = _from_postgres(sink, job, where)
    elif isinstance(sink, SqliteSink):
        found = _from_sqlite(sink, job, where)
    elif isinstance(sink, FileSink):
        found = _from_files(sink, job if is_exact else None, where)
    else:
        raise Refused(
            f"letters in a {type(sink).__name__} cannot be read back",
            where=where,
            fix="dead_letters= a KafkaSink, PostgresSink, SqliteSink or FileSink",
        )
    return (row for row in found if row.get("job") == job)


def _from_kafka(sink: KafkaSink, where: str) -> Iterator[Mapping[str, Any]]:
    beside = [name for name in ("route", "headers", "timestamp", "deleted") if getattr(sink, name) is not None]
    if sink.topic is None or sink.format != "json" or beside:
        how = f"format={sink.format!r}" if sink.format != "json" else ", ".join(f"{name}=" for name in beside)
        raise Refused(
            f"letters in a topic that is written with {how} cannot be read back",
            where=where,
            fix='write them as JSON into one topic: KafkaSink(topic="letters", servers=...)',
        )
    settings = read_settings(sink.servers, sink.client, where=where, is_lookup=True)
    for value in read_committed(settings, sink.topic, where=where):
        try:
            yield read_object(value)
        except ValueError:
            continue  # others may write to the topic, and theirs are no letters


def _from_postgres(sink: PostgresSink, job: str, where: str) -> Iterator[Mapping[str, Any]]:
    from psycopg.sql import SQL, Identifier

    where = f"{sink.resource}, {where}"
    connection = connect(sink.dsn, where=where, name="lockgate dead-letters", patience=_PATIENCE)
    with closing(connection), told(where=where):
        table = find_table(connection, parse_name(sink.table, where))
        if table is None:
            raise Refused(f"there is no table {sink.table!r}", where=where, fix=_RUN_FIRST)
        named = _named(sink.table, [column.name for column in table.columns], where)
        columns = SQL(", ").join(Identifier(named[name]) for name in COLUMNS)
        query = SQL("SELECT {} FROM {} WHERE {} = %s").format(columns, table.name.sql, Identifier(named["job"]))
        for row in connection.execute(query, [job]):
            yield dict(zip(COLUMNS, row, strict=True))


def _from_sqlite(sink: SqliteSink, job: str, where: str) -> Iterator[Mapping[str, Any]]:
    where = f"{sink.resource}, {where}"
    if not Path(sink.path).is_file():
        raise Refused(f"there is no file {sink.path}", where=where, fix=_RUN_FIRST)
    try:
        with closing(
            sqlite3.connect(f"{Path(sink.path).absolute().as_uri()}?mode=ro", timeout=30, uri=True)
        ) as connection:
            there = [row[1] for row in connection.execute(f"PRAGMA table_info({_quote(sink.table)})")]
            if not there:
                raise Refused(f"there is no table {sink.table!r}", where=where, fix=_RUN_FIRST)
            named = _named(sink.table, there, where)
            columns = ", ".join(_quote(named[name]) for name in COLUMNS)
            query = f"SELECT {columns} FROM {_quote(sink.table)} WHERE {_quote(named['job'])} = ?"
            for row in connection.execute(query, (job,)):
                yield dict(zip(COLUMNS, row, strict=True))
    except sqlite3.Error as error:
        raise Refused(f"SQLite: {error}", where=where, fix="see that it is the file of the job's SqliteSink") from error


def _from_files(sink: FileSink, job: str | None, where: str) -> Iterator[Mapping[str, Any]]:
    """Those of a job that manifests name, or all that are there."""
    root = local_path(sink.path)
    if root is None:
        raise Refused(
            f"letters in {sink.path} do not lie on this machine's disk",
            where=where,
            fix="read them with read_files(spark, path), or write letters to Kafka, a database or a local directory",
        )
    if job is None and sink.partition_by:
        raise Refused(
            "letters in partitioned files can be read back only where they are written exactly-once",
            where=where,
            fix="leave partition_by= away, or declare Guarantee.END_TO_END_EXACTLY_ONCE",
        )
    if not root.is_dir():
        raise Refused(f"there is no directory {root}", where=where, fix=_RUN_FIRST)
    if job is not None:
        files: Iterable[Path] = map(Path, committed_files(str(root), job=job))
    else:
        files = sorted(file for file in root.glob("part-*") if file.is_file())
    for file in files:
        for row in _rows_of_parquet(file) if sink.format == "parquet" else _rows_of_json(file):
            # Columns that files are partitioned by have two underscores before their names.
            yield {name.removeprefix("__"): value for name, value in row.items()}


def _rows_of_parquet(file: Path) -> Iterator[dict[str, Any]]:
    from pyarrow import parquet

    with parquet.ParquetFile(file, coerce_int96_timestamp_unit="us") as opened:
        for batch in opened.iter_batches():
            yield from batch.to_pylist()


def _rows_of_json(file: Path) -> Iterator[dict[str, Any]]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield read_object(line)
            except ValueError as error:
                raise Refused(
                    f"line {number} of a file of letters cannot be read: {error}",
                    where=str(file),
                    fix="look who wrote it; put the file back from a copy, or move it away if it is not the job's",
                ) from None


def _named(table: str, there: Iterable[str], where: str) -> dict[str, str]:
    """The columns of a letter as a table has them, in whatever case."""
    known = {name.lower(): name for name in there}
    missing = [name for name in COLUMNS if name not in known]
    if missing:
        raise Refused(
            f"table {table!r} has no column {', '.join(missing)}, so it is not one of letters",
            where=where,
            fix="name the table that the job writes its letters to",
        )
    return {name: known[name] for name in COLUMNS}


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
