"""Rows packed for their way to and from the buckets: a few large binary values instead of many rows.

A bucket is one partition of state. The hash of its key sends each row to a bucket, and Spark's exchange by the number
of the bucket leads to its partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lockgate.connectors.rejects import FACTS, WHOLE
from lockgate.operators.page import bucket_numbers
from lockgate.spark.lists import null_columns, with_empty, with_nulls
from lockgate.spark.rejectioncolumns import as_results, with_nothing, with_texts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

ASIDE = -1
"""The side of rows that an operator could not use."""


def pack_rows(frame: DataFrame, partitions: int, *, is_told: bool) -> DataFrame:
    """The rows as one binary value for each bucket and batch."""
    buckets, lists = buckets_of(partitions), null_columns(frame)

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np
        import pyarrow as pa

        def as_batch(numbers: Sequence[int], values: Sequence[Any]) -> pa.RecordBatch:
            columns = [pa.array([buckets[number] for number in numbers], pa.int32()), pa.array(values, pa.binary())]
            return pa.RecordBatch.from_arrays(columns, names=["bucket", "rows"])

        for given in batches:
            if not given.num_rows:
                continue
            batch = with_nulls(given, lists)
            numbers = bucket_numbers(batch.column(0).to_numpy(), partitions)
            order = np.argsort(numbers, kind="stable")
            dealt, ends = batch.take(pa.array(order)), np.searchsorted(numbers[order], np.arange(partitions + 1))
            held = [number for number in range(partitions) if ends[number] < ends[number + 1]]
            parts = [dealt.slice(ends[number], ends[number + 1] - ends[number]) for number in held]
            yield as_batch(held, [part.serialize().to_pybytes() for part in parts])
        if is_told:
            # Every bucket is called, also without rows. It learns the time: otherwise its first row could never be
            # late. And it notes the step that its state belongs to.
            yield as_batch(range(partitions), [None] * partitions)

    return with_empty(frame, lists).mapInArrow(pack, "bucket INT, rows BINARY")


def buckets_of(partitions: int) -> list[int]:
    """A number for every partition of state: Spark's exchange by that number leads to that partition."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < partitions:
        found.setdefault(_spark_hash(number) % partitions, number)
        number += 1
    return [found[partition] for partition in range(partitions)]


def _spark_hash(number: int) -> int:
    """Spark's hash of an INT, which decides in which partition a row is: Murmur3 with 32 bits and seed 42."""
    bits = 0xFFFFFFFF
    mixed = (number * 0xCC9E2D51) & bits
    mixed = ((mixed << 15) | (mixed >> 17)) & bits
    mixed = 42 ^ ((mixed * 0x1B873593) & bits)
    mixed = ((mixed << 13) | (mixed >> 19)) & bits
    mixed = ((mixed * 5 + 0xE6546B64) & bits) ^ 4
    mixed = ((mixed ^ (mixed >> 16)) * 0x85EBCA6B) & bits
    mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) & bits
    mixed ^= mixed >> 16
    return mixed - (1 << 32) if mixed >> 31 else mixed


def unpacker(sides: Mapping[int, Any], whole: Any, *, is_single: bool) -> Any:
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(whole, timezone="UTC")

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for index, value in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
                rows = pa.ipc.read_record_batch(value.as_buffer(), sides[index])
                if is_single:
                    yield rows
                    continue
                columns = [pa.array([index] * rows.num_rows, pa.int32())]
                for place, other in enumerate(sides):
                    kind = schema.field(place + 1).type
                    columns.append(
                        pa.StructArray.from_arrays(rows.columns, fields=list(kind))
                        if other == index
                        else pa.nulls(rows.num_rows, kind)
                    )
                yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return unpack


def with_rejections(unpack: Any, whole: Any) -> Any:
    """The same, for results among which are rows that the operator could not use."""
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(with_texts(whole), timezone="UTC")

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.compute as pc

        texts = pa.schema([schema.field(FACTS), schema.field(WHOLE)])
        for batch in batches:
            is_aside = pc.equal(batch.column(0), ASIDE)
            for made in unpack([batch.filter(pc.invert(is_aside))]):
                yield as_results(made, schema)
            for value in batch.filter(is_aside).column(1):
                yield with_nothing(pa.ipc.read_record_batch(value.as_buffer(), texts), schema)

    return run
