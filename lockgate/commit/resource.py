"""A resource: a system that can hold back an epoch and publish it in one step. Exactly-once needs this of a sink.

    stage      write the rows durably, where no reader looks; returns a name for them
    publish    in one atomic step: advance the ledger, and make the rows of a name visible
    read       what the ledger says
    leftovers  what is staged; `remove` deletes it when it can no longer be published

A system with these four is exactly-once in a job, alone or with others. Alone, its `publish` is the decision. With
others, one of them decides, and the rest publish what its ledger names. So staged rows must stay until then, also when
every process of the job dies.

The laws, which `lockgate.testing` checks on any resource:

    staged rows are invisible; published rows are visible, all together, once
    `publish` takes what `stage` took: a system that checks rows only when it publishes tries that while it stages
    a publish changes nothing and raises Moved if the ledger is not the one that was seen before
    a second stage of the same epoch number is something else, with another name
    removed leftovers can no longer be published, and nothing else is touched
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockgate.commit.ledger import Entry
from lockgate.commit.repair import MendableLedger
from lockgate.dataflow.endpoints import Sink
from lockgate.dataflow.locations import Topic
from lockgate.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True)
class Opening:
    """What a resource is opened for: a job, and those of its outputs that commit there together, by name."""

    job: str
    sinks: Mapping[str, Sink]
    spark: SparkSession
    where: str
    is_deciding: bool  # otherwise staged rows must survive a crash of the system, until the decision is known


class Resource(ABC):
    """One system, opened for one job. It lives as long as the driver runs the job.

    A resource of your own passes `lockgate.testing.ResourceContract`.

    >>> sorted(Resource.__abstractmethods__)
    ['leftovers', 'publish', 'read', 'remove', 'stage']
    """

    where: str

    @abstractmethod
    def read(self) -> Entry | None:
        """Return the entry of the ledger; None if there is none yet."""

    @abstractmethod
    def stage(self, rows: Mapping[str, DataFrame], epoch: int) -> str:
        """Put down the rows of an epoch, durably and invisibly. Return the name under which `publish` finds them.

        Args:
            rows: the rows of each output, by its name.
            epoch: the number of the epoch.
        """

    @abstractmethod
    def publish(self, staged: str | None, entry: Entry, *, after: Entry | None) -> None:
        """Replace an entry of the ledger by a new one and make the staged rows visible: both or neither.

        Args:
            staged: what `stage` returned; None makes nothing visible.
            entry: the new entry.
            after: the entry that the ledger must have now; None if it must have none.

        Raises:
            Moved: the ledger has another entry. Nothing has changed.
            EpochFailed: the outcome is not known.
        """

    @abstractmethod
    def leftovers(self) -> Collection[str]:
        """Return the names of all that is staged for this job now, whichever driver staged it."""

    @abstractmethod
    def remove(self, leftovers: Collection[str]) -> None:
        """Remove staged rows, and nothing else: another driver may have staged more in the meantime.

        Args:
            leftovers: names that `leftovers` returned.
        """

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Close what is open."""


class CommittingSink(Sink):
    """A sink that makes an epoch visible in one step of its own system, together with the job's ledger.

    >>> FileSink("out").resource == FileSink("out", format="csv").resource
    True
    """

    @property
    def resource(self) -> str:
        """The name of the system. Outputs of a job with the same name are opened together and commit in one step."""
        return f"{type(self).__name__} {id(self)}"

    @property
    def fitness(self) -> int:
        """How fit the system is to decide for others, if Kafka is not among them. The fittest one decides."""
        return 0

    @abstractmethod
    def open(self, opening: Opening) -> Resource:
        """Open the resource for all the outputs of an opening.

        Args:
            opening: the job, and its outputs that commit there together.

        Raises:
            Refused: the system cannot be used; the error says how to fix it.
        """

    def make_place(self) -> None:
        """Create what a ledger needs, as `open` does, if that is on this machine. A restored savepoint starts there."""

    def ledger(self, job: str, where: str) -> MendableLedger:
        """Return the ledger of a job, for the commands that show and repair it.

        Args:
            job: the name of the job.
            where: the place of the sink, for errors.

        Raises:
            Refused: the sink does not say how to reach its ledger.
        """
        raise Refused(
            f"the commands do not know how to reach the ledger of a {type(self).__name__}",
            where=where,
            fix="let the sink's `ledger` return it",
        )


class TransactionSink(Sink):
    """A sink whose tasks write an exactly-once output into one transaction of its system, whose end is the decision.

    Such a system, Kafka, cannot hold rows back until another one decides. It counts the rows that it gets.
    """

    @property
    @abstractmethod
    def location(self) -> Topic:
        """The topic, and how a record is made of a row."""

    @abstractmethod
    def columns(
        self, rows: DataFrame, *, within: str | None, where: str, epoch: int | None = None
    ) -> dict[str, Column]:
        """The parts of a record, by name, from prepared rows or from a struct in them that holds such rows."""
