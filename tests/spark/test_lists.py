"""Null lists and maps travel as empty ones, and nobody behind notices."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lockgate.spark.lists import null_columns, with_empty, with_nulls

pytestmark = pytest.mark.spark

DDL = "__nulls0 INT, words ARRAY<STRING>, counts MAP<STRING, INT>, `odd name` ARRAY<STRUCT<key: STRING, value: BINARY>>"


def test_what_was_null_is_null_again_and_what_was_empty_is_empty(spark: SparkSession) -> None:
    given: list[tuple[Any, ...]] = [
        (1, None, {"a": 1}, None),
        (2, [], {}, [(None, b"x")]),
        (3, ["a", None], None, []),
        (4, None, None, None),
    ]
    frame = spark.createDataFrame(given, DDL)
    names = null_columns(frame)
    assert names == ("words", "counts", "odd name")
    nulls_on_the_way: list[str] = []
    sent = with_empty(frame, names)
    for row in sent.collect():
        nulls_on_the_way += [name for name in names if row[name] is None]
    assert nulls_on_the_way == []

    def restore(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield with_nulls(batch, names)

    back = sent.mapInArrow(restore, frame.schema)
    assert sorted(back.collect()) == sorted(frame.collect())


def test_a_frame_without_lists_is_left_alone(spark: SparkSession) -> None:
    frame = spark.range(1)
    assert null_columns(frame) == ()
    assert with_empty(frame, ()) is frame
