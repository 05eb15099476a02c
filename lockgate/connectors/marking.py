"""A signed mark from the JVM, for rows that stop the job inside of a SQL expression (see lockgate/signing.py).

Spark shows literals in plans, in its user interface and in its event log. So the key is not a literal. It is the answer
of a Scala function: a map without entries and with a default value. Spark shows only the name of the function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from lockgate.signing import INNER, OUTER, driver_signer

if TYPE_CHECKING:
    from pyspark.sql import Column


def signed_mark(kind: str, facts: Column) -> Column:
    """A text as a mark of this driver."""
    from pyspark.sql import functions as F

    payload = F.concat(F.lit(kind), F.regexp_replace(F.base64(facts.cast("binary")), "[\r\n]", ""))
    signer = driver_signer()
    # Functions with different names: Spark would take two maps without entries for the same one.
    inner, outer = (
        F.unhex(_answer(signer.padded(pad).hex(), f"lockgate_key_{pad:x}", payload)) for pad in (INNER, OUTER)
    )
    first = F.sha2(F.concat(inner, payload.cast("binary")), 256)
    return F.concat(payload, F.lit("."), F.sha2(F.concat(outer, F.unhex(first)), 256))


def _answer(text: str, name: str, beside: Column) -> Column:
    """A text that no plan shows. The function takes a column; otherwise Spark would compute it beforehand."""
    from pyspark import SparkContext
    from pyspark.sql.classic.column import Column as ClassicColumn

    context = SparkContext._active_spark_context
    assert context is not None
    assert context._gateway is not None
    jvm = cast(Any, context._jvm)
    types = jvm.org.apache.spark.sql.types.DataType
    function = jvm.org.apache.spark.sql.expressions.SparkUserDefinedFunction(
        jvm.scala.collection.immutable.HashMap().withDefaultValue(text),
        types.fromDDL("STRING"),
        jvm.scala.jdk.javaapi.CollectionConverters.asScala(jvm.java.util.ArrayList()).toList(),
        jvm.scala.Option.empty(),
        jvm.scala.Option.apply(name),
        False,  # never null
        True,  # deterministic
    )
    arguments = context._gateway.new_array(jvm.org.apache.spark.sql.Column, 1)
    arguments[0] = cast(Any, beside)._jc
    return cast("Column", ClassicColumn(function.apply(arguments)))
