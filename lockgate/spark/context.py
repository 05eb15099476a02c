"""What the steps of one query share: the plan, and the parts of the run that their tasks use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockgate.connectors.rejects import Rejects
from lockgate.planner.flow import Flow
from lockgate.planner.logical import LogicalGraph, Node
from lockgate.planner.plan import Plan
from lockgate.serving.rpc import Address
from lockgate.spark.fanout import Tallies

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession

TASK = "__task"
"""Hidden column after a broadcast: the task that a copy of the row is for."""


@dataclass(frozen=True)
class Context:
    """The plan of a query, and what its steps need of the run."""

    planned: Plan
    spark: SparkSession
    tables: Address | None  # workers ask here for the snapshots of tables
    crashes: Address | None  # workers report here what they process, in case they die with it
    kept: frozenset[str]  # the names of states that the checkpoint has
    checkpoint: str | None
    beats: DataFrame | None  # they move time in silence; None if no step declares `idle=`
    dropped: Mapping[str, Accumulator[int]]  # how many late events each operator has dropped
    rejects: Rejects | None  # takes events that cannot be used; None if they stop the job
    tallies: Tallies | None  # the counts of fan-outs; None if there are none

    @property
    def graph(self) -> LogicalGraph:
        """The graph of the plan."""
        return self.planned.logical

    @property
    def timeout_seconds(self) -> float | None:
        """How long a function of the user may take for an event; None if there is no limit."""
        tracking = self.planned.job.tracking
        return None if tracking is None else tracking.timeout.total_seconds()

    def fed(self, node: Node) -> Flow:
        """What flows into a step, from the first of its inputs."""
        return self.graph.node(node.inputs[0]).flow
