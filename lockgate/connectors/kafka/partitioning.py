"""Which partition a record goes to: the one that Java's default partitioner would choose.

Consumers in other languages and Kafka Streams co-partition by it. So Spark natively calls Java's own function here
(murmur2 of the key's bytes) for every row. A hash of the value spreads rows without a key: it is not random, because a
stage that Spark repeats must send each row to the same writer again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockgate.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

_JAVA_CLASS = "org.apache.kafka.common.utils.Utils"


def place_hash(spark: SparkSession, key: Column | None, value: Column) -> Column:
    """A number >= 0 for every row; its remainder by the number of partitions is the row's partition."""
    from pyspark.sql import functions as F

    spread = F.xxhash64(value)
    hashed = spread if key is None else F.coalesce(_murmur2(spark, key.cast("binary")).cast("bigint"), spread)
    return hashed.bitwiseAND(F.lit(0x7FFFFFFF)).cast("int")


def _murmur2(spark: SparkSession, key: Column) -> Column:
    """Java's hash of a key's bytes, null if the key is null; Spark's generated code calls it."""
    from py4j.protocol import Py4JJavaError
    from pyspark.sql import Column

    jvm = spark.sparkContext._jvm
    assert jvm is not None
    try:
        utils = jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(_JAVA_CLASS)
    except Py4JJavaError:
        raise Refused(
            "Spark was started without Kafka's jars, so it cannot choose partitions as Java's clients do",
            where="the Spark session of this process",
            fix="start it with the Kafka connector: spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:...",
        ) from None
    bridge = jvm.org.apache.spark.sql.classic.ExpressionUtils
    integer = getattr(getattr(jvm.org.apache.spark.sql.types, "IntegerType$"), "MODULE$")
    nothing = getattr(getattr(jvm.scala.collection.immutable, "Nil$"), "MODULE$")
    none = getattr(getattr(jvm.scala, "None$"), "MODULE$")
    arguments = jvm.org.apache.spark.api.python.PythonUtils.toSeq([bridge.expression(key._jc)])
    call = jvm.org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke(
        utils, integer, "murmur2", arguments, nothing, True, True, True, none
    )
    return Column(bridge.column(call))
