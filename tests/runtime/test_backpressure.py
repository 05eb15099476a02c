"""A live run changes how much its epochs take while it runs, on a real Kafka, and takes every event once."""

import time
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from lockgate import Guarantee, Job, KafkaSource, MemorySink, stream
from lockgate.runtime.progress import Progress
from support.records import make_topics, send, unique
from support.runs import start

pytestmark = pytest.mark.system

EVENTS = 9_000
FIRST = 2_000


def slowly(row: Row) -> tuple[int]:
    time.sleep(0.002)
    return (row.number,)


def test_epochs_that_take_too_long_take_less(
    spark: SparkSession, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockgate.runtime.starting.ROWS_FIRST", FIRST)
    (topic,) = make_topics(kafka, unique("numbers"))
    send(kafka, topic, [{"number": number} for number in range(EVENTS)], partition=lambda event: event["number"] % 2)
    numbers = stream("numbers", KafkaSource(topic=topic, servers=kafka, value="number INT"))
    sink = MemorySink()
    job = Job("paced", numbers.map(slowly, "number INT").to("out", sink), guarantee=Guarantee.AT_LEAST_ONCE)
    totals: list[int] = []

    def note(progress: Progress) -> None:
        totals.append(progress.events_total)
        if progress.events_total == EVENTS:
            started.ask_to_stop()

    started = start(job, tmp_path, wait=False)
    started.wait(on_progress=note)
    sizes = [later - earlier for earlier, later in zip([0, *totals], totals, strict=False)]
    taken = [size for size in sizes if size]
    assert taken[0] == FIRST
    # A row takes two milliseconds at least, and an epoch is to last a second.
    assert min(taken[:-1]) < FIRST / 2, sizes
    assert sorted(row["number"] for row in sink.rows) == list(range(EVENTS))
