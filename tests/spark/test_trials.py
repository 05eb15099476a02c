"""SQL that is tried on every row: who fails is told apart from who is null, and all others are as without a trial."""

from typing import Any

import pytest
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from lockgate.connectors.rejects import Rejects
from lockgate.spark.trials import can_fail, select_tried, where_tried

pytestmark = pytest.mark.spark


class Told(Rejects):
    """Takes what is put aside in a batch, where nobody asks a query for it."""

    def __init__(self, spark: SparkSession) -> None:
        super().__init__(spark)
        self.observations: list[Observation] = []

    def watch(self, frame: DataFrame, reason: Any, *, step: Any, shown: Any) -> DataFrame:
        observation = Observation(f"told_{len(self.observations)}")
        self.observations.append(observation)
        told = F.collect_list(F.when(F.col("__why").isNotNull(), F.concat_ws("|", "__why", shown)))
        watched = frame.withColumn("__why", reason).observe(observation, told.alias("told"))
        return watched.where("__why IS NULL").drop("__why")

    @property
    def texts(self) -> list[str]:
        return sorted(text for one in self.observations for text in one.get["told"])


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    made = [(0, "0", "x"), (1, "1", None), (2, "two", "y"), (None, None, "z")]
    return spark.createDataFrame(made, "v INT, text STRING, k STRING").coalesce(1)


def selected(rows: DataFrame, told: Told, **expressions: str) -> DataFrame:
    return select_tried(rows, ["k"], expressions, step="select", kept=[], rejects=told)


@pytest.mark.parametrize("whole_stage", ["true", "false"])
@pytest.mark.parametrize("factory", ["CODEGEN_ONLY", "NO_CODEGEN"])
def test_expressions_that_share_what_fails(
    spark: SparkSession, rows: DataFrame, whole_stage: str, factory: str
) -> None:
    settings = {"spark.sql.codegen.wholeStage": whole_stage, "spark.sql.codegen.factoryMode": factory}
    before = {name: spark.conf.get(name, None) for name in settings}
    told = Told(spark)
    try:
        for name, setting in settings.items():
            spark.conf.set(name, setting)
        made = selected(rows, told, a="10 / v", b="10 / v + 1", c="10 / v * 2", number="cast(text AS INT)")
        assert [tuple(row) for row in made.where("a > 0 OR a IS NULL").collect()] == [
            (None, 10.0, 11.0, 20.0, 1),
            ("z", None, None, None, None),
        ]
    finally:
        for name, setting in before.items():
            spark.conf.unset(name) if setting is None else spark.conf.set(name, setting)
    assert told.texts == [
        'SQL fails: a = 10 / v|{"v":0,"text":"0","k":"x"}',
        'SQL fails: number = cast(text AS INT)|{"v":2,"text":"two","k":"y"}',
    ]


def test_the_types_are_those_of_the_sql(spark: SparkSession, rows: DataFrame) -> None:
    sql = {"n": "length(coalesce(k, '')) + 1", "list": "array(v)", "v": "v + 1", "whole": "struct(v, 10 / v AS t)"}
    plain = rows.select("k", *(F.expr(text).alias(name) for name, text in sql.items()))
    assert selected(rows, Told(spark), **sql).dtypes == plain.dtypes


def test_an_expression_that_uses_another_one(spark: SparkSession, rows: DataFrame) -> None:
    told = Told(spark)
    # `v` is that of the row, as it is without a trial; `a` is the one before.
    made = selected(rows, told, v="v + 10", a="10 / v", b="a + v", c="b + 1")
    assert [tuple(row) for row in made.collect()] == [
        (None, 11, 10.0, 11.0, 12.0),
        ("y", 12, 5.0, 7.0, 8.0),
        ("z", None, None, None, None),
    ]


def test_what_always_fails_fails_on_every_row_and_not_before(spark: SparkSession, rows: DataFrame) -> None:
    told = Told(spark)
    assert where_tried(rows, "1 / 0 > 1", step="where", rejects=told).collect() == []
    assert len(told.texts) == 4
    assert told.texts[0] == 'SQL fails: 1 / 0 > 1|{"k":"z"}'


def test_a_condition_that_is_null_does_not_hold(spark: SparkSession, rows: DataFrame) -> None:
    told = Told(spark)
    kept = where_tried(rows, "cast(text AS INT) < 1", step="where", rejects=told)
    assert [row.v for row in kept.collect()] == [0]
    assert kept.columns == rows.columns
    assert [text.split("|")[0] for text in told.texts] == ["SQL fails: cast(text AS INT) < 1"]


@pytest.mark.parametrize(
    ("sql", "can"),
    [
        ("v > 1 AND k IS NOT NULL", False),
        ("v > 2.5 OR k IN ('a', 'b')", False),
        ("if(v = 1, upper(k), coalesce(text, ''))", False),
        ("explode(array(1, 2))", False),
        ("v", False),
        ("v + 1", True),
        ("10 / v", True),
        ("text > 5", True),
        ("cast(v AS TINYINT)", True),
        ("array(1, 2)[v]", True),
        ("element_at(map('a', 1), k)", True),
        ("to_timestamp(text)", True),
    ],
)
def test_what_can_fail(rows: DataFrame, sql: str, can: bool) -> None:
    assert can_fail(rows, sql) is can
