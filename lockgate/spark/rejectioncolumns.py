"""Rows that a step in Python could not use, on their way out of its worker: beside the results, in two more columns.

    a result      its columns, and nulls in FACTS and WHOLE
    a rejection   nulls, and its texts in FACTS and WHOLE; after the step it is put aside (connectors/rejects.py)

So the memory of a worker does not depend on their number, and the driver receives none of them. A column that is never
null in the results must be nullable on this way; after it, it is not nullable again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lockgate.connectors.rejects import FACTS, WHOLE, Rejection, Rejects
from lockgate.dataflow.schema import quote
from lockgate.spark.trials import wrapped

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_BATCH_CHARS = 1024 * 1024


def with_texts(schema: StructType) -> StructType:
    """The columns of a step's results as they leave the worker."""
    from pyspark.sql.types import StringType, StructField, StructType

    told = [StructField(name, StringType()) for name in (FACTS, WHOLE)]
    made = [StructField(one.name, one.dataType, True, one.metadata) for one in schema.fields]
    return StructType([*made, *told])


def as_results(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Results among rows that may be rejections."""
    import pyarrow as pa

    none = pa.nulls(batch.num_rows, pa.string())
    return pa.RecordBatch.from_arrays([*batch.columns, none, none], schema=schema)


def with_rejections(
    results: pa.RecordBatch, rejections: Sequence[Rejection], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The output of the worker for one batch: its results, then its rejections in batches of about a megabyte."""
    yield as_results(results, schema)
    for texts in as_texts(rejections):
        yield with_nothing(texts, schema)


def as_texts(rejections: Sequence[Rejection]) -> Iterator[pa.RecordBatch]:
    """The texts of rejections alone, in batches of about a megabyte."""
    import pyarrow as pa

    facts: list[str] = []
    wholes: list[str | None] = []
    chars = 0
    for one in rejections:
        facts.append(one.facts)
        wholes.append(one.whole)
        chars += len(facts[-1]) + len(wholes[-1] or "")
        if chars >= _BATCH_CHARS:
            yield pa.record_batch([pa.array(facts, pa.string()), pa.array(wholes, pa.string())], names=[FACTS, WHOLE])
            facts, wholes, chars = [], [], 0
    if facts:
        yield pa.record_batch([pa.array(facts, pa.string()), pa.array(wholes, pa.string())], names=[FACTS, WHOLE])


def with_nothing(texts: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Texts, with nulls instead of results."""
    import pyarrow as pa

    nothing = [pa.nulls(texts.num_rows, field.type) for field in list(schema)[:-2]]
    return pa.RecordBatch.from_arrays([*nothing, *texts.columns], schema=schema)


def parted(frame: DataFrame, results: StructType, rejects: Rejects) -> DataFrame:
    """The results alone; the rejections are put aside."""
    from pyspark.sql import functions as F

    columns = []
    for field in results.fields:
        column = F.col(quote(field.name))
        if not field.nullable:
            column = wrapped("KnownNotNull", column).alias(field.name, metadata=field.metadata)
        columns.append(column)
    return rejects.part(frame).select(*columns)
