"""The job that a command is about: named by its file, which says how to reach its Kafka, or only by its name.

eo.py                        name, servers, client settings and topics out of the file; -p fills its parameters
eo --servers host:9092       the name, as the messages of a run have it; --client NAME=VALUE for TLS and logins
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lockgate.errors import Refused

if TYPE_CHECKING:
    from lockgate.connectors.kafka.settings import ClientSettings
    from lockgate.connectors.kafka.wire import Connection
    from lockgate.dataflow.endpoints import Sink, Source


@dataclass(frozen=True)
class Target:
    """A job, for a command about its Kafka."""

    job: str
    settings: ClientSettings
    topics: tuple[str, ...]  # of its transactional outputs; empty if only the name is known
    where: str
    is_first: bool = True  # else the job commits in another cluster before


@contextmanager
def connected(settings: ClientSettings, where: str) -> Iterator[Connection]:
    """A connection to Kafka, closed afterwards."""
    from lockgate.connectors.kafka.wire import Connection

    connection = Connection(settings, where=where)
    try:
        yield connection
    finally:
        connection.close()


@dataclass(frozen=True)
class DeclaredOutput:
    """An output of a job's file that is written in transactions."""

    name: str
    sink: Sink


@dataclass(frozen=True)
class Declared:
    """A job as its file describes it."""

    job: str
    exact: tuple[DeclaredOutput, ...]  # in the order in which a run opens them
    others: tuple[str, ...]  # outputs with a lower guarantee
    where: str
    sinks: Mapping[str, Sink] = field(default_factory=dict)  # of all outputs
    sources: tuple[Source, ...] = ()
    keeps_checkpoint: bool = True


def offer_target(parser: argparse.ArgumentParser) -> None:
    """Let a command take a job that writes to Kafka."""
    parser.add_argument("job", metavar="JOB", help="a job's file, or its name together with --servers")
    offer_kafka(parser)


def offer_kafka(parser: argparse.ArgumentParser) -> None:
    """Let a command take the options that reach Kafka."""
    parser.add_argument("--servers", metavar="HOST:PORT", help="the job's Kafka; needed if the job has no file")
    parser.add_argument(
        "--client",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the Kafka client, as in client= of a job, e.g. security.protocol=SSL; several times",
    )
    parser.add_argument(
        "-p", dest="parameters", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the job's file"
    )


def is_file(text: str) -> bool:
    """Does a job's name on the command line mean a file?"""
    return text.endswith(".py") or "/" in text or Path(text).is_file()


def find_target(arguments: argparse.Namespace) -> Target:
    """The job that the arguments name, which writes to Kafka."""
    if is_file(arguments.job):
        return target_of(read_job(arguments), arguments)
    if not arguments.servers:
        refuse_name(arguments.job)
        raise Refused(
            f"it is not said where the Kafka of job {arguments.job!r} is",
            where="command line",
            fix=f"name the job's file instead of {arguments.job!r}, or add --servers HOST:PORT",
        )
    return target_at_servers(arguments)


def settings_without_job(arguments: argparse.Namespace) -> ClientSettings:
    """How to reach a Kafka that is named by its servers alone."""
    from lockgate.connectors.kafka.settings import read_settings

    if not arguments.servers:
        raise Refused(
            "it is not said which Kafka", where="command line", fix="name a job's file, or --servers HOST:PORT"
        )
    if arguments.parameters:
        raise Refused(
            "-p is for the parameters of a job's file, and no file is named", where="command line", fix="name the file"
        )
    return read_settings(arguments.servers, _client(arguments), where="command line")


def refuse_name(name: str) -> None:
    """Refuse what is neither a file nor the name of a job."""
    from lockgate.dataflow.job import is_job_name

    if not is_job_name(name):
        raise Refused(
            f"there is no job file {name!r}, and no job can be named so",
            where="command line",
            fix="name the job's file, or its name together with --servers HOST:PORT",
        )


def target_at_servers(arguments: argparse.Namespace) -> Target:
    """A job that is named by its name and its servers."""
    name = str(arguments.job)
    refuse_name(name)
    return Target(job=name, settings=settings_without_job(arguments), topics=(), where=f"job {name!r}")


def read_job(arguments: argparse.Namespace) -> Declared:
    """The outputs that the file of a job describes."""
    from lockgate.cli.jobfile import load_job
    from lockgate.dataflow.steps import Read, Write
    from lockgate.guarantees import Guarantee
    from lockgate.planner.physical import is_exact
    from lockgate.planner.plan import plan

    job = load_job(arguments.job, arguments.parameters)
    graph = plan(job).logical
    written = [(node, node.step) for node in graph.nodes if isinstance(node.step, Write)]
    return Declared(
        job=job.name,
        exact=tuple(DeclaredOutput(node.name, step.sink) for node, step in written if is_exact(graph, node)),
        others=tuple(node.name for node, _ in written if not is_exact(graph, node)),
        where=f"job {job.name!r}, declared at {job.origin}",
        sinks={node.name: step.sink for node, step in written},
        sources=tuple(node.step.source for node in graph.nodes if isinstance(node.step, Read)),
        keeps_checkpoint=job.guarantee is not Guarantee.AT_MOST_ONCE,
    )


def target_of(declared: Declared, arguments: argparse.Namespace) -> Target:
    """The Kafka of a job that is described by its file: the cluster of --servers, else the one that commits first."""
    targets = targets_of(declared, arguments)
    if not targets:
        raise Refused(
            f"job {declared.job!r} has no Kafka output that is declared end-to-end exactly-once, so it has no"
            " transactions",
            where=declared.where,
            fix="name another job, or declare Guarantee.END_TO_END_EXACTLY_ONCE",
        )
    if len(targets) == 1 or arguments.servers is None:
        return targets[0]
    from lockgate.connectors.kafka.wire import hosts_of

    named = hosts_of(arguments.servers)
    chosen = next((one for one in targets if hosts_of(one.settings.servers) & named), None)
    if chosen is None:
        raise Refused(
            f"job {declared.job!r} writes to {len(targets)} clusters, and --servers names none of them",
            where="command line",
            fix=f"name one as the job does: {'; '.join(one.settings.servers for one in targets)}",
        )
    return chosen


def targets_of(declared: Declared, arguments: argparse.Namespace) -> list[Target]:
    """The clusters of a job that is described by its file, in the order in which they commit."""
    from lockgate.connectors.kafka.epoch import common_settings
    from lockgate.connectors.kafka.settings import read_settings
    from lockgate.runtime.commits import group_clusters, topics_of

    targets: list[Target] = []
    clusters = group_clusters(declared.exact)
    for cluster in clusters:
        topics = topics_of(cluster)
        common_settings(topics, declared.where)
        # If there is only one, it may be reached by another address than the job's.
        servers = arguments.servers if arguments.servers and len(clusters) == 1 else topics[0].servers
        targets.append(
            Target(
                job=declared.job,
                settings=read_settings(servers, {**topics[0].client, **_client(arguments)}, where=declared.where),
                topics=tuple(one.name for one in topics if one.name is not None),
                where=declared.where,
                is_first=not targets,
            )
        )
    return targets


def _client(arguments: argparse.Namespace) -> dict[str, str]:
    client: dict[str, str] = {}
    for text in arguments.client:
        name, equals, value = text.partition("=")
        if not equals or not name:
            # The given text is not shown: it may hold a password.
            raise Refused("a --client is not NAME=VALUE", where="command line", fix="--client security.protocol=SSL")
        client[name] = value
    return client
