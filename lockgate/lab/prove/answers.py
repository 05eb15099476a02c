"""An independent answer: what the outputs of a job must hold, by a plain function of the user.

A job file may define, beside `job`, a function that knows nothing of Spark or of our operators:

    def answer(events: Mapping[str, Sequence[dict]]) -> Mapping[str, Sequence[dict]]

It gets the rows of every stream and table by name, those of a stream in the order of sending, and returns the rows of
outputs by name; an output that it does not name is not compared. It is called once for all trials, and shares nothing
with the job: no parsing, no windows, no state.

    events    columns as plain Python: int, float, Decimal, bool, str, bytes, date, datetime (in UTC), list, dict
    _late     one more field of an event: is it too late for every window and pattern? Steps without lateness, such as
              rolling aggregates, process it like any other
    bad ones  are not among them: they are dead letters
    the end   a window is closed if the watermark has passed its end when all is read: the greatest time minus
              `lateness`, and the least of these if a job has several
"""

from __future__ import annotations

import base64
import csv
import json
import struct
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from sqlglot import exp

from lockgate.dataflow.endpoints import Encoding
from lockgate.dataflow.locations import Topic
from lockgate.dataflow.schema import Column, parse_ddl
from lockgate.errors import Refused
from lockgate.lab.prove.places import place_of
from lockgate.lab.prove.redirect import Redirected, Result
from lockgate.lab.prove.values import kind_of, type_of
from lockgate.lab.prove.workload import Workload
from lockgate.lab.rig.judge.canonical import Form, write
from lockgate.lab.rig.judge.promises import Row
from lockgate.planner.logical import LogicalGraph, build_logical

LATE = "_late"
"""The field that says whether an event comes too late."""

Rows = Mapping[str, Sequence[dict[str, Any]]]
"""By the name of a stream, a table or an output."""

Answer = Callable[[Rows], object]
"""The user's function, with its other arguments already bound."""

_FIX = "return rows by the names of outputs: {'counts': [{'ip': ..., 'requests': ...}, ...]}"


def answer_of(answer: Answer, moved: Redirected, workload: Workload) -> dict[str, tuple[Row, ...]]:
    """The rows that the user's function returns for each output; Refused if they cannot be used."""
    return _Told(answer, moved).rows(rows_of(moved, workload))


def batches_of(answer: Answer, moved: Redirected, workload: Workload) -> dict[str, tuple[Row, ...]]:
    """The same by the label of a place, for `Promise.batch`; a place of several outputs needs the rows of them all."""
    told = answer_of(answer, moved, workload)
    names: dict[str, list[str]] = {}
    for one in moved.results:
        place = place_of(one, moved.site)
        if place is not None:
            names.setdefault(place.label, []).append(one.name)
    return {
        label: tuple(row for name in some for row in told[name])
        for label, some in names.items()
        if all(name in told for name in some)
    }


# What it is given


def rows_of(moved: Redirected, workload: Workload) -> dict[str, list[dict[str, Any]]]:
    """The rows of every stream and table, read back from what is sent."""
    late, bad = frozenset(workload.late), frozenset(workload.bad)
    rows: dict[str, list[dict[str, Any]]] = {}
    for one in moved.inputs:
        for name, encoding in zip(one.streams, one.encodings, strict=True):
            read = _Reader(name, encoding)
            rows[name] = [
                {**read.row(event.key, event.value, number), LATE: number in late}
                for number, event in enumerate(workload.events)
                if event.topic == one.label and number not in bad
            ]
    for table in moved.tables:
        columns = table.rows.columns(f"table {table.name!r}").columns
        rows[table.name] = [_typed(columns, row) for row in workload.tables[table.name]]
    return rows


class _Reader:
    """Reads the events of one stream."""

    def __init__(self, stream: str, encoding: Encoding) -> None:
        self._where = f"stream {stream!r}"
        self._format = encoding.format
        self._value = parse_ddl(encoding.value, self._where).columns
        self._key = () if encoding.key is None else parse_ddl(encoding.key, self._where).columns

    def row(self, key: bytes | None, value: bytes | None, number: int) -> dict[str, Any]:
        try:
            return {**self._key_row(key), **self._value_row(value)}
        except (ValueError, TypeError, KeyError, ArithmeticError, struct.error) as error:
            raise Refused(
                f"event {number + 1} cannot be read as {', '.join(column.name for column in self._value)}: {error}",
                where=self._where,
                fix="an answer is computed from events that can be read; omit this one, or answer()",
            ) from None

    def _key_row(self, raw: bytes | None) -> dict[str, Any]:
        if not self._key:
            return {}
        if raw is None:
            return dict.fromkeys(column.name for column in self._key)
        if len(self._key) > 1:
            return _typed(self._key, dict(zip((one.name for one in self._key), _loads(raw), strict=True)))
        (column,) = self._key
        kind = kind_of(column)
        if kind in ("INT", "BIGINT"):
            return {column.name: struct.unpack(">i" if kind == "INT" else ">q", raw)[0]}
        return {column.name: raw if kind == "BINARY" else as_type(type_of(column), raw.decode())}

    def _value_row(self, raw: bytes | None) -> dict[str, Any]:
        if raw is None:
            raise ValueError("it has no value")
        if self._format == "json":
            return _typed(self._value, _loads(raw))
        if self._format == "csv":
            (fields,) = csv.reader([raw.decode()], escapechar="\\")
            texts = (
                text if text or type_of(one).this in exp.DataType.TEXT_TYPES else None
                for one, text in zip(self._value, fields, strict=True)
            )
            return _typed(self._value, dict(zip((one.name for one in self._value), texts, strict=True)))
        (column,) = self._value
        return {column.name: raw if kind_of(column) == "BINARY" else raw.decode()}


def _loads(raw: bytes) -> Any:
    return json.loads(raw, parse_float=Decimal)


def _typed(columns: Sequence[Column], row: Mapping[str, Any]) -> dict[str, Any]:
    found = {name.lower(): value for name, value in row.items()}
    return {column.name: as_type(type_of(column), found.get(column.name.lower())) for column in columns}


_TYPES = exp.DataType.Type
_WHOLE = (_TYPES.TINYINT, _TYPES.SMALLINT, _TYPES.INT, _TYPES.BIGINT)
_ZONED = (_TYPES.TIMESTAMP, _TYPES.TIMESTAMPTZ, _TYPES.TIMESTAMPLTZ)


def as_type(type: exp.DataType, value: Any) -> Any:
    """What a value of JSON, or a text, means for a type of Spark's."""
    if value is None:
        return None
    kind = type.this
    if kind in _WHOLE:
        return int(value)
    if kind is _TYPES.DOUBLE:
        return float(value)
    if kind is _TYPES.FLOAT:
        return struct.unpack("f", struct.pack("f", float(value)))[0]
    if kind is _TYPES.DECIMAL:
        behind = int(type.expressions[1].name) if len(type.expressions) > 1 else 0
        return Decimal(str(value)).quantize(Decimal(1).scaleb(-behind))
    if kind is _TYPES.BOOLEAN:
        return value if isinstance(value, bool) else {"true": True, "false": False}[str(value).lower()]
    if kind in _ZONED:
        at = _moment(str(value))
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    if kind is _TYPES.TIMESTAMPNTZ:
        return _moment(str(value)).replace(tzinfo=None)
    if kind in (_TYPES.DATE, _TYPES.DATE32):
        return date.fromisoformat(str(value))
    if kind in (_TYPES.BINARY, _TYPES.VARBINARY):
        return base64.b64decode(value)
    if kind is _TYPES.ARRAY:
        return [as_type(type.expressions[0], one) for one in value]
    if kind is _TYPES.MAP:
        return {name: as_type(type.expressions[1], one) for name, one in value.items()}
    if kind is _TYPES.STRUCT:
        return {one.name: as_type(one.args["kind"], value.get(one.name)) for one in type.expressions}
    return value


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


# What it gives


class _Told:
    """Calls the user's function, and makes rows of its result."""

    def __init__(self, answer: Answer, moved: Redirected) -> None:
        self._answer = answer
        self._graph: LogicalGraph = build_logical(moved.job)
        self._outputs = {one.name: one for one in moved.results if not one.is_letters}
        code = getattr(getattr(answer, "func", answer), "__code__", None)
        self._file = None if code is None else code.co_filename
        self._where = "answer()" if code is None else f"answer(), {Path(code.co_filename).name}:{code.co_firstlineno}"

    def rows(self, events: Rows) -> dict[str, tuple[Row, ...]]:
        try:
            told = self._answer(events)
        except Exception as error:  # whatever the user's code raises
            raise self._refusal(f"answer() failed: {type(error).__name__}: {error}", self._line_of(error)) from error
        if not isinstance(told, Mapping):
            raise self._refusal(f"answer() returned {_kind(told)}, not rows by the names of outputs")
        unknown = [name for name in told if name not in self._outputs]
        if unknown:
            known = ", ".join(self._outputs)
            raise self._refusal(f"answer() tells of output {unknown[0]!r}, and the job has {known}")
        rows = {name: tuple(self._rows(self._outputs[name], some)) for name, some in told.items()}
        return {name: self._last(name, some) for name, some in rows.items()}

    def _last(self, name: str, rows: tuple[Row, ...]) -> tuple[Row, ...]:
        """Of a table with a key: the rows that replace those before them."""
        if not _replaced_by(self._outputs[name]):
            return rows
        return tuple({row.key: row for row in rows}.values())

    def _rows(self, output: Result, some: object) -> Iterator[Row]:
        if isinstance(some, str | bytes | Mapping) or not hasattr(some, "__iter__"):
            raise self._refusal(f"answer() tells {_kind(some)} of output {output.name!r}, not a list of rows")
        sink = output.sink
        if getattr(sink, "format", "json") == "csv" or getattr(sink, "deleted", None) is not None:
            raise self._refusal(
                f"rows of output {output.name!r} are CSV or may be deletions, and are not compared with answers",
                fix="leave this output out of what answer() returns",
            )
        for number, row in enumerate(some):
            if not isinstance(row, Mapping):
                raise self._refusal(f"row {number + 1} of output {output.name!r} is {_kind(row)}, not a dict")
            try:
                yield self._row(output, dict(row))
            except (TypeError, ValueError, KeyError, struct.error) as error:
                raise self._refusal(f"row {number + 1} of output {output.name!r} cannot be used: {error}") from None

    def _row(self, output: Result, row: dict[str, Any]) -> Row:
        sink, topic = output.sink, output.sink.location
        if not isinstance(topic, Topic):
            names = _replaced_by(output)
            if getattr(sink, "format", None) == "json" and any(isinstance(value, bytes) for value in row.values()):
                raise ValueError("bytes in files of JSON are not compared")
            key = write({name: row[name] for name in names}, Form.TOLD) if names else None
            return Row(key, write(row, Form.TOLD))
        key = self._key(output.name, topic, row)
        beside = [name for name in (topic.headers, topic.timestamp) if name is not None]
        if topic.format == "json":
            return Row(key, write({name: value for name, value in row.items() if name not in beside}))
        taken = {*topic.key, *beside, topic.partition}
        (value,) = (value for name, value in row.items() if name not in taken)
        return Row(key, _as_bytes(value))

    def _key(self, output: str, topic: Topic, row: Mapping[str, Any]) -> bytes | None:
        missing = [name for name in topic.key if name not in row]
        if missing:
            raise ValueError(f"it has no {missing[0]!r}, which is in the record's key")
        if len(topic.key) > 1:
            return write([row[name] for name in topic.key])
        value = row[topic.key[0]] if topic.key else None
        if value is None:
            return None
        if isinstance(value, int):
            columns = self._graph.node(self._graph.node(output).inputs[0]).flow.columns
            column = None if columns is None else columns.find(topic.key[0])
            if column is None or kind_of(column) not in ("INT", "BIGINT"):
                raise ValueError(f"the width of its key {topic.key[0]!r} is unknown; select it AS a cast to BIGINT")
            return struct.pack(">i" if kind_of(column) == "INT" else ">q", value)
        return _as_bytes(value)

    def _line_of(self, error: Exception) -> str | None:
        lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == self._file]
        return f"{Path(str(self._file)).name}:{lines[-1]}" if lines else None

    def _refusal(self, what: str, where: str | None = None, fix: str = _FIX) -> Refused:
        return Refused(what, where=where or self._where, fix=fix)


def _replaced_by(output: Result) -> tuple[str, ...]:
    location = output.sink.location
    return () if location is None else location.replaced_by


def _kind(thing: object) -> str:
    return "nothing" if thing is None else f"a {type(thing).__name__}"


def _as_bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is neither text nor bytes")
    return value.encode()
