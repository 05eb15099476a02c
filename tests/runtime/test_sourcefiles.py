"""What is noted of files that were read, over hand-made checkpoints: no query runs."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from lockgate import FileSource
from lockgate.errors import BadJob, Refused, SourceChanged
from lockgate.files.inbox import look_below
from lockgate.runtime.checkpoints import Checkpoint
from lockgate.runtime.sourcefiles import ReadDirectory, SourceFiles

SPARK = cast(Any, object())  # nothing here lies on Hadoop's file systems
DAY = 86_400


class Planned:
    """A checkpoint of a query whose source has planned files, one batch for each epoch."""

    def __init__(self, place: Path) -> None:
        self.place, self.inbox = place / "checkpoint", place / "in"
        self.inbox.mkdir()
        for folder in ("offsets", "commits", "sources/0"):
            (self.place / folder).mkdir(parents=True)
        (self.place / "metadata").write_text('{"id": "q"}')

    def put(self, name: str, *, days_old: int = 0) -> Path:
        file = self.inbox / name
        file.write_text("1")
        modified = file.stat().st_mtime - days_old * DAY
        os.utime(file, (modified, modified))
        return file

    def log(self, batch: int, *files: Path) -> None:
        entries = [
            {"path": file.as_uri(), "timestamp": file.stat().st_mtime_ns // 1_000_000, "batchId": batch}
            for file in files
        ]
        lines = ["v1", *map(json.dumps, entries)]
        (self.place / "sources" / "0" / str(batch)).write_text("\n".join(lines))

    def plan(self, epoch: int) -> None:
        (self.place / "offsets" / str(epoch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{{"logOffset":{epoch}}}')

    def commit(self, epoch: int) -> None:
        (self.place / "commits" / str(epoch)).write_text('v1\n{"nextBatchWatermarkMs":0}')

    def start(self, *, is_exact: bool = True, **options: Any) -> SourceFiles:
        source = FileSource(path=str(self.inbox), value="id INT", **options)
        directory = ReadDirectory(source, where="source 'files', declared at job.py:3", passes=1)
        checkpoint = Checkpoint(str(self.place), SPARK)
        files = SourceFiles(checkpoint, [directory], is_exact=is_exact, job="job")
        files.begin()
        return files

    def read(self, files: SourceFiles, epoch: int, *paths: Path) -> None:
        self.log(epoch, *paths)
        self.plan(epoch)
        files.plan(epoch)
        files.confirm()
        files.end_epoch()
        self.commit(epoch)


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    return Planned(tmp_path)


def test_hidden_files_are_none_and_folders_are_looked_through(tmp_path: Path) -> None:
    for name in ("a.json", "deep/b.json", "_c", ".d", "e._COPYING_", "_f=1/g.json", "_h/i.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = look_below([str(tmp_path)], SPARK).files
    assert sorted(path.removeprefix(f"{tmp_path}/") for path in found) == ["_f=1/g.json", "a.json", "deep/b.json"]


def test_a_checkpoint_without_notes_is_compared_by_times(planned: Planned) -> None:
    file = planned.put("a")
    planned.log(0, file)
    planned.plan(0)
    planned.commit(0)
    planned.start()
    os.utime(file, (5, 5))
    with pytest.raises(Refused, match="was changed after it was read: it was of"):
        planned.start()


@pytest.mark.parametrize("notes", [1, 3])
def test_sizes_are_known_after_notes_were_summed_up(
    notes: int, planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockgate.runtime.sourcefiles._NOTES_MAX", notes)
    files, put = planned.start(), [planned.put(str(epoch)) for epoch in range(5)]
    for epoch, file in enumerate(put):
        planned.read(files, epoch, file)
    assert len([*(planned.place / "described" / "files" / "epochs").iterdir()]) <= notes
    planned.start().look()
    for file in put:
        before = file.stat()
        file.write_text("22")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        with pytest.raises(Refused, match=f"{file} was changed after it was read: it had 1 bytes"):
            planned.start()
        file.write_text("1")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_notes_of_an_epoch_that_was_rolled_back_do_not_count(planned: Planned) -> None:
    files = planned.start()
    for epoch in range(2):
        planned.read(files, epoch, planned.put(str(epoch)))
    for folder in ("commits", "offsets"):
        (planned.place / folder / "1").unlink()
    (planned.inbox / "1").write_text("333")
    again = planned.start()
    assert not (planned.place / "described" / "files" / "epochs" / "1").exists()
    planned.plan(1)
    again.plan(1)
    again.confirm()


def test_below_end_to_end_exactly_once_an_epoch_is_replayed_with_its_files_as_they_are(
    planned: Planned, caplog: pytest.LogCaptureFixture
) -> None:
    file = planned.put("a")
    planned.read(planned.start(), 0, file)
    (planned.place / "commits" / "0").unlink()
    file.write_text("333")
    with pytest.raises(Refused, match="a replay would have other rows"):
        planned.start()
    files = planned.start(is_exact=False)
    assert "is read as it is now" in caplog.text
    files.plan(0)
    files.confirm()
    files.end_epoch()
    planned.commit(0)
    files.look()


def change(file: Path) -> None:
    file.write_text("333")


@pytest.mark.parametrize(
    ("action", "told"), [(change, "was changed while it was read"), (Path.unlink, "is gone, and its epoch is not")]
)
def test_a_file_must_stay_until_the_epoch_is_decided(
    action: Callable[[Path], None], told: str, planned: Planned
) -> None:
    files, file = planned.start(), planned.put("a")
    planned.log(0, file)
    planned.plan(0)
    files.plan(0)
    action(file)
    with pytest.raises(SourceChanged, match=told):
        files.confirm()


def test_a_file_of_a_replayed_epoch_is_missed_at_the_start_also_before_it_was_noted(planned: Planned) -> None:
    file = planned.put("a")
    planned.log(0, file)
    planned.plan(0)
    planned.start()
    file.unlink()
    with pytest.raises(Refused, match="is gone, and its epoch is not committed"):
        planned.start()


def test_a_processed_file_may_go_and_none_may_take_its_name(planned: Planned) -> None:
    file = planned.put("a")
    files = planned.start()
    planned.read(files, 0, file)
    file.unlink()
    files.look()
    file.write_text("new")
    with pytest.raises(SourceChanged, match="was changed after it was read"):
        files.look()


def test_an_old_file_that_was_not_read_is_named_and_one_that_was_read_is_not(planned: Planned) -> None:
    files = planned.start()
    planned.read(files, 0, planned.put("old", days_old=100), planned.put("new"))
    planned.put("b", days_old=29)
    files.look()
    planned.put("c", days_old=31)
    with pytest.raises(SourceChanged, match="c was not read, and its time"):
        files.look()


def test_a_file_that_spark_has_forgotten_and_plans_again_is_not_read_twice(planned: Planned) -> None:
    files, old = planned.start(), planned.put("old", days_old=100)
    planned.read(files, 0, old)
    planned.read(files, 1, planned.put("new"))
    old.touch()
    with pytest.raises(SourceChanged, match="old was changed after it was read"):
        planned.read(files, 2, old)


def test_a_file_is_cleaned_up_when_its_epoch_is_committed_and_never_over_another(
    planned: Planned, tmp_path: Path
) -> None:
    archive = tmp_path / "done"
    archive.mkdir()
    (archive / "a").write_text("from long ago")
    files, file = planned.start(archive=str(archive)), planned.put("a")
    modified = file.stat().st_mtime_ns // 1_000_000
    planned.log(0, file)
    planned.plan(0)
    files.plan(0)
    files.clean()
    assert file.exists()
    planned.commit(0)
    files.clean()
    assert not file.exists()
    assert (archive / "a").read_text() == "from long ago"
    assert (archive / f"a.{modified}").read_text() == "1"


def test_an_archive_that_would_be_read_again_is_refused(tmp_path: Path) -> None:
    def columns(**options: Any) -> None:
        FileSource(path=str(tmp_path / "20*"), value="id INT", **options).columns("here")

    columns(archive=str(tmp_path.with_name("done")))
    with pytest.raises(BadJob, match="lies below"):
        columns(archive=str(tmp_path / "done"))
    with pytest.raises(BadJob, match="cannot both be"):
        columns(archive="done", delete=True)


def test_two_sources_over_one_directory_must_agree_on_what_becomes_of_its_files(planned: Planned) -> None:
    sources = [FileSource(path=str(planned.inbox), value="id INT", delete=is_deleted) for is_deleted in (True, False)]
    directories = [ReadDirectory(source, where="here", passes=1) for source in sources]
    with pytest.raises(Refused, match="two sources read"):
        SourceFiles(Checkpoint(str(planned.place), SPARK), directories, is_exact=True, job="job").begin()


def test_a_file_is_not_cleaned_up_before_every_pass_has_read_it(planned: Planned) -> None:
    source, file = FileSource(path=str(planned.inbox), value="id INT", delete=True), planned.put("a")
    directories = [ReadDirectory(source, where="here", passes=2)]
    files = SourceFiles(Checkpoint(str(planned.place), SPARK), directories, is_exact=True, job="job")
    files.begin()
    planned.read(files, 0, file)
    files.look()
    assert file.exists()
