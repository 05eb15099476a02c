"""What native steps keep, and what is read, is compared on every store; the names of sources may change."""

import json
from pathlib import Path

import pytest

from lockgate import Guarantee, Job, KafkaSource, MemorySink, Stream, stream, windows
from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.checkpoints.tree import LocalTree
from lockgate.errors import Refused
from lockgate.planner.plan import Plan, plan
from lockgate.runtime import nativestate, sourcelist
from lockgate.runtime.nativestate import NativeSteps
from lockgate.runtime.sourcelist import SourceList


def read(name: str, topic: str) -> Stream:
    source = KafkaSource(topic=topic, servers="localhost:9092", value="k STRING, v INT, at TIMESTAMP")
    return stream(name, source).event_time("at", lateness="1 second")


def summed(*sources: Stream, size: str = "10 seconds") -> Plan:
    first, *more = sources
    rows = first.merge(*more) if more else first
    counts = rows.key_by("k").window(windows.tumbling(size), name="sums").aggregate(total="sum(v)")
    return plan(Job("sums", counts.to("out", MemorySink()), guarantee=Guarantee.AT_LEAST_ONCE))


def native(checkpoint: Checkpoint, planned: Plan) -> NativeSteps:
    return NativeSteps(checkpoint, planned, [["sums"]])


def commit(place: Path) -> None:
    (place / "commits").mkdir(parents=True, exist_ok=True)
    (place / "commits" / "0").touch()


def test_a_source_under_a_new_name_continues_and_another_one_does_not(tmp_path: Path) -> None:
    checkpoint = Checkpoint(root=str(tmp_path))
    native(checkpoint, summed(read("in", "orders"))).keep()
    commit(tmp_path)
    native(checkpoint, summed(read("renamed", "orders"))).check()
    with pytest.raises(Refused, match=r"over topic orders, but 'sums' in its place is .* over topic payments"):
        native(checkpoint, summed(read("in", "payments"))).check()


def test_two_sources_that_read_the_same_are_known_by_their_names(tmp_path: Path) -> None:
    checkpoint = Checkpoint(root=str(tmp_path))
    native(checkpoint, summed(read("one", "orders"), read("two", "orders"))).keep()
    commit(tmp_path)
    native(checkpoint, summed(read("one", "orders"), read("two", "orders"))).check()
    with pytest.raises(Refused, match="over topic orders as one, topic orders as two, but"):
        native(checkpoint, summed(read("one", "orders"), read("three", "orders"))).check()


def test_a_note_of_an_earlier_version_tells_sources_by_their_names(tmp_path: Path) -> None:
    checkpoint = Checkpoint(root=str(tmp_path))
    commit(tmp_path)
    (tmp_path / "native").mkdir()
    noted = [{"step": "sums", "keeps": "tumbling 10 seconds, by k: total=sum(v) over in"}]
    (tmp_path / "native" / "steps.json").write_text(json.dumps(noted))
    native(checkpoint, summed(read("in", "orders"))).check()
    with pytest.raises(Refused, match="the state in the checkpoint belongs to other steps"):
        native(checkpoint, summed(read("in", "orders"), size="1 minute")).check()


class Elsewhere(Checkpoint):
    """A checkpoint on an object store, with its files in a directory."""

    place: Path

    def read(self, name: str) -> bytes | None:
        return LocalTree(self.place).read(name)

    def epochs(self, log: str) -> list[int]:
        return Checkpoint(root=str(self.place)).epochs(log)


def test_what_is_kept_and_read_is_compared_on_an_object_store_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    def open_tree(root: str, spark: object) -> LocalTree:
        opened.append(root)
        return LocalTree(tmp_path)

    monkeypatch.setattr(nativestate, "open_tree", open_tree)
    monkeypatch.setattr(sourcelist, "open_tree", open_tree)
    monkeypatch.setattr(Elsewhere, "place", tmp_path, raising=False)
    checkpoint = Elsewhere(root="s3a://bucket/checkpoint")
    before = summed(read("in", "orders"))
    for _ in range(2):  # a run that committed nothing was before this one
        native(checkpoint, before).keep()
        SourceList(checkpoint, before, [["in", "sums"]]).keep()
    assert opened == ["s3a://bucket/checkpoint"] * 4
    commit(tmp_path)
    with pytest.raises(Refused, match="the state in the checkpoint belongs to other steps"):
        native(checkpoint, summed(read("in", "orders"), size="1 minute")).check()
    with pytest.raises(Refused, match="the offsets in the checkpoint belong to other sources"):
        SourceList(checkpoint, summed(read("in", "payments")), [["in", "sums"]]).check()
