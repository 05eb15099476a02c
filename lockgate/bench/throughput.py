"""Throughput: at-least-once (Spark's own Kafka writer) against end-to-end exactly-once, in turn, in one driver.

Each run has a fresh checkpoint and a fresh topic. The order is turned round with every repeat, and the first repeat
only warms up. What came out is read back and counted: a side that loses or doubles has no speed.
"""

from __future__ import annotations

import time

from lockgate.bench.payments import Payments
from lockgate.bench.report import Throughput, Timing, median_of
from lockgate.bench.runs import Runs
from lockgate.bench.settings import SIDES
from lockgate.guarantees import Guarantee
from lockgate.kafka.settings import BATCH_BYTES


def measure_throughput(runs: Runs, payments: Payments) -> Throughput:
    """Time both sides as often as asked for."""
    settings, timings = runs.site.settings, []
    with runs.driver():
        for repeat in range(settings.repeats + 1):
            # In turn, so that neither always finds the warmer JVM.
            for side in SIDES if repeat % 2 == 0 else SIDES[::-1]:
                timing = _time(runs, side, repeat)
                timings.append(timing)
                told = "warm-up" if repeat == 0 else f"repeat {repeat} of {settings.repeats}"
                runs.site.tell(
                    f"{told}, {side.label}: {timing.events_per_second:,} events/s ({timing.seconds:.1f} s),"
                    f" {timing.epoch_events_per_second:,} in the median of {timing.epoch_count} epochs"
                )
    clients = {side.name: settings.client(side) for side in SIDES}
    clients[SIDES[1].name] |= {"batch.size": f"{BATCH_BYTES} (its own)"}
    return Throughput(expected_count=payments.expected_count(settings), client=clients, timings=tuple(timings))


def _time(runs: Runs, side: Guarantee, repeat: int) -> Timing:
    settings = runs.site.settings
    with runs.output() as (name, out):
        began = time.monotonic()
        epochs = runs.run(side, name=name, out=out, rows_per_epoch=settings.rows_per_epoch)
        seconds = time.monotonic() - began
        return Timing(
            side=side.name,
            repeat=repeat,
            seconds=round(seconds, 3),
            events_per_second=round(settings.events / seconds),
            epoch_events_per_second=median_of([round(epoch.events_per_second) for epoch in epochs] or [0]),
            epoch_count=len(epochs),
            delivered_count=runs.site.count(out),
        )
