"""At-least-once by acknowledgement against at-least-once by checkpoint: the same job, tracked and not.

Payments go through a function of the author's, one by one, from one topic into another, by Spark's own writer. No event
fails: what is measured is what everybody pays for the few that might.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from lockgate.bench.report import Throughput
from lockgate.bench.runs import Runs
from lockgate.bench.settings import VALUE, Settings
from lockgate.bench.throughput import Delivered, time_in_turn
from lockgate.dataflow.job import Job
from lockgate.dataflow.stream import stream
from lockgate.dataflow.tracking import acks
from lockgate.guarantees import Guarantee
from lockgate.sinks.kafka import KafkaSink
from lockgate.sources.kafka import KafkaSource

_SIDE = Guarantee.AT_LEAST_ONCE


@dataclass(frozen=True)
class Tracking:
    """How one side knows which events are done."""

    name: str
    label: str


CHECKPOINTS, ACKS = Tracking("CHECKPOINTS", "by checkpoint"), Tracking("ACKS", "by acknowledgement")


def measure_acks(runs: Runs) -> Throughput:
    """Time both sides over Kafka as often as asked for."""
    site = runs.site

    def deliver(side: Tracking) -> Delivered:
        with runs.output() as (name, out):
            letters = f"{out}-letters"
            site.make(letters, 1)
            described = job(
                site.settings, side, servers=site.servers, payments=runs.payments, out=out, letters=letters, name=name
            )
            began = time.monotonic()
            epochs = runs.run_job(described, rows_per_epoch=site.settings.rows_per_epoch)
            seconds = time.monotonic() - began
            site.delete(letters)
            return Delivered(seconds=seconds, epochs=epochs, count=site.count(out))

    with runs.driver():
        timings = time_in_turn(site.settings, deliver, site.tell, sides=(CHECKPOINTS, ACKS))
    client = {"acks": "all", **site.settings.client(_SIDE)}
    return Throughput(
        expected_count=site.settings.events,
        client={CHECKPOINTS.name: client, ACKS.name: client},
        timings=timings,
        sides=(CHECKPOINTS, ACKS),
    )


def as_charge(row: Any) -> tuple[Any, ...]:
    """A payment with its fee."""
    return row.id, row.card, row.cents + row.cents // 100, row.at, row.shop


def job(settings: Settings, side: Tracking, *, servers: str, payments: str, out: str, letters: str, name: str) -> Job:
    """The job that both sides run: all payments, with a fee."""
    source = KafkaSource(topic=payments, servers=servers, key="card STRING", value=VALUE)
    charges = stream("payments", source).map(
        as_charge, schema="id BIGINT, card STRING, cents INT, at BIGINT, shop STRING"
    )
    client = settings.client(_SIDE)
    sink = KafkaSink(topic=out, servers=servers, key="card" if settings.is_keyed else None, client=client)
    if side is CHECKPOINTS:
        return Job(name, charges.to("out", sink), guarantee=_SIDE)
    taken = KafkaSink(topic=letters, servers=servers, client=client)
    return Job(name, charges.to("out", sink), guarantee=_SIDE, tracking=acks(), dead_letters=taken)
