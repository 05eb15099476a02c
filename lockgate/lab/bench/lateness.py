"""Lateness: the share of late events, compared with the wait for results.

The same events, whose disorder is a function of the seed, are counted in windows with one `lateness` after another.
Late events are those in the side output. The age of a result is that of the last event of its epoch. Both use event
time, so the figures do not depend on the machine.

The second question is about the partitions of a topic. Spark has one watermark for all of them, and the partition that
is furthest ahead moves it. So events of a slow partition, although in order, are late because of a fast one.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from lockgate.connectors.kafka.source import KafkaSource
from lockgate.connectors.kafka.topics import describe_outputs, transaction_timeout_ms
from lockgate.connectors.kafka.transaction import Transactions
from lockgate.connectors.local.memorysink import MemorySink
from lockgate.dataflow import windows
from lockgate.dataflow.eventtime import Late
from lockgate.dataflow.job import Job
from lockgate.dataflow.stream import stream
from lockgate.guarantees import Guarantee
from lockgate.lab.bench.report import Lateness, LatenessAhead, LatenessPoint
from lockgate.lab.bench.runs import Runs, watch
from lockgate.lab.bench.settings import WHERE
from lockgate.lab.bench.site import Site
from lockgate.runtime.run import run

LATENESSES_S = (0, 2, 5, 10, 20, 60)
AHEADS_S = (0, 30, 120)
_SLACK_S = 5
EVENTS = 1_500
ROWS_PER_EPOCH = 50
"""Events of five seconds, at ten a second: the watermark moves once an epoch."""

_WINDOW = timedelta(seconds=10)
_EVENT = timedelta(milliseconds=100)
_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_USUAL_DELAY_S, _TUNNEL_SHARE, _TUNNEL_S = 1.0, 0.05, 60.0


@dataclass(frozen=True)
class Happening:
    """One event: when it happened, and when it arrived."""

    at: datetime
    came: datetime


def disordered(seed: int) -> list[Happening]:
    """Events in the order of arrival: most about a second late, one of twenty from a tunnel."""
    rng = random.Random(seed)
    made = []
    for number in range(EVENTS):
        is_delayed = rng.random() < _TUNNEL_SHARE
        delay_s = rng.uniform(0, _TUNNEL_S) if is_delayed else rng.expovariate(1 / _USUAL_DELAY_S)
        at = _BEGIN + _EVENT * number
        made.append(Happening(at=at, came=at + timedelta(seconds=delay_s)))
    return sorted(made, key=lambda event: event.came)


def measure_lateness(runs: Runs) -> Lateness:
    """Both questions, over topics of their own."""
    site = runs.site
    events = disordered(site.settings.seed)
    curve = f"{site.name}-lateness"
    _send(site, curve, {0: [event.at for event in events]})
    with runs.driver():
        points = tuple(_point(runs, curve, events, lateness_s) for lateness_s in LATENESSES_S)
        aheads = []
        for ahead_s in AHEADS_S:
            topic = f"{site.name}-ahead-{ahead_s}"
            slow = [_BEGIN + _EVENT * 2 * number for number in range(EVENTS // 2)]
            _send(site, topic, {0: slow, 1: [at + timedelta(seconds=ahead_s) for at in slow]})
            for lateness_s in sorted({_SLACK_S, ahead_s + _SLACK_S}):
                _, late = _run(runs, topic, lateness_s)
                count = sum(1 for row in late.rows if row.part == 0)
                aheads.append(
                    LatenessAhead(ahead_s=ahead_s, lateness_s=lateness_s, late_count=count, event_count=len(slow))
                )
    return Lateness(points=points, aheads=tuple(aheads))


def _point(runs: Runs, topic: str, events: Sequence[Happening], lateness_s: int) -> LatenessPoint:
    counts, late = _run(runs, topic, lateness_s)
    # The windows that are open when the input ends stay open: a run to the end closes none of them.
    waits = [
        (_came_until(events, epoch) - row.window_end).total_seconds()
        for row, epoch in zip(counts.rows, counts.epochs, strict=True)
    ]
    return LatenessPoint(
        lateness_s=lateness_s,
        late_count=len(late.rows),
        event_count=len(events),
        wait_s_p50=round(statistics.median(waits), 1) if waits else 0.0,
    )


def _came_until(events: Sequence[Happening], epoch: int) -> datetime:
    """When the last event of an epoch arrived; an epoch without events has the time of the last one with some."""
    return events[min((epoch + 1) * ROWS_PER_EPOCH, len(events)) - 1].came


def _run(runs: Runs, topic: str, lateness_s: int) -> tuple[MemorySink, MemorySink]:
    site = runs.site
    name = f"{topic}-{lateness_s}"
    site.tell(f"counting in windows, lateness {lateness_s} s")
    counts, late = MemorySink(), MemorySink()
    source = KafkaSource(topic=topic, servers=site.servers, value="part INT, at TIMESTAMP")
    counted = (
        stream("events", source)
        .event_time("at", lateness=timedelta(seconds=lateness_s), late=Late.TO_SIDE_OUTPUT)
        .window(windows.tumbling(_WINDOW))
        .aggregate(events="count(*)")
    )
    place = runs.checkpoints / name
    try:
        started = run(
            Job(name, counted.to("counts", counts), counted.late.to("late", late), guarantee=Guarantee.AT_LEAST_ONCE),
            checkpoint=str(place),
            until_caught_up=True,
            rows_per_epoch=ROWS_PER_EPOCH,
            log_file=runs.log,
            wait=False,
        )
        watch(started, site.go_on)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return counts, late


def _send(site: Site, topic: str, partitions: Mapping[int, Sequence[datetime]]) -> None:
    """Make a topic and send the events of each partition, in this order."""
    import pyarrow as pa

    from lockgate.connectors.kafka.encode import Records
    from lockgate.connectors.kafka.writer import Writer

    site.make(topic, len(partitions))
    limit = describe_outputs(site.connection, [topic], where=WHERE)[topic].max_message_bytes
    timeout_ms = transaction_timeout_ms(site.connection, where=WHERE)
    transactions = Transactions(site.connection, f"{topic}-fill", timeout_ms=timeout_ms, where=WHERE)
    producer = transactions.begin()
    transactions.add(producer, [(topic, partition) for partition in partitions])
    writer = Writer(site.connection, transactional_id=transactions.id, producer=producer, where=WHERE)
    for partition, times in partitions.items():
        texts = [json.dumps({"part": partition, "at": at.isoformat()}).encode() for at in times]
        records = Records(keys=pa.nulls(len(texts), pa.binary()), values=pa.array(texts, pa.binary()))
        writer.write((topic, partition), records, max_message_bytes=limit, now_ms=int(time.time() * 1000))
    writer.finish()
    transactions.end(producer, is_commit=True)
    transactions.wait_until_complete()
    site.require(topic, sum(map(len, partitions.values())))
