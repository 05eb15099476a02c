"""The same job as plain Structured Streaming runs it: through Spark's own Kafka sink, without a transaction.

If a proof with the same faults and judges says "broken" for it, this shows the reason for the commit protocol.
"""

from __future__ import annotations

from dataclasses import replace

from lockgate.commit.resource import TransactionSink
from lockgate.dataflow.job import Job
from lockgate.dataflow.rebuilding import all_steps, rebuild
from lockgate.dataflow.steps import Step, Write
from lockgate.errors import Refused
from lockgate.guarantees import Guarantee


def through_spark(job: Job) -> Job:
    """The job at least once, every output by Spark's sink; Refused where an output is no topic."""
    for step in all_steps(job):
        if isinstance(step, Write) and not isinstance(step.sink, TransactionSink):
            raise Refused(
                f"output {step.name!r} is no topic, and Spark's own Kafka sink writes nothing else",
                where=f"job {job.name!r}, declared at {job.origin}",
                fix="leave --spark-sink away",
            )

    def lowered(step: Step) -> Step:
        return replace(step, guarantee=None) if isinstance(step, Write) else step

    return rebuild(job, name=job.name, exchange=lowered, letters=lambda sink: sink, guarantee=Guarantee.AT_LEAST_ONCE)
