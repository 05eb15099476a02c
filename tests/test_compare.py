"""A comparison counts honestly, refuses what it cannot compare, and its kills are real."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lockgate import FileSink, Guarantee, Job, KafkaSink, KafkaSource, MemorySource, stream
from lockgate.compare.comparison import percentile
from lockgate.compare.counting import Tally, count_rows
from lockgate.compare.driver import Line
from lockgate.compare.events import make_events
from lockgate.compare.feed import bounds_of, may_be_sent
from lockgate.compare.plot import Panel, draw
from lockgate.compare.renamed import Disguise, disguise, find_endpoints
from lockgate.compare.report import Refusal, Report, Result
from lockgate.compare.trial import epochs_ms, events_per_second
from lockgate.errors import Refused
from lockgate.planner.plan import plan
from lockgate.services.stack import Stack

JOB = """
from lockgate import Guarantee, Job, KafkaSink, KafkaSource, stream

def job(servers: str = "localhost:1", floor: int = 0) -> Job:
    source = KafkaSource(topic="payments", servers=servers, value="id BIGINT, account STRING, cents INT")
    large = stream("payments", source).where(f"cents > {floor}")
    sink = KafkaSink(topic="large", servers=servers, key="account")
    return Job("large-payments", large.to("large", sink), guarantee=Guarantee.EXACTLY_ONCE)
"""

QUICK = "-XX:TieredStopAtLevel=1"
"""Seven drivers of half a minute each would spend most of it on compiling for hours to come."""

ROWS = [("out", b"a", b"1"), ("out", b"a", b"1"), ("out", None, b"2")]


# -- counting ---------------------------------------------------------------------------------------------------------


def test_the_same_rows_in_any_order_are_exact() -> None:
    assert count_rows(ROWS, ROWS[::-1]) == Tally(3, 3, lost_count=0, duplicated_count=0, other_count=0)


def test_a_loss_a_copy_and_a_foreign_row_are_told_apart() -> None:
    delivered = [ROWS[0], ROWS[2], ROWS[2], ROWS[2], ("out", b"a", b"3")]
    assert count_rows(ROWS, delivered) == Tally(3, 5, lost_count=1, duplicated_count=2, other_count=1)


def test_the_same_value_in_another_topic_is_another_row() -> None:
    assert count_rows(ROWS[2:], [("late", None, b"2")]) == Tally(1, 1, lost_count=1, duplicated_count=0, other_count=1)


def test_rows_that_cannot_be_told_apart_are_compared_by_their_number() -> None:
    other = [("out", None, b"%d" % number) for number in range(5)]
    assert count_rows(ROWS, other, by_number=True) == Tally(3, 5, lost_count=0, duplicated_count=2, other_count=0)
    assert count_rows(other, ROWS, by_number=True) == Tally(5, 3, lost_count=2, duplicated_count=0, other_count=0)


def line(start: int, events: int, ms: int) -> Line:
    return Line(start=start, heard=0.0, events_total=events, epoch_ms=ms, lag=0)


def test_the_first_epoch_of_each_start_and_epochs_without_events_are_left_aside() -> None:
    lines = [
        line(1, 0, 9),
        line(1, 100, 5000),
        line(1, 150, 100),
        line(1, 150, 7),
        line(2, 80, 4000),
        line(2, 130, 300),
    ]
    assert epochs_ms(lines) == (100, 300)
    assert events_per_second(lines) == 250.0
    assert events_per_second(lines[:2]) == 0.0


def test_percentiles_are_values_that_were_seen() -> None:
    assert (percentile(range(1, 101), 50), percentile(range(1, 101), 99), percentile([7], 99)) == (50, 99, 7)
    assert percentile([], 50) is None


# -- the feed ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("total", "kills"), [(60, 2), (20_000, 2), (2000, 1), (100, 0), (101, 4)])
def test_events_are_left_for_every_start_and_each_kill_is_reached(total: int, kills: int) -> None:
    bounds = bounds_of(total, kills)
    assert may_be_sent(total, kills, killed=0, is_up=False) == 0
    for killed, bound in enumerate(bounds):
        due = may_be_sent(total, kills, killed=killed, is_up=True)
        away = may_be_sent(total, kills, killed=killed + 1, is_up=False)
        assert bound <= due <= away < (*bounds, total)[killed + 1]
    assert may_be_sent(total, kills, killed=kills, is_up=True) == total


# -- events -----------------------------------------------------------------------------------------------------------

SOURCE = KafkaSource(
    topic="orders",
    servers="h:1",
    value="id BIGINT, name STRING, n INT, x DOUBLE, d DECIMAL(10,2), at TIMESTAMP, b BOOLEAN",
)


def test_made_events_are_the_same_for_a_seed_and_have_times_in_order() -> None:
    one, same, other = (make_events([SOURCE], count=300, seed=seed).all for seed in (1, 1, 2))
    assert one == same != other
    rows = [json.loads(event.value or b"") for event in one]
    assert [row["id"] for row in rows] == list(range(300))
    assert sorted(row["at"] for row in rows) == [row["at"] for row in rows]
    assert 5 < len({row["name"] for row in rows}) <= 20
    assert all(type(row["n"]) is int and type(row["x"]) is float and type(row["b"]) is bool for row in rows)


def test_keys_have_the_bytes_that_a_source_reads() -> None:
    source = KafkaSource(topic="t", servers="h:1", value="v STRING", key="k BIGINT")
    assert [event.key for event in make_events([source], count=2, seed=1).all] == [bytes(8), bytes(7) + b"\x01"]


@pytest.mark.parametrize("change", [{"value": "a ARRAY<INT>"}, {"value": "line STRING", "format": "text"}])
def test_events_that_cannot_be_made_are_refused_with_the_way_out(change: dict[str, str]) -> None:
    source = KafkaSource(**{"topic": "t", "servers": "h:1", "value": "v INT", **change})
    with pytest.raises(Refused, match="leave --generate away"):
        make_events([source], count=1, seed=1)


# -- the disguise -----------------------------------------------------------------------------------------------------


def shared() -> Job:
    events = stream("in", KafkaSource(topic="in", servers="h:1", value="k STRING, v INT"))
    summed = events.key_by("k").rolling(total="sum(v)")
    return Job(
        "shared",
        summed.to("all", KafkaSink(topic="all", servers="h:1")),
        summed.where("total > 5").to("some", KafkaSink(topic="some", servers="h:1"), guarantee=Guarantee.AT_LEAST_ONCE),
        dead_letters=KafkaSink(topic="letters", servers="h:1"),
        guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
    )


@pytest.mark.parametrize("guarantee", Guarantee)
def test_a_disguised_job_is_the_same_graph_in_other_topics(guarantee: Guarantee) -> None:
    original = shared()
    endpoints = find_endpoints(original)
    assert [source.topic for source in endpoints.sources] == ["in"]
    assert endpoints.outputs == ("all", "some", "letters")
    topics = {name: f"ours-{name}" for name in ("in", *endpoints.outputs)}
    other = disguise(original, Disguise("ours", guarantee, "here:2", topics))
    moved = find_endpoints(other)
    assert (other.name, other.guarantee) == ("ours", guarantee)
    assert [(source.topic, source.servers) for source in moved.sources] == [("ours-in", "here:2")]
    assert moved.outputs == ("ours-all", "ours-some", "ours-letters")
    assert all(output.step.guarantee is None for output in other.outputs)
    assert [node.name for node in plan(other).logical.nodes] == [node.name for node in plan(original).logical.nodes]
    assert find_endpoints(original) == endpoints


def test_other_endpoints_are_refused_by_name() -> None:
    source = stream("in", KafkaSource(topic="in", servers="h:1", value="v INT"))
    rows = stream("rows", MemorySource(rows=[], value="v INT"))
    sink = KafkaSink(topic="out", servers="h:1")
    routed = KafkaSink(route="v", servers="h:1")
    for output, told in [
        (rows.to("out", sink), "MemorySource"),
        (source.to("out", FileSink(path="out")), "FileSink"),
        (source.select(v="string(v)").to("out", routed), "topics by column 'v'"),
    ]:
        with pytest.raises(Refused, match=told):
            find_endpoints(Job("bad", output, guarantee=Guarantee.AT_LEAST_ONCE))


# -- the report -------------------------------------------------------------------------------------------------------


def report() -> Report:
    def result(guarantee: Guarantee, lost: int, duplicated: int, restart: float | None) -> Result:
        tally = Tally(1000, 1000 - lost + duplicated, lost, duplicated, 0)
        return Result(guarantee, tally, 120, 1340, 5678.9, restart, () if restart is None else (restart,), (500,))

    return Report(
        job="<job>",
        declared=Guarantee.AT_LEAST_ONCE,
        event_count=2000,
        events_origin="made from the schema, seed 1",
        row_count=1000,
        kills=1,
        seconds=40.0,
        rows_per_epoch=401,
        is_by_number=False,
        results=(result(Guarantee.AT_MOST_ONCE, 321, 0, None), result(Guarantee.AT_LEAST_ONCE, 0, 77, 6.5)),
        refusals=(Refusal(Guarantee.END_TO_END_EXACTLY_ONCE, reason="the sink is <plain>", fix="use another"),),
    )


def test_the_table_has_every_number_and_the_reason_of_a_refusal() -> None:
    lines = report().lines(120)
    rows = {text.split("  ")[0]: " ".join(text.split()) for text in lines[2:7]}
    assert rows["at-most-once"] == "at-most-once 321 0 0 120 / 1,340 ms 5,679 -"
    assert rows["at-least-once"] == "at-least-once 0 77 0 120 / 1,340 ms 5,679 6.5 s"
    assert rows["end-to-end exactly-once"] == "end-to-end exactly-once refused: the sink is <plain>"
    assert all(len(text) <= 120 for text in lines)
    assert any("Guarantee.AT_LEAST_ONCE (as it is declared)" in text for text in lines)


def test_a_comparison_by_number_says_so() -> None:
    told = dict(report().notes())["lost, duplicated"]
    by_number = Report(**{**vars(report()), "is_by_number": True})
    assert "multiset" in told
    assert "only their number" in dict(by_number.notes())["lost, duplicated"]


def test_the_page_holds_table_and_plot_and_no_markup_of_the_author() -> None:
    page = report().page()
    assert all(text in page for text in ("<svg ", "321", "77", "refused: the sink is &lt;plain&gt;", "6.5 s"))
    assert "<job>" not in page
    assert json.loads(json.dumps(report().as_json()))["results"][1]["tally"]["duplicated_count"] == 77


def test_bars_are_as_long_as_their_values_and_none_is_no_bar() -> None:
    picture = ElementTree.fromstring(
        draw("t", [Panel("p", (("a", 50.0, "50"), ("b", 100.0, "100"), ("c", None, "-")))])
    )
    half, whole, none = (float(bar.attrib["width"]) for bar in picture.iter() if bar.attrib.get("class") == "lc-bar")
    assert 0 == none < half == pytest.approx(whole / 2, abs=0.1)
    assert {"a", "50", "b", "100", "c", "-"} <= {text.text for text in picture.iter()}


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A directory with a job file, whose services are down when the test ends, however it ends."""
    (tmp_path / "large.py").write_text(JOB)
    yield tmp_path
    Stack(tmp_path / ".lockgate" / "services").down()


def compare(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lockgate.cli.main", "compare", "large.py", *arguments],
        cwd=home,
        env={**{key: text for key, text in os.environ.items() if key != "LOCKGATE_HOME"}, "JDK_JAVA_OPTIONS": QUICK},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("option", "value"), [("--events", "0"), ("--events", "30"), ("--kills", "-1"), ("--seconds", "0")]
)
def test_too_little_is_refused(option: str, value: str, home: Path) -> None:
    done = compare(home, "--generate", option, value)
    assert done.returncode == 2
    assert "fix:" in done.stderr
    assert not (home / ".lockgate").exists()


@pytest.mark.prove
def test_under_the_same_kill_at_least_once_loses_nothing_and_end_to_end_doubles_nothing(home: Path) -> None:
    chosen = ("--guarantee", "at-least-once", "--guarantee", "end-to-end-exactly-once")
    options = ("--generate", "--events", "2000", "--kills", "1", "--seconds", "6", "--out", "shown", "--json")
    done = compare(home, "-p", "floor=200", *chosen, *options)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    results = {one["guarantee"]: one for one in facts["results"]}
    assert set(results) == {"AT_LEAST_ONCE", "END_TO_END_EXACTLY_ONCE"}
    expected = facts["row_count"]
    assert 1000 < expected < 2000
    assert not facts["is_by_number"]
    for one in results.values():
        assert len(one["sent_at_kills"]) == len(one["restarts_seconds"]) == 1, done.stderr
        assert 1000 <= one["sent_at_kills"][0] < 2000
        assert (one["tally"]["expected_count"], one["tally"]["lost_count"], one["tally"]["other_count"]) == (
            expected,
            0,
            0,
        )
    assert results["END_TO_END_EXACTLY_ONCE"]["tally"]["duplicated_count"] == 0
    assert json.loads((home / "shown" / "compare.json").read_text()) == facts
    assert "end-to-end exactly-once" in (home / "shown" / "compare.html").read_text()
    assert ElementTree.parse(home / "shown" / "compare.svg").getroot().tag.endswith("svg")
    assert not Stack(home / ".lockgate" / "services").status().kafka.running
