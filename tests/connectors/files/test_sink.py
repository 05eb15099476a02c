"""FileSink: what it is told, what it refuses, and how it is opened for exactly-once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from lockgate.commit.ledger import Entry
from lockgate.commit.resource import Opening
from lockgate.connectors.files.reading import read_files
from lockgate.connectors.files.sink import FileSink
from lockgate.errors import BadJob, Refused
from lockgate.guarantees import Delivery


def opening(*sinks: FileSink, spark: Any = None) -> Opening:
    named = {f"out-{number}": sink for number, sink in enumerate(sinks)}
    return Opening(job="job", sinks=named, spark=spark, where="output 'out-0'", is_deciding=True)


def test_an_epoch_is_there_whole_or_not_at_all_and_says_so() -> None:
    ability = FileSink("out").ability
    assert ability.delivery is Delivery.TRANSACTIONAL
    assert "manifests" in ability.reason
    assert ability.cure == "declare Guarantee.END_TO_END_EXACTLY_ONCE"


def test_partition_columns_are_needed_and_may_be_named_as_one_text() -> None:
    assert FileSink("out").columns_needed() == ()
    assert FileSink("out", "json", partition_by="day").columns_needed() == ("day",)
    assert FileSink("out", partition_by=["day", "city"]).columns_needed() == ("day", "city")
    hash(FileSink("out", partition_by=["day"]))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: FileSink("out", "avro"), "format='avro' is not known"),
        (lambda: FileSink("out", roll="much"), "roll is not a size: 'much'"),
        (lambda: FileSink("out", roll=0), "roll is not a size: 0"),
        (lambda: FileSink("out", partition_by=("day", "Day")), "names a column twice"),
        (lambda: FileSink("out", partition_by=("",)), "does not name columns"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_users_line(make: Callable[[], FileSink], told: str) -> None:
    with pytest.raises(BadJob) as caught:
        make()
    assert told in caught.value.what
    assert "test_sink.py" in caught.value.where


def test_a_path_is_one_resource_however_it_is_spelt(tmp_path: Path) -> None:
    assert FileSink(f"{tmp_path}/out/").resource == FileSink(f"file://{tmp_path}/./out").resource
    assert FileSink(f"{tmp_path}/out").resource != FileSink(f"{tmp_path}/other").resource


def test_two_outputs_of_a_job_in_one_directory_are_refused(tmp_path: Path) -> None:
    sink = FileSink(str(tmp_path))
    with pytest.raises(BadJob, match="out-0, out-1 of job 'job' write to the same directory"):
        sink.open(opening(sink, sink))


def test_an_object_store_is_refused() -> None:
    sink = FileSink("s3a://bucket/out")
    with pytest.raises(Refused, match="two drivers could both commit"):
        sink.open(opening(sink))


def test_a_directory_that_was_filled_at_least_once_is_refused(tmp_path: Path) -> None:
    (tmp_path / "part-0.parquet").write_text("x")
    sink = FileSink(str(tmp_path))
    with pytest.raises(Refused, match=r"such as 'part-0.parquet'"):
        sink.open(opening(sink))


def test_an_empty_directory_is_opened(tmp_path: Path) -> None:
    sink = FileSink(str(tmp_path / "out"))
    assert sink.open(opening(sink)).read() is None


@pytest.mark.spark
def test_rows_go_through_the_opened_sink_and_come_back(spark: SparkSession, tmp_path: Path) -> None:
    sink = FileSink(str(tmp_path / "out"), partition_by="k")
    store = sink.open(opening(sink, spark=spark))
    staged = store.stage({"out-0": spark.createDataFrame([(1, "a"), (2, "b")], "n INT, k STRING")}, 0)
    store.publish(staged, Entry(run="r", query="q", epoch=0, digest="d", at="now"), after=None)
    assert sorted(map(tuple, read_files(spark, str(tmp_path / "out")).collect())) == [(1, "a"), (2, "b")]


@pytest.mark.spark
def test_the_at_least_once_form_writes_partitions_too_and_adds_again(spark: SparkSession, tmp_path: Path) -> None:
    sink = FileSink(str(tmp_path / "out"), "json", partition_by="k")
    rows = spark.createDataFrame([(1, "a"), (2, "b")], "n INT, k STRING")
    for _ in range(2):
        sink.write(rows, 0)
    assert sorted(folder.name for folder in (tmp_path / "out").glob("k=*")) == ["k=a", "k=b"]
    back = spark.read.schema("n INT, k STRING").json(str(tmp_path / "out")).collect()
    assert sorted((row.n, row.k) for row in back) == [(1, "a"), (1, "a"), (2, "b"), (2, "b")]


@pytest.mark.spark
def test_what_csv_cannot_hold_is_refused_before_anything_runs(spark: SparkSession) -> None:
    rows = spark.createDataFrame([], "n INT, tags ARRAY<STRING>")
    FileSink("out", "json").check_rows(rows, "output 'out'")
    with pytest.raises(BadJob, match=r"column 'tags' of type array<string> cannot be written as CSV"):
        FileSink("out", "csv").check_rows(cast(Any, rows), "output 'out'")
