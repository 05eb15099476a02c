"""The libraries that a job needs beside Spark: which extras of this package, and which modules its tasks import."""

from __future__ import annotations

from lockgate.dataflow.steps import Read
from lockgate.guarantees import Guarantee
from lockgate.planner.plan import Plan
from lockgate.sinks.kafka import KafkaSink
from lockgate.sinks.monitor import MonitorSink
from lockgate.sinks.postgres import PostgresSink
from lockgate.sources.kafka import KafkaSource
from lockgate.sources.mqtt import MqttSource

ALWAYS = ("numpy", "pandas", "pyarrow", "google.protobuf")
"""What workers import in any job."""

_EXTRA_OF = {
    KafkaSource: "kafka",
    KafkaSink: "kafka",
    PostgresSink: "postgres",
    MonitorSink: "monitor",
    MqttSource: "mqtt",
}
_IMPORTED_BY = {KafkaSink: ("kafka", "crc32c"), PostgresSink: ("psycopg",)}


def extras_of(planned: Plan) -> tuple[str, ...]:
    """The extras of this package that a job needs, as in `pip install 'lockgate[kafka]'`."""
    sources = [node.step.source for node in planned.logical.nodes if isinstance(node.step, Read)]
    ends = [*sources, *_sinks_of(planned)]
    return tuple(sorted({extra for kind, extra in _EXTRA_OF.items() if any(isinstance(one, kind) for one in ends)}))


def modules_of(planned: Plan) -> tuple[str, ...]:
    """The modules that tasks of a job import, other than Spark's and ours."""
    sinks = _sinks_of(planned)
    if planned.job.guarantee is not Guarantee.END_TO_END_EXACTLY_ONCE:
        # A topic is written by Spark's own writer then, in the JVM.
        sinks = [sink for sink in sinks if not isinstance(sink, KafkaSink)]
    return (
        *ALWAYS,
        *(
            name
            for kind, names in _IMPORTED_BY.items()
            if any(isinstance(one, kind) for one in sinks)
            for name in names
        ),
    )


def _sinks_of(planned: Plan) -> list[object]:
    letters = planned.job.dead_letters
    sinks = [getattr(node.step, "sink", None) for node in planned.logical.nodes]
    return sinks if letters is None else [*sinks, letters.sink]
