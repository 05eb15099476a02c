"""Files are read by what manifests say, without the code that writes them: these tests let that code write."""

import json
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lockgate.commit.ledger import Entry
from lockgate.commit.resource import Opening
from lockgate.connectors.files.manifest import DataFile, Group, Manifest
from lockgate.connectors.files.sink import FileSink
from lockgate.guarantees import Guarantee
from lockgate.lab.prove.places import Readers
from lockgate.lab.rig.history import Fact, Fault, Gap, History, Read
from lockgate.lab.rig.judge.checkers import check
from lockgate.lab.rig.judge.findings import Finding, Outcome
from lockgate.lab.rig.judge.promises import Keeping, Promise, Row
from lockgate.lab.rig.readers.files import Files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB = "lockgate-proof-1-0"


def now() -> float:
    return time.monotonic()


def values(facts: list[Fact]) -> list[Any]:
    assert not [fact for fact in facts if isinstance(fact, Gap)], facts
    return [json.loads(fact.value or b"") for fact in facts if isinstance(fact, Read)]


def seen_by(output: Files, count: int) -> None:
    deadline = now() + 30
    while len(output.seen()) < count:
        assert now() < deadline, output.seen()
        time.sleep(0.05)


class Desk:
    """Writes files and manifests as a FileSink does."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sequence = 0

    def file(self, epoch: int, *ids: int) -> DataFile:
        """A file of JSON that no manifest names yet."""
        path = f"data/{JOB}/{epoch}-ab/part-{epoch}.json"
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("".join(f'{{"id":{one}}}\n' for one in ids))
        return DataFile(path, place.stat().st_size)

    def publish(self, *files: DataFile, is_snapshot: bool = False) -> None:
        self.sequence += 1
        group = Group("json", "id BIGINT", (), files)
        manifest = Manifest(self.sequence, entry(self.sequence), (group,), is_snapshot)
        place = self.root / "_lockgate" / JOB / f"{self.sequence:020}.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        aside = place.with_name(".aside")
        aside.write_bytes(manifest.to_bytes())
        aside.rename(place)


def entry(epoch: int) -> Entry:
    return Entry(run="run", query="query", epoch=epoch, digest="digest", at="2026-01-01T00:00:00+00:00")


@pytest.fixture
def files_job(tmp_path: Path) -> Desk:
    return Desk(tmp_path / "out-0")


def exact(files_job: Desk) -> Files:
    return Files("out", files_job.root, "json", is_exact=True)


def test_a_directory_that_is_not_there_yet_has_no_rows(files_job: Desk) -> None:
    assert exact(files_job).after(now) == []
    assert Files("out", files_job.root, "json", is_exact=False).after(now) == []


def test_only_what_a_manifest_names_counts(files_job: Desk) -> None:
    first, second = files_job.file(0, 1, 2), files_job.file(1, 3)
    assert exact(files_job).after(now) == []
    files_job.publish(first)
    (files_job.root / "_lockgate" / ".probe-ab").write_text("first")
    assert values(exact(files_job).after(now)) == [{"id": 1}, {"id": 2}]
    files_job.publish(second)
    assert values(exact(files_job).after(now)) == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_a_snapshot_is_all_that_counts_and_what_is_behind_it_is_added(files_job: Desk) -> None:
    old, new, last = files_job.file(0, 1), files_job.file(1, 2), files_job.file(2, 3)
    files_job.publish(old)
    files_job.publish(new, is_snapshot=True)
    files_job.publish(last)
    (files_job.root / "_lockgate" / JOB / f"{1:020}.json").unlink()
    assert values(exact(files_job).after(now)) == [{"id": 2}, {"id": 3}]


def judged(facts: list[Fact], *ids: int) -> dict[str, Finding]:
    rows = tuple(Row(None, b'{"id":%d}' % one) for one in ids)
    promise = Promise(Guarantee.END_TO_END_EXACTLY_ONCE, rows, keeping=Keeping.ADDED, has_transactions=False)
    found = check(History((*facts, Fault("kill", "any", "x", 0.0))), {"out": promise}, due=[("kill", "any")])
    return {one.checker: one for one in found}


def broken(facts: list[Fact], *ids: int) -> set[str]:
    told = judged(facts, *ids)
    assert not [one for one in told.values() if one.outcome is Outcome.UNKNOWN], told
    return {name for name, one in told.items() if one.outcome is Outcome.BROKEN}


@pytest.mark.parametrize("plant", ["nothing", "lost", "duplicated", "foreign", "gone", "deleted"])
def test_what_is_planted_in_files_is_caught(files_job: Desk, plant: str) -> None:
    output = exact(files_job)
    readers = Readers((output,))
    readers.start_along(now)
    first, second = files_job.file(0, 1, 2), files_job.file(1, 3)
    files_job.publish(first)
    seen_by(output, 2)
    wanted: set[str] = set()
    if plant == "lost":
        wanted = {"lost"}
    else:
        files_job.publish(second)
        seen_by(output, 3)
    if plant == "duplicated":
        files_job.publish(files_job.file(2, 3))
        wanted = {"duplicated"}
    elif plant == "foreign":
        files_job.publish(files_job.file(2, 9))
        wanted = {"foreign"}
    elif plant == "gone":
        files_job.publish(first, is_snapshot=True)  # as one would who has not seen the one before
        wanted = {"lost", "aborted seen"}
    elif plant == "deleted":
        (files_job.root / second.path).unlink()
        wanted = {"lost", "aborted seen"}
    facts: list[Fact] = [*readers.finish_along(now), *readers.after(now), *readers.standing(now)]
    assert broken(facts, 1, 2, 3) == wanted


def test_a_file_that_cannot_be_read_is_a_gap(files_job: Desk) -> None:
    file = files_job.file(0, 1)
    (files_job.root / file.path).write_text("{half")
    files_job.publish(file)
    assert [type(fact) for fact in Readers((exact(files_job),)).after(now)] == [Gap]


def test_without_manifests_all_files_count_but_hidden_ones(tmp_path: Path) -> None:
    for path in ("part-0.json", "_temporary/0/part-1.json", ".part-0.json.crc", "day=a%2Fb/part-2.json", "_SUCCESS"):
        place = tmp_path / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text('{"id":1,"share":0.10}\n')
    found = values(Files("out", tmp_path, "json", is_exact=False).after(now))
    one = {"id": 1, "share": "0.10"}
    assert sorted(found, key=len) == [one, {**one, "day": "a/b"}]


def test_parquet_is_read_without_loss(tmp_path: Path) -> None:
    columns = {
        "price": pa.array([Decimal("1.50")], pa.decimal128(10, 2)),
        "at": pa.array([datetime(2026, 1, 1, 12, 0, 0, 1, UTC)], pa.timestamp("us", "UTC")),
        "part": pa.array([b"\x01\xff"]),
        "tags": pa.array([["a", None]]),
        "nested": pa.array([{"n": 1}]),
    }
    pq.write_table(pa.table(columns), tmp_path / "part-0.parquet")
    assert values(Files("out", tmp_path, "parquet", is_exact=False).after(now)) == [
        {
            "price": "1.50",
            "at": "2026-01-01T12:00:00.000001+00:00",
            "part": "01ff",
            "tags": ["a", None],
            "nested": {"n": 1},
        }
    ]


def test_csv_is_read_as_it_is_written_by_the_number_of_the_column(tmp_path: Path) -> None:
    (tmp_path / "part-0.csv").write_text('1,"a\\"b\nc"\n2,\\\\N\n')
    assert values(Files("out", tmp_path, "csv", is_exact=False).after(now)) == [
        {"0": "1", "1": 'a"b\nc'},
        {"0": "2", "1": "\\N"},
    ]


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_what_the_sink_itself_writes_is_read(spark: "SparkSession", tmp_path: Path, kind: str) -> None:
    rows = spark.sql("SELECT id, concat('a\"\\n', id) AS name, CAST(id AS STRING) AS day FROM range(3)")
    sink = FileSink(str(tmp_path / "out-0"), kind, partition_by=("day",))
    plain = FileSink(str(tmp_path / "out-1"), kind, partition_by=("day",))
    output = Files("out", tmp_path / "out-0", kind, is_exact=True)
    store = sink.open(Opening(spark=spark, job=JOB, sinks={"out": sink}, where="test", is_deciding=True))
    names = store.stage({"out": rows}, 0)
    assert output.after(now) == []
    store.publish(names, entry(0), after=None)
    plain.write(rows, 0)

    def told(found: list[Any]) -> list[tuple[str, str]]:
        named = {"0": "id", "1": "name", "2": "day"}
        return sorted(
            (str(row["id"]), row["name"]) for one in found for row in [{named.get(k, k): v for k, v in one.items()}]
        )

    wanted = [(str(one), f'a"\n{one}') for one in range(3)]
    assert told(values(output.after(now))) == wanted
    found = values(Files("out", tmp_path / "out-1", kind, is_exact=False).after(now))
    assert told(found) == wanted
    assert sorted(one["day"] for one in found) == ["0", "1", "2"]
