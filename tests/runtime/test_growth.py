"""A job from topic to topic outgrows everything: its tasks, the partitions of its topics, those of its state."""

from pathlib import Path
from uuid import uuid4

import pytest
from kafka import KafkaAdminClient
from pyspark.sql import SparkSession

from lockgate.cli.jobfile import load_job
from lockgate.connectors.kafka.topics import create_topics
from support import process, records
from support.cli import call
from support.process import LOCKGATE, parameters
from support.runs import live, run_to_the_end, wait_for_run

FILE = str(Path(__file__).with_name("grown_job.py"))
CARDS = 30


def amount(number: int) -> int:
    return number % 97 + 1


def send(servers: str, topic: str, ids: range) -> None:
    payments = [{"id": number, "card": f"c{number % CARDS}", "amount": amount(number)} for number in ids]
    records.send(servers, topic, payments, key=lambda payment: payment["card"])


def read(servers: str, topic: str) -> list[tuple[int, str, int]]:
    """What a read_committed reader finds in all partitions."""
    return [(one["id"], one["card"], one["total"]) for one in records.read_json(servers, topic)]


def expected(count: int) -> list[tuple[int, str, int]]:
    totals: dict[str, int] = {}
    rows = []
    for number in range(count):
        card = f"c{number % CARDS}"
        totals[card] = totals.get(card, 0) + amount(number)
        rows.append((number, card, totals[card]))
    return rows


def grow(servers: str, partitions: dict[str, int]) -> None:
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.create_partitions(partitions)
    admin.close()


@pytest.mark.system
@pytest.mark.process
def test_every_event_once_while_tasks_topics_and_state_grow(kafka: str, spark: SparkSession, tmp_path: Path) -> None:
    name = f"grow{uuid4().hex[:8]}"
    create_topics(kafka, [f"{name}-in", f"{name}-out"], partitions=2, where="test")
    named = [FILE, *parameters(servers=kafka, name=name), "--checkpoint", str(tmp_path / "checkpoint")]
    job = load_job(FILE, [f"servers={kafka}", f"name={name}"])
    # 1. Another number of tasks: a driver of its own with three, then this one's.
    send(kafka, f"{name}-in", range(300))
    done = process.run(*LOCKGATE, "run", *named, "--until-caught-up", "--master", "local[3]", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # 2. Both topics grow while the job is stopped, and so does its state.
    grow(kafka, {f"{name}-in": 5, f"{name}-out": 3})
    send(kafka, f"{name}-in", range(300, 600))
    assert call("checkpoints", "rescale", *named, "--partitions", "7", "--yes").status == 0
    run_to_the_end(job, tmp_path)
    assert sorted(read(kafka, f"{name}-out")) == expected(600)
    # 3. Both topics grow while it runs.
    with live(job, tmp_path) as started:
        grow(kafka, {f"{name}-in": 6, f"{name}-out": 5})
        send(kafka, f"{name}-in", range(600, 900))
        wait_for_run("all events", lambda: len(read(kafka, f"{name}-out")) >= 900, started, may_restart=True)
    assert sorted(read(kafka, f"{name}-out")) == expected(900)
