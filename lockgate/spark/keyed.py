"""Runs an operator over the keys of a stream, inside Spark's transformWithState.

Spark passes that operator's rows to Python one by one and its state key by key, and both take most of its time. Here
rows travel packed, as Arrow batches, and state in pages of many keys:

    pack       in the tasks before the exchange: the hash of its key sends each row to a bucket, and the rows of a
               bucket become one binary value; a bucket is one partition of state (packing.py)
    exchange   by bucket: a few large values instead of many rows
    run        one call for each bucket and epoch: the operator gets the rows grouped by key, in the order of their
               source positions, with the state of the pages (bucket.py, `operators.pages`)
    unpack     the results become columns again

Time: Spark gives the watermark of this epoch, the pages have that of the epoch before, and every bucket has a timer
just after it. So all buckets see every step of the watermark, with rows or without. Spark drops no row as late, because
a packed row has no time: the operator decides what is late.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from lockgate.connectors.rejects import Rejects
from lockgate.dataflow.endpoints import ORIGINAL, POSITION
from lockgate.dataflow.schema import quote
from lockgate.faultpoints import FaultPoint, arm, armed, reach
from lockgate.operators.contract import Operator, Side, Time
from lockgate.operators.encoding import PLAIN, Encoding
from lockgate.operators.evolution import Declared
from lockgate.serving.rpc import Address
from lockgate.spark.bucket import PLACES, WALL, BucketRun, Place
from lockgate.spark.keys import hash_of
from lockgate.spark.packing import pack_rows, unpacker, with_rejections
from lockgate.spark.rejectioncolumns import parted, with_texts

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import Column, DataFrame, Row

SIDE = "__side"
"""Column of an operator with several sides: the number of the side that a row belongs to."""

OWNER = "owner"
"""The state with the name of the step that the pages of a bucket belong to."""

# In the last mode Spark runs an epoch at every trigger, with rows or without, and gives both times.
_TIME_MODES = {
    Time.NONE: "None",
    Time.EVENT: "EventTime",
    Time.WALL: "ProcessingTime",
    Time.BOTH: "ProcessingTime",
}


def side_column(index: int) -> str:
    """The column that holds the rows of a side, as structs, if there are several sides."""
    return f"__side_{index}"


def state_name(step: str) -> str:
    """The name of a step's state in the checkpoint."""
    return f"{re.sub(r'[^A-Za-z0-9]+', '_', step)}_{sha256(step.encode()).hexdigest()[:8]}"


def time_mode(time: Time) -> str:
    """Spark's name for the time that moves an operator."""
    return _TIME_MODES[time]


def apply_operator(
    frame: DataFrame,
    operator: Operator,
    *,
    place: Place,
    where: str,
    keys: Sequence[str],
    reads: Mapping[str, str],
    partitions: int,
    declared: Declared,
    encoding: Encoding = PLAIN,
    checkpoint: str | None = None,
    sides: Sequence[int] = (0,),
    dropped: Accumulator[int] | None = None,
    initial: DataFrame | None = None,
    rejects: Rejects | None = None,
    crashes: Address | None = None,
) -> DataFrame:
    """The operator's rows: the columns of its side, or, for several sides, SIDE and a struct for each.

    A side that keeps rows has all columns of the frame, followed by its own.

    Args:
        place: the step, and the other steps whose state might be in its place.
        reads: SQL for each name in the operator's `reads`.
        declared: the contents of the state, kept beside it.
        encoding: the format of the state.
        checkpoint: the origin of the state, for errors.
        sides: those that are used, in order; rows of others are dropped.
        dropped: counts late ones among the dropped rows.
        initial: the states of keys for the first epoch, made by `keys.keyed_frame`; for a function with state.
        rejects: takes the rows on which the operator fails; None if they stop the job.
        crashes: where to report what a worker dies with.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    plan = _plan(frame, operator, keys, reads, keeps_original=rejects is not None)
    packed = pack_rows(plan.frame, partitions, is_told=True)
    shapes = [_shape(frame, operator.sides[index], keys) for index in sides]
    run = BucketRun(
        operator=operator,
        place=place,
        where=where,
        schema=to_arrow_schema(plan.frame.schema, timezone="UTC"),
        keys=plan.keys,
        reads=plan.reads,
        kept=tuple(plan.frame.columns.index(column) for column in frame.columns) if plan.keeps_rows else (),
        sides={index: to_arrow_schema(shape, timezone="UTC") for index, shape in zip(sides, shapes, strict=True)},
        dropped=dropped,
        declared=declared,
        encoding=encoding,
        checkpoint=checkpoint,
        initial=None if initial is None else to_arrow_schema(initial.schema, timezone="UTC"),
        puts_aside=rejects is not None,
        crashes=crashes,
    )
    begun = None if initial is None else pack_rows(initial, partitions, is_told=False)
    ran = packed.groupBy("bucket").transformWithState(
        statefulProcessor=_processor(run),
        outputStructType="side INT, rows BINARY",
        outputMode="Append",
        timeMode=time_mode(operator.time),
        initialState=None if begun is None else begun.groupBy("bucket"),
    )
    return _unpacked(ran, run, dict(zip(sides, shapes, strict=True)), rejects)


def _unpacked(packed: DataFrame, run: BucketRun, shapes: Mapping[int, Any], rejects: Rejects | None) -> DataFrame:
    """The results of the buckets as columns, without the rows that the operator could not use."""
    from pyspark.sql.types import IntegerType, StructField, StructType

    is_single = len(shapes) == 1
    structs = [StructField(side_column(index), shape) for index, shape in shapes.items()]
    whole = next(iter(shapes.values())) if is_single else StructType([StructField(SIDE, IntegerType()), *structs])
    unpack = unpacker(run.sides, whole, is_single=is_single)
    if rejects is None:
        return packed.mapInArrow(unpack, whole)
    return parted(packed.mapInArrow(with_rejections(unpack, whole), with_texts(whole)), whole, rejects)


# Before anything runs: which columns travel


@dataclass(frozen=True)
class _Plan:
    frame: DataFrame
    keys: tuple[int, ...]  # the places of the key's columns in the packed rows
    reads: tuple[int, ...]
    keeps_rows: bool


def _plan(
    frame: DataFrame, operator: Operator, keys: Sequence[str], reads: Mapping[str, str], *, keeps_original: bool
) -> _Plan:
    """The frame with the columns that travel: hash, place, then each column once."""
    from pyspark.sql import functions as F

    keeps_rows = any(side.keeps_row for side in operator.sides)
    names = {column.lower(): column for column in frame.columns}
    position = F.col(POSITION)
    chosen: list[Column] = [
        hash_of(keys),
        *(position[place.removeprefix("__")].alias(place) for place in PLACES),
    ]
    places: dict[str, int] = {}

    def add(column: str, made: Column) -> int:
        if column not in places:
            places[column] = len(chosen)
            chosen.append(made)
        return places[column]

    def add_sql(sql: str, alias: str) -> int:
        plain = names.get(sql.lower())  # a column under its own name travels once, for all that read it
        return add(alias, F.expr(sql).alias(alias)) if plain is None else add(plain, F.col(quote(plain)))

    if keeps_rows:
        for column in frame.columns:
            add(column, F.col(quote(column)))
    if keeps_original and ORIGINAL in frame.columns:
        add(ORIGINAL, F.col(ORIGINAL))
    if operator.time is Time.NONE:
        add(WALL, F.unix_micros(F.current_timestamp()).alias(WALL))  # Spark gives such an operator no time
    key_places = tuple(add_sql(key, f"__key_{key}") for key in keys)
    read_places = tuple(add_sql(reads[read], f"__read_{read}") for read in operator.reads)
    return _Plan(frame=frame.select(*chosen), keys=key_places, reads=read_places, keeps_rows=keeps_rows)


def _shape(frame: DataFrame, side: Side, keys: Sequence[str]) -> Any:
    """The columns of a side, as Spark types."""
    from pyspark.sql.types import StructType

    own = StructType.fromDDL(side.columns) if side.columns else StructType([])
    assert isinstance(own, StructType)
    shown = frame.columns if side.keeps_row else keys if side.adds_key else ()
    return StructType([*frame.select(*map(quote, shown)).schema.fields, *own.fields])


def _processor(run: BucketRun) -> Any:
    """The processor that Spark's transformWithState calls."""
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    faults = armed()
    make_row = Row("side", "rows")

    class Bucket(StatefulProcessor):
        def init(self, handle: Any) -> None:
            arm(faults)
            self.handle = handle
            self.is_told: set[Any] = set()  # the buckets that have seen this epoch's time
            self.cells = handle.getMapState(state_name(run.place.step), "name STRING", "content BINARY")
            self.owner = handle.getValueState(OWNER, "step STRING")

        def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:  # noqa: N802, N803
            wall = timerValues.getCurrentProcessingTimeInMs()
            run.begin(initialState["rows"], run.open(_Cells(self.cells)), max(wall, 0) * 1000)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
            self.is_told.add(key)
            yield from self.advance([row["rows"] for row in rows if row["rows"] is not None], timerValues)

        def handleExpiredTimer(  # noqa: N802
            self,
            key: Any,
            timerValues: Any,  # noqa: N803
            expiredTimerInfo: Any,  # noqa: N803
        ) -> Iterator[Row]:
            if key not in self.is_told:
                self.is_told.add(key)
                yield from self.advance([], timerValues)

        def advance(self, values: list[bytes], times: Any) -> Iterator[Row]:
            if values:
                reach(FaultPoint.RECEIVE)
            self.own()
            if not values and run.operator.time is Time.NONE:
                return
            pages = run.open(_Cells(self.cells))
            watermark, wall = times.getCurrentWatermarkInMs(), times.getCurrentProcessingTimeInMs()
            for side, packed in run.take(values, pages, max(watermark, 0) * 1000, max(wall, 0) * 1000):
                yield make_row(side, packed)
            if run.operator.time is Time.EVENT:
                self.handle.registerTimer(max(watermark, 0) + 1)
            elif run.operator.time is not Time.NONE:
                self.handle.registerTimer(wall + 1)
            reach(FaultPoint.STATE_UPDATE)

        def own(self) -> None:
            owner = self.owner.get()
            if owner is not None and owner[0] == run.place.step:
                return
            if owner is not None:
                run.check_place(owner[0])
                self.cells.clear()  # left by an earlier step of this name, before the one that is gone now
            self.owner.update((run.place.step,))

        def close(self) -> None:
            pass

    return Bucket()


class _Cells:
    """Spark's map state as named bytes."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def get(self, name: str) -> bytes | None:
        found = self._state.getValue((name,))
        return None if found is None else bytes(found[0])

    def put(self, name: str, value: bytes) -> None:
        self._state.updateValue((name,), (value,))

    def remove(self, name: str) -> None:
        self._state.removeKey((name,))
