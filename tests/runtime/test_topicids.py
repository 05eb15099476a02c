"""A topic that was deleted and created again is another one: no job goes on with the old offsets, or in silence.

A replaced topic gets more records than the old one had, so that the old offsets exist in it.
"""

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lockgate import Guarantee, Job, KafkaSink, KafkaSource, Mode, Run, stream, write_stream
from lockgate.connectors.kafka.topics import create_topics, delete_topics, existing_topics
from lockgate.errors import Refused, TopicGone
from lockgate.lab.services.stack import Stack
from lockgate.runtime import topicids
from support.records import count_ids, make_topics, send, unique
from support.runs import live, run_to_the_end, wait_for_run
from support.waiting import wait_for

GUARANTEE = Guarantee.END_TO_END_EXACTLY_ONCE
pytestmark = [pytest.mark.system, pytest.mark.usefixtures("spark")]


def replace(servers: str, topic: str) -> None:
    delete_topics(servers, [topic], where="test")
    wait_for("the end of the topic", lambda: topic not in existing_topics(servers, where="test"))
    create_topics(servers, [topic], partitions=2, where="test")


class Copying:
    """A place with a job that copies a topic."""

    def __init__(self, servers: str, place: Path) -> None:
        self.servers, self.place, self.name = servers, place, unique("copy")
        self.source, self.output = make_topics(servers, f"{self.name}-in", f"{self.name}-out")

    def job(
        self, guarantee: Guarantee = GUARANTEE, *, servers: str | None = None, mode: Mode = Mode.MICRO_BATCH
    ) -> Job:
        read = stream("events", KafkaSource(topic=self.source, servers=servers or self.servers, value="id INT"))
        out = read.to("out", KafkaSink(topic=self.output, servers=self.servers))
        return Job(self.name, out, guarantee=guarantee, mode=mode)

    def send(self, ids: range) -> None:
        send(self.servers, self.source, [{"id": number} for number in ids])

    def run(self, job: Job | None = None, **options: bool) -> Run:
        return run_to_the_end(job or self.job(), self.place, **options)

    def ids(self) -> Counter[int]:
        return count_ids(self.servers, self.output)


@pytest.fixture
def copying(kafka: str, tmp_path: Path) -> Copying:
    return Copying(kafka, tmp_path)


def test_a_source_that_was_replaced_between_runs_is_refused(copying: Copying) -> None:
    job = copying.job(Guarantee.AT_LEAST_ONCE)
    copying.send(range(100))
    copying.run(job)
    replace(copying.servers, copying.source)
    copying.send(range(100, 250))
    with pytest.raises(Refused, match="was deleted and created again") as refused:
        copying.run(job)
    assert "--new-life" in refused.value.fix
    assert "test_topicids.py" in refused.value.where
    with pytest.raises(Refused, match="was deleted and created again"):
        copying.run(job, accept_outputs=True)  # which says nothing of sources
    copying.run(job, new_life=True)
    copying.send(range(250, 260))
    copying.run(job)
    assert copying.ids() == Counter(range(260))


def test_a_source_that_is_replaced_while_the_job_runs_ends_it_before_anything_is_skipped(copying: Copying) -> None:
    copying.send(range(100))
    with live(copying.job(), copying.place) as running:
        wait_for_run("the first events", lambda: copying.ids() == Counter(range(100)), running)
        running.stop()
    started = run_live_from(copying)
    with pytest.raises(TopicGone, match="was deleted and created again"):
        started.wait()
    assert copying.ids() == Counter(range(100))


def test_a_source_that_is_replaced_under_a_real_time_query_ends_it(
    copying: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topicids, "_WATCH_SECONDS", 0.0)
    job = copying.job(Guarantee.AT_LEAST_ONCE, mode=Mode.REAL_TIME)  # whose epochs last a minute
    with live(job, copying.place) as running:
        copying.send(range(100))
        wait_for_run("the first events", lambda: copying.ids() == Counter(range(100)), running)
        delete_topics(copying.servers, [copying.source], where="test")

        def has_ended() -> bool:
            create_topics(copying.servers, [copying.source], partitions=2, where="test")  # if the query does not
            return running.wait(timeout=1)

        with pytest.raises(TopicGone, match="was deleted and created again"):
            wait_for("the end of the run", has_ended)
        assert not running.is_running


def run_live_from(copying: Copying) -> Run:
    """A run whose source is replaced when it has started, and before it has planned anything of it."""
    from lockgate.runtime.topicids import TopicIds

    keep = TopicIds.keep

    def keep_and_replace(self: TopicIds) -> None:
        keep(self)
        replace(copying.servers, copying.source)
        copying.send(range(100, 250))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TopicIds, "keep", keep_and_replace)
        return run_to_the_end(copying.job(), copying.place, wait=False)


def test_a_replaced_output_is_refused_until_an_operator_accepts_it(copying: Copying) -> None:
    copying.send(range(10))
    copying.run()
    replace(copying.servers, copying.output)
    copying.send(range(10, 20))
    with pytest.raises(Refused, match="was deleted and created again") as refused:
        copying.run()
    assert "--accept-outputs" in refused.value.fix
    copying.run(accept_outputs=True)
    copying.send(range(20, 30))
    copying.run()  # accepted once, it is the one that counts
    assert copying.ids() == Counter(range(10, 30))
    delete_topics(copying.servers, [copying.output], where="test")
    with pytest.raises(Refused, match="is gone since the job used it"):
        copying.run()


def test_another_cluster_is_not_the_one_that_the_offsets_are_of(copying: Copying, own_stack: Stack) -> None:
    copying.send(range(10))
    copying.run()
    elsewhere = own_stack.kafka.servers
    create_topics(elsewhere, [copying.source], partitions=2, where="test")
    send(elsewhere, copying.source, [{"id": number} for number in range(50)])
    with pytest.raises(Refused, match="is in another Kafka cluster"):
        copying.run(copying.job(servers=elsewhere))
    copying.send(range(10, 20))
    copying.run()
    assert copying.ids() == Counter(range(20))

    def both(*servers: str) -> Job:
        first, second = (
            stream(name, KafkaSource(topic=copying.source, servers=one, value="id INT"))
            for name, one in zip(("first", "second"), servers, strict=True)
        )
        out = KafkaSink(topic=copying.output, servers=copying.servers)
        return Job(f"{copying.name}-both", first.merge(second).to("out", out), guarantee=GUARANTEE)

    place = copying.place / "both"
    started = run_to_the_end(both(copying.servers, elsewhere), place)
    assert started._watcher.events_total == 20 + 50  # Spark reports both under one name
    for servers in [(elsewhere, copying.servers), (copying.servers, copying.servers)]:
        with pytest.raises(Refused, match="is in another Kafka cluster"):
            run_to_the_end(both(*servers), place)


def test_write_stream_ends_where_its_source_was_replaced(copying: Copying, spark: SparkSession) -> None:
    def run(*, adopt: bool = False) -> None:
        read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", copying.servers)
        frame = read.option("subscribe", copying.source).option("startingOffsets", "earliest").load()
        sink = KafkaSink(topic=copying.output, servers=copying.servers)
        place = str(copying.place / "checkpoint")
        writer = write_stream(frame.select("value"), to=sink, name=copying.name, checkpoint=place, adopt=adopt)
        writer.trigger(availableNow=True).start().awaitTermination()

    copying.send(range(100))
    run()
    copying.send(range(100, 110))
    run()
    replace(copying.servers, copying.output)
    copying.send(range(110, 120))
    with pytest.raises(Exception, match="was deleted and created again"):
        run()
    run(adopt=True)
    assert copying.ids() == Counter(range(110, 120))
    replace(copying.servers, copying.source)
    copying.send(range(500, 750))
    with pytest.raises(Exception, match="was deleted and created again"):
        run()
    assert copying.ids() == Counter(range(110, 120))
