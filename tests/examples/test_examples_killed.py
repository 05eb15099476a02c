"""Every example is killed while it runs, and goes on: what readers saw is held against its promise and its answer.

A sample of one in `make test`, all others in `make prove-all`.
"""

import runpy
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fraud.topics import ANALYSERS, Topics
from lockgate.lab.demo.catalog import find_example, find_examples
from lockgate.lab.services.stack import Stack
from lockgate.testing.proving import Prove
from support.records import send

SAMPLE = "app_tracking"
# No two undisturbed runs of these end alike: in the silence of one time goes on, the other has a deadline. The first is
# killed below, and held against its answer, the second in test_fraud_in_python.py.
APART = {"fraud_detection", "fraud_in_python"}
NAMES = [one.name for one in find_examples() if one.name not in APART]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.system if name == SAMPLE else pytest.mark.prove) for name in NAMES]
)
def test_example_keeps_its_promise_although_its_driver_is_killed(name: str, lockgate_prove: Prove) -> None:
    verdict = lockgate_prove(
        find_example(name).path, kills=2, faults=["kill driver"], events=600, rows_per_epoch=60, seed=3
    )
    assert verdict.kill_count == 2
    assert verdict.lost == 0
    # Also where at-least-once is declared, and rows may come twice, the state counts once; a verdict only notes that.
    assert verdict.count("wrong aggregates") == 0


# -- the table of fraud detection -------------------------------------------------------------------------------------

BEGAN = datetime(2026, 1, 1, 12, tzinfo=UTC)
COUNT = 96  # of payments, in ten minutes; the table is two minutes behind
AWAY = 60  # the payment from which on an analyser is away
ROWS_PER_EPOCH = 16


@pytest.mark.prove
@pytest.mark.process
def test_the_table_of_fraud_detection_keeps_its_promise_although_its_driver_is_killed(
    stack: Stack, run_killed: Callable[[Path, Mapping[str, str], int], None]
) -> None:
    status = stack.status()
    topics = Topics(status.kafka.servers or "", f"fraud-{uuid.uuid4().hex[:8]}-")
    topics.make(partitions=1)
    events = payments_and_scores()
    broken = {number: b"no payment %d" % number for number in (5, 37, 70)}  # the second is in the epoch that is killed
    for name, rows in events.items():
        put: dict[int, bytes] = broken if name == "payments" else {}
        values = [value for number, row in enumerate(rows) for value in (put.get(number), row) if value is not None]
        send(topics.servers, f"{topics.prefix}{name}", values)

    dsn = status.postgres.dsn or ""
    parameters = {"part": "results", "servers": topics.servers, "dsn": dsn, "prefix": topics.prefix}
    file = find_example("fraud_detection").path
    run_killed(file, parameters, ROWS_PER_EPOCH)

    timed = {name: [{**row, "_late": False} for row in rows] for name, rows in events.items()}
    expected = runpy.run_path(str(file))["answer"](timed)["table"]
    letters_table = f"{topics.prefix}letters".replace("-", "_")
    with psycopg.connect(dsn, row_factory=psycopg.rows.dict_row) as connection:
        found = connection.execute(f'SELECT * FROM "{topics.table}"').fetchall()
        letters = connection.execute(f'SELECT value FROM "{letters_table}"').fetchall()
        for name in (topics.table, letters_table):
            connection.execute(f'DROP TABLE "{name}"')
    assert COUNT / 4 < len(expected) < COUNT / 2, "one analyser is away, and the table waits for it"
    assert sorted(found, key=lambda row: row["id"]) == sorted(expected, key=lambda row: row["id"])
    # Letters have no key by which one could replace another.
    assert sorted(bytes(letter["value"]) for letter in letters) == sorted(broken.values())


def payments_and_scores() -> dict[str, list[dict[str, Any]]]:
    """What the topics hold: payments with ids of their own, and scores, of which some miss and others come twice."""
    times = [BEGAN + number * timedelta(minutes=10) / COUNT for number in range(COUNT)]
    told = [{"id": f"p{number}", "at": at} for number, at in enumerate(times)]
    paid = [{"card": f"c{number % 7}", "amount": 1.5 * number} for number in range(COUNT)]
    rows = {"payments": [{**one, **more} for one, more in zip(told, paid, strict=True)]}
    for step, analyser in enumerate(ANALYSERS, start=5):
        scored = [number - 1 if number % step == 1 else number for number in range(COUNT)]
        rows[f"scores-{analyser}"] = [{**told[number], "score": number / COUNT} for number in scored]
    del rows["scores-velocity"][AWAY:]
    return rows
