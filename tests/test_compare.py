"""A comparison counts honestly, refuses what it cannot compare, and its kills are real."""

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from xml.etree import ElementTree

import pytest

from lockgate import FileSink, Guarantee, Job, KafkaSink, KafkaSource, MemorySource, acks, stream
from lockgate.dataflow.tracking import Acks
from lockgate.errors import Refused
from lockgate.lab.compare.comparison import _plan, percentile
from lockgate.lab.compare.contenders import Contender, Tracking, find_contenders, find_declared
from lockgate.lab.compare.counting import Tally, count_rows
from lockgate.lab.compare.events import make_events
from lockgate.lab.compare.feed import bounds_of, may_be_sent
from lockgate.lab.compare.renamed import Disguise, ReadTopic, disguise, find_endpoints, read_topic
from lockgate.lab.compare.report import Refusal, Report, Result
from lockgate.lab.compare.trial import Pace, epochs_ms, events_per_second, latencies_ms
from lockgate.lab.rig.drivers import Line
from lockgate.lab.rig.readers.group import Readers
from lockgate.lab.rig.trial import Trial
from lockgate.lab.rig.troubles import midepoch
from lockgate.lab.rig.troubles.midepoch import MidEpoch
from lockgate.lab.services.stack import Stack
from lockgate.planner.plan import plan

JOB = """
from lockgate import Guarantee, Job, KafkaSink, KafkaSource, acks, stream

SCHEMA = "id BIGINT, account STRING, cents INT"

def checked(row):
    if row.cents % 50 == 0:
        raise ValueError(f"{row.cents} cents are suspicious")
    return row.id, row.account, row.cents

def job(servers: str = "localhost:1", floor: int = 0) -> Job:
    source = KafkaSource(topic="payments", servers=servers, value=SCHEMA)
    large = stream("payments", source).map(checked, schema=SCHEMA).where(f"cents > {floor}")
    return Job(
        "large-payments",
        large.to("large", KafkaSink(topic="large", servers=servers, key="account")),
        guarantee=Guarantee.AT_LEAST_ONCE,
        tracking=acks(max_attempts=2, backoff="100 milliseconds"),
        dead_letters=KafkaSink(topic="letters", servers=servers, key="id"),
    )
"""

QUICK = "-XX:TieredStopAtLevel=1"
"""A dozen drivers of half a minute each would spend most of it on compiling for hours to come."""

ROWS = [("out", b"a", b"1"), ("out", b"a", b"1"), ("out", None, b"2")]


# -- counting ---------------------------------------------------------------------------------------------------------


def test_the_same_rows_in_any_order_are_exact() -> None:
    assert count_rows(ROWS, ROWS[::-1]) == Tally(3, 3, lost_count=0, duplicated_count=0, other_count=0)


def test_a_loss_a_copy_and_a_foreign_row_are_distinguished() -> None:
    delivered = [ROWS[0], ROWS[2], ROWS[2], ROWS[2], ("out", b"a", b"3")]
    assert count_rows(ROWS, delivered) == Tally(3, 5, lost_count=1, duplicated_count=2, other_count=1)


def test_the_same_value_in_another_topic_is_another_row() -> None:
    assert count_rows(ROWS[2:], [("late", None, b"2")]) == Tally(1, 1, lost_count=1, duplicated_count=0, other_count=1)


def test_rows_that_cannot_be_distinguished_are_compared_by_their_number() -> None:
    other = [("out", None, b"%d" % number) for number in range(5)]
    assert count_rows(ROWS, other, by_number=True) == Tally(3, 5, lost_count=0, duplicated_count=2, other_count=0)
    assert count_rows(other, ROWS, by_number=True) == Tally(5, 3, lost_count=2, duplicated_count=0, other_count=0)


def line(start: int, events: int, ms: int) -> Line:
    return Line(start=start, heard=0.0, events_total=events, epoch_ms=ms, lag=0, taken=events)


def test_the_first_epoch_of_each_start_and_epochs_without_events_are_left_aside() -> None:
    lines = [
        line(0, 0, 9),
        line(0, 100, 5000),
        line(0, 150, 100),
        line(0, 150, 7),
        line(1, 80, 4000),
        line(1, 130, 300),
    ]
    assert epochs_ms(lines) == (100, 300)
    assert events_per_second(lines) == 250.0
    assert events_per_second(lines[:2]) == 0.0


def heard(start: int, at: float, taken: int) -> Line:
    return Line(start=start, heard=at, events_total=taken, epoch_ms=1, lag=0, taken=taken)


def test_the_latency_of_an_event_goes_from_its_sending_to_the_end_of_its_epoch() -> None:
    sent_at = [0.0, 10.0, 10.5, 11.0, 11.5]
    assert latencies_ms(sent_at, [heard(0, 9.0, 1), heard(0, 11.2, 4), heard(0, 13.0, 5)]) == (1200, 700, 200, 1500)


def test_events_that_wait_for_the_first_epoch_or_for_a_restart_have_no_latency() -> None:
    sent_at = [0.0, 1.0, 10.0, 11.0, 12.0]
    first, idle, second, after = heard(0, 9.0, 1), heard(0, 9.5, 1), heard(0, 10.5, 3), heard(1, 40.0, 5)
    assert latencies_ms(sent_at, [heard(0, 8.0, 0), first, idle, second, after]) == (500,)
    assert latencies_ms(sent_at, [first]) == latencies_ms(sent_at, []) == ()


def test_percentiles_are_values_that_were_seen() -> None:
    assert (percentile(range(1, 101), 50), percentile(range(1, 101), 99), percentile([7], 99)) == (50, 99, 7)
    assert percentile([], 50) is None


# -- the feed ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("total", "kills"), [(60, 2), (20_000, 2), (2000, 1), (100, 0), (101, 4)])
def test_events_are_left_for_every_start_and_each_kill_is_reached(total: int, kills: int) -> None:
    bounds = bounds_of(total, kills)
    assert may_be_sent(total, kills, killed=0, is_up=False, is_warm=False, is_measured=False) == 0
    first, second = (
        may_be_sent(total, kills, killed=0, is_up=True, is_warm=is_warm, is_measured=False) for is_warm in (False, True)
    )
    assert 0 < first < second < (*bounds, total)[0]
    for killed, bound in enumerate(bounds):
        due = may_be_sent(total, kills, killed=killed, is_up=True, is_warm=True, is_measured=True)
        away = may_be_sent(total, kills, killed=killed + 1, is_up=False, is_warm=True, is_measured=True)
        assert bound <= due <= away < (*bounds, total)[killed + 1]
    assert may_be_sent(total, kills, killed=kills, is_up=True, is_warm=True, is_measured=True) == total


class SlowDriver:
    """One start; it is killed by the trouble."""

    is_up, environment = True, {}

    def __init__(self, number: int) -> None:
        self.number, self.is_running = number, True
        self.process = SimpleNamespace(pid=number)


class SlowDrivers:
    """Take in an epoch what was sent when it began; its rows are in the output half-way, and are counted at its end."""

    checkpoint = Path("checkpoint")

    def __init__(self, feed: "FastFeed", epoch_seconds: float) -> None:
        self.feed, self.epoch_seconds = feed, epoch_seconds
        self.lines: list[Line] = []
        self.facts: list[object] = []
        self.all: list[SlowDriver] = []
        self.committed, self.in_hand, self.ends_at, self.rows = 0, 0, 0.0, 0
        self.is_written = False

    def clock(self) -> float:
        return time.monotonic()

    def epochs(self) -> int:
        return len(self.lines)

    def consumed(self) -> int:
        return self.committed

    @property
    def running(self) -> SlowDriver | None:
        return self.all[-1] if self.all and self.all[-1].is_running else None

    def tend(self, environment: object) -> SlowDriver:
        if self.running is None:
            self.all.append(SlowDriver(len(self.all)))
            self.in_hand = 0
        now, number = time.monotonic(), len(self.all) - 1
        if self.in_hand and now >= self.ends_at:
            self.committed, self.in_hand = self.in_hand, 0
            self.lines.append(Line(number, now, self.committed, 1, 0, taken=self.committed))
        if not self.in_hand and self.feed.sent > self.committed:
            self.in_hand, self.ends_at, self.is_written = self.feed.sent, now + self.epoch_seconds, False
        if self.in_hand and not self.is_written and now >= self.ends_at - self.epoch_seconds / 2:
            self.rows, self.is_written = self.rows + self.in_hand - self.committed, True
        return self.all[-1]


class FastFeed:
    def __init__(self) -> None:
        self.sent_at: list[float] = []

    @property
    def sent(self) -> int:
        return len(self.sent_at)

    def send(self, limit: int) -> None:
        self.sent_at += [time.monotonic()] * max(0, min(20, limit - self.sent))


@dataclass(frozen=True)
class Stands:
    """Where the kills find the driver."""

    drivers: Any
    feed: FastFeed
    checkpoint: None = None

    @property
    def running(self) -> SlowDriver | None:
        return cast("SlowDriver | None", self.drivers.running)

    def connect(self) -> io.StringIO:
        return io.StringIO()

    def sent(self) -> int:
        return self.feed.sent

    def ends(self, connection: object) -> dict[tuple[str, int], int]:
        return {("out", 0): self.drivers.rows}

    def fact(self, strike: object, process: str) -> None:
        return


@pytest.mark.parametrize(("kills", "epoch_seconds"), [(0, 0.3), (1, 0.3), (2, 0.3), (2, 0.03)])
def test_latencies_are_known_before_the_first_kill_however_slow_epochs_are(
    kills: int, epoch_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(midepoch, "kill_family", lambda driver: setattr(driver, "is_running", False))
    feed = FastFeed()
    drivers: Any = SlowDrivers(feed, epoch_seconds)
    pace = Pace(drivers, feed, 600, kills)  # type: ignore[arg-type]
    trouble = MidEpoch(pace.cuts(topics=1), Stands(drivers, feed), lambda fault: None)  # type: ignore[arg-type]
    trial = Trial(drivers, Readers(()), feed, pace.limit, look_seconds=0.02)  # type: ignore[arg-type]
    trial.disturb([trouble])
    trial.run(pace.is_done)
    assert (feed.sent, drivers.committed, len(drivers.all)) == (600, 600, kills + 1)
    bounds = (*bounds_of(600, kills), 600)
    assert all(bounds[index] <= hit.sent < bounds[index + 1] for index, hit in enumerate(trouble.hits))
    found = latencies_ms(feed.sent_at, drivers.lines)
    assert found
    assert max(found) < 2000 * epoch_seconds + 500


# -- events -----------------------------------------------------------------------------------------------------------

SOURCE = KafkaSource(
    topic="orders",
    servers="h:1",
    value="id BIGINT, name STRING, n INT, x DOUBLE, d DECIMAL(10,2), at TIMESTAMP, b BOOLEAN",
)


def topic(source: KafkaSource) -> ReadTopic:
    found = read_topic(source)
    assert found is not None
    return found


def test_made_events_are_the_same_for_a_seed_and_have_times_in_order() -> None:
    one, same, other = (make_events([topic(SOURCE)], count=300, seed=seed).all for seed in (1, 1, 2))
    assert one == same != other
    rows = [json.loads(event.value or b"") for event in one]
    assert [row["id"] for row in rows] == list(range(300))
    assert sorted(row["at"] for row in rows) == [row["at"] for row in rows]
    assert 5 < len({row["name"] for row in rows}) <= 20
    assert all(type(row["n"]) is int and type(row["x"]) is float and type(row["b"]) is bool for row in rows)


def test_keys_have_the_bytes_that_a_source_reads() -> None:
    source = KafkaSource(topic="t", servers="h:1", value="v STRING", key="k BIGINT")
    assert [event.key for event in make_events([topic(source)], count=2, seed=1).all] == [bytes(8), bytes(7) + b"\x01"]


@pytest.mark.parametrize("change", [{"value": "a ARRAY<INT>"}, {"value": "line STRING", "format": "text"}])
def test_events_that_cannot_be_made_are_refused_with_the_way_out(change: dict[str, str]) -> None:
    source = KafkaSource(**{"topic": "t", "servers": "h:1", "value": "v INT", **change})
    with pytest.raises(Refused, match="omit --generate"):
        make_events([topic(source)], count=1, seed=1)


# -- the disguise -----------------------------------------------------------------------------------------------------


def shared(tracking: Acks | None = None) -> Job:
    events = stream("in", KafkaSource(topic="in", servers="h:1", value="k STRING, v INT"))
    summed = events.key_by("k").rolling(total="sum(v)")
    return Job(
        "shared",
        summed.to("all", KafkaSink(topic="all", servers="h:1")),
        summed.where("total > 5").to("some", KafkaSink(topic="some", servers="h:1"), guarantee=Guarantee.AT_LEAST_ONCE),
        dead_letters=KafkaSink(topic="letters", servers="h:1"),
        guarantee=Guarantee.END_TO_END_EXACTLY_ONCE if tracking is None else Guarantee.AT_LEAST_ONCE,
        tracking=tracking,
    )


@pytest.mark.parametrize("guarantee", Guarantee)
def test_a_disguised_job_is_the_same_graph_in_other_topics(guarantee: Guarantee) -> None:
    original = shared()
    endpoints = find_endpoints(original)
    assert [source.topic for source in endpoints.sources] == ["in"]
    assert (endpoints.outputs, endpoints.letters) == (("all", "some", "letters"), "letters")
    topics = {name: f"ours-{name}" for name in ("in", *endpoints.outputs)}
    other = disguise(original, Disguise("ours", Contender(guarantee), "here:2", topics))
    moved = find_endpoints(other)
    assert (other.name, other.guarantee) == ("ours", guarantee)
    assert [(source.topic, source.servers) for source in moved.sources] == [("ours-in", "here:2")]
    assert moved.outputs == ("ours-all", "ours-some", "ours-letters")
    assert all(output.step.guarantee is None for output in other.outputs)
    assert [node.name for node in plan(other).logical.nodes] == [node.name for node in plan(original).logical.nodes]
    assert find_endpoints(original) == endpoints


def test_at_least_once_is_compared_both_ways_where_the_job_is_tracked_by_acknowledgement() -> None:
    plain, tracked = shared(), shared(acks(max_attempts=2))
    assert find_contenders(plain, reversed(Guarantee)) == tuple(Contender(one) for one in Guarantee)
    found = find_contenders(tracked, Guarantee)
    assert [one.label for one in found] == [
        "at-most-once",
        "at-least-once (acks)",
        "at-least-once (checkpoint)",
        "exactly-once (state)",
        "end-to-end exactly-once",
    ]
    assert len({one.slug for one in found}) == len(found)
    assert [Contender.of_json(json.loads(json.dumps(one.as_json()))) for one in found] == [*found]
    assert (find_declared(plain), find_declared(tracked)) == (Contender(plain.guarantee), found[1])


def test_only_the_one_by_acknowledgement_keeps_its_tracking_and_none_is_refused_for_it() -> None:
    tracked, untracked = shared(acks(max_attempts=2)), shared()
    plans, refusals = _plan(tracked, find_contenders(tracked, Guarantee))
    assert refusals == _plan(untracked, find_contenders(untracked, Guarantee))[1]
    kept = {one.label: planned.job.tracking for one, planned in plans.items()}
    assert kept == {
        "at-most-once": None,
        "at-least-once (acks)": tracked.tracking,
        "at-least-once (checkpoint)": None,
        "exactly-once (state)": None,
        "end-to-end exactly-once": None,
    }


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


ACKED = Contender(Guarantee.AT_LEAST_ONCE, Tracking.ACKS)


def report() -> Report:
    def result(contender: Contender, lost: int, duplicated: int, restart: float | None) -> Result:
        return Result(
            contender,
            tally=Tally(1000, 1000 - lost + duplicated, lost, duplicated, 0),
            latency_ms_p50=None if restart is None else 980,
            latency_ms_p99=None if restart is None else 2345,
            epoch_ms_p50=120,
            epoch_ms_p99=1340,
            events_per_second=5678.9,
            restart_seconds=restart,
            restarts_seconds=() if restart is None else (restart,),
            sent_at_kills=(500,),
        )

    return Report(
        job="<job>",
        declared=ACKED,
        event_count=2000,
        events_origin="made from the schema, seed 1",
        row_count=1000,
        kills=1,
        seconds=40.0,
        rows_per_epoch=401,
        is_by_number=False,
        results=(
            result(Contender(Guarantee.AT_MOST_ONCE), 321, 0, None),
            result(ACKED, 0, 77, 6.5),
            result(Contender(Guarantee.AT_LEAST_ONCE, Tracking.CHECKPOINT), 0, 78, 6.6),
        ),
        refusals=(
            Refusal(Contender(Guarantee.END_TO_END_EXACTLY_ONCE), reason="the sink is <plain>", fix="use another"),
        ),
    )


def test_the_table_has_every_number_and_the_reason_of_a_refusal() -> None:
    lines = report().lines(120)
    rows = {text.split("  ")[0]: " ".join(text.split()) for text in lines[2:7]}
    assert rows["at-most-once"] == "at-most-once 321 0 0 - 120 / 1,340 ms 5,679 -"
    numbers = "980 / 2,345 ms 120 / 1,340 ms 5,679"
    assert rows["at-least-once (acks)"] == f"at-least-once (acks) 0 77 0 {numbers} 6.5 s"
    assert rows["at-least-once (checkpoint)"] == f"at-least-once (checkpoint) 0 78 0 {numbers} 6.6 s"
    assert rows["end-to-end exactly-once"] == "end-to-end exactly-once refused: the sink is <plain>"
    assert all(len(text) <= 120 for text in lines)
    told = " ".join(" ".join(lines).split())
    assert "Guarantee.AT_LEAST_ONCE, tracking=acks(...) (as it is declared);" in told
    assert "Guarantee.AT_LEAST_ONCE, without tracking=;" in told


def test_a_comparison_by_number_says_so() -> None:
    told = dict(report().notes())["lost, duplicated"]
    by_number = Report(**{**vars(report()), "is_by_number": True})
    assert "multiset" in told
    assert "only their number" in dict(by_number.notes())["lost, duplicated"]


def test_the_page_holds_table_and_plot_and_no_markup_of_the_user() -> None:
    page = report().page()
    assert all(text in page for text in ("<svg ", "321", "77", "refused: the sink is &lt;plain&gt;", "6.5 s"))
    assert page.count("at-least-once (checkpoint)") > 1  # in the table and in the plot
    assert "<job>" not in page


def test_the_facts_distinguish_both_ways_of_at_least_once() -> None:
    facts = json.loads(json.dumps(report().as_json()))
    assert facts["declared"] == {"guarantee": "AT_LEAST_ONCE", "tracking": "acks"}
    told = [(one["label"], one["guarantee"], one["tracking"], one["latency_ms_p99"]) for one in facts["results"]]
    assert told == [
        ("at-most-once", "AT_MOST_ONCE", None, None),
        ("at-least-once (acks)", "AT_LEAST_ONCE", "acks", 2345),
        ("at-least-once (checkpoint)", "AT_LEAST_ONCE", "checkpoint", 2345),
    ]
    assert facts["results"][1]["tally"]["duplicated_count"] == 77
    assert facts["refusals"][0]["label"] == "end-to-end exactly-once"


def test_bars_are_as_long_as_their_values_and_none_is_no_bar() -> None:
    picture = ElementTree.fromstring(report().plot())
    widths = [float(bar.attrib["width"]) for bar in picture.iter() if bar.attrib.get("class") == "lc-bar"]
    (whole, *none), duplicated, latencies = widths[:3], widths[3:6], widths[6:9]
    assert whole > 0
    assert none == [0, 0]
    assert duplicated == pytest.approx([0, whole * 77 / 78, whole], abs=0.1)
    assert latencies == [0, whole, whole]
    assert {"rows lost", "321", "77", "-", "980", "6.5 s"} <= {text.text for text in picture.iter()}


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
    results = {one["label"]: one for one in facts["results"]}
    assert [*results] == ["at-least-once (acks)", "at-least-once (checkpoint)", "end-to-end exactly-once"]
    assert [(one["guarantee"], one["tracking"]) for one in results.values()] == [
        ("AT_LEAST_ONCE", "acks"),
        ("AT_LEAST_ONCE", "checkpoint"),
        ("END_TO_END_EXACTLY_ONCE", None),
    ]
    expected = facts["row_count"]
    assert 1000 < expected < 2000
    assert not facts["is_by_number"]  # though there are letters, which name their run
    for one in results.values():
        assert len(one["sent_at_kills"]) == len(one["restarts_seconds"]) == 1, done.stderr
        assert 1000 <= one["sent_at_kills"][0] < 2000
        assert 0 < one["latency_ms_p50"] <= one["latency_ms_p99"]
        assert (one["tally"]["expected_count"], one["tally"]["lost_count"], one["tally"]["other_count"]) == (
            expected,
            0,
            0,
        )
    assert results["end-to-end exactly-once"]["tally"]["duplicated_count"] == 0
    assert json.loads((home / "shown" / "compare.json").read_text()) == facts
    assert "at-least-once (acks)" in (home / "shown" / "compare.html").read_text()
    assert ElementTree.parse(home / "shown" / "compare.svg").getroot().tag.endswith("svg")
    assert not Stack(home / ".lockgate" / "services").status().kafka.running
