"""Fraud detection in Python: which form runs, what it scores and cuts off, and what a kill does to it: nothing."""

import runpy
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from fraud.transactions import make_transactions
from lockgate import Guarantee, explain, plan
from lockgate.cli.jobfile import load_job
from support.records import make_topics, read_json, send, unique
from support.runs import run_to_the_end

FILE = Path(__file__).parents[2] / "examples" / "fraud_in_python.py"
NAMES = ("payments", "scores", "letters")
LOOKS = ("amount_score", "place_score", "register_score")
COUNT = 300


@pytest.fixture(autouse=True)
def path_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules beside the example are importable, as with `python FILE`; not for the tests after this one."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(FILE.parent)])


@pytest.fixture
def places(kafka: str) -> dict[str, str]:
    """The parameters of the job: topics of its own, with payments in them, and one record that is none."""
    topics = {name: unique(name) for name in NAMES}
    make_topics(kafka, *topics.values(), partitions=1)
    send(kafka, topics["payments"], [b"no JSON", *some_payments()])
    return {"servers": kafka, **topics}


def some_payments() -> list[dict[str, Any]]:
    """Of few cards, so that cards have a history; one has no amount, and cannot be summed."""
    payments = list(make_transactions(COUNT, seed=19, cards=10, fraud_share=0.05))
    return [*payments, {**payments[0], "id": "odd", "amount": None}]


def test_the_plan_says_which_form_runs_and_what_its_budget_counts() -> None:
    job = load_job(str(FILE), [])
    assert plan(job).reached is Guarantee.END_TO_END_EXACTLY_ONCE
    told = explain(job)
    assert "in micro-batches: the deadline of 20 milliseconds starts when the task gives" in told
    assert "real-time mode, which has no such wait, runs no Python" in told


@pytest.mark.system
def test_payments_are_scored_and_what_is_slow_is_cut_off(
    places: dict[str, str], spark: SparkSession, tmp_path: Path
) -> None:
    job = load_job(str(FILE), [f"{name}={text}" for name, text in places.items()])
    run_to_the_end(job, tmp_path)
    check_scores(places)


@pytest.mark.prove
@pytest.mark.process
def test_each_payment_is_scored_once_although_the_driver_is_killed(
    places: dict[str, str], run_killed: Callable[[Path, Mapping[str, str], int], None]
) -> None:
    run_killed(FILE, places, 50)
    check_scores(places)


def check_scores(places: dict[str, str]) -> None:
    """Each payment is there once; every score that is there is the one that plain Python has."""
    functions = runpy.run_path(str(FILE))
    payments = [{**payment, "at": datetime.fromisoformat(payment["at"])} for payment in some_payments()]
    expected = {row["id"]: row for row in functions["answer"]({"payments": payments})["scores"]}
    merchants = {payment["id"]: payment["merchant"] for payment in payments}
    rows = read_json(places["servers"], places["scores"])
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
    (dead_letter,) = read_json(places["servers"], places["letters"])
    assert (dead_letter["step"], dead_letter["source"]) == ("payments", "payments")
