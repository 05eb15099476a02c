"""What the clock moves, through Spark: timers, early results, time-outs and expiry, also where no event comes.

Where a step goes by the clock Spark runs epochs for ever, with events or without, so a run to the end has to find the
end by itself. The time of a job never goes back, also on a machine whose clock does.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

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
from lockgate.runtime.stepped import SteppedRun
from lockgate.spark.clock import job_clock
from lockgate.spark.stepping import Stepper
from support.runs import live, reports_of, run_to_the_end, start, wait_for_run
from support.waiting import wait_for

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
def test_the_clock_moves_a_silent_stream_and_what_is_kept_continues_in_the_next_run(tmp_path: Path) -> None:
    sinks = {name: MemorySink() for name in TOGETHER}
    with live(make_job(make_steps(FIRST), sinks), tmp_path) as running:
        # Two rows were taken at once, and then none: what comes after them comes by the clock.
        wait_for_run("a timer", lambda: len(sinks["timers"].rows) > 2 and sinks["early"].rows, running)
        wait_for_run("two time-outs", lambda: len(sinks["time-outs, no event time"].rows) == 2, running)
        seen = reports_of(running)[-1]["batchId"]
        wait_for_run("another epoch", lambda: reports_of(running)[-1]["batchId"] > seen, running)
    taken, again, reminder = sinks["timers"].rows
    at = taken.at
    assert taken == again == ("a", "taken", at, None)
    assert reminder == ("a", "reminder", at + SECOND, BEGIN + SECOND)
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


class Moment(StatefulFunction):
    """Says what time it is."""

    schema = "n INT, at TIMESTAMP"

    def process(self, row: Any, context: Any) -> Iterator[Any]:
        yield (row.n, context.processing_time)


@pytest.mark.slow
def test_on_a_machine_whose_clock_is_behind_no_event_is_late(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    counts, moments = MemorySink(), MemorySink()

    def job(count: int) -> Job:
        read = stream("events", MemorySource([("a", number) for number in range(count)], value="k STRING, n INT"))
        counted = read.processing_time().key_by("k").window(windows.tumbling("1 minute")).aggregate(n="count(*)")
        return Job(
            "behind",
            counted.to("counts", counts),
            read.key_by("k").parallel(1).process(Moment()).to("moments", moments),
            guarantee=Guarantee.AT_LEAST_ONCE,
        )

    def run_until(moment: datetime, count: int) -> None:
        started = start(job(count), tmp_path, stepper=Stepper(int(moment.timestamp() * 1000)))
        assert isinstance(started, SteppedRun)
        started.settle()
        started.stop()

    now = datetime.now(UTC)
    run_until(now + timedelta(hours=1), 3)
    run_to_the_end(job(5), tmp_path)  # by the clock of this machine, which is an hour behind
    run_until(now + timedelta(hours=2), 6)
    assert sum(row.n for row in counts.rows) == 5, "the sixth event is in a window that is open"
    told = [row.at for row in sorted(moments.rows)]
    assert told == sorted(told)
    assert told[:3] == [now.replace(microsecond=now.microsecond // 1000 * 1000) + timedelta(hours=1)] * 3
    warned = [one.getMessage() for one in caplog.records if "the clock of this machine is" in one.getMessage()]
    assert len(warned) == 1


def test_the_time_of_a_job_goes_at_half_speed_until_the_clock_of_its_machine_has_caught_up(
    spark: SparkSession,
) -> None:
    jvm: Any = spark.sparkContext._jvm
    other, clock = job_clock(spark), job_clock(spark)  # a process may run several jobs
    other.goOnFrom(10**15)
    machine = jvm.org.apache.spark.util.ManualClock(3_600_000)
    clock.setMachine(machine)
    assert clock.getTimeMillis() == 3_600_000
    machine.setTime(1_000)  # this machine never gets there
    before = time.monotonic()
    began = clock.getTimeMillis()
    within = time.monotonic()
    reached = clock.waitTillTime(began + 50)
    least, most = (time.monotonic() - within) * 1000, (time.monotonic() - before) * 1000
    ended = clock.getTimeMillis()
    assert 3_600_000 <= began < began + 50 <= reached <= ended
    assert reached - began <= most / 2 + 1
    assert ended - began >= least / 2 - 1
    for moment in (7_200_000, 7_200_001):  # the machine is ahead again
        machine.setTime(moment)
        assert clock.getTimeMillis() == moment
    clock.goOnFrom(9_000_000)
    clock.goOnFrom(8_000_000)
    assert clock.getTimeMillis() >= 9_000_000

    here = jvm.java.lang.System
    clock = job_clock(spark)
    clock.goOnFrom(here.currentTimeMillis() + 300)
    assert clock.getTimeMillis() > here.currentTimeMillis()
    wait_for("the machine to catch up", lambda: clock.getTimeMillis() <= here.currentTimeMillis())


def test_stopping_a_query_ends_the_wait_of_its_clock(spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm
    clock, thread = job_clock(spark), jvm.java.lang.Thread.currentThread()
    thread.interrupt()
    with pytest.raises(Py4JJavaError, match="InterruptedException"):
        clock.waitTillTime(clock.getTimeMillis() + 60_000)
    assert not thread.isInterrupted()


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
