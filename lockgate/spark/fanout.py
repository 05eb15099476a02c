"""Fan-outs in Python workers, and what they count on its way to the driver.

A worker keeps the threads of a step from one task to the next, so that calls which do not come back are bounded for the
process and not for the task. Rows travel in Arrow batches; the event's own columns come back untouched.

What a task has counted is told when it is done, under the number of its partition: one that is repeated, in whatever
try of an epoch, replaces what it told before. So an epoch counts once.

How old events are when their results are out is known in two places: a task has the stamps of their arrival, and the
driver the moment at which their epoch is written. So a task tells how long they had waited when it began, and the
driver adds the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lockgate.dataflow.fanout import MARKS
from lockgate.dataflow.schema import quote
from lockgate.operators.fanout import Ending, FanOutMachine, Joined, Score, Tally, told_unfit
from lockgate.serving.door import Address
from lockgate.signing import Signer, driver_signer
from lockgate.spark.crashes import InHand, Watch, watched
from lockgate.spark.functions import Unfit, fields_of, original_of, put_aside, read_rows, seen_as
from lockgate.spark.lists import null_columns, with_empty, with_nulls

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, Row, SparkSession

Told = dict[tuple[str, int], Tally]
"""What tasks have counted in an epoch, by the step and the number of the partition."""

STAMP = "_timestamp"
"""The hidden column of when an event arrived, of sources that know it."""


@dataclass(frozen=True)
class FanOutStep:
    """What a worker is told of a fan-out."""

    name: str
    where: str
    functions: Mapping[str, Callable[[Any], Any]]
    deadline_seconds: float
    in_flight: int
    goes_on_partial: bool  # does an event go on of which scores are missing? Else it is a letter
    identity: str  # of the query, so that a worker knows the threads of this one from those of another
    tallies: Accumulator[Told]
    rejects: Accumulator[list[str]] | None = None
    crashes: Address | None = None
    has_stamps: bool = False  # is STAMP what the source has said, and not a column of the author's?
    signer: Signer = field(default_factory=driver_signer)


class Tallies:
    """What the fan-outs of a query have counted since the run began."""

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
        """What workers add their tallies to."""
        # One value, which is replaced as a whole: somebody may look while an epoch ends.
        self._kept = _Kept({}, -1, {})

    def begin(self) -> None:
        """A try of an epoch begins: what one that failed has told is nobody's."""
        self.told.value = {}

    def keep(self, epoch: int, now: float) -> None:
        """The epoch is written at this moment, and counts; one that is written again counts once."""
        before = self._kept.before if epoch == self._kept.epoch else self._kept.added()
        self._kept = _Kept(before, epoch, {place: tally.publish(now) for place, tally in self.told.value.items()})

    def report(self) -> dict[str, dict[str, Any]]:
        """What is counted so far, by step, under the names of `lockgate run --json`."""
        return {name: tally.report() for name, tally in self._kept.added().items()}


@dataclass(frozen=True)
class _Kept:
    """What is counted: the newest epoch, and by step all before it."""

    before: Mapping[str, Tally]
    epoch: int
    newest: Told

    def added(self) -> dict[str, Tally]:
        """All of it by step, in tallies of their own."""
        added: dict[str, Tally] = {}
        for name, tally in [*self.before.items(), *((name, one) for (name, _), one in self.newest.items())]:
            added.setdefault(name, Tally()).add(tally)
        return added


def apply_fan_out(frame: DataFrame, step: FanOutStep, ddl: str) -> DataFrame:
    """The frame with the scores of every row beside it."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    made = fields_of(f"{ddl}, {MARKS}")
    taken = {field.name.lower() for field in made}
    # A hidden column has to make room for a score of its name.
    frame = frame.select(*(quote(name) for name in frame.columns if name.lower() not in taken))
    schema = StructType([*frame.schema.fields, *made])
    arrow = to_arrow_schema(schema, timezone="UTC")
    names = tuple(frame.columns)
    lists = null_columns(frame)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task, tally = TaskContext.get(), Tally(began=time.time())
        for batch in batches:
            with watched(step.crashes) as watch:
                joined = join_batch(with_nulls(batch, lists), step, names, arrow, tally, watch)
            yield joined
        if task is not None and tally.events:
            step.tallies.add({(step.name, task.partitionId()): tally})

    return with_empty(frame, lists).mapInArrow(run, schema)


def join_batch(
    batch: pa.RecordBatch,
    step: FanOutStep,
    names: tuple[str, ...],
    schema: pa.Schema,
    tally: Tally,
    watch: Watch | None = None,
) -> pa.RecordBatch:
    """The rows of a batch with their scores, those left out that become letters."""
    import pyarrow as pa

    batch, rows = read_rows(batch, step, names)
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
        put_aside(step, *seen_as(rows[index]), original_of(batch, index, names), unfit)
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
    """The scores of all rows, and which rows the functions must not have because workers died with them in hand."""
    machine = _machine(step)
    if watch is None:
        return list(machine.join(rows)), set()
    # One after the other: what a worker dies with is the last that it told.
    joined: list[Joined] = []
    killers: set[int] = set()
    for index, row in enumerate(rows):
        reason = watch.take(InHand(step.name, *seen_as(row)))
        if reason is None:
            joined += machine.join([row])
        else:
            killers.add(index)
            joined.append(Joined({name: Score(Ending.FAILED, reason=reason) for name in step.functions}, 0.0))
    return joined, killers


def _stamps(batch: pa.RecordBatch, step: FanOutStep, names: tuple[str, ...]) -> Iterator[float]:
    """When the events of a batch arrived, in seconds since 1970, of those that say it."""
    import pyarrow as pa

    if not step.has_stamps or STAMP not in names:
        return
    column = batch.column(names.index(STAMP))
    if not pa.types.is_timestamp(column.type):
        return  # a transform has made another one of it
    for stamp in column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64()).to_pylist():
        if stamp is not None and stamp > 0:  # Kafka has -1 for a record without a time
            yield stamp / 1e6


_machines: dict[tuple[str, str], FanOutMachine] = {}  # of this process, by query and step


def _machine(step: FanOutStep) -> FanOutMachine:
    key = step.identity, step.name
    if key not in _machines:
        # Queries may share this process. What was used just now, or has calls that have not come back, is kept with its
        # bound; the others have nothing left.
        for other in [one for one, machine in _machines.items() if not machine.has_threads]:
            del _machines[other]
        _machines[key] = FanOutMachine(step.functions, deadline_seconds=step.deadline_seconds, in_flight=step.in_flight)
    return _machines[key]


def _fitted(joined: list[Joined], name: str, kind: pa.DataType) -> list[Joined]:
    """The same with every value of a function failed that is not of its type."""
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
        reason = told_unfit(value, kind, error)
        return replace(joined, scores={**joined.scores, name: Score(Ending.FAILED, reason=reason)})
