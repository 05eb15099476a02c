"""A topic that is created again is skipped if nothing compares its id: the check of a trial finds the missing rows.

In a trial of a random job a model gives the ids of topics, and nothing is skipped (test_planted.py). Here a real broker
shows the rows that are missing.
"""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lab.randomjobs import planted
from lockgate import Guarantee, Job, KafkaSink, KafkaSource, stream
from lockgate.connectors.kafka.topics import create_topics, delete_topics, existing_topics
from lockgate.errors import Refused
from lockgate.lab.randomjobs.interpreter import compare, expected
from lockgate.lab.randomjobs.spec import Column, Event, Output, Sink, Source, Spec
from support.records import make_topics, read_json, send, unique
from support.runs import run_to_the_end
from support.waiting import wait_for

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("spark")]


def spec_of(first: int, second: int) -> Spec:
    """A copy of so many events of a topic, and of so many of the topic that came in its place."""
    events = tuple(Event(number // first, 0, (number,)) for number in range(first + second))
    source = Source("s1", "kafka", (Column("id", "BIGINT"),), events)
    return Spec("copy", (source,), (), (Output("out0", "s1", Sink("kafka")),), "END_TO_END_EXACTLY_ONCE")


def test_rows_of_a_topic_that_was_created_again_are_missing(kafka: str, tmp_path: Path, spark: SparkSession) -> None:
    name = unique("planted")
    source, output = make_topics(kafka, f"{name}-in", f"{name}-out")
    read = stream("s1", KafkaSource(topic=source, servers=kafka, value="id BIGINT"))
    sink = KafkaSink(topic=output, servers=kafka)
    job = Job(name, read.to("out0", sink), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)
    send(kafka, source, [{"id": number} for number in range(20)])
    run_to_the_end(job, tmp_path)
    delete_topics(kafka, [source], where="test")
    wait_for("the end of the topic", lambda: source not in existing_topics(kafka, where="test"))
    create_topics(kafka, [source], partitions=2, where="test")
    send(kafka, source, [{"id": number} for number in range(20, 60)])
    with pytest.raises(Refused, match="was deleted and created again"):
        run_to_the_end(job, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        planted.plant_topics(patch)
        run_to_the_end(job, tmp_path)
    rows = read_json(kafka, output)
    found = compare(expected(spec_of(20, 40)), {"out0": rows}, Guarantee.END_TO_END_EXACTLY_ONCE)
    assert found
    assert all("missing" in one.what and not one.is_unknown for one in found)
