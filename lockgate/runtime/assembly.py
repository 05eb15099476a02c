"""Make the parts of a run from its plan: the writer of its epochs, and the checks of what it reads and writes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.connectors.files.filesystem import open_system
from lockgate.dataflow.steps import Read, Transform, Write
from lockgate.guarantees import Guarantee
from lockgate.planner.flow import MISSED
from lockgate.planner.nondeterminism import is_nondeterministic
from lockgate.planner.passes import computes_once
from lockgate.planner.physical import declared_of, has_state, is_exact, is_partitioned_alike
from lockgate.planner.plan import Plan
from lockgate.runtime.acker import Acker
from lockgate.runtime.commits import group_outputs, open_commits
from lockgate.runtime.deadletterwriter import DeadLetterWriter
from lockgate.runtime.epochs import EpochWriter
from lockgate.runtime.gaps import Gaps
from lockgate.runtime.scans import source_logs
from lockgate.runtime.sourcefiles import ReadDirectory, SourceFiles
from lockgate.runtime.sourcelist import sources_in_order
from lockgate.runtime.tablerefresh import Tables
from lockgate.runtime.topicids import TopicIds, used_topics
from lockgate.spark.compile import Compiled
from lockgate.spark.session import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def make_epoch_writer(
    planned: Plan,
    compiled: Compiled,
    spark: SparkSession,
    tables: Tables,
    letters: DeadLetterWriter | None,
    is_reset: bool,
) -> EpochWriter:
    """The writer of the epochs, with one decision for all outputs that are written in transactions."""
    graph = planned.logical
    exact = [output for output in compiled.outputs if output.is_exact]
    where = f"job {planned.job.name!r}, declared at {planned.job.origin}"
    # Below end-to-end exactly-once only upserts are written in transactions. Such a job may have run before its table
    # had a ledger, and its first epoch replaces its own rows.
    declared = {declared_of(graph, node.step) for node in graph.nodes if isinstance(node.step, Write)}
    has_wild_steps = any(map(is_nondeterministic, graph.nodes))
    return EpochWriter(
        spark=spark,
        outputs=compiled.outputs,
        commits=open_commits(
            planned.job.name,
            exact,
            spark=spark,
            where=where,
            is_reset=is_reset,
            is_adopting=Guarantee.END_TO_END_EXACTLY_ONCE not in declared and not has_wild_steps,
        ),
        resources=group_outputs(exact),
        # A transform is opaque and may hold state. Rows that were kept are not computed again.
        can_repeat=letters is None
        and compiled.finish is None
        and not any(has_state(node) or isinstance(node.step, Transform) for node in graph.nodes),
        is_alike=any(is_partitioned_alike(graph, node) for node in graph.nodes),
        sources=tuple(node.step.source for node in graph.nodes if isinstance(node.step, Read)),
        tables=tables,
        tries_once=planned.job.guarantee is Guarantee.AT_MOST_ONCE and not is_local(spark.sparkContext),
        may_differ=has_wild_steps or any(computes_once(graph, node) for node in graph.nodes),
        where=where,
        finish=compiled.finish,
        has_late=MISSED in compiled.frame.columns,
        letters=letters,
    )


def make_dead_letter_writer(
    planned: Plan, compiled: Compiled, checkpoint: Checkpoint, spark: SparkSession
) -> DeadLetterWriter | None:
    """The box for events that cannot be processed; with an acker if they are retried first."""
    job = planned.job
    if job.dead_letters is None or compiled.rejects is None or compiled.letters is None:
        return None
    where = f"job {job.name!r}, declared at {job.origin}"
    box = DeadLetterWriter(
        spark, job.name, where, job.dead_letters, compiled.rejects, compiled.letters, planned.logical
    )
    if job.tracking is not None:
        system = open_system(checkpoint.root, spark, where)
        box.acker = Acker(
            system,
            job.tracking,
            is_committed=checkpoint.is_committed,
            planned=lambda: max(checkpoint.epochs("offsets"), default=-1),
            job=job.name,
        )
    return box


MakeTopicIds = Callable[[Checkpoint, Plan, Compiled], TopicIds]


def make_topic_ids(checkpoint: Checkpoint, planned: Plan, compiled: Compiled) -> TopicIds:
    """The ids of all topics that a job reads and writes, including the topic of dead letters."""
    read = [source for _, source in sources_in_order(planned, compiled.parts)]
    written = [output.sink for output in compiled.outputs]
    where = f"job {planned.job.name!r}, declared at {planned.job.origin}; checkpoint {checkpoint.root}"
    return TopicIds(checkpoint, used_topics([*read, *written]), where=where, accept="lockgate run --accept-outputs")


def make_source_files(checkpoint: Checkpoint, planned: Plan, compiled: Compiled) -> SourceFiles | None:
    """The files that a job reads; None if it reads none."""
    read = [(node.where, node.step.source) for node in planned.logical.nodes if isinstance(node.step, Read)]
    found = [(where, source, files.path) for where, source in read if (files := source.watched_files) is not None]
    if not found:
        return None
    logs = source_logs(compiled.frame)
    # If two sources have one path, Spark does not say whose a log is, so the first of them counts for both.
    first = {path: where for where, _, path in reversed(found)}
    directories = [
        ReadDirectory(source, where, passes=len({n for n, path in logs if path == own and first[path] == where}))
        for where, source, own in found
    ]
    return SourceFiles(
        checkpoint,
        directories,
        logs=[number if path in first else None for number, path in logs],
        is_exact=any(is_exact(planned.logical, node) for node in planned.logical.nodes),
        job=planned.job.name,
        now=time.time,
    )


def make_gaps(checkpoint: Checkpoint, planned: Plan) -> Gaps:
    """The check for records that are gone before the job read them."""
    read = [(node.where, node.step.source) for node in planned.logical.nodes if isinstance(node.step, Read)]
    where = f"job {planned.job.name!r}, declared at {planned.job.origin}; checkpoint {checkpoint.root}"
    return Gaps(checkpoint, read, where=where)
