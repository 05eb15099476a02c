"""Small files become large ones, while a job writes and readers read; and no row is ever seen twice or missed."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lockgate.connectors.files.compaction import Compaction, Limits, Target, compact, run_compaction
from lockgate.connectors.files.filesystem import LocalSystem
from lockgate.connectors.files.manifest import DataFile, Group, Manifest, Replaced
from lockgate.connectors.files.reading import committed_files, read_files
from lockgate.connectors.files.store import FileStore
from lockgate.errors import BadJob, Failed, InvariantBroken, Moved, Refused
from support.filesjob import START, FilesJob, entry

NOW = timedelta(0)
_CANCELLED = 6


def filled(files_job: FilesJob, epochs: int = 4) -> None:
    store = files_job.store()
    for epoch in range(epochs):
        files_job.commit(store, epoch, [epoch])


def test_small_files_become_one_and_the_ledger_stays_as_it_is(files_job: FilesJob) -> None:
    filled(files_job)
    assert files_job.compact() == Compaction(replaced=4, written=1, deleted=0)
    assert len(committed_files(str(files_job.root))) == 1
    assert files_job.seen() == [0, 1, 2, 3]
    assert files_job.store().read() == entry(3)
    files_job.commit(files_job.store(), 4, [4])
    assert files_job.seen() == [0, 1, 2, 3, 4]


def test_files_of_different_partitions_stay_separate(files_job: FilesJob) -> None:
    store = files_job.store(partition_by=("k",))
    for epoch in range(3):
        files_job.commit(store, epoch, {"k=1": [epoch], "k=__HIVE_DEFAULT_PARTITION__": [10 + epoch]})
    files_job.commit(store, 3, {"k=lonely": [99]})
    assert files_job.compact() == Compaction(replaced=6, written=2, deleted=0)
    places = {
        Path(file).parent.name: Path(file).read_text().count("\n") for file in committed_files(str(files_job.root))
    }
    assert places == {"k=1": 3, "k=__HIVE_DEFAULT_PARTITION__": 3, "k=lonely": 1}


def test_large_files_and_what_would_come_out_as_many_files_are_left_alone(files_job: FilesJob) -> None:
    store = files_job.store()
    files_job.commit(store, 0, [1] * 200)  # larger than what counts as small
    files_job.commit(store, 1, [2] * 90)
    files_job.commit(store, 2, [3] * 90)  # two of them do not fit into one
    before = files_job.manifests()
    assert files_job.compact() == Compaction()
    assert files_job.manifests() == before


def test_files_that_were_written_in_another_way_stay_separate(files_job: FilesJob) -> None:
    filled(files_job, 2)
    other = files_job.store()
    for epoch in (2, 3):
        directory = other.fresh_directory(epoch)
        file = files_job.root / directory / "part-0.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"n": epoch, "m": 0}) + "\n")
        other.publish(other.seal(directory, "n INT, m INT"), entry(epoch), after=entry(epoch - 1))
    assert files_job.compact() == Compaction(replaced=4, written=2, deleted=0)
    assert [len(group.files) for group in files_job.log().read().groups] == [1, 1]
    assert files_job.seen() == [0, 1, 2, 3]


def test_replaced_files_stay_for_the_grace_period_and_are_deleted_after_it(files_job: FilesJob) -> None:
    filled(files_job)
    old = committed_files(str(files_job.root))
    files_job.compact()
    files_job.sweep(files_job.store())
    files_job.now = START + timedelta(minutes=59)
    assert files_job.compact() == Compaction()
    assert all(Path(file).exists() for file in old)
    files_job.now = START + timedelta(minutes=60)
    assert files_job.compact() == Compaction(replaced=0, written=0, deleted=4)
    assert not any(Path(file).exists() for file in old)
    assert len(files_job.data()) == 1
    assert files_job.log().read().replaced == ()
    assert files_job.compact() == Compaction()
    assert files_job.seen() == [0, 1, 2, 3]


def test_a_replaced_file_is_deleted_also_if_its_neighbours_still_count(files_job: FilesJob) -> None:
    store = files_job.store(partition_by=("k",))
    files_job.commit(store, 0, {"k=1": [0], "k=lonely": [9]})
    files_job.commit(store, 1, {"k=1": [1]})
    (old,) = (file for file in committed_files(str(files_job.root)) if "/0-" in file and "/k=1/" in file)
    assert files_job.compact() == Compaction(replaced=2, written=1, deleted=0)
    files_job.now += timedelta(hours=1)
    assert files_job.compact() == Compaction(replaced=0, written=0, deleted=2)
    assert not Path(old).exists()
    assert files_job.seen() == [0, 1, 9]


def test_what_waits_to_be_deleted_is_carried_on_by_the_snapshots_of_the_job(files_job: FilesJob) -> None:
    filled(files_job)
    files_job.compact()
    store = files_job.store()
    for epoch in range(4, 60):
        files_job.commit(store, epoch, [epoch])
    assert [one.path.split("/")[2].split("-")[0] for one in files_job.log().read().replaced] == ["0", "1", "2", "3"]
    files_job.now = START + timedelta(hours=2)
    assert files_job.compact().deleted == 4
    assert files_job.seen() == list(range(60))


def test_a_compaction_of_what_was_compacted_keeps_every_row(files_job: FilesJob) -> None:
    store = files_job.store()
    for epoch in range(12):
        files_job.commit(store, epoch, [epoch])
        files_job.now += timedelta(hours=1)
        files_job.compact(grace=NOW)
        assert files_job.seen() == list(range(epoch + 1))
    assert len(files_job.data()) <= 3


def test_the_job_and_compactions_race_and_no_row_is_lost_or_doubled(files_job: FilesJob) -> None:
    filled(files_job, 1)
    is_over = threading.Event()
    wrong: list[object] = []

    def compact_on() -> None:
        while not is_over.is_set():
            try:
                files_job.compact()
            except Failed:
                pass  # lost too often: nothing was changed
            except Exception as error:  # noqa: BLE001 - told by the test
                wrong.append(error)

    def read_on() -> None:
        while not is_over.is_set():
            seen = files_job.seen()
            if seen != list(range(len(seen))):
                wrong.append(seen)

    threads = [threading.Thread(target=work) for work in (compact_on, compact_on, read_on)]
    for thread in threads:
        thread.start()
    store = files_job.store()
    try:
        for epoch in range(1, 80):
            store.publish(files_job.stage(store, epoch, [epoch]), entry(epoch), after=entry(epoch - 1))
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert files_job.seen() == list(range(80))
    assert any("compact-" in file for file in committed_files(str(files_job.root)))


def test_a_compaction_continues_after_the_job_that_was_first(files_job: FilesJob) -> None:
    filled(files_job)

    class Overtaken(LocalSystem):
        times = 0

        def put(self, aside: str, place: str) -> bool:
            if self.times < 3:
                self.times += 1
                files_job.commit(files_job.store(), 3 + self.times, [3 + self.times])
            return super().put(aside, place)

    assert files_job.compact(system=Overtaken(files_job.root)).replaced == 4
    assert files_job.seen() == list(range(7))
    assert files_job.store().read() == entry(6)


class Paused(LocalSystem):
    """A process that stands still right after it has put its manifest in place, while others go on."""

    def __init__(self, files_job: FilesJob, meanwhile: Callable[[], None]) -> None:
        super().__init__(files_job.root)
        self._meanwhile: Callable[[], None] | None = meanwhile

    def put(self, aside: str, place: str) -> bool:
        is_ours = super().put(aside, place)
        if self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            meanwhile()
        return is_ours


def go_far_ahead(files_job: FilesJob, epoch: int) -> None:
    """Two snapshots and what is before them removed, also the manifest that the paused one had built on."""
    for number in range(epoch, epoch + 6, 2):
        files_job.commit(files_job.store(), number, [number])
        files_job.commit(files_job.store(), number + 1, [number + 1])
        files_job.compact()


def test_a_compaction_that_others_have_built_on_keeps_its_files(files_job: FilesJob) -> None:
    store = files_job.store()
    for epoch in range(4):
        files_job.commit(store, epoch, [epoch] * 30)  # together too large to be merged once more
    files_job.compact(system=Paused(files_job, lambda: go_far_ahead(files_job, 4)))
    assert files_job.seen() == [*sorted([0, 1, 2, 3] * 30), *range(4, 10)]


def test_a_commit_that_compactions_have_built_on_is_a_commit(files_job: FilesJob) -> None:
    filled(files_job)

    def meanwhile() -> None:
        assert files_job.compact().written == 1
        assert files_job.compact(grace=NOW).deleted == 5

    store = files_job.store(system=Paused(files_job, meanwhile))
    store.publish(files_job.stage(store, 4, [4]), entry(4), after=entry(3))
    assert files_job.seen() == list(range(5))
    assert files_job.store().read() == entry(4)


def test_of_two_compactions_of_the_same_files_one_takes_its_own_back_and_looks_again(files_job: FilesJob) -> None:
    filled(files_job)
    merges = 0

    def merge(chosen: Group, target: Target) -> None:
        nonlocal merges
        merges += 1
        if merges == 1:
            assert files_job.compact().written == 1
        files_job.merge(chosen, target)

    limits = Limits(smaller_bytes=1000, roll_bytes=1000, grace=timedelta(hours=1))
    assert run_compaction(files_job.system, files_job.job, limits, merge=merge, now=lambda: START) == Compaction()
    assert files_job.seen() == [0, 1, 2, 3]
    assert len([name for name in files_job.data() if name.startswith("compact-")]) == 1


def test_a_sweep_of_the_job_in_the_middle_takes_nothing_from_a_compaction(files_job: FilesJob) -> None:
    filled(files_job)

    def merge(chosen: Group, target: Target) -> None:
        files_job.merge(chosen, target)
        store = files_job.store()
        store.publish(None, replace(entry(3), run="run-2"), after=entry(3))
        files_job.sweep(store)

    limits = Limits(smaller_bytes=1000, roll_bytes=1000, grace=timedelta(hours=1))
    assert run_compaction(files_job.system, files_job.job, limits, merge=merge, now=lambda: START).written == 1
    assert files_job.seen() == [0, 1, 2, 3]


def test_a_driver_that_was_shut_out_stays_so_across_a_compaction(files_job: FilesJob) -> None:
    filled(files_job)
    store = files_job.store()
    staged = files_job.stage(store, 4, [4])
    store.publish(None, replace(entry(3), run="run-2"), after=entry(3))
    files_job.compact()
    with pytest.raises(Moved):
        store.publish(staged, entry(4), after=entry(3))
    assert files_job.seen() == [0, 1, 2, 3]


def test_the_files_of_a_dead_compaction_are_removed_after_a_day_and_those_of_a_running_one_stay(
    files_job: FilesJob,
) -> None:
    filled(files_job)

    def die(chosen: Group, target: Target) -> None:
        files_job.merge(chosen, target)
        raise KeyboardInterrupt

    limits = Limits(smaller_bytes=1000, roll_bytes=1000, grace=NOW)
    with pytest.raises(KeyboardInterrupt):
        run_compaction(files_job.system, files_job.job, limits, merge=die, now=lambda: START)
    (dead,) = [name for name in files_job.data() if name.startswith("compact-")]
    files_job.now = START + timedelta(hours=23)
    files_job.compact()
    assert dead in files_job.data()
    files_job.now = START + timedelta(hours=25)
    files_job.compact()
    assert dead not in files_job.data()
    assert files_job.seen() == [0, 1, 2, 3]


def test_a_compaction_that_took_half_a_day_gives_up_before_it_is_taken_for_dead(files_job: FilesJob) -> None:
    filled(files_job)

    def slow(chosen: Group, target: Target) -> None:
        files_job.merge(chosen, target)
        files_job.now = START + timedelta(hours=13)

    limits = Limits(smaller_bytes=1000, roll_bytes=1000, grace=NOW)
    before = files_job.manifests()
    with pytest.raises(Failed, match="treat it as dead"):
        run_compaction(files_job.system, files_job.job, limits, merge=slow, now=lambda: files_job.now)
    assert files_job.manifests() == before
    assert files_job.seen() == [0, 1, 2, 3]


def test_old_manifests_are_removed_along_the_way(files_job: FilesJob) -> None:
    filled(files_job, 101)
    files_job.compact()
    assert files_job.manifests() == [100, 101, 102]  # the fiftieth of the job, and the compaction's own
    assert files_job.seen() == list(range(101))


def test_a_file_that_counts_is_never_deleted_whatever_the_list_says(files_job: FilesJob) -> None:
    filled(files_job)
    history = files_job.log().read()
    spoilt = Manifest(
        sequence=history.sequence + 1,
        entry=entry(3),
        groups=history.groups,
        is_snapshot=True,
        replaced=(Replaced(history.files[0].path, "2020-01-01T00:00:00.000+00:00"),),
    )
    log = files_job.log()
    log.read()
    assert log.add(spoilt)
    with pytest.raises(InvariantBroken, match="counts, and is listed as replaced"):
        files_job.compact()
    assert files_job.seen() == [0, 1, 2, 3]


def test_a_job_without_manifests_is_refused(files_job: FilesJob) -> None:
    with pytest.raises(Refused, match="no manifests"):
        files_job.compact()


@pytest.mark.spark
def test_spark_merges_files_per_partition_and_keeps_every_value(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "out"
    store = FileStore(LocalSystem(root), "job", kind="parquet", partition_by=("k",), roll_bytes=1 << 20)
    expected = []
    for epoch in range(3):
        rows = [(epoch, "a/b=ü"), (10 + epoch, None), (20 + epoch, "")]
        expected += rows
        staged = store.stage({"out": spark.createDataFrame(rows, "n INT, k STRING").coalesce(1)}, epoch)
        store.publish(staged, entry(epoch), after=store.read())
    done = compact(spark, str(root), "job", smaller_than="1 MB", roll="1 MB", grace=timedelta(0))
    assert (done.replaced, done.written) == (6, 2)  # null and an empty text share a directory, and a file
    rows = [tuple(row) for row in read_files(spark, str(root)).collect()]
    assert sorted(rows, key=str) == sorted(expected, key=str)
    assert (
        compact(spark, str(root), "job", smaller_than="1 MB", roll="1 MB", grace=timedelta(0)).deleted == done.replaced
    )
    assert len(committed_files(str(root))) == done.written
    assert sorted((tuple(row) for row in read_files(spark, str(root)).collect()), key=str) == sorted(expected, key=str)
    with pytest.raises(BadJob, match="again and again"):
        compact(spark, str(root), "job", smaller_than="2 MB", roll="1 MB")


@pytest.mark.spark
def test_a_merge_that_is_cancelled_leaves_no_directory_behind(spark: SparkSession, tmp_path: Path) -> None:
    store = FileStore(LocalSystem(tmp_path), "job", kind="json", partition_by=(), roll_bytes=1 << 20)
    for epoch in range(60):
        directory = store.fresh_directory(epoch)
        (tmp_path / directory).mkdir(parents=True)
        (tmp_path / directory / "part-0.json").write_text(f'{{"n": {epoch}}}\n')
        store.publish(store.seal(directory, "n INT"), entry(epoch), after=store.read())
    data = tmp_path / "data" / "job"
    is_over = threading.Event()

    def cancel() -> None:
        while not is_over.wait(0.001):
            if any(data.glob("compact-*")):
                spark.sparkContext.cancelAllJobs()

    killer = threading.Thread(target=cancel)
    killer.start()
    try:
        for _ in range(_CANCELLED):
            with pytest.raises(Exception, match="cancelled"):
                compact(spark, str(tmp_path), "job", smaller_than="1 MB", roll="1 MB")
    finally:
        is_over.set()
        killer.join()
    assert list(data.glob("compact-*")) == []


HOSTILE = ("../victim", "{outside}/victim", "data/payments/0-a/../../../../victim", "data/other/0-a/part-0", "", "a\0b")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_manifest_that_names_a_path_outside_deletes_nothing(files_job: FilesJob, name: str) -> None:
    filled(files_job)
    files_job.compact()
    victim = files_job.root.parent / "victim"
    victim.write_text("precious")
    (files_job.root / "data" / "other" / "0-a").mkdir(parents=True)
    other = files_job.root / "data" / "other" / "0-a" / "part-0"
    other.write_text("of another job")
    path = name.replace("{outside}", str(files_job.root.parent))
    forge(files_job, replaced=(Replaced(path=path, since=START.isoformat()),))
    files_job.now = START + timedelta(days=2)
    with pytest.raises(InvariantBroken, match="does not lie in data/payments"):
        files_job.compact()
    assert victim.read_text() == "precious"
    assert other.read_text() == "of another job"


def test_a_manifest_that_counts_a_file_outside_is_not_read(files_job: FilesJob) -> None:
    filled(files_job, 2)
    (files_job.root.parent / "secret").write_text('{"n": 7}\n')
    forge(files_job, groups=(Group("json", "n INT", (), (DataFile("data/payments/../../../secret", 9),)),))
    with pytest.raises(InvariantBroken, match="does not lie in data/payments"):
        files_job.seen()


def test_a_file_behind_a_link_is_neither_read_nor_deleted(files_job: FilesJob) -> None:
    filled(files_job)
    outside = files_job.root.parent / "outside"
    outside.mkdir()
    (outside / "part-0.json").write_text('{"n": 7}\n')
    (files_job.root / "data" / "payments" / "9-abc").symlink_to(outside)
    path = "data/payments/9-abc/part-0.json"
    forge(files_job, replaced=(Replaced(path=path, since=START.isoformat()),))
    files_job.now = START + timedelta(days=2)
    with pytest.raises(InvariantBroken, match="'data/payments/9-abc' is a link"):
        files_job.compact()
    assert (outside / "part-0.json").exists()


def test_a_link_among_the_leftovers_is_removed_and_what_it_leads_to_stays(files_job: FilesJob) -> None:
    filled(files_job)
    outside = files_job.root.parent / "outside"
    outside.mkdir()
    (outside / "_files.json").write_text("precious")
    (files_job.root / "data" / "payments" / "9-abc").symlink_to(outside)
    (files_job.root / "data" / "payments" / "compact-20200101T000000Z-ab").symlink_to(outside)
    files_job.sweep(files_job.store())
    files_job.compact()
    assert [name for name in files_job.data() if name.startswith("9-") or "2020" in name] == []
    assert (outside / "_files.json").read_text() == "precious"


def test_a_directory_that_no_compaction_has_named_is_left_alone(files_job: FilesJob) -> None:
    filled(files_job)
    (files_job.root / "data" / "payments" / "compact-of-somebody").mkdir()
    assert files_job.compact().replaced == 4
    assert "compact-of-somebody" in files_job.data()


def forge(files_job: FilesJob, *, groups: tuple[Group, ...] = (), replaced: tuple[Replaced, ...] = ()) -> None:
    """Write the next manifest, as anybody can who may write to the directory."""
    history = files_job.log().read()
    assert history.entry is not None
    forged = Manifest(
        sequence=history.sequence + 1,
        entry=history.entry,
        groups=history.groups + groups,
        is_snapshot=True,
        replaced=replaced,
    )
    (files_job.root / "_lockgate" / files_job.job / f"{forged.sequence:020}.json").write_bytes(forged.to_bytes())
