"""Figures that only Spark's driver knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def process_of(spark: SparkSession) -> int | None:
    """The process of the driver's JVM, if we started it."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    return None if process is None else int(process.pid)


def tasks_done(spark: SparkSession) -> dict[int, int]:
    """The tasks that have ended, by active stage."""
    tracker = spark.sparkContext.statusTracker()
    stages = {stage: tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()}
    return {stage: info.numCompletedTasks for stage, info in stages.items() if info is not None}


def heap_bytes(spark: SparkSession) -> dict[str, int]:
    """The heap of the driver's JVM."""
    jvm: Any = spark.sparkContext._jvm
    heap = jvm.java.lang.Runtime.getRuntime()
    return {"used": int(heap.totalMemory() - heap.freeMemory()), "max": int(heap.maxMemory())}
