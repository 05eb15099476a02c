"""The ledger that a command is about, in any system.

eo.py                               the job's file says which of its systems decides, and which follow it
eo --servers host:9092              the job's name and the place of one of its ledgers: a Kafka,
eo --postgres postgresql://host/db  a PostgreSQL database,
eo --files /data/out                the directory of a FileSink,
eo --sqlite results.db              or the file of an SqliteSink

By name and place you can choose any ledger of a job, also that of a system that follows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lockgate.cli.target import (
    Declared,
    Target,
    is_file,
    offer_kafka,
    read_job,
    refuse_name,
    target_at_servers,
    target_of,
    targets_of,
)
from lockgate.cli.transactions import look
from lockgate.commit.repair import MendableLedger
from lockgate.errors import Refused

if TYPE_CHECKING:
    from lockgate.checkpoints.jobledgers import LedgerTarget, Open
    from lockgate.checkpoints.subject import Subject
    from lockgate.commit.ledger import Entry


class KafkaLedger(MendableLedger):
    """The ledger topic of a job."""

    option = "--servers HOST:PORT"

    def __init__(self, target: Target) -> None:
        from lockgate.connectors.kafka.ledgertopic import LedgerTopic
        from lockgate.connectors.kafka.wire import Connection

        self._target = target
        self._connection = Connection(target.settings, where=target.where)
        self._topic = LedgerTopic(self._connection, target.job, where=target.where)
        self.where = self._topic.where
        self.name = f"topic {self._topic.name} at {target.settings.servers}"
        self.facts = {"topic": self._topic.name, "servers": target.settings.servers}
        self.missing = f"there is no topic {self._topic.name!r}"

    @property
    def exists(self) -> bool:
        return self._topic.exists

    def peek(self) -> Entry | None:
        return self._topic.peek()

    def replace(self, seen: Entry | None, entry: Entry) -> None:
        from lockgate.connectors.kafka.ledgeredit import open_transactions, replace_entry

        transactions = open_transactions(self._connection, self._target.job, self.where)
        self._topic.ensure(self._target.topics)
        replace_entry(self._topic, transactions, seen, entry)

    def refuse_driver(self) -> None:
        from lockgate.connectors.kafka.ledgertopic import transactional_id

        job = self._target.job
        found = look(self._connection, transactional_id(job), self._target.where)
        if found is not None and found.is_open:
            raise Refused(
                f"a driver of job {job!r} seems to run: its transaction is open ({found.view.state})",
                where=self.where,
                fix=f"stop the driver; if it is dead, wait for the time-out, or: lockgate transactions abort {job}"
                f" --servers {self._target.settings.servers} --yes",
            )

    def close(self) -> None:
        self._connection.close()


def offer_ledger(parser: argparse.ArgumentParser, *, is_needed: bool = True) -> None:
    """Let a command take a job, and the place of its ledger; or only --checkpoint, if no job is needed."""
    parser.add_argument(
        "job",
        metavar="JOB",
        nargs=None if is_needed else "?",
        help="a job's file, or its name together with the place of its ledger",
    )
    offer_kafka(parser)
    parser.add_argument(
        "--postgres",
        metavar="DSN",
        help="the ledger is in this PostgreSQL database; env:NAME or file:/path says where the dsn is",
    )
    parser.add_argument("--files", metavar="DIR", help="the ledger is in this directory of a FileSink")
    parser.add_argument("--sqlite", metavar="FILE", help="the ledger is in this file of an SqliteSink")
    parser.add_argument("--checkpoint", metavar="PLACE", help="default: .lockgate/checkpoints/JOB")


@dataclass(frozen=True)
class CheckpointTarget:
    """A checkpoint that a command reads, and its ledger if the job is known and has one."""

    place: str
    job: str | None = None
    ledger: LedgerTarget | None = None


def find_checkpoint(arguments: argparse.Namespace) -> CheckpointTarget:
    """The checkpoint that the arguments name, by its job or by its place alone."""
    if arguments.job is None:
        if arguments.checkpoint is None:
            raise Refused(
                "it is not said which checkpoint",
                where="command line",
                fix="name the job's file, or the place of the checkpoint: --checkpoint PLACE",
            )
        return CheckpointTarget(place=checkpoint_place(arguments, ""))
    if is_file(arguments.job):
        declared = read_job(arguments)
        if not declared.exact:
            return CheckpointTarget(place=checkpoint_place(arguments, declared.job), job=declared.job)
    target = find_ledger(arguments)
    return CheckpointTarget(place=target.place, job=target.job, ledger=target)


def find_subject(arguments: argparse.Namespace) -> Subject:
    """The checkpoint that the arguments name, for a command that changes it."""
    from lockgate.checkpoints.subject import Subject, open_checkpoint

    if is_file(arguments.job):
        declared = read_job(arguments)
        if not declared.keeps_checkpoint:
            raise Refused("an at-most-once job keeps no checkpoint", where=declared.where, fix="name another job")
        job, where, ledger = declared.job, declared.where, ledger_of(declared, arguments) if declared.exact else None
        sinks, sources = declared.sinks, declared.sources
    else:
        ledger = find_ledger(arguments)
        job, where, sinks, sources = ledger.job, f"job {ledger.job!r}", {}, ()
    checkpoint, tree = open_checkpoint(checkpoint_place(arguments, job))
    return Subject(
        job=job,
        checkpoint=checkpoint,
        tree=tree,
        ledger=ledger,
        where=where,
        sinks=sinks,
        sources=sources,
    )


def find_ledger(arguments: argparse.Namespace) -> LedgerTarget:
    """The ledger that the arguments name."""
    from lockgate.checkpoints.jobledgers import LedgerTarget

    places = {name: getattr(arguments, name) for name in ("servers", "postgres", "files", "sqlite")}
    given = [name for name, place in places.items() if place]
    if is_file(arguments.job):
        if stores := [name for name in given if name != "servers"]:
            raise Refused(
                f"the job's file says where its ledgers are, and --{stores[0]} says it, too",
                where="command line",
                fix="name the file alone; or the job by its name, together with one place",
            )
        return ledger_of(read_job(arguments), arguments)
    refuse_name(arguments.job)
    if len(given) != 1:
        raise Refused(
            f"it is {'said twice' if given else 'not said'} where the ledger of job {arguments.job!r} is",
            where="command line",
            fix=f"name the job's file instead of {arguments.job!r}, or add --servers HOST:PORT, or --postgres DSN, or"
            " --files DIR, or --sqlite FILE",
        )
    return LedgerTarget(
        job=arguments.job,
        place=checkpoint_place(arguments, arguments.job),
        open=_opener(arguments, given[0]),
        may_follow=True,
    )


def _opener(arguments: argparse.Namespace, kind: str) -> Open:
    """The function that opens the ledger of a job that is named by its name."""
    from lockgate.connectors.files.ledger import FileLedger
    from lockgate.connectors.postgres.ledger import PostgresLedger
    from lockgate.connectors.sqlite.sink import SqliteLedger

    if kind == "servers":
        return partial(KafkaLedger, target_at_servers(arguments))
    if arguments.parameters or arguments.client:
        option, use = ("-p", "a job's file") if arguments.parameters else ("--client", "Kafka")
        raise Refused(f"{option} is for {use}, and none is named", where="command line", fix=f"omit {option}")
    makers: dict[str, Callable[..., MendableLedger]]
    makers = {"postgres": PostgresLedger, "files": FileLedger, "sqlite": SqliteLedger}
    return partial(makers[kind], getattr(arguments, kind), arguments.job, where=f"job {arguments.job!r}")


def ledger_of(declared: Declared, arguments: argparse.Namespace) -> LedgerTarget:
    """The deciding ledger of a job that is described by its file."""
    from lockgate.checkpoints.jobledgers import LedgerTarget
    from lockgate.commit.resource import CommittingSink
    from lockgate.runtime.commits import choose_deciding, group_outputs, topics_of

    kafka = topics_of(declared.exact)
    groups = group_outputs(declared.exact)
    openers: dict[str, Open] = {
        name: partial(group[0].sink.ledger, declared.job, declared.where)
        for name, group in groups.items()
        if isinstance(group[0].sink, CommittingSink)
    }
    deciding = choose_deciding(kafka, groups)
    if not kafka and deciding is None:
        raise Refused(
            f"job {declared.job!r} has no output that is written in transactions, so it has no ledger",
            where=declared.where,
            fix="name another job, or declare Guarantee.END_TO_END_EXACTLY_ONCE; a table with a key has a ledger, too",
        )
    place = checkpoint_place(arguments, declared.job)
    if deciding is not None:
        return LedgerTarget(
            job=declared.job, place=place, open=openers.pop(deciding), others=declared.others, followers=openers
        )
    target = target_of(declared, arguments)
    return LedgerTarget(
        job=declared.job,
        place=place,
        open=partial(KafkaLedger, target),
        others=declared.others,
        followers=openers if target.is_first else {},
        is_second=not target.is_first,
        clusters={
            one.settings.servers: partial(KafkaLedger, one)
            for one in targets_of(declared, arguments)
            if one.settings != target.settings
        },
    )


def checkpoint_place(arguments: argparse.Namespace, job: str) -> str:
    """The place of the checkpoint."""
    from lockgate.checkpoints.tree import as_named
    from lockgate.runtime.options import default_checkpoint

    place: str | None = arguments.checkpoint
    if place is None:
        return str(default_checkpoint(job))
    return place if "://" in place or place.startswith("file:") else str(as_named(place) or place)
