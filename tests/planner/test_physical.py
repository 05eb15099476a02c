from __future__ import annotations

import pytest

from lockgate.connectors.files.sink import FileSink
from lockgate.connectors.kafka.sink import KafkaSink
from lockgate.connectors.kafka.source import KafkaSource
from lockgate.connectors.local.console import ConsoleSink
from lockgate.connectors.local.memorysink import MemorySink
from lockgate.connectors.local.memorysource import MemorySource
from lockgate.connectors.postgres.sink import PostgresSink
from lockgate.connectors.sqlite.sink import SqliteSink
from lockgate.dataflow import exchange, windows
from lockgate.dataflow.endpoints import Sink
from lockgate.dataflow.job import Job
from lockgate.dataflow.stream import Stream, stream
from lockgate.errors import BadJob
from lockgate.guarantees import Guarantee, Mode
from lockgate.planner.logical import LogicalGraph, build_logical
from lockgate.planner.physical import STATE_PARTITIONS, PhysicalGraph, build_physical

MINUTE = windows.tumbling("1 minute")


def orders(name: str = "orders") -> Stream:
    return stream(name, MemorySource([], value="ip STRING, amount DOUBLE, at TIMESTAMP"))


def timed(name: str = "orders") -> Stream:
    return orders(name).event_time("at", lateness="1 second")


def logical(*streams: Stream) -> LogicalGraph:
    outputs = [one.to("out" if not index else f"out-{index + 1}", MemorySink()) for index, one in enumerate(streams)]
    return build_logical(Job("orders", *outputs, guarantee=Guarantee.AT_MOST_ONCE))


def physical(*streams: Stream) -> PhysicalGraph:
    return build_physical(logical(*streams))


def edges(graph: PhysicalGraph) -> dict[tuple[str, str], tuple[str, str]]:
    return {(edge.source, edge.target): (str(edge.exchange), edge.chosen_by) for edge in graph.edges}


def test_every_edge_has_an_exchange_and_a_reason() -> None:
    right = orders("right").select("ip", paid="amount", seen="to_timestamp(at)").event_time("seen", lateness="1 second")
    joined = timed().where("amount > 1").join(right, on="ip", within="1 minute").where("paid > 1")
    graph = physical(joined.parallel(2), joined.merge(joined))
    asked = [
        (name, node.name) for node in logical(joined.parallel(2), joined.merge(joined)).nodes for name in node.inputs
    ]
    assert [(edge.source, edge.target) for edge in graph.edges] == asked
    assert all(edge.reason for edge in graph.edges)


def test_nothing_moves_where_nothing_has_to() -> None:
    graph = physical(orders().where("amount > 1").select("ip"))
    assert set(edges(graph).values()) == {("forward", "planner")}
    assert {step.stage for step in graph.steps} == {0}


@pytest.mark.parametrize(
    ("keyed", "name", "expected"),
    [
        (timed().key_by("ip", "amount").rolling(n="count(*)"), "rolling", "by key (ip, amount)"),
        (timed().key_by("ip").window(MINUTE).aggregate(n="count(*)"), "window", "by key (ip)"),
        (timed().window(MINUTE).aggregate(n="count(*)"), "window", "by key (window)"),
    ],
)
def test_the_planner_brings_the_rows_of_a_key_together(keyed: Stream, name: str, expected: str) -> None:
    graph = physical(keyed)
    assert edges(graph)["event_time", name] == (expected, "planner")
    assert edges(graph)[name, "out"] == ("forward", "planner")
    assert graph.step(name).has_state
    assert graph.step(name).stage == graph.step("event_time").stage + 1 == graph.step("out").stage
    assert not graph.step("out").has_state


def test_both_sides_of_a_join_travel_by_its_columns() -> None:
    right = (
        orders("right").select("ip", paid="amount", seen="to_timestamp(at)").event_time("seen", lateness="0 seconds")
    )
    graph = physical(timed().join(right, on="ip", within="1 minute"))
    assert edges(graph)["event_time", "join"] == ("by key (ip)", "planner")
    assert edges(graph)["event_time-2", "join"] == ("by key (ip)", "planner")
    assert graph.step("join").has_state


@pytest.mark.parametrize(
    ("imposed", "text", "tasks"),
    [
        (exchange.forward(), "forward", "1"),
        (exchange.broadcast(), "broadcast", str(STATE_PARTITIONS)),
        (exchange.by_key("ip"), "by key (ip)", str(STATE_PARTITIONS)),
        (exchange.random(), "random", str(STATE_PARTITIONS)),
    ],
)
def test_the_user_may_impose_an_exchange(imposed: exchange.Exchange, text: str, tasks: str) -> None:
    graph = physical(orders().exchange(imposed).where("amount > 1"))
    assert edges(graph)["orders", "exchange"] == (text, "author")
    assert graph.step("exchange").tasks == graph.step("where").tasks == graph.step("out").tasks == tasks
    assert (graph.step("exchange").stage != graph.step("orders").stage) == (text != "forward")
    (edge,) = (edge for edge in graph.edges if edge.target == "exchange")
    assert "imposed at test_physical.py:" in edge.reason


def test_parallel_alone_deals_rows_out_to_that_many_tasks() -> None:
    graph = physical(orders().parallel(3).where("amount > 1"))
    assert edges(graph)["orders", "exchange"] == ("random", "planner")
    assert graph.step("where").tasks == "3"


def test_parallel_behind_an_exchange_says_how_many_tasks_it_feeds() -> None:
    assert physical(orders().exchange(exchange.random()).parallel(3)).step("out").tasks == "3"
    assert physical(orders().exchange(exchange.forward()).parallel(3)).step("out").tasks == "at most 3"


def test_a_source_says_how_many_tasks_read_it_and_a_merge_has_those_of_all() -> None:
    kafka = stream("topic", KafkaSource(topic="t", servers="k:1", value="ip STRING, amount DOUBLE, at TIMESTAMP"))
    graph = physical(orders().merge(kafka).where("amount > 1"))
    assert graph.step("topic").tasks == "one per partition"
    assert graph.step("merge").tasks == graph.step("where").tasks == "1 + one per partition"


def test_streams_that_are_merged_keep_their_stages_apart_from_what_follows() -> None:
    graph = physical(orders("a").merge(orders("b")))
    assert len({graph.step(name).stage for name in ("a", "b", "merge")}) == 3


def test_all_state_of_a_query_has_one_number_of_partitions() -> None:
    windowed = timed().key_by("ip").parallel(7).window(MINUTE, name="counts").aggregate(n="count(*)")
    graph = physical(windowed)
    assert graph.state_partitions == 7
    assert graph.step("counts").tasks == "7"
    assert physical(timed().key_by("ip").window(MINUTE).aggregate(n="count(*)")).state_partitions == STATE_PARTITIONS


@pytest.mark.parametrize(
    ("step", "name", "execution"),
    [
        (orders().where("amount > 1"), "where", "native"),
        (orders().where(lambda row: True), "where", "Python"),
        (orders().select("ip"), "select", "native"),
        (orders().map(lambda row: {}, "a INT"), "map", "Python"),
        (orders().flat_map(lambda row: [], "a INT"), "flat_map", "Python"),
        (orders().transform(lambda frame: frame), "transform", "native"),
        (orders().key_by("ip").rolling(n="count(*)"), "rolling", "Python"),
        (timed().window(MINUTE).aggregate(n="count(*)"), "window", "native"),
    ],
)
def test_a_step_says_whether_it_runs_natively_or_in_python_and_why(step: Stream, name: str, execution: str) -> None:
    told = physical(step).step(name)
    assert told.execution == execution
    assert told.reason


KAFKA = KafkaSink(topic="out", servers="k:9092")
POSTGRES = PostgresSink(table="out", dsn="host=h dbname=d")


@pytest.mark.parametrize(
    ("sink", "guarantee", "execution", "word"),
    [
        (KAFKA, Guarantee.AT_LEAST_ONCE, "native", "Spark's own Kafka writer"),
        (KAFKA, Guarantee.END_TO_END_EXACTLY_ONCE, "Python", "one transaction in Python workers, in Arrow batches"),
        (POSTGRES, Guarantee.AT_LEAST_ONCE, "Python", "COPY in Python workers"),
        (POSTGRES, Guarantee.END_TO_END_EXACTLY_ONCE, "Python", "COPY in Python workers"),
        (FileSink("/out"), Guarantee.END_TO_END_EXACTLY_ONCE, "native", "Spark writes the files"),
        (SqliteSink(table="out", path="out.db"), Guarantee.END_TO_END_EXACTLY_ONCE, "driver", "all rows pass"),
        (MemorySink(), Guarantee.AT_LEAST_ONCE, "driver", "all rows pass"),
        (ConsoleSink(), Guarantee.AT_LEAST_ONCE, "driver", "the driver prints"),
    ],
)
def test_a_sink_says_what_writes_its_rows(sink: Sink, guarantee: Guarantee, execution: str, word: str) -> None:
    read = stream("orders", KafkaSource(topic="orders", servers="k:9092", value="ip STRING"))
    told = build_physical(build_logical(Job("orders", read.to("out", sink), guarantee=guarantee))).step("out")
    assert told.execution == execution
    assert word in told.reason


def test_what_writes_to_kafka_goes_by_the_guarantee_of_the_output_and_by_the_mode() -> None:
    read = stream("orders", KafkaSource(topic="orders", servers="k:9092", value="ip STRING"))
    lower = read.to("out", KAFKA, guarantee=Guarantee.AT_LEAST_ONCE)
    graph = build_logical(Job("orders", lower, guarantee=Guarantee.END_TO_END_EXACTLY_ONCE))
    assert build_physical(graph).step("out").execution == "native"
    hurried = Job("orders", read.to("out", KAFKA), guarantee=Guarantee.AT_LEAST_ONCE, mode=Mode.REAL_TIME)
    assert build_physical(build_logical(hurried)).step("out").execution == "native"


def test_the_mode_of_the_job_is_the_mode_of_the_graph() -> None:
    assert physical(orders()).mode is Mode.MICRO_BATCH


# Contradictions


def test_two_steps_with_state_that_ask_for_different_numbers_of_tasks_are_refused() -> None:
    read = timed()
    minutes = read.key_by("ip").parallel(2).window(MINUTE, name="minutes").aggregate(n="count(*)")
    hours = read.key_by("ip").parallel(3).window(windows.tumbling("1 hour"), name="hours").aggregate(n="count(*)")
    with pytest.raises(BadJob, match="ask for 2 and 3 tasks") as refused:
        physical(minutes.select("n").merge(hours.select("n")))
    assert "window 'minutes', declared at test_physical.py:" in refused.value.where
    assert "window 'hours', declared at test_physical.py:" in refused.value.where
    assert "the same number" in refused.value.fix


@pytest.mark.parametrize("imposed", [exchange.forward(), exchange.by_key("amount")])
def test_an_exchange_that_would_separate_the_rows_of_a_key_is_refused(imposed: exchange.Exchange) -> None:
    with pytest.raises(BadJob) as refused:
        physical(orders().exchange(imposed).key_by("ip").rolling(n="count(*)"))
    assert (
        refused.value.what
        == f"an exchange {imposed} is imposed before rolling 'rolling', which needs its rows by key (ip)"
    )
    assert "exchange 'exchange', declared at test_physical.py:" in refused.value.where
    assert "the planner chooses" in refused.value.fix


@pytest.mark.parametrize("imposed", [exchange.random(), exchange.by_key("IP")])
def test_an_exchange_that_does_no_harm_before_state_is_taken(imposed: exchange.Exchange) -> None:
    graph = physical(orders().exchange(imposed).key_by("ip").rolling(n="count(*)"))
    assert edges(graph)["exchange", "rolling"] == ("by key (ip)", "planner")


def written(
    rows: Stream,
    *,
    key: str | None = "card",
    partition: str | None = None,
    guarantee: Guarantee = Guarantee.END_TO_END_EXACTLY_ONCE,
) -> tuple[str, str]:
    """The exchange into a Kafka sink, and its reason."""
    sink = KafkaSink(topic="out", servers="host:9092", key=key, partition=partition)
    graph = build_physical(build_logical(Job("orders", rows.to("out", sink), guarantee=guarantee)))
    (edge,) = [edge for edge in graph.edges if edge.target == "out"]
    return str(edge.exchange), edge.reason


def from_kafka(key: str | None = None) -> Stream:
    return stream("in", KafkaSource(topic="in", servers="host:9092", value="card2 STRING, n INT", key=key)).select(
        "n", "card2", *(["card"] if key else []), "_partition"
    )


def test_a_partition_of_a_transactional_sink_has_one_writer() -> None:
    assert written(from_kafka(), key="card2") == ("by key (card2)", "each partition of the topic has one writer")
    assert written(from_kafka(), key="card2", guarantee=Guarantee.AT_LEAST_ONCE)[0] == "forward"
    assert written(from_kafka(), key=None)[0] == "forward"


ALIKE = from_kafka("card STRING")


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (ALIKE, "forward"),
        (from_kafka("card STRING").where("n > 1").select("card", "n"), "forward"),
        (from_kafka("card STRING").select("n", card="upper(card)"), "by key (card)"),
        (from_kafka("card STRING").map(lambda row: row.asDict(), "card STRING, n INT"), "by key (card)"),
        (from_kafka("card STRING").exchange(exchange.random()), "by key (card)"),
        (ALIKE.merge(ALIKE), "by key (card)"),
        (from_kafka("card STRING, other INT"), "by key (card)"),
    ],
    ids=["as read", "filtered", "changed", "through a function", "dealt out", "merged", "key of two columns"],
)
def test_rows_that_are_partitioned_alike_stay_where_they_are(rows: Stream, expected: str) -> None:
    assert written(rows)[0] == expected


def test_rows_that_keep_their_partition_stay_where_they_are() -> None:
    assert written(from_kafka(), key="card2", partition="_partition")[0] == "forward"
    assert written(from_kafka(), key="card2", partition="n")[0] == "by key (n)"
