"""State from outside: what a step of a job keeps for its keys, as of an epoch that is committed.

A running job is not disturbed, and nothing is written. A function with state is asked by its own `get_state`; of every
other step the aggregates, windows or partial matches are shown, and of Spark's own windows and joins their rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from lockgate.dataflow.job import Job
from lockgate.dataflow.steps import Join, Keyed
from lockgate.errors import Failed, Refused
from lockgate.failures import first_cause
from lockgate.guarantees import Guarantee
from lockgate.operators.contract import Key, StepFailed
from lockgate.operators.statejson import key_texts
from lockgate.planner.logical import Node
from lockgate.planner.plan import Plan, plan
from lockgate.runtime.checkpoints import Checkpoint
from lockgate.runtime.run import ROWS_PER_EPOCH, default_checkpoint, uses_kafka
from lockgate.runtime.stateread import find_moment, read_native, read_operator
from lockgate.runtime.tables import Tables
from lockgate.spark.compile import compile_plan
from lockgate.spark.jars import connector_jars
from lockgate.spark.session import SessionPlan, open_session


def get_state(
    job: Job, step: str, *, checkpoint: str | None = None, key: Any = None, epoch: int | None = None
) -> dict[Key, dict[str, Any]]:
    """What a step keeps for each key, or for one, as of the last committed epoch or an older one that is still there.

    A key is a tuple of the values of its columns; one of a single column may be given as it is.
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
    """The same, key by key; values of a key may be text, whatever the type of its column."""
    planned = plan(job)
    node = _find_step(planned, step)
    keys = node.step.on if isinstance(node.step, Join) else getattr(node.step, "keys", ())
    if key is not None and len(key) != len(keys):
        raise Refused(
            f"a key of {len(key)} values is given, and {node.kind} {step!r} has keys of {len(keys)}",
            where=node.where,
            fix=f"give a value for each of {', '.join(keys)}, in this order" if keys else "leave the key away",
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
        find_moment(place, epoch)  # refused before Spark is started, which takes seconds
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
            jars=connector_jars() if uses_kafka(planned) else (),
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
            f"the state cannot be shown: {failed.reason}", where=node.where, fix="mend get_state of the function"
        ) from failed
    except (PySparkException, Py4JError) as error:
        raise Failed(
            f"Spark cannot read the state: {first_cause(str(error))}",
            where=f"{node.where}; checkpoint {place}",
            fix=f"see what is wrong with it: lockgate checkpoints verify --checkpoint {place}",
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
