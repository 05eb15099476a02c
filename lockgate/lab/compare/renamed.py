"""Give a job another name, guarantee and topics, so that nothing of the user is touched.

Only what must differ is replaced: the name (checkpoint, ledger), the guarantee of every output with the tracking, and
the topics and servers of the endpoints. Steps, functions and schemas are the user's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lockgate.dataflow.endpoints import Encoding, Sink, Source
from lockgate.dataflow.job import Job
from lockgate.dataflow.locations import Topic
from lockgate.dataflow.rebuilding import all_steps, rebuild
from lockgate.dataflow.relocation import Relocation
from lockgate.dataflow.steps import Read, Step, Write
from lockgate.dataflow.table import ReadTable
from lockgate.errors import Refused
from lockgate.guarantees import Mode
from lockgate.lab.compare.contenders import Contender, Tracking


@dataclass(frozen=True)
class Disguise:
    """The name, topics and servers of a job for one run."""

    name: str
    contender: Contender
    servers: str
    topics: Mapping[str, str]  # the user's -> ours


class _Renaming(Relocation):
    """Gives each topic of the user the one that replaces it in this run."""

    def __init__(self, job: Job, as_what: Disguise) -> None:
        self._job, self._as_what = job, as_what

    def topic(self, servers: str, name: str) -> tuple[str, str]:
        return self._as_what.servers, self._as_what.topics[name]

    def path(self, path: str) -> str:
        raise self.refusal(f"uses {path}", fix="use topics of Kafka alone")

    def table(self, dsn: str, table: str) -> tuple[str, str]:
        raise self.refusal(f"uses the table {table}", fix="use topics of Kafka alone")

    def refusal(self, what: str, *, fix: str) -> Refused:
        return _refusal(self._job, what, fix)


@dataclass(frozen=True)
class ReadTopic:
    """A topic that a job reads, and what its events are made of."""

    topic: str
    servers: str
    client: Mapping[str, str]
    encoding: Encoding


@dataclass(frozen=True)
class Endpoints:
    """The sources and the topics of a job that can be compared."""

    sources: tuple[ReadTopic, ...]  # one for each topic
    outputs: tuple[str, ...]  # the topics that it writes, dead letters last
    letters: str | None  # the topic of dead letters


def find_endpoints(job: Job) -> Endpoints:
    """What the job reads and writes; Refused if that is more than Kafka topics."""
    if job.mode is Mode.REAL_TIME:
        raise Refused(
            f"job {job.name!r} runs in real-time mode, which cannot run until it has caught up",
            where=f"declared at {job.origin}",
            fix="compare it with mode=Mode.MICRO_BATCH",
        )
    sources: dict[str, ReadTopic] = {}
    outputs: list[str] = []
    for step in all_steps(job):
        if isinstance(step, Read | ReadTable):
            topic = read_topic(step.source) if isinstance(step, Read) else None
            if topic is None:
                kind = type(step.source if isinstance(step, Read) else step.rows).__name__
                raise _refusal(job, f"reads {step.name!r} from a {kind}", "read it from a topic: KafkaSource(...)")
            sources[topic.topic] = topic
        elif isinstance(step, Write):
            outputs.append(_topic(job, step.name, step.sink))
    letters = None if job.dead_letters is None else _topic(job, "dead letters", job.dead_letters.sink)
    if letters is not None:
        outputs.append(letters)
    return Endpoints(tuple(sources.values()), tuple(dict.fromkeys(outputs)), letters)


def read_topic(source: Source) -> ReadTopic | None:
    """What a source reads; None if that is no topic."""
    topic, encoding = source.location, source.encoding
    if not isinstance(topic, Topic) or topic.name is None or encoding is None:
        return None
    return ReadTopic(topic.name, topic.servers, topic.client, encoding)


def disguise(job: Job, as_what: Disguise) -> Job:
    """The job for a run of the comparison."""

    renaming = _Renaming(job, as_what)

    def exchange(step: Step) -> Step:
        if isinstance(step, Read):
            return replace(step, source=step.source.relocate(renaming))
        if isinstance(step, Write):
            return replace(step, sink=step.sink.relocate(renaming), guarantee=None)
        return step

    return rebuild(
        job,
        name=as_what.name,
        guarantee=as_what.contender.guarantee,
        keeps_tracking=as_what.contender.tracking is Tracking.ACKS,
        exchange=exchange,
        letters=lambda sink: sink.relocate(renaming),
    )


def _topic(job: Job, name: str | None, sink: Sink) -> str:
    topic = sink.location
    if not isinstance(topic, Topic):
        raise _refusal(job, f"writes {name!r} into a {type(sink).__name__}", "write it into a topic: KafkaSink(...)")
    if topic.name is None:
        raise _refusal(job, f"writes {name!r} into topics by column {topic.route!r}", "give the sink one topic=")
    return topic.name


def _refusal(job: Job, what: str, fix: str) -> Refused:
    return Refused(
        f"job {job.name!r} {what}; a comparison needs topics of Kafka at both ends",
        where=f"job {job.name!r}, declared at {job.origin}",
        fix=f"{fix}, and compare that job",
    )
