"""A person goes on from the manifests before one that cannot be read, and first hears what that gives up."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lockgate.connectors.files.ledger import FileLedger
from lockgate.connectors.files.manifest import SNAPSHOT_EVERY
from lockgate.errors import Failed, InvariantBroken
from support.filesjob import FilesJob, entry


def manifest(files_job: FilesJob, sequence: int) -> Path:
    return files_job.root / "_lockgate" / files_job.job / f"{sequence:020}.json"


def spoil(files_job: FilesJob, sequence: int) -> None:
    """Let a manifest name a file outside of the directory, as another program could."""
    facts = json.loads(manifest(files_job, sequence).read_text())
    for group in facts["groups"]:
        group["files"] = [["../victim.json", 9, None]]
    manifest(files_job, sequence).write_text(json.dumps(facts))


def ledger(files_job: FilesJob) -> FileLedger:
    return FileLedger(str(files_job.root), files_job.job, where="test")


def look(opened: FileLedger) -> str:
    """What a person hears of a damaged ledger."""
    with pytest.raises(InvariantBroken) as caught:
        opened.peek()
    return opened.salvage(caught.value)[1]


def go_on(files_job: FilesJob, epoch: int) -> str:
    opened = ledger(files_job)
    told = look(opened)
    opened.replace(opened.salvage(InvariantBroken("", "", ""))[0], entry(epoch, run="a person"))
    return told


@pytest.fixture
def damaged(files_job: FilesJob) -> FilesJob:
    """Four epochs, the third of which has a manifest that names a file elsewhere."""
    for epoch in range(4):
        files_job.commit(files_job.store(), epoch, [epoch])
    spoil(files_job, 3)
    return files_job


def test_what_is_given_up_is_said_and_nothing_is_written(damaged: FilesJob) -> None:
    before = damaged.data()
    told = look(ledger(damaged))
    given_up = [name for name in before if name.startswith(("2-", "3-"))]
    assert "the manifest cannot be read (the path '../victim.json' does not lie in data/payments)" in told
    assert "Manifests up to 2 can be read: epoch 1 is committed, with 2 files." in told
    assert "Manifests 3..4 are given up" in told
    assert [line.split(":")[0].strip() for line in told.splitlines() if line.startswith("  data/")] == [
        f"data/payments/{name}" for name in given_up
    ]
    assert ": 1 files, 9 bytes" in told
    assert (damaged.manifests(), damaged.data()) == ([1, 2, 3, 4], before)


def test_the_job_continues_from_the_manifests_before_the_damage(damaged: FilesJob) -> None:
    with pytest.raises(InvariantBroken):
        damaged.seen()
    go_on(damaged, 3)
    assert damaged.manifests() == [1, 2, 3, 4, 5], "no number becomes free again"
    assert damaged.seen() == [0, 1]
    store = damaged.store()
    assert store.read() == entry(3, run="a person")
    damaged.sweep(store)
    damaged.commit(store, 4, [4])
    assert damaged.seen() == [0, 1, 4]
    assert [name.split("-")[0] for name in damaged.data()] == ["0", "1", "4"]


def test_what_was_given_up_is_removed_when_two_snapshots_stand_before_it(damaged: FilesJob) -> None:
    go_on(damaged, 3)
    damaged.log().prune()
    assert damaged.manifests() == [1, 2, 3, 4, 5], "the damage hides how much is needed"
    store = damaged.store()
    for epoch in range(4, SNAPSHOT_EVERY):
        damaged.commit(store, epoch, [epoch])
    damaged.log().prune()
    assert damaged.manifests()[0] == 5
    assert damaged.seen() == [0, 1, *range(4, SNAPSHOT_EVERY)]


def test_a_manifest_that_is_missing_is_damage_too(damaged: FilesJob) -> None:
    manifest(damaged, 3).unlink()
    assert "manifest 3 is gone, although 4 is there" in go_on(damaged, 1)
    assert damaged.seen() == [0, 1]


def test_a_manifest_with_the_number_of_another_one_is_damage(files_job: FilesJob) -> None:
    for epoch in range(2):
        files_job.commit(files_job.store(), epoch, [epoch])
    manifest(files_job, 2).write_bytes(manifest(files_job, 1).read_bytes())
    with pytest.raises(InvariantBroken, match="its number is 1"):
        files_job.seen()
    go_on(files_job, 1)
    assert files_job.seen() == [0]


@pytest.mark.parametrize(
    ("plant", "told"),
    [
        (os.mkfifo, "is not a file"),
        (lambda place: place.symlink_to("/dev/zero"), "is a link, and not a file"),
        (lambda place: place.symlink_to("/etc/hostname"), "is a link, and not a file"),
    ],
    ids=["pipe", "device", "file elsewhere"],
)
def test_what_is_no_file_is_damage_and_not_waited_for(
    files_job: FilesJob, plant: Callable[[Path], None], told: str
) -> None:
    for epoch in range(2):
        files_job.commit(files_job.store(), epoch, [epoch])
    plant(manifest(files_job, 3))
    with pytest.raises(InvariantBroken, match=told):
        files_job.seen()
    go_on(files_job, 1)
    assert files_job.seen() == [0, 1]


def test_a_path_that_no_file_can_have_is_damage(files_job: FilesJob) -> None:
    files_job.commit(files_job.store(), 0, [0])
    facts = json.loads(manifest(files_job, 1).read_text())
    facts["replaced"] = [[f"data/{files_job.job}/0-ab/part-\ud800", "2026-01-01T00:00:00Z"]]
    manifest(files_job, 1).write_text(json.dumps(facts))
    with pytest.raises(InvariantBroken, match="does not lie in"):
        files_job.seen()


def test_without_a_readable_manifest_only_a_copy_helps(files_job: FilesJob) -> None:
    files_job.commit(files_job.store(), 0, [0])
    spoil(files_job, 1)
    with pytest.raises(Failed, match="no manifest before the damage can be read") as caught:
        look(ledger(files_job))
    assert "back from a copy" in caught.value.fix
    assert files_job.manifests() == [1]


def test_files_that_a_later_manifest_has_replaced_cannot_be_gone_back_to(files_job: FilesJob) -> None:
    for epoch in range(3):
        files_job.commit(files_job.store(), epoch, [epoch])
    files_job.compact()
    for name in files_job.data():
        if name.startswith("0-"):
            files_job.system.delete(f"data/{files_job.job}/{name}")
    newest = files_job.manifests()[-1]
    manifest(files_job, newest).write_bytes(b"{")
    with pytest.raises(Failed, match="1 of their files are gone"):
        look(ledger(files_job))
    assert files_job.manifests()[-1] == newest


def test_a_number_that_no_run_comes_to_is_for_a_person(damaged: FilesJob) -> None:
    manifest(damaged, 10**19).write_bytes(b"{}")
    with pytest.raises(Failed, match="which no run has reached"):
        look(ledger(damaged))


def test_nothing_is_written_if_the_manifests_change_while_a_person_decides(damaged: FilesJob) -> None:
    opened = ledger(damaged)
    look(opened)
    go_on(damaged, 3)
    with pytest.raises(Failed, match="have changed since they were looked at"):
        opened.replace(entry(1), entry(1, run="late"))
    assert damaged.store().read() == entry(3, run="a person")


def test_manifests_of_a_newer_version_are_not_given_up(damaged: FilesJob) -> None:
    facts = json.loads(manifest(damaged, 4).read_text())
    manifest(damaged, 4).write_text(json.dumps({**facts, "format": 2}))
    with pytest.raises(InvariantBroken, match="has format 2"):
        look(ledger(damaged))
    assert damaged.manifests() == [1, 2, 3, 4]
