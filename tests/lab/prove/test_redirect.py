"""A proof touches nothing of the author's: every endpoint is moved, or the job is refused."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lockgate
from lockgate import (
    ConsoleSink,
    FileSink,
    FileSource,
    FileTable,
    Guarantee,
    Job,
    KafkaSink,
    KafkaSource,
    MemorySink,
    MemorySource,
    MonitorSink,
    MqttSource,
    PostgresSink,
    PostgresTable,
    SensorSource,
    SocketSource,
    SqliteSink,
    acks,
    stream,
    table,
)
from lockgate.dataflow.endpoints import Sink, Source
from lockgate.dataflow.steps import Read, Write
from lockgate.dataflow.stream import Stream
from lockgate.errors import Refused
from lockgate.lab.bench.contest import NumberedFiles, StopwatchSink
from lockgate.lab.bench.table import JdbcSink
from lockgate.lab.prove.redirect import Redirected, Site, redirect, texts_in
from lockgate.planner.plan import plan
from lockgate.spark.timing import LateLog

HOST, DSN, PATH = "prod-broker:9092", "postgresql://prod:secret@prod-db:5432/shop", "/srv/prod/data"
THEIRS = ("prod", "secret")
VALUE = "k STRING, v INT"

SOURCES: dict[type[Source], Any] = {
    KafkaSource: KafkaSource(topic="in", servers=HOST, value=VALUE, client={"client.id": "prod"}),
    FileSource: FileSource(path=PATH, value=VALUE),
    SocketSource: SocketSource("prod", 1, value=VALUE, format="json"),
    MqttSource: MqttSource(topic="prod", host="prod", value=VALUE),
    SensorSource: SensorSource(),
    MemorySource: MemorySource([], value=VALUE),
    NumberedFiles: NumberedFiles(path=PATH, value=VALUE),
}
SINKS: dict[type[Sink], Any] = {
    KafkaSink: KafkaSink(
        topic="out",
        servers=f"{HOST},prod-2:9092",
        key="k",
        client={"security.protocol": "SSL", "kafka.ssl.key.password": "secret", "client.id": "prod", "linger.ms": "7"},
    ),
    FileSink: FileSink(path=f"{PATH}/out", partition_by=("k",)),
    PostgresSink: PostgresSink(table="prod.orders", dsn=DSN, key="k", deleted="v < 0"),
    SqliteSink: SqliteSink(table="orders", path=f"{PATH}/out.db", key="k"),
    MonitorSink: MonitorSink(metric="m", value="v", labels="k", latest="v", host="prod", port=1234),
    ConsoleSink: ConsoleSink(),
    MemorySink: MemorySink(),
    LateLog: LateLog("prod"),
    StopwatchSink: StopwatchSink(),
    JdbcSink: JdbcSink("prod", None),  # type: ignore[arg-type]
}
MOVED = {KafkaSource, FileSource, KafkaSink, FileSink, PostgresSink, SqliteSink, MonitorSink, ConsoleSink}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site("proof-1", "127.0.0.1:5555", tmp_path / "site", "postgresql://postgres@127.0.0.1:5556/postgres")


def source(topic: str = "in", servers: str = HOST, **more: Any) -> Stream:
    return stream(topic, KafkaSource(topic=topic, servers=servers, value=VALUE, **more))


def kafka(topic: str = "out", servers: str = HOST, **more: Any) -> KafkaSink:
    return KafkaSink(topic=topic, servers=servers, **more)


def job_of(*outputs: Any, guarantee: Guarantee = Guarantee.AT_LEAST_ONCE, **more: Any) -> Job:
    return Job("job", *outputs, guarantee=guarantee, **more)


def assert_nothing_is_theirs(moved: Redirected) -> None:
    left = [
        (path, text) for path, text in texts_in(moved) if any(word in text for word in THEIRS) and text != "proof-1"
    ]
    assert left == []


def classes(base: type) -> Iterator[type]:
    """What a user can write into a job, and what bench measures; others only replace it in a test."""
    for module in pkgutil.walk_packages(lockgate.__path__, "lockgate."):
        importlib.import_module(module.name)
    waiting = [base]
    while waiting:
        one = waiting.pop()
        waiting += one.__subclasses__()
        name = one.__module__
        is_ours = name.startswith("lockgate.") and not name.startswith(
            ("lockgate.testing.", "lockgate.lab.rig.", "lockgate.lab.randomjobs.")
        )
        if is_ours and not inspect.isabstract(one):
            yield one


def test_every_source_of_the_package_is_moved_or_refused(site: Site) -> None:
    assert set(classes(Source)) == set(SOURCES)
    for kind, one in SOURCES.items():
        job = job_of(stream("in", one).to("out", kafka()), guarantee=Guarantee.AT_MOST_ONCE)
        if kind in MOVED:
            assert_nothing_is_theirs(redirect(job, site))
        else:
            with pytest.raises(Refused, match=kind.__name__) as told:
                redirect(job, site)
            assert "KafkaSource" in told.value.fix


def test_every_sink_of_the_package_is_moved_or_refused(site: Site) -> None:
    assert set(classes(Sink)) == set(SINKS)
    for kind, one in SINKS.items():
        if kind in MOVED:
            moved = redirect(job_of(source().to("out", one)), site)
            assert_nothing_is_theirs(moved)
            assert moved.results[0].sink.ability == one.ability
        else:
            with pytest.raises(Refused, match=kind.__name__):
                redirect(job_of(source().to("out", one)), site)


def test_an_endpoint_that_the_user_wrote_is_refused(site: Site) -> None:
    class Mine(KafkaSink):
        pass

    class Yours(KafkaSource):
        pass

    with pytest.raises(Refused, match="Mine"):
        redirect(job_of(source().to("out", Mine(topic="out", servers=HOST))), site)
    with pytest.raises(Refused, match="Yours"):
        redirect(job_of(stream("in", Yours(topic="in", servers=HOST, value=VALUE)).to("out", kafka())), site)


def full_job() -> Job:
    named = table(
        "names", FileTable(path=f"{PATH}/names.csv", format="csv", schema="k STRING, name STRING"), refresh="1 hour"
    )
    prices = table("prices", PostgresTable(table="prices", dsn=DSN, schema="k STRING, price INT"), refresh="1 hour")
    joined = source().join(named, on="k").join(prices, on="k")
    summed = source("other").key_by("k").rolling(total="sum(v)")
    return Job(
        "job",
        joined.to("joined", kafka(key="k", client={"linger.ms": "7", "client.id": "prod"})),
        summed.to("all", PostgresSink(table="a", dsn=DSN, key="k")),
        summed.where("total > 5").to("some", FileSink(path=PATH), guarantee=Guarantee.AT_LEAST_ONCE),
        summed.where("total > 6").to("screen", ConsoleSink(), guarantee=Guarantee.AT_LEAST_ONCE),
        guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
        epoch="7 seconds",
        dead_letters=kafka("letters"),
    )


def test_a_moved_job_is_the_same_graph_with_the_same_promises(site: Site) -> None:
    original = full_job()
    moved = redirect(original, site)
    assert_nothing_is_theirs(moved)
    before, after = plan(original), plan(moved.job)
    assert [node.name for node in after.logical.nodes] == [node.name for node in before.logical.nodes]
    assert [path.reached for path in after.paths] == [path.reached for path in before.paths]
    assert (moved.job.name, moved.job.guarantee, moved.job.epoch) == ("proof-1", original.guarantee, original.epoch)
    assert [output.step.guarantee for output in moved.job.outputs] == [o.step.guarantee for o in original.outputs]
    assert moved.job.outputs[1].step.inputs[0] is moved.job.outputs[2].step.inputs[0].inputs[0]  # one rolling step
    assert [(one.label, one.streams, one.place) for one in moved.inputs] == [
        ("in-0", ("in",), "proof-1-in-0"),
        ("in-1", ("other",), "proof-1-in-1"),
    ]
    assert [(one.name, one.is_exact, one.is_letters) for one in moved.results] == [
        ("joined", True, False),
        ("all", True, False),
        ("some", False, False),
        ("screen", False, False),
        ("dead-letters", True, True),
    ]
    assert [one.name for one in moved.tables] == ["names", "prices"]
    sinks = {one.name: one.sink for one in moved.results}
    joined, upsert = sinks["joined"], sinks["all"]
    assert isinstance(joined, KafkaSink)
    assert (joined.key, joined.client, joined.is_traced) == (("k",), {"linger.ms": "7"}, True)
    assert isinstance(upsert, PostgresSink)
    assert (upsert.key, upsert.create, upsert.dsn) == (("k",), True, site.dsn)
    assert moved.job.dead_letters is not None
    assert moved.job.dead_letters.sink == sinks["dead-letters"]


def test_tracking_goes_along(site: Site) -> None:
    job = job_of(source().to("out", kafka()), tracking=acks(max_attempts=2), dead_letters=kafka("letters"))
    assert redirect(job, site).job.tracking == job.tracking


def test_a_place_that_is_used_twice_stays_one_place_and_others_stay_separate(site: Site) -> None:
    one = stream("one", KafkaSource(topic="in", servers=HOST, value=VALUE))
    same = stream("same", KafkaSource(topic="in", servers=f"{HOST},prod-2:9092", value=VALUE))
    other = stream("other", KafkaSource(topic="in", servers="prod-9:9092", value=VALUE))
    job = job_of(
        one.to("a", SqliteSink(table="a", path=f"{PATH}/x.db")),
        same.to("b", SqliteSink(table="b", path=f"{PATH}/../data/x.db")),
        other.to("c", SqliteSink(table="c", path=f"{PATH}/y.db")),
    )
    moved = redirect(job, site)
    assert [(one.label, one.streams) for one in moved.inputs] == [("in-0", ("one", "same")), ("in-1", ("other",))]
    paths = [result.sink.path for result in moved.results if isinstance(result.sink, SqliteSink)]
    assert paths[0] == paths[1] != paths[2]


def test_systems_that_commit_separately_are_not_put_together(site: Site) -> None:
    exact = Guarantee.END_TO_END_EXACTLY_ONCE
    two = [source().to("a", kafka("a")), source("in2").to("b", kafka("b", servers="prod-9:9092"))]
    with pytest.raises(Refused, match="'a' and 'b' commit in two Kafka clusters"):
        redirect(job_of(*two, guarantee=exact), site)
    redirect(job_of(*two), site)  # without transactions there is nothing to put together
    bases = [
        source().to("a", PostgresSink(table="a", dsn=DSN)),
        source("in2").to("b", PostgresSink(table="b", dsn="postgresql://prod-9/shop")),
    ]
    with pytest.raises(Refused, match="two databases"):
        redirect(job_of(*bases, guarantee=exact), site)


def test_a_site_that_belongs_to_the_user_is_refused(site: Site, tmp_path: Path) -> None:
    def told(job: Job, **change: Any) -> str:
        with pytest.raises(Refused) as refused:
            redirect(job, Site(**{**vars(site), **change}))
        return refused.value.what

    assert "own Kafka" in told(job_of(source(servers="localhost:5555").to("out", kafka())))
    assert "own PostgreSQL" in told(job_of(source().to("out", PostgresSink(table="a", dsn=site.dsn or ""))))
    assert "has none" in told(job_of(source().to("out", PostgresSink(table="a", dsn=DSN))), dsn=None)
    assert "overlap" in told(job_of(source().to("out", FileSink(path=str(tmp_path)))))
    assert "overlap" in told(job_of(source().to("out", FileSink(path=str(tmp_path / "site" / "x")))))
    assert "cannot be named" in told(job_of(source().to("out", kafka())), name="job")


def outer(frame: Any) -> Any:
    return inner(frame)


def inner(frame: Any) -> Any:
    return frame.sparkSession.read.parquet("x")


@pytest.mark.parametrize(
    "function",
    [
        lambda frame: frame.join(frame.sparkSession.table("t"), "k"),
        lambda frame: [one.write.parquet("x") for one in [frame]],
        outer,
        dict,
    ],
)
def test_a_transform_that_may_hide_an_endpoint_is_refused(function: Any, site: Site) -> None:
    with pytest.raises(Refused, match="transform"):
        redirect(job_of(source().transform(function).to("out", kafka())), site)


def test_a_transform_of_its_frame_alone_is_moved(site: Site) -> None:
    distinct = source().transform(lambda frame: frame.where("v > 1").dropDuplicates(["k"]))
    assert_nothing_is_theirs(redirect(job_of(distinct.to("o", kafka())), site))


def test_a_function_that_holds_an_address_is_refused(site: Site) -> None:
    servers = HOST

    def tell(row: Any) -> Any:
        return row.k, len(servers)

    with pytest.raises(Refused, match="still leads to a place of yours") as told:
        redirect(job_of(source().map(tell, "k STRING, v INT").to("out", kafka())), site)
    assert "test_redirect.py" in told.value.where


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda s: s.where("_topic = 'in'").to("out", kafka()), "_topic"),
        (lambda s: s.to("out", KafkaSink(route="k", servers=HOST)), "column 'k' names"),
        (lambda s: s.to("out", FileSink(path="s3://bucket/x")), "only once"),
    ],
)
def test_what_would_mean_something_else_is_refused(change: Any, match: str, site: Site) -> None:
    with pytest.raises(Refused, match=match):
        redirect(job_of(change(source())), site)


def test_the_users_job_is_as_it_was(site: Site) -> None:
    original = full_job()
    before = sorted(texts_in(original))
    redirect(original, site)
    assert sorted(texts_in(original)) == before
    assert all(one.step.sink.wants_place is False for one in original.outputs if isinstance(one.step, Write | Read))
