"""A job over history at full speed, and then on into the present, gives the results of the run that was live all along.

Events are files, each put in place whole. The live run is given one after the other, and each is an epoch. The other
finds most of them there, takes them in a few large epochs, and is then given the rest.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lockgate import (
    FileSource,
    Guarantee,
    Job,
    Late,
    MemorySink,
    MemorySource,
    Run,
    StatefulFunction,
    Stream,
    pattern,
    stream,
    value,
    windows,
)
from support.files import put
from support.runs import live, run_to_the_end, wait_for_run

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
LATENESS = timedelta(seconds=30)
FILES, HISTORY, PER_FILE = 4, 3, 50
Sinks = dict[str, MemorySink]


class Gaps(StatefulFunction):
    """Says when nothing of a key has happened for four seconds; events come out of order."""

    schema = "k STRING, silent_since TIMESTAMP, events BIGINT"
    events = value("BIGINT")
    seen = value("ARRAY<TIMESTAMP>")

    def process(self, row: Any, context: Any) -> None:
        self.events.set((self.events.get() or 0) + 1)
        self.seen.set([*(self.seen.get() or []), row.at])
        context.at(row.at + timedelta(seconds=4))

    def on_timer(self, timer: Any, context: Any) -> Iterator[Any]:
        # What has not been counted on yet lies behind the timer, so the gap is that of the events before it.
        begin = timer.at - timedelta(seconds=4)
        if not any(begin < at < timer.at for at in self.seen.get()):
            yield (context.key.k, begin, sum(at <= begin for at in self.seen.get()))


def in_time(path: Path, sinks: Sinks) -> Job:
    """Steps whose results do not hang on what an epoch is, while disorder stays within the lateness."""
    read = stream("events", FileSource(path=str(path), value="k STRING, v INT, at TIMESTAMP"))
    keyed = read.event_time("at", lateness=LATENESS).key_by("k").parallel(2)
    rise = pattern.begin("low", "v < 20").then("high", "v > 70").within("10 seconds")
    alarms = keyed.detect(rise, name="rise")

    def middle(key: Any, rows: Any) -> list[tuple[int]]:
        return [(sorted(row.v for row in rows)[len(rows) // 2],)]

    made: dict[str, Stream] = {
        "sessions": keyed.window(windows.session(gap="3 seconds"), name="sessions").apply(middle, "v INT"),
        "native": keyed.window(windows.tumbling("5 seconds"), name="native").aggregate(n="count(*)"),
        "counts": keyed.window(windows.sliding_count(6, every=3), name="counts").aggregate(total="sum(v)"),
        "totals": keyed.rolling(total="sum(v)", name="totals"),
        "gaps": keyed.process(Gaps(), name="gaps"),
        "rise": alarms,
        "alone": alarms.timed_out,
    }
    return _job("in-time", made, sinks)


def corrected(path: Path, sinks: Sinks) -> Job:
    """Windows that are told before all of their events have come, and told again."""
    read = stream("events", FileSource(path=str(path), value="k STRING, v INT, at TIMESTAMP"))
    keyed = read.event_time("at", lateness="1 second", late=Late.CORRECT, allowed="1 day").key_by("k").parallel(2)
    made: dict[str, Stream] = {
        "tumbling": keyed.window(windows.tumbling("5 seconds"), name="tumbling").aggregate(n="count(*)", v="sum(v)"),
        "sessions": keyed.window(windows.session(gap="3 seconds"), name="sessions").aggregate(n="count(*)", v="sum(v)"),
    }
    return _job("corrected", made, sinks)


def _job(name: str, made: dict[str, Stream], sinks: Sinks) -> Job:
    outputs = [one.to(f"{output} out", sinks.setdefault(output, MemorySink())) for output, one in made.items()]
    return Job(name, *outputs, guarantee=Guarantee.AT_LEAST_ONCE, epoch="100 milliseconds")


def make_files(seed: int) -> list[str]:
    """Files of events that come up to twenty seconds later than their neighbours; the last closes all windows."""
    rng = random.Random(seed)
    count = FILES * PER_FILE
    events = [(rng.choice("abc"), rng.randrange(100), timedelta(seconds=at * 0.4)) for at in range(count)]
    events.sort(key=lambda event: event[2] + timedelta(seconds=rng.choice((0, 0, 0, 1, 5, 20))))
    texts = [json.dumps({"k": k, "v": v, "at": (BEGIN + at).isoformat()}) for k, v, at in events]
    files = ["\n".join(texts[first : first + PER_FILE]) for first in range(0, count, PER_FILE)]
    return [*files, json.dumps({"k": "end", "v": 50, "at": (BEGIN + timedelta(days=9)).isoformat()})]


def run_live(jobs: list[Job], place: Path, files: list[str], first: int, checkpoint: Path) -> None:
    """Give jobs that run the files from this number on, one an epoch."""
    with ExitStack() as stack:
        running = [stack.enter_context(live(job, checkpoint, checkpoint=str(checkpoint / job.name))) for job in jobs]
        for number, text in enumerate(files[first:], start=first):
            put(place, text, name=f"{number:03}.json")
            wait_for_run("the file", lambda number=number: min(map(files_done, running)) > number, *running)  # type: ignore[misc]
        # The last file has moved the watermark, and an epoch without events acts on it.
        wait_for_run("the end of all windows", lambda: all(has_closed(one) for one in running), *running)


def files_done(one: Run) -> int:
    """How many files are in the epochs that are done; Spark's log of the source says which."""
    done = [int(file.name) for file in (Path(one.checkpoint) / "commits").glob("[0-9]*")]
    if not done:
        return 0
    offsets = (Path(one.checkpoint) / "offsets" / str(max(done))).read_text().splitlines()
    last = min(json.loads(line)["logOffset"] for line in offsets[2:] if "logOffset" in line)
    entries: set[str] = set()
    for file in (Path(one.checkpoint) / "sources" / "0").glob("[0-9]*"):
        told = [json.loads(line) for line in file.read_text().splitlines()[1:]]
        entries |= {entry["path"] for entry in told if entry["batchId"] <= last}
    return len(entries)


def has_closed(one: Run) -> bool:
    done = [int(file.name) for file in (Path(one.checkpoint) / "commits").glob("[0-9]*")]
    offsets = (Path(one.checkpoint) / "offsets" / str(max(done))).read_text().splitlines()
    watermark: int = json.loads(offsets[1])["batchWatermarkMs"]
    return watermark > (BEGIN + timedelta(days=8)).timestamp() * 1000


def rows_of(sink: MemorySink) -> Counter[str]:
    return Counter(repr(row) for row in sink.rows)


def last_revisions(sink: MemorySink) -> dict[Any, Any]:
    last: dict[Any, Any] = {}
    for row in sink.rows:
        known = last.get((row.k, row.window_start))
        if known is None or row.revision > known.revision:
            last[row.k, row.window_start] = row
    return {window: (row.window_end, row.n, row.v) for window, row in last.items() if row.n is not None}


@pytest.mark.slow
def test_history_at_full_speed_and_then_the_present_give_what_the_live_run_gave(tmp_path: Path) -> None:
    files = make_files(8)
    seen: Sinks = {}
    seen_corrected: Sinks = {}
    replayed: Sinks = {}
    replayed_corrected: Sinks = {}
    for name, first in (("live", 0), ("replay", HISTORY)):
        place = tmp_path / name
        (place / "files").mkdir(parents=True)
        one, two = (seen, seen_corrected) if name == "live" else (replayed, replayed_corrected)
        jobs = [in_time(place / "files", one), corrected(place / "files", two)]
        for number, text in enumerate(files[:first]):
            put(place / "files", text, name=f"{number:03}.json")
        for job in jobs if first else []:
            run_to_the_end(job, place, checkpoint=str(place / job.name))
        run_live(jobs, place / "files", files, first, place)
    for name in seen:
        assert rows_of(replayed[name]) == rows_of(seen[name]), name
        assert len(seen[name].rows) > 3, name
    # A rolling step tells of every event in the epoch that read it, so it shows what an epoch was in either run. What
    # a timer or a window tells may share an epoch by chance of when the watermark moved.
    assert len(set(seen["totals"].epochs)) == len(files)
    assert len(set(replayed["totals"].epochs)) < len(files)
    for name in seen_corrected:
        assert last_revisions(replayed_corrected[name]) == last_revisions(seen_corrected[name]), name
        assert len(seen_corrected[name].rows) > len(last_revisions(seen_corrected[name])), "nothing was corrected"


def fires(sinks: Sinks, per_epoch: int) -> Job:
    """Heat and smoke from two sources, to the second, so that times are often equal."""
    begin, end = BEGIN, BEGIN + timedelta(days=9)
    # In room a the heat comes some epochs before the smoke of the same second, in room b some epochs behind it.
    heat = [("a", 90, 0, begin), ("x", 0, 0, begin), ("x", 0, 0, begin), ("b", 90, 0, begin), ("end", 0, 0, end)]
    smoke = [("b", 0, 1, begin), ("x", 0, 0, begin), ("x", 0, 0, begin), ("a", 0, 1, begin), ("end", 0, 0, end)]
    columns = "room STRING, heat INT, smoke INT, at TIMESTAMP"
    read = [
        stream(name, MemorySource(events, value=columns, per_epoch=per_epoch))
        for name, events in (("heat", heat), ("smoke", smoke))
    ]
    rooms = read[0].merge(read[1]).event_time("at", lateness=LATENESS).key_by("room").parallel(1)
    alarms = rooms.detect(
        pattern.begin("hot", "heat > 60").then("smoke", "smoke = 1").within("10 minutes"), name="fire"
    )
    made: dict[str, Stream] = {
        "alarms": alarms.select("room", hot="hot.heat", smoke="smoke.smoke"),
        "alone": alarms.timed_out,
        "told": rooms.window(windows.tumbling("1 minute"), name="told").apply(
            lambda key, rows: [([row.heat for row in rows],)], "heat ARRAY<INT>"
        ),
    }
    return _job("fires", made, sinks)


@pytest.mark.slow
def test_events_of_one_time_from_two_sources_have_one_order_in_both_runs(tmp_path: Path) -> None:
    seen: Sinks = {}
    replayed: Sinks = {}
    for sinks, per_epoch in ((seen, 1), (replayed, 100)):
        place = tmp_path / str(per_epoch)
        place.mkdir()
        run_to_the_end(fires(sinks, per_epoch), place, checkpoint=str(place / "job"))
    assert len({*replayed["alarms"].epochs}) == 1
    for name in seen:
        assert rows_of(replayed[name]) == rows_of(seen[name]), name
    assert sorted(row.room for row in seen["alarms"].rows) == ["a", "b"], "heat is before smoke, by the sources' names"
    assert seen["alone"].rows == []
    assert {row.room: row.heat for row in seen["told"].rows if row.room != "x"} == {"a": [90, 0], "b": [90, 0]}
