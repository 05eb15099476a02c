"""Lists and maps on their way to Python.

With every row that Spark adds to a batch it asks how large the batch is, and Arrow then writes the offsets of all null
lists since the last one that was not null: a column of nulls takes time with the square of a batch's rows, more than
ten microseconds a row. So a null travels as an empty list, and one number beside the row says which of them were null.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from lockgate.dataflow.schema import quote

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_NULLS = "__nulls"
_COLUMNS_MAX = 62  # the bits of a BIGINT that are safe to add up


def null_columns(frame: DataFrame) -> tuple[str, ...]:
    """The lists and maps of a frame that may be null, as far as one number can tell."""
    from pyspark.sql.types import ArrayType, MapType

    found = [field.name for field in frame.schema.fields if isinstance(field.dataType, ArrayType | MapType)]
    return tuple(name for name in found if frame.schema[name].nullable)[:_COLUMNS_MAX]


def with_empty(frame: DataFrame, names: tuple[str, ...]) -> DataFrame:
    """The frame with empty ones where these are null, and the number that tells which were."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType

    if not names:
        return frame
    bits = [F.when(F.col(quote(name)).isNull(), 1 << place).otherwise(0) for place, name in enumerate(names)]
    columns = []
    for field in frame.schema.fields:
        column = F.col(quote(field.name))
        if field.name in names:
            empty = F.array() if isinstance(field.dataType, ArrayType) else F.create_map()
            column = F.coalesce(column, empty.cast(field.dataType)).alias(field.name)
        columns.append(column)
    nulls = reduce(lambda one, other: one + other, [bit.cast("bigint") for bit in bits])
    taken = {name.lower() for name in frame.columns}
    free = next(name for number in range(len(taken) + 1) if (name := f"{_NULLS}{number}") not in taken)
    return frame.select(*columns, nulls.alias(free))  # the last one, by which it is found again


def with_nulls(batch: pa.RecordBatch, names: tuple[str, ...]) -> pa.RecordBatch:
    """A batch as it was before `with_empty`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not names:
        return batch
    nulls = batch.column(batch.num_columns - 1)
    batch = batch.select(range(batch.num_columns - 1))
    for place, name in enumerate(names):
        was_null = pc.not_equal(pc.bit_wise_and(nulls, 1 << place), 0)
        at = batch.schema.get_field_index(name)
        restored = pc.if_else(was_null, pa.scalar(None, batch.schema.field(at).type), batch.column(at))
        batch = batch.set_column(at, batch.schema.field(at), restored)
    return batch
