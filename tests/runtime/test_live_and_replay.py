"""The same program over the present and over the past gives the same rows."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lockgate import Guarantee, Job, KafkaSource, MemorySink, Run, stream, windows
from support.records import make_topics, send, unique
from support.runs import live, reports_of, run_to_the_end, wait_for_run

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("spark")]

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
LATENESS = timedelta(seconds=20)
Event = dict[str, Any]


def job(servers: str, orders: str, payments: str, sink: MemorySink) -> Job:
    ordered = stream("orders", KafkaSource(topic=orders, servers=servers, value="shop STRING, id INT, at TIMESTAMP"))
    paid = stream("payments", KafkaSource(topic=payments, servers=servers, value="id INT, amount INT, paid TIMESTAMP"))
    volume = (
        ordered.event_time("at", lateness=LATENESS)
        .join(paid.event_time("paid", lateness=LATENESS), on="id", within="1 minute", name="paid orders")
        .key_by("shop")
        .window(windows.tumbling("30 seconds"), name="volume per shop")
        .aggregate(orders="count(*)", amount="sum(amount)")
    )
    return Job("volume", volume.to("volume", sink), guarantee=Guarantee.AT_LEAST_ONCE, epoch="200 milliseconds")


def make_events(count: int) -> tuple[list[Event], list[Event]]:
    rng = random.Random(11)
    orders = [{"shop": f"s{n % 4}", "id": n, "at": BEGIN + timedelta(seconds=n)} for n in range(count)]
    payments = [
        {"id": n, "amount": rng.randint(1, 100), "paid": BEGIN + timedelta(seconds=n + rng.randint(0, 90))}
        for n in range(count)
    ]
    # Disorder that stays within the lateness: each event arrives up to 15 seconds after its neighbours.
    orders.sort(key=lambda event: event["at"] + timedelta(seconds=rng.uniform(0, 15)))
    payments.sort(key=lambda event: event["paid"] + timedelta(seconds=rng.uniform(0, 15)))
    # Both streams end with an event far behind the others, so that every window closes.
    end = BEGIN + timedelta(seconds=count + 1000)
    orders += [{"shop": "end", "id": -1 - n, "at": end} for n in range(3)]
    payments += [{"id": -100 - n, "amount": 0, "paid": end} for n in range(3)]
    return orders, payments


def expected_rows(orders: list[Event], payments: list[Event]) -> Counter[tuple[Any, ...]]:
    paid = {payment["id"]: payment for payment in payments}
    sums: dict[tuple[Any, ...], list[int]] = {}
    for order in orders:
        payment = paid.get(order["id"])
        if payment is not None and abs(payment["paid"] - order["at"]) <= timedelta(minutes=1):
            begin = BEGIN + (order["at"] - BEGIN) // timedelta(seconds=30) * timedelta(seconds=30)
            sums.setdefault((order["shop"], begin, begin + timedelta(seconds=30)), []).append(payment["amount"])
    return Counter((*group, len(amounts), sum(amounts)) for group, amounts in sums.items())


def test_a_job_with_window_and_join_gives_the_same_rows_live_and_replayed(kafka: str, tmp_path: Path) -> None:
    first, second = make_topics(kafka, unique("orders"), unique("payments"), partitions=3)
    orders, payments = make_events(400)
    live_sink, replay_sink = MemorySink(), MemorySink()
    with live(job(kafka, first, second, live_sink), tmp_path) as running:
        for part in range(0, len(orders), 50):
            seen = epochs_done(running)
            for topic, events in zip((first, second), (orders, payments), strict=True):
                send(kafka, topic, events[part : part + 50], partition=lambda event: event["id"] % 3)
            wait_for_run("an epoch", lambda seen=seen: epochs_done(running) > seen, running)  # type: ignore[misc]
        expected = expected_rows(orders, payments)
        wait_for_run("all rows", lambda: len(live_sink.rows) >= len(expected), running)
    run_to_the_end(job(kafka, first, second, replay_sink), tmp_path, checkpoint=str(tmp_path / "replay"))
    assert Counter(map(tuple, replay_sink.rows)) == expected
    assert Counter(map(tuple, live_sink.rows)) == expected
    assert len(set(live_sink.epochs)) > len(set(replay_sink.epochs))


def epochs_done(running: Run) -> int:
    return max((int(report["batchId"]) for report in reports_of(running) if report["numInputRows"]), default=-1)
