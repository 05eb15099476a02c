"""Bytes into typed columns; what does not parse stops the job, or becomes a dead letter, and is never silently null.

The check is a filter that Spark may neither drop nor move. It calls a function that Spark must treat as
non-deterministic. So Spark evaluates no filter of the user before it, and does not remove it with an unused column.

    format   the value is                      does not parse
    json     an object with the columns        not an object, a field of another type, a missing NOT NULL field
    csv      a line with the columns           more or fewer fields, a field of another type
    text     one STRING column                 bytes that are not UTF-8
    bytes    one BINARY column                 -; a record without a value is null, unless the column is NOT NULL

A record without a value (a tombstone) does not parse in the other formats.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lockgate.connectors.marking import signed_mark
from lockgate.dataflow.format import Format, require_format
from lockgate.dataflow.schema import Column, Schema
from lockgate.errors import BadJob
from lockgate.failures import MARK

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

    from lockgate.connectors.rejects import Guard

FORMATS = (Format.JSON, Format.CSV, Format.TEXT, Format.BYTES)
CORRUPT = "__corrupt"
PARSED = "__parsed"
WALL = "__wall"


def check_format(format: Format | str, columns: Schema, where: str) -> None:
    """Refuse a format that is unknown or does not fit the columns."""
    require_format(format, FORMATS, where)
    refuse_hidden_not_null(columns, where)
    single = {"text": "STRING", "bytes": "BINARY"}.get(format)
    if single and (len(columns.columns) != 1 or columns.columns[0].type != single):
        raise BadJob(
            f"format={str(format)!r} gives one column of type {single}, but the schema is ({columns})",
            where=where,
            fix=f'value="{"line" if format == "text" else "payload"} {single}", then parse it in a step',
        )


def refuse_hidden_not_null(columns: Schema, where: str) -> None:
    """Refuse NOT NULL inside a type: there a parser makes a missing field null, without an error."""
    for column in columns.columns:
        if "NOT NULL" in (column.type or "").upper():
            raise BadJob(
                f"NOT NULL inside the type of column {column.name!r} would not be checked: {column.type}",
                where=where,
                fix="declare it for whole columns, and check the fields inside with a `where`",
            )


def parse_values(frame: DataFrame, *, raw: str, columns: Schema, ddl: str, format: str, guard: Guard) -> DataFrame:
    """The columns of `ddl` from the column `raw`, followed by all other columns of the frame.

    The frame must have the columns `__part` (a text that names the topic and partition, or the file) and `__at`.
    """
    from pyspark.sql import functions as F

    kept = [name for name in frame.columns if name not in (raw, "__part", "__at")]
    text = F.col(raw).cast("string")
    not_utf8 = F.when(~F.is_valid_utf8(text), F.lit("it is not UTF-8"))
    if format == "bytes":
        parsed, reason = F.struct(F.col(raw).alias(columns.names[0])), F.lit(None).cast("string")
    elif format == "text":
        parsed, reason = F.struct(text.alias(columns.names[0])), not_utf8
    else:
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
        parse = F.from_json if format == "json" else F.from_csv
        parsed = parse(text, f"{_nullable(ddl)}, {CORRUPT} STRING", options)
        field = F.col(PARSED)
        reason = F.coalesce(
            not_utf8,
            F.when(
                field.isNull() | field[CORRUPT].isNotNull() | _has_more(text, format),
                F.lit(f"it is not {format.upper()} of ({ddl})"),
            ),
            *(
                F.when(field[column.name].isNull(), F.lit(f"{column.name} is missing, and it is NOT NULL"))
                for column in columns.columns
                if not column.is_nullable
            ),
        )
    if format != "bytes" or not columns.columns[0].is_nullable:
        reason = F.coalesce(F.when(F.col(raw).isNull(), F.lit("the record has no value (a tombstone)")), reason)
    # With a non-deterministic value here, Spark moves no filter before the parser, where it would parse twice.
    frame = frame.select("*", parsed.alias(PARSED), F.spark_partition_id().alias(WALL))
    return guard.keep(frame, reason, shown=text, wall=F.col(WALL) >= 0).select(
        *(F.col(PARSED)[column.name].alias(column.name) for column in columns.columns), *kept
    )


def _has_more(text: SparkColumn, format: str) -> SparkColumn:
    """Does anything follow the value? Spark's JSON parser stops reading at its end."""
    from pyspark.sql import functions as F

    if format != "json":
        return F.lit(False)
    # If the first closing brace is the last character, nothing can follow. All other texts are parsed once more, whole.
    # By bytes: Spark counts characters one by one, which took a tenth of a job's time.
    trimmed = F.rtrim(text)
    before = F.substring(trimmed.cast("binary"), F.lit(1), F.octet_length(trimmed) - 1).cast("string")
    is_surely_whole = F.endswith(trimmed, F.lit("}")) & ~F.contains(before, F.lit("}"))
    length = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))
    return F.when(is_surely_whole, F.lit(False)).otherwise(F.coalesce(length, F.lit(0)) != 1)


def stop_where(
    reason: SparkColumn,
    *,
    row: SparkColumn,
    where: str,
    kind: str = "value",
    part: SparkColumn | None = None,
    at: SparkColumn | None = None,
) -> SparkColumn:
    """A condition that always holds, and stops the job if `reason` is not null.

    The row's place is in the columns `__part` and `__at`, unless it is given.
    """
    from pyspark.sql import functions as F

    facts = F.to_json(
        F.struct(
            F.lit(kind).alias("kind"),
            F.lit(where).alias("where"),
            (F.col("__part") if part is None else part).alias("part"),
            (F.col("__at") if at is None else at).alias("at"),
            reason.alias("reason"),
            F.substring(row, 1, 400).alias("row"),
        )
    )
    token = signed_mark(MARK, facts)
    # Because of spark_partition_id() Spark cannot move the filter.
    return F.when(reason.isNotNull(), F.raise_error(token).cast("boolean")).otherwise(F.spark_partition_id() >= 0)


def parse_key(frame: DataFrame, *, raw: str, columns: Schema, guard: Guard) -> DataFrame:
    """The columns of a key from its bytes, as `KafkaSink` writes them."""
    from pyspark.sql import functions as F

    frame_columns = frame.columns
    if len(columns.columns) == 1:
        column = columns.columns[0]
        value, reason = _key_value(F.col(raw), column, guard.where)
        checked = guard.keep(frame, reason, shown=F.hex(F.col(raw)))
        return checked.select(value.alias(column.name), *frame_columns)
    # Several columns are a JSON array as text; each element is read as text and cast to its type.
    elements = F.from_json(F.col(raw).cast("string"), "ARRAY<STRING>")
    values = [
        F.get(elements, F.lit(index)).try_cast(column.type or "STRING") for index, column in enumerate(columns.columns)
    ]
    is_bad = elements.isNull() | (F.size(elements) != len(columns.columns))
    for index, value in enumerate(values):
        is_bad = is_bad | (F.get(elements, F.lit(index)).isNotNull() & value.isNull())
    reason = F.when(F.col(raw).isNotNull() & is_bad, F.lit(f"the key is not a JSON array of ({columns})"))
    checked = guard.keep(frame, reason, shown=F.col(raw).cast("string"))
    named = [value.alias(name) for name, value in zip(columns.names, values, strict=True)]
    return checked.select(*named, *frame_columns)


def _key_value(raw: SparkColumn, column: Column, where: str) -> tuple[SparkColumn, SparkColumn]:
    """The value of a key of one column, and the reason why it has none."""
    from pyspark.sql import functions as F

    none = F.lit(None).cast("string")
    kind = (column.type or "").upper()
    if kind == "BINARY":
        return raw, none
    if kind == "STRING":
        text = raw.cast("string")
        return text, F.when(~F.is_valid_utf8(text), F.lit("the key is not UTF-8"))
    width = {"INT": 4, "BIGINT": 8}.get(kind)
    if width is None:
        raise BadJob(
            f"a key of type {column.type} has no agreed form as bytes",
            where=where,
            fix="declare the key as STRING, BINARY, INT or BIGINT, or as several columns",
        )
    number = F.conv(F.hex(raw), 16, -10).cast("decimal(20,0)")
    # conv reads 4 bytes without their sign.
    signed = F.when((F.lit(width) == 4) & (number >= 2**31), number - 2**32).otherwise(number)
    right_size = F.octet_length(raw) == width
    value = F.when(right_size, signed).cast(kind)
    return value, F.when(raw.isNotNull() & ~right_size, F.lit(f"the key does not have the {width} bytes of {kind}"))


def _nullable(ddl: str) -> str:
    """The DDL without NOT NULL: a parser must be able to report a missing field."""
    return re.sub(r"(?i)\s+NOT\s+NULL", "", ddl)
