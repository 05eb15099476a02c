"""Rows of an epoch that are computed once, and kept until it is written.

Spark computes the rows again for everything that is done with them, unless they are kept. What is kept may be lost
with the executor that held it, and Spark then computes it again. That is harmless if it gives the same rows. It does
not if a step is not deterministic, or if dead letters were made of the rows that failed. Rows that are kept here are
never computed again: if they are lost, the epoch fails, and the query repeats it whole.

If the query ends before its outputs (planner/passes.py), its rows are kept first, the steps below are applied to them,
and the result is kept too. So the query and every step below it are computed once, whatever is done with the result.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lockgate.errors import EpochFailed
from lockgate.spark.compile import Finish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOST = ("CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND", "Checkpoint block rdd_")


@contextlib.contextmanager
def kept(spark: SparkSession, rows: DataFrame, *, epoch: int, where: str) -> Iterator[DataFrame]:
    """The rows, computed now, for the time that they are needed."""
    before, made = _persisted(spark), None
    try:
        made = rows.localCheckpoint()
        yield made
    except Exception as error:
        if any(mark in str(error) for mark in _LOST):
            raise EpochFailed(
                f"rows of epoch {epoch} were lost with the process that held them",
                where=where,
                fix="nothing: the epoch is repeated",
            ) from error
        raise
    finally:
        # If the computation failed, its RDD is not known, so every new one is released.
        own = None if made is None else made._jdf.queryExecution().logical().rdd().id()
        for number, held in _persisted(spark).items():
            if number == own or (own is None and number not in before):
                held.unpersist(False)


@contextlib.contextmanager
def finished(
    spark: SparkSession, rows: DataFrame, finish: Finish | None, *, epoch: int, where: str
) -> Iterator[tuple[DataFrame, dict[str, Any]]]:
    """The rows of all outputs, kept; and what steps below the query have observed, by name."""
    observed: dict[str, Any] = {}
    with contextlib.ExitStack() as opened:

        def keep(found: DataFrame) -> DataFrame:
            made = opened.enter_context(kept(spark, found, epoch=epoch, where=where))
            if found is not rows:  # what the query observes is in its own report
                observed.update(as_plain(found._jdf.queryExecution().observedMetrics(), spark))
            return made

        made = keep(rows)
        yield made if finish is None else keep(finish(made, keep)), observed


def as_plain(metrics: Any, spark: SparkSession) -> dict[str, Any]:
    """What Spark has observed, by name: a Scala map of rows."""
    as_java = spark.sparkContext._jvm.scala.jdk.javaapi.CollectionConverters.asJava  # type: ignore[union-attr]
    return {name: json.loads(row.json()) for name, row in dict(as_java(metrics)).items()}


def _persisted(spark: SparkSession) -> dict[int, Any]:
    jsc = spark.sparkContext._jsc
    return dict(jsc.getPersistentRDDs()) if jsc is not None else {}
