"""Late events: dropped and counted, logged, or in an output of their own; in a window or late, never both or none."""

import json
import logging
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lockgate import (
    Guarantee,
    Job,
    KafkaSink,
    KafkaSource,
    Late,
    MemorySink,
    MemorySource,
    Stream,
    stream,
    windows,
)
from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.errors import Failed
from lockgate.runtime.late import watermark_before
from support.records import make_topics, read_json, send, unique
from support.runs import run_to_the_end

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
LATENESS = timedelta(seconds=20)
SIZE = timedelta(seconds=30)
EVERY = timedelta(seconds=10)
GAP = timedelta(seconds=15)
Event = tuple[str, int, datetime]


def make_events(seed: int, count: int = 300) -> list[Event]:
    """One event a second; most come in time, some minutes late; the last moves the watermark past all others."""
    rng = random.Random(seed)
    delays = [rng.uniform(0, 15) if rng.random() < 0.8 else rng.uniform(60, 200) for _ in range(count)]
    order = sorted(range(count), key=lambda number: number + delays[number])
    events = [(f"k{rng.randrange(4)}", number, BEGIN + timedelta(seconds=number)) for number in order]
    return [*events, *(("end", count + number, BEGIN + timedelta(hours=1)) for number in range(40))]


def read(events: list[Event], late: Late, per_epoch: int = 45) -> Stream:
    source = MemorySource(events, value="k STRING, v INT, at TIMESTAMP", per_epoch=per_epoch)
    return stream("events", source).event_time("at", lateness=LATENESS, late=late)


def windows_of(at: datetime, every: timedelta) -> list[tuple[datetime, datetime]]:
    """Every window of SIZE, one beginning every `every`, that holds a moment."""
    last = BEGIN + (at - BEGIN) // every * every
    return [(last - every * step, last - every * step + SIZE) for step in range(SIZE // every)]


# One output for what is late


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("is_keyed", [True, False], ids=["keyed", "global"])
def test_every_event_is_in_its_window_or_late_for_it_and_never_both(is_keyed: bool, tmp_path: Path) -> None:
    events = make_events(seed=1 if is_keyed else 2)
    timed = read(events, Late.TO_SIDE_OUTPUT)
    grouped = timed.key_by("k") if is_keyed else timed
    kinds = {
        "tumbling": windows.tumbling(SIZE),
        "sliding": windows.sliding(SIZE, every=EVERY),
        "session": windows.session(gap=GAP),
    }
    # Three windows over one stream in one job, each with its own late events.
    counted = {name: grouped.window(kind).aggregate(n="count(*)", total="sum(v)") for name, kind in kinds.items()}
    counts, late = ({name: MemorySink() for name in kinds} for _ in range(2))
    job = Job(
        "late",
        *(counted[name].to(name, counts[name]) for name in kinds),
        *(counted[name].late.to(f"late-{name}", late[name]) for name in kinds),
        guarantee=Guarantee.AT_LEAST_ONCE,
    )
    run_to_the_end(job, tmp_path)
    for name, every in (("tumbling", SIZE), ("sliding", EVERY)):
        assert late[name].rows[0].asDict().keys() == {"k", "v", "at", "window_start", "window_end"}
        assert all(row.window_start <= row.at < row.window_end for row in late[name].rows)
        assert Counter(map(tuple, counts[name].rows)) == expected_counts(events, late[name], every, is_keyed)
    missed = {row.v for row in late["session"].rows}
    in_time = [event for event in events if event[1] not in missed and event[0] != "end"]
    assert len(missed) == len(late["session"].rows)
    assert all((row.window_start, row.window_end) == (row.at, row.at + GAP) for row in late["session"].rows)
    assert sum(row.n for row in counts["session"].rows) == len(in_time)
    assert sum(row.total for row in counts["session"].rows) == sum(value for _, value, _ in in_time)
    for sink in late.values():
        assert len({row.v for row in sink.rows}) > 15
        assert len(set(sink.epochs)) > 2


def expected_counts(
    events: list[Event], late: MemorySink, every: timedelta, is_keyed: bool
) -> Counter[tuple[Any, ...]]:
    """What a batch computation gives over all events but the late ones."""
    missed = Counter((row.v, row.window_start, row.window_end) for row in late.rows)
    assert max(missed.values()) == 1
    groups: dict[tuple[Any, ...], list[int]] = {}
    for key, value, at in events:
        for start, end in windows_of(at, every):
            if (value, start, end) not in missed and key != "end":
                groups.setdefault((key, start, end) if is_keyed else (start, end), []).append(value)
    return Counter((*group, len(values), sum(values)) for group, values in groups.items())


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_late_events_pass_sql_steps_and_a_job_may_want_nothing_else(tmp_path: Path) -> None:
    events = make_events(4)
    every, even, odd = MemorySink(), MemorySink(), MemorySink()
    window = windows.tumbling(SIZE)
    late = read(events, Late.TO_SIDE_OUTPUT).key_by("k").window(window).aggregate(n="count(*)").late
    run_to_the_end(Job("late", late.to("all", every), guarantee=Guarantee.AT_LEAST_ONCE), tmp_path / "one")
    parts = late.where("v >= 0").split(even="v % 2 = 0", odd="v % 2 = 1")
    job = Job(
        "late",
        parts["even"].select("v", until="window_end").to("even", even),
        parts["odd"].merge(parts["even"].where("v < 0")).to("odd", odd),
        guarantee=Guarantee.AT_LEAST_ONCE,
    )
    run_to_the_end(job, tmp_path / "two")
    found = {row.v for row in every.rows}
    assert 15 < len(found) < len(events) / 2
    assert [row.v % 2 for row in even.rows] == [0] * len(even.rows)
    assert even.rows[0].asDict().keys() == {"v", "until"}
    assert {row.v for row in (*even.rows, *odd.rows)} == found
    assert len(even.rows) + len(odd.rows) == len(found)


# Dropped and counted, or logged


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_late_events_that_are_dropped_are_counted(tmp_path: Path) -> None:
    events = make_events(5)
    counts, late = MemorySink(), MemorySink()
    window = windows.tumbling(SIZE)
    # A key for every event: Spark groups by key and window before it counts.
    dropped = read(events, Late.DROP).key_by("v").window(window).aggregate(n="count(*)")
    told = run_to_the_end(
        Job("late", dropped.to("counts", counts), guarantee=Guarantee.AT_LEAST_ONCE), tmp_path / "one"
    )
    progress = [told._watcher.take(report) for report in told._reports.since(told._watcher)]
    assert progress == [None]
    kept = read(events, Late.TO_SIDE_OUTPUT).key_by("v").window(window).aggregate(n="count(*)")
    run_to_the_end(Job("late", kept.late.to("late", late), guarantee=Guarantee.AT_LEAST_ONCE), tmp_path / "two")
    assert told._watcher.late_total == len(late.rows) > 15
    assert len(counts.rows) == len(events) - 40 - len(late.rows)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_late_events_are_logged_once_an_epoch_with_one_of_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events = make_events(6)
    counts, late = MemorySink(), MemorySink()
    for policy, place in ((Late.LOG, "one"), (Late.TO_SIDE_OUTPUT, "two")):
        counted = read(events, policy).key_by("k").window(windows.tumbling(SIZE)).aggregate(n="count(*)")
        output = counted.to("counts", counts) if policy is Late.LOG else counted.late.to("late", late)
        with caplog.at_level(logging.WARNING, logger="lockgate.spark.timing"):
            run_to_the_end(Job("late", output, guarantee=Guarantee.AT_LEAST_ONCE), tmp_path / place)
    told = [record.getMessage() for record in caplog.records if record.name == "lockgate.spark.timing"]
    found = {int(line.split(": epoch ")[1].split(":")[0]): int(line.split(": ")[2].split()[0]) for line in told}
    assert found == Counter(late.epochs)
    example = json.loads(told[0].split("one is ")[1])
    assert example.keys() == {"k", "v", "at", "window_start", "window_end"}
    assert sum(row.n for row in counts.rows) + len(late.rows) == len(events) - 40


# Where an epoch is cut


def test_an_epoch_is_cut_at_the_watermark_of_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "6").write_text('v1\n{"batchWatermarkMs":1234,"batchTimestampMs":5}\n{"row":1}\n')
    assert watermark_before(Checkpoint(root=str(tmp_path)), 7) == 1234
    assert watermark_before(Checkpoint(root=str(tmp_path)), 0) == 0
    with pytest.raises(Failed, match="no offsets for epoch 7"):
        watermark_before(Checkpoint(root=str(tmp_path)), 8)


# The job of the design


def requests_per_ip(servers: str, name: str) -> Job:
    source = KafkaSource(topic=f"{name}-in", servers=servers, value="ip STRING, url STRING, at TIMESTAMP")
    requests = stream("requests", source)
    counts = (
        requests.event_time("at", lateness=timedelta(seconds=10), late=Late.TO_SIDE_OUTPUT)
        .key_by("ip")
        .window(windows.tumbling(timedelta(minutes=1)))
        .aggregate(requests="count(*)")
    )
    return Job(
        name,
        counts.to("counts", KafkaSink(topic=f"{name}-counts", servers=servers, key="ip")),
        counts.late.to("late", KafkaSink(topic=f"{name}-late", servers=servers, key="ip")),
        guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
    )


@pytest.mark.system
@pytest.mark.usefixtures("spark")
def test_the_job_of_the_design_delivers_each_request_in_a_count_or_as_late(kafka: str, tmp_path: Path) -> None:
    name = unique("requests")
    make_topics(kafka, f"{name}-in", f"{name}-counts", f"{name}-late")
    events = make_events(7)
    requests = [{"ip": key, "url": f"/{number}", "at": at.isoformat()} for key, number, at in events]
    send(kafka, f"{name}-in", requests, partition=lambda request: int(request["url"][1:]) % 2)
    run_to_the_end(requests_per_ip(kafka, name), tmp_path, rows_per_epoch=50)
    late = read_json(kafka, f"{name}-late")
    urls = [row["url"] for row in late]
    expected: Counter[tuple[str, str]] = Counter()
    for key, number, at in events:
        if f"/{number}" not in urls and key != "end":
            expected[key, at.replace(second=0).strftime("%Y-%m-%dT%H:%M:%S")] += 1
    counts = read_json(kafka, f"{name}-counts")
    assert len(set(urls)) == len(urls) > 15
    assert {(row["ip"], row["window_start"][:19]): row["requests"] for row in counts} == expected
    assert len(counts) == len(expected)
