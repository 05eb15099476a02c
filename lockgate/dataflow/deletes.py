"""Rows that delete what stands under their key, marked by SQL of the author's (`deleted=` of a sink)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DELETED = "__deleted"
"""Hidden column of prepared rows: does this one delete its key?"""


def mark_deleted(rows: DataFrame, condition: str | None) -> DataFrame:
    """The rows with DELETED, while the names that the condition speaks of can be resolved; marked rows stay so."""
    from pyspark.sql import functions as F

    if condition is None or DELETED in rows.columns:
        return rows
    return rows.withColumn(DELETED, F.coalesce(F.expr(condition), F.lit(False)))
