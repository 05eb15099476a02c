"""Each damage is found where it is and named once; what only changes, or is cleaned up, is none."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.checkpoints.verifying import Finding, check_ledger, verify
from lockgate.commit.ledger import Entry
from support.checkpoints import Handmade


@pytest.fixture
def handmade(tmp_path: Path) -> Handmade:
    return Handmade(tmp_path / "checkpoint")


def test_a_whole_checkpoint_has_no_damage(handmade: Handmade) -> None:
    handmade.make(range(12), pending=12)
    for partition in range(2):
        handmade.write_snapshot(partition, 5)
    assert handmade.damages == []


@pytest.mark.parametrize(
    ("name", "is_fatal"),
    [
        ("metadata", True),
        ("offsets/11", True),
        ("offsets/3", False),
        ("commits/11", True),
        ("commits/3", False),
        ("sources/0/0", True),
        ("state/0/_metadata/metadata", True),
        ("state/0/1/12.changelog", True),
        ("state/0/1/3.changelog", False),
        ("state/0/0/5.zip", True),
        ("state/0/0/SSTs/000005-table.sst", True),
    ],
)
@pytest.mark.parametrize("way", ["flip", "cut"])
def test_a_file_that_is_not_as_written_is_named_alone(handmade: Handmade, name: str, is_fatal: bool, way: str) -> None:
    handmade.make(range(12))
    for partition in range(2):
        handmade.write_snapshot(partition, 5)
    getattr(handmade, way)(name)
    (found,) = handmade.damages
    assert (found.where, found.is_fatal) == (name, is_fatal)
    assert f"{name} is damaged: " in found.what


@pytest.mark.parametrize(
    ("name", "is_fatal"),
    [
        ("metadata", True),
        ("offsets/11", True),
        ("offsets/10", True),
        ("offsets/3", False),
        ("commits/3", False),
        ("state/0/_metadata/metadata", True),
        ("state/0/1/12.changelog", True),
        ("state/0/1/8.changelog", True),
        ("state/0/1/3.changelog", False),
        ("state/0/0/SSTs/000005-table.sst", True),
    ],
)
def test_a_file_that_is_missing_is_named_alone(handmade: Handmade, name: str, is_fatal: bool) -> None:
    handmade.make(range(12))
    for partition in range(2):
        handmade.write_snapshot(partition, 5)
    handmade.remove(name)
    (found,) = handmade.damages
    assert name.startswith(found.where)
    assert (found.is_fatal, "is missing" in found.what) == (is_fatal, True)


def test_the_epochs_that_are_lost_are_reported_and_where_one_can_go_back_to(handmade: Handmade) -> None:
    handmade.make(range(12))
    handmade.write_snapshot(0, 5)
    handmade.remove("state/0/0/3.changelog")
    handmade.remove("state/0/0/9.changelog")
    old, new = handmade.damages
    assert "epochs 2 to 3 cannot be loaded, so no run can go back there" in old.what
    assert "epochs 8 to 11 cannot be loaded, so no run can continue" in new.what
    assert "rollback --to 7" in new.fix


def test_a_snapshot_that_all_else_builds_on_is_one_missing_file(handmade: Handmade) -> None:
    handmade.make(range(12))
    for version in range(1, 6):
        handmade.remove(f"state/0/0/{version}.changelog")
    handmade.write_snapshot(0, 5)
    (old,) = handmade.damages
    assert "state/0/0/4.changelog is missing, and all before it; the state after epochs 0 to 3" in old.what
    assert not old.is_fatal
    handmade.remove("state/0/0/5.zip")
    (found,) = handmade.damages
    assert (found.where, found.is_fatal) == ("state/0/0/5.zip", True)
    assert "is missing, a snapshot on which later changes build" in found.what


def test_an_operator_that_keeps_several_kinds_of_rows_needs_its_first_snapshot(handmade: Handmade) -> None:
    handmade.make(range(3))
    handmade.write_operator(2, name="transformWithStateInPySparkExec")
    assert handmade.damaged_files() == ["state/0/0/1.zip", "state/0/1/1.zip"]
    for partition in range(2):
        handmade.write_snapshot(partition, 1)
    assert handmade.damages == []


def test_a_partition_that_is_gone_is_named(handmade: Handmade) -> None:
    handmade.make(range(3), partitions=3)
    for version in range(1, 4):
        handmade.remove(f"state/0/1/{version}.changelog")
    assert handmade.damaged_files() == ["state/0/1"]


def test_one_of_two_partitions_that_is_gone_is_named_where_rows_are_dealt_out_by_key(handmade: Handmade) -> None:
    handmade.make(range(3), partitions=2)
    handmade.write_operator(2, name="symmetricHashJoin")
    for version in range(1, 4):
        handmade.remove(f"state/0/1/{version}.changelog")
    assert handmade.damaged_files() == ["state/0/1"]


def test_an_operator_that_takes_all_rows_together_has_one_partition(handmade: Handmade) -> None:
    handmade.make(range(3), partitions=1)
    for number in range(3):
        handmade.write_offsets(number, partitions=8)
    assert handmade.damages == []


def test_fewer_and_more_partitions_from_an_epoch_on_are_no_damage(handmade: Handmade) -> None:
    handmade.make(range(6), partitions=2)
    for number in (4, 5):
        handmade.write_offsets(number, partitions=3)
    handmade.write_snapshot(2, 5)
    handmade.write_changes(2, 6)
    assert handmade.damages == []
    handmade.write_offsets(5, partitions=1)
    handmade.remove("state/0/2/6.changelog")
    assert handmade.damages == []


def test_several_epochs_that_are_not_committed_are_an_older_copy_of_one_log(handmade: Handmade) -> None:
    handmade.make(range(4), pending=4)
    handmade.write_offsets(5)
    handmade.write_offsets(6)
    (found,) = handmade.damages
    assert "epochs 4 to 6 are planned and not committed" in found.what


def test_a_commit_without_offsets_is_found(handmade: Handmade) -> None:
    handmade.make(range(4))
    handmade.write("commits/4", b"v1\n{}")
    assert handmade.damaged_files()[0] == "offsets/4"


def test_what_is_being_cleaned_up_or_written_is_no_damage(handmade: Handmade) -> None:
    handmade.make(range(50, 150))
    for partition in range(2):
        handmade.write_snapshot(partition, 53)
        handmade.write_snapshot(partition, 20)
    handmade.remove("state/0/0/SSTs/000020-table.sst")  # tables go first, their snapshot later
    handmade.remove("state/0/0/52.changelog")  # and changes in any order
    handmade.remove("commits/51")
    (handmade.root / "state/0/0/SSTs/000151-being-uploaded.sst").write_bytes(b"hal")
    (handmade.root / "offsets/.150.0123.tmp").write_bytes(b"")
    assert handmade.damages == []
    handmade.remove("state/0/0/80.changelog")
    assert handmade.damaged_files() == ["state/0/0/80.changelog"]


def test_an_asynchronous_query_of_another_program_logs_only_some_epochs(handmade: Handmade) -> None:
    handmade.make([0, 3, 7], partitions=0)
    handmade.remove("state/0/_metadata/metadata")
    assert handmade.damages == []
    handmade.write("lockgate.json", b'{"job": "orders", "made": "", "format": 1}')
    assert "offsets/4" in handmade.damaged_files()


def test_the_log_of_a_source_of_files_has_no_gap_since_its_summary(handmade: Handmade) -> None:
    handmade.make(range(3))
    for number in range(9):
        handmade.write(f"sources/1/{number}", b'v1\n{"path":"a"}')
    handmade.write("sources/1/9.compact", b'v1\n{"path":"a"}')
    for number in range(10, 13):
        handmade.write(f"sources/1/{number}", b'v1\n{"path":"b"}')
    handmade.remove("sources/1/4")
    assert handmade.damages == []
    handmade.remove("sources/1/11")
    (found,) = handmade.damages
    assert (found.where, found.is_fatal) == ("sources/1/11", True)


def test_a_table_needs_the_snapshots_that_its_notes_name(handmade: Handmade) -> None:
    handmade.make(range(3))
    handmade.write("tables/rates/old.parquet", b"rows")
    handmade.write("tables/rates/new.parquet", b"rows")
    handmade.write("tables/rates/epochs/0", b"old")
    handmade.write("tables/rates/epochs/2", b"new")
    assert handmade.damages == []
    handmade.remove("tables/rates/old.parquet")
    handmade.flip("tables/rates/new.parquet")
    assert [(one.where, one.is_fatal) for one in handmade.damages] == [
        ("tables/rates/old.parquet", False),
        ("tables/rates/new.parquet", True),
    ]


def test_a_marker_that_cannot_be_read_stops_no_run(handmade: Handmade) -> None:
    handmade.make(range(3))
    handmade.write("lockgate.json", b"{")
    (found,) = handmade.damages
    assert (found.where, found.is_fatal) == ("lockgate.json", False)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable for root")
def test_a_file_that_may_not_be_read_is_named(handmade: Handmade) -> None:
    handmade.make(range(3))
    (handmade.root / "offsets/1").chmod(0)
    assert "offsets/1" in handmade.damaged_files()


def finding(what: str) -> Finding:
    return Finding(what, where="state", fix="", is_fatal=True)


def looks(*found: list[str]) -> Callable[[], list[Finding]]:
    coming = iter(found)
    return lambda: [finding(what) for what in next(coming)]


def test_only_what_every_look_finds_is_reported() -> None:
    pauses: list[float] = []
    told = verify(looks(["a", "b"], ["b", "c"], ["c", "b"], ["b"]), pauses.append, alike=lambda one: one.what)
    assert [one.what for one in told] == ["b"]
    assert len(pauses) == 3
    assert verify(looks(["a"], ["b"]), pauses.append, alike=lambda one: one.what) == []
    assert (
        verify(looks([]), lambda _: pytest.fail("a whole checkpoint is looked at once"), alike=lambda one: one.what)
        == []
    )


def test_damage_is_reported_while_a_driver_continues_and_costs_more_and_more_epochs(handmade: Handmade) -> None:
    handmade.make(range(3))
    handmade.remove("state/0/0/2.changelog")
    told: list[str] = []

    def look() -> list[Finding]:
        found = handmade.damages
        told.extend(one.what for one in found)
        number = handmade.facts.epochs[-1].number + 1
        handmade.write_offsets(number)
        handmade.write(f"commits/{number}", b"v1\n{}")
        for partition in range(2):
            handmade.write_changes(partition, number + 1)
        return found

    findings = verify(look, lambda _: None, alike=lambda one: one.where)
    assert [one.where for one in findings] == ["state/0/0/2.changelog"]
    assert len(set(told)) == 4


def entry(epoch: int, digest: str | None, query: str = "the-query") -> Entry:
    return Entry(run="r", query=query, epoch=epoch, digest=digest, at="now")


def test_the_ledger_has_the_epoch_before_the_next_with_its_offsets(handmade: Handmade) -> None:
    handmade.make(range(4), pending=4)
    checkpoint = Checkpoint(root=str(handmade.root))
    digest = checkpoint.digest

    def found(entry: Entry | None) -> list[str]:
        return [one.what for one in check_ledger(checkpoint, lambda: entry, job="orders", where="ledger")]

    assert found(entry(3, digest(3))) == found(entry(4, digest(4))) == []
    assert "other offsets" in found(entry(3, digest(2)))[0]
    assert "the ledger is at epoch 2" in found(entry(2, digest(2)))[0]
    assert "another checkpoint" in found(entry(3, digest(3), query="another"))[0]
    assert "empty or gone" in found(None)[0]
