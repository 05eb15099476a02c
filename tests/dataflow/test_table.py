"""Tables beside a stream: what an author may write, and what the planner makes of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from lockgate.connectors.kafka.sink import KafkaSink
from lockgate.connectors.kafka.source import KafkaSource
from lockgate.connectors.local.memorysink import MemorySink
from lockgate.connectors.local.memorysource import MemorySource
from lockgate.dataflow.job import Job
from lockgate.dataflow.stream import Stream, stream
from lockgate.dataflow.table import FileTable, PostgresTable, Table, table
from lockgate.dataflow.windows import tumbling
from lockgate.errors import BadJob
from lockgate.guarantees import Guarantee, Mode
from lockgate.planner.explain import explain
from lockgate.planner.physical import is_partitioned_alike
from lockgate.planner.plan import Plan, plan

FILES = FileTable(path="customers.parquet", format="parquet", schema="customer INT, name STRING, country STRING")


def orders() -> Stream:
    return stream("orders", MemorySource([], value="customer INT, amount DOUBLE, at TIMESTAMP"))


def customers(schema: str = FILES.schema, name: str = "customers") -> Table:
    return table(name, FileTable(path="customers.parquet", format="parquet", schema=schema), refresh="10 minutes")


def planned(*streams: Stream, mode: Mode = Mode.MICRO_BATCH) -> Plan:
    outputs = [one.to(f"out-{number}", MemorySink()) for number, one in enumerate(streams)]
    return plan(Job("orders", *outputs, guarantee=Guarantee.AT_LEAST_ONCE, mode=mode))


def refusal(make: Callable[[], object]) -> BadJob:
    with pytest.raises(BadJob) as caught:
        make()
    assert "test_table.py:" in caught.value.where
    assert caught.value.fix
    return caught.value


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: table("", FILES, refresh="1 minute"), "cannot be named ''"),
        (lambda: table("../customers", FILES, refresh="1 minute"), "cannot be named '../customers'"),
        (lambda: table("customers", "customers.csv", refresh="1 minute"), "'customers.csv' is not a table"),
        (lambda: table("customers", FILES, refresh="soon"), "refresh is not a duration"),
        (lambda: table("customers", FILES, refresh=timedelta(0)), "refresh must be more than zero"),
        (lambda: table("customers", FILES, refresh="10 milliseconds"), "read whole every 10 milliseconds"),
        (lambda: FileTable(path="", format="csv", schema="a INT"), "needs a path"),
        (lambda: FileTable(path="a", format="orc", schema="a INT"), "format='orc' is not known"),
        (lambda: FileTable(path="a", format="json", schema="a INT", header=True), "header= is for CSV"),
        (lambda: PostgresTable(table="", dsn="postgresql://", schema="a INT"), "needs a table"),
        (lambda: PostgresTable(table="a", dsn="postgresql://", schema=None), "needs a table, a dsn and a schema"),
        (lambda: orders().join(FILES, on="customer"), "join takes a stream or a table"),
        (lambda: orders().join(customers(), on=[]), "on= takes the names"),
        (lambda: orders().join(customers(), on="customer", within="1 minute"), "within= bounds a join in time"),
        (lambda: planned(orders().join(customers(), on="customer", how="right")), "how='right' is not a join"),
        (lambda: planned(orders().join(customers(), on="custome")), "column 'custome' does not exist"),
        (lambda: planned(orders().join(customers(), on="amount")), "column 'amount' does not exist"),
        (lambda: planned(orders().join(customers("customer INT, AMOUNT INT"), on="customer")), "have a column AMOUNT"),
        (lambda: planned(orders().join(customers("customer INT, _position INT"), on="customer")), "_position"),
        (lambda: planned(orders().join(customers("customer WRONG"), on="customer")), "cannot be read"),
    ],
)
def test_what_cannot_mean_anything_is_refused_at_its_line(make: Callable[[], object], told: str) -> None:
    assert told in refusal(make).what


def test_two_tables_of_one_name_are_refused() -> None:
    both = orders().join(customers(), on="customer").join(customers("customer INT, age INT"), on="customer")
    assert "uses the name 'customers' twice" in refusal(lambda: planned(both)).what


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(PostgresTable(table="a", dsn="postgresql://me:secret@host/db", schema="a INT"))


def test_a_reference_that_names_nothing_is_refused_at_its_line() -> None:
    refused = refusal(lambda: PostgresTable(table="a", dsn="file:dsn", schema="a INT"))
    assert "'file:dsn' is no absolute path" in refused.what
    assert "test_table.py" in refused.where


def test_a_join_adds_the_columns_of_the_table_and_keeps_what_comes_along() -> None:
    joined = orders().event_time("at", lateness="1 minute").join(customers(), on="customer")
    graph = planned(joined.window(tumbling("1 minute")).aggregate(n="count(*)")).logical
    flow = graph.node("table_join").flow
    assert flow.columns is not None
    assert flow.columns.names == ("customer", "amount", "at", "name", "country")
    assert flow.time is not None
    assert flow.hidden == graph.node("orders").flow.hidden


def test_the_table_is_broadcast_and_the_events_do_not_move() -> None:
    physical = planned(orders().where("amount > 1").join(customers(), on="customer", name="enrich")).physical
    edges = {(edge.source, edge.target): edge for edge in physical.edges}
    broadcast = edges["customers", "enrich"]
    assert (str(broadcast.exchange), broadcast.chosen_by) == ("broadcast", "planner")
    assert "every 10 minutes" in broadcast.reason
    assert str(edges["where", "enrich"].exchange) == "forward"
    assert physical.step("enrich").stage == physical.step("where").stage == physical.step("out-0").stage
    assert physical.step("customers").stage != physical.step("enrich").stage
    assert physical.step("customers").execution == "driver"
    assert physical.step("enrich").execution == "Python"
    assert not physical.step("enrich").has_state


def test_a_table_that_two_joins_use_is_one_step() -> None:
    one = customers()
    parts = orders().split(small="amount < 10", large="amount >= 10")
    graph = planned(parts["small"].join(one, on="customer"), parts["large"].join(one, on="customer", how="left"))
    assert [node.name for node in graph.logical.of_kind("table")] == ["customers"]
    assert sum(edge.source == "customers" for edge in graph.physical.edges) == 2


def test_the_plan_says_why_a_repeated_epoch_sees_the_same_table() -> None:
    servers = "localhost:9092"
    source = stream("orders", KafkaSource(topic="orders", servers=servers, value="customer INT, amount DOUBLE"))
    totals = source.join(customers(), on="customer").key_by("country").rolling(total="sum(amount)")
    sink = KafkaSink(topic="totals", servers=servers, key="country")
    job = Job("totals", totals.to("totals", sink), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)
    made = plan(job)
    assert made.reached is Guarantee.END_TO_END_EXACTLY_ONCE
    assert [(path.source, path.output) for path in made.paths] == [("orders", "totals")]
    (lift,) = made.paths[0].lifts
    assert "table 'customers' changes while the job runs" in lift
    shown = explain(job)
    assert lift in shown
    assert "customers -> table_join: broadcast" in shown
    assert "FileTable" in shown


def test_a_join_with_a_table_leaves_rows_where_their_source_put_them() -> None:
    servers = "localhost:9092"
    source = KafkaSource(topic="orders", servers=servers, value="amount DOUBLE", key="customer INT")
    joined = stream("orders", source).join(customers(), on="customer")
    sink = KafkaSink(topic="out", servers=servers, key="customer")
    graph = plan(Job("orders", joined.to("out", sink), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)).logical
    plain = stream("orders", source).where("amount > 1")
    without = plan(Job("orders", plain.to("out", sink), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)).logical
    assert is_partitioned_alike(graph, graph.node("out")) == is_partitioned_alike(without, without.node("out"))


def test_real_time_mode_has_no_tables() -> None:
    servers = "localhost:9092"
    source = stream("orders", KafkaSource(topic="orders", servers=servers, value="customer INT, amount DOUBLE"))
    joined = source.join(customers(), on="customer").to("out", KafkaSink(topic="out", servers=servers))
    job = Job("orders", joined, guarantee=Guarantee.AT_LEAST_ONCE, mode=Mode.REAL_TIME)
    assert "cannot run in real-time mode" in refusal(lambda: plan(job)).what
