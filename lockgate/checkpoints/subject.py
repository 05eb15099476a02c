"""The checkpoint that a command changes: its job, its place, its other users, and its ledger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.checkpoints.facts import CheckpointFacts, look_at
from lockgate.checkpoints.jobledgers import LedgerTarget
from lockgate.checkpoints.locking import lock_exclusively
from lockgate.checkpoints.tree import Tree, open_tree
from lockgate.connectors.files.filesystem import local_path
from lockgate.dataflow.endpoints import Sink, Source
from lockgate.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Subject:
    """A job's checkpoint."""

    job: str
    checkpoint: Checkpoint
    tree: Tree
    ledger: LedgerTarget | None  # None if no output is written in transactions
    where: str
    sinks: Mapping[str, Sink] = field(default_factory=dict)  # empty if the command names the job without its file
    sources: tuple[Source, ...] = ()

    @property
    def local(self) -> Path | None:
        """Its directory, if it is on this machine's disk."""
        return self.checkpoint.local

    @property
    def upserts(self) -> list[str]:
        """Outputs whose rows replace those of the same key, so that the same rows once more change nothing."""
        return [name for name, sink in self.sinks.items() if sink.location is not None and sink.location.replaced_by]

    @contextmanager
    def lock_exclusively(self) -> Iterator[None]:
        """Be the only process that uses the checkpoint, as far as this can be known."""
        with lock_exclusively(self.local, self.job):
            yield

    def warn_unseen(self) -> list[str]:
        """The warning if it is unknown whether a driver runs."""
        if self.local is not None or self.ledger is not None:
            return []
        return ["It is unknown here whether a driver of the job runs: make sure that none does."]


def open_checkpoint(place: str) -> tuple[Checkpoint, Tree]:
    """The checkpoint at a place on any file system."""
    spark = open_spark() if local_path(place) is None else None
    return Checkpoint(root=place, spark=spark), open_tree(place, spark)


def look_at_place(place: str) -> tuple[Checkpoint, Tree, CheckpointFacts]:
    """What the checkpoint at a place holds; Refused if it cannot be read."""
    try:
        checkpoint, tree = open_checkpoint(place)
        return checkpoint, tree, look_at(tree)
    except OSError as error:
        raise Refused(
            f"{place} cannot be read: {error}",
            where=f"checkpoint {place}",
            fix="check the address of its file system, and whether you may read there",
        ) from error


def open_spark() -> SparkSession:
    """A session with a JVM that reaches Hadoop's file systems."""
    from lockgate.spark.session import SessionPlan, open_session

    log_file = Path(".lockgate") / "logs" / "checkpoints.spark.log"
    return open_session(SessionPlan(app="lockgate checkpoints", master=None, jars=(), log_file=log_file.resolve()))
