"""Rows as files and back: Spark's own writer and reader with the same settings, so that a read gives what was written.

Files also contain the partition columns, under another name. From the names of directories Spark would read an empty
text as null, and a text of digits as a number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockgate.connectors.files.manifest import NULL, Group
from lockgate.dataflow.format import Format
from lockgate.dataflow.schema import quote
from lockgate.errors import BadJob

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

    from lockgate.connectors.files.filesystem import System

FORMATS = (Format.PARQUET, Format.JSON, Format.CSV)

# Spark's own sign for null in CSV is nothing at all. It reads that for an empty text too, and a row of one column
# becomes an empty line, which it skips. This sign is that of Hive, MySQL and PostgreSQL.
_CSV_NULL = r"\N"
_NOT_IN_CSV = ("array", "map", "struct", "binary", "variant")

_TEXTS = ("string", "char", "varchar")

# To the microsecond, and with the zone: the defaults drop both.
_TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_OPTIONS = {
    "parquet": {},
    "json": _TIMES,
    "csv": {
        **_TIMES,
        "escape": '"',
        "nullValue": _CSV_NULL,
        "ignoreLeadingWhiteSpace": "false",
        "ignoreTrailingWhiteSpace": "false",
    },
}
_WRITING = {
    # The other algorithm shows the files of a task before all tasks are done, and those of a task that died half-way.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
_READING = {
    "mode": "FAILFAST",
    "multiLine": "false",
    "recursiveFileLookup": "true",  # no columns from the names of directories
    "__globPaths__": "false",  # a name is a name, whatever characters it has; Spark's own file stream uses the same
}


def write_rows(rows: DataFrame, place: str, *, kind: str, partition_by: tuple[str, ...], rows_per_file: int) -> None:
    """Write rows as files into a directory that does not exist yet."""
    from pyspark.sql import functions as F

    inside = _inside(partition_by)
    texts = {field.name.lower() for field in rows.schema if field.dataType.typeName() in _TEXTS}
    columns = [
        (_without_null_sign(name) if kind == "csv" and name.lower() in texts else F.col(quote(name))).alias(
            inside.get(name.lower(), name)
        )
        for name in rows.columns
    ]
    # A text that looks like the directory of null would be written to it beside null, in a file of the same name.
    folders = [
        (F.nullif(F.col(quote(name)), F.lit(NULL)) if name.lower() in texts else F.col(quote(name))).alias(name)
        for name in partition_by
    ]
    writer = rows.select(*columns, *folders).write.mode("error").format(kind)
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    options = {**_OPTIONS[kind], **_WRITING, "maxRecordsPerFile": str(rows_per_file)}
    writer.options(**options).save(place)


def _without_null_sign(name: str) -> Column:
    """A text column for CSV; a text that would be read as null stops the job, and is not silently changed."""
    from pyspark.sql import functions as F

    told = f"column {name!r} has the text {_CSV_NULL!r}, which stands for null in CSV: use format='json' or 'parquet'"
    return F.when(F.col(quote(name)) == _CSV_NULL, F.raise_error(F.lit(told))).otherwise(F.col(quote(name)))


def read_rows(spark: SparkSession, system: System, group: Group) -> DataFrame:
    """The rows of files that were written alike; an empty frame with their columns if there are none."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructField, StructType

    schema = _columns(group.schema)
    if not group.files:
        return spark.createDataFrame([], schema)
    inside = _inside(group.partition_by)
    names = [inside.get(field.name.lower(), field.name) for field in schema.fields]
    stored = StructType([StructField(name, field.dataType) for name, field in zip(names, schema.fields, strict=True)])
    options = {**_READING, **_OPTIONS[group.kind], **({"multiLine": "true"} if group.kind == "csv" else {})}
    reader = spark.read.format(group.kind).schema(stored).options(**options)
    rows = reader.load([system.uri(file.path) for file in group.files])
    return rows.select(
        *(F.col(quote(name)).alias(field.name) for name, field in zip(names, schema.fields, strict=True))
    )


def ddl_of(rows: DataFrame) -> str:
    """The columns of rows for a manifest; any may be null, so that the next epoch is written alike."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, field.dataType) for field in rows.schema]).toDDL()


def _columns(ddl: str) -> StructType:
    from pyspark.sql.types import StructType

    columns = StructType.fromDDL(ddl)
    assert isinstance(columns, StructType)
    return columns


def check_kind(kind: str, name: str, of: DataType, where: str) -> None:
    """Refuse a column that files of this kind cannot hold."""
    if kind == "csv" and of.typeName() in _NOT_IN_CSV:
        raise BadJob(
            f"column {name!r} of type {of.simpleString()} cannot be written as CSV",
            where=where,
            fix="use format='json' or 'parquet', or make a text of it: select(..., 'to_json(x) AS x')",
        )


def _inside(partition_by: tuple[str, ...]) -> dict[str, str]:
    """The name of a partition column inside a file; names with two underscores are never a user's."""
    return {name.lower(): f"__{name}" for name in partition_by}
