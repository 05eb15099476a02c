"""Where a test puts rows in: every source of a job, replaced by files of the harness that the same parsers read.

    KafkaSource                records in files, parsed as the author's source parses those of its topic
    MqttSource                 messages in files, likewise
    FileSource                 the same source over a directory of the harness
    SocketSource               lines in files
    SensorSource, MemorySource, and others with no hidden columns of their own: typed rows in Parquet

A feed is one file, put in place by a rename, so it is read whole, in one epoch, and once, also by a job that starts
again. Nothing outside of the harness is reached.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockgate.dataflow.endpoints import POSITION, Reading, Source, SourceAbility
from lockgate.dataflow.schema import Schema, parse_ddl
from lockgate.errors import Refused
from lockgate.operators.moments import EPOCH
from lockgate.planner.logical import Node
from lockgate.proof.values import key_bytes
from lockgate.sources.files import FOREVER, FileSource
from lockgate.sources.kafka import KafkaSource
from lockgate.sources.mqtt import MESSAGE, MqttSource
from lockgate.sources.socket import SocketSource
from lockgate.testing.fitting import Row, as_arrow, as_csv, as_ddl, as_json, as_plain, as_struct, fitted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Fed = Row | bytes | str | None
"""What a stream is fed with: a row, or a record as it stands in the outside world; None is a record without a value."""

RECORD = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,"
    " headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
"""A record as Spark's Kafka connector gives it."""

_KAFKA_OTHERS = ("_key", "_partition", "_timestamp", "_headers")
_MQTT_OTHERS = ("_topic", "_timestamp", "_retained")


@dataclass(frozen=True)
class FedRecords(Source):
    """What a broker would give, from files; the author's own source makes rows of it."""

    source: KafkaSource | MqttSource
    path: str

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
        schema = RECORD if isinstance(self.source, KafkaSource) else MESSAGE
        records = spark.readStream.schema(schema).option("latestFirst", "false").option("maxFileAge", FOREVER)
        return self.source.rows_of(records.option("mode", "FAILFAST").json(self.path), reading)


@dataclass
class Inlet:
    """What one stream of a job is fed by."""

    name: str
    where: str
    source: Source  # the author's
    directory: Path
    fed: Source  # what stands in its place
    _files: int = 0
    _records: dict[int, int] = field(default_factory=dict)  # how many there are, by partition

    def put(self, rows: Sequence[Fed], now: datetime) -> None:
        """Put rows in place, for the next epoch; Refused, and none of them is there, where one does not fit."""
        is_parquet = isinstance(self.fed, FileSource) and self.fed.format == "parquet"
        content = self._parquet(rows) if is_parquet else self._lines(rows, now)
        aside = self.directory / f".{self._files:09}"
        aside.write_bytes(content)
        aside.replace(self.directory / f"{self._files:09}.{'parquet' if is_parquet else 'txt'}")
        self._files += 1

    def forget(self) -> None:
        """Remove what was put in place; it was read, or nobody will read it."""
        for file in self.directory.iterdir():
            file.unlink()

    def times(self, rows: Sequence[Fed], columns: Sequence[str]) -> list[datetime]:
        """The times in these columns of rows, as far as they can be seen."""
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

    def _lines(self, rows: Sequence[Fed], now: datetime) -> bytes:
        source = self.source
        if isinstance(source, KafkaSource):
            before = dict(self._records)
            try:
                lines = [self._record(row, source, now) for row in rows]
            except Refused:
                self._records = before
                raise
        elif isinstance(source, MqttSource):
            first = self._records.get(0, 0)
            lines = [self._message(row, source, first + number, now) for number, row in enumerate(rows)]
            self._records[0] = first + len(rows)
        else:
            assert isinstance(source, FileSource | SocketSource)
            header = [as_csv(source.columns(self.where).names)] if getattr(source, "header", False) else []
            lines = header + [self._line(row, source) for row in rows]
        return b"\n".join(lines) + b"\n"

    def _line(self, row: Fed, source: FileSource | SocketSource) -> bytes:
        line = self._value(row, source.value, source.format)
        if line is None or b"\n" in line:
            raise Refused(f"{row!r} is not one line of text", where=self.where, fix="feed line by line")
        return line

    def _record(self, row: Fed, source: KafkaSource, now: datetime) -> bytes:
        beside, key = self._beside(row, _KAFKA_OTHERS), None
        if isinstance(row, Mapping) and source.key is not None:
            columns = parse_ddl(source.key, self.where).columns
            own = {name: row[name] for column in columns if (name := column.name) in row}
            values = fitted(own, as_struct(source.key), where=self.where)
            key = key_bytes(columns, [as_plain(one) for one in values.values()])
            row = {name: one for name, one in row.items() if name not in values}
        if beside.get("_key") is not None:
            key = _as_bytes(beside["_key"])
        partition = int(beside.get("_partition", 0))
        offset = self._records.get(partition, 0)
        value = self._value(row, source.value, source.format, _KAFKA_OTHERS)
        self._records[partition] = offset + 1
        headers = [{"key": name, "value": _in_json(_as_bytes(one))} for name, one in beside.get("_headers", {}).items()]
        return as_json(
            {
                "key": _in_json(key),
                "value": _in_json(value),
                "topic": source.topic,
                "partition": partition,
                "offset": offset,
                "timestamp": beside.get("_timestamp", now),
                "headers": headers or None,
            }
        )

    def _message(self, row: Fed, source: MqttSource, number: int, now: datetime) -> bytes:
        beside = self._beside(row, _MQTT_OTHERS)
        payload = self._value(row, source.value, source.format, _MQTT_OTHERS)
        at = beside.get("_timestamp", now)
        message = {
            "number": number,
            "topic": beside.get("_topic", source.topic),
            "payload": _in_json(payload),
            "at_ms": int((at - EPOCH).total_seconds() * 1000),
            "is_retained": beside.get("_retained", False),
        }
        return json.dumps(message).encode()

    def _beside(self, row: Fed, names: Sequence[str]) -> dict[str, Any]:
        return {name: row[name] for name in names if name in row} if isinstance(row, Mapping) else {}

    def _value(self, row: Fed, ddl: str, format: str, others: Sequence[str] = ()) -> bytes | None:
        """What the outside world would hold for a row."""
        if not isinstance(row, Mapping):
            return None if row is None else _as_bytes(row)
        values = fitted(row, as_struct(ddl), where=self.where, others=others)
        if format == "json":
            return as_json(values)
        if format == "csv":
            return as_csv(list(values.values()))
        (only,) = values.values()
        return None if only is None else _as_bytes(only)


def make_inlet(node: Node, source: Source, directory: Path) -> Inlet:
    """What a stream is fed by; Refused where nothing can stand in the place of its source."""
    directory.mkdir(parents=True)
    path = str(directory)
    if isinstance(source, KafkaSource | MqttSource):
        fed: Source = FedRecords(source, path)
    elif isinstance(source, FileSource):
        fed = replace(source, path=path)
    elif isinstance(source, SocketSource):
        fed = FileSource(path=path, value=source.value, format=source.format)
    elif {*source.hidden_columns()} <= {POSITION}:
        fed = FileSource(path=path, value=as_ddl(source.columns(node.where)), format="parquet")
    else:
        raise Refused(
            f"stream {node.name!r} reads a {type(source).__name__}, which has hidden columns that nobody could fill",
            where=node.where,
            fix="let job() take its source as a parameter, and give it a MemorySource with these columns in the test",
        )
    return Inlet(name=node.name, where=node.where, source=source, directory=directory, fed=fed)


def _as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _in_json(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()
