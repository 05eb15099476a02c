"""Savepoints, going back and cleaning on a real job with state, from Kafka to Kafka: every event once for each name."""

import json
import textwrap
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.checkpoints.history import look_at
from lockgate.checkpoints.marker import is_marked
from lockgate.checkpoints.tree import LocalTree, open_tree
from lockgate.cli import main as cli
from lockgate.cli.jobfile import load_job
from lockgate.connectors.kafka.topics import create_topics
from lockgate.lab.services.hdfs import Hdfs
from lockgate.runtime.run import run
from lockgate.runtime.running import Run
from support.process import parameters
from support.records import by_key, read_json, send

pytestmark = pytest.mark.system

JOB = """
    from lockgate import Guarantee, Job, KafkaSink, KafkaSource, stream

    def job(servers: str, source: str, name: str) -> Job:
        payments = stream("payments", KafkaSource(topic=source, servers=servers, value="id INT, card STRING"))
        totals = payments.key_by("card").rolling(name="count", payments="count(*)")
        return Job(
            name,
            totals.to("totals", KafkaSink(topic=f"{name}-out", servers=servers, key="card")),
            guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
        )
"""
CARDS = 5


@dataclass
class Payments:
    """A topic of payments, and jobs that count them, each under a name of its own."""

    servers: str
    directory: Path
    source: str = field(default_factory=lambda: f"payments-{uuid4().hex[:8]}")
    sent: int = 0  # payments of each card

    def target(self, name: str) -> list[str]:
        return ["totals.py", *parameters(servers=self.servers, source=self.source, name=name)]

    def send(self, count: int) -> None:
        """So many more payments of each card."""
        ids = range(self.sent * CARDS, (self.sent + count) * CARDS)
        payments = [{"id": number, "card": f"c{number % CARDS}"} for number in ids]
        send(self.servers, self.source, payments, partition=lambda payment: payment["id"] % CARDS % 2)
        self.sent += count

    def run(self, name: str, place: str, **options: object) -> Run:
        target = self.target(name)
        chosen = {"until_caught_up": True, "rows_per_epoch": 25, **options}
        return run(load_job(target[0], target[2::2]), checkpoint=place, **chosen)  # type: ignore[arg-type]

    def counts(self, name: str) -> dict[str, list[int]]:
        """What a read_committed reader sees: the counts of each card, in their order."""
        return by_key(read_json(self.servers, f"{name}-out"), "card", "payments")

    def all_cards(self, counts: Sequence[int]) -> dict[str, list[int]]:
        return {f"c{card}": [*counts] for card in range(CARDS)}


def test_a_job_with_state_continues_from_a_savepoint_goes_back_and_is_cleaned(
    kafka: str,
    hdfs: Hdfs,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "totals.py").write_text(textwrap.dedent(JOB))
    payments = Payments(kafka, tmp_path)
    one, two = f"one-{uuid4().hex[:8]}", f"two-{uuid4().hex[:8]}"
    create_topics(kafka, [payments.source, f"{one}-out", f"{two}-out"], partitions=2, where="test")
    place = str(tmp_path / "checkpoint")
    tree = LocalTree(Path(place))
    target = [*payments.target(one), "--checkpoint", place]

    def command(*words: str) -> int:
        capsys.readouterr()
        return cli.main(["checkpoints", *words])

    # Retention while it runs: eight epochs, of which two can be gone back to.
    payments.send(40)
    payments.run(one, place, keep_epochs=2)
    assert is_marked(tree, one)
    history = look_at(tree)
    assert (history.planned, history.committed) == ([5, 6, 7], [5, 6, 7])
    assert payments.counts(one) == payments.all_cards(range(1, 41))

    # A savepoint on HDFS; the job goes on, and another one begins behind it, with its checkpoint on HDFS.
    saved = f"{hdfs.uri}/savepoints/{one}"
    assert command("savepoint", *target, "--to", saved, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["epoch"], facts["was_running"]) == (7, False)
    assert sum(facts["offsets"][payments.source].values()) == 40 * CARDS
    payments.send(20)
    payments.run(one, place)
    assert payments.counts(one) == payments.all_cards(range(1, 61))
    assert command("restore", saved, *target) == 2
    assert "has a checkpoint already" in capsys.readouterr().err
    assert command("restore", saved, *payments.target(one), "--checkpoint", str(tmp_path / "elsewhere")) == 2
    assert "would be delivered again" in capsys.readouterr().err
    there = f"{hdfs.uri}/checkpoints/{two}"
    assert command("restore", saved, *payments.target(two), "--checkpoint", there) == 0
    assert "has the offsets of all 2 partitions" in capsys.readouterr().out
    payments.run(two, there, keep_epochs=2)
    assert payments.counts(two) == payments.all_cards(range(41, 61))
    remote = open_tree(there, spark)
    assert is_marked(remote, two)
    end = look_at(remote).last
    planned = remote.read(f"offsets/{end}") or b""
    other = [*payments.target(two), "--checkpoint", there]
    assert command("rollback", *other, "--to", str(end - 1), "--outputs", "again", "--yes") == 0
    assert look_at(remote).last == end - 1
    remote.write(f"offsets/{end}", planned)  # as if its driver had died in this epoch
    assert command("rollback", *other, "--uncommitted", "--yes") == 0
    assert look_at(remote).planned[-1] == end - 1
    assert command("clean", *other, "--keep", "1", "--yes") == 0
    assert look_at(remote).reachable == [end - 1]

    # Back by two epochs: what they had comes again, and nothing else.
    last = look_at(tree).committed[-1]
    back = ["rollback", *target, "--to", str(last - 2)]
    assert command(*back, "--yes") == 2
    assert command(*back, "--outputs", "again", "--yes", "--json") == 0
    assert json.loads(capsys.readouterr().out)["records_at_most"] <= 2 * 2 * 25
    payments.run(one, place)
    seen = {card: Counter(counts) for card, counts in payments.counts(one).items()}
    assert all({*counts} == {*range(1, 61)} for counts in seen.values())
    assert {counts[60] for counts in seen.values()} == {2}
    assert {counts[number] for counts in seen.values() for number in range(1, 41)} == {1}

    # The last epoch once more for its state, without its rows; then on, from what was cleaned.
    before = payments.counts(one)
    last = look_at(tree).committed[-1]
    assert command("rollback", *target, "--to", str(last - 1), "--outputs", "skip", "--yes") == 0
    payments.run(one, place)
    assert payments.counts(one) == before
    assert command("clean", *target, "--keep", "1", "--yes") == 0
    assert len(look_at(tree).reachable) == 1
    payments.send(10)
    live = payments.run(one, place, until_caught_up=False, wait=False)
    try:
        deadline = time.monotonic() + 120
        ends = {(payments.source, 0): 3 * 70, (payments.source, 1): 2 * 70}
        while Checkpoint(root=place).kafka_offsets(max(look_at(tree).committed)) != ends:
            assert time.monotonic() < deadline
            live.wait(timeout=0.2)
        # Beside a driver nothing is changed, but a copy is taken.
        assert command("clean", *target, "--keep", "1", "--yes") == 2
        assert "it holds the checkpoint" in capsys.readouterr().err
        assert command("rollback", *target, "--to", str(last), "--outputs", "again", "--yes") == 2
        assert command("savepoint", *target, "--to", str(tmp_path / "live"), "--json") == 0
        assert json.loads(capsys.readouterr().out)["was_running"]
    finally:
        live.stop()
    after = payments.counts(one)
    assert {card: after[card][: len(before[card])] for card in after} == before
    assert {card: after[card][len(before[card]) :] for card in after} == payments.all_cards(range(61, 71))
