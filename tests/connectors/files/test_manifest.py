"""What one manifest says, and what several say together."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.connectors.files.manifest import (
    SNAPSHOT_EVERY,
    DataFile,
    Group,
    History,
    Manifest,
    Replaced,
    manifest_of,
    partition_values,
)
from lockgate.errors import InvariantBroken
from support.filesjob import FilesJob, entry

GROUP = Group(kind="json", schema="n INT", partition_by=("k",), files=(DataFile("data/j/0-a/k=1/part-0.json", 9, 1),))
MANIFEST = Manifest(
    sequence=50,
    entry=entry(7),
    groups=(GROUP,),
    is_snapshot=True,
    replaced=(Replaced("data/j/0-b/part-0.json", "2026-01-01T00:00:00.000+00:00"),),
    row_bytes=9.5,
)
texts = st.text(max_size=20)
paths = st.builds("data/j/{}-a/k={}/part-{}".format, st.integers(0), texts.map(partial(quote, safe="")), st.integers(0))
files = st.builds(DataFile, path=paths, bytes=st.integers(0, 2**63), rows=st.none() | st.integers(0, 2**63))
groups = st.builds(
    Group,
    kind=st.sampled_from(["parquet", "json"]),
    schema=st.sampled_from(["a INT", "b INT"]),
    partition_by=st.tuples(texts),
    files=st.lists(files, max_size=3).map(tuple),
)


def test_the_bytes_of_format_1_stay_as_they_are() -> None:
    assert json.loads(MANIFEST.to_bytes()) == {
        "format": 1,
        "sequence": 50,
        "is_snapshot": True,
        "entry": entry(7).as_facts(),
        "row_bytes": 9.5,
        "groups": [
            {
                "kind": "json",
                "schema": "n INT",
                "partition_by": ["k"],
                "files": [["data/j/0-a/k=1/part-0.json", 9, 1]],
            }
        ],
        "replaced": [["data/j/0-b/part-0.json", "2026-01-01T00:00:00.000+00:00"]],
    }


@given(
    st.builds(
        Manifest,
        sequence=st.integers(1, 2**40),
        entry=st.just(entry(3)),
        groups=st.lists(groups, max_size=3).map(tuple),
        is_snapshot=st.booleans(),
        replaced=st.lists(
            st.builds(Replaced, path=paths, since=st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat)),
            max_size=2,
        ).map(tuple),
        row_bytes=st.none() | st.floats(0, 1e9),
    )
)
def test_what_is_written_is_read_back(manifest: Manifest) -> None:
    assert manifest_of(manifest.to_bytes(), "j", "here") == manifest


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 1}', b"\xff", MANIFEST.to_bytes()[:-20]])
def test_a_manifest_that_cannot_be_read_stops_everything(content: bytes) -> None:
    with pytest.raises(InvariantBroken, match="cannot be read") as caught:
        manifest_of(content, "j", "out/_lockgate/j/1.json")
    assert caught.value.where == "out/_lockgate/j/1.json"


def test_another_format_is_refused_with_the_version_as_the_fix() -> None:
    facts = {**json.loads(MANIFEST.to_bytes()), "format": 2}
    with pytest.raises(InvariantBroken, match=r"format 2; this version of Lockgate knows 1"):
        manifest_of(json.dumps(facts).encode(), "j", "here")


def test_files_that_were_written_alike_are_together_and_the_newest_way_stands_last() -> None:
    other = replace(GROUP, schema="n INT, m INT", files=(DataFile("data/j/1-a/part-0.json", 2),))
    more = replace(GROUP, files=(DataFile("data/j/2-a/part-0.json", 3),))
    history = History()
    for number, group in enumerate((GROUP, other, more), start=1):
        history = history.followed_by(Manifest(sequence=number, entry=entry(number), groups=(group,)))
    assert history.groups == (other, replace(GROUP, files=GROUP.files + more.files))
    assert (history.sequence, history.entry) == (3, entry(3))


def test_every_fiftieth_manifest_says_all_and_carries_on_what_waits_to_be_deleted() -> None:
    waiting = (Replaced("data/j/0-b/part-0.json", "2026-01-01T00:00:00.000+00:00"),)
    history = History(sequence=SNAPSHOT_EVERY - 2, entry=entry(1), groups=(GROUP,), replaced=waiting, row_bytes=4.0)
    added = history.next_manifest(entry(2), (), None)
    assert (added.is_snapshot, added.groups, added.row_bytes) == (False, (), 4.0)
    new = replace(GROUP, files=(DataFile("data/j/2-a/part-0.json", 3),))
    snapshot = history.followed_by(added).next_manifest(entry(3), (new,), 5.0)
    assert snapshot.is_snapshot
    assert (snapshot.sequence, snapshot.replaced, snapshot.row_bytes) == (SNAPSHOT_EVERY, waiting, 5.0)
    assert [file.path for group in snapshot.groups for file in group.files] == [GROUP.files[0].path, new.files[0].path]
    assert History().followed_by(snapshot) == history.followed_by(added).followed_by(snapshot)


@pytest.mark.parametrize(
    ("folders", "values"),
    [
        ("", {}),
        ("k=1/", {"k": "1"}),
        ("k=a%2Fb%3Dc%25/", {"k": "a/b=c%"}),
        ("k=München Ost/", {"k": "München Ost"}),
        ("k=__HIVE_DEFAULT_PARTITION__/d=2026-01-01/", {"k": None, "d": "2026-01-01"}),
        ("k=a=b/", {"k": "a=b"}),
    ],
)
def test_the_values_of_a_partition_are_read_from_its_path(folders: str, values: dict[str, str | None]) -> None:
    assert partition_values(f"data/j/0-a/{folders}part-0.json") == values


def test_snapshots_let_a_reader_begin_late_and_pruning_keeps_the_last_two(files_job: FilesJob) -> None:
    store = files_job.store()
    for epoch in range(2 * SNAPSHOT_EVERY + 5):
        files_job.commit(store, epoch, [epoch])
    read: list[str] = []
    fresh = files_job.log()
    original = files_job.system.read
    files_job.system.read = lambda name, **more: (read.append(name), original(name, **more))[1]  # type: ignore[method-assign]
    assert fresh.read().sequence == 2 * SNAPSHOT_EVERY + 5
    assert len([name for name in read if "_lockgate" in name]) <= SNAPSHOT_EVERY + 1
    assert files_job.seen() == list(range(2 * SNAPSHOT_EVERY + 5))
    fresh.prune()
    assert files_job.manifests() == list(range(SNAPSHOT_EVERY, 2 * SNAPSHOT_EVERY + 6))
    assert files_job.seen() == list(range(2 * SNAPSHOT_EVERY + 5))
    assert files_job.store().read() == entry(2 * SNAPSHOT_EVERY + 4)


def test_nothing_is_pruned_before_there_are_two_snapshots(files_job: FilesJob) -> None:
    store = files_job.store()
    for epoch in range(SNAPSHOT_EVERY + 1):
        files_job.commit(store, epoch, [])
    files_job.log().prune()
    assert files_job.manifests() == list(range(1, SNAPSHOT_EVERY + 2))


def test_a_removed_manifest_is_noticed(files_job: FilesJob) -> None:
    store = files_job.store()
    for epoch in range(3):
        files_job.commit(store, epoch, [epoch])
    (files_job.root / "_lockgate" / files_job.job / f"{2:020}.json").unlink()
    with pytest.raises(InvariantBroken, match=r"manifest 2 is gone, although 3 is there"):
        files_job.seen()
