"""Records that are removed before a job reads them stop it, and are skipped only if an operator accepts it.

The source of the jobs has one partition, so that every offset is the id of its event.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, TopicPartition
from pyspark.sql import SparkSession

from lockgate import Guarantee, Job, KafkaSink, KafkaSource, Run, stream
from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.checkpoints.checksums import checksum_of
from lockgate.checkpoints.tree import LocalTree
from lockgate.commit.ledger import Entry, Gap
from lockgate.connectors.kafka.ledgertopic import LedgerTopic
from lockgate.connectors.kafka.settings import ClientSettings
from lockgate.connectors.kafka.wire import connect
from lockgate.errors import FunctionFailed, RecordsGone, Unreachable
from lockgate.runtime.commits import Commits
from lockgate.runtime.epochs import EpochWriter
from lockgate.runtime.gaps import Gaps
from support.checkpoints import make_logs
from support.records import count_ids, make_topics, read_json, send, unique
from support.runs import run_to_the_end

EXACT, AT_LEAST_ONCE = Guarantee.END_TO_END_EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE


def fail_at_three_hundred(row: Any) -> dict[str, int]:
    if row.id == 300:
        raise ValueError("three hundred")
    return {"id": row.id}


class Copying:
    """A place with a job that copies a topic."""

    def __init__(self, servers: str, place: Path) -> None:
        self.servers, self.place, self.name = servers, place, unique("gaps")
        (self.source,) = make_topics(servers, f"{self.name}-in", partitions=1)
        (self.output,) = make_topics(servers, f"{self.name}-out")
        self.checkpoint = Checkpoint(root=str(place / "checkpoint"))

    def job(self, guarantee: Guarantee = EXACT) -> Job:
        read = stream("events", KafkaSource(topic=self.source, servers=self.servers, value="id INT"))
        return Job(self.name, read.to("out", KafkaSink(topic=self.output, servers=self.servers)), guarantee=guarantee)

    def counting(self, *, is_failing: bool) -> Job:
        """A job with state: how many events there were up to each."""
        rows = stream("events", KafkaSource(topic=self.source, servers=self.servers, value="id INT"))
        if is_failing:
            rows = rows.map(fail_at_three_hundred, "id INT")
        counted = rows.select("id", every="1").key_by("every").rolling(n="count(*)")
        return Job(self.name, counted.to("out", KafkaSink(topic=self.output, servers=self.servers)), guarantee=EXACT)

    def send(self, ids: Iterable[int]) -> None:
        send(self.servers, self.source, [{"id": number} for number in ids])

    def remove_before(self, offset: int) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.servers)
        admin.delete_records({TopicPartition(self.source, 0): offset})
        admin.close()

    def run(self, job: Job | None = None, **options: Any) -> Run:
        return run_to_the_end(job or self.job(), self.place, **options)

    def ids(self) -> Counter[int]:
        return count_ids(self.servers, self.output)

    def ledger(self) -> Entry:
        connection = connect(ClientSettings(self.servers), where="test")
        entry = LedgerTopic(connection, self.name, where="test").peek()
        assert entry is not None
        return entry


@pytest.fixture
def copying(kafka: str, tmp_path: Path, spark: SparkSession) -> Copying:
    return Copying(kafka, tmp_path)


def test_a_process_that_dies_while_a_gap_is_accepted_leaves_the_old_position_or_the_new_one(tmp_path: Path) -> None:
    changes = 0
    while True:  # die before each change of a file, one after another
        checkpoint = make_logs(tmp_path / str(changes), planned=4, committed=3)
        (topic,) = {topic for topic, _ in checkpoint.kafka_offsets(2)}
        before, place, digest = checkpoint.kafka_offsets(2), (topic, 0), checkpoint.digest(2)
        gap = Gap(topic, 0, start=before[place], end=before[place] + 3, epoch=2, at="then")
        is_over = accept_until(changes, checkpoint, gap)
        position = checkpoint.kafka_offsets(2)
        assert checkpoint.digest(2) == digest  # by which ledgers know the epoch
        assert (position, checkpoint.gaps()) in [(before, ()), ({**before, place: gap.end}, (gap,))]
        assert checkpoint.epochs("commits") == [0, 1, 2]
        if is_over:
            break
        accept_until(100, checkpoint, gap)
        assert checkpoint.gaps() == (gap,)
        changes += 1
    assert changes >= 3
    assert checkpoint.epochs("offsets") == [0, 1, 2]
    assert position == {**before, place: gap.end}


def test_a_second_gap_behind_the_same_epoch_keeps_the_first(tmp_path: Path) -> None:
    checkpoint, gaps = at_a_gap(tmp_path)
    first, second, third = (Gap("in", 0, start, end, epoch=2, at="") for start, end in [(35, 38), (38, 44), (44, 45)])
    digest = checkpoint.digest(2)
    for accepted, known in ((first, (first,)), (second, (first, second)), (third, (first, second, third))):
        gaps.accept([accepted], Commits())
        assert checkpoint.gaps() == known
        gaps.check(is_accepting=False)
        assert checkpoint.gaps() == known
        assert checkpoint.kafka_offsets(2)["in", 0] == accepted.end
        assert checkpoint.digest(2) == digest  # by which ledgers know the epoch
    gaps.accept([replace(first, partition=1)], Commits())
    for name in ("offsets/2", checksum_of("offsets/2")):  # as Spark removes old epochs
        (tmp_path / name).unlink(missing_ok=True)
    assert checkpoint.gaps() == (first, second, third, replace(first, partition=1))


def test_a_second_gap_whose_process_dies_leaves_the_first(tmp_path: Path) -> None:
    first, second = (Gap("in", 0, start, end, epoch=2, at="") for start, end in [(35, 38), (38, 44)])
    changes = 0
    while True:  # die before each change of a file, one after another
        checkpoint, gaps = at_a_gap(tmp_path / str(changes))
        gaps.accept([first], Commits())
        is_over = accept_until(changes, checkpoint, second)
        found = (checkpoint.kafka_offsets(2)["in", 0], checkpoint.gaps())
        assert found in [(38, (first,)), (44, (first, second))]
        Gaps(checkpoint, [], where="test").check(is_accepting=False)
        assert (checkpoint.kafka_offsets(2)["in", 0], checkpoint.gaps()) == found
        if is_over:
            break
        changes += 1
    assert changes >= 3


def test_a_gap_behind_an_epoch_that_was_rolled_back_is_forgotten(tmp_path: Path) -> None:
    checkpoint, gaps = at_a_gap(tmp_path)
    gaps.accept([Gap("in", 0, 35, 38, epoch=2, at="")], Commits())
    for log in ("commits", "offsets"):
        (tmp_path / log / "2").unlink()
    gaps.check(is_accepting=False)
    assert checkpoint.gaps() == ()
    assert checkpoint.accepted() == []


@pytest.mark.parametrize(
    ("client", "starts", "reason", "told"),
    [
        ({}, {("in", 0): 38}, "could not read", "--accept-gap"),
        ({}, {("in", 0): 35}, "could not read", "--uncommitted"),
        ({}, None, "could not read", "as it was"),
        (
            {"security.protocol": "SSL", "ssl.truststore.location": "/a.jks"},
            {},
            "could not read",
            "restore the records",
        ),
    ],
    ids=["a gap", "no gap", "no answer", "not compared"],
)
def test_the_choices_behind_what_spark_could_not_read_fit_what_is_there(
    client: dict[str, str],
    starts: dict[tuple[str, int], int] | None,
    reason: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoint = make_logs(tmp_path, planned=4, committed=3)

    def look(*arguments: Any, **options: Any) -> dict[tuple[str, int], int]:
        if starts is None:
            raise Unreachable("no answer", where="test", fix="wait")
        return starts

    monkeypatch.setattr("lockgate.runtime.gaps.connect", lambda *arguments, **options: None)
    monkeypatch.setattr("lockgate.runtime.gaps.read_starts", look)
    source = KafkaSource(topic="in", servers="localhost:1", value="id INT", client=client)
    gaps = Gaps(checkpoint, [("source 'in'", source)], where="test")
    writer = EpochWriter(spark=None, outputs=(), gaps=gaps)  # type: ignore[arg-type]
    found = writer._gap_behind(RecordsGone(reason, where="test", fix="as it was"), 3)
    assert found is not None
    assert told in found.fix
    assert ("--accept-gap" in found.fix) is (told == "--accept-gap")


def at_a_gap(place: Path) -> tuple[Checkpoint, Gaps]:
    """A checkpoint whose next epoch begins at offset 35 of both partitions."""
    checkpoint = make_logs(place, planned=3, committed=3)
    return checkpoint, Gaps(checkpoint, [], where="test")


def accept_until(changes: int, checkpoint: Checkpoint, gap: Gap) -> bool:
    """Accept a gap, and die behind so many changes of files; did it end?"""
    left = [None] * changes

    def dying(change: Callable[..., None]) -> Callable[..., None]:
        def changed(tree: LocalTree, *arguments: Any) -> None:
            if not left:
                raise KeyboardInterrupt
            left.pop()
            change(tree, *arguments)

        return changed

    with pytest.MonkeyPatch.context() as patch:
        for name in ("write", "remove"):
            patch.setattr(LocalTree, name, dying(getattr(LocalTree, name)))
        try:
            gaps = Gaps(checkpoint, [], where="test")
            gaps.check(is_accepting=True)
            gaps.accept([gap], Commits())
        except KeyboardInterrupt:
            return False
    return True


@pytest.mark.system
@pytest.mark.parametrize("guarantee", [EXACT, AT_LEAST_ONCE], ids=lambda one: one.name.lower())
def test_records_that_expired_before_they_were_read_are_skipped_only_if_that_is_accepted(
    guarantee: Guarantee, copying: Copying
) -> None:
    job = copying.job(guarantee)
    copying.send(range(100))
    copying.run(job)
    copying.send(range(100, 200))
    copying.run(job, accept_gap=True)  # there is none
    copying.send(range(200, 300))
    copying.remove_before(250)
    with pytest.raises(RecordsGone) as stopped:
        copying.run(job)
    told = f"topic '{copying.source}', partition 0: offsets [200, 250), at most 50 records"
    assert stopped.value.what == f"Records were removed before the job read them: {told}"
    assert re.search(r"source 'events', declared at .*test_gaps\.py:\d+; job", stopped.value.where)
    assert all(choice in stopped.value.fix for choice in ("retention", "--accept-gap", "--new-life"))
    started = copying.run(job, accept_gap=True)
    assert [str(gap) for gap in started.accepted] == [told]
    expected = Counter([*range(200), *range(250, 300)])
    assert copying.ids() == expected
    copying.send(range(300, 310))
    assert not copying.run(job).accepted
    assert copying.ids() == expected + Counter(range(300, 310))
    (gap,) = copying.checkpoint.gaps()
    assert (gap.start, gap.end, gap.epoch) == (200, 250, 1)
    if guarantee is EXACT:
        assert copying.ledger().gaps == (gap,)


@pytest.mark.system
def test_a_gap_in_an_epoch_that_is_planned_is_accepted_whole_or_not_at_all(copying: Copying) -> None:
    copying.send(range(200))
    copying.run(copying.counting(is_failing=False))
    copying.send(range(200, 400))
    with pytest.raises(FunctionFailed, match="three hundred"):
        copying.run(copying.counting(is_failing=True))
    assert copying.checkpoint.epochs("offsets")[-1] == copying.checkpoint.epochs("commits")[-1] + 1
    copying.send(range(400, 500))
    copying.remove_before(450)  # behind the end of the epoch that is planned
    with pytest.raises(RecordsGone, match=r"\[200, 450\)"):
        copying.run(copying.counting(is_failing=True))

    def die(tree: LocalTree, name: str, content: bytes) -> None:
        raise OSError("the process died here")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalTree, "replace", die)
        with pytest.raises(OSError, match="died here"):
            copying.run(copying.counting(is_failing=True), accept_gap=True)
    assert copying.checkpoint.gaps() == copying.ledger().gaps == ()
    with pytest.raises(RecordsGone, match=r"\[200, 450\)"):
        copying.run(copying.counting(is_failing=True))
    copying.run(copying.counting(is_failing=True), accept_gap=True)
    rows = {row["id"]: row["n"] for row in read_json(copying.servers, copying.output)}
    assert copying.ids() == Counter([*range(200), *range(450, 500)])
    assert (rows[199], rows[450], rows[499]) == (200, 201, 250)  # the state goes on as if they had never been there
    assert copying.ledger().gaps == copying.checkpoint.gaps()


@pytest.mark.system
def test_an_epoch_that_is_committed_but_not_logged_cannot_be_computed_without_its_records(copying: Copying) -> None:
    for first in (0, 100):
        copying.send(range(first, first + 100))
        copying.run()
    last = copying.checkpoint.epochs("commits")[-1]
    for name in (f"commits/{last}", checksum_of(f"commits/{last}")):
        (copying.place / "checkpoint" / name).unlink(missing_ok=True)
    copying.remove_before(150)
    with pytest.raises(RecordsGone, match=rf"\[100, 150\).*Epoch {last} is committed") as stopped:
        copying.run(accept_gap=True)
    assert "--accept-gap" not in stopped.value.fix
    assert copying.checkpoint.gaps() == ()
    assert copying.ids() == Counter(range(200))


@pytest.mark.system
def test_retention_that_overtakes_an_epoch_is_reported_with_what_is_missing(copying: Copying) -> None:
    copying.send(range(100))
    copying.run()
    copying.send(range(100, 200))
    look, looks = Gaps.look, []

    def look_and_remove(gaps: Gaps, epoch: int) -> None:
        look(gaps, epoch)
        looks.append(epoch)
        copying.remove_before(150)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gaps, "look", look_and_remove)
        with pytest.raises(RecordsGone, match=r"offsets \[100, 150\)") as stopped:
            copying.run()
    assert len(looks) == 1  # neither the epoch nor the query is tried again
    assert "failOnDataLoss" not in str(stopped.value)
    assert copying.ids() == Counter(range(100))
    copying.run(accept_gap=True)
    assert copying.ids() == Counter([*range(100), *range(150, 200)])
