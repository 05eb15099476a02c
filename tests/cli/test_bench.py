"""The command `bench` counts what came out, tells facts, and leaves nothing behind."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from lockgate.cli.bench import read_settings
from lockgate.cli.main import main, make_parser
from lockgate.connectors.kafka.topics import existing_topics
from lockgate.lab.bench.payments import Payments
from lockgate.lab.bench.settings import Settings
from lockgate.lab.services.stack import Stack
from support.process import LOCKGATE, run, running
from support.waiting import PATIENCE_SECONDS


@pytest.fixture(autouse=True)
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a measurement keeps is below the directory that it runs in."""
    monkeypatch.delenv("LOCKGATE_HOME", raising=False)


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (("--events", "0"), "request at least one"),
        (("--codec", "rar"), "use one of none, gzip, snappy, lz4, zstd"),
        (("--part", "speed"), "use one of throughput, transactions, memory, table"),
        (("--exchange", "--no-key"), "measure --job parse --keyed"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    arguments: tuple[str, ...], fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    assert fix in capsys.readouterr().err


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(events=9, partitions=2, rows_per_epoch=3, codec="zstd", repeats=1, job="pass", is_keyed=False, seed=1),
        Settings(is_exchanged=True, parts=("throughput",)),
    ],
)
def test_the_printed_command_means_the_same(settings: Settings) -> None:
    arguments = make_parser().parse_args(settings.command.split()[1:])
    assert read_settings(arguments) == settings
    assert read_settings(make_parser().parse_args(["bench"])) == Settings()


def measure(place: Path, *settings: str) -> Any:
    """What a measurement tells as JSON, once it is done and holds."""
    done = run(*LOCKGATE, "bench", *settings, "--json", cwd=place, seconds=3 * PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["holds"]
    return facts


@pytest.mark.system
@pytest.mark.process
def test_a_small_measurement_adds_up_and_leaves_nothing_behind(kafka: str, tmp_path: Path) -> None:
    settings = ("--events", "20000", "--rows-per-epoch", "8000", "--repeats", "1", "--codec", "lz4")
    facts = measure(tmp_path, *settings, "--part", "throughput", "--servers", kafka)
    assert facts["command"].startswith("lockgate bench --events 20000 ")
    assert facts["machine"]["cores"] >= 1

    speed = facts["throughput"]
    expected = Payments(Settings(events=20_000)).expected_count(Settings(events=20_000))
    assert speed["expected_count"] == expected
    assert [one["delivered_count"] for one in speed["timings"]] == [expected] * 4
    order = [(one["side"], one["repeat"]) for one in speed["timings"]]
    first, second = "AT_LEAST_ONCE", "END_TO_END_EXACTLY_ONCE"
    assert order == [(first, 0), (second, 0), (second, 1), (first, 1)]
    counted = {one["side"]: one["events_per_second"] for one in speed["timings"] if one["repeat"] == 1}
    assert speed["events_per_second_median"] == counted
    assert speed["ratio"] == round(counted[second] / counted[first], 3)
    assert all(one["epoch_count"] >= 3 for one in speed["timings"])
    assert {name: given["compression.type"] for name, given in speed["client"].items()} == {first: "lz4", second: "lz4"}

    assert [topic for topic in existing_topics(kafka, where="test") if "lockgate-bench" in topic] == []
    assert not (tmp_path / ".lockgate" / "bench" / "checkpoints").exists()


@pytest.mark.prove
@pytest.mark.system
@pytest.mark.process
def test_a_measurement_has_throughput_transactions_and_memory_if_no_part_is_named(kafka: str, tmp_path: Path) -> None:
    facts = measure(tmp_path, "--events", "20000", "--rows-per-epoch", "8000", "--repeats", "1", "--servers", kafka)
    assert facts["throughput"]["timings"]
    assert [cost["partitions"] for cost in facts["transactions"]] == [4, 64]
    for cost in facts["transactions"]:
        for step in ("begin", "add", "end", "complete", "begin_and_end"):
            assert 0 < cost[step]["p50_ms"] <= cost[step]["max_ms"]
    assert [one["rows_per_epoch"] for one in facts["memory"]] == [1250, 5000, 20_000]
    assert all(one["peak_bytes"] > 0 and one["workers"] > 0 for one in facts["memory"])


@pytest.mark.prove
@pytest.mark.system
@pytest.mark.process
def test_a_small_measurement_of_a_table_counts_by_sql_and_leaves_nothing_behind(tmp_path: Path) -> None:
    settings = ("--part", "table", "--events", "20000", "--rows-per-epoch", "8000", "--repeats", "1")
    facts = measure(tmp_path, *settings)
    assert facts["machine"]["postgres"]
    assert facts["machine"]["kafka"] is facts["throughput"] is None
    timings = facts["table"]["timings"]
    assert [one["delivered_count"] for one in timings] == [20_000] * 4
    assert [one["epoch_count"] for one in timings] == [3] * 4
    first, second = "AT_LEAST_ONCE", "END_TO_END_EXACTLY_ONCE"
    assert [(one["side"], one["repeat"]) for one in timings] == [(first, 0), (second, 0), (second, 1), (first, 1)]
    counted = {one["side"]: one["events_per_second"] for one in timings if one["repeat"] == 1}
    assert facts["table"]["ratio"] == round(counted[second] / counted[first], 3)
    left = {path.name for path in (tmp_path / ".lockgate" / "bench").iterdir()}
    assert not left & {"checkpoints", "payments", "postgres", "services"}


@pytest.mark.prove
@pytest.mark.process
def test_a_small_measurement_of_at_most_once_delivers_the_same_on_all_sides(kafka: str, tmp_path: Path) -> None:
    settings = ("--part", "at-most-once", "--events", "20000", "--rows-per-epoch", "8000", "--repeats", "1")
    facts = measure(tmp_path, *settings, "--servers", kafka)
    assert facts["throughput"] is None
    speed = facts["at_most_once"]
    expected = Payments(Settings(events=20_000)).expected_count(Settings(events=20_000))
    assert [one["delivered_count"] for one in speed["timings"]] == [expected] * 8
    assert all(one["epoch_count"] >= 3 for one in speed["timings"])
    sides = ["PLAIN", "AT_MOST_ONCE", "AT_LEAST_ONCE", "END_TO_END_EXACTLY_ONCE"]
    assert [(one["side"], one["repeat"]) for one in speed["timings"]] == [
        *((side, 0) for side in sides),
        *((side, 1) for side in reversed(sides)),
    ]
    counted = {one["side"]: one["events_per_second"] for one in speed["timings"] if one["repeat"] == 1}
    assert speed["ratio"] == round(counted["AT_MOST_ONCE"] / counted["PLAIN"], 3)
    assert {side: list(ratios) for side, ratios in speed["ratios"].items()} == {
        side: sides[:index] for index, side in enumerate(sides) if index
    }
    for side, ratios in speed["ratios"].items():
        assert ratios == {other: round(counted[side] / counted[other], 3) for other in ratios}
    assert {side: speed["client"][side]["acks"] for side in sides} == {
        side: "1" if side == "AT_MOST_ONCE" else "all" for side in sides
    }
    assert [topic for topic in existing_topics(kafka, where="test") if "lockgate-bench" in topic] == []
    assert not (tmp_path / ".lockgate" / "bench" / "checkpoints").exists()


@pytest.mark.prove
@pytest.mark.process
def test_a_small_measurement_of_acks_delivers_every_event_on_both_sides(kafka: str, tmp_path: Path) -> None:
    settings = ("--part", "acks", "--events", "20000", "--rows-per-epoch", "8000", "--repeats", "1")
    facts = measure(tmp_path, *settings, "--servers", kafka)
    speed = facts["acks"]
    assert [one["delivered_count"] for one in speed["timings"]] == [20_000] * 4
    assert [(one["side"], one["repeat"]) for one in speed["timings"]] == [
        ("CHECKPOINTS", 0),
        ("ACKS", 0),
        ("ACKS", 1),
        ("CHECKPOINTS", 1),
    ]
    counted = {one["side"]: one["events_per_second"] for one in speed["timings"] if one["repeat"] == 1}
    assert speed["ratio"] == round(counted["ACKS"] / counted["CHECKPOINTS"], 3)
    assert [topic for topic in existing_topics(kafka, where="test") if "lockgate-bench" in topic] == []
    assert not (tmp_path / ".lockgate" / "bench" / "checkpoints").exists()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A directory whose services are down when the test ends, however it ends."""
    yield tmp_path
    Stack(tmp_path / ".lockgate" / "bench" / "services").down()


@pytest.mark.system
@pytest.mark.process
def test_an_interrupted_measurement_stops_what_it_started(home: Path) -> None:
    with running(*LOCKGATE, "bench", "--events", "50000", "--repeats", "1", cwd=home) as process:
        process.wait_for("Spark", lambda: "starting Spark" in process.said)
        children = process.family
        assert children, process.said
        assert process.end(signal.SIGINT) == 130
        assert "interrupted" in process.said
        assert psutil.wait_procs(children, timeout=PATIENCE_SECONDS)[1] == []
    assert not (home / ".lockgate" / "bench" / "services").exists()
