"""Rows that delete what is stored under their key, marked by SQL of the user (`deleted=` of a sink)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DELETED = "__deleted"
"""Hidden column of prepared rows: does this one delete its key?"""


def mark_deleted(rows: DataFrame, condition: str | None) -> DataFrame:
    """The rows with DELETED, computed while the names in the condition can be resolved; marked rows keep the mark."""
    from pyspark.sql import functions as F

    if condition is None or DELETED in rows.columns:
        return rows
    return rows.withColumn(DELETED, F.coalesce(F.expr(condition), F.lit(False)))
