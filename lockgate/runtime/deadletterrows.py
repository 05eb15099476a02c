"""Read the committed dead letters of a job from their sink, without Spark, as plain values by column.

    Topic                      the topic, as a read_committed reader sees it; JSON
    ServerTable, SqliteTable   the table
    Files                      Parquet and JSON on this machine's disk: the files that manifests name, or all files if
                               the guarantee is less than end-to-end exactly-once

Bytes are in base64 if the sink writes JSON. Times are text if the sink has no type for them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

from lockgate.connectors.files.filesystem import local_path
from lockgate.connectors.files.reading import committed_files
from lockgate.connectors.kafka.reading import read_committed
from lockgate.connectors.kafka.settings import read_settings
from lockgate.connectors.postgres.address import server_of
from lockgate.connectors.postgres.connect import connect, translated_errors
from lockgate.connectors.postgres.tableschema import find_table, parse_name
from lockgate.dataflow.deadletters import LETTER
from lockgate.dataflow.endpoints import Sink
from lockgate.dataflow.locations import Files, ServerTable, SqliteTable, Topic
from lockgate.dataflow.schema import parse_ddl
from lockgate.errors import Refused
from lockgate.untrusted import read_object

COLUMNS = parse_ddl(LETTER, "dead letters").names
_PATIENCE = timedelta(seconds=30)
_RUN_FIRST = "the job creates it with its first epoch: run it once, or correct dead_letters="


def read_rows(sink: Sink, job: str, *, is_exact: bool, where: str) -> Iterator[Mapping[str, Any]]:
    """The dead letters of a job, by column, in no order; a repeated epoch may have written its dead letters twice."""
    match sink.location:
        case Topic() as topic:
            found = _from_kafka(topic, where)
        case ServerTable() as table:
            found = _from_postgres(table, job, where)
        case SqliteTable() as lite:
            found = _from_sqlite(lite, job, where)
        case Files() as files:
            found = _from_files(files, job if is_exact else None, where)
        case _:
            raise Refused(
                f"dead letters in a {type(sink).__name__} cannot be read back",
                where=where,
                fix="dead_letters= a KafkaSink, PostgresSink, SqliteSink or FileSink",
            )
    return (row for row in found if row.get("job") == job)


def _from_kafka(topic: Topic, where: str) -> Iterator[Mapping[str, Any]]:
    beside = [name for name in ("route", "headers", "timestamp", "deleted") if getattr(topic, name) is not None]
    if topic.name is None or topic.format != "json" or beside:
        how = f"format={str(topic.format)!r}" if topic.format != "json" else ", ".join(f"{name}=" for name in beside)
        raise Refused(
            f"dead letters in a topic that is written with {how} cannot be read back",
            where=where,
            fix='write them as JSON into one topic: KafkaSink(topic="dead-letters", servers=...)',
        )
    settings = read_settings(topic.servers, topic.client, where=where, is_lookup=True)
    for value in read_committed(settings, topic.name, where=where):
        try:
            yield read_object(value)
        except ValueError:
            continue  # other programs may write to the topic, and their records are no dead letters


def _from_postgres(kept: ServerTable, job: str, where: str) -> Iterator[Mapping[str, Any]]:
    from psycopg.sql import SQL, Identifier

    where = f"{server_of(kept.dsn, where)}, {where}"
    connection = connect(kept.dsn, where=where, name="lockgate dead-letters", patience=_PATIENCE)
    with closing(connection), translated_errors(where=where):
        table = find_table(connection, parse_name(kept.table, where))
        if table is None:
            raise Refused(f"there is no table {kept.table!r}", where=where, fix=_RUN_FIRST)
        named = _named(kept.table, [column.name for column in table.columns], where)
        columns = SQL(", ").join(Identifier(named[name]) for name in COLUMNS)
        query = SQL("SELECT {} FROM {} WHERE {} = %s").format(columns, table.name.sql, Identifier(named["job"]))
        for row in connection.execute(query, [job]):
            yield dict(zip(COLUMNS, row, strict=True))


def _from_sqlite(kept: SqliteTable, job: str, where: str) -> Iterator[Mapping[str, Any]]:
    where = f"SQLite file {Path(kept.path).absolute()}, {where}"
    if not Path(kept.path).is_file():
        raise Refused(f"there is no file {kept.path}", where=where, fix=_RUN_FIRST)
    try:
        with closing(
            sqlite3.connect(f"{Path(kept.path).absolute().as_uri()}?mode=ro", timeout=30, uri=True)
        ) as connection:
            there = [row[1] for row in connection.execute(f"PRAGMA table_info({_quote(kept.table)})")]
            if not there:
                raise Refused(f"there is no table {kept.table!r}", where=where, fix=_RUN_FIRST)
            named = _named(kept.table, there, where)
            columns = ", ".join(_quote(named[name]) for name in COLUMNS)
            query = f"SELECT {columns} FROM {_quote(kept.table)} WHERE {_quote(named['job'])} = ?"
            for row in connection.execute(query, (job,)):
                yield dict(zip(COLUMNS, row, strict=True))
    except sqlite3.Error as error:
        raise Refused(
            f"SQLite: {error}", where=where, fix="check that it is the file of the job's SqliteSink"
        ) from error


def _from_files(kept: Files, job: str | None, where: str) -> Iterator[Mapping[str, Any]]:
    """The rows of a job's files that manifests name, or of all files."""
    root = local_path(kept.path)
    if root is None:
        raise Refused(
            f"dead letters in {kept.path} are not on this machine's disk",
            where=where,
            fix="read them with read_files(spark, path), or write dead letters to Kafka, a database or a local"
            " directory",
        )
    if job is None and kept.partition_by:
        raise Refused(
            "dead letters in partitioned files can be read back only if they are written exactly-once",
            where=where,
            fix="omit partition_by=, or declare Guarantee.END_TO_END_EXACTLY_ONCE",
        )
    if not root.is_dir():
        raise Refused(f"there is no directory {root}", where=where, fix=_RUN_FIRST)
    if job is not None:
        files: Iterable[Path] = map(Path, committed_files(str(root), job=job))
    else:
        files = sorted(file for file in root.glob("part-*") if file.is_file())
    for file in files:
        for row in _rows_of_parquet(file) if kept.format == "parquet" else _rows_of_json(file):
            # The names of partition columns begin with two underscores.
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
                    f"line {number} of a file of dead letters cannot be read: {error}",
                    where=str(file),
                    fix="find out which program wrote it; restore the file from a copy, or move it away if it is not"
                    " the job's",
                ) from None


def _named(table: str, there: Iterable[str], where: str) -> dict[str, str]:
    """The columns of a dead letter by the names in the table, whose case may differ."""
    known = {name.lower(): name for name in there}
    missing = [name for name in COLUMNS if name not in known]
    if missing:
        raise Refused(
            f"table {table!r} has no column {', '.join(missing)}, so it is not a table of dead letters",
            where=where,
            fix="name the table to which the job writes its dead letters",
        )
    return {name: known[name] for name in COLUMNS}


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
