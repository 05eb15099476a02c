"""`lockgate files compact`: many small files become few, whoever reads; and it can be stopped at any time."""

import json
import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lockgate.cli import main as cli
from lockgate.cli.files import describe
from lockgate.commit.ledger import Entry
from lockgate.connectors.files.compaction import Prospect
from lockgate.connectors.files.filesystem import LocalSystem
from lockgate.connectors.files.reading import committed_files
from lockgate.connectors.files.store import FileStore
from support.process import LOCKGATE, running


def fill(root: Path, *, epochs: int, job: str = "payments") -> None:
    """Epochs of one small file each, as a job would leave them."""
    store = FileStore(LocalSystem(root), job, kind="json", partition_by=(), roll_bytes=1 << 20)
    for epoch in range(epochs):
        directory = store.fresh_directory(epoch)
        (root / directory).mkdir(parents=True)
        (root / directory / "part-0.json").write_text(f'{{"n": {epoch}}}\n')
        entry = Entry(run="run", query="query", epoch=epoch, digest=f"{epoch}", at="2026-01-01T00:00:00.000+00:00")
        store.publish(store.seal(directory, "n INT"), entry, after=store.read())


def seen(root: Path) -> list[int]:
    lines = (line for file in committed_files(str(root)) for line in Path(file).read_text().splitlines())
    return sorted(json.loads(line)["n"] for line in lines)


def leftovers(root: Path) -> list[str]:
    return [one.name for one in (root / "data" / "payments").iterdir() if one.name.startswith("compact-")]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["absent"], "there is no such directory"),
        (["plain"], "there are no manifests in it"),
        (["file"], "cannot be read"),
        (["s3a://bucket/out"], "rename is not known to be atomic"),
        (["plain", "--target-size", "large"], "--target-size is not a size"),
        (["plain", "--smaller-than", "0"], "--smaller-than is not a size"),
        (["plain", "--grace", "soon"], "--grace is not a duration"),
        (["plain", "--target-size", "1 MB", "--smaller-than", "2 MB"], "again and again"),
    ],
)
def test_what_makes_no_sense_is_refused_before_spark_is_started(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain" / "day=1").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    assert cli.main(["files", "compact", *arguments]) == 2
    said = capsys.readouterr()
    assert told in said.err
    assert said.out == ""


def test_a_dry_run_says_what_would_be_done_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path, epochs=5)
    fill(tmp_path, epochs=1, job="alone")
    before = sorted(tmp_path.rglob("*"))
    assert cli.main(["files", "compact", str(tmp_path), "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "job payments: 5 small files, 45 B in all, become about 1; 0 files that were" in told
    assert "job alone: no small files to merge" in told
    assert told.endswith("nothing was done; omit --dry-run\n")
    assert cli.main(["files", "compact", str(tmp_path), "--dry-run", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["dry_run"] is True
    assert facts["jobs"]["payments"]["done"] is None
    assert facts["jobs"]["payments"]["foreseen"] == {"small": 5, "small_bytes": 45, "written": 1, "deleted": 0}
    assert sorted(tmp_path.rglob("*")) == before


def test_sizes_are_printed_for_people() -> None:
    told = describe(Prospect(small=1200, small_bytes=5 << 20, written=2, deleted=7))
    assert told == "1,200 small files, 5.0 MB in all, become about 2; 7 files that were replaced before can be deleted"


@pytest.mark.spark
def test_small_files_of_every_job_become_one_and_the_old_ones_go_after_the_grace(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "out"
    fill(root, epochs=4)
    fill(root, epochs=2, job="refunds")
    old = committed_files(str(root))
    assert cli.main(["files", "compact", "out", "--grace", "0 seconds"]) == 0
    told = capsys.readouterr().out
    assert "job payments: 4 files became 1; 0 that were" in told
    assert "job refunds: 2 files became 1; 0 that were" in told
    assert len(committed_files(str(root))) == 2
    assert all(Path(file).exists() for file in old)
    assert seen(root) == [0, 0, 1, 1, 2, 3]
    assert cli.main(["files", "compact", "out", "--grace", "0 seconds", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["jobs"]["payments"]["done"] == {"replaced": 0, "written": 0, "deleted": 4}
    assert facts["jobs"]["refunds"]["done"] == {"replaced": 0, "written": 0, "deleted": 2}
    assert not any(Path(file).exists() for file in old)
    assert seen(root) == [0, 0, 1, 1, 2, 3]


@pytest.mark.spark
def test_a_file_that_is_gone_is_reported_and_nothing_is_changed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "out", epochs=3)
    Path(committed_files(str(tmp_path / "out"))[1]).unlink()
    assert cli.main(["files", "compact", "out"]) == 1
    assert "Spark could not merge the files" in capsys.readouterr().err
    assert len(committed_files(str(tmp_path / "out"))) == 3
    assert leftovers(tmp_path / "out") == []


@pytest.mark.system
@pytest.mark.process
def test_ctrl_c_ends_it_cleanly_and_readers_see_the_same(tmp_path: Path) -> None:
    root = tmp_path / "out"
    fill(root, epochs=400)
    with running(*LOCKGATE, "files", "compact", "out", cwd=tmp_path) as process:
        process.wait_for("the merge", lambda: leftovers(root))
        assert process.end(signal.SIGINT) == 130, process.said
    assert "job payments: 400 small files" in process.printed
    assert process.said.split() == ["stopping", "interrupted"]
    assert leftovers(root) == []
    assert seen(root) == list(range(400))
    assert len(committed_files(str(root))) == 400
