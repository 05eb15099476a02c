"""Rows become a metric that a real scrape reads, and what a repeated epoch does to it is what its plan says."""

import re
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from lockgate import Guarantee, Job, MemorySource, MonitorSink, Run, Stream, plan, run, stream, windows
from lockgate.dataflow.endpoints import Sink, SinkAbility
from lockgate.errors import BadJob, BadMachine, EpochFailed, Failed, InvariantBroken
from lockgate.guarantees import Delivery
from support.runs import live, run_to_the_end, wait_for_run
from support.scraping import Scraped, scrape

# Three epochs of four rows; the last one holds nothing of ip "a".
EVENTS = [(ip, number) for number, ip in enumerate("ababbcabbccb")]
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture
def opened() -> Iterator[Callable[..., MonitorSink]]:
    """Make sinks that are at work as in a run, and end them after the test."""
    sinks: list[MonitorSink] = []

    def open_sink(where: str = "sink 'out'", **how: Any) -> MonitorSink:
        sink = MonitorSink(**{"metric": "seen", "value": "n", **how})
        sink.check(where)
        sinks.append(sink)
        return sink

    yield open_sink
    for sink in sinks:
        sink.close()


def shown(rows: Sequence[tuple[str, int]]) -> Scraped:
    """The last number of each ip as a gauge, and the sum of them as a counter."""
    values: Scraped = {("last", ip): number for ip, number in rows}
    for ip, number in rows:
        values["events_total", ip] = values.get(("events_total", ip), 0) + number
    return values


@dataclass(frozen=True)
class Stumbling(Sink):
    """Fails once in epoch 1, when the other outputs have their rows already."""

    epochs: list[int] = field(default_factory=list)

    @property
    def ability(self) -> SinkAbility:
        return SinkAbility(delivery=Delivery.PLAIN, reason="it is a test", cure="none")

    def columns_needed(self) -> Sequence[str]:
        return ()

    def write(self, rows: DataFrame, epoch: int) -> None:
        self.epochs.append(epoch)
        if self.epochs == [0, 1]:
            raise EpochFailed("stumbled", where="test", fix="the epoch is repeated")


def events(rows: Sequence[tuple[str, int | None]] = EVENTS) -> Stream:
    return stream("events", MemorySource(rows, value="ip STRING, n INT", per_epoch=4))


@pytest.mark.slow
@pytest.mark.spark
def test_a_job_is_scraped_and_a_repeated_epoch_counts_once_in_a_driver_and_again_in_the_next(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = MonitorSink(metric="last", value="n", labels="ip")
    counter = MonitorSink(metric="events_total", value="n", kind="counter", labels=["ip"])
    stumbling = Stumbling()
    rows = events()
    job = Job(
        "monitored",
        rows.to("last", last),
        rows.to("counted", counter),
        rows.to("stumbling", stumbling),
        guarantee=Guarantee.AT_LEAST_ONCE,
        epoch="200 milliseconds",
    )
    commits = tmp_path / "checkpoint" / "commits"

    def wait_for_epochs(started: Run, count: int) -> None:
        def is_done() -> bool:
            return len(stumbling.epochs) == count and (commits / "2").exists()

        wait_for_run("the last epoch", is_done, started, may_restart=True)

    with live(job, tmp_path) as started:
        assert last.address == counter.address
        assert capsys.readouterr().err == f"metrics at {last.address}\n"
        wait_for_epochs(started, 4)
        assert stumbling.epochs == [0, 1, 1, 2]
        assert scrape(last) == shown(EVENTS)
    # What a driver leaves that dies after its sinks have the epoch, and before Spark logs it.
    for log in commits.glob("*2*"):
        log.unlink()
    with live(job, tmp_path) as started:
        wait_for_epochs(started, 5)
        assert stumbling.epochs[4] == 2
        assert scrape(last) == shown(EVENTS[8:])
    assert (last.address, counter.address) == (None, None)


@pytest.mark.spark
def test_a_null_stops_the_run_and_says_where(spark: SparkSession, tmp_path: Path) -> None:
    sink = MonitorSink(metric="seen", value="n", labels="ip")
    job = Job("nulls", events([("a", 1), ("b", None)]).to("out", sink), guarantee=Guarantee.AT_LEAST_ONCE)
    with pytest.raises(Failed, match=r"'n' is null, in a row for seen\{ip=\"b\"\}") as caught:
        run_to_the_end(job, tmp_path)
    assert re.match(r"sink 'out', declared at test_sink.py:\d+", caught.value.where)
    assert not isinstance(caught.value, EpochFailed)
    assert sink.address is None


@pytest.mark.spark
def test_a_run_that_cannot_begin_leaves_no_endpoint(spark: SparkSession, tmp_path: Path) -> None:
    first, second = MonitorSink(metric="seen", value="n", labels="ip"), MonitorSink(metric="seen", value="n")
    rows = events()
    outputs = rows.to("one", first), rows.to("two", second)
    with pytest.raises(BadJob, match="cannot be shown at one endpoint"):
        run(Job("clash", *outputs, guarantee=Guarantee.AT_LEAST_ONCE), log_file=tmp_path / "spark.log")
    assert first.address is None


@pytest.mark.spark
class TestRows:
    """One epoch after the other, as a run writes them."""

    @pytest.fixture(autouse=True)
    def set_up(self, spark: SparkSession) -> None:
        self.spark = spark

    def rows(self, *values: tuple[Any, ...], ddl: str = "ip STRING, n INT") -> DataFrame:
        return self.spark.createDataFrame(list(values), ddl).coalesce(1)

    def test_the_last_row_of_an_epoch_is_shown(self, opened: Callable[..., MonitorSink]) -> None:
        sink = opened(labels="ip")
        sink.write(self.rows(("a", 3), ("b", 1), ("a", 2)), 0)
        assert scrape(sink) == {("seen", "a"): 2, ("seen", "b"): 1}
        sink.write(self.rows(("a", -7)), 1)
        assert scrape(sink) == {("seen", "a"): -7, ("seen", "b"): 1}

    def test_with_latest_an_older_row_replaces_nothing_in_its_epoch_and_after_it(
        self, opened: Callable[..., MonitorSink]
    ) -> None:
        sink = opened(labels="ip", latest="at")
        ddl = "ip STRING, n INT, at STRING"
        sink.write(self.rows(("a", 2, "00:02"), ("a", 1, "00:01"), ddl=ddl), 0)
        assert scrape(sink) == {("seen", "a"): 2}
        sink.write(self.rows(("a", 9, "00:01"), ("b", 9, "00:01"), ddl=ddl), 1)
        assert scrape(sink) == {("seen", "a"): 2, ("seen", "b"): 9}
        sink.write(self.rows(("a", 3, "00:02"), ddl=ddl), 2)
        assert scrape(sink) == {("seen", "a"): 3, ("seen", "b"): 9}
        with pytest.raises(Failed, match="'at' is null"):
            sink.write(self.rows(("a", 4, None), ddl=ddl), 3)

    def test_values_and_labels_of_every_kind_are_reported(self, opened: Callable[..., MonitorSink]) -> None:
        sink = opened(labels=["text", "number", "yes", "at", "none"])
        rows = self.spark.sql(
            "SELECT 12.5BD AS n, 'a \"quoted\"\\nline' AS text, 7L AS number, true AS yes,"
            " timestamp'2026-01-02 03:04:05Z' AS at, CAST(NULL AS STRING) AS none"
        )
        sink.check_rows(rows, "test")
        sink.write(rows, 0)
        assert scrape(sink) == {("seen", "2026-01-02 03:04:05", "", "7", 'a "quoted"\nline', "true"): 12.5}

    @pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), None])
    def test_a_counter_takes_only_what_lets_it_grow(
        self, bad: float | None, opened: Callable[..., MonitorSink]
    ) -> None:
        sink = opened(metric="seen_total", kind="counter", labels="ip")
        sink.write(self.rows(("a", 1.5), ("a", 0.0), ddl="ip STRING, n DOUBLE"), 0)
        with pytest.raises(Failed, match=r"in a row for seen_total\{ip=\"b\"\}"):
            sink.write(self.rows(("a", 1.0), ("b", bad), ddl="ip STRING, n DOUBLE"), 1)
        assert scrape(sink) == {("seen_total", "a"): 1.5}
        sink.write(self.rows(("a", 1.0), ddl="ip STRING, n DOUBLE"), 1)  # the epoch was not shown, so it counts now
        assert scrape(sink) == {("seen_total", "a"): 2.5}

    def test_too_many_label_sets_stop_the_epoch_and_show_nothing_of_it(
        self, opened: Callable[..., MonitorSink]
    ) -> None:
        sink = opened(labels="ip", label_sets_max=2)
        sink.write(self.rows(("a", 1), ("b", 1)), 0)
        with pytest.raises(Failed, match="has 3 label sets, and 2 is the most"):
            sink.write(self.rows(("a", 5), ("c", 1)), 1)
        assert scrape(sink) == {("seen", "a"): 1, ("seen", "b"): 1}

    def test_two_sinks_show_one_counter_and_it_adds_both(self, opened: Callable[..., MonitorSink]) -> None:
        one, two = (opened(f"sink {at}", metric="seen_total", kind="counter") for at in range(2))
        one.write(self.rows(("a", 1)), 0)
        two.write(self.rows(("a", 2)), 0)
        assert scrape(one) == {("seen_total",): 3}
        one.close()
        assert scrape(two) == {("seen_total",): 3}

    @pytest.mark.parametrize(
        ("column", "told"),
        [
            ("'7' AS n, 'a' AS ip", "'n' is of type string"),
            ("true AS n, 'a' AS ip", "'n' is of type boolean"),
            ("7 AS n, array('a') AS ip", "'ip' is of type array<string>"),
            ("7 AS n, X'00' AS ip", "'ip' is of type binary"),
        ],
    )
    def test_a_column_that_does_not_fit_is_refused_before_anything_runs(self, column: str, told: str) -> None:
        sink = MonitorSink(metric="seen", value="n", labels="ip")
        with pytest.raises(BadJob, match=told):
            sink.check_rows(self.spark.sql(f"SELECT {column}"), "test")

    def test_a_sink_whose_endpoint_has_ended_does_not_lose_rows_in_silence(
        self, opened: Callable[..., MonitorSink]
    ) -> None:
        sink = opened()
        sink.close()
        with pytest.raises(InvariantBroken, match="without an endpoint"):
            sink.write(self.rows(("a", 1)), 0)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"metric": "7up"}, "cannot be named '7up'"),
        ({"metric": "requests-per-ip"}, "cannot be named"),
        ({"metric": ""}, "cannot be named"),
        ({"metric": "requests", "kind": "counter"}, "would show it as requests_total"),
        ({"metric": "_total", "kind": "counter"}, "would show it as _total_total"),
        ({"kind": "histogram"}, "is not known"),
        ({"labels": ["user-agent"]}, "label of Prometheus cannot be named 'user-agent'"),
        ({"labels": "__name__"}, "label of Prometheus cannot be named"),
        ({"labels": ["ip", "IP"]}, "names a column twice"),
        ({"value": ""}, "needs a value column"),
        ({"metric": "a_total", "kind": "counter", "latest": "at"}, "a counter adds up all of them"),
        ({"port": 70_000}, "port=70000 is no port"),
        ({"port": True}, "port=True is no port"),
        ({"label_sets_max": 0}, "label_sets_max=0 allows nothing"),
    ],
)
def test_a_sink_that_can_mean_nothing_is_refused(how: dict[str, Any], told: str) -> None:
    with pytest.raises(BadJob, match=re.escape(told)):
        MonitorSink(**{"metric": "seen", "value": "n", **how})


def test_a_gauge_of_the_latest_lifts_and_one_of_any_row_and_a_counter_do_not() -> None:
    counter = MonitorSink(metric="seen_total", value="n", kind="counter")
    gauge = MonitorSink(metric="seen", value="n", latest="n")
    planned = plan(Job("gauge", events().to("out", gauge), guarantee=Guarantee.AT_LEAST_ONCE))
    assert planned.reached is Guarantee.END_TO_END_EXACTLY_ONCE
    assert any("idempotent" in lift for path in planned.paths for lift in path.lifts)
    gauge = MonitorSink(metric="seen", value="n")
    refusal = plan(Job("any", events().to("out", gauge), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)).refusal()
    assert refusal is not None
    assert "latest=" in refusal.fix
    planned = plan(Job("counter", events().to("out", counter), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE))
    assert planned.reached is Guarantee.AT_LEAST_ONCE
    refusal = planned.refusal()
    assert refusal is not None
    assert "show it as a gauge" in refusal.fix
    gauge = MonitorSink(metric="seen", value="m")
    with pytest.raises(BadJob, match="'m'"):
        plan(Job("column", events().to("out", gauge), guarantee=Guarantee.AT_LEAST_ONCE))


def test_the_line_of_the_docs_plans_as_it_stands_there() -> None:
    page = (Path(__file__).parents[3] / "docs" / "GUARANTEES.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"```python\n(counts\.to\(.*MonitorSink\(.*)\n```", page)
    source = stream("requests", MemorySource([], value="ip STRING, at TIMESTAMP"))
    timed = source.event_time("at", lateness="10 seconds").key_by("ip").window(windows.tumbling("1 minute"))
    output = eval(line, {"counts": timed.aggregate(requests="count(*)"), "MonitorSink": MonitorSink})
    planned = plan(Job("docs", output, guarantee=Guarantee.END_TO_END_EXACTLY_ONCE))
    assert planned.refusal() is None


def test_a_port_that_is_taken_is_refused_with_the_fix() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        with pytest.raises(BadMachine, match=f"127.0.0.1:{port}: Address already in use") as caught:
            MonitorSink(metric="seen", value="n", port=port).check("test")
    assert "port=0" in caught.value.fix


def test_an_endpoint_exists_from_its_first_sink_to_its_last(opened: Callable[..., MonitorSink]) -> None:
    one, two = opened("sink 'one'"), opened("sink 'two'", metric="other", labels="ip")
    assert one.address == two.address
    one.close()
    one.close()
    assert one.address is None
    assert scrape(two) == {}
    address = two.address
    two.close()
    with pytest.raises(urllib.error.URLError, match="refused"):
        _DIRECT.open(str(address), timeout=10)


@pytest.mark.parametrize(
    "other",
    [
        {"labels": "url"},
        {"labels": ("ip", "url")},
        {"metric": "seen_total", "labels": "ip", "kind": "counter"},  # OpenMetrics calls it `seen` too
    ],
)
def test_one_name_for_two_metrics_is_refused_and_the_first_stays(
    other: dict[str, Any], opened: Callable[..., MonitorSink]
) -> None:
    first = opened("sink 'one'", labels="ip")
    with pytest.raises(BadJob, match="cannot be shown at one endpoint") as caught:
        opened("sink 'two'", **other)
    assert caught.value.where == "sink 'two'; sink 'one'"
    assert scrape(first) == {}


def test_one_sink_for_two_outputs_is_refused_and_for_the_next_run_is_not(opened: Callable[..., MonitorSink]) -> None:
    sink = opened("sink 'one'")
    with pytest.raises(BadJob, match="given to two outputs"):
        sink.check("sink 'two'")
    sink.check("sink 'one'")
    assert scrape(sink) == {}


def test_a_missing_package_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(BadMachine, match="not installed") as caught:
        MonitorSink(metric="seen", value="n").check("test")
    assert caught.value.fix == "pip install 'lockgate[monitor]'"
