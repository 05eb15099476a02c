"""The job of the show: payments above a limit, from one topic into another. A job file as any author would write it.

lockgate run FILE -p name=... -p servers=... -p payments=TOPIC -p large=TOPIC -p guarantee=at_least_once
"""

from __future__ import annotations

from lockgate.dataflow.job import Job
from lockgate.dataflow.stream import stream
from lockgate.demo.payments import LIMIT_CENTS, SCHEMA
from lockgate.guarantees import Guarantee
from lockgate.sinks.kafka import KafkaSink
from lockgate.sources.kafka import KafkaSource


def job(name: str, servers: str, payments: str, large: str, guarantee: Guarantee) -> Job:
    """The same job under any guarantee: at least once Spark's own sink writes, exactly once ours does."""
    chosen = (
        stream("payments", KafkaSource(topic=payments, servers=servers, value=SCHEMA))
        .where(f"cents > {LIMIT_CENTS}")
        .select("id", "account", "cents", "at")
    )
    return Job(name, chosen.to("large", KafkaSink(topic=large, servers=servers, key="account")), guarantee=guarantee)
