"""A resource: a system that can hold an epoch back and let it out in one step. What exactly-once asks of a sink.

    stage      put the rows down, durably, where no reader looks; a name for what was put down
    publish    in one atomic step: move the ledger on, and what was staged under a name into sight
    read       what the ledger says
    leftovers  what is staged; `remove` takes it away, once it can never be published

Whoever can do these is exactly-once in a job, alone or beside others. Alone, `publish` is the decision. Beside
others one of them decides, and the rest publish what its ledger names; so what was staged has to stay until then, also
when every process of the job dies.

The laws, which `lockgate.testing` checks on any resource:

    what is staged is not seen, and what is published is seen whole, once
    what `stage` took, `publish` takes: a system that looks at rows only when they are shown tries that while it stages
    a publish whose ledger is not the one that was seen before changes nothing and raises Moved
    staging again under the same epoch number is something else, with another name
    what was among the leftovers and was removed can not be published any more, and nothing else is touched
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockgate.commit.ledger import Entry
from lockgate.commit.mending import MendableLedger
from lockgate.dataflow.endpoints import Sink
from lockgate.errors import EpochFailed, Refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Moved(EpochFailed):
    """The ledger is not what it was when somebody looked: another driver, or an answer that came late."""


@dataclass(frozen=True)
class Opening:
    """What a resource is opened for: a job, and those of its outputs that commit there together, by name."""

    job: str
    sinks: Mapping[str, Sink]
    spark: SparkSession
    where: str
    is_deciding: bool  # else what is staged has to outlive the system's own crash, until the decision is known


class Resource(ABC):
    """One system, opened for one job; lives as long as the driver runs the job."""

    where: str

    @abstractmethod
    def read(self) -> Entry | None:
        """What the ledger says; None where it says nothing yet."""

    @abstractmethod
    def stage(self, rows: Mapping[str, DataFrame], epoch: int) -> str:
        """Put down the rows of an epoch, by output, durably and unseen; the name under which they are published."""

    @abstractmethod
    def publish(self, staged: str | None, entry: Entry, *, after: Entry | None) -> None:
        """Replace the ledger's `after` by `entry` and show what was staged, both or neither; None shows nothing.

        Raises Moved where the ledger does not say `after`, and EpochFailed where the answer is not known.
        """

    @abstractmethod
    def leftovers(self) -> Collection[str]:
        """What is staged for this job at this moment, whoever staged it, by any names that `remove` knows."""

    @abstractmethod
    def remove(self, leftovers: Collection[str]) -> None:
        """Remove these, and only these: another driver may have staged more in the meantime."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Let go of what is held open."""


class CommittingSink(Sink):
    """A sink whose system is a resource."""

    @property
    def resource(self) -> str:
        """Outputs of a job that name the same resource are opened together, and commit in one step."""
        return f"{type(self).__name__} {id(self)}"

    @property
    def fitness(self) -> int:
        """How fit its system is to decide for others, where Kafka is not among them; the fittest one does."""
        return 0

    @abstractmethod
    def open(self, opening: Opening) -> Resource:
        """The resource, for all the outputs of the opening; raises with the cure where it cannot be used."""

    def ledger(self, job: str, where: str) -> MendableLedger:
        """The ledger of a job in its system, for the commands that show and mend it."""
        raise Refused(
            f"the commands do not know how to reach the ledger of a {type(self).__name__}",
            where=where,
            fix="let the sink's `ledger` say so (lockgate/commit/mending.py)",
        )
