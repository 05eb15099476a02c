"""Every record of a source counts once, however often the query scans the source."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lockgate import FileSource, Guarantee, Job, Late, MemorySink, MemorySource, Stream, stream, windows
from lockgate.dataflow.endpoints import Source
from support.files import put
from support.runs import run_to_the_end

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark", "few_tasks")]

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
PER_EPOCH = 30
HOUR = timedelta(hours=1)
# The first epoch moves the watermark past its own events, the second one acts on it, and an event of the third is late.
TIMES = [*(timedelta(seconds=number) for number in range(29)), *(HOUR + timedelta(seconds=at) for at in range(31))]
TIMES += [timedelta(seconds=1), *(HOUR + timedelta(seconds=31 + number) for number in range(29))]
COUNT = len(TIMES)
VALUE = "k STRING, at TIMESTAMP"


def from_memory(place: Path) -> Source:
    return MemorySource([("a", BEGIN + at) for at in TIMES], value=VALUE, per_epoch=PER_EPOCH)


def from_files(place: Path) -> Source:
    rows = [json.dumps({"k": "a", "at": (BEGIN + at).isoformat()}) for at in TIMES]
    for first in range(0, COUNT, PER_EPOCH):
        put(place, "\n".join(rows[first : first + PER_EPOCH]), name=f"{first:03}.json")
    return FileSource(path=str(place), value=VALUE)


def late_beside_a_window(read: Stream) -> list[Stream]:
    timed = read.event_time("at", lateness="1 second", late=Late.TO_SIDE_OUTPUT)
    counted = timed.key_by("k").window(windows.tumbling("10 seconds")).aggregate(n="count(*)")
    return [counted, counted.late]


def two_passes_over_windows(read: Stream) -> list[Stream]:
    keyed = read.event_time("at", lateness="1 second").key_by("k").parallel(1).window(windows.tumbling("10 seconds"))
    native, operator = keyed.aggregate(n="count(*)"), keyed.apply(lambda key, rows: [(len(rows),)], schema="n INT")
    again = [one.map(lambda row: {"n": row.n}, schema="n LONG") for one in (native, operator)]
    return [native, operator, *again]


def two_branches_merged(read: Stream) -> list[Stream]:
    return [read.where("k = 'a'").merge(read.where("k = 'b'"))]


def a_branch_that_no_event_enters(read: Stream) -> list[Stream]:
    return [read.merge(read.where("false")), read.key_by("k").rolling(n="count(*)").where("false")]


def two_outputs(read: Stream) -> list[Stream]:
    return [read.map(lambda row: {"k": row.k}, schema="k STRING"), read.key_by("k").rolling(n="count(*)")]


def two_steps_by_the_same_key(read: Stream) -> list[Stream]:
    keyed = read.key_by("k")
    return [keyed.rolling(n="count(*)").select("k", "n").merge(keyed.rolling(n="sum(1)").select("k", "n"))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "source"),
    [
        (late_beside_a_window, from_memory),
        (two_passes_over_windows, from_memory),
        (two_branches_merged, from_memory),
        (two_branches_merged, from_files),
        (a_branch_that_no_event_enters, from_memory),
        (a_branch_that_no_event_enters, from_files),
        (two_outputs, from_files),
        (two_steps_by_the_same_key, from_memory),
    ],
    ids=lambda one: one.__name__,
)
def test_a_record_counts_once(
    make: Callable[[Stream], list[Stream]], source: Callable[[Path], Source], tmp_path: Path
) -> None:
    (tmp_path / "files").mkdir()
    outputs = [
        one.to(f"out {number}", MemorySink())
        for number, one in enumerate(make(stream("read", source(tmp_path / "files"))))
    ]
    told: list[Any] = []
    job = Job("counted", *outputs, guarantee=Guarantee.AT_LEAST_ONCE)
    run = run_to_the_end(job, tmp_path, rows_per_epoch=PER_EPOCH, wait=False)
    run.wait(told.append)
    assert run._watcher.events_total == COUNT
    assert sum(told[-1].processed.values()) == sum(told[-1].delivered.values()) == COUNT
    steps_that_missed_one = {late_beside_a_window: 1, two_passes_over_windows: 2}
    assert told[-1].late_total == steps_that_missed_one.get(make, 0)
