"""Change how much a running query takes from each source in an epoch.

Spark asks a source for its limit once, when a query starts, and keeps the answer in a map that it reads before every
epoch. Java can reach that map, so we can change it while the query runs; the next planned epoch uses the new limits.
Only topics are limited so: files are limited by bytes, and do not say how much waits; sources in Python count for
themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Limits:
    """The limits of one query, which started with `rows_first` for each of its sources; `execution` is Spark's."""

    def __init__(self, spark: SparkSession, execution: Any, rows_first: int) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._limit = jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit
        self._as_java = jvm.scala.jdk.javaapi.CollectionConverters.asJava
        self._execution = execution
        self._rows = rows_first

    def set(self, rows: int) -> None:
        """Limit the next epochs to this number of rows of each topic."""
        if rows == self._rows:
            return
        sources = self._execution.uniqueSources()
        if sources.isEmpty():
            return  # it is still starting
        for source, limit in self._as_java(sources).items():
            if limit.getClass().getSimpleName() == "ReadMaxRows":
                sources = sources.updated(source, self._limit.maxRows(rows))
        getattr(self._execution, "uniqueSources_$eq")(sources)
        self._rows = rows
