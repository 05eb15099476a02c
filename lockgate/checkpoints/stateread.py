"""The state of a job's steps, read from its checkpoint through Spark's state reader.

    metadata    the stateful operators of the query, the names of their states, the time that drives them
    pages       of our operators: the index describes the states of a bucket, pages hold them
    rows        of Spark's own windows and joins: Spark's key and value columns

The result is the state as of a committed epoch. A running query is not disturbed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.dataflow.schema import quote
from lockgate.dataflow.steps import Join, Keyed
from lockgate.errors import CheckpointDamaged, Refused
from lockgate.operators.contract import Clock, Key
from lockgate.operators.evolution import adapt
from lockgate.operators.page import read_states
from lockgate.operators.pagestore import INDEX, Index, damaged
from lockgate.operators.views import show_state
from lockgate.planner.logical import Node, is_operator
from lockgate.planner.physical import has_state
from lockgate.planner.plan import Plan
from lockgate.spark.keyed import state_name, time_mode
from lockgate.spark.keys import Texts, keyed_frame, locate
from lockgate.spark.stateful import Described
from lockgate.untrusted import Unreadable, as_list, as_object, read_object, take

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PARTITIONS = "spark.sql.shuffle.partitions"
_NATIVE = {"join": ("symmetricHashJoin",), "window": ("stateStoreSave", "sessionWindowStateStoreSaveExec")}


# We give Spark None, and it notes NoTime.
_TIMES = {"None": "no time", "NoTime": "no time", "EventTime": "event time", "ProcessingTime": "processing time"}


@dataclass(frozen=True)
class StatefulOperator:
    """An operator with state, according to the checkpoint."""

    id: int
    name: str
    time: str  # what drives it; empty for Spark's own operators
    states: tuple[str, ...]


@dataclass(frozen=True)
class Moment:
    """A committed epoch, and the times that it used."""

    epoch: int
    clock: Clock


def stateful_operators(spark: SparkSession, checkpoint: Checkpoint) -> list[StatefulOperator]:
    """The operators with state of a checkpoint's query."""
    found: dict[int, StatefulOperator] = {}
    for row in spark.read.format("state-metadata").load(checkpoint.root).collect():
        try:
            told = read_object(row["operatorProperties"] or "{}")
            states = tuple(take(as_object(one), "stateName", str) for one in as_list(told.get("stateVariables", [])))
        except Unreadable as error:
            raise checkpoint.damaged(f"state/{row['operatorId']}/_metadata", str(error)) from None
        found[row["operatorId"]] = StatefulOperator(
            id=row["operatorId"], name=row["operatorName"], time=str(told.get("timeMode", "")), states=states
        )
    return [found[number] for number in sorted(found)]


def kept_states(spark: SparkSession, checkpoint: Checkpoint, planned: Plan) -> dict[str, StatefulOperator]:
    """The state of our own steps in the checkpoint: the operators that hold it, by the names of the states."""
    has_any = any(is_operator(planned.logical, node) for node in planned.logical.nodes)
    if not has_any or not checkpoint.epochs("commits"):
        return {}
    return {name: one for one in stateful_operators(spark, checkpoint) for name in one.states}


def check_state(
    checkpoint: Checkpoint, planned: Plan, operators: Mapping[str, Described], found: Mapping[str, StatefulOperator]
) -> None:
    """Refuse, before anything runs, a plan that would misread the state in the checkpoint.

    The first epoch compares what each step keeps, when it reads the state.
    """
    if not checkpoint.epochs("offsets") or not any(has_state(node) for node in planned.logical.nodes):
        return
    kept, asked = kept_partitions(checkpoint), planned.physical.state_partitions
    if kept is not None and kept != asked:
        raise Refused(
            f"the state in the checkpoint has {kept} partitions, and .parallel({asked}) asks for {asked}: the job would"
            " not find its keys",
            where=f"job {planned.job.name!r}, declared at {planned.job.origin}; checkpoint {checkpoint.root}",
            fix=f"rescale it: lockgate checkpoints rescale FILE --partitions {asked}; or write .parallel({kept}),"
            " or omit .parallel, to continue with the partitions that it has",
        )
    for name, described in operators.items():
        operator, now = found.get(state_name(name)), _TIMES[time_mode(described.operator.time)]
        before = now if operator is None else _TIMES[operator.time]
        if before != now:
            raise Refused(
                f"the state in the checkpoint uses {before}, and would use {now} now, which Spark cannot change",
                where=planned.logical.node(name).where,
                fix="restore the step as it was (event time, timers and times to live decide this);"
                " or start from the beginning: lockgate run --new-life",
            )


def kept_partitions(checkpoint: Checkpoint) -> int | None:
    """How many partitions the state in a checkpoint has; None if there is no state, or if the number is unknown."""
    epochs = checkpoint.epochs("offsets")
    return state_partitions(checkpoint, epochs[-1]) if epochs else None


def state_partitions(checkpoint: Checkpoint, epoch: int) -> int | None:
    """How many partitions the state had in one epoch; None if the epoch does not say."""
    told = _settings(checkpoint, epoch).get("conf", {}).get(_PARTITIONS)
    return None if told is None else int(told)


def find_moment(checkpoint: Checkpoint, epoch: int | None) -> Moment:
    """The requested epoch, or the last committed one."""
    where = f"checkpoint {checkpoint.root}"
    if checkpoint.query() is None:
        raise Refused("there is no checkpoint", where=where, fix="run the job first, or name its place: --checkpoint")
    known = checkpoint.epochs("commits")
    if not known:
        raise Refused("no epoch is committed yet, so there is no state", where=where, fix="let the job run first")
    if epoch is not None and epoch not in known:
        raise Refused(
            f"the checkpoint has no epoch {epoch}", where=where, fix=f"it has the epochs {known[0]} to {known[-1]}"
        )
    number = known[-1] if epoch is None else epoch
    told = _settings(checkpoint, number)
    watermark = max(int(told.get("batchWatermarkMs", 0)), 0) * 1000
    wall = int(told.get("batchTimestampMs", 0)) * 1000
    return Moment(epoch=number, clock=Clock(before=watermark, now=watermark, wall=wall))


def _settings(checkpoint: Checkpoint, epoch: int) -> dict[str, Any]:
    """The time and the settings of an epoch, which Spark logs beside its offsets."""
    lines = (checkpoint.read(f"offsets/{epoch}") or b"").decode(errors="replace").splitlines()
    try:
        return read_object(lines[1]) if len(lines) > 1 else {}
    except Unreadable as error:
        raise checkpoint.damaged(f"offsets/{epoch}", str(error)) from None


def read_operator(
    spark: SparkSession,
    checkpoint: Checkpoint,
    node: Node,
    described: Described,
    *,
    moment: Moment,
    key: Texts | None = None,
) -> Iterator[tuple[Key, dict[str, Any]]]:
    """What one of our operators keeps for every key, or for one key."""
    name = state_name(node.name)
    found = [one for one in stateful_operators(spark, checkpoint) if name in one.states]
    if not found:
        raise Refused(
            f"the checkpoint holds no state of {node.kind} {node.name!r}",
            where=f"{node.where}; checkpoint {checkpoint.root}",
            fix="the step had another name when it ran, or has not run yet",
        )
    # If several outputs depend on a step, it may run several times, each time with the same state.
    rows = read_state_of(spark, checkpoint, found[0].id, name, moment)
    cells = rows.selectExpr("partition_id", "user_map_key.name AS name", "user_map_value.content AS content")
    found_indexes = cells.where(f"name = '{INDEX}'").collect()
    try:
        indexes = {row["partition_id"]: Index(row["content"]) for row in found_indexes}
    except CheckpointDamaged as error:
        raise _damaged_state(error, node.where, checkpoint) from None
    evolutions = {
        partition: adapt(index.declared, described.declared, where=node.where)
        for partition, index in indexes.items()
        if index.declared is not None
    }
    wanted = None
    pages = cells.where(f"name <> '{INDEX}'")
    if key is not None:
        number, wanted = locate(spark, key, described.keys, where=node.where)
        pages = cells.where(cells["name"].isin([index.cell_of(number) for index in indexes.values()]))
    for row in pages.toLocalIterator():
        try:
            held = list(read_states(row["content"], described.encoding))
        except Unreadable as error:
            raise _damaged_state(damaged(row["name"], error), node.where, checkpoint) from None
        for one, state in held:
            if wanted is None or repr(one) == repr(wanted):
                now = evolutions[row["partition_id"]](state) if described.states else state
                yield one, show_state(described.operator, one, now, moment.clock)


def _damaged_state(error: CheckpointDamaged, where: str, checkpoint: Checkpoint) -> CheckpointDamaged:
    return CheckpointDamaged(error.what, where=f"{where}; checkpoint {checkpoint.root}", fix=error.fix)


def read_native(
    spark: SparkSession,
    checkpoint: Checkpoint,
    node: Node,
    planned: Plan,
    *,
    moment: Moment,
    key: Texts | None = None,
) -> Iterator[tuple[Key, dict[str, Any]]]:
    """What one of Spark's own operators keeps for every key, or for one key: its rows, unchanged."""
    kind = "join" if isinstance(node.step, Join) else "window"
    keys = node.step.on if isinstance(node.step, Join) else getattr(node.step, "keys", ())
    found = [one for one in stateful_operators(spark, checkpoint) if one.name in _NATIVE[kind]]
    others = [other for other in planned.logical.nodes if _native_kind(other, planned) == kind]
    if not found or len(others) > 1:
        raise Refused(
            f"Spark does not say which state belongs to {node.kind} {node.name!r}",
            where=f"{node.where}; checkpoint {checkpoint.root}",
            fix='read it with spark.read.format("statestore").option("operatorId", N); the checkpoint has the'
            f" operators {', '.join(str(one.id) for one in found) or '(none)'}",
        )
    reader = _read(spark, checkpoint, found[0].id, moment)
    sides = ("left", "right") if kind == "join" else (None,)
    gathered: dict[Key, list[dict[str, Any]]] = {}
    for side in sides:
        rows = (reader if side is None else reader.option("joinSide", side)).load(checkpoint.root)
        if key:
            rows = _of_key(spark, rows, key, keys, where=node.where)
        for one, value in _as_pairs(rows, len(keys)):
            shown = value if side is None else {"side": side, **value}
            gathered.setdefault(one, []).append(shown)
    for one, values in gathered.items():
        yield one, {"rows": values}


def _native_kind(node: Node, planned: Plan) -> str | None:
    if isinstance(node.step, Join):
        return "join"
    return "window" if isinstance(node.step, Keyed) and not is_operator(planned.logical, node) else None


def _of_key(spark: SparkSession, rows: DataFrame, key: Texts, names: Sequence[str], *, where: str) -> DataFrame:
    """The rows of one key, which is given as text; Spark parses and compares it."""
    from pyspark.sql import functions as F

    # In its state Spark chooses its own names for the columns of a key.
    fields = rows.select("key.*").schema.fields[: len(names)]
    kinds = {name: field.dataType.simpleString() for name, field in zip(names, fields, strict=True)}
    wanted = keyed_frame(spark, [(key, "")], kinds, where=where).select(F.struct(*map(quote, names)).alias("wanted"))
    found = rows.crossJoin(F.broadcast(wanted))
    for name, field in zip(names, fields, strict=True):
        found = found.where(F.col("key")[field.name].eqNullSafe(F.col("wanted")[name]))
    return found.drop("wanted")


def _as_pairs(rows: DataFrame, length: int) -> Iterator[tuple[Key, dict[str, Any]]]:
    """The columns of the key, and the rest: other parts of Spark's key (a window), and its value."""
    from pyspark.sql import functions as F

    # Field by field: the rows of a join have more fields than their declared columns.
    told = [F.to_json(F.struct(f"{name}.*"), {"ignoreNullFields": "false"}) for name in ("key", "value")]
    for key, value in rows.select(*told).toLocalIterator():
        parts = list(json.loads(key).items())
        yield tuple(part for _, part in parts[:length]), {**dict(parts[length:]), **json.loads(value)}


def read_state_of(spark: SparkSession, checkpoint: Checkpoint, operator: int, name: str, moment: Moment) -> DataFrame:
    """The rows of one state of one of our operators, with the columns of Spark's reader."""
    rows: DataFrame = _read(spark, checkpoint, operator, moment).option("stateVarName", name).load(checkpoint.root)
    return rows


def _read(spark: SparkSession, checkpoint: Checkpoint, operator: int, moment: Moment) -> Any:
    reader = spark.read.format("statestore").option("operatorId", operator)
    return reader.option("batchId", moment.epoch)
