"""Watermarks: events whose time cannot be used, filters behind them, several sources, and the clock of an epoch."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lockgate import Guarantee, Job, MemorySink, MemorySource, Stream, stream, windows
from lockgate.errors import UnusableTime
from support.runs import run_to_the_end

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "k STRING, v INT, at TIMESTAMP"
Event = tuple[str, int, datetime | None]


def at(second: float) -> datetime:
    return BEGIN + timedelta(seconds=second)


def source(events: list[Event], name: str = "events", per_epoch: int = 1) -> Stream:
    return stream(name, MemorySource(events, value=SCHEMA, per_epoch=per_epoch))


def run_outputs(tmp_path: Path, *outputs: Any) -> Any:
    job = Job("timing", *outputs, guarantee=Guarantee.AT_LEAST_ONCE)
    return run_to_the_end(job, tmp_path)


def count(events: Stream) -> Stream:
    return events.key_by("k").window(windows.tumbling("10 seconds")).aggregate(n="count(*)")


def counted(sink: MemorySink) -> Counter[tuple[str, float, int]]:
    return Counter((row.k, (row.window_start - BEGIN).total_seconds(), row.n) for row in sink.rows)


# Events whose time cannot be used


@pytest.mark.slow
def test_an_event_without_a_time_stops_the_job_and_is_named(tmp_path: Path) -> None:
    sink = MemorySink()
    events: list[Event] = [("a", 1, at(0)), ("b", 2, None), ("a", 3, at(100))]
    with pytest.raises(UnusableTime) as stopped:
        run_outputs(tmp_path, count(source(events).event_time("at", lateness="1 second")).to("out", sink))
    assert "events, events, offset 1: at is null" in stopped.value.what
    assert '{"k":"b","v":2}' in stopped.value.what
    assert stopped.value.where.startswith("event_time 'event_time', declared at test_timing.py:")
    assert sink.rows == []


@pytest.mark.slow
def test_an_event_far_ahead_of_the_clock_stops_the_job_before_it_moves_the_watermark(tmp_path: Path) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    sink = MemorySink()
    events: list[Event] = [("a", 1, now), ("a", 2, now + timedelta(seconds=30)), ("b", 3, now + timedelta(days=900))]
    timed = source(events).event_time("at", lateness="1 hour", max_ahead="10 minutes")
    with pytest.raises(UnusableTime) as stopped:
        run_outputs(tmp_path, count(timed).to("out", sink))
    assert "offset 2" in stopped.value.what
    assert "more than 10 minutes ahead of the epoch's clock" in stopped.value.what
    assert "for an end-to-end exactly-once job `lockgate checkpoints rollback --uncommitted`" in stopped.value.fix
    assert sink.rows == []


@pytest.mark.slow
def test_an_event_beyond_the_years_of_python_is_named_also_without_max_ahead(tmp_path: Path) -> None:
    sink = MemorySink()
    events: list[Event] = [("a", 1, at(0)), ("b", 2, at(1)), ("a", 3, at(2))]
    # As where a producer sends milliseconds and the reader takes them for seconds.
    misread = source(events).select("k", "v", at="if(v = 2, timestamp_seconds(unix_millis(at)), at)")
    with pytest.raises(UnusableTime) as stopped:
        run_outputs(tmp_path, count(misread.event_time("at", lateness="1 second")).to("out", sink))
    assert "events, events, offset 1: at is +57971-" in stopped.value.what
    assert "not within the years 1 to 9999" in stopped.value.what
    assert sink.rows == []


@pytest.mark.slow
def test_events_within_max_ahead_and_without_it_pass(tmp_path: Path) -> None:
    ahead = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=5)
    bounded, free = MemorySink(), MemorySink()
    timed = source([("a", 1, ahead)], "one").event_time("at", lateness="0 seconds", max_ahead="10 minutes")
    far = source([("a", 1, ahead + timedelta(days=9))], "two").event_time("at", lateness="0 seconds")
    run_outputs(tmp_path, timed.to("bounded", bounded), far.to("free", free))
    assert [row.at for row in (*bounded.rows, *free.rows)] == [ahead, ahead + timedelta(days=9)]


# One watermark for a job


@pytest.mark.slow
def test_a_part_of_a_split_that_gets_no_events_holds_nothing_back(tmp_path: Path) -> None:
    many, none = MemorySink(), MemorySink()
    events: list[Event] = [("a", number, at(number)) for number in range(40)]
    parts = source(events, per_epoch=10).event_time("at", lateness="0 seconds").split(many="v >= 0", none="v < 0")
    run_outputs(tmp_path, count(parts["many"]).to("many", many), count(parts["none"]).to("none", none))
    assert counted(many) == Counter({("a", start, 10): 1 for start in (0.0, 10.0, 20.0)})
    assert none.rows == []


@pytest.mark.slow
def test_of_several_sources_the_slowest_tells_the_time(tmp_path: Path) -> None:
    merged, joined = MemorySink(), MemorySink()
    fast: list[Event] = [("a", number, at(10 * number)) for number in range(10)]
    slow: list[Event] = [("a", number, at(4 * number)) for number in range(10)]
    timed = [
        source(events, name).event_time("at", lateness="0 seconds") for events, name in ((fast, "fast"), (slow, "slow"))
    ]
    paid = [(number, at(4 * number)) for number in range(10)]
    other = stream("paid", MemorySource(paid, value="v INT, paid TIMESTAMP", per_epoch=1))
    pairs = timed[0].join(other.event_time("paid", lateness="0 seconds"), on="v", within="1 minute")
    run_outputs(tmp_path, count(timed[0].merge(timed[1])).to("merged", merged), pairs.to("joined", joined))
    # The slow ones end at second 36: what is closed ended by then, and nothing of it is missing.
    assert counted(merged) == Counter({("a", 0.0, 4): 1, ("a", 10.0, 3): 1, ("a", 20.0, 4): 1})
    assert sorted(row.v for row in joined.rows) == list(range(10))


# The clock of an epoch


@pytest.mark.slow
def test_a_repeated_epoch_has_the_same_time_of_arrival(tmp_path: Path) -> None:
    first, again = MemorySink(), MemorySink()
    events: list[Event] = [("a", number, at(0)) for number in range(4)]

    def arrivals(sink: MemorySink) -> Any:
        return source(events, per_epoch=2).processing_time().select("v", "_arrived").to("out", sink)

    began = datetime.now(UTC)
    run_outputs(tmp_path, arrivals(first))
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    run_outputs(tmp_path, arrivals(again))
    times = {row.v: row._arrived for row in first.rows}
    assert sorted(times) == [0, 1, 2, 3]
    assert times[0] == times[1] < times[2] == times[3]
    assert began - timedelta(seconds=1) < times[0]
    assert {row.v: row._arrived for row in again.rows} == {v: times[v] for v in (2, 3)}
