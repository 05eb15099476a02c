"""The laws of a resource, kept by a directory: whole, once, behind the ledger that was seen, and never half."""

import errno
import hashlib
import json
import os
import resource
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockgate.commit.ledger import Entry
from lockgate.connectors.files.filesystem import LocalSystem
from lockgate.connectors.files.store import FileStore, check_place, directory_of, rows_within
from lockgate.errors import EpochFailed, InvariantBroken, Moved, Refused
from support.filesjob import FilesJob, entry
from support.process import program, run


def test_what_is_staged_is_not_seen_and_what_is_published_is_seen_whole_once(files_job: FilesJob) -> None:
    store = files_job.store(partition_by=("k",))
    store.publish(None, entry(None), after=None)
    staged = files_job.stage(store, 0, {"k=1": [1, 2], "k=2": [3]})
    assert files_job.seen() == []
    assert store.read() == entry(None)
    store.publish(staged, entry(0), after=entry(None))
    assert files_job.seen() == [1, 2, 3]
    assert store.read() == files_job.store().read() == entry(0)


def test_an_empty_ledger_says_nothing(files_job: FilesJob) -> None:
    assert files_job.store().read() is None


@pytest.mark.parametrize("after", [None, entry(1), entry(0, run="another")])
def test_a_publish_behind_another_ledger_changes_nothing(files_job: FilesJob, after: Entry | None) -> None:
    store = files_job.store()
    files_job.commit(store, 0, [0])
    staged = files_job.stage(store, 1, [1])
    before = files_job.manifests()
    with pytest.raises(Moved, match="epoch 0 by run run-1"):
        store.publish(staged, entry(1), after=after)
    assert files_job.seen() == [0]
    assert files_job.manifests() == before
    store.publish(staged, entry(1), after=entry(0))
    assert files_job.seen() == [0, 1]


def test_staging_again_under_the_same_number_is_something_else(files_job: FilesJob) -> None:
    store = files_job.store()
    one, two = files_job.stage(store, 0, [1]), files_job.stage(store, 0, [2])
    assert one != two
    store.publish(two, entry(0), after=None)
    assert files_job.seen() == [2]


def test_after_a_sweep_only_what_was_kept_can_still_be_published(files_job: FilesJob) -> None:
    store = files_job.store()
    files_job.commit(store, 0, [0])
    swept, kept = files_job.stage(store, 1, [10]), files_job.stage(store, 1, [1])
    files_job.sweep(files_job.store(), keep=[kept])
    with pytest.raises(EpochFailed, match="removed"):
        store.publish(swept, entry(1), after=entry(0))
    assert store.read() == entry(0)
    store.publish(kept, entry(1), after=entry(0))
    assert files_job.seen() == [0, 1]
    files_job.sweep(store)
    assert files_job.seen() == [0, 1]
    assert len(files_job.data()) == 2


def test_what_was_staged_after_the_look_is_not_touched(files_job: FilesJob) -> None:
    store = files_job.store()
    old = files_job.stage(store, 0, [-1])
    leftovers = store.leftovers()
    new = files_job.stage(files_job.store(), 0, [0])
    store.remove(leftovers)
    with pytest.raises(EpochFailed, match="removed"):
        store.publish(old, entry(0), after=None)
    store.publish(new, entry(0), after=None)
    assert files_job.seen() == [0]


def test_what_was_left_over_and_is_published_in_between_stays(files_job: FilesJob) -> None:
    store = files_job.store()
    staged, dead = files_job.stage(store, 0, [0]), files_job.stage(store, 0, [-1])
    leftovers = store.leftovers()
    assert set(leftovers) == {directory_of(staged), directory_of(dead)}
    files_job.store().publish(staged, entry(0), after=None)  # a follower finishes what was decided, then removes
    store.remove(leftovers)
    assert files_job.seen() == [0]
    assert len(files_job.data()) == 1
    assert store.leftovers() == ()


def test_a_sweep_leaves_other_jobs_and_compactions_alone_and_takes_what_was_left_aside(files_job: FilesJob) -> None:
    store, other = files_job.store(), FilesJob(files_job.root, job="another")
    files_job.commit(store, 0, [0])
    other.stage(other.store(), 0, [1])
    (files_job.root / "data" / files_job.job / "compact-20260101T000000Z-ab").mkdir()
    aside = files_job.root / "_lockgate" / files_job.job / ".aside-ab-1.json"
    aside.write_text("half")
    files_job.sweep(store)
    assert other.data() != []
    assert "compact-20260101T000000Z-ab" in files_job.data()
    assert not aside.exists()


def test_a_claim_moves_the_ledger_and_shows_nothing(files_job: FilesJob) -> None:
    store = files_job.store()
    files_job.commit(store, 0, [0])
    claimed = replace(entry(0), run="run-2")
    store.publish(None, claimed, after=entry(0))
    assert store.read() == claimed
    assert files_job.seen() == [0]


def test_an_epoch_without_rows_moves_the_ledger(files_job: FilesJob) -> None:
    store = files_job.store()
    files_job.commit(store, 0, [])
    assert store.read() == entry(0)
    assert files_job.seen() == []


def test_what_is_published_cannot_be_shown_twice(files_job: FilesJob) -> None:
    store = files_job.store()
    staged = files_job.commit(store, 0, [0])
    with pytest.raises(InvariantBroken, match="visible twice"):
        store.publish(staged, entry(1), after=entry(0))
    assert files_job.seen() == [0]


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize(("spoil", "told"), [(Path.unlink, "is gone"), (_cut, "bytes, not")])
def test_a_staged_file_that_is_not_there_in_full_is_not_published(
    files_job: FilesJob, spoil: Callable[[Path], None], told: str
) -> None:
    store = files_job.store()
    staged = files_job.stage(store, 0, [1, 2])
    (file,) = (files_job.root / directory_of(staged)).glob("part-*")
    spoil(file)
    with pytest.raises(EpochFailed, match=told):
        store.publish(staged, entry(0), after=None)
    assert files_job.manifests() == []


def test_a_list_that_was_changed_is_not_published(files_job: FilesJob) -> None:
    store = files_job.store()
    staged = files_job.stage(store, 0, [1])
    (files_job.root / directory_of(staged) / "_files.json").write_text("{}")
    with pytest.raises(EpochFailed, match="not the one that was staged"):
        store.publish(staged, entry(0), after=None)


def test_a_file_that_came_after_the_sealing_does_not_count(files_job: FilesJob) -> None:
    store = files_job.store()
    staged = files_job.stage(store, 0, [1])
    (files_job.root / directory_of(staged) / "part-9.json").write_text('{"n": 9}\n')
    store.publish(staged, entry(0), after=None)
    assert files_job.seen() == [1]


def test_of_two_drivers_that_saw_the_same_ledger_one_wins(files_job: FilesJob) -> None:
    files_job.commit(files_job.store(), 0, [])
    last = entry(0)
    for epoch in range(1, 21):
        gate = threading.Barrier(4)
        ends: list[Any] = []

        def drive(
            number: int, epoch: int = epoch, last: Entry = last, gate: Any = gate, ends: list[Any] = ends
        ) -> None:
            store = files_job.store()
            staged = files_job.stage(store, epoch, [10 * epoch + number])
            gate.wait()
            try:
                store.publish(staged, entry(epoch, run=f"run-{number}"), after=last)
                ends.append(number)
            except Moved:
                ends.append(None)

        threads = [threading.Thread(target=drive, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(ends) == 4
        (winner,) = [end for end in ends if end is not None]
        last = entry(epoch, run=f"run-{winner}")
        assert files_job.store().read() == last
        assert files_job.seen()[-1] == 10 * epoch + winner
    assert len(files_job.seen()) == 20


def test_a_zombie_that_slept_while_manifests_were_pruned_does_not_win_an_old_number(files_job: FilesJob) -> None:
    store, zombie = files_job.store(), files_job.store()
    files_job.commit(store, 0, [0])
    assert zombie.read() == entry(0)
    staged = files_job.stage(zombie, 1, [-1])
    for epoch in range(1, 101):
        files_job.commit(store, epoch, [epoch])
    files_job.log().prune()
    assert 2 not in files_job.manifests()
    with pytest.raises(Moved):
        zombie.publish(staged, entry(1), after=entry(0))
    assert files_job.manifests()[0] == 50
    assert files_job.seen() == list(range(101))


def test_a_zombie_that_wakes_up_between_its_look_and_its_link_takes_the_old_number_back(files_job: FilesJob) -> None:
    store = files_job.store()
    files_job.commit(store, 0, [0])

    class Sleepy(LocalSystem):
        """Sleeps before it puts a manifest in place, and the world goes on."""

        def put(self, aside: str, place: str) -> bool:
            if place.endswith(f"{2:020}.json"):
                for epoch in range(1, 101):
                    files_job.commit(store, epoch, [epoch])
                files_job.log().prune()
            return super().put(aside, place)

    zombie = files_job.store(system=Sleepy(files_job.root))
    staged = files_job.stage(zombie, 1, [-1])
    with pytest.raises(Moved):
        zombie.publish(staged, entry(1), after=entry(0))
    assert files_job.manifests()[0] == 50
    assert files_job.seen() == list(range(101))


def test_a_publish_continues_after_a_compaction_that_came_in_between(files_job: FilesJob) -> None:
    store = files_job.store()
    for epoch in range(3):
        files_job.commit(store, epoch, [epoch])

    class Overtaken(LocalSystem):
        """A compaction takes the number that a publish was about to take, once."""

        is_overtaken = False

        def put(self, aside: str, place: str) -> bool:
            if not self.is_overtaken:
                self.is_overtaken = True
                assert files_job.compact().written == 1
            return super().put(aside, place)

    job = files_job.store(system=Overtaken(files_job.root))
    staged = files_job.stage(job, 3, [3])
    job.publish(staged, entry(3), after=entry(2))
    assert files_job.seen() == [0, 1, 2, 3]
    assert files_job.manifests() == [1, 2, 3, 4, 5]


def test_a_full_disk_at_any_moment_leaves_no_half_manifest(
    files_job: FilesJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = files_job.store()
    files_job.commit(store, 0, [0])
    staged = files_job.stage(store, 1, [1])
    fsync = os.fsync
    failures = 0
    for moment in range(1, 20):
        left = moment

        def full(handle: int) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            fsync(handle)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            try:
                files_job.store().publish(staged, entry(1), after=entry(0))
            except EpochFailed:
                failures += 1
        # The ledger says whether it is out: whole, or not at all.
        assert files_job.seen() == ([0, 1] if files_job.store().read() == entry(1) else [0])
        if left > 0:
            break
    assert failures >= 2
    assert files_job.seen() == [0, 1]


def test_a_file_size_limit_is_reported_and_nothing_is_left(files_job: FilesJob) -> None:
    store = files_job.store()
    staged = files_job.stage(store, 0, {f"k={k}": [k] for k in range(100)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # Python ignores the signal, and gets EFBIG
    try:
        with pytest.raises(EpochFailed, match=r"File too large") as caught:
            store.publish(staged, entry(0), after=None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "room" in caught.value.fix
    assert list((files_job.root / "_lockgate" / files_job.job).iterdir()) == []
    store.publish(staged, entry(0), after=None)
    assert len(files_job.seen()) == 100


@pytest.mark.process
@pytest.mark.parametrize("scenario", ["publish", "compact"])
def test_a_kill_at_any_moment_leaves_an_epoch_whole_or_unseen(scenario: str, tmp_path: Path) -> None:
    done = run(*program("file_kills", scenario, tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    kills = int(done.stdout)
    assert kills >= 10
    ends = set()
    for number in range(1, kills + 2):
        files_job = FilesJob(tmp_path / str(number))
        ends.add(_recover(files_job, scenario))
    # Both sides of the decision were reached.
    assert len(ends) == 2


def _recover(files_job: FilesJob, scenario: str) -> object:
    """What a new run does after a kill; the end says on which side of the decision the kill was."""
    store = files_job.store()
    seen = store.read()
    assert seen is not None
    assert seen in (entry(2), entry(3))
    assert files_job.seen() == list(range(3 if seen == entry(2) else 4))
    is_merged = any(
        name.startswith("compact-") for file in files_job.log().read().files for name in [file.path.split("/")[2]]
    )
    staged = (files_job.root / "staged").read_text()
    claimed = replace(seen, run="run-2")
    store.publish(None, claimed, after=seen)
    files_job.sweep(store, keep=() if seen == entry(3) else (staged,))
    if seen == entry(2):
        store.publish(staged, entry(3, run="run-2"), after=claimed)
    assert files_job.seen() == [0, 1, 2, 3]
    files_job.compact()
    assert files_job.seen() == [0, 1, 2, 3]
    # Nothing is left over: each directory is named, or belongs to a compaction that died today.
    named = {directory.rsplit("/", 1)[1] for directory in files_job.log().read().directories}
    assert {name for name in files_job.data() if not name.startswith("compact-")} <= named
    assert not [name for name in files_job.system.names(f"_lockgate/{files_job.job}") if name.startswith(".")]
    return seen.epoch if scenario == "publish" else is_merged


def test_a_name_of_another_kind_of_sink_is_reported(files_job: FilesJob) -> None:
    for name in ("copy-7", "[]", "{}"):
        with pytest.raises(InvariantBroken, match="not a name under which files are staged"):
            files_job.store().publish(name, entry(0), after=None)


def test_names_stay_short_however_many_files_there_are(files_job: FilesJob) -> None:
    staged = files_job.stage(files_job.store(), 0, {f"k={k}": [k] for k in range(500)})
    assert len(staged) < 300  # it goes into the ledger of another system


@pytest.mark.parametrize("left", ["part-0.parquet", "day=1/part-0.parquet", "data/part-0.json"])
def test_a_directory_that_was_filled_before_is_refused(files_job: FilesJob, left: str) -> None:
    file = files_job.root / left
    file.parent.mkdir(parents=True)
    file.write_text("x")
    with pytest.raises(Refused, match="that no manifest names") as caught:
        check_place(files_job.system, "output 'files'")
    assert "move these files" in caught.value.fix


def test_a_directory_of_ours_is_opened_again_and_nothing_is_left_of_the_look(files_job: FilesJob) -> None:
    check_place(files_job.system, "here")
    files_job.commit(files_job.store(), 0, [0])
    check_place(files_job.system, "here")
    assert files_job.system.names("_lockgate") == [files_job.job]
    assert files_job.system.names("") == ["_lockgate", "data"]


@pytest.fixture
def overwriting(files_job: FilesJob) -> Iterator[FileStore]:
    class Overwriting(LocalSystem):
        """What many object stores do."""

        def put(self, aside: str, place: str) -> bool:
            os.replace(files_job.root / aside, files_job.root / place)  # noqa: PTH105
            return True

    files_job.system = Overwriting(files_job.root)
    return iter(())


@pytest.mark.usefixtures("overwriting")
def test_a_disk_that_lets_files_be_replaced_is_found_out(files_job: FilesJob) -> None:
    with pytest.raises(Refused, match="two drivers could both commit"):
        check_place(files_job.system, "here")


def test_a_path_that_is_a_file_or_a_disk_without_links_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(Refused, match="Not a directory"):
        check_place(LocalSystem(tmp_path / "file"), "here")

    def no_links(source: Any, target: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(Refused, match="not permitted") as caught:
        check_place(LocalSystem(tmp_path / "out"), "here")
    assert "hard links" in caught.value.fix


def test_files_are_cut_after_as_many_rows_as_fit() -> None:
    assert rows_within(1000, 10.0) == 100
    assert rows_within(5, 10.0) == 1


def test_the_size_of_a_row_is_measured_and_carried_on(files_job: FilesJob) -> None:
    store = files_job.store()
    files_job.commit(store, 0, [1] * 50)
    assert files_job.log().read().row_bytes == len('{"n": 1}\n')
    files_job.commit(store, 1, [])
    store.publish(None, replace(entry(1), run="run-2"), after=entry(1))
    assert files_job.log().read().row_bytes == len('{"n": 1}\n')


@pytest.mark.parametrize(
    "directory", ["../victim", "/tmp", "data/payments", "data/payments/../../x", "data/a/b/c", "data/other/0-a", "", 7]
)
def test_a_name_in_a_ledger_that_leads_elsewhere_is_not_published(files_job: FilesJob, directory: object) -> None:
    staged = json.dumps({"directory": directory, "files": 1, "digest": "d"})
    with pytest.raises(InvariantBroken, match="not a name under which files are staged"):
        files_job.store().publish(staged, entry(0), after=None)


def test_a_staged_list_that_names_files_elsewhere_is_not_published(files_job: FilesJob) -> None:
    store = files_job.store()
    staged = json.loads(files_job.stage(store, 0, [1]))
    listed = files_job.root / staged["directory"] / "_files.json"
    facts = json.loads(listed.read_bytes())
    facts["files"][0][0] = "data/other/0-a/part-0.json"
    content = json.dumps(facts).encode()
    listed.write_bytes(content)
    staged["digest"] = hashlib.sha256(content).hexdigest()
    with pytest.raises(EpochFailed, match="does not lie in"):
        store.publish(json.dumps(staged), entry(0), after=None)
