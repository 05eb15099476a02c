"""Open the systems of a job's exactly-once outputs, and choose the one that decides.

Kafka is among the outputs   Kafka decides, because its transactions time out and cannot wait for others
otherwise                    the fittest system decides, a database before files; the others follow

A Kafka cluster cannot follow another one: rows can be staged there only as long as a transaction lasts. So further
clusters commit after the first, each with its own decision. A crash in between repeats the epoch. Then clusters that
have it are skipped, and the others get the same rows, because the planner allows only deterministic steps before them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from lockgate.commit.followers import Followers
from lockgate.commit.ledger import Entry
from lockgate.commit.protocol import Epoch
from lockgate.commit.resource import CommittingSink, Opening, Resource, TransactionSink
from lockgate.connectors.kafka.epoch import KafkaEpochs
from lockgate.connectors.resourceepoch import ResourceEpochs
from lockgate.dataflow.endpoints import Sink
from lockgate.dataflow.locations import Topic
from lockgate.errors import LockgateError, Refused
from lockgate.spark.tagging import CompiledOutput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ExactOutput(Protocol):
    """An output that is written in transactions, compiled or only described."""

    @property
    def name(self) -> str:
        """The name in the job."""

    @property
    def sink(self) -> Sink:
        """The sink that it goes to."""


OutputT = TypeVar("OutputT", bound=ExactOutput)


def group_outputs(outputs: Sequence[OutputT]) -> dict[str, list[OutputT]]:
    """The outputs that commit in systems other than Kafka, by system. The outputs give the names that markers have."""
    groups: dict[str, list[OutputT]] = {}
    for output in outputs:
        if isinstance(output.sink, CommittingSink):
            groups.setdefault(output.sink.resource, []).append(output)
    return {", ".join(sorted(output.name for output in group)): group for group in groups.values()}


def choose_deciding(kafka: Sequence[object], groups: Mapping[str, Sequence[ExactOutput]]) -> str | None:
    """The group whose system decides; None if Kafka decides, or if there is no group."""
    return None if kafka or not groups else max(groups, key=lambda name: _fitness(groups[name]))


@dataclass(frozen=True)
class KafkaCluster:
    """One cluster of a job's exactly-once outputs."""

    epochs: KafkaEpochs
    outputs: tuple[CompiledOutput, ...]

    @property
    def hosts(self) -> frozenset[str]:
        """The servers of the cluster."""
        return hosts_of_all(self.outputs)


@dataclass(frozen=True)
class Commits:
    """What commits the epochs of a job: Kafka clusters in turn, the first one with other systems; or only these."""

    clusters: tuple[KafkaCluster, ...] = ()
    resources: ResourceEpochs | None = None

    def stop(self) -> None:
        """Interrupt long operations, because the run should end."""
        for one in self._all():
            one.stop()

    def close(self) -> None:
        """Accept no more tasks, and close what is open."""
        for one in self._all():
            one.close()

    def claim(self, epoch: Epoch, *, query_run: str) -> list[Entry]:
        """Take over all ledgers, to continue with this epoch. Returns their entries."""
        entries = [one.claim(epoch, query_run=query_run) for one in self._all()]
        return [entry for entry in entries if entry is not None]

    def open_seconds(self) -> float | None:
        """The age of the oldest open transaction; None if there is none."""
        return max(
            (open for cluster in self.clusters if (open := cluster.epochs.open_seconds) is not None), default=None
        )

    def clear_errors(self) -> None:
        """Forget errors from before this epoch."""
        for one in self._all():
            one.clear_error()

    def first_error(self, error: Exception) -> LockgateError | None:
        """The error to show for an epoch that failed."""
        return next((told for told in (one.first_error(error) for one in self._all()) if told is not None), None)

    def _all(self) -> list[KafkaEpochs | ResourceEpochs]:
        return [*(cluster.epochs for cluster in self.clusters), *([self.resources] if self.resources else [])]


def group_clusters(outputs: Sequence[OutputT]) -> list[list[OutputT]]:
    """The Kafka outputs by cluster, in the order of the job; two outputs with a common server are in one cluster."""
    groups: list[list[OutputT]] = []
    for output in outputs:
        if isinstance(output.sink, TransactionSink):
            same = next((group for group in groups if hosts_of_all(group) & output.sink.commits_at), None)
            groups.append([output]) if same is None else same.append(output)
    return groups


def topics_of(outputs: Sequence[ExactOutput]) -> list[Topic]:
    """The topics of the outputs that are written in transactions of Kafka."""
    return [output.sink.location for output in outputs if isinstance(output.sink, TransactionSink)]


def hosts_of_all(outputs: Sequence[ExactOutput]) -> frozenset[str]:
    """The servers that these outputs name."""
    return frozenset().union(*(output.sink.commits_at for output in outputs))


def open_commits(
    job: str,
    outputs: Sequence[CompiledOutput],
    *,
    spark: SparkSession,
    where: str,
    is_reset: bool,
    is_adopting: bool = False,
) -> Commits:
    """Open what commits the epochs of these outputs, which are written in transactions.

    Args:
        is_adopting: may a checkpoint with epochs start with an empty ledger? Only if a repeated epoch is harmless.
    """
    clusters, groups = group_clusters(outputs), group_outputs(outputs)
    deciding = choose_deciding(clusters, groups)
    with ExitStack() as opened:
        resources: dict[str, Resource] = {}
        for name, group in groups.items():
            resources[name] = _open(job, group, spark=spark, where=where, is_deciding=name == deciding)
            opened.callback(resources[name].close)
        followers = Followers(job, _without(resources, deciding))
        if deciding is not None:
            decided = ResourceEpochs(
                job, deciding, resources[deciding], followers, is_reset=is_reset, is_adopting=is_adopting
            )
            opened.pop_all()
            return Commits(resources=decided)
        kafka: list[KafkaCluster] = []
        for cluster in clusters:
            epochs = KafkaEpochs(
                job,
                topics_of(cluster),
                spark=spark,
                where=where,
                followers=None if kafka else followers,
                is_reset=is_reset,
                is_second=bool(kafka),
            )
            opened.callback(epochs.close)
            kafka.append(KafkaCluster(epochs, tuple(cluster)))
        _refuse_same_cluster(kafka, job, where)
        if is_reset:
            # Only now: a cluster that cannot be reached must not leave half a reset.
            for one in reversed(kafka):
                one.epochs.forget()
        opened.pop_all()
        return Commits(clusters=tuple(kafka))


def _refuse_same_cluster(clusters: Sequence[KafkaCluster], job: str, where: str) -> None:
    """Refuse one cluster under two addresses: two writers would share one ledger, each as its own."""
    known: dict[str, KafkaCluster] = {}
    for cluster in clusters if len(clusters) > 1 else ():
        other = known.setdefault(cluster.epochs.cluster, cluster)
        if other is not cluster:
            one, two = (", ".join(sorted(hosts)) for hosts in (other.hosts, cluster.hosts))
            raise Refused(
                f"outputs of job {job!r} name one Kafka cluster in two ways: {one} and {two}",
                where=where,
                fix="give them the same servers=, so that they commit in one transaction",
            )


def _open(job: str, group: Sequence[CompiledOutput], *, spark: SparkSession, where: str, is_deciding: bool) -> Resource:
    first = group[0].sink
    assert isinstance(first, CommittingSink)
    sinks = {output.name: output.sink for output in group}
    return first.open(Opening(job=job, sinks=sinks, spark=spark, where=where, is_deciding=is_deciding))


def _fitness(group: Sequence[ExactOutput]) -> int:
    sink = group[0].sink
    assert isinstance(sink, CommittingSink)
    return sink.fitness


def _without(resources: Mapping[str, Resource], name: str | None) -> dict[str, Resource]:
    return {other: resource for other, resource in resources.items() if other != name}
