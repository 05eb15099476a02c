"""Fit the rows of a test to the columns that a job declares: nothing is converted, nothing is guessed.

    a column            has in Python
    an integer          an int, within its range
    FLOAT, DOUBLE       a float, or an int
    DECIMAL             a Decimal or an int, with no more digits than declared
    STRING, BINARY      a str, bytes
    DATE                a date
    TIMESTAMP           a datetime with its zone
    TIMESTAMP_NTZ       a datetime without one
    ARRAY, MAP, STRUCT  a list, a dict, a dict with all fields

A row that fits is written as JSON, CSV or Arrow, so that sources read it with the same parsers as any other row.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from lockgate.dataflow.schema import Schema, quote
from lockgate.errors import Refused

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

Row = Mapping[str, Any]

_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}


def as_ddl(columns: Schema) -> str:
    """Columns as Spark's DDL."""
    return ", ".join(
        f"{quote(column.name)} {column.type or 'STRING'}{'' if column.is_nullable else ' NOT NULL'}"
        for column in columns.columns
    )


def as_struct(ddl: str) -> StructType:
    """Spark's types of declared columns; this needs a Spark session."""
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)
    return schema


def fitted(row: Row, columns: StructType, *, where: str, others: Sequence[str] = ()) -> dict[str, Any]:
    """The values of a row in the order of its columns, or Refused; the row may also have `others`."""
    names = columns.names
    unknown = [name for name in row if name not in names and name not in others]
    missing = [name for name in names if name not in row]
    told = f"the columns are {columns.simpleString().removeprefix('struct<').removesuffix('>').replace(':', ' ')}"
    if unknown:
        raise Refused(f"the row {_shown(row)} has a column {unknown[0]!r} that is not declared", where=where, fix=told)
    if missing:
        raise Refused(
            f"the row {_shown(row)} lacks the column {missing[0]!r}",
            where=where,
            fix=f"add it, as None if it is null; {told}",
        )
    for field in columns.fields:
        reason = _misfit(row[field.name], field.dataType, is_nullable=field.nullable)
        if reason is not None:
            raise Refused(
                f"column {field.name!r} of the row {_shown(row)} {reason}", where=where, fix=f"correct the row; {told}"
            )
    return {name: row[name] for name in names}


def _shown(row: Row) -> str:
    text = repr(dict(row))
    return text if len(text) <= 200 else f"{text[:200]}..."


def _misfit(value: Any, kind: DataType, *, is_nullable: bool) -> str | None:
    """Why a value is not of a type, or None if it is."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if value is None:
        return None if is_nullable else "is None, and it is declared NOT NULL"
    wrong = f"is {value!r}, which is no {kind.simpleString().upper()}"
    if isinstance(kind, ArrayType):
        if not isinstance(value, list | tuple):
            return wrong
        return _first(_misfit(one, kind.elementType, is_nullable=kind.containsNull) for one in value)
    if isinstance(kind, MapType):
        if not isinstance(value, Mapping):
            return wrong
        keys = _first(_misfit(one, kind.keyType, is_nullable=False) for one in value)
        return keys or _first(
            _misfit(one, kind.valueType, is_nullable=kind.valueContainsNull) for one in value.values()
        )
    if isinstance(kind, StructType):
        if not isinstance(value, Mapping) or {*value} != {*kind.names}:
            return f"{wrong}: give a dict with all of its fields"
        inner = (_misfit(value[one.name], one.dataType, is_nullable=one.nullable) for one in kind.fields)
        return _first(inner)
    return None if _is_scalar(value, kind) else f"{wrong}{_hint(value, kind)}"


def _first(reasons: Any) -> str | None:
    return next((reason for reason in reasons if reason is not None), None)


def _is_scalar(value: Any, kind: DataType) -> bool:
    from pyspark.sql import types as t

    name = kind.simpleString()
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if name in _BITS:
        return is_number and -(2 ** (_BITS[name] - 1)) <= value < 2 ** (_BITS[name] - 1)
    if isinstance(kind, t.DecimalType):
        return (is_number or isinstance(value, Decimal)) and _fits_digits(Decimal(value), kind.precision, kind.scale)
    if isinstance(kind, t.FloatType | t.DoubleType):
        return is_number or isinstance(value, float)
    if isinstance(kind, t.TimestampType):
        return isinstance(value, datetime) and value.tzinfo is not None
    if isinstance(kind, t.TimestampNTZType):
        return isinstance(value, datetime) and value.tzinfo is None
    if isinstance(kind, t.DateType):
        return isinstance(value, date) and not isinstance(value, datetime)
    if isinstance(kind, t.BooleanType):
        return isinstance(value, bool)
    if isinstance(kind, t.BinaryType):
        return isinstance(value, bytes)
    return isinstance(value, str) if name == "string" or name.startswith(("varchar", "char")) else False


def _hint(value: Any, kind: DataType) -> str:
    if isinstance(value, datetime) and kind.simpleString() == "timestamp":
        return ": give it a zone, e.g. tzinfo=UTC"
    return ""


def _fits_digits(value: Decimal, precision: int, scale: int) -> bool:
    if not value.is_finite():
        return False
    _, digits, exponent = value.normalize().as_tuple()
    assert isinstance(exponent, int)
    return -exponent <= scale and len(digits) + exponent <= precision - scale


# In the forms that sources read


def as_plain(value: Any) -> Any:
    """A value in the form of JSON and CSV; Spark reads decimals and times from text."""
    if isinstance(value, datetime):
        return (value if value.tzinfo is None else value.astimezone(UTC)).isoformat(timespec="microseconds")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {as_plain(key): as_plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(one) for one in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value


def as_json(row: Row) -> bytes:
    """A row as one object."""
    return json.dumps(as_plain(row), ensure_ascii=False).encode()


def as_csv(values: Sequence[Any]) -> bytes:
    """A row as one line, without a newline, as Spark reads it: quotes are escaped, and an empty field is null."""
    return ",".join(map(_field, values)).encode()


def _field(value: Any) -> str:
    plain = as_plain(value)
    if plain is None or isinstance(plain, bool):
        return "" if plain is None else str(plain).lower()
    text = str(plain)
    is_bare = bool(text) and text == text.strip() and not any(sign in text for sign in ',"\\\r\n')
    return text if is_bare else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def as_arrow(rows: Sequence[Row], columns: StructType) -> pa.Table:
    """Rows as a table of exactly these types."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(columns, timezone="UTC")
    arrays = [pa.array([_for_arrow(row[field.name], field.type) for row in rows], type=field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _for_arrow(value: Any, kind: pa.DataType) -> Any:
    import pyarrow as pa

    return list(value.items()) if pa.types.is_map(kind) and isinstance(value, Mapping) else value
