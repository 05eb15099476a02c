"""Rows that tasks put aside: each is there once, whatever becomes of the tasks, and gone when it is forgotten."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lockgate.connectors.aside import Aside
from lockgate.connectors.rejects import Rejects
from lockgate.spark.trials import select_tried, where_tried

pytestmark = pytest.mark.spark


def rows_without_odd_ones(spark: SparkSession, aside: Aside, count: int, tasks: int = 2, size: int = 1) -> DataFrame:
    """Numbers, of which the odd ones are put aside with texts of a size."""
    whole = F.when(F.col("id") % 3 > 0, F.repeat(F.lit("x"), size))
    stays = F.when(F.col("id") % 2 == 1, aside.put(F.col("id").cast("string"), whole)).otherwise(F.lit(True))
    return spark.range(0, count, 1, tasks).withColumn("stays", stays).where("stays").drop("stays")


def read(aside: Aside) -> list[tuple[int, int | None]]:
    """The number and the size of each row that is there."""
    found = aside.read(aside.blocks()).selectExpr("CAST(facts AS INT)", "length(whole)").collect()
    return sorted(map(tuple, found))


def test_rows_are_there_once_with_what_was_given(spark: SparkSession) -> None:
    aside = Aside(spark)
    assert aside.blocks() == []
    kept = rows_without_odd_ones(spark, aside, 10).collect()
    assert sorted(row.id for row in kept) == [0, 2, 4, 6, 8]
    assert read(aside) == [(1, 1), (3, None), (5, 1), (7, 1), (9, None)]
    assert sum(block.rows for block in aside.blocks()) == 5
    aside.forget()
    assert aside.blocks() == []


def test_a_task_holds_a_few_megabytes_and_writes_block_after_block(spark: SparkSession) -> None:
    aside = Aside(spark)
    rows_without_odd_ones(spark, aside, 60, tasks=1, size=1_000_000).count()
    blocks = aside.blocks()
    assert len(blocks) > 3
    assert all(block.bytes < 6_000_000 for block in blocks)
    assert [number for number, _ in read(aside)] == [*range(1, 60, 2)]
    aside.forget()


def test_blocks_that_are_forgotten_are_removed(spark: SparkSession) -> None:
    aside = Aside(spark)
    rows_without_odd_ones(spark, aside, 4).collect()
    frame = aside.read(aside.blocks())
    assert frame.count() == 2
    aside.forget()
    with pytest.raises(Exception, match="Could not compute split, block input-"):
        frame.collect()


def failing_once(batches: Iterator[Any]) -> Iterator[Any]:
    from pyspark import TaskContext

    yield from batches
    task = TaskContext.get()
    assert task is not None
    if task.attemptNumber() == 0:
        raise ValueError("the first attempt fails when it has seen all")


@pytest.mark.parametrize("size", [1, 3_000_000])
def test_what_a_failed_attempt_has_put_aside_belongs_to_no_epoch(spark: SparkSession, size: int) -> None:
    aside = Aside(spark)
    kept = rows_without_odd_ones(spark, aside, 12, size=size).mapInArrow(failing_once, "id BIGINT").collect()
    assert sorted(row.id for row in kept) == [0, 2, 4, 6, 8, 10]
    assert [number for number, _ in read(aside)] == [1, 3, 5, 7, 9, 11]
    aside.forget()


def test_of_two_tries_of_a_partition_the_later_one_counts(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    aside = Aside(spark)

    class Told:
        """What tasks say when a stage is tried again: stage, partition, try, attempt, block, rows, characters."""

        def told(self) -> str:
            return (
                "7 0 0 41 input-0-41 2 20\n7 0 0 41 input-1-41 1 9\n7 1 0 42 input-0-42 1 9\n7 0 1 43 input-0-43 3 29\n"
            )

    monkeypatch.setattr(aside, "_java", Told())
    assert [block.name for block in aside.blocks()] == ["input-0-42", "input-0-43"]


@pytest.mark.parametrize("whole_stage", ["true", "false"])
@pytest.mark.parametrize("factory", ["CODEGEN_ONLY", "NO_CODEGEN"])
def test_sql_is_tried_once_for_each_row_however_spark_evaluates_it(
    spark: SparkSession, whole_stage: str, factory: str
) -> None:
    settings = {"spark.sql.codegen.wholeStage": whole_stage, "spark.sql.codegen.factoryMode": factory}
    before = {name: spark.conf.get(name, None) for name in settings}
    rejects = Rejects(spark)
    try:
        for name, setting in settings.items():
            spark.conf.set(name, setting)
        rows = spark.range(0, 100, 1, 2).selectExpr("id", "CAST(id % 10 AS STRING) AS k", "CAST(id % 4 AS INT) AS v")
        made = select_tried(rows, ["id"], {"a": "8 / v", "b": "8 / v + 1"}, step="select", kept=["k"], rejects=rejects)
        kept = where_tried(made, "array(1, 2, 3)[CAST(k AS INT) % 5] > 0", step="where", rejects=rejects)
        # Nobody needs `a`, and a filter of others stands behind: neither changes what is put aside.
        found = kept.where("b > 3 AND k <> '0'").select("id").collect()
        assert sorted(row.id for row in found) == [one for one in range(100) if one % 4 and one % 5 < 3 and one % 10]
        told = rejects.read(rejects.blocks()).selectExpr("get_json_object(facts, '$.step') AS step").collect()
        assert Counter(row.step for row in told) == {"select": 25, "where": 30}
    finally:
        rejects.forget()
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)
