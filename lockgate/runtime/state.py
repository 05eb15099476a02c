"""Read the state of a step from outside: what it keeps for its keys, as of a committed epoch.

This does not disturb a running job, and writes nothing. A function with state answers through its own `get_state`.
Other steps show their aggregates, windows or partial matches. Spark's own windows and joins show their rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.checkpoints.stateread import find_moment, read_native, read_operator
from lockgate.dataflow.job import Job
from lockgate.dataflow.steps import Join, Keyed
from lockgate.errors import Failed, Refused
from lockgate.failures import first_cause
from lockgate.guarantees import Guarantee
from lockgate.operators.contract import Key, StepFailed
from lockgate.operators.statejson import key_texts
from lockgate.planner.logical import Node
from lockgate.planner.plan import Plan, plan
from lockgate.provision.kafkajars import kafka_jars
from lockgate.runtime.libraries import uses_kafka
from lockgate.runtime.options import ROWS_PER_EPOCH, default_checkpoint
from lockgate.runtime.tablerefresh import Tables
from lockgate.spark.compile import compile_plan
from lockgate.spark.session import SessionPlan, open_session


def get_state(
    job: Job, step: str, *, checkpoint: str | None = None, key: Any = None, epoch: int | None = None
) -> dict[Key, dict[str, Any]]:
    """Read what a step keeps for each key.

    Args:
        job: the job that ran.
        step: the name of the step.
        checkpoint: the directory of the checkpoint; default: the one of the job's name.
        key: one key only: a tuple of the values of its columns, or the value itself if there is one column.
        epoch: an older epoch that the checkpoint still has; default: the last committed one.

    Raises:
        Refused: there is no such step, checkpoint or epoch.

    >>> clicks = stream("clicks", MemorySource([("a",), ("b",), ("a",)], value="ip STRING"))
    >>> totals = clicks.key_by("ip").rolling(n="count(*)", name="totals")
    >>> job = Job("clicks", totals.to("out", MemorySink()), guarantee=Guarantee.AT_LEAST_ONCE)
    >>> done = run(job, until_caught_up=True)
    >>> get_state(job, "totals", key="a")
    {('a',): {'n': 2}}
    """
    wanted = None if key is None else key if isinstance(key, tuple | list) else (key,)
    return dict(iterate_state(job, step, checkpoint=checkpoint, key=wanted, epoch=epoch))


def iterate_state(
    job: Job,
    step: str,
    *,
    checkpoint: str | None = None,
    key: Sequence[Any] | None = None,
    epoch: int | None = None,
) -> Iterator[tuple[Key, dict[str, Any]]]:
    """Do the same as `get_state`, key by key; the values of a key may be text, whatever the type of its column."""
    planned = plan(job)
    node = _find_step(planned, step)
    keys = node.step.on if isinstance(node.step, Join) else getattr(node.step, "keys", ())
    if key is not None and len(key) != len(keys):
        raise Refused(
            f"a key of {len(key)} values is given, and {node.kind} {step!r} has keys of {len(keys)}",
            where=node.where,
            fix=f"give a value for each of {', '.join(keys)}, in this order" if keys else "omit the key",
        )
    if job.guarantee is Guarantee.AT_MOST_ONCE:
        raise Refused(
            "an at-most-once job keeps no checkpoint, and so no state",
            where=f"job {job.name!r}, declared at {job.origin}",
            fix="declare a stronger guarantee",
        )
    place = Checkpoint(root=checkpoint or str(default_checkpoint(job.name)))
    if place.local is not None:
        place = Checkpoint(root=str(place.local.resolve()))
        find_moment(place, epoch)  # refuse before Spark starts, which takes seconds
    return _read(planned, node, place.root, None if key is None else key_texts(key), epoch)


def _read(
    planned: Plan, node: Node, place: str, key: Sequence[str | None] | None, epoch: int | None
) -> Iterator[tuple[Key, dict[str, Any]]]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    job = planned.job
    spark = open_session(
        SessionPlan(
            app=f"lockgate state {job.name}",
            master=None,
            jars=kafka_jars() if uses_kafka(planned) else (),
            log_file=(Path(".lockgate") / "logs" / f"{job.name}.state.log").resolve(),
        )
    )
    checkpoint = Checkpoint(root=place, spark=spark)
    moment = find_moment(checkpoint, epoch)
    try:
        with closing(Tables(planned.logical.nodes, spark)) as tables:
            compiled = compile_plan(planned, spark, start=None, rows_per_epoch=ROWS_PER_EPOCH, tables=tables.address)
        described = compiled.operators.get(node.name)
        if described is None:
            yield from read_native(spark, checkpoint, node, planned, moment=moment, key=key)
        else:
            yield from read_operator(spark, checkpoint, node, described, moment=moment, key=key)
    except StepFailed as failed:
        raise Failed(
            f"the state cannot be shown: {failed.reason}", where=node.where, fix="fix get_state of the function"
        ) from failed
    except (PySparkException, Py4JError) as error:
        raise Failed(
            f"Spark cannot read the state: {first_cause(str(error))}",
            where=f"{node.where}; checkpoint {place}",
            fix=f"find out what is wrong: lockgate checkpoints verify --checkpoint {place}",
        ) from error


def _find_step(planned: Plan, step: str) -> Node:
    stateful = [node for node in planned.logical.nodes if isinstance(node.step, Keyed | Join)]
    found = [node for node in stateful if node.name == step]
    if not found:
        names = ", ".join(repr(node.name) for node in stateful)
        raise Refused(
            f"job {planned.job.name!r} has no step {step!r} that keeps state",
            where=f"job {planned.job.name!r}, declared at {planned.job.origin}",
            fix=f"steps with state are {names}" if names else "none of its steps keeps state",
        )
    return found[0]
