"""Compare at-least-once by acknowledgement with at-least-once by checkpoint: the same job with and without tracking.

Payments pass one by one through a user's function, from one topic to another, by Spark's own writer. No event fails:
the result is the cost for all events of the few that might fail.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from lockgate.connectors.kafka.sink import KafkaSink
from lockgate.connectors.kafka.source import KafkaSource
from lockgate.dataflow.job import Job
from lockgate.dataflow.stream import stream
from lockgate.dataflow.tracking import acks
from lockgate.guarantees import Guarantee
from lockgate.lab.bench.ratios import Throughput
from lockgate.lab.bench.runs import Runs
from lockgate.lab.bench.settings import VALUE, Settings
from lockgate.lab.bench.throughput import Delivered, time_in_turn

_SIDE = Guarantee.AT_LEAST_ONCE


@dataclass(frozen=True)
class Tracking:
    """How one side knows which events are done."""

    name: str
    label: str


CHECKPOINTS, ACKS = Tracking("CHECKPOINTS", "by checkpoint"), Tracking("ACKS", "by acknowledgement")


def measure_acks(runs: Runs) -> Throughput:
    """Time both sides with Kafka, as often as requested."""
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
