"""Files, the screen and memory: every row of an epoch is computed, and computed once."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from lockgate import ConsoleSink, FileSink, FileSource, Guarantee, Job, MemorySource, Output, Stream, stream
from lockgate.errors import UnparsableValue
from support.runs import run_to_the_end

pytestmark = [pytest.mark.spark]


def run_job(output: Output, tmp_path: Path) -> None:
    job = Job("local-sinks", output, guarantee=Guarantee.AT_LEAST_ONCE)
    run_to_the_end(job, tmp_path)


def numbers(count: int, per_epoch: int | None = None) -> Stream:
    return stream(
        "numbers", MemorySource([("k", n) for n in range(count)], value="k STRING, n INT", per_epoch=per_epoch)
    )


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_files_hold_every_row_and_each_was_computed_once(format: str, spark: SparkSession, tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    def note(row: Row) -> dict[str, Any]:
        with calls.open("a") as file:
            file.write(f"{row.n}\n")
        return {"n": row.n}

    run_job(numbers(10, per_epoch=4).map(note, "n INT").to("out", FileSink(str(tmp_path / "out"), format)), tmp_path)
    rows = spark.read.schema("n INT").format(format).load(str(tmp_path / "out")).collect()
    assert sorted(row.n for row in rows) == list(range(10))
    assert Counter(calls.read_text().split()) == {str(n): 1 for n in range(10)}


@pytest.mark.slow
def test_a_screen_shows_some_rows_and_state_is_kept_for_all(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_job(numbers(100, per_epoch=50).key_by("k").rolling(total="sum(n)").to("out", ConsoleSink(rows=3)), tmp_path)
    shown = capsys.readouterr().out.splitlines()
    assert shown[:5] == ["epoch 0", "  k  n  total", "  k  0  0", "  k  1  1", "  k  2  3"]
    assert shown[5] == "  … and 47 more"
    assert shown[8] == f"  k  50  {sum(range(51))}"


def test_a_bad_row_that_is_not_shown_is_found_all_the_same(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "inbox").mkdir()
    lines = [json.dumps({"n": n}) for n in range(3000)]
    (tmp_path / "inbox" / "a.json").write_text("\n".join([*lines, '{"n": 1} and more', ""]))
    read = stream("files", FileSource(path=str(tmp_path / "inbox"), value="n INT"))
    with pytest.raises(UnparsableValue, match="and more"):
        run_job(read.to("out", ConsoleSink(rows=1)), tmp_path)
