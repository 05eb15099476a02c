"""Files of a directory that grows, in four formats."""

import json
import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lockgate import FileSource, Guarantee, Job, MemorySink, stream
from lockgate.errors import BadJob, Refused, UnparsableValue
from support.runs import run_to_the_end

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


def read_all(source: FileSource, tmp_path: Path) -> list[tuple[object, ...]]:
    sink = MemorySink()
    job = Job("files", stream("files", source).to("out", sink), guarantee=Guarantee.AT_LEAST_ONCE)
    run_to_the_end(job, tmp_path)
    return sorted(tuple(row) for row in sink.rows)


def test_a_directory_that_grows_is_read_file_by_file_and_no_file_twice(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    source = FileSource(path=str(inbox), value="id INT, name STRING")
    (inbox / "one.json").write_text('{"id": 1, "name": "a"}\n{"id": 2}\n')
    assert read_all(source, tmp_path) == [(1, "a"), (2, None)]
    (inbox / "two.json").write_text(json.dumps({"id": 3, "name": "c"}) + "\n")
    assert read_all(source, tmp_path) == [(3, "c")]


def test_csv_parquet_and_text_files_are_read(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("csv", "parquet", "text"):
        (tmp_path / name).mkdir()
    (tmp_path / "csv" / "a.csv").write_text('id,name\n1,"x, y"\n2,z\n')
    (tmp_path / "text" / "a.txt").write_text("one\ntwo\n")
    spark.sql("SELECT 1 AS id, 'p' AS name").write.mode("append").parquet(str(tmp_path / "parquet"))
    columns = "id INT, name STRING"
    assert read_all(
        FileSource(path=str(tmp_path / "csv"), value=columns, format="csv", header=True), tmp_path / "1"
    ) == [(1, "x, y"), (2, "z")]
    assert read_all(FileSource(path=str(tmp_path / "parquet"), value=columns, format="parquet"), tmp_path / "2") == [
        (1, "p")
    ]
    assert read_all(FileSource(path=str(tmp_path / "text"), value="line STRING", format="text"), tmp_path / "3") == [
        ("one",),
        ("two",),
    ]


@pytest.mark.parametrize(
    ("format", "text", "told"),
    [
        ("json", '{"id": 1}\n{"id": "many"}\n', '{"id": "many"}'),
        ("csv", "1,a\n2\n", "it is not CSV of (id INT, name STRING): 2"),
    ],
)
def test_a_line_that_does_not_parse_stops_the_job_and_is_named_and_nothing_is_lost(
    format: str, text: str, told: str, tmp_path: Path
) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    bad = inbox / "bad.txt"
    bad.write_text(text)
    source = FileSource(path=str(inbox), value="id INT, name STRING", format=format)
    with pytest.raises(UnparsableValue) as caught:
        read_all(source, tmp_path)
    assert told in caught.value.what
    assert "bad.txt" in caught.value.what
    assert "source 'files', declared at test_source.py:" in caught.value.where
    bad.write_text(text.replace('"many"', "2").replace("2\n", "2,b\n") if format == "csv" else '{"id": 1}\n{"id": 2}\n')
    assert [row[0] for row in read_all(source, tmp_path)] == [1, 2]


def test_a_directory_that_is_not_there_is_refused_before_spark_is_asked(tmp_path: Path) -> None:
    with pytest.raises(BadJob, match="there is no directory"):
        read_all(FileSource(path=str(tmp_path / "nowhere"), value="id INT"), tmp_path)


def test_the_lines_of_a_file_keep_their_order_where_a_step_depends_on_it(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    values = [7, 3, 9, 1, 8]
    (inbox / "a.json").write_text("".join(f'{{"k": "x", "v": {value}}}\n' for value in values))
    sink = MemorySink()
    read = stream("files", FileSource(path=str(inbox), value="k STRING, v INT"))
    job = Job("order", read.key_by("k").rolling(least="min(v)").to("out", sink), guarantee=Guarantee.AT_LEAST_ONCE)
    run_to_the_end(job, tmp_path)
    assert [(row.v, row.least) for row in sink.rows] == [(7, 7), (3, 3), (9, 3), (1, 1), (8, 1)]


def test_a_file_that_is_older_than_the_others_and_an_empty_line_are_no_reason_to_skip(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    source = FileSource(path=str(inbox), value="id INT")
    (inbox / "a.json").write_text('{"id": 1}\n\n')
    assert read_all(source, tmp_path) == [(1,)]
    (inbox / "b.json").write_text('{"id": 2}\n')
    old = (inbox / "b.json").stat().st_mtime - 20 * 86_400
    os.utime(inbox / "b.json", (old, old))
    (inbox / "c.json").write_text('{"id": 3}\n')
    assert read_all(source, tmp_path) == [(2,), (3,)]


def test_a_file_that_is_so_old_that_spark_would_skip_it_is_named(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    source = FileSource(path=str(inbox), value="id INT")
    (inbox / "a.json").write_text('{"id": 1}\n')
    assert read_all(source, tmp_path) == [(1,)]
    (inbox / "b.json").write_text('{"id": 2}\n')
    old = (inbox / "b.json").stat().st_mtime - 40 * 86_400
    os.utime(inbox / "b.json", (old, old))
    with pytest.raises(Refused, match=r"b\.json was not read, and its time .* is more than 30 days before") as refused:
        read_all(source, tmp_path)
    assert "touch" in refused.value.fix
    (inbox / "b.json").touch()
    assert read_all(source, tmp_path) == [(2,)]
