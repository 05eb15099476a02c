from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from lockgate.connectors.kafka.sink import KafkaSink
from lockgate.connectors.kafka.source import KafkaSource
from lockgate.connectors.local.console import ConsoleSink
from lockgate.connectors.local.socket import SocketSource
from lockgate.dataflow import exchange, windows
from lockgate.dataflow.job import Job, Mode
from lockgate.dataflow.stream import stream
from lockgate.guarantees import Guarantee
from lockgate.planner.explain import explain, explain_json, explain_plan, explain_svg
from lockgate.planner.plan import Plan, plan


def looks_odd(row: Any) -> bool:
    return False


def job(guarantee: Guarantee = Guarantee.AT_MOST_ONCE) -> Job:
    """A job with one step of every kind that can be drawn."""
    log = stream("log", KafkaSource(topic="requests", servers="k:9092", value="ip STRING, n INT, at TIMESTAMP"))
    live = stream("live", SocketSource(host="h", port=1, value="ip STRING, n INT, at TIMESTAMP", format="json"))
    rows = log.merge(live).where("n > 1").where(looks_odd).parallel(3).event_time("at", lateness="90 seconds")
    counts = rows.key_by("ip").window(windows.tumbling("1 minute"), name="per-ip").aggregate(total="sum(n)")
    odd = rows.split(odd="n % 2 = 1")["odd"].map(lambda row: row, "ip STRING").flat_map(lambda row: [row], "ip STRING")
    users = stream("users", KafkaSource(topic="users", servers="k:9092", value="ip STRING, seen TIMESTAMP"))
    joined = rows.join(users.event_time("seen", lateness="0 seconds"), on="ip", within="10 minutes", name="known")
    seen = odd.transform(lambda frame: frame).exchange(exchange.broadcast()).select("ip", m="1")
    return Job(
        "requests-per-ip",
        counts.to("counts", KafkaSink(topic="counts", servers="k:9092", key="ip")),
        seen.to("screen", ConsoleSink(), guarantee=Guarantee.AT_MOST_ONCE),
        joined.to("matches", ConsoleSink()),
        log.key_by("ip").rolling(name="running", total="max(n)").to("totals", ConsoleSink()),
        guarantee=guarantee,
        epoch="500 milliseconds",
    )


@pytest.fixture(scope="module")
def planned() -> Plan:
    return plan(job())


@pytest.fixture(scope="module")
def text(planned: Plan) -> str:
    return explain_plan(planned, width=400)


def test_the_text_has_both_graphs_with_every_step(text: str, planned: Plan) -> None:
    logical, physical = text.index("Logical graph"), text.index("Physical graph")
    steps = text.index("\nSteps\n")
    assert logical < physical < steps
    for node in planned.logical.nodes:
        assert node.name in text[logical:physical]
        assert node.name in text[physical:steps]


def test_the_text_begins_with_mode_and_epoch(text: str) -> None:
    assert text.startswith("Job requests-per-ip, micro-batch, epochs of 500 milliseconds\n")


def test_the_logical_graph_shows_each_step_in_the_users_words(text: str) -> None:
    words = ["topic requests", "n > 1", "looks_odd", "event time: at", "lateness 90 seconds", "tumbling 1 minute by ip"]
    words += [
        "sum(n)",
        "inner join on ip",
        "within 10 minutes",
        "rolling by ip",
        "broadcast",
        "parallel 3",
        "topic counts",
    ]
    for word in words:
        assert word in text


def test_the_text_lists_tasks_execution_state_and_every_exchange_that_moves_rows(text: str) -> None:
    assert "window, 4 tasks, native, keeps state: Spark has it natively" in text
    assert "rolling, 4 tasks, Python, keeps state: " in text
    assert "4 tasks, native: Spark's own Kafka writer sends the records" in text
    assert "driver: the driver prints the first rows" in text
    assert "chosen by the planner: rows of a key must meet in one task" in text
    assert "broadcast, chosen by the author: imposed at test_explain.py:" in text
    assert "random, chosen by the planner: distributed over the 3 tasks asked for at test_explain.py:" in text


def test_the_text_ends_with_the_guarantee_its_reasons_and_the_fixes(text: str, planned: Plan) -> None:
    end = text[text.index("Guarantee declared") :].splitlines()
    assert end[:2] == ["Guarantee declared: at-most-once", "Guarantee reached:  at-most-once"]
    assert all(f"  {reason}" in end for reason in planned.reasons)
    assert "  to lift it: read from a log that can be replayed (KafkaSource, FileSource) (source 'live')" in end
    assert len(end) == len(set(end)), "a cure is told once"


def test_all_parts_that_limit_a_path_alike_are_reported_each_with_its_fix() -> None:
    log = stream("log", KafkaSource(topic="requests", servers="k:9092", value="ip STRING, n INT, at TIMESTAMP"))
    window = log.event_time("at", lateness="1 minute").key_by("ip").window(windows.tumbling("1 minute"), name="w")
    newest = window.aggregate(newest="last(n)").to("out", KafkaSink(topic="out", servers="k:9092", key="ip"))
    end = explain(Job("two", newest, guarantee=Guarantee.AT_LEAST_ONCE, mode=Mode.REAL_TIME)).splitlines()[-3:]
    assert "because of window 'w': it is not deterministic" in end[0]
    assert "; and because of real-time mode: " in end[0]
    assert end[0].count("because of") == 2
    assert [line.rpartition("(")[2] for line in end[1:]] == ["window 'w')", "real-time mode)"]


def test_explain_is_the_plan_of_a_job_as_text() -> None:
    simple = stream("log", SocketSource(host="h", port=1)).to("out", ConsoleSink())
    one = Job("one", simple, guarantee=Guarantee.AT_MOST_ONCE)
    assert explain(one) == explain_plan(plan(one))


def test_the_json_has_the_names_of_the_plan_and_is_plain_data(planned: Plan) -> None:
    told = explain_json(planned)
    assert json.loads(json.dumps(told)) == told
    assert {"declared", "reached", "reasons", "logical", "physical"} <= told.keys()
    assert (told["job"], told["mode"], told["epoch_seconds"]) == ("requests-per-ip", "micro-batch", 0.5)
    assert (told["declared"], told["reached"], told["holds"]) == ("AT_MOST_ONCE", "AT_MOST_ONCE", True)
    assert told["reasons"] == list(planned.reasons)


def test_the_json_has_both_graphs(planned: Plan) -> None:
    told = explain_json(planned)
    logical = {step["name"]: step for step in told["logical"]["steps"]}
    assert list(logical) == [node.name for node in planned.logical.nodes]
    assert logical["per-ip"]["columns"] == ["ip", "window_start", "window_end", "total"]
    assert logical["transform"]["columns"] is None
    assert logical["per-ip"]["inputs"] == ["event_time"]
    assert all(step["declared_at"].startswith("test_explain.py:") for step in logical.values())
    physical = {step["name"]: step for step in told["physical"]["steps"]}
    assert physical.keys() == logical.keys()
    assert physical["per-ip"]["has_state"]
    assert told["physical"]["state_partitions"] == 4
    edges = {(edge["from"], edge["to"]): edge for edge in told["physical"]["edges"]}
    assert set(edges) == {(name, step["name"]) for step in logical.values() for name in step["inputs"]}
    assert edges["event_time", "per-ip"]["exchange"] == "by key"
    assert edges["event_time", "per-ip"]["keys"] == ["ip"]
    assert edges["transform", "exchange-2"]["chosen_by"] == "author"


def test_the_json_has_every_path_with_its_caps(planned: Plan) -> None:
    paths = {(path["source"], path["output"]): path for path in explain_json(planned)["paths"]}
    assert paths["live", "counts"]["reached"] == "AT_MOST_ONCE"
    assert [cap["part"] for cap in paths["live", "counts"]["caps"]] == [
        "source 'live'",
        "job 'requests-per-ip'",
        "sink 'counts'",
    ]
    assert [cap["part"] for cap in paths["log", "counts"]["caps"]] == ["job 'requests-per-ip'", "sink 'counts'"]
    assert {"guarantee", "part", "where", "reason", "cure"} == paths["log", "counts"]["caps"][0].keys()


def test_an_over_claim_is_explained_and_does_not_hold() -> None:
    told = explain_json(plan(job(Guarantee.END_TO_END_EXACTLY_ONCE)))
    assert (told["declared"], told["reached"], told["holds"]) == ("END_TO_END_EXACTLY_ONCE", "AT_MOST_ONCE", False)


def test_the_svg_is_xml_with_every_step_in_both_graphs_and_the_guarantee(planned: Plan) -> None:
    root = ElementTree.fromstring(explain_svg(planned))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    words = [(element.text or "").strip() for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "Logical graph" in words
    assert "Physical graph" in words
    for node in planned.logical.nodes:
        assert words.count(node.name) >= 2
    assert any("Guarantee reached:" in word for word in words)
