"""What cleaning, going back and a savepoint take of a checkpoint's files."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.checkpoints.cleaning import find_old_checkpoints, plan_cleaning, remove_all
from lockgate.checkpoints.history import look_at, refuse_unreachable
from lockgate.checkpoints.laterepochs import later_files, refuse_lost_files
from lockgate.checkpoints.positions import check_topics, refuse_lost, refuse_other_files
from lockgate.checkpoints.savepoints import Savepoint, lay_out, read_savepoint, take_savepoint
from lockgate.checkpoints.tree import Entry as File
from lockgate.checkpoints.tree import LocalTree
from lockgate.commit.ledger import Entry
from lockgate.connectors.files.source import FileSource
from lockgate.connectors.kafka.source import KafkaSource
from lockgate.connectors.local.socket import SocketSource
from lockgate.errors import CheckpointDamaged, Refused
from support.checkpoints import make_checkpoint, make_old, snapshot

NOW = datetime.now(UTC)


def names(tree: LocalTree) -> set[str]:
    return {entry.name for entry in tree.entries()}


def test_what_kept_epochs_need_stays_and_the_rest_goes(tmp_path: Path) -> None:
    tree = make_checkpoint(tmp_path / "c", job="j")
    before = names(tree)
    cleaning = plan_cleaning(look_at(tree), 4, NOW)  # epochs 8 to 11; 8 is loaded from snapshot 6, 7.. 9.changelog
    assert cleaning.kept == (8, 9, 10, 11)
    remove_all(tree, cleaning.files)
    left = names(tree)
    assert {name for name in left if name.startswith(("offsets", "commits"))} == {
        *(f"offsets/{epoch}" for epoch in range(7, 12)),
        *(f"commits/{epoch}" for epoch in range(8, 12)),
    }
    store = {name.removeprefix("state/0/0/") for name in left if name.startswith("state/0/0/")}
    assert store == {
        *(f"{version}.changelog" for version in range(6, 13)),
        *("6.zip", "10.zip", "SSTs/6.sst", "SSTs/10.sst"),
    }
    assert {name for name in left if name.startswith("tables")} == {
        *("tables/cards/middle.parquet", "tables/cards/new.parquet"),
        *("tables/cards/epochs/5", "tables/cards/epochs/11"),
    }
    gone = before - left
    assert not [name for name in gone if not name.startswith(("offsets/", "commits/", "state/0/", "tables/"))]
    assert look_at(tree).reachable == [8, 9, 10, 11]
    assert plan_cleaning(look_at(tree), 4, NOW).files == ()


def test_no_epoch_that_is_planned_goes_and_one_is_always_kept(tmp_path: Path) -> None:
    tree = make_checkpoint(tmp_path / "c", job="j", planned=13)
    remove_all(tree, plan_cleaning(look_at(tree), 1, NOW).files)
    history = look_at(tree)
    assert (history.planned, history.committed, history.reachable) == ([10, 11, 12], [11], [11])
    with pytest.raises(Refused, match="--keep is 0"):
        plan_cleaning(history, 0, NOW)


def test_leftovers_are_removed_only_when_no_process_can_be_writing_them(tmp_path: Path) -> None:
    tree = make_checkpoint(tmp_path / "c", job="j")
    uuid = "6402afb3-b9d9-4f89-917c-db9940d77b87"
    old = [
        f"offsets/.12.{uuid}.tmp",
        "tables/cards/.aside-abc-new.parquet",
        "state/0/0/SSTs/orphan.sst",
        "commits/.77.crc",
    ]
    for name in old:
        make_old(tree, name)
        tree.write(name.replace("12", "13").replace("abc", "abd").replace("orphan", "young").replace("77", "78"), b"x")
    stays = ["own-notes.txt", "state/0/0/notes", "offsets/readme"]
    for name in stays:
        make_old(tree, name)
    (part,) = (part for part in plan_cleaning(look_at(tree), 100, NOW).parts if part.what.startswith("leftovers"))
    assert {*part.files} == {*old}


def test_a_checkpoint_whose_last_epoch_is_not_whole_is_not_cleaned(tmp_path: Path) -> None:
    tree = make_checkpoint(tmp_path / "c", job="j")
    tree.remove("state/0/1/11.changelog")
    assert look_at(tree).reachable == list(range(10))
    with pytest.raises(CheckpointDamaged, match="files of epoch 11"):
        plan_cleaning(look_at(tree), 2, NOW)
    tree.remove("commits")
    with pytest.raises(Refused, match="no epoch is done"):
        plan_cleaning(look_at(tree), 2, NOW)


@pytest.mark.parametrize("harm", ["missing", "cut", "unreadable"])
def test_a_snapshot_that_lacks_a_table_is_never_relied_on(tmp_path: Path, harm: str) -> None:
    tree = make_checkpoint(tmp_path / "c", job="j")
    if harm == "missing":
        tree.remove("state/0/1/SSTs/10.sst")
    elif harm == "cut":
        tree.write("state/0/1/SSTs/10.sst", b"ss")
    else:
        tree.write("state/0/1/10.zip", b"PK")
    history = look_at(tree)
    assert history.reachable == list(range(12)), "snapshot 6 and the changes since will do"
    with pytest.raises(CheckpointDamaged, match=r"state/0/1/10.zip cannot be loaded.*; nothing is removed"):
        plan_cleaning(history, 1, NOW)
    assert "state/0/1/10.zip" in later_files(history, 10, keeps_next=True), "Spark would take it first"
    assert "state/0/0/10.zip" not in later_files(history, 10, keeps_next=True)
    place, checkpoint = LocalTree(tmp_path / "saved"), Checkpoint(root=tree.root)
    saved = take_savepoint(tree, checkpoint, place, job="j", ledger=None, now=NOW, is_live=False)
    listed = {file.name.removeprefix("state/0/1/") for file in saved.files if file.name.startswith("state/0/1/")}
    assert listed == {"6.zip", "SSTs/6.sst", *(f"{version}.changelog" for version in range(7, 13))}
    tree.remove("state/0/1/10.zip")
    remove_all(tree, plan_cleaning(look_at(tree), 1, NOW).files)
    left = {name.removeprefix("state/0/1/") for name in names(tree) if name.startswith("state/0/1/")}
    assert left - {"SSTs/10.sst"} == {"6.zip", "SSTs/6.sst", *(f"{version}.changelog" for version in range(6, 13))}
    assert look_at(tree).reachable == [11]


def test_changes_are_no_substitute_for_snapshots_that_all_lack_their_tables(tmp_path: Path) -> None:
    tree = make_checkpoint(tmp_path / "c", job="j")
    for version in (2, 6, 10):
        tree.remove(f"state/0/1/SSTs/{version}.sst")
    history = look_at(tree)
    assert history.reachable == [0]
    for change in (
        lambda: plan_cleaning(history, 1, NOW),
        lambda: refuse_unreachable(history, 10),
        lambda: take_savepoint(
            tree, Checkpoint(root=tree.root), LocalTree(tmp_path / "s"), job="j", ledger=None, now=NOW, is_live=False
        ),
    ):
        with pytest.raises((CheckpointDamaged, Refused), match=r"epoch 1[01]"):
            change()
    assert not (tmp_path / "s").exists()


def test_an_old_snapshot_whose_tables_went_first_stops_no_cleaning(tmp_path: Path) -> None:
    tree = make_checkpoint(tmp_path / "c", job="j")
    tree.remove("state/0/1/SSTs/2.sst")  # as Spark does it, when it is killed meanwhile
    tree.write("state/0/0/2.zip", b"PK")
    remove_all(tree, plan_cleaning(look_at(tree), 4, NOW).files)
    assert not {"state/0/0/2.zip", "state/0/1/2.zip"} & names(tree)
    assert look_at(tree).reachable == [8, 9, 10, 11]


def test_an_operator_that_keeps_several_kinds_of_rows_needs_a_snapshot(tmp_path: Path) -> None:
    tree = make_checkpoint(tmp_path / "c", job="j", epochs=4)
    info = {"storeName": "default", "numPartitions": 2}
    noted = {"operatorInfo": {"operatorName": "transformWithStateInPySparkExec"}, "stateStoreInfo": [info]}
    tree.write("state/0/_metadata/v2/0", f"v2\n{json.dumps(noted)}".encode())
    assert look_at(tree).reachable == [1, 2, 3]
    for partition in range(2):
        tree.remove(f"state/0/{partition}/2.zip")
    assert look_at(tree).reachable == []


def test_partitions_that_no_kept_epoch_has_go_as_a_whole(tmp_path: Path) -> None:
    tree = make_checkpoint(tmp_path / "c", job="j", planned=13)
    offsets = tree.read("offsets/9") or b""
    fewer = offsets.replace(b'partitions": "2"', b'partitions": "1"')
    for epoch in (9, 10, 11, 12):
        tree.write(f"offsets/{epoch}", fewer)
    for version in (10, 11, 12):
        tree.remove(f"state/0/1/{version}.changelog")
    tree.remove("state/0/1/10.zip")
    assert look_at(tree).reachable == list(range(12))

    def gone(keep: int) -> list[str]:
        return [name for name in plan_cleaning(look_at(tree), keep, NOW).files if name.startswith("state/0/1/")]

    assert "state/0/1/9.changelog" not in gone(4), "epoch 8 needs it"
    everything = [name for name in names(tree) if name.startswith("state/0/1/")]
    assert sorted(gone(3)) == sorted(everything)
    tree.write("offsets/12", offsets)  # planned with two again, and perhaps written already
    assert gone(3) == []


@pytest.mark.parametrize("gone", ["state/0/1", "state/0"])
def test_a_store_that_is_gone_as_a_whole_is_missed(tmp_path: Path, gone: str) -> None:
    tree = make_checkpoint(tmp_path / "c", job="j", epochs=4)
    for partition in range(2):
        for version in range(1, 5):
            tree.write(f"state/1/{partition}/{version}.changelog", b"changes")
    assert look_at(tree).reachable == [0, 1, 2, 3]
    info = {"storeName": "default", "numPartitions": 2}
    noted = {"operatorInfo": {"operatorName": "transformWithStateInPySparkExec"}, "stateStoreInfo": [info]}
    tree.write("state/0/_metadata/v2/0", f"v2\n{json.dumps(noted)}".encode())
    tree.remove(gone)
    with pytest.raises(CheckpointDamaged, match="files of epoch 3"):
        plan_cleaning(look_at(tree), 2, NOW)


def test_an_operator_that_takes_all_rows_together_has_one_store(tmp_path: Path) -> None:
    tree = make_checkpoint(tmp_path / "c", job="j", epochs=4)
    for version in range(1, 5):
        tree.write(f"state/1/0/{version}.changelog", b"changes")
    assert look_at(tree).reachable == [0, 1, 2, 3]


def test_an_epoch_needs_only_the_stores_that_it_had(tmp_path: Path) -> None:
    tree = make_checkpoint(tmp_path / "c", job="j", epochs=4)
    tree.write("state/0/2/4.zip", snapshot())  # one more partition, since epoch 3
    offsets = tree.read("offsets/3")
    assert offsets is not None
    tree.write("offsets/3", offsets.replace(b'partitions": "2"', b'partitions": "3"'))
    assert look_at(tree).reachable == [0, 1, 2, 3]


def test_a_checkpoint_from_before_a_reset_is_listed_separately(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "c", job="j")
    make_checkpoint(tmp_path / "c.before-20260131T120000Z", job="j", epochs=1)
    make_checkpoint(tmp_path / "c.before-20260131T120001Z", job=None, epochs=1)
    make_checkpoint(tmp_path / "c.before-20260131T120002Z", job="j", epochs=1).write("photos/cat.jpg", b"x")
    make_checkpoint(tmp_path / "c.before-now", job="j", epochs=1)
    make_checkpoint(tmp_path / "c.restoring-0123abcd", job="j", epochs=1)
    lives = {life.name[-3:]: life.trouble for life in find_old_checkpoints(LocalTree(tmp_path), "c", "j")}
    assert lives == {
        "00Z": None,
        "01Z": "it carries no marker of job 'j'",
        "02Z": "it holds other files, too: photos",
        "bcd": None,
    }


def test_going_back_takes_out_all_that_came_later(tmp_path: Path) -> None:
    tree = make_checkpoint(tmp_path / "c", job="j", planned=13)
    tree.write("state/0/_metadata/v2/9", b"v2\n{}")
    history = look_at(tree)
    files = later_files(history, 8, keeps_next=False)
    assert files[-7:] == (
        *("offsets/12", "commits/11", "offsets/11", "commits/10", "offsets/10", "commits/9", "offsets/9"),
    )
    assert {name for name in files if name.startswith("state/0/1/")} == {
        *("state/0/1/10.changelog", "state/0/1/11.changelog", "state/0/1/12.changelog", "state/0/1/10.zip"),
    }
    assert {"tables/cards/epochs/11", "state/0/_metadata/v2/9"} <= {*files}
    remove_all(tree, files)
    after = look_at(tree)
    assert (after.planned[-1], after.committed[-1], after.reachable[-1]) == (8, 8, 8)


def test_going_back_by_one_keeps_the_offsets_of_the_next(tmp_path: Path) -> None:
    tree = make_checkpoint(tmp_path / "c", job="j", planned=13)
    remove_all(tree, later_files(look_at(tree), 10, keeps_next=True))
    after = look_at(tree)
    assert (after.planned[-1], after.committed[-1]) == (11, 10)
    assert tree.exists("tables/cards/epochs/11")
    assert not tree.exists("state/0/0/12.changelog")
    assert tree.exists("state/0/0/11.changelog")


def test_an_epoch_that_is_gone_is_refused_and_the_oldest_is_named(tmp_path: Path) -> None:
    tree = make_checkpoint(tmp_path / "c", job="j")
    remove_all(tree, plan_cleaning(look_at(tree), 3, NOW).files)
    history = look_at(tree)
    refuse_unreachable(history, 9)
    with pytest.raises(Refused, match="has lost parts of epoch 8") as old:
        refuse_unreachable(history, 8)
    assert "epoch 9, the oldest one that is complete, or to a later one, up to 11" in old.value.fix
    with pytest.raises(Refused, match="epoch 12 is not done yet"):
        refuse_unreachable(history, 12)


def test_files_that_were_read_since_must_be_there_to_be_read_again(tmp_path: Path) -> None:
    tree = make_checkpoint(tmp_path / "c", job="j", epochs=3)
    for epoch in range(3):
        tree.write(f"offsets/{epoch}", f'v1\n{{}}\n{{"logOffset":{epoch}}}'.encode())
        file = tmp_path / "in" / f"{epoch} a.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text("{}")
        line = json.dumps({"path": f"file://{file.parent}/{epoch}%20a.json", "timestamp": 1, "batchId": epoch})
        tree.write(f"sources/0/{epoch}", f"v1\n{line}".encode())
    refuse_lost_files(look_at(tree), 0)
    (tmp_path / "in" / "1 a.json").unlink()
    refuse_lost_files(look_at(tree), 1)
    with pytest.raises(Refused, match="a file that was read since epoch 0 is gone"):
        refuse_lost_files(look_at(tree), 0)
    line = json.dumps({"path": f"file://{tree.path}/returns/epoch-1.json", "timestamp": 1, "batchId": 2})
    tree.write("sources/0/2", f"v1\n{line}".encode())
    with pytest.raises(Refused, match="retried, or sent back"):
        refuse_lost_files(look_at(tree), 1)
    refuse_lost_files(look_at(tree), 2)


def test_sources_must_be_those_of_the_offsets() -> None:
    kafka = KafkaSource(topic="in", servers="127.0.0.1:1", value="id INT")
    with pytest.raises(Refused, match="topic 'other', which no source"):
        check_topics([kafka], {("other", 0): 3}, where="job")
    (said,) = check_topics([kafka], {("in", 0): 3}, where="job")
    assert "NOT checked" in said
    files = FileSource(path="/data/in", value="id INT")
    refuse_other_files([files], ["file:///data/in/a.json", "file:/x/returns/1.json"], where="job")
    with pytest.raises(Refused, match="no source of the job reads that directory"):
        refuse_other_files([files], ["file:///data/into/a.json"], where="job")
    refuse_lost([kafka, files])
    with pytest.raises(Refused, match="cannot replay events"):
        refuse_lost([SocketSource(host="localhost", port=1)])


def entry(epoch: int, digest: str | None) -> Entry:
    return Entry(run="r", query="q", epoch=epoch, digest=digest, at="2026-01-31")


def test_a_savepoint_holds_one_epoch_and_is_laid_out_elsewhere(tmp_path: Path) -> None:
    tree = make_checkpoint(tmp_path / "c", job="j", planned=13)
    checkpoint = Checkpoint(root=tree.root)
    place = LocalTree(tmp_path / "saved")
    ledger = entry(11, checkpoint.digest(11))
    saved = take_savepoint(tree, checkpoint, place, job="j", ledger=ledger, now=NOW, is_live=False)
    assert (saved.epoch, saved.offsets, saved.digest) == (11, {"in": {"0": 120}}, checkpoint.digest(11))
    listed = {file.name for file in saved.files}
    assert {name for name in listed if not name.startswith(("state", "tables"))} == {
        *("metadata", "native/steps.json", "described/sources.json", "sources/0/0"),
        *("offsets/10", "offsets/11", "commits/10", "commits/11"),
    }
    assert {name for name in listed if name.startswith("state/0/0/")} == {
        *("state/0/0/10.zip", "state/0/0/SSTs/10.sst", "state/0/0/11.changelog", "state/0/0/12.changelog"),
    }
    assert read_savepoint(place) == saved
    assert [one for one in tmp_path.iterdir() if ".part-" in one.name] == []

    other = LocalTree(tmp_path / "other")
    lay_out(saved, place, other, root="hdfs://host/there", query="new")
    assert other.read("metadata") == b'{"id": "new"}'
    schema = (other.read("state/0/_metadata/v2/0") or b"").decode()
    assert '"hdfs://host/there/state/0/_stateSchema/default/0_id"' in schema
    assert look_at(other).reachable == [11]
    assert Checkpoint(root=other.root).digest(11) == saved.digest
    with pytest.raises(Refused, match="exists already"):
        take_savepoint(tree, checkpoint, place, job="j", ledger=ledger, now=NOW, is_live=False)


def test_a_committed_epoch_that_is_not_logged_is_kept(tmp_path: Path) -> None:
    tree = make_checkpoint(tmp_path / "c", job="j", planned=13)
    checkpoint, place = Checkpoint(root=tree.root), LocalTree(tmp_path / "saved")
    ledger = entry(12, checkpoint.digest(12))
    saved = take_savepoint(tree, checkpoint, place, job="j", ledger=ledger, now=NOW, is_live=False)
    assert "offsets/12" in {file.name for file in saved.files}
    assert saved.epoch == 11
    assert saved.entry("r", "q", NOW).epoch == 12


@pytest.mark.parametrize("harm", ["changed", "missing", "more", "broken"])
def test_a_savepoint_that_is_not_as_it_was_saved_is_refused(tmp_path: Path, harm: str) -> None:
    tree = make_checkpoint(tmp_path / "c", job="j")
    place = LocalTree(tmp_path / "saved")
    take_savepoint(tree, Checkpoint(root=tree.root), place, job="j", ledger=None, now=NOW, is_live=False)
    if harm == "changed":
        place.write("checkpoint/state/0/0/12.changelog", b"chanGes")
    elif harm == "missing":
        place.remove("checkpoint/offsets/10")
    elif harm == "more":
        place.write("checkpoint/offsets/12", b"x")
    else:
        place.write("savepoint.json", b"{}")
    with pytest.raises(Refused):
        read_savepoint(place)


def test_events_that_wait_belong_to_no_savepoint(tmp_path: Path) -> None:
    tree = make_checkpoint(tmp_path / "c", job="j")
    tree.write("waiting/3-1-run-1-1.json", b"{}")
    place = LocalTree(tmp_path / "saved")
    with pytest.raises(Refused, match="wait for a retry"):
        take_savepoint(tree, Checkpoint(root=tree.root), place, job="j", ledger=None, now=NOW, is_live=False)
    assert not place.exists()
    assert [one.name for one in tmp_path.iterdir()] == ["c"]


def test_a_file_that_a_running_job_removes_during_the_check_makes_the_check_start_over(tmp_path: Path) -> None:
    tree = make_checkpoint(tmp_path / "c", job="j")

    class Cleaning(Checkpoint):
        """Spark throws an old version away while it is copied."""

        def read(self, name: str) -> bytes | None:
            if name.endswith("10.zip") and not tree.exists("offsets/12"):
                tree.write("offsets/12", tree.read("offsets/11") or b"")
                tree.write("commits/12", b"v1\n{}")
                for partition in range(2):
                    tree.write(f"state/0/{partition}/13.zip", snapshot())
                    tree.remove(f"state/0/{partition}/10.zip")
            return super().read(name)

    saved = take_savepoint(
        tree, Cleaning(root=tree.root), LocalTree(tmp_path / "s"), job="j", ledger=None, now=NOW, is_live=True
    )
    assert saved.epoch == 12
    assert read_savepoint(LocalTree(tmp_path / "s")) == saved


def test_a_listing_of_a_running_job_that_is_not_of_one_moment_makes_it_begin_again(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "c", job="j")

    class Torn(LocalTree):
        """The first listing has a commit and misses its offsets, which came in between."""

        listed = 0

        def entries(self, folder: str = "") -> list[File]:
            self.listed += 1
            return [one for one in super().entries(folder) if self.listed > 1 or one.name != "offsets/11"]

    def take(name: str, *, is_live: bool) -> Savepoint:
        tree, place = Torn(checkpoint.path), LocalTree(tmp_path / name)
        return take_savepoint(tree, Checkpoint(root=tree.root), place, job="j", ledger=None, now=NOW, is_live=is_live)

    assert take("live", is_live=True).epoch == 11
    with pytest.raises(CheckpointDamaged, match="files of epoch 11"):
        take("stopped", is_live=False)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["c", "live"]
