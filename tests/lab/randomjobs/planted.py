"""The holes that issue reports showed in the planner, planted back one at a time: the generator has to find each.

hole                                                          planted by
chance          a step that is not deterministic feeds two    nothing cuts or refuses it
                branches, and each gets other values
topics          a topic that was created again is read from   nothing compares the ids of topics
                the old offset on
files           a file that changes after it was read is      nothing looks at files that were read
                never read again
transform       a `transform` that is not deterministic is    Spark's analysed plan is not asked
                not declared so
functions       SQL functions that change are not known       they are taken for steady ones
upsert          an upsert is lifted to exactly-once without   a table with a key counts as idempotent, without a
                a fence                                       transaction
at-most-once    a job that is run at most once is said to     it is derived as if it were run at least once
                reach more
clusters        a second Kafka cluster commits other rows     all topics count as those of one cluster
                than the first one knew of
"""

from __future__ import annotations

from collections import Counter
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lockgate.connectors.postgres.sink import PostgresSink
from lockgate.connectors.sqlite.sink import SqliteSink
from lockgate.dataflow.endpoints import SinkAbility
from lockgate.guarantees import Delivery, Guarantee
from lockgate.planner import derive, nondeterminism, plan, sql
from lockgate.planner.functions import CHANGING, STEADY
from lockgate.planner.logical import LogicalGraph
from lockgate.planner.passes import Cuts
from lockgate.runtime import starting
from lockgate.runtime.topicids import TopicIds
from lockgate.spark import nondeterminism as chance_in_spark
from lockgate.spark import steps

if TYPE_CHECKING:
    import pytest

FORGOTTEN = ("aes_encrypt", "current_time", "histogram_numeric", "kll_sketch_agg_bigint")
"""The functions that the list of functions that change did not have."""


def plant_chance(patch: pytest.MonkeyPatch) -> None:
    """Let every branch draw its own values."""
    patch.setattr(plan, "find_cuts", lambda graph: Cuts())


def plant_chance_in_runs(patch: pytest.MonkeyPatch) -> None:
    """The same, and the start does not count how often Spark's plan has a step."""
    plant_chance(patch)
    for module in (chance_in_spark, steps):
        patch.setattr(module, "count_marks", lambda frame: Counter())


def plant_topics(patch: pytest.MonkeyPatch) -> None:
    """Take every topic for the one that it was."""
    patch.setattr(TopicIds, "check", lambda self, *, accepts_outputs: None)
    patch.setattr(TopicIds, "look", lambda self: None)


def plant_files(patch: pytest.MonkeyPatch) -> None:
    """Look at no file that was read."""
    patch.setattr(starting, "make_source_files", lambda checkpoint, planned, compiled: None)


def plant_transform(patch: pytest.MonkeyPatch) -> None:
    """Believe what is declared of a transform."""
    patch.setattr(steps, "find_nondeterminism", lambda *_, **__: None)


def plant_functions(patch: pytest.MonkeyPatch) -> None:
    """Take functions that change for steady ones."""
    patch.setattr(sql, "CHANGING", {name: why for name, why in CHANGING.items() if name not in FORGOTTEN})
    patch.setattr(sql, "STEADY", STEADY | {*FORGOTTEN})
    patch.setattr(sql, "find_nondeterministic", sql.find_nondeterministic.__wrapped__)  # without what it remembers
    patch.setattr(nondeterminism, "find_nondeterministic", sql.find_nondeterministic)


def plant_upsert(patch: pytest.MonkeyPatch) -> None:
    """Lift what replaces rows by key, although nothing stops a driver that slept."""
    said = {sink: sink.ability for sink in (PostgresSink, SqliteSink)}

    def lifted(sink: PostgresSink | SqliteSink) -> SinkAbility:
        ability: SinkAbility = said[type(sink)].__get__(sink)
        fence: dict[str, Any] = {"is_fenced": True} if hasattr(ability, "is_fenced") else {}
        return replace(ability, delivery=Delivery.IDEMPOTENT, **fence) if sink.key else ability

    for sink in said:
        patch.setattr(sink, "ability", property(lifted))


def plant_at_most_once(patch: pytest.MonkeyPatch) -> None:
    """Derive an at-most-once job as if it kept a checkpoint."""

    def uncapped(graph: LogicalGraph) -> tuple[derive.PathGuarantee, ...]:
        if graph.job.guarantee is not Guarantee.AT_MOST_ONCE:
            return derive.derive(graph)
        job = copy(graph.job)
        object.__setattr__(job, "guarantee", Guarantee.AT_LEAST_ONCE)
        return tuple(replace(path, declared=Guarantee.AT_MOST_ONCE) for path in derive.derive(replace(graph, job=job)))

    patch.setattr(plan, "derive", uncapped)


def plant_clusters(patch: pytest.MonkeyPatch) -> None:
    """Take all topics for those of one cluster."""
    patch.setattr(derive, "_other_cluster", lambda graph, output: None)
