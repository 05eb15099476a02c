"""The job of the show: payments above a limit, from one topic into another. A job file as any user would write it.

lockgate run FILE -p name=... -p servers=... -p payments=TOPIC -p large=TOPIC -p guarantee=at_least_once
"""

from __future__ import annotations

from lockgate.connectors.kafka.sink import KafkaSink
from lockgate.connectors.kafka.source import KafkaSource
from lockgate.dataflow.job import Job
from lockgate.dataflow.stream import stream
from lockgate.guarantees import Guarantee
from lockgate.lab.demo.payments import LIMIT_CENTS, SCHEMA


def job(name: str, servers: str, payments: str, large: str, guarantee: Guarantee) -> Job:
    """The same job with any guarantee: Spark's own sink writes at-least-once, ours writes exactly-once."""
    chosen = (
        stream("payments", KafkaSource(topic=payments, servers=servers, value=SCHEMA))
        .where(f"cents > {LIMIT_CENTS}")
        .select("id", "account", "cents", "at")
    )
    return Job(name, chosen.to("large", KafkaSink(topic=large, servers=servers, key="account")), guarantee=guarantee)
