"""Throughput: at-least-once (Spark's own writer) and end-to-end exactly-once, in turn, in one driver.

Each run has a new checkpoint and a new topic, or table. Each repeat reverses the order, and the first repeat only warms
up. The results are read back and counted: a side that loses or doubles rows has no speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockgate.connectors.kafka.settings import BATCH_BYTES
from lockgate.guarantees import Guarantee
from lockgate.lab.bench.payments import Payments
from lockgate.lab.bench.ratios import Measured, Throughput, Timing, median_of
from lockgate.lab.bench.runs import Runs
from lockgate.lab.bench.settings import SIDES, Settings
from lockgate.lab.bench.site import Tell
from lockgate.runtime.progress import Progress


def measure_throughput(runs: Runs, payments: Payments) -> Throughput:
    """Time both sides with Kafka, as often as requested."""
    settings = runs.site.settings

    def deliver(side: Guarantee) -> Delivered:
        with runs.output() as (name, out):
            began = time.monotonic()
            epochs = runs.run(side, name=name, out=out, rows_per_epoch=settings.rows_per_epoch)
            seconds = time.monotonic() - began
            return Delivered(seconds=seconds, epochs=epochs, count=runs.site.count(out))

    with runs.driver():
        timings = time_in_turn(settings, deliver, runs.site.tell)
    return Throughput(expected_count=payments.expected_count(settings), client=clients(settings), timings=timings)


def clients(settings: Settings) -> dict[str, dict[str, str]]:
    """The client settings of each side."""
    told = {side.name: {"acks": "all", **settings.client(side)} for side in SIDES}
    told[SIDES[1].name] |= {"batch.size": f"{BATCH_BYTES} (its own)"}
    return told


@dataclass(frozen=True)
class Delivered:
    """The result of one run of one side."""

    seconds: float
    epochs: list[Progress]
    count: int  # of the results, counted independently of the writer
    cpu_seconds: float | None = None


def time_in_turn(
    settings: Settings, deliver: Callable[[Any], Delivered], tell: Tell, *, sides: tuple[Measured, ...] = SIDES
) -> tuple[Timing, ...]:
    """Let the sides deliver in turn, so that no side always has the warmer JVM."""
    timings = []
    for repeat in range(settings.repeats + 1):
        for side in sides if repeat % 2 == 0 else sides[::-1]:
            done = deliver(side)
            timing = Timing(
                side=side.name,
                repeat=repeat,
                seconds=round(done.seconds, 3),
                events_per_second=round(settings.events / done.seconds),
                epoch_events_per_second=median_of([round(epoch.events_per_second) for epoch in done.epochs] or [0]),
                epoch_count=len(done.epochs),
                delivered_count=done.count,
                cpu_us_per_event=None
                if done.cpu_seconds is None
                else round(done.cpu_seconds * 1e6 / settings.events, 1),
            )
            timings.append(timing)
            told = "warm-up" if repeat == 0 else f"repeat {repeat} of {settings.repeats}"
            tell(
                f"{told}, {side.label}: {timing.events_per_second:,} events/s ({timing.seconds:.1f} s),"
                f" {timing.epoch_events_per_second:,} in the median of {timing.epoch_count} epochs"
            )
    return tuple(timings)
