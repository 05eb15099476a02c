"""A file that was read and changes is never read again, so the job stops and names it; processed files may go."""

import json
import os
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lockgate import FileSource, Guarantee, Job, Run, SqliteSink, stream
from lockgate.checkpoints.cleaning import remove_all
from lockgate.checkpoints.history import look_at
from lockgate.checkpoints.laterepochs import later_files, refuse_lost_files
from lockgate.checkpoints.tree import LocalTree
from lockgate.connectors.files.listing import look_below
from lockgate.connectors.files.source import BYTES_PER_ROW
from lockgate.errors import Failed, Refused, SourceChanged
from lockgate.runtime import sourcefiles
from lockgate.runtime.sourcefiles import ReadDirectory, SourceFiles
from support.runs import run_to_the_end, start
from support.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

DAY = 86_400


class Copying:
    """A place with a job that copies files into a table, exactly once."""

    def __init__(self, place: Path) -> None:
        self.place, self.inbox = place, place / "in"
        self.inbox.mkdir()

    def job(self, **options: object) -> Job:
        source = FileSource(path=str(self.inbox), value="id INT", **options)  # type: ignore[arg-type]
        sink = SqliteSink(table="out", path=str(self.place / "out.db"))
        return Job("copy", stream("files", source).to("out", sink), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)

    def put(self, name: str, ids: Iterable[int], *, days_old: int = 0, padding: str = "") -> Path:
        """Put a file in place."""
        aside, file = self.place / "aside", self.inbox / name
        aside.write_text("".join(json.dumps({"id": number}) + padding + "\n" for number in ids))
        modified = aside.stat().st_mtime - days_old * DAY
        os.utime(aside, (modified, modified))
        aside.replace(file)
        return file

    def run(self, **options: object) -> Run:
        return run_to_the_end(self.job(**options), self.place)

    def ids(self) -> list[int]:
        with closing(sqlite3.connect(self.place / "out.db")) as connection:
            return sorted(row[0] for row in connection.execute("SELECT id FROM out"))

    @property
    def tree(self) -> LocalTree:
        return LocalTree(self.place / "checkpoint")


@pytest.fixture
def copying(tmp_path: Path) -> Copying:
    return Copying(tmp_path)


def append(file: Path) -> None:
    with file.open("a") as stream:
        stream.write('{"id": 99}\n')


def test_a_file_that_changed_between_runs_is_refused(copying: Copying) -> None:
    copying.put("b.json", [3])
    file = copying.put("a.json", [1, 2])
    copying.run()
    append(file)
    with pytest.raises(Refused) as refused:
        copying.run()
    assert f"file {file} was changed after it was read: it had" in refused.value.what
    assert "source 'files', declared at test_changedfiles.py:" in refused.value.where
    assert "--new-life" in refused.value.fix
    file.rename(copying.place / "away")
    copying.put("c.json", [4])
    copying.run()
    assert copying.ids() == [1, 2, 3, 4]


def test_a_file_that_changes_while_the_job_waits_ends_it(copying: Copying, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sourcefiles, "_PAUSE_SECONDS", 0.1)
    file = copying.put("a.json", [1, 2])
    started = start(copying.job(), copying.place)
    with pytest.raises(SourceChanged, match="was changed after it was read"):
        # A caller that has other work looks in from time to time, and must see the change too.
        wait_for(
            "the end of the run",
            lambda: started.wait(lambda news: append(file) if news.events_total == 2 else None, timeout=0),
        )
    assert not started.is_running
    assert copying.ids() == [1, 2]


def before_calling(method: str, action: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something once, before this method of SourceFiles."""
    original, todo = getattr(SourceFiles, method), [action]

    def act_first(self: SourceFiles, *arguments: int) -> None:
        if todo:
            todo.pop()()
        original(self, *arguments)

    monkeypatch.setattr(SourceFiles, method, act_first)


def test_a_file_that_changes_between_being_listed_and_being_read_ends_the_run(
    copying: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = copying.put("a.json", [1, 2])
    os.utime(file, (1_700_000_000, 1_700_000_000))
    before_calling("plan", lambda: append(file), monkeypatch)
    with pytest.raises(SourceChanged, match="changed after it was listed and before it was read"):
        copying.run()
    copying.run()  # nothing of it was read
    assert copying.ids() == [1, 2, 99]


def test_a_file_that_changes_while_it_is_read_ends_the_run_before_anything_is_visible(
    copying: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = copying.put("a.json", [1, 2])
    before_calling("confirm", lambda: append(file), monkeypatch)
    with pytest.raises(SourceChanged, match="was changed while it was read"):
        copying.run()
    assert copying.ids() == []
    with pytest.raises(Refused, match="a replay would have other rows") as refused:
        copying.run()
    assert "rollback FILE --uncommitted" in refused.value.fix
    remove_all(copying.tree, later_files(look_at(copying.tree), -1, keeps_next=False))
    copying.run()
    assert copying.ids() == [1, 2, 99]


def test_an_epoch_that_is_replayed_must_find_its_files_as_they_were(
    copying: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die() -> None:
        raise Failed("planted", where="test", fix="none")

    file = copying.put("a.json", [1, 2])
    with monkeypatch.context() as patch:
        before_calling("end_epoch", die, patch)  # the sink has committed the epoch, and Spark has not logged it
        with pytest.raises(Failed, match="planted"):
            copying.run()
    assert copying.ids() == [1, 2]
    before, content = file.stat(), file.read_text()
    append(file)
    with pytest.raises(Refused, match="a replay would have other rows"):
        copying.run()
    file.unlink()
    with pytest.raises(Refused, match=r"a\.json is gone, and its epoch is not committed"):
        copying.run()
    file.write_text(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    copying.put("b.json", [3])
    copying.run()
    assert copying.ids() == [1, 2, 3]


def test_processed_files_are_archived_and_no_rollback_goes_back_past_them(copying: Copying) -> None:
    archive = copying.place / "done"
    for turn in range(2):
        copying.put("x.json", [turn]).rename(copying.inbox / f"{turn}.json")
        copying.run(archive=str(archive))
    assert sorted(file.name for file in archive.iterdir()) == ["0.json", "1.json"]
    assert [*copying.inbox.iterdir()] == []
    assert copying.ids() == [0, 1]
    with pytest.raises(Refused, match="a file that was read since epoch 0 is gone"):
        refuse_lost_files(look_at(copying.tree), 0)


def test_processed_files_are_deleted_unless_they_are_needed(copying: Copying, monkeypatch: pytest.MonkeyPatch) -> None:
    def die() -> None:
        raise Failed("planted", where="test", fix="none")

    copying.put("a.json", [1])
    with monkeypatch.context() as patch:
        before_calling("end_epoch", die, patch)
        with pytest.raises(Failed, match="planted"):
            copying.run(delete=True)
    assert (copying.inbox / "a.json").exists()  # the epoch is not in Spark's log, and comes again
    copying.run(delete=True)
    assert [*copying.inbox.iterdir()] == []
    copying.put("a.json", [5])
    with pytest.raises(Refused, match="was changed after it was read"):
        copying.run(delete=True)  # Spark would not read another file under the name of a processed one
    assert (copying.inbox / "a.json").exists()


def test_what_is_gone_for_long_is_forgotten(copying: Copying) -> None:
    def run_over(files: range, *, days_old: int) -> None:
        for number in files:  # so large that each is an epoch
            copying.put(f"{number}.json", [number], days_old=days_old, padding=" " * BYTES_PER_ROW)
        run_to_the_end(copying.job(delete=True), copying.place, keep_epochs=1, rows_per_epoch=1)

    run_over(range(8), days_old=100)
    run_over(range(8, 9), days_old=0)
    run_over(range(9, 10), days_old=0)  # now Spark makes a summary
    lines = (copying.place / "checkpoint" / "sources" / "0" / "9.compact").read_text().splitlines()
    kept = {json.loads(line)["path"].rpartition("/")[2] for line in lines[1:]}
    assert {"8.json", "9.json"} <= kept
    assert "0.json" not in kept
    copying.put("0.json", [10])
    copying.run(delete=True)
    assert copying.ids() == [*range(11)]


def test_a_pattern_has_the_files_that_hadoop_finds_with_it(tmp_path: Path, spark: SparkSession) -> None:
    names = (
        "a/orders/1",
        "a/pay/2",
        "b1/orders/x/3",
        "b2/pay",
        "c+/[x]/4",
        "{d}/5",
        "20/26/6",
        "2026/7",
        "a.b/8",
        "axb/9",
    )
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    patterns = (
        "*",
        "*/orders",
        "b?/*",
        "{a,b1/orders}/*",
        "[ab]*/pay",
        "[!a]*",
        "[^a-c]*",
        "20*",
        "*/",
        "a.b*",
        "c+/\\[*",
        "{20*,c+}",
    )
    for pattern in patterns:
        path = f"{tmp_path}/{pattern}"
        found = look_below([path], spark).files
        directory = ReadDirectory(FileSource(path=path, value="id INT"), where="here", passes=1)
        assert sorted(found) == sorted(str(tmp_path / name) for name in names if directory.has(str(tmp_path / name))), (
            path
        )
        assert found, path
