"""Where a row came from, as the hidden column POSITION.

It orders the rows of a key before every step that depends on order, because Spark replays an epoch with the same rows
but not in the same order; and it names the row in errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockgate.dataflow.endpoints import POSITION, POSITION_DDL

if TYPE_CHECKING:
    from pyspark.sql import Column


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
