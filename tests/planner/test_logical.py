"""What cannot mean anything is refused with the author's own line; what can is followed column by column."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockgate.connectors.files.sink import FileSink
from lockgate.connectors.files.source import FileSource
from lockgate.connectors.kafka.sink import KafkaSink
from lockgate.connectors.kafka.source import KafkaSource
from lockgate.connectors.local.console import ConsoleSink
from lockgate.connectors.local.memorysink import MemorySink
from lockgate.connectors.local.memorysource import MemorySource
from lockgate.connectors.local.socket import SocketSource
from lockgate.dataflow import exchange, windows
from lockgate.dataflow.deadletters import DeadLetters
from lockgate.dataflow.eventtime import Late
from lockgate.dataflow.job import Job
from lockgate.dataflow.stream import Output, Stream, stream
from lockgate.dataflow.tracking import acks
from lockgate.errors import BadJob
from lockgate.guarantees import Guarantee, Mode
from lockgate.planner.logical import LogicalGraph, Node, build_logical

HERE = Path(__file__).name
VALUE = "ip STRING, amount DOUBLE, at TIMESTAMP, user STRUCT<name: STRING>"
MINUTE = windows.tumbling("1 minute")


def orders(name: str = "orders", value: str = VALUE) -> Stream:
    return stream(name, MemorySource([], value=value))


def timed(name: str = "orders") -> Stream:
    return orders(name).event_time("at", lateness="1 second")


def payments() -> Stream:
    """A stream that can be joined to `timed()`: only `ip` is in both."""
    return stream("payments", MemorySource([], value="ip STRING, paid DOUBLE, seen TIMESTAMP")).event_time(
        "seen", lateness="1 second"
    )


def from_kafka(topic: str = "orders", servers: str = "k:9092") -> Stream:
    return stream("orders", KafkaSource(topic=topic, servers=servers, value=VALUE))


def job(*outputs: Any, **options: Any) -> Job:
    return Job("orders", *outputs, **{"guarantee": Guarantee.AT_MOST_ONCE, **options})


def graph_of(result: Stream | Output, **options: Any) -> LogicalGraph:
    output = result if isinstance(result, Output) else result.to("out", MemorySink())
    return build_logical(job(output, **options))


def last(result: Stream) -> Node:
    """The step right before the sink."""
    graph = graph_of(result)
    return graph.node(graph.node("out").inputs[0])


def columns(result: Stream) -> tuple[str, ...] | None:
    known = last(result).flow.columns
    return None if known is None else known.names


def refusal(make: Callable[[], Stream | Output], **options: Any) -> BadJob:
    """What a job is refused with; its `where` has to name the line on which the job is written."""
    with pytest.raises(BadJob) as refused:
        graph_of(make(), **options)
    assert f"declared at {HERE}:{make.__code__.co_firstlineno}" in refused.value.where, refused.value
    assert refused.value.fix
    return refused.value


# The shape of the graph


def test_steps_stand_behind_those_that_feed_them_and_have_names() -> None:
    small = orders().split(small="amount < 1", large="amount >= 1")["small"]
    graph = graph_of(small.where("ip is not null").where("true").key_by("ip").rolling(name="totals", n="count(*)"))
    assert [(node.name, node.kind, node.inputs) for node in graph.nodes] == [
        ("orders", "source", ()),
        ("small", "part", ("orders",)),
        ("where", "where", ("small",)),
        ("where-2", "where", ("where",)),
        ("totals", "rolling", ("where-2",)),
        ("out", "sink", ("totals",)),
    ]


def test_a_name_from_the_planner_yields_to_the_name_from_the_user() -> None:
    source = stream("where", MemorySource([], value=VALUE))
    assert last(source.where("true")).name == "where-2"


def test_a_step_that_two_outputs_share_is_there_once() -> None:
    shared = orders().where("amount > 1")
    graph = build_logical(job(shared.to("one", MemorySink()), shared.select("ip").to("two", MemorySink())))
    assert [node.name for node in graph.nodes] == ["orders", "where", "one", "select", "two"]
    assert [node.name for node in graph.of_kind("sink")] == ["one", "two"]


def test_a_chain_of_five_thousand_steps_does_not_exhaust_the_stack() -> None:
    chain = orders()
    for _ in range(5_000):
        chain = chain.where("amount > 1")
    graph = graph_of(chain)
    assert len(graph.nodes) == 5_002
    assert graph.nodes[-2].name == "where-5000"


def test_a_ladder_with_more_paths_than_atoms_is_walked_once() -> None:
    rung = orders()
    for _ in range(300):
        rung = rung.where("amount > 1").merge(rung.where("amount < 1"))
    assert len(graph_of(rung).nodes) == 902


def test_a_job_without_a_sink_is_refused() -> None:
    with pytest.raises(BadJob, match="job 'orders' has no sink") as refused:
        build_logical(job())
    assert refused.value.where == f"declared at {HERE}:{job.__code__.co_firstlineno + 1}"
    assert '.to("name", sink)' in refused.value.fix


def test_a_job_that_is_given_a_stream_instead_of_an_output_is_refused() -> None:
    with pytest.raises(BadJob, match="is given a Stream, which ends in no sink") as refused:
        build_logical(job(orders()))
    assert '.to("name", sink)' in refused.value.fix


def test_a_step_without_a_source_is_refused() -> None:
    headless = orders().where("true")
    object.__setattr__(headless.step, "inputs", ())
    with pytest.raises(BadJob, match="has a where step without a source") as refused:
        graph_of(headless.select("ip"))
    assert refused.value.where == f"step declared at {headless.step.origin}"
    assert "stream(name, source)" in refused.value.fix


def test_a_sink_without_a_source_is_refused() -> None:
    headless = orders().to("out", MemorySink())
    object.__setattr__(headless.step, "inputs", ())
    with pytest.raises(BadJob, match="has a sink step without a source"):
        graph_of(headless)


def test_a_cycle_in_the_graph_is_refused() -> None:
    first = orders().where("true")
    second = first.where("amount > 1")
    object.__setattr__(first.step, "inputs", (second.step,))
    with pytest.raises(BadJob, match="job 'orders' has a cycle: a where step feeds itself") as refused:
        graph_of(second)
    assert f"{HERE}:" in refused.value.where
    assert refused.value.fix


def test_a_cycle_through_a_topic_is_refused_with_both_ends() -> None:
    refused = refusal(lambda: from_kafka("orders").to("out", KafkaSink(topic="orders", servers="k:9092")))
    assert refused.what == "job 'orders' has a cycle: it reads topic 'orders', which it writes"
    assert "source 'orders'" in refused.where
    assert "sink 'out'" in refused.where
    assert refused.fix == "write to another place"


def test_a_directory_that_is_read_and_written_is_a_cycle() -> None:
    read = stream("files", FileSource(path="inbox", value="id INT"))
    assert "it reads files in" in refusal(lambda: read.to("out", FileSink(path="./inbox"))).what


def test_two_lists_of_servers_with_one_in_common_name_the_same_topic() -> None:
    sink = KafkaSink(topic="orders", servers="b:1,127.0.0.1:9092")
    assert "has a cycle" in refusal(lambda: from_kafka("orders", "localhost:9092").to("out", sink)).what


@pytest.mark.parametrize(
    "make",
    [
        lambda: timed().event_time("AT", lateness="5 seconds"),
        lambda: timed().map(lambda row: row, "at TIMESTAMP").event_time("at", lateness="0 seconds"),
        lambda: timed().select(then="at").event_time("then", lateness="0 seconds"),
        lambda: timed().window(MINUTE).aggregate(n="sum(amount)").event_time("window_end", lateness="0 seconds"),
    ],
)
def test_event_time_is_declared_once_on_a_path_because_spark_keeps_one_watermark(make: Callable[[], Stream]) -> None:
    refused = refusal(make)
    assert refused.what == "event time is declared twice on one way, and Spark keeps one watermark for it"
    assert "declared first at test_logical.py:" in refused.where


def test_events_that_a_broadcast_multiplied_cannot_be_counted() -> None:
    many = orders().exchange(exchange.broadcast()).where("amount > 1")
    assert "would count several times" in refusal(lambda: many.key_by("ip").rolling(n="count(*)")).what


def test_distinct_values_in_a_window_are_refused_with_the_function_to_use() -> None:
    refused = refusal(lambda: timed().window(MINUTE).aggregate(n="count(DISTINCT ip)"))
    assert refused.fix == "use approx_count_distinct(...), or synopses.distinct(...)"


def test_streams_whose_columns_differ_in_type_cannot_be_merged() -> None:
    text = stream("text", MemorySource([], value="n STRING"))
    number = stream("number", MemorySource([], value="n INT"))
    wide = stream("wide", MemorySource([], value="n BIGINT"))
    assert "'n' is INT in one stream of a merge and STRING" in refusal(lambda: number.merge(text)).what
    graph_of(number.merge(wide).to("out", MemorySink()))


@pytest.mark.parametrize("name", ["acks", "kafka.acks", "transactional.id"])
def test_settings_of_the_client_that_the_guarantee_hangs_on_are_refused(name: str) -> None:
    with pytest.raises(BadJob, match="the guarantee depends on it"):
        KafkaSink(topic="t", servers="k:9092", client={name: "0"})


def test_a_reader_may_not_ask_for_uncommitted_records() -> None:
    source = KafkaSource(topic="t", servers="k:9092", value="id INT", client={"isolation.level": "read_uncommitted"})
    assert "the guarantee depends on it" in refusal(lambda: stream("in", source)).what


@pytest.mark.parametrize(("topic", "servers"), [("other", "k:9092"), ("orders", "elsewhere:9092")])
def test_another_topic_or_another_cluster_is_no_cycle(topic: str, servers: str) -> None:
    graph = graph_of(from_kafka("orders", "k:9092").to("out", KafkaSink(topic=topic, servers=servers)))
    assert len(graph.node("out").inputs) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: orders("out"),
        lambda: orders("a").merge(orders("a")),
        lambda: orders().key_by("ip").rolling(name="orders", n="count(*)"),
        lambda: timed().window(MINUTE, name="out").aggregate(n="count(*)"),
    ],
)
def test_a_name_used_twice_is_refused_with_both_lines(make: Callable[[], Stream]) -> None:
    with pytest.raises(BadJob, match=r"job 'orders' uses the name '\w+' twice") as refused:
        graph_of(make())
    assert refused.value.where.count(f"declared at {HERE}:") == 2
    assert "a name of its own" in refused.value.fix


# Columns


@pytest.mark.parametrize(
    ("make", "column", "sql"),
    [
        (lambda: orders().where("amont > 10"), "amont", "amont > 10"),
        (lambda: orders().select("ip", "amont"), "amont", None),
        (lambda: orders().select(twice="amont * 2"), "amont", "amont * 2"),
        (lambda: orders().select(a="b", b="amount"), "b", None),
        (lambda: orders().split(small="amont < 1")["small"], "amont", "amont < 1"),
        (lambda: orders().key_by("ipp").rolling(n="count(*)"), "ipp", None),
        (lambda: orders().key_by("ip").rolling(n="sum(amont)"), "amont", "sum(amont)"),
        (lambda: timed().key_by("ipp").window(MINUTE).aggregate(n="count(*)"), "ipp", None),
        (lambda: timed().window(MINUTE).aggregate(n="sum(amont)"), "amont", "sum(amont)"),
        (lambda: timed().join(payments(), on="ipp", within="1 minute"), "ipp", None),
        (lambda: timed().join(payments(), on="amount", within="1 minute"), "amount", None),
        (lambda: orders().event_time("att", lateness="1 second"), "att", None),
        (lambda: orders().exchange(exchange.by_key("ipp")), "ipp", None),
        (lambda: orders().to("out", KafkaSink(topic="t", servers="k:1", key="ipp")), "ipp", None),
        (lambda: orders().to("out", KafkaSink(servers="k:1", route="topik")), "topik", None),
        (lambda: orders().to("out", KafkaSink(topic="t", servers="k:1", partition="part")), "part", None),
        (lambda: orders().map(lambda row: {}, "total DOUBLE").where("amount > 1"), "amount", "amount > 1"),
        (lambda: orders().select("ip").where("amount > 1"), "amount", "amount > 1"),
        (lambda: timed().window(MINUTE).aggregate(n="count(*)").where("ip = ''"), "ip", "ip = ''"),
        (lambda: orders().where("usr.name = 'x'"), "usr", "usr.name = 'x'"),
        (lambda: orders().where("exists(array(1), x -> x > amont)"), "amont", "exists(array(1), x -> x > amont)"),
    ],
)
def test_a_column_that_does_not_exist_is_refused(make: Callable[[], Any], column: str, sql: str | None) -> None:
    refused = refusal(make)
    assert refused.what == f"column {column!r}{f' in {sql!r}' if sql else ''} does not exist"
    assert "the columns here are " in refused.fix


def test_a_close_name_is_suggested_and_the_columns_are_listed() -> None:
    refused = refusal(lambda: orders().where("amont > 10"))
    assert refused.fix == "did you mean 'amount'? the columns here are ip, amount, at, user"
    assert refused.where == f"where 'where', declared at {HERE}:{refused_line(refused)}"
    assert "did you mean" not in refusal(lambda: orders().where("zzz")).fix


def refused_line(refused: BadJob) -> str:
    return refused.where.rsplit(":", 1)[1]


@pytest.mark.parametrize(
    "sql",
    [
        "AMOUNT > 1",
        "user.name = 'x'",
        "user.nothing_that_only_spark_knows = 1",
        "datediff(HOUR, at, current_timestamp) > 1",
        "exists(array(1), ip -> ip > amount)",
        "insert(nothing, 1, 2, 'x') = ip",
        "_position.source = 'orders'",
    ],
)
def test_what_exists_or_cannot_be_judged_is_let_through(sql: str) -> None:
    assert columns(orders().where(sql)) == columns(orders())


def test_a_select_may_use_what_it_has_just_named() -> None:
    assert columns(orders().select(twice="amount * 2", four="TWICE * 2")) == ("twice", "four")


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (orders(), ("ip", "amount", "at", "user")),
        (orders().where("true"), ("ip", "amount", "at", "user")),
        (orders().select("AMOUNT", n="1"), ("amount", "n")),
        (orders().map(lambda row: {}, "a INT, b INT"), ("a", "b")),
        (orders().flat_map(lambda row: [], "a INT"), ("a",)),
        (orders().transform(lambda frame: frame), None),
        (orders("a").merge(orders("b")), ("ip", "amount", "at", "user")),
        (orders("a").merge(orders("b").transform(lambda frame: frame)), None),
        (orders().key_by("ip").rolling(n="count(*)"), ("ip", "amount", "at", "user", "n")),
        (timed().key_by("ip").window(MINUTE).aggregate(n="count(*)"), ("ip", "window_start", "window_end", "n")),
        (timed().join(payments(), on="ip", within="1 minute"), ("ip", "amount", "at", "user", "paid", "seen")),
        (
            timed().transform(lambda frame: frame).window(MINUTE).aggregate(n="sum(x)"),
            ("window_start", "window_end", "n"),
        ),
    ],
)
def test_columns_are_followed_through_every_step(result: Stream, expected: tuple[str, ...] | None) -> None:
    assert columns(result) == expected


def test_behind_a_transform_any_column_may_exist_until_a_select_names_them() -> None:
    opaque = orders().transform(lambda frame: frame)
    graph_of(opaque.where("anything > 1").to("out", KafkaSink(topic="t", servers="k:1", key="whatever")))
    assert columns(opaque.select("anything", b="other + 1")) == ("anything", "b")
    refused = refusal(lambda: orders().transform(lambda frame: frame).select("a").where("b > 1"))
    assert refused.what == "column 'b' in 'b > 1' does not exist"


def test_hidden_columns_can_be_named_but_are_not_in_sight() -> None:
    kafka = from_kafka()
    assert columns(kafka.where("_offset > 5 and _key is not null")) == ("ip", "amount", "at", "user")
    assert last(kafka).flow.hidden == ("_key", "_topic", "_partition", "_offset", "_timestamp", "_headers", "_position")
    chosen = last(kafka.select("ip", "_offset"))
    assert chosen.flow.columns is not None
    assert chosen.flow.columns.names == ("ip", "_offset")
    assert "_offset" not in chosen.flow.hidden
    assert "_key" in chosen.flow.hidden


def test_a_hidden_column_reaches_a_sink_only_if_a_select_names_it() -> None:
    refused = refusal(lambda: from_kafka().to("out", KafkaSink(topic="t", servers="k:1", key="_key")))
    assert refused.what == "column '_key' is hidden: a sink gets it only if a select names it"
    assert refused.fix == ".select('ip', 'amount', 'at', 'user', '_key') before the sink"
    graph_of(from_kafka().select("ip", "_key").to("out", KafkaSink(topic="t", servers="k:1", key="_key")))


def test_hidden_columns_end_with_the_events_in_a_window_or_a_join() -> None:
    assert last(timed().window(MINUTE).aggregate(n="count(*)")).flow.hidden == ()
    assert last(timed().join(payments(), on="ip", within="1 minute")).flow.hidden == ()
    refused = refusal(lambda: timed().window(MINUTE).aggregate(n="count(*)").where("_position is null"))
    assert refused.what.startswith("column '_position'")


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: stream("o", FileSource(path="d", value="a STRNG")), "cannot be read"),
        (lambda: stream("o", FileSource(path="d", value="a INT", format="xml")), "format='xml' is not known"),
        (lambda: stream("o", FileSource(path="d", value="a INT", format="text")), "one column of type STRING"),
        (lambda: stream("o", SocketSource(host="h", port=1, format="bytes")), "lines of text"),
        (
            lambda: stream("o", KafkaSource(topic="t", servers="k:1", value="a INT", key="a INT")),
            "in the key and in the value",
        ),
        (
            lambda: stream("o", KafkaSource(topic="t", servers="k:1", value="_offset INT")),
            "the name of a column that every",
        ),
        (lambda: orders().map(lambda row: {}, "a STRNG"), "the schema 'a STRNG' cannot be read"),
        (lambda: orders().key_by("ip").rolling(amount="sum(amount)"), "column amount would exist twice"),
        (
            lambda: timed().key_by("ip").window(MINUTE).aggregate(window_end="max(at)"),
            "column window_end would exist twice",
        ),
        (lambda: orders().exchange(exchange.by_key()), "an exchange by key names no column"),
    ],
)
def test_columns_that_contradict_each_other_are_refused(make: Callable[[], Stream], what: str) -> None:
    assert what in refusal(make).what


def test_streams_with_different_columns_cannot_be_merged() -> None:
    refused = refusal(lambda: orders("a").merge(orders("b").select("ip", "amount", extra="1")))
    assert "(ip STRING, amount DOUBLE, at TIMESTAMP" in refused.what
    assert refused.fix.endswith("they differ in at, extra, user")
    graph_of(orders("a").select("ip", "amount").merge(orders("b").select("AMOUNT", "IP")))


# Time


@pytest.mark.parametrize(
    ("make", "what", "fix"),
    [
        (lambda: orders().window(MINUTE).aggregate(n="count(*)"), "no column has the time", ".event_time("),
        (
            lambda: orders().key_by("ip").window(MINUTE).aggregate(n="count(*)"),
            "no column has the time",
            ".event_time(",
        ),
        (
            lambda: timed().select("ip").window(MINUTE).aggregate(n="count(*)"),
            "no column has the time",
            ".event_time(",
        ),
        (
            lambda: timed().map(lambda row: {}, "at TIMESTAMP").window(MINUTE).aggregate(n="count(*)"),
            "no column",
            ".event_t",
        ),
        (lambda: timed().window(MINUTE).aggregate(n="amount + 1"), "is no aggregate", "max(amount + 1)"),
        (lambda: timed().join(payments(), on="ip"), "no bound in time", 'within="10 minutes"'),
        (
            lambda: orders().join(payments(), on="ip", within="1 minute"),
            "the left side of a join has no event",
            ".event_time(",
        ),
        (
            lambda: payments().join(orders(), on="ip", within="1 minute"),
            "the right side of a join has no event",
            ".event_time(",
        ),
        (
            lambda: timed().join(payments(), on="ip", within="1 minute", how="outer"),
            "how='outer' is not a join",
            "inner, left",
        ),
        (
            lambda: timed().join(timed("b"), on="ip", within="1 minute"),
            "have a column amount, at, user",
            "amount_right='amount'",
        ),
        (
            lambda: orders("a").merge(timed("b")),
            "only some, or in different columns, have the event time",
            "before the merge",
        ),
        (lambda: orders().event_time("ip", lateness="1 second"), "column 'ip' of type STRING", "to_timestamp(ip)"),
        (
            lambda: payments().select("seen", b="seen").event_time("b", lateness="0 seconds"),
            "event time is declared twice on one way",
            "once",
        ),
    ],
)
def test_time_that_is_missing_or_declared_twice_is_refused(make: Callable[[], Stream], what: str, fix: str) -> None:
    refused = refusal(make)
    assert what in refused.what
    assert fix in refused.fix


@pytest.mark.parametrize(
    "result",
    [
        timed().select("ip", "AT").window(MINUTE).aggregate(n="count(*)"),
        orders().event_time("AT", lateness="1 second").select("at").window(MINUTE).aggregate(n="count(*)"),
        timed("a").merge(orders("b").event_time("AT", lateness="1 second")).window(MINUTE).aggregate(n="count(*)"),
        timed().transform(lambda frame: frame).window(MINUTE).aggregate(n="count(*)"),
        timed().where("true").exchange(exchange.random()).window(MINUTE).aggregate(n="any(amount > 1)"),
        timed().window(MINUTE).aggregate(n="my_aggregate(amount)"),
    ],
)
def test_time_is_kept_as_far_as_spark_keeps_it(result: Stream) -> None:
    assert "n" in (columns(result) or ())


def test_a_join_keeps_the_time_that_is_always_there() -> None:
    for how, expected in {"inner": "at", "left": "at", "right": None, "full": None}.items():
        time = last(timed().join(payments(), on="ip", within="1 minute", how=how)).flow.time
        assert (time.column if time else None) == expected


# Rolling aggregates


@pytest.mark.parametrize("sql", ["first(amount)", "sum(amount) + 1", "count(distinct ip)", "amount"])
def test_a_rolling_aggregate_that_cannot_be_kept_is_refused(sql: str) -> None:
    with pytest.raises(BadJob, match="rolling cannot keep n=") as refused:
        graph_of(orders().key_by("ip").rolling(n=sql))
    assert repr(sql) in refused.value.what
    assert "sum(x), min(x), max(x), avg(x)" in refused.value.fix


def test_a_rolling_aggregate_needs_events_that_still_have_an_order() -> None:
    refused = refusal(lambda: timed().window(MINUTE).aggregate(n="count(*)").key_by("n").rolling(m="max(n)"))
    assert "lost their order" in refused.what
    assert "before the window" in refused.fix


# Time, and events that come too late


def side_output(**options: Any) -> Stream:
    late = orders().event_time("at", lateness="1 second", late=Late.TO_SIDE_OUTPUT, **options)
    return late.key_by("ip").window(MINUTE).aggregate(n="count(*)")


def test_late_events_have_their_own_columns_and_the_window_they_missed() -> None:
    node = graph_of(side_output().late).nodes[-2]
    before = graph_of(orders()).nodes[0].flow.columns
    assert node.flow.columns is not None
    assert before is not None
    assert node.flow.columns.names == (*before.names, "window_start", "window_end")


@pytest.mark.parametrize("late", [Late.DROP, Late.LOG])
def test_late_events_are_there_only_if_they_are_declared(late: Late) -> None:
    window = orders().event_time("at", lateness="1 second", late=late).window(MINUTE)
    refused = refusal(lambda: window.aggregate(n="count(*)").late)
    assert refused.what == f"late events are asked for, but late=Late.{late.name} for them"
    assert "late=Late.TO_SIDE_OUTPUT" in refused.fix


@pytest.mark.parametrize(
    "step",
    [
        lambda late: late.map(lambda row: row, "n INT"),
        lambda late: late.where(lambda row: True),
        lambda late: late.key_by("ip").rolling(n="count(*)"),
        lambda late: late.where("ip = 'x'").transform(lambda frame: frame),
    ],
)
def test_late_events_go_to_a_sink_by_sql_alone(step: Callable[[Stream], Stream]) -> None:
    with pytest.raises(BadJob, match="late events can pass where, select, split, merge and exchange") as refused:
        graph_of(step(side_output().late))
    assert "write them to a sink first" in refused.value.fix


def test_a_window_of_the_same_columns_as_those_of_late_events_is_refused() -> None:
    timed = (
        orders().select("ip", "at", window_end="at").event_time("at", lateness="0 seconds", late=Late.TO_SIDE_OUTPUT)
    )
    refused = refusal(lambda: timed.window(MINUTE).aggregate(n="count(*)").late)
    assert "the column 'window_end' of the window they missed" in refused.what


def test_a_join_takes_no_option_for_late_events() -> None:
    left = orders().select("ip", "at").event_time("at", lateness="0 seconds", late=Late.LOG)
    right = stream("more", MemorySource([], value="ip STRING, then TIMESTAMP")).event_time("then", lateness="0 seconds")
    refused = refusal(lambda: left.join(right, on="ip", within="1 minute"))
    assert "late=Late.LOG means nothing to a join" in refused.what


def test_silence_that_one_stream_ends_and_another_does_not_is_refused() -> None:
    one = orders().select("ip", "at").event_time("at", lateness="0 seconds", idle="1 minute")
    two = stream("more", MemorySource([], value="ip STRING, at TIMESTAMP")).event_time("at", lateness="0 seconds")
    with pytest.raises(BadJob, match="which would hold it back") as refused:
        graph_of(one.merge(two))
    assert refused.value.fix == "declare idle= here too"


def test_processing_time_is_a_hidden_column() -> None:
    node = graph_of(orders().processing_time().select("ip", came="_arrived")).nodes[-2]
    assert node.flow.columns is not None
    assert node.flow.columns.names == ("ip", "came")
    assert graph_of(orders().processing_time().key_by("ip").window(MINUTE).aggregate(n="count(*)"))
    refused = refusal(lambda: orders(value="_arrived TIMESTAMP").processing_time())
    assert "has the name of the column that processing time adds" in refused.what


# What contradicts itself


def test_dead_letters_have_a_way_of_their_own_from_every_step_that_may_reject() -> None:
    graph = graph_of(orders().where("amount > 1").map(str, schema="a STRING"), dead_letters=MemorySink())
    letters = graph.node("dead_letters")
    assert letters.inputs == ("orders", "map")
    assert graph.node("dead-letters").inputs == ("dead_letters",)
    assert letters.flow.columns is not None
    assert "reason" in letters.flow.columns.names


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"tracking": acks()}, "no sink takes the events that fail at every attempt"),
        (
            {"tracking": acks(), "dead_letters": MemorySink(), "guarantee": Guarantee.EXACTLY_ONCE},
            "gives at-least-once",
        ),
        ({"dead_letters": MemorySink(), "mode": Mode.REAL_TIME}, "real-time mode has no such moment"),
    ],
)
def test_options_of_a_job_that_contradict_each_other_are_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(BadJob, match=what) as refused:
        graph_of(orders(), **options)
    assert f"job 'orders', declared at {HERE}:" in refused.value.where


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"tracking": SimpleNamespace()}, "tracking= takes acks"),
        ({"dead_letters": "letters"}, "dead_letters= takes a sink"),
        ({"dead_letters": DeadLetters(MemorySink(), stop_after=True)}, "stop_after=True is neither"),
        ({"dead_letters": DeadLetters(MemorySink(), stop_after=-1)}, "stop_after=-1 is neither"),
        ({"dead_letters": DeadLetters(MemorySink(), stop_after=1.5)}, "stop_after=1.5 is neither"),
    ],
)
def test_options_of_a_job_that_mean_nothing_are_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(BadJob, match=what):
        graph_of(orders(), **options)


def test_an_output_cannot_promise_more_than_its_job() -> None:
    refused = refusal(lambda: orders().to("out", MemorySink(), guarantee=Guarantee.EXACTLY_ONCE))
    assert refused.what == "output 'out' declares exactly-once (state), more than its job's at-most-once"


# Real-time mode


KAFKA_OUT = KafkaSink(topic="out", servers="k:9092")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (
            lambda: stream("orders", SocketSource(host="h", port=1)).to("out", KAFKA_OUT),
            "source 'orders' cannot run in real-time mode: it cannot read from a Socket",
        ),
        (
            lambda: from_kafka().to("out", ConsoleSink()),
            "sink 'out' cannot run in real-time mode: it cannot write to a Console",
        ),
        (lambda: from_kafka().map(lambda row: {}, "a INT").to("out", KAFKA_OUT), "it runs no Python functions"),
        (lambda: from_kafka().where(lambda row: True).to("out", KAFKA_OUT), "it runs no Python functions"),
        (lambda: from_kafka().key_by("ip").rolling(n="count(*)").to("out", KAFKA_OUT), "it runs no Python, and"),
    ],
)
def test_what_real_time_mode_cannot_run_is_refused(make: Callable[[], Output], why: str) -> None:
    refused = refusal(make, mode=Mode.REAL_TIME)
    assert why in refused.what
    assert "Mode.MICRO_BATCH" in refused.fix


def test_real_time_mode_writes_to_one_output() -> None:
    rows = from_kafka().where("amount > 1")
    graph_of(rows.to("out", KAFKA_OUT), mode=Mode.REAL_TIME)
    with pytest.raises(BadJob, match="has several outputs, and real-time mode writes to one"):
        build_logical(job(rows.to("a", KAFKA_OUT), rows.to("b", KAFKA_OUT), mode=Mode.REAL_TIME))


# SQL over several rows, in steps that get them one by one


@pytest.mark.parametrize(
    ("make", "function"),
    [
        (lambda: orders().select(n="count(*)"), "COUNT"),
        (lambda: orders().select("ip", total="1 + sum(amount)"), "SUM"),
        (lambda: orders().select("ip", total="builtin.max(amount)"), "MAX"),
        (lambda: orders().select(n="row_number() OVER (PARTITION BY ip ORDER BY at)"), "ROW_NUMBER"),
        (lambda: orders().select(n="lag(amount) over (order by at)"), "LAG"),
        (lambda: orders().select(n="percentile_cont(0.5) WITHIN GROUP (ORDER BY amount)"), "PERCENTILE_CONT"),
        (lambda: orders().where("count(*) > 3"), "COUNT"),
        (lambda: orders().split(red="max(amount) > 3")["red"], "MAX"),
    ],
)
def test_sql_over_several_rows_is_refused_with_the_steps_that_have_them(
    make: Callable[[], Stream], function: str
) -> None:
    refused = refusal(make)
    assert f"looks at several rows with {function}" in refused.what
    assert f"{HERE}:" in refused.where
    assert ".window(" in refused.fix
    assert ".rolling(" in refused.fix


@pytest.mark.parametrize(
    "sql",
    [
        "greatest(amount, 1)",
        "aggregate(array(1, 2), 0, (a, b) -> a + b)",
        "ip LIKE ANY ('a%', 'b%')",
        "ip not like some ('a%')",
        "concat('count(', ip, ')')",
        "array_max(array(1, 2))",
        "mine.count(amount)",
    ],
)
def test_sql_over_one_row_passes(sql: str) -> None:
    assert columns(orders().select(n=sql)) == ("n",)
    assert columns(orders("count").select("amount", n="amount")) == ("amount", "n")
