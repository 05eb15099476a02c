"""Windows, state and patterns through Spark, over many small epochs of events out of order: exactly what a batch gives.

What has to come out is computed here from the list of events: an epoch is so many of them, and acts on the greatest
time of the epochs before it, less the lateness.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import Row

from lockgate import (
    Guarantee,
    Job,
    Late,
    MemorySink,
    MemorySource,
    Output,
    StatefulFunction,
    Stream,
    WindowedStream,
    pattern,
    stream,
    value,
    windows,
)
from lockgate.dataflow.windows import SlidingWindow, TimeWindow, TumblingWindow
from support.runs import run_to_the_end

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
LATENESS = timedelta(seconds=20)
GAP = timedelta(seconds=4)
PER_EPOCH = 55
Group = tuple[Any, ...]


class Event(NamedTuple):
    k: str
    v: int
    at: datetime


class Epoch(NamedTuple):
    events: list[Event]
    before: datetime  # the watermark that the epochs before have acted on
    now: datetime


def make_events(seed: int, count: int = 220) -> list[Event]:
    """Most in time, some up to a minute and a half behind the others; the last one is far ahead and closes all."""
    rng = random.Random(seed)
    behind = [0] * 6 + [1, 2, 5, 9, 17, 30, 60, 90]
    events = [
        Event(rng.choice("abc"), rng.randrange(100), BEGIN + timedelta(seconds=200 + at // 2 - rng.choice(behind)))
        for at in range(count)
    ]
    return [*events, Event("end", 50, BEGIN + timedelta(days=1))]


def epochs(events: list[Event]) -> Iterator[Epoch]:
    """The epochs of a run to the end: the last has no events, and acts on what all have made."""
    zero = datetime.fromtimestamp(0, UTC)
    before = now = greatest = zero
    for first in range(0, len(events) + PER_EPOCH, PER_EPOCH):
        part = events[first : first + PER_EPOCH]
        yield Epoch(part, before, now)
        greatest = max([greatest, *(event.at for event in part)])
        before, now = now, max(now, greatest - LATENESS)


def source(events: list[Event]) -> Stream:
    return stream("events", MemorySource(events, value="k STRING, v INT, at TIMESTAMP", per_epoch=PER_EPOCH))


def run_outputs(place: Path, *outputs: Output) -> None:
    job = Job("operators", *outputs, guarantee=Guarantee.AT_LEAST_ONCE)
    run_to_the_end(job, place)


def tuples(sink: MemorySink) -> Counter[Group]:
    return Counter(map(tuple, sink.rows))


def count_and_sum(key: Row, rows: list[Row]) -> list[tuple[int, int]]:
    assert [row.at for row in rows] == sorted(row.at for row in rows)
    return [(len(rows), sum(row.v for row in rows))]


def windows_of(at: datetime, window: TumblingWindow | SlidingWindow) -> list[tuple[datetime, datetime]]:
    every = window.every if isinstance(window, SlidingWindow) else window.size
    start = at - (at - BEGIN) % every
    found = []
    while start + window.size > at:
        found.append((start, start + window.size))
        start -= every
    return found


def in_windows(
    events: list[Event], window: TumblingWindow | SlidingWindow, allowed: timedelta
) -> tuple[Counter[Group], Counter[Group]]:
    """The groups of a batch over what is in time, with their count and sum; and what is late, with what it missed."""
    groups: dict[Group, list[int]] = defaultdict(list)
    late: Counter[Group] = Counter()
    for epoch in epochs(events):
        for event in epoch.events:
            for start, end in windows_of(event.at, window):
                if end + allowed <= epoch.before:
                    late[(*event, start, end)] += 1
                else:
                    groups[event.k, start, end].append(event.v)
    groups = {group: values for group, values in groups.items() if group[0] != "end"}
    return Counter((*group, len(values), sum(values)) for group, values in groups.items()), late


def in_sessions(events: list[Event]) -> Counter[Group]:
    """The sessions of a batch."""
    by_key: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_key[event.k].append(event)
    found: Counter[Group] = Counter()
    for key, mine in by_key.items():
        mine.sort(key=lambda event: event.at)
        cuts = [at for at, (one, two) in enumerate(pairwise(mine), start=1) if two.at > one.at + GAP]
        for first, last in pairwise([0, *cuts, len(mine)]):
            part = mine[first:last]
            found[key, part[0].at, part[-1].at + GAP, len(part), sum(event.v for event in part)] += 1
    return found


TUMBLING, SLIDING = windows.tumbling("10 seconds"), windows.sliding("10 seconds", every="4 seconds")
TOGETHER: dict[str, TimeWindow] = {
    "tumbling": TUMBLING,
    "sliding": SLIDING,
    "session": windows.session(gap=GAP),
}


@pytest.mark.slow
def test_windows_by_function_are_native_windows_with_exactly_the_late_events(tmp_path: Path) -> None:
    events = make_events(3)
    timed = source(events).event_time("at", lateness=LATENESS, late=Late.TO_SIDE_OUTPUT).key_by("k").parallel(1)
    whole, late = ({name: MemorySink() for name in TOGETHER} for _ in range(2))
    native = {name: MemorySink() for name in ("tumbling", "session")}
    outputs = []
    for name, window in TOGETHER.items():
        applied = timed.window(window).apply(count_and_sum, "n BIGINT, total BIGINT")
        outputs += [applied.to(name, whole[name]), applied.late.to(f"late {name}", late[name])]
    for name, sink in native.items():
        counted = timed.window(TOGETHER[name]).aggregate(n="count(*)", total="sum(v)")
        outputs.append(counted.to(f"native {name}", sink))
    run_outputs(tmp_path, *outputs)
    for name, sink in native.items():
        assert tuples(whole[name]) == tuples(sink)
    for name, window in (("tumbling", TUMBLING), ("sliding", SLIDING)):
        expected, missed = in_windows(events, window, timedelta(0))
        assert tuples(whole[name]) == expected
        assert tuples(late[name]) == missed
        assert 10 < missed.total() < len(events)
    # A session of one event that is late for nothing may touch one that is told already: only then a batch has fewer.
    assert sum(row.n for row in whole["session"].rows) + len(late["session"].rows) == len(events) - 1


@pytest.mark.slow
def test_the_last_revisions_of_corrected_windows_are_a_batch_over_all_that_was_allowed(tmp_path: Path) -> None:
    events = make_events(4)
    allowed = timedelta(seconds=30)
    tumbling, late, sliding, sessions = (MemorySink() for _ in range(4))

    read = source(events)

    def corrected(window: TimeWindow, until: timedelta) -> WindowedStream:
        timed = read.event_time("at", lateness=LATENESS, late=Late.CORRECT, allowed=until)
        return timed.key_by("k").parallel(1).window(window)

    counted = corrected(TUMBLING, allowed).aggregate(n="count(*)", total="sum(v)")
    applied = corrected(SLIDING, allowed).trigger(on_late=True).apply(count_and_sum, "n INT, total INT")
    session = corrected(windows.session(gap=GAP), timedelta(days=9)).trigger(every=3)
    run_outputs(
        tmp_path,
        counted.to("tumbling", tumbling),
        counted.late.to("late", late),
        applied.to("sliding", sliding),
        session.aggregate(n="count(*)", total="sum(v)").to("sessions", sessions),
    )
    expected, missed = in_windows(events, TUMBLING, allowed)
    assert last_revisions(tumbling) == expected
    assert tuples(late) == missed
    assert missed
    assert last_revisions(sliding) == in_windows(events, SLIDING, allowed)[0]
    assert last_revisions(sessions) == in_sessions(events[:-1])
    told = Counter((row.k, row.window_start) for row in tumbling.rows)
    assert {(row.k, row.window_start, row.revision) for row in tumbling.rows} == {
        (*window, revision) for window, count in told.items() for revision in range(count)
    }
    assert max(told.values()) > 1
    assert max(row.revision for row in sliding.rows) >= 2
    assert any(row.n is None for row in sessions.rows), "no sessions have met"


def last_revisions(sink: MemorySink) -> Counter[Group]:
    """What holds of each window, without what was taken back; each revision came once."""
    told: dict[Group, dict[int, Row]] = defaultdict(dict)
    for row in sink.rows:
        revisions = told[row.k, row.window_start]
        assert row.revision not in revisions
        revisions[row.revision] = row
    last = []
    for revisions in told.values():
        row = revisions[max(revisions)]
        if row.window_end > row.window_start:
            last.append((row.k, row.window_start, row.window_end, row.n, row.total))
    return Counter(group for group in last if group[0] != "end")


class Silence(StatefulFunction):
    """Says how many events came before a key was silent for five seconds of event time, and of every tenth."""

    schema = "k STRING, what STRING, at TIMESTAMP, n BIGINT"
    events = value("BIGINT")
    last = value("TIMESTAMP")

    def process(self, row: Any, context: Any) -> Iterator[Any]:
        self.events.set((self.events.get() or 0) + 1)
        if not context.is_late:
            self.last.set(max(row.at, self.last.get() or row.at))
            context.at(self.last.get() + timedelta(seconds=5), name="silence")
        if self.events.get() % 10 == 0:
            yield (row.k, "tenth", row.at, self.events.get())

    def on_timer(self, timer: Any, context: Any) -> Iterator[Any]:
        yield {"k": context.key.k, "what": timer.name, "at": timer.at, "n": self.events.get()}
        self.last.clear()


def silences(events: list[Event]) -> Counter[Group]:
    count: Counter[str] = Counter()
    last: dict[str, datetime] = {}
    found: Counter[Group] = Counter()
    for epoch in epochs(events):
        for event in epoch.events:
            count[event.k] += 1
            if event.at > epoch.before:
                last[event.k] = max(event.at, last.get(event.k, event.at))
            if count[event.k] % 10 == 0:
                found[event.k, "tenth", event.at, count[event.k]] += 1
        for key, at in list(last.items()):
            due = at + timedelta(seconds=5)
            if due <= epoch.now:
                found[key, "silence", due, count[key]] += 1
                del last[key]
    return found


WITHIN = timedelta(seconds=20)


def alarms(events: list[Event]) -> tuple[Counter[Group], Counter[Group], Counter[Group]]:
    """High temperature, then smoke; what was hot without smoke; and what is late."""
    late: Counter[Group] = Counter()
    by_key: dict[str, list[Event]] = defaultdict(list)
    for epoch in epochs(events):
        for event in epoch.events:
            if event.at <= epoch.before:
                late[tuple(event)] += 1
            else:
                by_key[event.k].append(event)
    found: Counter[Group] = Counter()
    cold: Counter[Group] = Counter()
    for key, mine in by_key.items():
        hot: list[Event] = []
        for event in sorted(mine, key=lambda event: event.at):  # stable: those of one time as they came
            cold.update((key, one.at, one.v) for one in hot if event.at > one.at + WITHIN)
            hot = [one for one in hot if event.at <= one.at + WITHIN]
            if event.v < 20 and hot:
                found[key, hot[0].at, event.at, hot[0].v, event.v] += 1
                hot = []
            elif event.v > 80:
                hot.append(event)
        cold.update((key, one.at, one.v) for one in hot if one.k != "end")
    return found, cold, late


@pytest.mark.slow
def test_counts_conditions_totals_state_with_timers_and_patterns_equal_a_batch(tmp_path: Path) -> None:
    events = make_events(5)
    names = ("by count", "sliding", "until", "totals", "silence", "alarms", "cold", "late")
    sinks = {name: MemorySink() for name in names}
    timed = source(events).event_time("at", lateness=LATENESS, late=Late.TO_SIDE_OUTPUT)
    keyed = timed.key_by("k").parallel(1)
    smoke = pattern.begin("hot", "v > 80").then("smoke", "v < 20").within(WITHIN)
    alarm = keyed.detect(smoke)
    totals = keyed.rolling(n="count(*)", total="sum(v)", low="min(v)", high="max(v)", mean="avg(v)")
    outputs = {
        "by count": keyed.window(windows.tumbling_count(7)).aggregate(n="count(*)", total="sum(v)"),
        "sliding": keyed.window(windows.sliding_count(6, every=4)).apply(
            lambda key, rows: [([row.v for row in rows],)], "v ARRAY<INT>"
        ),
        "until": keyed.window(windows.until("v % 10 = 0")).aggregate(n="count(*)", total="sum(v)"),
        "totals": totals,
        "silence": keyed.process(Silence()),
        "alarms": alarm,
        "cold": alarm.timed_out,
        "late": alarm.late,
    }
    run_outputs(tmp_path, *(made.to(name, sinks[name]) for name, made in outputs.items()))

    by_key: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_key[event.k].append(event)
    expected: dict[str, Counter[Group]] = {name: Counter() for name in ("by count", "sliding", "until", "totals")}

    def span(part: list[Event]) -> tuple[datetime, datetime]:
        return min(event.at for event in part), max(event.at for event in part)

    for key, mine in by_key.items():
        values = [event.v for event in mine]
        for last in range(7, len(mine) + 1, 7):
            expected["by count"][(key, *span(mine[last - 7 : last]), 7, sum(values[last - 7 : last]))] += 1
        for last in range(4, len(mine) + 1, 4):
            first = max(0, last - 6)
            expected["sliding"][(key, *span(mine[first:last]), tuple(values[first:last]))] += 1
        ends = [at for at, one in enumerate(values, start=1) if one % 10 == 0]
        for first, last in pairwise([0, *ends]):
            expected["until"][(key, *span(mine[first:last]), last - first, sum(values[first:last]))] += 1
        for last, event in enumerate(mine, start=1):
            so_far = values[:last]
            mean = sum(so_far) / last
            expected["totals"][(*event, last, sum(so_far), min(so_far), max(so_far), mean)] += 1
    assert tuples(sinks["by count"]) == expected["by count"]
    assert Counter((*row[:3], tuple(row.v)) for row in sinks["sliding"].rows) == expected["sliding"]
    assert tuples(sinks["until"]) == expected["until"]
    assert tuples(sinks["totals"]) == expected["totals"]
    assert tuples(sinks["silence"]) == silences(events)
    found, cold, late = alarms(events)
    matches = Counter(
        (row.k, row.match_start, row.match_end, row.hot["v"], row.smoke["v"]) for row in sinks["alarms"].rows
    )
    assert matches == found
    assert Counter((row.k, row.match_start, row.hot["v"]) for row in sinks["cold"].rows) == cold
    assert all(row.smoke is None and row.reached == "hot" for row in sinks["cold"].rows)
    assert tuples(sinks["late"]) == late
    assert all(len(some) > 3 for some in (found, cold, late)), "a test that shows little"
