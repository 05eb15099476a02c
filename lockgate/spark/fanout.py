"""Fan-outs in Python workers, and the way of their counts to the driver.

A worker keeps the threads of a step from one task to the next. So calls that do not return are bounded for the process
and not for the task. Rows travel in Arrow batches; the event's own columns come back unchanged.

A task reports its counts when it is done, under the number of its partition. A repeated task, in any try of an
epoch, replaces the earlier report. So an epoch counts once.

The age of events when their results become visible is known in two places: a task has the times of their arrival, and
the driver the time at which their epoch is written. So a task reports how long they had waited when it started, and the
driver adds the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lockgate.connectors.rejects import Rejection, Rejects
from lockgate.dataflow.fanout import MARKS
from lockgate.dataflow.schema import quote
from lockgate.operators.fanout import Ending, FanOutMachine, Joined, Score, Tally, describe_misfit
from lockgate.serving.rpc import Address
from lockgate.signing import Signer, driver_signer
from lockgate.spark.crashes import InFlight, Watch, watched
from lockgate.spark.functions import Unfit, fields_of, original_of, read_rows, rejected, seen_as
from lockgate.spark.lists import null_columns, with_empty, with_nulls
from lockgate.spark.rejectioncolumns import parted, with_rejections, with_texts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, Row, SparkSession

Told = dict[tuple[str, int], Tally]
"""The counts of an epoch's tasks, by the step and the number of the partition."""

STAMP = "_timestamp"
"""The hidden column with the time of an event's arrival, of sources that know it."""


@dataclass(frozen=True)
class FanOutStep:
    """The part of a fan-out that a worker receives."""

    name: str
    where: str
    functions: Mapping[str, Callable[[Any], Any]]
    deadline_seconds: float
    in_flight: int
    goes_on_partial: bool  # does an event continue if scores are missing? Else it becomes a dead letter
    identity: str  # of the query, so that a worker knows its threads from those of another query
    tallies: Accumulator[Told]
    puts_aside: bool = False  # are events put aside if scores are missing? Else they stop the job
    crashes: Address | None = None
    has_stamps: bool = False  # is STAMP the source's column, and not one of the user?
    signer: Signer = field(default_factory=driver_signer)


class Tallies:
    """The counts of a query's fan-outs since the start of the run."""

    def __init__(self, spark: SparkSession) -> None:
        from pyspark.accumulators import AccumulatorParam

        class Newest(AccumulatorParam[Told]):
            def zero(self, value: Told) -> Told:
                return {}

            def addInPlace(self, value1: Told, value2: Told) -> Told:  # noqa: N802 - Spark's name
                value1.update(value2)
                return value1

        self.identity = uuid4().hex
        self.told: Accumulator[Told] = spark.sparkContext.accumulator({}, Newest())
        """The accumulator to which workers add their counts."""
        # One value, which is replaced as a whole: another thread may read it while an epoch ends.
        self._kept = _Kept({}, -1, {})

    def begin(self) -> None:
        """Start a try of an epoch: the reports of a failed one do not count."""
        self.told.value = {}

    def keep(self, epoch: int, now: float) -> None:
        """Count the epoch, which is written at this moment; one that is written again counts once."""
        before = self._kept.before if epoch == self._kept.epoch else self._kept.added()
        self._kept = _Kept(before, epoch, {place: tally.publish(now) for place, tally in self.told.value.items()})

    def report(self) -> dict[str, dict[str, Any]]:
        """The counts so far, by step, under the names of `lockgate run --json`."""
        return {name: tally.report() for name, tally in self._kept.added().items()}


@dataclass(frozen=True)
class _Kept:
    """The counts: the newest epoch, and all before it by step."""

    before: Mapping[str, Tally]
    epoch: int
    newest: Told

    def added(self) -> dict[str, Tally]:
        """The sum by step, in new tallies."""
        added: dict[str, Tally] = {}
        for name, tally in [*self.before.items(), *((name, one) for (name, _), one in self.newest.items())]:
            added.setdefault(name, Tally()).add(tally)
        return added


def apply_fan_out(frame: DataFrame, step: FanOutStep, ddl: str, rejects: Rejects | None = None) -> DataFrame:
    """The frame with the scores of every row as further columns."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    made = fields_of(f"{ddl}, {MARKS}")
    taken = {field.name.lower() for field in made}
    # A hidden column must give way to a score of its name.
    frame = frame.select(*(quote(name) for name in frame.columns if name.lower() not in taken))
    schema = StructType([*frame.schema.fields, *made])
    arrow = to_arrow_schema(schema, timezone="UTC")
    leaving = with_texts(schema)
    arrow_leaving = to_arrow_schema(leaving, timezone="UTC")
    names = tuple(frame.columns)
    lists = null_columns(frame)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task, tally = TaskContext.get(), Tally(began=time.time())
        for batch in batches:
            aside: list[Rejection] = []
            with watched(step.crashes) as watch:
                joined = join_batch(with_nulls(batch, lists), step, names, arrow, tally, aside, watch)
            if step.puts_aside:
                yield from with_rejections(joined, aside, arrow_leaving)
            else:
                yield joined
        if task is not None and tally.events:
            step.tallies.add({(step.name, task.partitionId()): tally})

    if rejects is None:
        return with_empty(frame, lists).mapInArrow(run, schema)
    return parted(with_empty(frame, lists).mapInArrow(run, leaving), schema, rejects)


def join_batch(
    batch: pa.RecordBatch,
    step: FanOutStep,
    names: tuple[str, ...],
    schema: pa.Schema,
    tally: Tally,
    aside: list[Rejection],
    watch: Watch | None = None,
) -> pa.RecordBatch:
    """The rows of a batch with their scores; those that become dead letters are added to `aside`."""
    import pyarrow as pa

    batch, rows = read_rows(batch, step, names, aside)
    joined, killers = _join(rows, step, watch)
    for arrived in _stamps(batch, step, names):
        tally.arrive(arrived)
    for place, name in enumerate(step.functions, start=len(names)):
        joined = _fitted(joined, name, schema.field(place).type)
    kept = []
    for index, one in enumerate(joined):
        tally.count(one)
        if step.goes_on_partial or not one.missing:
            kept.append(index)
            continue
        reason = "; ".join(f"{name} is missing: {why}" for name, why in one.missing.items())
        unfit = Unfit(reason, is_final=index in killers)
        aside.append(rejected(step, *seen_as(rows[index]), original_of(batch, index, names), unfit))
    left = [joined[index] for index in kept]
    beside = batch.take(pa.array(kept, type=pa.int64()))
    values: list[Sequence[Any]] = [
        *([one.scores[name].value for one in left] for name in step.functions),
        [bool(one.missing) for one in left],
        [list(one.missing) for one in left],
        [list(one.missing.values()) for one in left],
    ]
    columns = [
        *(beside.column(place).cast(schema.field(place).type) for place in range(len(names))),
        *(pa.array(value, type=schema.field(place).type) for place, value in enumerate(values, start=len(names))),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _join(rows: Sequence[Row], step: FanOutStep, watch: Watch | None) -> tuple[list[Joined], set[int]]:
    """The scores of all rows, and which rows the functions must not get because workers died with them in hand."""
    machine = _machine(step)
    if watch is None:
        return list(machine.join(rows)), set()
    # One after the other: what a worker dies with is the last one that it reported.
    joined: list[Joined] = []
    killers: set[int] = set()
    for index, row in enumerate(rows):
        reason = watch.take(InFlight(step.name, *seen_as(row)))
        if reason is None:
            joined += machine.join([row])
        else:
            killers.add(index)
            joined.append(Joined({name: Score(Ending.FAILED, reason=reason) for name in step.functions}, 0.0))
    return joined, killers


def _stamps(batch: pa.RecordBatch, step: FanOutStep, names: tuple[str, ...]) -> Iterator[float]:
    """The arrival times of a batch's events, in seconds since 1970, as far as they are known."""
    import pyarrow as pa

    if not step.has_stamps or STAMP not in names:
        return
    column = batch.column(names.index(STAMP))
    if not pa.types.is_timestamp(column.type):
        return  # a transform has replaced it by another column
    for stamp in column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64()).to_pylist():
        if stamp is not None and stamp > 0:  # Kafka has -1 for a record without a time
            yield stamp / 1e6


_machines: dict[tuple[str, str], FanOutMachine] = {}  # of this process, by query and step


def _machine(step: FanOutStep) -> FanOutMachine:
    key = step.identity, step.name
    if key not in _machines:
        # Queries may share this process. A machine that was just used, or has calls that have not returned, is kept
        # with its bound; the others have nothing left to bound.
        for other in [one for one, machine in _machines.items() if not machine.has_threads]:
            del _machines[other]
        _machines[key] = FanOutMachine(step.functions, deadline_seconds=step.deadline_seconds, in_flight=step.in_flight)
    return _machines[key]


def _fitted(joined: list[Joined], name: str, kind: pa.DataType) -> list[Joined]:
    """The same results; every value that is not of its column's type becomes a failure of its function."""
    import pyarrow as pa

    try:
        pa.array([one.scores[name].value for one in joined], type=kind)
        return joined
    except Exception:  # noqa: BLE001 - once more, one by one, to find out which it is
        return [_fitted_one(one, name, kind) for one in joined]


def _fitted_one(joined: Joined, name: str, kind: pa.DataType) -> Joined:
    import pyarrow as pa

    value = joined.scores[name].value
    try:
        pa.array([value], type=kind)
        return joined
    except Exception as error:  # noqa: BLE001 - an object may raise whatever it likes when it is read
        reason = describe_misfit(value, kind, error)
        return replace(joined, scores={**joined.scores, name: Score(Ending.FAILED, reason=reason)})
