"""A job from topic to topic outgrows everything: its tasks, the partitions of its topics, those of its state."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from kafka import KafkaAdminClient
from lockgate import run
from lockgate.cli.jobfile import load_job
from lockgate.cli.main import main
from lockgate.kafka.topics import create_topics
from support import records

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
def test_every_event_once_while_tasks_topics_and_state_grow(
    kafka: str, spark: SparkSession, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"grow{uuid4().hex[:8]}"
    create_topics(kafka, [f"{name}-in", f"{name}-out"], partitions=2, where="test")
    named = [FILE, "-p", f"servers={kafka}", "-p", f"name={name}", "--checkpoint", str(tmp_path / "checkpoint")]
    job = load_job(FILE, [f"servers={kafka}", f"name={name}"])
    # 1. Another number of tasks: a driver of its own with three, then this one's.
    send(kafka, f"{name}-in", range(300))
    command = [sys.executable, "-m", "lockgate.cli.main", "run", *named, "--until-caught-up", "--master", "local[3]"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    # 2. Both topics grow while the job is stopped, and so does its state.
    grow(kafka, {f"{name}-in": 5, f"{name}-out": 3})
    send(kafka, f"{name}-in", range(300, 600))
    assert main(["checkpoints", "rescale", *named, "--partitions", "7", "--yes"]) == 0
    run(job, checkpoint=str(tmp_path / "checkpoint"), until_caught_up=True)
    assert sorted(read(kafka, f"{name}-out")) == expected(600)
    # 3. Both topics grow while it runs.
    started = run(job, checkpoint=str(tmp_path / "checkpoint"), wait=False)
    try:
        grow(kafka, {f"{name}-in": 6, f"{name}-out": 5})
        send(kafka, f"{name}-in", range(600, 900))
        deadline = time.monotonic() + 240
        while len(read(kafka, f"{name}-out")) < 900:
            assert time.monotonic() < deadline, "the events do not come"
            started.wait(timeout=1)
    finally:
        started.stop()
    assert sorted(read(kafka, f"{name}-out")) == expected(900)
