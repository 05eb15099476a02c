"""Windows of a stream that stops: time goes on in silence, and never while history is read."""

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lockgate import FileSource, Guarantee, Job, KafkaSource, MemorySink, Run, Stream, stream, windows
from lockgate.checkpoints.checkpoint import Past
from lockgate.runtime.heartbeat import Heart, Heartbeat, report_interval
from lockgate.runtime.progress import count_events, count_lag
from support.files import put
from support.records import make_topics, send, unique
from support.runs import live, reports_of, run_to_the_end, wait_for_run
from support.waiting import wait_for

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
IDLE = timedelta(seconds=10)
NOTHING = Past()  # a query without a checkpoint
VALUE = "k STRING, v INT, at TIMESTAMP"


# When time may go on, told by reports alone


def report(
    second: float, *, rows: int = 0, watermark: float | None = None, state: int | None = 1, took_ms: int = 0
) -> dict[str, Any]:
    """A report of a query at a second of a day, with a watermark at another one."""

    def moment(seconds: float) -> str:
        return (BEGIN + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    offset = int(second * 1000) if rows else 0
    return {
        "timestamp": moment(second),
        "batchId": int(second),
        "sources": [
            {"description": "in", "numInputRows": rows, "startOffset": {"row": 0}, "endOffset": {"row": offset}},
            {"description": "beats", "numInputRows": 1, "startOffset": {"until_ms": 0}, "endOffset": {"until_ms": 9}},
        ],
        "durationMs": {"triggerExecution": took_ms},
        "eventTime": {} if watermark is None else {"watermark": moment(watermark)},
        "stateOperators": [] if state is None else [{"numRowsTotal": state}],
    }


def said(*reports: dict[str, Any], past: Past = NOTHING) -> list[float | None]:
    """What a heart has said after each report, in seconds of the day."""
    heart, found = Heart(IDLE), []
    for one in reports:
        heart.take(one, past=past)
        told = None if heart.said_ms is None else heart.said_ms / 1000 - BEGIN.timestamp()
        found.append(told)
    return found


def test_time_advances_by_the_silence_since_the_last_event() -> None:
    assert said(
        report(100, rows=5, watermark=20),
        report(101, watermark=50),
        report(109, watermark=50),
        report(110.5, watermark=50),
        report(112, watermark=60.5),
        report(121, watermark=60.5),
    ) == [None, None, None, 60.5, 60.5, 71]


def test_nothing_is_said_again_before_it_was_heard() -> None:
    told = said(report(100, rows=5), report(111, watermark=50), report(130, watermark=50), report(131, watermark=61))
    assert told == [None, 61, 61, 81]


def test_an_event_ends_the_silence() -> None:
    told = said(report(100, rows=5), report(111, watermark=50), report(112, rows=1, watermark=61), report(119))
    assert told == [None, 61, None, None]


def test_a_long_epoch_is_no_silence() -> None:
    told = said(report(100, rows=5, took_ms=60_000), report(161, watermark=50), report(170.5, watermark=50))
    assert told == [None, None, 60.5]


def test_history_that_is_read_is_no_silence() -> None:
    assert said(*(report(second, rows=1, watermark=second) for second in range(100, 200))) == [None] * 100


def test_an_offset_that_moves_without_rows_is_no_silence() -> None:
    moved = report(111, watermark=50)
    moved["sources"][0]["endOffset"] = {"row": 7}
    assert said(report(100, rows=5), moved, report(120, watermark=50)) == [None, None, None]


def test_an_epoch_that_is_repeated_behind_an_outage_is_no_silence(tmp_path: Path) -> None:
    # Epoch 160 was planned without events; what came while it failed is in the next one.
    reports = report(100, rows=5), report(105, watermark=50), report(160, watermark=50), report(171, watermark=50)
    assert said(*reports) == [None, None, 110, 110]
    assert said(*reports, past=Past(planned=160)) == [None, None, None, 61]
    pulse = tmp_path / "pulse"
    heartbeat = Heartbeat(lambda watcher: reports, past=lambda: Past(planned=160), pulse=pulse, idle=IDLE, job="idle")
    heartbeat.start()
    try:
        wait_for("a pulse", pulse.exists)
        assert int(pulse.read_text()) == (BEGIN.timestamp() + 61) * 1000
    finally:
        heartbeat.stop()


def test_nothing_is_said_if_no_step_waits_for_time_or_the_time_is_unknown() -> None:
    assert said(report(100, rows=5), report(111, watermark=50, state=0)) == [None, None]
    assert said(report(100, rows=5), report(111)) == [None, None]


def test_before_its_first_epoch_a_run_has_the_time_of_its_checkpoint() -> None:
    # It does not know yet what its state holds, either.
    reports = report(100, state=None), report(111, state=None)
    left_ms = int(BEGIN.timestamp() + 50) * 1000
    assert said(*reports, past=Past(planned=7, watermark_ms=left_ms)) == [None, 61]
    assert said(*reports, past=Past(planned=7)) == [None, None]


def test_beats_are_no_events() -> None:
    sources = report(100, rows=5)["sources"]
    assert count_events(sources) == 5
    assert count_lag([{**source, "latestOffset": source["endOffset"]} for source in sources]) == 0


@pytest.mark.parametrize(("idle_s", "report_s"), [(0.1, 0.2), (4, 1), (3600, 10)])
def test_spark_reports_several_times_within_a_silence(idle_s: float, report_s: float) -> None:
    assert report_interval(timedelta(seconds=idle_s)) == timedelta(seconds=report_s)


# The same with Spark


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    return tmp_path


def put_events(place: Path, *events: tuple[str, int, float]) -> None:
    """A file of events, each with the second of its time."""
    put(place, *({"k": key, "v": value, "at": BEGIN + timedelta(seconds=at)} for key, value, at in events))


def timed(place: Path, name: str) -> Stream:
    source = FileSource(path=str(place / name), value=VALUE)
    return stream(name, source).event_time("at", lateness="1 second", idle="2 seconds")


def counts_job(events: Stream, sink: MemorySink) -> Job:
    counted = events.key_by("k").window(windows.tumbling("5 seconds")).aggregate(n="count(*)")
    return Job("idle", counted.to("counts", sink), guarantee=Guarantee.AT_LEAST_ONCE, epoch="200 milliseconds")


def last_state(running: Run) -> dict[str, Any]:
    state: dict[str, Any] = reports_of(running)[-1]["stateOperators"][0]
    return state


def beats_of(running: Run) -> int:
    return max((_beat(one) for one in reports_of(running)), default=0)


def _beat(one: dict[str, Any]) -> int:
    offsets = [source["endOffset"] for source in one["sources"]]
    told = [json.loads(offset) if isinstance(offset, str) else offset for offset in offsets]
    return max((offset["until_ms"] for offset in told if offset and "until_ms" in offset), default=0)


def counted(sink: MemorySink) -> list[tuple[str, int, int]]:
    return sorted((row.k, int((row.window_start - BEGIN).total_seconds()), row.n) for row in sink.rows)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_windows_of_a_stream_that_stops_are_closed_also_by_a_later_run(inputs: Path) -> None:
    sink = MemorySink()
    put_events(inputs / "one", ("a", 1, 0), ("a", 2, 1), ("b", 3, 4))
    with live(counts_job(timed(inputs, "one"), sink), inputs) as first:
        wait_for_run("two rows", lambda: len(sink.rows) >= 2, first)
        assert counted(sink) == [("a", 0, 2), ("b", 0, 1)]
        wait_for_run("an empty state", lambda: last_state(first)["numRowsTotal"] == 0, first)
        told = beats_of(first)
        # An event behind what silence has moved is late; one ahead of it opens a window.
        put_events(inputs / "one", ("a", 4, 2), ("c", 5, 300))
        wait_for_run("both events", lambda: any(one["numInputRows"] == 2 for one in reports_of(first)), first)
    assert told >= (BEGIN.timestamp() + 5) * 1000
    with live(counts_job(timed(inputs, "one"), sink), inputs) as second:
        wait_for_run("a third row", lambda: len(sink.rows) >= 3, second)
    assert counted(sink) == [("a", 0, 2), ("b", 0, 1), ("c", 300, 1)]
    assert not second._heartbeat._pulse.exists()  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_windows_that_a_run_to_the_end_left_open_are_closed_by_a_live_one_without_an_event(inputs: Path) -> None:
    # The live run has nothing to run an epoch for, and Spark tells no watermark before the first.
    sink = MemorySink()
    put_events(inputs / "one", ("a", 1, 0), ("b", 2, 300))
    run_to_the_end(counts_job(timed(inputs, "one"), sink), inputs)
    assert counted(sink) == [("a", 0, 1)]
    with live(counts_job(timed(inputs, "one"), sink), inputs) as started:
        wait_for_run("two rows", lambda: len(sink.rows) >= 2, started)
    assert counted(sink) == [("a", 0, 1), ("b", 300, 1)]


@pytest.mark.prove
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_silent_input_beside_a_busy_one_is_waited_for_until_both_are_silent(inputs: Path) -> None:
    sink = MemorySink()
    both = timed(inputs, "one").merge(timed(inputs, "two"))
    put_events(inputs / "one", ("a", 1, 0))
    put_events(inputs / "two", ("b", 2, 3))
    with live(counts_job(both, sink), inputs) as running:
        wait_for_run("an epoch", lambda: any(one["numInputRows"] for one in reports_of(running)), running)
        began, at = time.monotonic(), 10
        while time.monotonic() - began < 6:  # three times as long as `idle`
            seen = len(list((inputs / "one").iterdir()))
            put_events(inputs / "one", ("a", at, at))
            at += 1
            wait_for_run("the file", lambda seen=seen: read_files(running) > seen, running)  # type: ignore[misc]
        assert beats_of(running) == 0
        assert sink.rows == []
        wait_for_run("all events", lambda: sum(row.n for row in sink.rows) == at - 10 + 2, running)
    assert ("a", 0, 1) in counted(sink)
    assert ("b", 0, 1) in counted(sink)


def read_files(running: Run) -> int:
    return sum(source["numInputRows"] for one in reports_of(running) for source in one["sources"]) - 1


@pytest.mark.prove
@pytest.mark.system
@pytest.mark.usefixtures("spark")
def test_history_is_replayed_without_a_beat_and_a_run_to_the_end_has_none(kafka: str, tmp_path: Path) -> None:
    (topic,) = make_topics(kafka, unique("history"))
    events = [{"k": "a", "v": one, "at": (BEGIN + timedelta(seconds=one)).isoformat()} for one in range(120)]
    send(kafka, topic, events, partition=lambda event: event["v"] % 2)

    def job(sink: MemorySink) -> Job:
        read = stream("in", KafkaSource(topic=topic, servers=kafka, value=VALUE))
        return counts_job(read.event_time("at", lateness="1 second", idle="2 seconds"), sink)

    lasting, ended = MemorySink(), MemorySink()
    with live(job(lasting), tmp_path, checkpoint=str(tmp_path / "live"), rows_per_epoch=6) as running:
        wait_for_run("all events", lambda: sum(row.n for row in lasting.rows) == 120, running)
        reading = [one for one in reports_of(running) if one["numInputRows"] and not _is_only_beat(one)]
        assert len(reading) > 15
        assert all(_beat(one) == 0 for one in reading)
        assert beats_of(running) > 0
    run_to_the_end(job(ended), tmp_path, checkpoint=str(tmp_path / "end"))
    assert sum(row.n for row in ended.rows) == 115
    assert counted(ended) == counted(lasting)[:-1]


def _is_only_beat(one: dict[str, Any]) -> bool:
    return one["numInputRows"] == 1 and _beat(one) > 0


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_windows_by_arrival_close_by_the_clock(inputs: Path) -> None:
    sink = MemorySink()
    put_events(inputs / "one", ("a", 1, 0), ("a", 2, 9_000), ("b", 3, 4))
    began = datetime.now(UTC)
    read = stream("one", FileSource(path=str(inputs / "one"), value=VALUE)).processing_time()
    with live(counts_job(read, sink), inputs) as running:
        wait_for_run("two rows", lambda: len(sink.rows) >= 2, running)
    assert [(row.k, row.n) for row in sorted(sink.rows)] == [("a", 2), ("b", 1)]
    assert all(row.window_end > began > row.window_start - timedelta(minutes=5) for row in sink.rows)
