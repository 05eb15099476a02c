"""The same job under another name, another guarantee and in other topics, so that nothing of the author's is touched.

Only what must differ is replaced: the name (checkpoint, ledger), the guarantee (of every output alike) with the
tracking, and the topics and servers of its endpoints. Steps, functions and schemas are the author's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lockgate.compare.contenders import Contender, Tracking
from lockgate.dataflow.endpoints import Sink
from lockgate.dataflow.job import Job
from lockgate.dataflow.rebuilding import all_steps, rebuild
from lockgate.dataflow.steps import Read, Step, Write
from lockgate.dataflow.table import ReadTable
from lockgate.errors import Refused
from lockgate.guarantees import Mode
from lockgate.sinks.kafka import KafkaSink
from lockgate.sources.kafka import KafkaSource


@dataclass(frozen=True)
class Disguise:
    """What a job is called and where it reads and writes, for one run."""

    name: str
    contender: Contender
    servers: str
    topics: Mapping[str, str]  # the author's -> ours


@dataclass(frozen=True)
class Endpoints:
    """The sources and the topics of a job that can be compared."""

    sources: tuple[KafkaSource, ...]  # one for each topic
    outputs: tuple[str, ...]  # the topics that it writes, dead letters last
    letters: str | None  # the topic of dead letters


def find_endpoints(job: Job) -> Endpoints:
    """What the job reads and writes; Refused where it is more than topics of Kafka."""
    if job.mode is Mode.REAL_TIME:
        raise Refused(
            f"job {job.name!r} runs in real-time mode, which cannot be run until it has caught up",
            where=f"declared at {job.origin}",
            fix="compare it with mode=Mode.MICRO_BATCH",
        )
    sources: dict[str, KafkaSource] = {}
    outputs: list[str] = []
    for step in all_steps(job):
        if isinstance(step, Read) and isinstance(step.source, KafkaSource):
            sources[step.source.topic] = step.source
        elif isinstance(step, Read | ReadTable):
            kind = type(step.source if isinstance(step, Read) else step.rows).__name__
            raise _refusal(job, f"reads {step.name!r} from a {kind}", "read it from a topic: KafkaSource(...)")
        elif isinstance(step, Write):
            outputs.append(_topic(job, step.name, step.sink))
    letters = None if job.dead_letters is None else _topic(job, "dead letters", job.dead_letters.sink)
    if letters is not None:
        outputs.append(letters)
    return Endpoints(tuple(sources.values()), tuple(dict.fromkeys(outputs)), letters)


def disguise(job: Job, as_what: Disguise) -> Job:
    """The job as it runs in a comparison."""

    def exchange(step: Step) -> Step:
        if isinstance(step, Read) and isinstance(step.source, KafkaSource):
            topic = as_what.topics[step.source.topic]
            return replace(step, source=replace(step.source, topic=topic, servers=as_what.servers, client={}))
        if isinstance(step, Write):
            return replace(step, sink=_moved(step.sink, as_what), guarantee=None)
        return step

    return rebuild(
        job,
        name=as_what.name,
        guarantee=as_what.contender.guarantee,
        keeps_tracking=as_what.contender.tracking is Tracking.ACKS,
        exchange=exchange,
        letters=lambda sink: _moved(sink, as_what),
    )


def _moved(sink: Sink, as_what: Disguise) -> Sink:
    assert isinstance(sink, KafkaSink)
    assert sink.topic is not None
    return sink.moved(topic=as_what.topics[sink.topic], servers=as_what.servers)


def _topic(job: Job, name: str | None, sink: Sink) -> str:
    if not isinstance(sink, KafkaSink):
        raise _refusal(job, f"writes {name!r} into a {type(sink).__name__}", "write it into a topic: KafkaSink(...)")
    if sink.topic is None:
        raise _refusal(job, f"writes {name!r} into topics by column {sink.route!r}", "give the sink one topic=")
    return sink.topic


def _refusal(job: Job, what: str, fix: str) -> Refused:
    return Refused(
        f"job {job.name!r} {what}; a comparison needs topics of Kafka at both ends",
        where=f"job {job.name!r}, declared at {job.origin}",
        fix=f"{fix}, and compare that job",
    )
