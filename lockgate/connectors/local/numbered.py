"""Streams of rows that are numbered from 0 and can be made again from their numbers alone.

They are Python data sources of Spark. An offset is the number of the next row, and the time when the stream began. So
after a restart the same rows become available at the same time.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lockgate.connectors.position import position
from lockgate.dataflow.endpoints import POSITION, Reading, Source
from lockgate.errors import BadJob

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

NUMBER = "__number"

Generate = Callable[[int, int, "pa.Schema"], "pa.RecordBatch"]
"""Rows from `first` up to, but not including, `last`, as Arrow columns of the schema; the last column is NUMBER."""

Available = Callable[[float], int]
"""How many rows exist, given how many seconds ago the stream began."""

_ROWS_PER_BATCH = 10_000


class NumberedSource(Source):
    """The common part of such sources: Python makes the rows, and they have one start."""

    @property
    def is_native(self) -> bool:
        return False

    def check(self, reading: Reading) -> None:
        if reading.start != "earliest":
            raise BadJob(
                f"rows that are made from their numbers cannot be read from {reading.start!r} on",
                where=reading.where,
                fix="start at 'earliest', or omit the start",
            )

    def hidden_columns(self) -> Sequence[str]:
        return (POSITION,)


def read_numbered(
    spark: SparkSession,
    *,
    name: str,
    ddl: str,
    columns: Sequence[str],
    generate: Generate,
    available: Available,
    per_epoch: int,
    partitions: int,
) -> DataFrame:
    """The stream as a DataFrame: the columns, then POSITION."""
    from pyspark.sql import functions as F
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
    from pyspark.sql.types import StructType

    # A name may contain any character; Spark's name for a source may not.
    format = f"lockgate_{hashlib.sha256(name.encode()).hexdigest()[:16]}"

    class Rows(InputPartition):
        def __init__(self, first: int, last: int) -> None:
            self.first, self.last = first, last

    class Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
        def __init__(self, schema: StructType) -> None:
            self.schema = schema
            self.end: int | None = None

        def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
            return {"row": 0, "began_ms": int(time.time() * 1000)}

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            self.end = -1  # set with the first offset, which has the time when the stream began

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
            return ReadMaxRows(per_epoch)

        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
            count = available(time.time() - start["began_ms"] / 1000)
            if self.end == -1:
                self.end = count
            count = count if self.end is None else min(count, self.end)
            if isinstance(limit, ReadMaxRows):
                count = min(count, start["row"] + limit.max_rows)
            return {"row": max(count, start["row"]), "began_ms": start["began_ms"]}

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
            first, last = start["row"], end["row"]
            cuts = [first + (last - first) * part // partitions for part in range(partitions + 1)]
            return [Rows(here, there) for here, there in pairwise(cuts) if here < there]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            assert isinstance(partition, Rows)
            arrow = to_arrow_schema(self.schema, timezone="UTC")
            for first in range(partition.first, partition.last, _ROWS_PER_BATCH):
                yield generate(first, min(first + _ROWS_PER_BATCH, partition.last), arrow)

    class Numbered(DataSource):
        @classmethod
        def name(cls) -> str:
            return format

        def schema(self) -> str:
            return f"{ddl}, {NUMBER} BIGINT"

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
            return Reader(schema)

    spark.dataSource.register(Numbered)
    rows = spark.readStream.format(format).load()
    return rows.select(*columns, position(source=name, part=F.lit(name), at=F.col(NUMBER)))
