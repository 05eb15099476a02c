"""What a checkpoint holds, told from its files: epochs, offsets, state, and what else lies there."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lockgate.checkpoints.differences import Lineage, compare
from lockgate.checkpoints.facts import Reach, look_at
from lockgate.checkpoints.logs import Offset, read_commit, read_offsets
from lockgate.checkpoints.tree import LocalTree
from lockgate.errors import Refused
from support.checkpoints import Handmade


@pytest.fixture
def handmade(tmp_path: Path) -> Handmade:
    made = Handmade(tmp_path / "checkpoint")
    made.make(range(4), pending=4)
    return made


def test_every_epoch_tells_its_time_its_offsets_and_its_watermark(handmade: Handmade) -> None:
    facts = handmade.facts
    assert facts.query == "the-query"
    assert [(epoch.number, epoch.is_committed) for epoch in facts.epochs] == [
        *((number, True) for number in range(4)),
        (4, False),
    ]
    epoch = facts.by_number[2]
    assert epoch.at == datetime(2026, 1, 1, 0, 2, tzinfo=UTC)
    assert epoch.watermark == datetime(2026, 1, 1, 0, 0, 2, tzinfo=UTC)
    offset = epoch.planned.offsets[0]
    assert facts.reaches(2, offset) == (Reach("orders", 0, 120, 130), Reach("orders", 1, 2, 3))
    assert facts.events(2, offset) == 11
    assert facts.committed.number == 3


def test_the_first_epoch_counts_from_where_the_topic_began(handmade: Handmade) -> None:
    facts = handmade.facts
    assert facts.reaches(0, facts.by_number[0].planned.offsets[0])[0] == Reach("orders", 0, 100, 110)
    handmade.remove("sources/0/0")
    facts = handmade.facts
    assert facts.events(0, facts.by_number[0].planned.offsets[0]) is None


def test_events_behind_an_epoch_that_is_gone_are_not_known(handmade: Handmade) -> None:
    handmade.remove("offsets/1")
    facts = handmade.facts
    assert facts.events(2, facts.by_number[2].planned.offsets[0]) is None
    assert facts.events(3, facts.by_number[3].planned.offsets[0]) == 11


def test_state_is_what_it_is_loaded_from_and_its_rows_are_known_from_snapshots(handmade: Handmade) -> None:
    changes = (handmade.root / "state/0/0/1.changelog").stat().st_size
    assert handmade.facts.state_of(1).bytes == 2 * 2 * changes
    assert handmade.facts.state_of(1).rows is None
    for partition in range(2):
        handmade.write_snapshot(partition, 2, rows=5)
    snapshot = (handmade.root / "state/0/0/2.zip").stat().st_size
    facts = handmade.facts
    assert (facts.state_of(1).bytes, facts.state_of(1).rows) == (2 * (snapshot + 400), 10)
    assert (facts.state_of(2).bytes, facts.state_of(2).rows) == (2 * (snapshot + 400 + changes), None)
    handmade.remove("state/0/1/3.changelog")
    assert handmade.facts.state_of(2) is None


def test_a_file_that_cannot_be_read_spoils_its_own_epoch_alone(handmade: Handmade) -> None:
    handmade.write("offsets/2", b"v1\n{nonsense")
    facts = handmade.facts
    assert [epoch.number for epoch in facts.epochs if epoch.problem] == [2]
    assert "offsets/2 cannot be read" in facts.by_number[2].problem


def test_what_a_run_keeps_beside_the_logs_is_known_and_the_rest_is_counted(handmade: Handmade) -> None:
    handmade.write("lockgate.json", b'{"job": "orders", "made": "2026-01-01T00:00:00+00:00", "format": 1}')
    for name in ("tables/rates/abc.parquet", "waiting/1-2-r-1-1.json", "returns/letter-7.json", "initial/s_12345678"):
        handmade.write(name, b"12345")
    (handmade.root / "mine.txt").write_bytes(b"123")
    facts = handmade.facts
    assert facts.marker.job == "orders"
    assert facts.parts["others"] == 3
    assert facts.parts["tables"] == 5 + 12
    assert sum(facts.parts.values()) == facts.bytes


def test_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="does not exist"):
        look_at(LocalTree(tmp_path / "nowhere"))
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "1.jpg").write_bytes(b"x")
    with pytest.raises(Refused, match="is not a checkpoint"):
        look_at(LocalTree(tmp_path / "photos"))


@pytest.mark.parametrize("told", [{"logOffset": 3}, 7, None, "text", {"a": {"x": 1}}, {"a": {"0": "1"}}, [], {}])
def test_offsets_of_other_sources_are_not_counted(told: Any) -> None:
    assert Offset("0", told).places is None


def test_offsets_of_sources_with_names_and_of_none_are_read() -> None:
    planned = read_offsets(b'v2\n{"batchWatermarkMs": 5}\norders:{"t":{"0":3}}\nrates:-')
    assert [(one.source, one.told) for one in planned.offsets] == [("orders", {"t": {"0": 3}}), ("rates", None)]
    assert planned.at_ms is None


@pytest.mark.parametrize("content", [b"", b"v1", b"nonsense\n{}", b"v1\n[]\n{}", b"v1\n{}", b"v1\n{}\n{cut"])
def test_offsets_that_are_not_whole_are_an_error(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"empty|ends after|begins with|not a JSON|no line|Expecting"):
        read_offsets(content)


def test_a_commit_tells_the_ids_of_its_state() -> None:
    ended = read_commit(b'v2\n{"nextBatchWatermarkMs":7,"stateUniqueIds":{"0":[["a"],["b","c"]]}}')
    assert (ended.watermark_ms, ended.ids) == (7, {0: (frozenset({"a"}), frozenset({"b", "c"}))})


def test_two_checkpoints_of_one_lineage_fork_or_have_nothing_in_common(handmade: Handmade, tmp_path: Path) -> None:
    other = Handmade(tmp_path / "other")
    other.make(range(6))
    found = compare(handmade.facts, other.facts)
    assert (found.lineage, found.forked_at) == (Lineage.SAME, None)
    assert (found.left.committed, found.right.committed) == (3, 5)
    assert [(one.partition, one.left, one.right, one.records) for one in found.places] == [
        (0, 140, 160, 20),
        (1, 4, 6, 2),
    ]
    assert found.conf == {}
    other.write_offsets(2, records=9, partitions=3)
    other.write_offsets(5, records=9, partitions=3)
    found = compare(handmade.facts, other.facts)
    assert (found.lineage, found.forked_at) == (Lineage.FORKED, 2)
    assert found.conf == {"spark.sql.shuffle.partitions": ("2", "3")}
    other.write("metadata", b'{"id":"another"}')
    assert compare(handmade.facts, other.facts).lineage is Lineage.OTHER
    apart = Handmade(tmp_path / "apart")
    apart.make(range(7, 9))
    assert compare(handmade.facts, apart.facts).lineage is Lineage.APART
