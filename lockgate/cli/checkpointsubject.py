"""The checkpoint that a command changes: whose it is, where it lies, who else uses it, and what the ledger says."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lockgate.cli.ledgers import LedgerTarget, checkpoint_place, find_ledger, ledger_of
from lockgate.cli.target import is_file, read_job
from lockgate.errors import Failed, Refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lockgate.commit.ledger import Entry
    from lockgate.dataflow.endpoints import Sink, Source
    from lockgate.runtime.checkpoints import Checkpoint
    from lockgate.runtime.lifecycle.tree import Tree


@dataclass(frozen=True)
class Subject:
    """A job's checkpoint."""

    job: str
    checkpoint: Checkpoint
    tree: Tree
    ledger: LedgerTarget | None  # None if no output is written in transactions
    where: str
    sinks: Mapping[str, Sink] = field(default_factory=dict)  # empty where the job is named by its name alone
    sources: tuple[Source, ...] = ()

    @property
    def local(self) -> Path | None:
        """Its directory, where it lies on this machine's disk."""
        return self.checkpoint.local

    @property
    def upserts(self) -> list[str]:
        """Outputs whose rows replace those of the same key, so that the same rows once more change nothing."""
        from lockgate.sinks.postgres import PostgresSink
        from lockgate.sinks.sqlite import SqliteSink

        return [name for name, sink in self.sinks.items() if isinstance(sink, PostgresSink | SqliteSink) and sink.key]

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only one who uses the checkpoint, as far as that can be known."""
        from lockgate.runtime.lifecycle.holding import alone

        with alone(self.local, self.job):
            yield

    def warn_unseen(self) -> list[str]:
        """What to say where nobody can tell whether a driver runs."""
        if self.local is not None or self.ledger is not None:
            return []
        return ["Nobody can tell here whether a driver of the job runs: make sure that none does."]


def find_subject(arguments: argparse.Namespace) -> Subject:
    """The checkpoint that the arguments name."""
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


def open_checkpoint(place: str) -> tuple[Checkpoint, Tree]:
    """The checkpoint at a place on any file system."""
    from lockgate.files.system import local_path
    from lockgate.runtime.checkpoints import Checkpoint
    from lockgate.runtime.lifecycle.tree import open_tree

    spark = open_spark() if local_path(place) is None else None
    return Checkpoint(root=place, spark=spark), open_tree(place, spark)


def open_spark() -> SparkSession:
    """A session whose JVM reaches Hadoop's file systems."""
    from lockgate.spark.session import SessionPlan, open_session

    log_file = Path(".lockgate") / "logs" / "checkpoints.spark.log"
    return open_session(SessionPlan(app="lockgate checkpoints", master=None, jars=(), log_file=log_file.resolve()))


def open_place(place: str) -> Tree:
    """The tree at a place on any file system."""
    return open_checkpoint(place)[1]


def set_others(ledger: LedgerTarget, entry: Entry, *, only_later: bool) -> list[str]:
    """Let the ledgers that follow, and those of further clusters, say the same; which were set.

    Args:
        only_later: leave those alone that stand at an earlier epoch, or have none.
    """
    changed = []
    for name, open_ledger in (*ledger.clusters.items(), *ledger.followers.items()):
        with closing(open_ledger()) as other:
            seen = other.peek() if other.exists else None
            if seen is not None and (seen.epoch, seen.digest) == (entry.epoch, entry.digest):
                continue
            is_later = seen is not None and seen.epoch is not None and seen.epoch > (entry.epoch or 0)
            if is_later or not only_later:
                other.replace(seen, entry)
                changed.append(name)
    return changed


def changed_meanwhile(root: str) -> Failed:
    """Somebody uses the checkpoint."""
    return Failed(
        "the checkpoint changed while it was looked at; nothing was removed",
        where=f"checkpoint {root}",
        fix="a driver of this job runs: stop it, then look again",
    )
