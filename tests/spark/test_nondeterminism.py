"""Steps that are not deterministic are computed once in an epoch, and a transform that is one says so."""

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lockgate import Guarantee, Job, KafkaSink, MemorySink, MemorySource, SqliteSink, Stream, stream, write_stream
from lockgate.errors import BadJob
from lockgate.spark.nondeterminism import find_repeated_nondeterminism, find_stored_above_state
from support.runs import run_to_the_end

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

COUNT = 400


def numbers() -> Stream:
    return stream("numbers", MemorySource([(number,) for number in range(COUNT)], value="id BIGINT", per_epoch=150))


def run_into_memory(place: Path, *rows: Stream, dead_letters: MemorySink | None = None) -> list[list[Any]]:
    sinks = [MemorySink() for _ in rows]
    outputs = [one.to(f"out-{n}", sink) for n, (one, sink) in enumerate(zip(rows, sinks, strict=True))]
    run_to_the_end(Job("chance", *outputs, guarantee=Guarantee.AT_LEAST_ONCE, dead_letters=dead_letters), place)
    return [sink.rows for sink in sinks]


@pytest.mark.parametrize("has_letters", [False, True], ids=["", "with dead letters"])
def test_an_event_is_in_one_of_two_branches_that_exclude_each_other(has_letters: bool, tmp_path: Path) -> None:
    lots = numbers().select("id", r="rand()")
    branches = (lots.where("r < 0.5"), lots.where("r >= 0.5").select("id", twice="r * 2"))
    low, high = run_into_memory(tmp_path, *branches, dead_letters=MemorySink() if has_letters else None)
    assert Counter(row.id for row in [*low, *high]) == Counter(range(COUNT))
    assert all(row.r < 0.5 for row in low)
    assert all(row.twice >= 1 for row in high)
    assert min(len(low), len(high)) > COUNT // 4, "that is no chance"


def test_two_outputs_have_the_same_values_of_a_function(tmp_path: Path) -> None:
    named = numbers().map(lambda row: (row.id, str(uuid4())), "id BIGINT, name STRING", deterministic=False)
    one, two = run_into_memory(tmp_path, named, named)
    assert len({row.name for row in one}) == COUNT
    assert Counter(map(tuple, one)) == Counter(map(tuple, two))


def test_outputs_of_one_step_that_are_written_one_after_the_other_agree(tmp_path: Path) -> None:
    """Each is an action of its own for Spark, and rows that are computed again would be others."""
    lots = numbers().select("id", r="rand()")
    memory, table = MemorySink(), SqliteSink(table="lots", path=str(tmp_path / "lots.db"))
    outputs = [lots.to("memory", memory, guarantee=Guarantee.AT_LEAST_ONCE), lots.to("table", table)]
    run_to_the_end(Job("chance", *outputs, guarantee=Guarantee.END_TO_END_EXACTLY_ONCE), tmp_path)
    with closing(sqlite3.connect(tmp_path / "lots.db")) as connection:
        assert sorted(connection.execute("SELECT id, r FROM lots")) == sorted((row.id, row.r) for row in memory.rows)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda frame: frame.withColumn("r", F.rand()), "rand("),
        (lambda frame: frame.withColumn("name", F.expr("uuid()")), "uuid()"),
        (lambda frame: frame.withColumn("at", F.expr("now()")), "now()"),
        (lambda frame: frame.where("rand() < 0.5"), "rand("),
        (lambda frame: frame.withColumn("who", F.expr("current_user")), "current_user()"),
    ],
)
def test_a_transform_that_is_not_deterministic_has_to_be_declared_so(change: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(BadJob) as refused:
        run_into_memory(tmp_path, numbers().transform(change))
    assert "transform 'transform' is not deterministic, by " in refused.value.what
    assert told in refused.value.what
    assert "test_nondeterminism.py:" in refused.value.where
    assert "deterministic=False" in refused.value.fix


@pytest.mark.parametrize(
    ("select", "told"),
    [
        ({"id": "id", "t": "current_time"}, "current_time("),
        ({"id": "id", "who": "user"}, "current_user()"),
        ({"id": "id", "is_now": "at = 'now'"}, "CAST('now' AS TIMESTAMP)"),
        ({"id": "id", "one": "1", "is_now": "coalesce(one = 1, at = 'today')"}, "'today'"),
    ],
)
def test_what_only_spark_can_see_in_sql_stops_the_job_at_its_start(
    select: dict[str, str], told: str, tmp_path: Path
) -> None:
    rows = numbers().transform(lambda frame: frame.withColumn("at", F.timestamp_seconds("id"))).select(**select)
    with pytest.raises(BadJob) as refused:
        run_into_memory(tmp_path, rows)
    assert refused.value.what.startswith("select 'select' is not deterministic, by ")
    assert told in refused.value.what
    assert "test_nondeterminism.py:" in refused.value.where


def test_an_expression_that_spark_has_for_tables_only_is_named_with_a_fix(tmp_path: Path) -> None:
    with pytest.raises(BadJob, match="Spark refuses the query of job") as refused:
        run_into_memory(tmp_path, numbers().select("id", number="monotonically_increasing_id()"))
    assert refused.value.fix.startswith("remove monotonically_increasing_id() from the steps")


def test_a_text_that_sounds_like_a_moment_is_taken_as_a_text(tmp_path: Path) -> None:
    rows = numbers().select("id", name="CAST(id AS STRING)", user="id").select("id", "user", is_now="name = 'now'")
    (found,) = run_into_memory(tmp_path, rows)
    assert Counter((row.is_now, row.user - row.id) for row in found) == {(False, 0): COUNT}


def test_a_transform_that_uses_rows_of_chance_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    lots = numbers().select("id", r="rand()")
    both = lots.transform(lambda rows: rows.where("r < 0.5").union(rows.where("r >= 0.5")))
    with pytest.raises(BadJob, match=r"transform 'transform' uses the rows of select 'select' 2 times") as refused:
        run_into_memory(tmp_path, both)
    assert "test_nondeterminism.py:" in refused.value.where


def test_a_transform_may_keep_rows_by_their_order_only_if_nothing_remembers_them(tmp_path: Path) -> None:
    def first_of_lot(rows: DataFrame) -> DataFrame:
        return rows.dropDuplicates(["lot"])

    firsts = numbers().select("id", lot="id % 7").transform(first_of_lot)
    with pytest.raises(BadJob, match="transform 'transform' is not deterministic, by Deduplicate"):
        run_into_memory(tmp_path / "remembered", firsts.key_by("lot").rolling(total="sum(id)"))
    (found,) = run_into_memory(tmp_path / "written", firsts)
    assert sorted(row.lot for row in found) == [*range(7)]


def test_a_transform_may_keep_rows_by_their_order_only_for_one_branch(tmp_path: Path) -> None:
    """Each branch would keep other rows: a lot could be in none of them, or in both."""
    firsts = numbers().select("id", lot="id % 7").transform(lambda rows: rows.dropDuplicates(["lot"]))
    with pytest.raises(BadJob, match="transform 'transform' is not deterministic, by Deduplicate") as refused:
        run_into_memory(tmp_path / "branches", firsts.where("id < 200"), firsts.where("id >= 200"))
    assert "test_nondeterminism.py:" in refused.value.where
    assert "in a job of its own" in refused.value.fix
    parts = numbers().select("id", lot="id % 7").transform(lambda rows: rows.dropDuplicates(["lot"]))
    split = parts.split(low="id < 200", high="id >= 200")
    low, high = run_into_memory(tmp_path / "split", split["low"], split["high"])
    assert sorted(row.lot for row in [*low, *high]) == [*range(7)]


@pytest.mark.parametrize("is_query", [False, True], ids=["a join", "a query in SQL"])
def test_a_transform_that_reads_files_has_to_be_declared_so(is_query: bool, tmp_path: Path) -> None:
    (tmp_path / "lots.json").write_text('{"lot": 3}')

    def with_lots(rows: DataFrame) -> DataFrame:
        if is_query:
            return rows.where(f"lot in (select lot from json.`{tmp_path}/lots.json`)")
        return rows.join(rows.sparkSession.read.json(f"{tmp_path}/lots.json"), "lot")

    lots = numbers().select("id", lot="id % 7")
    with pytest.raises(BadJob, match="transform 'transform' reads files or a table") as refused:
        run_into_memory(tmp_path / "hidden", lots.transform(with_lots))
    assert "test_nondeterminism.py:" in refused.value.where
    assert "table(" in refused.value.fix
    (found,) = run_into_memory(tmp_path / "declared", lots.transform(with_lots, deterministic=False))
    assert sorted(row.id for row in found) == [*range(3, COUNT, 7)]


def test_a_transform_may_join_rows_that_it_makes_itself_and_its_own(tmp_path: Path) -> None:
    def with_names(rows: DataFrame) -> DataFrame:
        names = rows.sparkSession.range(3, 4).select(F.col("id").alias("lot"))
        return rows.unionByName(rows).join(names, "lot")

    (found,) = run_into_memory(tmp_path, numbers().select("id", lot="id % 7").transform(with_names))
    assert Counter(row.id for row in found) == Counter([*range(3, COUNT, 7)] * 2)


def test_a_transform_that_reads_another_stream_is_refused(tmp_path: Path) -> None:
    def with_ticks(rows: DataFrame) -> DataFrame:
        ticks = rows.sparkSession.readStream.schema("id BIGINT").json(str(tmp_path))
        return rows.unionByName(ticks, allowMissingColumns=True)

    for is_declared in (True, False):
        with pytest.raises(
            BadJob, match="transform 'transform' reads a stream that is no source of the job"
        ) as refused:
            run_into_memory(tmp_path, numbers().transform(with_ticks, deterministic=is_declared))
        assert "test_nondeterminism.py:" in refused.value.where
        assert "stream(" in refused.value.fix


def test_a_transform_that_gives_the_same_each_time_is_taken_as_it_is(tmp_path: Path) -> None:
    def change(frame: DataFrame) -> DataFrame:
        twice = F.udf(lambda number: number * 2, "BIGINT")
        return frame.withColumn("twice", twice("id")).withColumn("at", F.current_timestamp()).where("id >= 10")

    (rows,) = run_into_memory(tmp_path, numbers().select("id", lot="hash(id)").transform(change))
    assert sorted(row.twice for row in rows) == [2 * number for number in range(10, COUNT)]


# Frames of plain programs: Spark's plan is all that is known of them


def ticks(spark: SparkSession, per_second: int = 5) -> DataFrame:
    return spark.readStream.format("rate").option("rowsPerSecond", per_second).load()


def low_and_high(rows: DataFrame, column: str) -> DataFrame:
    return rows.where(f"{column} < 1").union(rows.where(f"{column} >= 1"))


def sums(rows: DataFrame, sql: str) -> DataFrame:
    minutes = rows.withWatermark("timestamp", "1 second").groupBy(F.window("timestamp", "1 minute"))
    return minutes.agg(F.expr(sql).alias("total"))


def write(frame: DataFrame, place: Path) -> None:
    """Everything that happens before the query starts; no broker is asked."""
    sink = KafkaSink(topic="out", servers="localhost:1")
    write_stream(frame, to=sink, name="program", checkpoint=str(place))


BRANCHES: dict[str, tuple[Any, str]] = {
    "random values": (lambda rows: low_and_high(rows.withColumn("r", F.rand()), "r"), "rand("),
    "ids": (lambda rows: low_and_high(rows.withColumn("r", F.expr("uuid()")), "value"), "uuid()"),
    "a function": (
        lambda rows: low_and_high(rows.select(F.udf(abs, "BIGINT").asNondeterministic()("value").alias("r")), "r"),
        "abs(value)",
    ),
    "a condition": (lambda rows: low_and_high(rows.where("rand() < 0.5"), "value"), "rand("),
    "dropDuplicates": (lambda rows: low_and_high(rows.dropDuplicates(["value"]), "value"), "Deduplicate"),
    "dropDuplicates twice": (
        lambda rows: rows.dropDuplicates(["value"]).union(rows.dropDuplicates(["value"])),
        "Deduplicate",
    ),
    "limit": (lambda rows: low_and_high(rows.limit(3), "value"), "Limit"),
    "by name": (
        lambda rows: rows.withColumn("r", F.rand()).transform(lambda made: made.unionByName(made.where("r < 1"))),
        "rand(",
    ),
    "a join with itself": (
        lambda rows: rows.withColumn("r", F.rand()).transform(
            lambda made: made.alias("one").join(made.alias("two"), "value").select("value", "one.r")
        ),
        "rand(",
    ),
    "sums of fractions": (lambda rows: low_and_high(sums(rows, "sum(value / 3)"), "total"), "sum("),
    "averages of fractions": (lambda rows: low_and_high(sums(rows, "avg(value / 3)"), "total"), "avg("),
    "deviations": (lambda rows: low_and_high(sums(rows, "stddev(value)"), "total"), "stddev("),
}


@pytest.mark.parametrize("branches", BRANCHES)
def test_a_frame_that_computes_chance_for_several_branches_is_refused(
    branches: str, spark: SparkSession, tmp_path: Path
) -> None:
    change, told = BRANCHES[branches]
    with pytest.raises(BadJob) as refused:
        write(change(ticks(spark)), tmp_path)
    assert told in refused.value.what
    assert "test_nondeterminism.py:" in refused.value.where
    assert "topic" in refused.value.fix


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: low_and_high(rows, "value"),
        lambda rows: rows.withColumn("r", F.rand()).where("r < 0.5"),
        lambda rows: rows.where("value < 1").union(rows.where("value >= 1")).withColumn("r", F.rand()),
        lambda rows: rows.withColumn("r", F.rand()).union(rows.withColumn("r", F.rand())),
        lambda rows: low_and_high(sums(rows, "sum(value)"), "total"),
        lambda rows: low_and_high(sums(rows, "avg(value)"), "total"),
        lambda rows: low_and_high(sums(rows, "sum(CAST(value AS DECIMAL(9, 2)))"), "total"),
        lambda rows: low_and_high(sums(rows, "max(value / 3)"), "total"),
        lambda rows: sums(rows, "sum(value / 3)").where("total < 1"),
        lambda rows: rows.dropDuplicates(["value"]).union(
            ticks(rows.sparkSession, per_second=6).dropDuplicates(["value"])
        ),
    ],
    ids=[
        "nothing random", "one branch", "after the union", "drawn twice", "whole sums", "whole averages", "decimals",
        "no sum", "one branch of sums", "two sources",
    ],
)  # fmt: skip
def test_a_frame_whose_branches_agree_is_taken(change: Any, spark: SparkSession, tmp_path: Path) -> None:
    frame = change(ticks(spark))
    assert find_repeated_nondeterminism(frame) is None
    assert find_stored_above_state(frame) is None


@pytest.fixture
def lots(spark: SparkSession, tmp_path: Path) -> DataFrame:
    spark.range(3).withColumnRenamed("id", "lot").write.parquet(str(tmp_path / "lots"))
    return spark.read.parquet(str(tmp_path / "lots"))


STORED: dict[str, Any] = {
    "a join above a sum": lambda rows, lots: rows.join(lots, rows.value == lots.lot).groupBy("lot").count(),
    "a query above a sum": lambda rows, lots: (
        rows.where(F.expr("value IN (SELECT lot FROM lots)")).groupBy("value").count()
    ),
    "a join above a join of streams": lambda rows, lots: rows.join(lots, rows.value == lots.lot).join(
        ticks(rows.sparkSession).select(F.col("value").alias("lot")), "lot"
    ),
}


@pytest.mark.parametrize("stored", STORED)
def test_a_frame_whose_state_depends_on_files_is_refused(
    stored: str, spark: SparkSession, lots: DataFrame, tmp_path: Path
) -> None:
    lots.createOrReplaceTempView("lots")
    with pytest.raises(BadJob, match="rows of a file or a table feed state") as refused:
        write(STORED[stored](ticks(spark), lots), tmp_path / "checkpoint")
    assert "test_nondeterminism.py:" in refused.value.where
    assert "join it after the step with state" in refused.value.fix


def test_a_frame_may_read_files_below_its_state_and_rows_that_the_program_makes(
    spark: SparkSession, lots: DataFrame
) -> None:
    rows = ticks(spark)
    assert find_stored_above_state(rows.join(lots, rows.value == lots.lot)) is None
    counts = rows.groupBy("value").count()
    assert find_stored_above_state(counts.join(lots.groupBy("lot").count(), counts.value == lots.lot)) is None
    made = spark.createDataFrame([(1,)], "lot BIGINT")
    assert find_stored_above_state(rows.join(made, rows.value == made.lot).groupBy("lot").count()) is None
