"""A reader sees the files that manifests name, with the columns that were written."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lockgate.connectors.files.filesystem import HadoopSystem, LocalSystem
from lockgate.connectors.files.manifest import partition_values
from lockgate.connectors.files.reading import committed_files, read_files
from lockgate.connectors.files.store import FileStore
from lockgate.errors import Refused
from support.filesjob import FilesJob, entry


def test_a_directory_without_manifests_is_reported_with_the_way_to_read_it(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none"):
        with pytest.raises(Refused, match="no manifests in") as caught:
            committed_files(str(place))
        assert "spark.read" in caught.value.fix
    (tmp_path / "file").write_text("x")
    with pytest.raises(Refused, match="cannot be read"):
        committed_files(str(tmp_path / "file"))


def test_committed_files_are_those_of_all_jobs_or_of_one(files_job: FilesJob) -> None:
    other = FilesJob(files_job.root, job="another")
    files_job.commit(files_job.store(), 0, [1])
    other.commit(other.store(), 0, [2])
    assert files_job.seen() == [1, 2]
    (mine,) = committed_files(str(files_job.root), job=files_job.job)
    assert json.loads(Path(mine).read_text()) == {"n": 1}
    with pytest.raises(Refused, match=r"no manifests of job 'none' in .*, only of another, payments"):
        committed_files(str(files_job.root), job="none")


def test_what_was_staged_or_left_behind_is_not_among_the_files(files_job: FilesJob) -> None:
    store = files_job.store()
    files_job.commit(store, 0, [1])
    files_job.stage(store, 1, [2])
    (files_job.root / "data" / files_job.job / "part-0.json").write_text('{"n": 3}\n')
    assert files_job.seen() == [1]


def test_a_job_that_only_claimed_its_ledger_has_no_files(files_job: FilesJob) -> None:
    files_job.store().publish(None, entry(None), after=None)
    assert committed_files(str(files_job.root)) == []


ROWS = [
    (1, "plain", date(2026, 1, 1), True),
    (2, "a/b=c%d:e?*[x]{y}\\\"'#^", date(1969, 12, 31), False),
    (3, " spaces at both ends ", None, None),
    (4, "Zürich 東京 🙂", date(9999, 12, 31), True),
    (5, None, date(2026, 1, 1), True),
    (6, "", date(2026, 1, 1), True),
    (7, "__HIVE_DEFAULT_PARTITION__", date(2026, 1, 1), True),
    (8, "007", date(2026, 1, 1), True),
    (9, 'a\nb,\r\n"c"', date(2026, 1, 1), True),
    (10, "null", date(2026, 1, 1), None),
    (None, None, None, None),
]
SCHEMA = "n INT, k STRING, day DATE, ok BOOLEAN"


def store_at(root: Path, kind: str, *partition_by: str, roll_bytes: int = 1 << 27) -> FileStore:
    return FileStore(LocalSystem(root), "job", kind=kind, partition_by=partition_by, roll_bytes=roll_bytes)


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
@pytest.mark.parametrize("partition_by", [(), ("k", "Day")])
def test_what_is_read_is_what_was_written(
    kind: str, partition_by: tuple[str, ...], spark: SparkSession, tmp_path: Path
) -> None:
    root = tmp_path / "with [odd] {signs} 100%"
    store = store_at(root, kind, *partition_by)
    rows = [row for row in ROWS if not (partition_by and row[1] == "Zürich 東京 🙂" and not _knows_unicode(spark))]
    staged = store.stage({"out": spark.createDataFrame(rows, SCHEMA)}, 0)
    store.publish(staged, entry(0), after=None)
    frame = read_files(spark, str(root))
    assert frame.schema.simpleString() == "struct<n:int,k:string,day:date,ok:boolean>"
    assert sorted(map(tuple, frame.collect()), key=str) == sorted(rows, key=str)
    if partition_by:
        values = [partition_values(file.path) for file in store._log.read().files]
        assert {"k": "a/b=c%d:e?*[x]{y}\\\"'#^", "Day": "1969-12-31"} in values
        assert {"k": None, "Day": None} in values


def _knows_unicode(spark: SparkSession) -> bool:
    return "UTF" in str(spark.sparkContext._jvm.System.getProperty("sun.jnu.encoding")).upper()  # type: ignore[union-attr]


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_times_and_numbers_come_back_to_the_last_digit_whatever_the_readers_zone(
    kind: str, spark: SparkSession, tmp_path: Path
) -> None:
    at = datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=UTC)
    row = (at, at.replace(tzinfo=None), 0.1 + 0.2, Decimal("12345678901234567890.12"), 2**63 - 1)
    schema = "at TIMESTAMP, wall TIMESTAMP_NTZ, x DOUBLE, d DECIMAL(22,2), big BIGINT"
    store = store_at(tmp_path, kind)
    staged = store.stage({"out": spark.createDataFrame([row], schema)}, 0)
    store.publish(staged, entry(0), after=None)
    reader = spark.newSession()
    reader.conf.set("spark.sql.session.timeZone", "America/New_York")
    (back,) = read_files(reader, str(tmp_path)).selectExpr("unix_micros(at)", "wall", "x", "d", "big").collect()
    assert tuple(back) == (int(at.timestamp()) * 1_000_000 + 123456, *row[1:])


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_rows_of_one_column_that_is_null_are_counted_too(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    store = store_at(tmp_path, kind)
    staged = store.stage({"out": spark.createDataFrame([(None,), ("",), ("a",), (None,)], "k STRING")}, 0)
    store.publish(staged, entry(0), after=None)
    back = [row.k for row in read_files(spark, str(tmp_path)).collect()]
    assert sorted(back, key=str) == sorted([None, "", "a", None], key=str)


@pytest.mark.spark
def test_a_text_that_means_null_in_csv_stops_the_job_and_is_not_changed(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([(r"\N",)], "k STRING")
    with pytest.raises(Exception, match=r"which stands for null in CSV: use format='json'"):
        store_at(tmp_path, "csv").stage({"out": rows}, 0)
    store = store_at(tmp_path, "json")
    store.publish(store.stage({"out": rows}, 0), entry(0), after=None)
    assert [row.k for row in read_files(spark, str(tmp_path)).collect()] == [r"\N"]


@pytest.mark.spark
def test_an_epoch_without_rows_gives_an_empty_frame_with_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    store = store_at(tmp_path, "parquet", "k")
    store.publish(None, entry(None), after=None)
    with pytest.raises(Refused, match="its columns are not known yet"):
        read_files(spark, str(tmp_path))
    staged = store.stage({"out": spark.createDataFrame([], "n INT, k STRING")}, 0)
    assert json.loads(staged)["files"] == 0
    store.publish(staged, entry(0), after=entry(None))
    frame = read_files(spark, str(tmp_path))
    assert frame.collect() == []
    assert frame.schema.simpleString() == "struct<n:int,k:string>"


@pytest.mark.spark
def test_columns_that_came_later_are_null_in_older_rows_and_jobs_are_read_together(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = store_at(tmp_path, "csv")
    store.publish(store.stage({"out": spark.createDataFrame([(1,)], "n INT")}, 0), entry(0), after=None)
    later = spark.createDataFrame([("x", 2)], "k STRING, n INT")
    store.publish(store.stage({"out": later}, 1), entry(1), after=entry(0))
    other = FileStore(LocalSystem(tmp_path), "other", kind="json", partition_by=(), roll_bytes=1 << 27)
    other.publish(other.stage({"out": later}, 0), entry(0), after=None)
    assert sorted(map(tuple, read_files(spark, str(tmp_path), job="job").collect()), key=str) == [("x", 2), (None, 1)]
    assert len(read_files(spark, str(tmp_path)).collect()) == 3


@pytest.mark.spark
def test_files_are_cut_at_about_the_size_that_was_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    store = store_at(tmp_path, "json", roll_bytes=20_000)
    rows = spark.range(5000).selectExpr("id", "repeat('x', 30) AS text").coalesce(1)
    for epoch in range(2):
        store.publish(store.stage({"out": rows}, epoch), entry(epoch), after=store.read())
    sizes = [file.bytes for file in store._log.read().files if "/1-" in file.path]
    assert len(sizes) > 5
    assert max(sizes) < 22_000
    assert sorted(sizes)[1] > 18_000  # all but the last


@pytest.mark.spark
def test_a_directory_on_a_file_system_of_hadoops_keeps_the_same_laws(spark: SparkSession, tmp_path: Path) -> None:
    """On Hadoop's local file system, which is HDFS's form of the same calls; a race is not tried here."""
    system = HadoopSystem(f"file:{tmp_path / 'out'}", spark)
    store = FileStore(system, "job", kind="parquet", partition_by=("k",), roll_bytes=1 << 27)
    frame = spark.createDataFrame([(1, "a b/c"), (2, None)], "n INT, k STRING")
    store.stage({"out": frame}, 0)
    staged = store.stage({"out": frame}, 0)
    store.publish(None, entry(None), after=None)
    store.remove([name for name in store.leftovers() if name not in staged])
    store.publish(staged, entry(0), after=entry(None))
    assert store.leftovers() == ()
    again = FileStore(system, "job", kind="parquet", partition_by=("k",), roll_bytes=1 << 27)
    assert again.read() == entry(0)
    assert [file.rows for file in again._log.read().files] == [1, 1]
    assert len(system.names("data/job")) == 1
    rows = read_files(spark, str(tmp_path / "out")).collect()
    assert sorted(map(tuple, rows)) == [(1, "a b/c"), (2, None)]
