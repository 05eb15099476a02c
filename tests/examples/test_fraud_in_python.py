"""Fraud detection in Python: which form runs, what it scores and cuts off, and what a kill does to it: nothing."""

import json
import runpy
import sys
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from pyspark.sql import SparkSession

from lockgate import Guarantee, explain, plan, run
from lockgate.cli.jobfile import load_job
from lockgate.demo.fraud.transactions import make_transactions
from lockgate.kafka.topics import create_topics
from lockgate.services.stack import Stack

FILE = Path(__file__).parents[2] / "examples" / "fraud_in_python.py"
NAMES = ("payments", "scores", "letters")
LOOKS = ("amount_score", "place_score", "register_score")
COUNT = 300


@pytest.fixture(autouse=True)
def path_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a job file makes the modules beside it importable; not for the tests after this one."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def places(stack: Stack) -> dict[str, str]:
    """The parameters of the job: topics of its own, with payments in them, and one record that is none."""
    servers = stack.status().kafka.servers or ""
    topics = {name: f"{name}-{uuid.uuid4().hex[:8]}" for name in NAMES}
    create_topics(servers, list(topics.values()), partitions=1, where="a test")
    producer = Producer({"bootstrap.servers": servers})
    for value in (b"no JSON", *(json.dumps(payment).encode() for payment in some_payments())):
        producer.produce(topics["payments"], value)
    assert producer.flush(60) == 0
    return {"servers": servers, **topics}


def some_payments() -> list[dict[str, Any]]:
    """Of few cards, so that cards have a history; one has no amount, and cannot be summed."""
    payments = list(make_transactions(COUNT, seed=19, cards=10, fraud_share=0.05))
    return [*payments, {**payments[0], "id": "odd", "amount": None}]


def test_the_plan_says_which_form_runs_and_what_its_budget_counts() -> None:
    job = load_job(str(FILE), [])
    assert plan(job).reached is Guarantee.END_TO_END_EXACTLY_ONCE
    told = explain(job)
    assert "in micro-batches: the deadline of 20 milliseconds counts from the moment at which the task gives" in told
    assert "real-time mode, which has no such wait, runs no Python" in told


@pytest.mark.system
def test_payments_are_scored_and_what_is_slow_is_cut_off(
    places: dict[str, str], spark: SparkSession, tmp_path: Path
) -> None:
    job = load_job(str(FILE), [f"{name}={text}" for name, text in places.items()])
    run(job, checkpoint=str(tmp_path / "checkpoint"), until_caught_up=True, log_file=tmp_path / "spark.log")
    check(places)


@pytest.mark.prove
def test_each_payment_is_scored_once_although_the_driver_is_killed(
    places: dict[str, str], run_killed: Callable[[Path, Mapping[str, str], int], None]
) -> None:
    run_killed(FILE, places, 50)
    check(places)


def check(places: dict[str, str]) -> None:
    """Each payment is there once; every score that is there is the one that plain Python has."""
    functions = runpy.run_path(str(FILE))
    payments = [{**payment, "at": datetime.fromisoformat(payment["at"])} for payment in some_payments()]
    expected = {row["id"]: row for row in functions["answer"]({"payments": payments})["scores"]}
    merchants = {payment["id"]: payment["merchant"] for payment in payments}
    rows = read_committed(places["servers"], places["scores"])
    assert sorted(row["id"] for row in rows) == sorted(expected)
    assert len(expected) == COUNT
    for row in rows:
        there = {look: row[look] for look in LOOKS if look not in row["missing"]}
        assert there == pytest.approx({look: expected[row["id"]][look] for look in there})
        assert all(row[look] is None for look in row["missing"])
        assert row["is_partial"] == (len(there) < len(LOOKS))
        assert row["score"] == max(there.values(), default=None)
    slow = [row for row in rows if merchants[row["id"]].startswith(functions["SLOW"])]
    assert slow
    assert all("register_score" in row["missing"] for row in slow)
    # A busy machine cuts off others, too.
    assert sum(not row["is_partial"] for row in rows) > COUNT / 4
    (letter,) = read_committed(places["servers"], places["letters"])
    assert (letter["step"], letter["source"]) == ("payments", "payments")


def read_committed(servers: str, topic: str) -> list[dict[str, Any]]:
    """All committed records of a topic; what ends a transaction is a record, too, and nobody sees that one."""
    settings = {"bootstrap.servers": servers, "group.id": "test", "isolation.level": "read_committed"}
    consumer = Consumer({**settings, "enable.partition.eof": "true"})
    try:
        left = {*consumer.list_topics(topic, timeout=60).topics[topic].partitions}
        consumer.assign([TopicPartition(topic, number, 0) for number in left])
        found = []
        while left:
            message = consumer.poll(60)
            assert message is not None, f"partitions {left} have no end"
            if (error := message.error()) is None:
                found.append(json.loads(message.value() or b""))
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left.remove(message.partition())
        return found
    finally:
        consumer.close()
