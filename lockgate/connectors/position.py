"""Where a row came from, as the hidden column POSITION.

It orders the rows of a key before every step that depends on order, because Spark replays an epoch with the same rows
but not in the same order. It also names the row in errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lockgate.dataflow.endpoints import POSITION, POSITION_DDL

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

_TASKS_MAX = 1 << 20

UNKNOWN = -1
"""The place of a row if no step needs its order."""


def position(*, source: str, part: Column, at: Column) -> Column:
    """The POSITION of a row: its source, a part of it that has an order, and the place in that order."""
    from pyspark.sql import functions as F

    return (
        F.struct(
            F.lit(source).alias("source"),
            part.alias("part"),
            at.alias("at"),
            F.array().cast("array<int>").alias("child"),
        )
        .cast(POSITION_DDL)
        .alias(POSITION)
    )


def number_rows(frame: DataFrame, *, part: str, tasks: int = 1) -> DataFrame:
    """The frame with the column `__at`: the place of each row in its part, in the order in which it was read.

    Spark cannot number the rows of a stream natively, so they pass through Python. Sources ask for it only if a step
    depends on order. Several branches may read one source, in tasks with other numbers: an event has the same place in
    all of them.

    Args:
        tasks: how many tasks share the rows of a part in turn; 1 if one task reads all of a part.
    """
    from pyspark.sql.types import LongType, StructField, StructType

    def number(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        task = context.partitionId() % tasks if context is not None else 0
        seen: dict[str, int] = {}
        for batch in batches:
            places = []
            for name in batch.column(part).to_pylist():
                seen[name] = seen.get(name, 0) + 1
                # If tasks share a part in turn (a socket), its order is by row first, by task second.
                places.append(seen[name] * _TASKS_MAX + task)
            yield batch.append_column("__at", pa.array(places, type=pa.int64()))

    return frame.mapInArrow(number, StructType([*frame.schema.fields, StructField("__at", LongType())]))
