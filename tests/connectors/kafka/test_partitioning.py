"""Rows go to the partitions that Java's own producer chooses."""

import random
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lockgate.connectors.kafka.partitioning import place_hash
from lockgate.connectors.kafka.topics import create_topics

PARTITIONS = 8
RANDOM = random.Random(7)
KEYS = sorted({b"", *(RANDOM.randbytes(length) for length in range(1, 130) for _ in range(4))})


@pytest.mark.spark
@pytest.mark.system
def test_a_key_is_placed_where_javas_producer_places_it(spark: SparkSession, kafka: str) -> None:
    topic = f"placed-{uuid4().hex[:8]}"
    create_topics(kafka, [topic], partitions=PARTITIONS, where="test")
    rows = [(bytearray(key), bytearray(b"%d" % number)) for number, key in enumerate(KEYS)]
    frame = spark.createDataFrame(rows, "key BINARY, value BINARY").coalesce(1)
    frame.write.format("kafka").option("kafka.bootstrap.servers", kafka).option("topic", topic).save()
    read = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka).option("subscribe", topic).load()
    placed = read.select("key", "partition", place_hash(spark, F.col("key"), F.col("value")).alias("hash")).collect()
    assert sorted(bytes(row.key) for row in placed) == KEYS
    assert {bytes(row.key): row.hash % PARTITIONS for row in placed} == {
        bytes(row.key): row.partition for row in placed
    }
    assert {row.partition for row in placed} == set(range(PARTITIONS))
    assert min(row.hash for row in placed) >= 0


@pytest.mark.spark
def test_hashes_are_javas_own_with_the_sign_taken_off(spark: SparkSession) -> None:
    """The table of Kafka's own test of murmur2, whose hashes are of both signs."""
    table = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    frame = spark.createDataFrame([(bytearray(key),) for key in table], "key BINARY").coalesce(1)
    found = frame.select("key", place_hash(spark, F.col("key"), F.col("key")).alias("hash")).collect()
    assert {bytes(row.key): row.hash for row in found} == {key: code & 0x7FFFFFFF for key, code in table.items()}


@pytest.mark.spark
def test_rows_without_a_key_are_spread_by_their_value_and_always_alike(spark: SparkSession) -> None:
    frame = spark.range(400).select(F.lit(None).cast("binary").alias("key"), F.col("id").cast("string").alias("value"))
    by_null = [row[0] for row in frame.select(place_hash(spark, F.col("key"), F.col("value"))).collect()]
    by_none = [row[0] for row in frame.select(place_hash(spark, None, F.col("value"))).collect()]
    assert by_null == by_none
    assert min(by_null) >= 0
    spread = [sum(1 for code in by_null if code % 4 == partition) for partition in range(4)]
    assert min(spread) > 60
