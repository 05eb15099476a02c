"""Every built-in function of the installed Spark is known: does it give the same again when an epoch is repeated?"""

import re

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lockgate.planner.functions import AGGREGATES, CHANGING, STEADY, WINDOWING
from lockgate.planner.sql import find_bare


def test_no_function_is_in_both_lists() -> None:
    assert CHANGING.keys() & STEADY == set()


def built_in(spark: SparkSession) -> set[str]:
    """The names of functions; operators such as + are no calls."""
    return {name for (name,) in spark.sql("SHOW SYSTEM FUNCTIONS").collect() if re.fullmatch(r"\w+", name)}


@pytest.mark.spark
def test_every_function_of_spark_is_in_one_of_the_lists(spark: SparkSession) -> None:
    assert built_in(spark) - CHANGING.keys() - STEADY == set(), "not known yet: does it give the same again?"
    assert (CHANGING.keys() | STEADY) - built_in(spark) == set(), "no function of this Spark"


@pytest.mark.spark
def test_every_function_of_spark_that_looks_at_several_rows_is_known(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    infos = jvm.org.apache.spark.sql.api.python.PythonSQLUtils.listBuiltinFunctionInfos()
    groups = {str(one.getName()): str(one.getGroup()) for one in infos}
    assert {name for name, group in groups.items() if group == "agg_funcs"} == AGGREGATES
    assert {name for name, group in groups.items() if group == "window_funcs"} == WINDOWING


@pytest.mark.spark
def test_every_function_that_needs_no_brackets_is_known(spark: SparkSession) -> None:
    """Where no column has its name; those that are steady may be overlooked."""
    rows = spark.range(1)
    found: set[str] = set()
    for name in sorted(CHANGING):
        try:
            rows.selectExpr(name)
        except PySparkException:
            continue
        found.add(name)
    assert found == {name for name in CHANGING if find_bare(name)}
    assert "current_time" in found


@pytest.mark.slow
@pytest.mark.spark
def test_what_spark_calls_not_deterministic_is_not_steady(spark: SparkSession) -> None:
    """Asked of Spark by the examples in its own descriptions."""
    looked_at = 0
    wrong: set[str] = set()
    for name in sorted(STEADY):
        for (text,) in spark.sql(f"DESCRIBE FUNCTION EXTENDED `{name}`").collect():
            for example in re.findall(r"> (SELECT .*?);", text, re.DOTALL)[:2]:
                try:
                    plan = spark.sql(example)._jdf.queryExecution().analyzed()
                except (PySparkException, Py4JJavaError):
                    continue  # it needs a table, or is meant to fail
                looked_at += 1
                wrong |= set() if plan.deterministic() else {name}
    assert looked_at > 400
    assert wrong == set()
