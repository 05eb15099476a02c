"""Real-time mode: rows leave before their epoch ends."""

from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from lockgate import Guarantee, Job, KafkaSink, KafkaSource, Mode, plan, run, stream
from lockgate.connectors.kafka.topics import create_topics
from lockgate.errors import Refused
from lockgate.planner import physical
from lockgate.runtime.progress import Progress
from support.records import read_json, send
from support.runs import live, wait_for_run

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("spark")]


def test_rows_go_through_a_job_in_real_time_mode_and_are_counted(
    kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(physical, "REAL_TIME_EPOCH", timedelta(seconds=5))  # the shortest that Spark takes
    read, write = f"rt-in-{uuid4().hex[:8]}", f"rt-out-{uuid4().hex[:8]}"
    create_topics(kafka, [read, write], partitions=1, where="test")
    source = stream("payments", KafkaSource(topic=read, servers=kafka, value="id INT, amount INT"))
    job = Job(
        "real-time",
        source.where("amount > 10").to("large", KafkaSink(topic=write, servers=kafka, key="id")),
        guarantee=Guarantee.AT_LEAST_ONCE,
        mode=Mode.REAL_TIME,
    )
    assert plan(job).physical.mode is Mode.REAL_TIME
    with pytest.raises(Refused, match="a real-time query has no end"):
        run(job, until_caught_up=True)
    with live(job, tmp_path) as started:
        send(kafka, read, [{"id": number, "amount": number} for number in range(40)])
        wait_for_run("all rows", lambda: len(read_json(kafka, write)) >= 29, started)
        assert started.is_running
        told: list[Progress] = []

        def has_ended() -> bool:
            told.extend(filter(None, [started.progress()]))
            return bool(told) and told[-1].events_total >= 40

        wait_for_run("the end of an epoch", has_ended, started)
        assert all(0 <= (one.lag or 0) <= 40 - one.events_total for one in told), [one.line() for one in told]
        assert told[-1].lag == 0
        send(kafka, read, [{"id": number, "amount": number} for number in range(40, 47)])
        wait_for_run("rows of an epoch that goes on", lambda: len(read_json(kafka, write)) >= 36, started)
    assert [row["id"] for row in read_json(kafka, write)] == list(range(11, 47))
    has_ended()
    assert told[-1].events_total + (started.unended or 0) == 47
