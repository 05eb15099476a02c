"""The job that a command is about: named by its file, which says how to reach its Kafka, or by its name alone.

eo.py                        name, servers, client settings and topics out of the file; -p fills its parameters
eo --servers host:9092       the name, as the messages of a run have it; --client NAME=VALUE for TLS and logins
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lockgate.errors import Refused

if TYPE_CHECKING:
    from lockgate.kafka.settings import ClientSettings
    from lockgate.kafka.wire import Connection
    from lockgate.runtime.checkpoints import Checkpoint


@dataclass(frozen=True)
class Target:
    """A job as a command meets it."""

    job: str
    settings: ClientSettings
    topics: tuple[str, ...]  # of its transactional outputs; empty where only the name is known
    others: tuple[str, ...]  # outputs that are declared less, and so are no part of the transaction
    place: str  # of its checkpoint
    where: str

    @property
    def checkpoint(self) -> Checkpoint:
        """Its checkpoint, which may not exist."""
        from lockgate.runtime.checkpoints import Checkpoint

        return Checkpoint(root=self.place)

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """A connection to its Kafka, closed afterwards."""
        with connected(self.settings, self.where) as connection:
            yield connection


@contextmanager
def connected(settings: ClientSettings, where: str) -> Iterator[Connection]:
    """A connection to Kafka, closed afterwards."""
    from lockgate.kafka.wire import Connection

    connection = Connection(settings, where=where)
    try:
        yield connection
    finally:
        connection.close()


def offer_target(parser: argparse.ArgumentParser, *, has_checkpoint: bool = True) -> None:
    """Let a command take a job."""
    parser.add_argument("job", metavar="JOB", help="a job's file, or its name together with --servers")
    offer_kafka(parser)
    if has_checkpoint:
        parser.add_argument("--checkpoint", metavar="PLACE", help="default: .lockgate/checkpoints/JOB")


def offer_kafka(parser: argparse.ArgumentParser) -> None:
    """Let a command take what it needs to reach Kafka."""
    parser.add_argument("--servers", metavar="HOST:PORT", help="the job's Kafka; needed where the job has no file")
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
    """The job that the arguments name."""
    if is_file(arguments.job):
        return _from_file(arguments)
    return _from_name(arguments)


def settings_without_job(arguments: argparse.Namespace) -> ClientSettings:
    """How to reach a Kafka that is named by its servers alone."""
    from lockgate.kafka.settings import read_settings

    if not arguments.servers:
        raise Refused(
            "it is not said which Kafka", where="command line", fix="name a job's file, or --servers HOST:PORT"
        )
    if arguments.parameters:
        raise Refused(
            "-p is for the parameters of a job's file, and no file is named", where="command line", fix="name the file"
        )
    return read_settings(arguments.servers, _client(arguments), where="command line")


def _from_name(arguments: argparse.Namespace) -> Target:
    from lockgate.dataflow.job import is_job_name
    from lockgate.runtime.run import default_checkpoint

    name = str(arguments.job)
    if not is_job_name(name):
        raise Refused(
            f"there is no job file {name!r}, and no job can be named so",
            where="command line",
            fix="name the job's file, or its name together with --servers HOST:PORT",
        )
    if not arguments.servers:
        raise Refused(
            f"it is not said where the Kafka of job {name!r} is",
            where="command line",
            fix=f"name the job's file instead of {name!r}, or add --servers HOST:PORT",
        )
    return Target(
        job=name,
        settings=settings_without_job(arguments),
        topics=(),
        others=(),
        place=_place(arguments) or str(default_checkpoint(name)),
        where=f"job {name!r}",
    )


def _from_file(arguments: argparse.Namespace) -> Target:
    from lockgate.cli.jobfile import load_job
    from lockgate.guarantees import Guarantee
    from lockgate.kafka.settings import read_settings
    from lockgate.runtime.run import default_checkpoint
    from lockgate.sinks.kafka import KafkaSink
    from lockgate.sinks.kafkaepoch import common_settings

    job = load_job(arguments.job, arguments.parameters)
    where = f"job {job.name!r}, declared at {job.origin}"
    sinks: list[KafkaSink] = []
    others: list[str] = []
    for step in (output.step for output in job.outputs):
        guarantee = job.guarantee if step.guarantee is None else step.guarantee
        if isinstance(step.sink, KafkaSink) and guarantee is Guarantee.END_TO_END_EXACTLY_ONCE:
            sinks.append(step.sink)
        else:
            others.append(str(step.name))
    if not sinks:
        raise Refused(
            f"job {job.name!r} has no Kafka output that is declared end-to-end exactly-once, so it has neither a ledger"
            " nor transactions",
            where=where,
            fix="name another job, or declare Guarantee.END_TO_END_EXACTLY_ONCE",
        )
    common_settings(sinks, where)
    client = {**sinks[0].client, **_client(arguments)}
    return Target(
        job=job.name,
        settings=read_settings(arguments.servers or sinks[0].servers, client, where=where),
        topics=tuple(sink.topic for sink in sinks if sink.topic is not None),
        others=tuple(others),
        place=_place(arguments) or str(default_checkpoint(job.name)),
        where=where,
    )


def _client(arguments: argparse.Namespace) -> dict[str, str]:
    client: dict[str, str] = {}
    for text in arguments.client:
        name, equals, value = text.partition("=")
        if not equals or not name:
            # What was given is not shown: it may hold a password.
            raise Refused("a --client is not NAME=VALUE", where="command line", fix="--client security.protocol=SSL")
        client[name] = value
    return client


def _place(arguments: argparse.Namespace) -> str | None:
    place: str | None = getattr(arguments, "checkpoint", None)
    return place if place is None or "://" in place or place.startswith("file:") else str(Path(place).resolve())
