"""Rows brought to the driver, for sinks that live there.

Timestamps come as aware datetimes in UTC, as functions of the user's see them, whatever zone the machine is in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row


def collect_rows(frame: DataFrame) -> list[Row]:
    """All rows of a frame."""
    from pyspark.sql import Row

    make_row = Row(*frame.columns)
    table = frame.toArrow()
    return [make_row(*values) for values in zip(*(column.to_pylist() for column in table.columns), strict=True)]
