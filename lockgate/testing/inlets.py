"""The input of a test: files of the harness replace every source of a job, and the same parsers read them.

    what its `encoding` says                      what replaces it
    the columns of a record (KafkaSource, MQTT)   records in files, parsed as the user's source parses its own
    a value and its format (FileSource, sockets)  lines, or Parquet, in files
    nothing, and no hidden columns of its own     typed rows in Parquet

A feed is one file, put in place by a rename. So it is read as a whole, in one epoch, and once, also if the job
restarts. The harness reaches no outside system.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockgate.connectors.files.source import FOREVER, FileSource
from lockgate.dataflow.endpoints import POSITION, Encoding, Reading, Source, SourceAbility
from lockgate.dataflow.locations import Files
from lockgate.dataflow.schema import Schema, parse_ddl
from lockgate.errors import Refused
from lockgate.lab.prove.values import key_bytes
from lockgate.planner.logical import Node
from lockgate.testing.fitting import Row, as_arrow, as_csv, as_ddl, as_json, as_plain, as_struct, fitted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Fed = Row | bytes | str | None
"""One input of a stream: a row, or a raw record of the outside system; None is a record without a value."""


@dataclass(frozen=True)
class FedRecords(Source):
    """The records of a broker, from files; the user's own source turns them into rows."""

    source: Source
    path: str
    ddl: str

    @property
    def ability(self) -> SourceAbility:
        return SourceAbility(is_replayable=True, reason="the files of the harness are read again")

    @property
    def tasks(self) -> str:
        return "1"

    @property
    def has_bytes(self) -> bool:
        return True

    def columns(self, where: str) -> Schema:
        return self.source.columns(where)

    def hidden_columns(self) -> Sequence[str]:
        return self.source.hidden_columns()

    def read(self, spark: SparkSession, reading: Reading) -> DataFrame:
        records = spark.readStream.schema(self.ddl).option("latestFirst", "false").option("maxFileAge", FOREVER)
        return self.source.rows_of(records.option("mode", "FAILFAST").json(self.path), reading)


@dataclass
class Inlet:
    """The input of one stream of a job."""

    name: str
    where: str
    source: Source  # the user's
    directory: Path
    fed: Source  # what replaces it
    _files: int = 0
    _records: dict[int, int] = field(default_factory=dict)  # the number of records, by partition

    def put(self, rows: Sequence[Fed], now: datetime) -> None:
        """Put rows in place, for the next epoch; Refused, without any of them, if one does not fit."""
        encoding = self.source.encoding
        is_parquet = encoding is None or encoding.format == "parquet"
        content = self._parquet(rows) if encoding is None or is_parquet else self._lines(rows, encoding, now)
        aside = self.directory / f".{self._files:09}"
        aside.write_bytes(content)
        aside.replace(self.directory / f"{self._files:09}.{'parquet' if is_parquet else 'txt'}")
        self._files += 1

    def forget(self) -> None:
        """Remove all files: each was read, or will never be read."""
        for file in self.directory.iterdir():
            file.unlink()

    def times(self, rows: Sequence[Fed], columns: Sequence[str]) -> list[datetime]:
        """The times in these columns of rows, if they are datetimes with a zone."""
        found = [row.get(column) for row in rows if isinstance(row, Mapping) for column in columns]
        return [one for one in found if isinstance(one, datetime) and one.tzinfo is not None]

    def _parquet(self, rows: Sequence[Fed]) -> bytes:
        import pyarrow as pa
        from pyarrow import parquet

        columns = as_struct(as_ddl(self.source.columns(self.where)))
        table = as_arrow([fitted(self._typed(row), columns, where=self.where) for row in rows], columns)
        sink = pa.BufferOutputStream()
        parquet.write_table(table, sink)
        return bytes(sink.getvalue().to_pybytes())

    def _typed(self, row: Fed) -> Row:
        if isinstance(row, Mapping):
            return row
        raise Refused(
            f"{row!r} is not a row: the stream {self.name!r} has typed rows, and nothing parses them",
            where=self.where,
            fix="feed it a dict with its columns",
        )

    def _lines(self, rows: Sequence[Fed], encoding: Encoding, now: datetime) -> bytes:
        if encoding.record is not None:
            before = dict(self._records)
            try:
                lines = [self._record(row, encoding, now) for row in rows]
            except Refused:
                self._records = before
                raise
        else:
            files = self.source.location
            has_header = isinstance(files, Files) and files.has_header
            header = [as_csv(self.source.columns(self.where).names)] if has_header else []
            lines = header + [self._line(row, encoding) for row in rows]
        return b"\n".join(lines) + b"\n"

    def _line(self, row: Fed, encoding: Encoding) -> bytes:
        line = self._value(row, encoding)
        if line is None or b"\n" in line:
            raise Refused(f"{row!r} is not one line of text", where=self.where, fix="feed line by line")
        return line

    def _record(self, row: Fed, encoding: Encoding, now: datetime) -> bytes:
        beside, key = self._beside(row, encoding.beside), None
        if isinstance(row, Mapping) and encoding.key is not None:
            columns = parse_ddl(encoding.key, self.where).columns
            own = {name: row[name] for column in columns if (name := column.name) in row}
            values = fitted(own, as_struct(encoding.key), where=self.where)
            key = key_bytes(columns, [as_plain(one) for one in values.values()])
            row = {name: one for name, one in row.items() if name not in values}
        partition = int(beside.get("_partition", 0))
        number = self._records.get(partition, 0)
        record = self.source.record(self._value(row, encoding), key, beside, number=number, now=now)
        self._records[partition] = number + 1
        return as_json(record)

    def _beside(self, row: Fed, names: Sequence[str]) -> dict[str, Any]:
        return {name: row[name] for name in names if name in row} if isinstance(row, Mapping) else {}

    def _value(self, row: Fed, encoding: Encoding) -> bytes | None:
        """The raw record of a row in the outside system."""
        if not isinstance(row, Mapping):
            return None if row is None else _as_bytes(row)
        values = fitted(row, as_struct(encoding.value), where=self.where, others=encoding.beside)
        if encoding.format == "json":
            return as_json(values)
        if encoding.format == "csv":
            return as_csv(list(values.values()))
        (only,) = values.values()
        return None if only is None else _as_bytes(only)


def make_inlet(node: Node, source: Source, directory: Path) -> Inlet:
    """The input of a stream; Refused if nothing can replace its source."""
    directory.mkdir(parents=True)
    path = str(directory)
    encoding, files = source.encoding, source.location
    if encoding is not None and encoding.record is not None:
        fed: Source = FedRecords(source, path, encoding.record)
    elif encoding is not None:
        has_header = isinstance(files, Files) and files.has_header
        fed = FileSource(path=path, value=encoding.value, format=encoding.format, header=has_header)
    elif {*source.hidden_columns()} <= {POSITION}:
        fed = FileSource(path=path, value=as_ddl(source.columns(node.where)), format="parquet")
    else:
        raise Refused(
            f"stream {node.name!r} reads a {type(source).__name__}, which has hidden columns that a test cannot fill",
            where=node.where,
            fix="let job() take its source as a parameter, and give it a MemorySource with these columns in the test",
        )
    return Inlet(name=node.name, where=node.where, source=source, directory=directory, fed=fed)


def _as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
