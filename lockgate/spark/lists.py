"""Send lists and maps to Python without slow columns of nulls.

After every row that Spark adds to a batch, it asks for the batch's size. Arrow then writes the offsets of all null
lists since the last one that was not null. So a column of nulls takes time with the square of a batch's rows, more than
ten microseconds a row. Therefore a null travels as an empty list, and one number beside the row says which were null.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from lockgate.dataflow.schema import quote

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_NULLS = "__nulls"
_COLUMNS_MAX = 62  # the bits of a BIGINT that can be added up safely


def null_columns(frame: DataFrame) -> tuple[str, ...]:
    """The lists and maps of a frame that may be null, as many as one number can mark."""
    from pyspark.sql.types import ArrayType, MapType

    found = [field.name for field in frame.schema.fields if isinstance(field.dataType, ArrayType | MapType)]
    return tuple(name for name in found if frame.schema[name].nullable)[:_COLUMNS_MAX]


def with_empty(frame: DataFrame, names: tuple[str, ...]) -> DataFrame:
    """The frame with empty lists and maps instead of null ones, and the number that marks these."""
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
    return frame.select(*columns, nulls.alias(free))  # as the last column: `with_nulls` finds it there


def with_nulls(batch: pa.RecordBatch, names: tuple[str, ...]) -> pa.RecordBatch:
    """The batch as it was before `with_empty`."""
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
