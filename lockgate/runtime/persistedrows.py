"""Rows of an epoch that are computed once, and kept until the epoch is written.

Spark computes rows again for each use, unless they are kept. An executor may die with kept rows, and Spark then
computes them again. That is harmless if the result is the same. It is not the same if a step is not deterministic, or
if rows that failed already became dead letters. Rows that are kept here are never computed again: if they are lost,
the epoch fails, and the query repeats all of it.

If the query ends before its outputs (planner/passes.py), its rows are kept first. Then the steps below run on them, and
their result is kept, too. So the query and every step below it run once, whatever uses the result.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lockgate.errors import EpochFailed
from lockgate.spark.compile import Finish
from lockgate.throwables import throwables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOST = (
    "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND",
    "_LEGACY_ERROR_TEMP_3003",  # a block of rows that were put aside (connectors/aside.py)
)


@contextlib.contextmanager
def persisted(spark: SparkSession, rows: DataFrame, *, epoch: int, where: str) -> Iterator[DataFrame]:
    """The rows, computed now and kept inside the context."""
    before, made = _persisted(spark), None
    try:
        made = rows.localCheckpoint()
        yield made
    except Exception as error:
        if any(one.condition.startswith(_LOST) for one in throwables(error)):
            raise EpochFailed(
                f"rows of epoch {epoch} were lost with the process that held them",
                where=where,
                fix="nothing: the epoch is repeated",
            ) from error
        raise
    finally:
        # If the computation failed, its RDD is unknown, so release every new one.
        own = None if made is None else made._jdf.queryExecution().logical().rdd().id()
        for number, held in _persisted(spark).items():
            if number == own or (own is None and number not in before):
                held.unpersist(False)


@contextlib.contextmanager
def finished(
    spark: SparkSession, rows: DataFrame, finish: Finish | None, *, epoch: int, where: str
) -> Iterator[tuple[DataFrame, dict[str, Any]]]:
    """The rows of all outputs, kept; and the observations of steps below the query, by name."""
    observed: dict[str, Any] = {}
    with contextlib.ExitStack() as opened:

        def keep(found: DataFrame) -> DataFrame:
            made = opened.enter_context(persisted(spark, found, epoch=epoch, where=where))
            if found is not rows:  # the query's own report has its observations
                observed.update(as_plain(found._jdf.queryExecution().observedMetrics(), spark))
            return made

        made = keep(rows)
        yield made if finish is None else keep(finish(made, keep)), observed


def as_plain(metrics: Any, spark: SparkSession) -> dict[str, Any]:
    """Spark's observations by name, from a Scala map of rows."""
    as_java = spark.sparkContext._jvm.scala.jdk.javaapi.CollectionConverters.asJava  # type: ignore[union-attr]
    return {name: json.loads(row.json()) for name, row in dict(as_java(metrics)).items()}


def _persisted(spark: SparkSession) -> dict[int, Any]:
    jsc = spark.sparkContext._jsc
    return dict(jsc.getPersistentRDDs()) if jsc is not None else {}
