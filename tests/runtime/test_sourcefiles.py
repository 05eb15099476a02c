"""What is noted of files that were read, over hand-made checkpoints: no query runs."""

import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest

from lockgate import FileSource
from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.connectors.files import listing
from lockgate.connectors.files.listing import Facts, look_below
from lockgate.errors import BadJob, Failed, Refused, SourceChanged
from lockgate.runtime import sourcefiles
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

    def put(self, name: str, *, days_old: float = 0) -> Path:
        file = self.inbox / name
        file.write_text("1")
        modified = file.stat().st_mtime - days_old * DAY
        os.utime(file, (modified, modified))
        return file

    def log(self, batch: int, *files: Path, number: int = 0) -> None:
        entries = [
            {"path": file.as_uri(), "timestamp": file.stat().st_mtime_ns // 1_000_000, "batchId": batch}
            for file in files
        ]
        lines = ["v1", *map(json.dumps, entries)]
        (self.place / "sources" / str(number)).mkdir(exist_ok=True)
        (self.place / "sources" / str(number) / str(batch)).write_text("\n".join(lines))

    def plan(self, epoch: int, *ends: int) -> None:
        """Plan an epoch, up to an entry of each pass."""
        told = "\n".join(f'{{"logOffset":{end}}}' for end in ends or (epoch,))
        (self.place / "offsets" / str(epoch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{told}')

    def commit(self, epoch: int) -> None:
        (self.place / "commits" / str(epoch)).write_text('v1\n{"nextBatchWatermarkMs":0}')

    def start(self, *, is_exact: bool = True, passes: int = 1, **options: Any) -> SourceFiles:
        return self.open(FileSource(path=str(self.inbox), value="id INT", **options), is_exact=is_exact, passes=passes)

    def open(
        self, *sources: FileSource, is_exact: bool = True, passes: int = 1, logs: Sequence[int | None] = range(9)
    ) -> SourceFiles:
        where = "source 'files', declared at job.py:3"
        directories = [ReadDirectory(source, where=where, passes=passes) for source in sources]
        checkpoint = Checkpoint(str(self.place), SPARK)
        files = SourceFiles(checkpoint, directories, logs=logs, is_exact=is_exact, job="job", now=time.time)
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


@pytest.fixture
def without_hadoop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patterns are expanded by Python; tests/runtime/test_changedfiles.py compares both with Hadoop."""
    monkeypatch.setattr(
        listing,
        "_expand",
        lambda path, _: [one for each in listing._alternatives(path) for one in map(str, Path("/").glob(each[1:]))],
    )


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
    monkeypatch.setattr("lockgate.runtime.filenotes._NOTES_MAX", notes)
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
    columns(archive=str(tmp_path / "done"))
    for archive in ("", "2026", "20/done"):
        with pytest.raises(BadJob, match="would be read again"):
            columns(archive=str(tmp_path / archive))
    with pytest.raises(BadJob, match="cannot both be"):
        columns(archive="done", delete=True)


@pytest.mark.usefixtures("without_hadoop")
@pytest.mark.parametrize("below", ["", "sub", "sub/*/x", "*"])
def test_two_sources_over_one_directory_must_agree_on_what_becomes_of_its_files(below: str, planned: Planned) -> None:
    inner = str(planned.inbox / below)
    kept, deleted, archived = (
        FileSource(path=path, value="id INT", **options)
        for path, options in (
            (str(planned.inbox), {}),
            (inner, {"delete": True}),
            (inner, {"archive": str(planned.place / "done")}),
        )
    )
    for other in (deleted, archived):
        for sources in ((kept, other), (other, kept)):
            with pytest.raises(Refused, match="two sources read"):
                planned.open(*sources)
    planned.open(deleted, replace(deleted, path=str(planned.inbox)))
    planned.open(deleted, replace(kept, path=str(planned.place / "in2")))


@pytest.mark.usefixtures("without_hadoop")
def test_files_are_of_the_pattern_that_has_them_alone(planned: Planned) -> None:
    for name in ("a/orders", "a/pay", "b/orders"):
        (planned.inbox / name).mkdir(parents=True)
    archive = planned.inbox / "done"
    orders = FileSource(path=f"{planned.inbox}/*/orders", value="id INT", archive=str(archive))
    pay = FileSource(path=f"{planned.inbox}/{{a,b/c}}/pa[!x]", value="id INT")
    for source in (orders, pay):
        source.columns("here")
    files = planned.open(orders, pay)
    order, paid = planned.put("a/orders/1"), planned.put("a/pay/2", days_old=100)
    for number, file in enumerate((order, paid)):
        planned.log(0, file, number=number)
    planned.plan(0, 0, 0)
    files.plan(0)
    files.confirm()
    files.end_epoch()
    planned.commit(0)
    planned.put("a/pay/3", days_old=120)  # not old for this source
    files.look()
    assert (archive / "a/orders/1").exists()
    assert not order.exists()
    assert paid.exists()


@pytest.mark.usefixtures("without_hadoop")
def test_a_file_is_not_archived_where_it_would_be_read_again(planned: Planned) -> None:
    (planned.inbox / "orders" / "orders").mkdir(parents=True)
    source = FileSource(path=f"{planned.inbox}/*/orders", value="id INT", archive=str(planned.inbox / "done"))
    source.columns("here")
    files, file = planned.open(source), planned.put("orders/orders/1")
    planned.read(files, 0, file)
    with pytest.raises(Failed, match=r"in its archive .*done/orders/orders/1 the job would read it again"):
        files.look()
    assert file.exists()


def test_a_file_stays_until_a_second_pass_has_read_it_too(planned: Planned) -> None:
    files = planned.start(passes=2, delete=True)
    a, b = planned.put("a"), planned.put("b")  # b comes between the listings of the two passes
    planned.log(0, a)
    planned.log(0, a, b, number=1)
    planned.plan(0, 0, 0)
    files.plan(0)
    files.confirm()
    files.end_epoch()
    planned.commit(0)
    planned.log(1, b)
    planned.plan(1, 1, 0)
    files.plan(1)
    assert b.exists()
    assert not a.exists()
    again = planned.start(passes=2, delete=True)
    again.look()
    assert b.exists()
    again.plan(1)
    again.confirm()
    again.end_epoch()
    planned.commit(1)
    again.look()
    assert not b.exists()


def test_what_is_gone_is_forgotten_when_notes_are_summed_up_and_not_in_every_epoch(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockgate.runtime.filenotes._NOTES_MAX", 3)
    monkeypatch.setattr(sourcefiles, "_PAUSE_SHARE_EPOCH", 0)  # look at all files in every epoch
    forgotten, forget = [], SourceFiles._forget

    def count(self: SourceFiles, now: Mapping[str, Facts]) -> None:
        forgotten.append(len(self._known))
        forget(self, now)

    monkeypatch.setattr(SourceFiles, "_forget", count)
    files, old, recent = planned.start(), planned.put("old", days_old=100), planned.put("recent", days_old=5)
    planned.read(files, 0, old, recent)
    old.unlink()
    recent.unlink()
    for epoch in range(1, 7):
        planned.read(files, epoch, planned.put(str(epoch)))
        (planned.place / "offsets" / str(epoch - 2)).unlink(missing_ok=True)
        (planned.place / "commits" / str(epoch - 2)).unlink(missing_ok=True)
        assert (str(old) in files._known) == (epoch < 3)
    assert len(forgotten) == 3  # at the start too
    assert str(recent) in files._known
    planned.put("old")
    files.look()


def test_a_file_of_the_future_is_refused_before_it_counts(planned: Planned) -> None:
    files, ahead = planned.start(), planned.put("ahead", days_old=-60)
    planned.log(0, ahead)
    planned.plan(0)
    with pytest.raises(SourceChanged, match="ahead has a time in the future") as stopped:
        files.plan(0)
    assert "rollback FILE --uncommitted" in stopped.value.fix
    planned.put("b")
    ahead.touch()
    with pytest.raises(Refused, match="ahead has a time in the future"):  # Spark has noted the time that it had
        planned.start()
    for name in ("offsets/0", "sources/0/0"):
        (planned.place / name).unlink()
    again = planned.start()
    planned.read(again, 0, ahead, planned.put("soon", days_old=-0.9))
    again.look()


def test_files_behind_one_of_the_future_that_was_read_are_given_a_time_with_which_they_are_read(
    planned: Planned,
) -> None:
    ahead = planned.put("ahead", days_old=-60)
    planned.log(0, ahead)
    planned.plan(0)
    planned.commit(0)
    planned.put("b")
    with pytest.raises(Refused, match=f"newest file that was, {ahead}") as refused:
        planned.start()
    told = re.search("touch -d ([^ ]+) FILE", refused.value.fix)
    assert told is not None
    modified = datetime.fromisoformat(told[1]).timestamp()
    os.utime(planned.inbox / "b", (modified, modified))
    files = planned.start()
    planned.read(files, 1, planned.inbox / "b")
    files.look()


def test_a_file_of_an_epoch_that_an_older_version_has_begun_is_compared_by_its_time(
    planned: Planned, caplog: pytest.LogCaptureFixture
) -> None:
    file = planned.put("a")
    planned.log(0, file)
    planned.plan(0)
    planned.start()
    os.utime(file, (5, 5))
    with pytest.raises(Refused, match="a replay would have other rows"):
        planned.start()
    planned.start(is_exact=False)
    assert "is read as it is now" in caplog.text


def test_a_file_that_changed_before_the_first_epoch_was_noted_is_read_as_it_is_now(planned: Planned) -> None:
    for folder in ("offsets", "commits", "sources/0"):
        (planned.place / folder).rmdir()
    (planned.place / "metadata").unlink()
    files, file = planned.start(), planned.put("a")
    for folder in ("offsets", "commits", "sources/0"):
        (planned.place / folder).mkdir()
    (planned.place / "metadata").write_text('{"id": "q"}')
    planned.log(0, file)
    planned.plan(0)
    os.utime(file, (5, 5))
    with pytest.raises(SourceChanged, match="after it was listed and before it was read"):
        files.plan(0)
    again = planned.start()
    again.plan(0)
    again.confirm()


def test_a_file_is_not_cleaned_up_before_every_pass_has_read_it(planned: Planned) -> None:
    files, file = planned.start(passes=2, delete=True), planned.put("a")
    planned.read(files, 0, file)
    files.look()
    assert file.exists()


def test_files_of_sources_that_are_no_file_source_are_not_looked_at(planned: Planned) -> None:
    """Acknowledged events that come again, and records of a test, are files too, in directories of ours."""
    first = planned.put("a")
    files = planned.open(FileSource(path=str(planned.inbox), value="id INT"), logs=(None, 1))
    other = planned.place / "elsewhere"
    other.write_text("1")
    planned.log(0, other, number=0)
    planned.log(0, first, number=1)
    planned.plan(0, 0, 0)
    files.plan(0)
    files.confirm()
    first.write_text("other")
    with pytest.raises(SourceChanged, match="a was changed while it was read"):
        files.confirm()


@pytest.mark.parametrize("option", ["delete", "archive"])
def test_a_link_in_the_directory_leads_nothing_outside_to_be_cleaned_up(
    planned: Planned, caplog: pytest.LogCaptureFixture, option: str
) -> None:
    outside = planned.inbox.with_name("outside")
    outside.mkdir()
    (outside / "victim").write_text("precious")
    (planned.inbox / "link").symlink_to(outside)
    archive = planned.inbox.with_name("done")
    own, foreign = planned.put("own"), planned.inbox / "link" / "victim"
    files = planned.start(**({"delete": True} if option == "delete" else {"archive": str(archive)}))
    planned.read(files, 0, foreign, own)
    files.clean()
    assert (outside / "victim").read_text() == "precious"
    assert not own.exists(), "the others are cleaned up"
    assert "is processed and stays where it is" in caplog.text


def test_a_link_in_the_archive_takes_no_file_outside(planned: Planned, caplog: pytest.LogCaptureFixture) -> None:
    outside, archive = planned.inbox.with_name("outside"), planned.inbox.with_name("done")
    for folder in (outside, archive, planned.inbox / "sub"):
        folder.mkdir()
    (archive / "sub").symlink_to(outside)
    file = planned.put("sub/a")
    files = planned.start(archive=str(archive))
    planned.read(files, 0, file)
    files.clean()
    assert list(outside.iterdir()) == []
    assert file.exists()
    assert "is a link" in caplog.text
