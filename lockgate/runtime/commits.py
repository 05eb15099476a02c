"""Who decides in a job: the systems of its exactly-once outputs, opened, and one of them put in charge.

Kafka is among the outputs   Kafka decides, because its transactions time out and cannot wait for others
else                         the system that is fittest, a database before files; the others follow
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from lockgate.commit.followers import Followers
from lockgate.commit.resource import CommittingSink, Opening, Resource
from lockgate.sinks.kafka import KafkaSink
from lockgate.sinks.kafkaepoch import KafkaEpochs
from lockgate.sinks.resourceepoch import ResourceEpochs
from lockgate.spark.compile import CompiledOutput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def group_outputs(outputs: Sequence[CompiledOutput]) -> dict[str, list[CompiledOutput]]:
    """The outputs that commit in systems beside Kafka, by system; named by the outputs, which a marker remembers."""
    groups: dict[str, list[CompiledOutput]] = {}
    for output in outputs:
        if isinstance(output.sink, CommittingSink):
            groups.setdefault(output.sink.resource, []).append(output)
    return {", ".join(sorted(output.name for output in group)): group for group in groups.values()}


def open_commits(
    job: str,
    kafka: Sequence[KafkaSink],
    groups: Mapping[str, Sequence[CompiledOutput]],
    *,
    spark: SparkSession,
    where: str,
    is_new_life: bool,
) -> KafkaEpochs | ResourceEpochs | None:
    """What commits the epochs of these outputs; None where there are none."""
    deciding = None if kafka or not groups else max(groups, key=lambda name: _fitness(groups[name]))
    with ExitStack() as opened:
        resources: dict[str, Resource] = {}
        for name, group in groups.items():
            resources[name] = _open(job, group, spark=spark, where=where, is_deciding=name == deciding)
            opened.callback(resources[name].close)
        followers = Followers(job, _without(resources, deciding))
        commits: KafkaEpochs | ResourceEpochs | None = None
        if kafka:
            commits = KafkaEpochs(job, kafka, spark=spark, where=where, followers=followers, is_new_life=is_new_life)
        elif deciding is not None:
            commits = ResourceEpochs(job, deciding, resources[deciding], followers, is_new_life=is_new_life)
        opened.pop_all()
        return commits


def _open(job: str, group: Sequence[CompiledOutput], *, spark: SparkSession, where: str, is_deciding: bool) -> Resource:
    first = group[0].sink
    assert isinstance(first, CommittingSink)
    sinks = {output.name: output.sink for output in group}
    return first.open(Opening(job=job, sinks=sinks, spark=spark, where=where, is_deciding=is_deciding))


def _fitness(group: Sequence[CompiledOutput]) -> int:
    sink = group[0].sink
    assert isinstance(sink, CommittingSink)
    return sink.fitness


def _without(resources: Mapping[str, Resource], name: str | None) -> dict[str, Resource]:
    return {other: resource for other, resource in resources.items() if other != name}
