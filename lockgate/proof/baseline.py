"""The same job as plain Structured Streaming has it: rows leave through Spark's own Kafka sink, without a transaction.

A proof that says "broken" of it, with the same faults and the same judges, shows what the commit protocol is for.
"""

from __future__ import annotations

from dataclasses import replace

from lockgate.dataflow.job import Job
from lockgate.dataflow.rebuilding import all_steps, rebuild
from lockgate.dataflow.steps import Step, Write
from lockgate.errors import Refused
from lockgate.guarantees import Guarantee
from lockgate.sinks.kafka import KafkaSink


def through_spark(job: Job) -> Job:
    """The job at least once, every output by Spark's sink; Refused where an output is no topic."""
    for step in all_steps(job):
        if isinstance(step, Write) and not isinstance(step.sink, KafkaSink):
            raise Refused(
                f"output {step.name!r} is no topic, and Spark's own Kafka sink writes nothing else",
                where=f"job {job.name!r}, declared at {job.origin}",
                fix="leave --spark-sink away",
            )

    def lowered(step: Step) -> Step:
        return replace(step, guarantee=None) if isinstance(step, Write) else step

    return rebuild(job, name=job.name, exchange=lowered, letters=lambda sink: sink, guarantee=Guarantee.AT_LEAST_ONCE)
