"""What the clock moves, through Spark: timers, early results, time-outs and expiry, also where no event comes.

Where a step goes by the clock Spark runs epochs for ever, with events or without, so a run to the end has to find the
end by itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from lockgate import (
    Guarantee,
    Job,
    MemorySink,
    MemorySource,
    StatefulFunction,
    Stream,
    get_state,
    pattern,
    stream,
    value,
    windows,
)
from lockgate.errors import Failed
from support.runs import live, reports_of, run_to_the_end, wait_for_run

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
Event = tuple[str, int, datetime]
FIRST: list[Event] = [("a", 90, BEGIN), ("a", 91, BEGIN + SECOND)]
LATER: list[Event] = [*FIRST, ("a", 50, BEGIN + timedelta(hours=2))]


class Reminder(StatefulFunction):
    """Says when it took an event, and again when a second has passed since the last."""

    schema = "k STRING, what STRING, at TIMESTAMP, watermark TIMESTAMP"

    def process(self, row: Any, context: Any) -> Iterator[Any]:
        context.after("1 second", name="reminder")
        yield (row.k, "taken", context.processing_time, context.watermark)

    def on_timer(self, timer: Any, context: Any) -> Iterator[Any]:
        yield (context.key.k, timer.name, timer.at, context.watermark)


class Memory(StatefulFunction):
    """Says what it still knows of the event before: from a short memory, and from a long one."""

    schema = "v INT, short INT, long INT"
    short = value("INT", ttl="1 second")
    long = value("INT", ttl="1 hour")

    def process(self, row: Any, context: Any) -> Iterator[Any]:
        yield (row.v, self.short.get(), self.long.get())
        self.short.set(row.v)
        self.long.set(row.v)


TOGETHER = ("timers", "ttl", "early", "time-outs, no event time")
STEPS = (*TOGETHER, "timers, no event time", "ttl, no event time")
SAMPLE = ("timers", "ttl, no event time")  # `make test` has these


def make_steps(events: Sequence[Event]) -> dict[str, Stream]:
    """One stream for each kind of step that asks the clock."""
    read = stream("events", MemorySource(events, value="k STRING, v INT, at TIMESTAMP"))
    timed = read.event_time("at", lateness="0 seconds").key_by("k").parallel(1)
    plain = read.key_by("k").parallel(1)
    smoke = pattern.begin("hot", "v > 80").then("smoke", "v < 20").within(SECOND)
    hours = timed.window(windows.tumbling("1 hour"), name="early").trigger(every="1 second")
    return {
        "timers": timed.process(Reminder(), name="timers"),
        "timers, no event time": plain.process(Reminder(), name="timers, no event time"),
        "ttl": timed.process(Memory(), name="ttl"),
        "ttl, no event time": plain.process(Memory(), name="ttl, no event time"),
        "early": hours.aggregate(n="count(*)"),
        "time-outs, no event time": plain.detect(smoke, name="alarms").timed_out,
    }


def make_job(made: dict[str, Stream], sinks: dict[str, MemorySink]) -> Job:
    outputs = [made[name].to(f"told of {name}", sink) for name, sink in sinks.items()]
    return Job("clock", *outputs, guarantee=Guarantee.AT_LEAST_ONCE, epoch="200 milliseconds")


@pytest.mark.slow
def test_the_clock_moves_a_silent_stream_and_what_is_kept_goes_on_in_the_next_run(tmp_path: Path) -> None:
    sinks = {name: MemorySink() for name in TOGETHER}
    with live(make_job(make_steps(FIRST), sinks), tmp_path) as running:
        # Two rows were taken at once, and then none: what comes after them comes by the clock.
        wait_for_run("a timer", lambda: len(sinks["timers"].rows) > 2 and sinks["early"].rows, running)
        wait_for_run("two time-outs", lambda: len(sinks["time-outs, no event time"].rows) == 2, running)
        seen = reports_of(running)[-1]["batchId"]
        wait_for_run("another epoch", lambda: reports_of(running)[-1]["batchId"] > seen, running)
    taken, again, reminder = sinks["timers"].rows
    assert taken == again == ("a", "taken", taken.at, None)
    assert reminder == ("a", "reminder", taken.at + SECOND, BEGIN + SECOND)
    assert sinks["timers"].epochs[2] > sinks["timers"].epochs[1]
    hour = (BEGIN, BEGIN + timedelta(hours=1))
    assert sinks["early"].rows == [("a", *hour, 0, False, 2)], "told again, though no event came"
    assert [(row.reached, row.hot["v"]) for row in sinks["time-outs, no event time"].rows] == [("hot", 90), ("hot", 91)]

    ended = run_to_the_end(make_job(make_steps(LATER), sinks), tmp_path)
    assert not ended.is_running
    # Within an epoch no time passes; between the runs a second has passed, and no hour.
    assert sinks["ttl"].rows == [(90, None, None), (91, 90, 90), (50, None, 91)]
    assert [row for row in sinks["early"].rows[1:] if row.window_start == BEGIN] == [("a", *hour, 1, True, 2)]
    assert [row.what for row in sinks["timers"].rows][:4] == ["taken", "taken", "reminder", "taken"]


@pytest.mark.slow
def test_what_has_expired_is_forgotten_though_its_key_is_never_seen_again(tmp_path: Path) -> None:
    name = "ttl, no event time"
    job = make_job(make_steps(FIRST), {name: MemorySink()})
    left = {("a",): {"long": 91}}
    with live(job, tmp_path) as running:
        wait_for_run("an epoch", lambda: reports_of(running), running)
        wait_for_run("what is left", lambda: get_state(job, name, checkpoint=running.checkpoint) == left, running)
    first = get_state(job, name, checkpoint=running.checkpoint, epoch=0)
    assert first == {("a",): {"short": 91, "long": 91}}


@dataclass(frozen=True)
class BreakingSink(MemorySink):
    """Fails once, in the first epoch that has no events."""

    broken: list[int] = field(default_factory=list)

    def write(self, rows: DataFrame, epoch: int) -> None:
        if epoch == 1 and not self.broken:
            self.broken.append(epoch)
            raise RuntimeError("the sink breaks")
        super().write(rows, epoch)


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(one, marks=[] if one in SAMPLE else pytest.mark.prove) for one in STEPS])
def test_a_run_to_the_end_ends_and_takes_what_came_while_an_empty_epoch_waited_to_be_repeated(
    name: str, tmp_path: Path
) -> None:
    sinks: dict[str, MemorySink] = {name: BreakingSink()}
    with pytest.raises(Failed, match="the sink breaks"):
        run_to_the_end(make_job(make_steps(FIRST), sinks), tmp_path)
    ended = run_to_the_end(make_job(make_steps(LATER), sinks), tmp_path)
    assert not ended.is_running
    found = {one["batchId"]: one["numInputRows"] for one in reports_of(ended) if "addBatch" in one["durationMs"]}
    assert min(found) == 1, "the epoch was not repeated"
    assert found[1] == 0
    assert sum(found.values()) == 1
