"""Runs an operator over the keys of a stream, inside Spark's transformWithState.

Spark hands that operator's rows to Python one by one and its state key by key, and both are what it spends its time
on. Here rows travel packed, as Arrow batches, and state in pages of many keys:

    pack       in the tasks before the exchange: rows are dealt out to buckets by the hash of their key, and the rows
               of a bucket become one binary value; a bucket is one partition of state
    exchange   by bucket: a few large values instead of many rows
    run        one call a bucket and epoch: rows in the order of their source positions, grouped by key, taken by the
               operator with the state of the pages (`operators.pages`)
    unpack     what came out becomes columns again

Time: Spark tells the watermark that this epoch acts on, the pages know the one of the epoch before, and every bucket
has a timer just behind it, so that all of them see every step of the watermark, with rows or without. No row is taken
away by Spark for being late, because a packed row has no time: what is late is the operator's to say.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from lockgate.dataflow.endpoints import ORIGINAL, POSITION
from lockgate.dataflow.schema import quote
from lockgate.errors import InvariantBroken, LockgateError, Refused
from lockgate.failures import Carried, RowFailure
from lockgate.faultpoints import FaultPoint, arm, armed, reach
from lockgate.operators.contract import Clock, Key, Operator, Outcome, Side, StepFailed, Time, Values, Watch
from lockgate.operators.epoch import run_epoch
from lockgate.operators.evolution import Declared, adapt
from lockgate.operators.page import Groups, bucket_numbers
from lockgate.operators.pages import Pages
from lockgate.operators.process import ProcessOperator
from lockgate.operators.statejson import read_state
from lockgate.operators.states import states_of
from lockgate.serving.door import Address
from lockgate.signing import Signer, driver_signer
from lockgate.sources.rejects import Rejection, as_base64
from lockgate.spark.crashes import InHand, watched
from lockgate.spark.functions import RowError
from lockgate.spark.keys import HASH, OutOfReach, as_keys, as_list, hash_of
from lockgate.spark.lists import null_columns, with_empty, with_nulls

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.accumulators import Accumulator
    from pyspark.sql import Column, DataFrame, Row

log = logging.getLogger(__name__)

SIDE = "__side"
"""Column of what an operator with several sides gives: the number of the side that a row belongs to."""

_BATCH_ROWS = 10_000
OWNER = "owner"
"""The state that says whose pages a bucket holds."""

_WALL = "__wall"
_PLACE = ("__source", "__part", "__at", "__child")
# In the last form Spark runs an epoch at every trigger, with rows or without, and tells both times.
_TIME_MODES = {
    Time.NONE: "None",
    Time.EVENT: "EventTime",
    Time.WALL: "ProcessingTime",
    Time.BOTH: "ProcessingTime",
}


def side_column(index: int) -> str:
    """The column that holds the rows of a side, as structs, where there are several sides."""
    return f"__side_{index}"


def state_name(step: str) -> str:
    """What the state of a step is called in the checkpoint."""
    return f"{re.sub(r'[^A-Za-z0-9]+', '_', step)}_{sha256(step.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Place:
    """A step, and what is known of those that may have kept their state where its own is now.

    Spark numbers the operators of a query one by one, and hands each the state of its number. So a step that was put
    before another, or taken away from before it, would have them find each other's state, or none.
    """

    step: str
    steps: frozenset[str]  # with state in this job
    is_known: bool  # has the checkpoint state of this step?

    def check(self, owner: str, where: str) -> None:
        """Refuse to go on in the place of another step, unless both say that this is meant."""
        if owner == self.step or not (owner in self.steps or self.is_known):
            return  # under a new name, in the place of one that is gone, a step begins with an empty state
        raise Refused(
            f"the state in the checkpoint, where that of step {self.step!r} would be, is that of step {owner!r}",
            where=where,
            fix="bring the steps with state back into their old order, and those back that were taken away;"
            " or begin again with everything: lockgate run --new-life",
        )


def time_mode(time: Time) -> str:
    """What Spark calls the time that moves an operator."""
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
    sides: Sequence[int] = (0,),
    dropped: Accumulator[int] | None = None,
    initial: DataFrame | None = None,
    rejects: Accumulator[list[str]] | None = None,
    crashes: Address | None = None,
) -> DataFrame:
    """What the operator gives: the columns of its side; or, where several are asked for, SIDE and a struct for each.

    A side that keeps rows has all columns of the frame and its own beside them.

    Args:
        place: whose state it is, and who else might have been where it is now.
        reads: SQL for each name in the operator's `reads`.
        declared: what the state is made of, kept beside it.
        sides: those that somebody wants, in order; rows of others are dropped.
        dropped: counts them.
        initial: what keys begin with in the first epoch, as `keys.keyed_frame` makes it; for a function with state.
        rejects: takes the rows that it fails on; None where they stop the job.
        crashes: who wants to know what a worker dies with.
    """
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import IntegerType, StructField, StructType

    plan = _plan(frame, operator, keys, reads, keeps_original=rejects is not None)
    packed = _pack(plan.frame, partitions, is_told=True)
    shapes = [_shape(frame, operator.sides[index], keys) for index in sides]
    run = _Run(
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
        initial=None if initial is None else to_arrow_schema(initial.schema, timezone="UTC"),
        rejects=rejects,
        crashes=crashes,
    )
    begun = None if initial is None else _pack(initial, partitions, is_told=False)
    ran = packed.groupBy("bucket").transformWithState(
        statefulProcessor=_processor(run),
        outputStructType="side INT, rows BINARY",
        outputMode="Append",
        timeMode=time_mode(operator.time),
        initialState=None if begun is None else begun.groupBy("bucket"),
    )
    if len(shapes) == 1:
        return ran.mapInArrow(_unpacker(run.sides, shapes[0], is_single=True), shapes[0])
    structs = [StructField(side_column(index), shape) for index, shape in zip(sides, shapes, strict=True)]
    whole = StructType([StructField(SIDE, IntegerType()), *structs])
    return ran.mapInArrow(_unpacker(run.sides, whole, is_single=False), whole)


# Before anything runs: which columns travel


@dataclass(frozen=True)
class _Plan:
    frame: DataFrame
    keys: tuple[int, ...]  # where the key's columns are in the packed rows
    reads: tuple[int, ...]
    keeps_rows: bool


def _plan(
    frame: DataFrame, operator: Operator, keys: Sequence[str], reads: Mapping[str, str], *, keeps_original: bool
) -> _Plan:
    """The frame with what has to travel: hash, place, then each column once."""
    from pyspark.sql import functions as F

    keeps_rows = any(side.keeps_row for side in operator.sides)
    names = {column.lower(): column for column in frame.columns}
    position = F.col(POSITION)
    chosen: list[Column] = [
        hash_of(keys),
        *(position[place.removeprefix("__")].alias(place) for place in _PLACE),
    ]
    places: dict[str, int] = {}

    def add(column: str, made: Column) -> int:
        if column not in places:
            places[column] = len(chosen)
            chosen.append(made)
        return places[column]

    def add_sql(sql: str, alias: str) -> int:
        plain = names.get(sql.lower())  # a column by its own name travels once, whoever wants it
        return add(alias, F.expr(sql).alias(alias)) if plain is None else add(plain, F.col(quote(plain)))

    if keeps_rows:
        for column in frame.columns:
            add(column, F.col(quote(column)))
    if keeps_original and ORIGINAL in frame.columns:
        add(ORIGINAL, F.col(ORIGINAL))
    if operator.time is Time.NONE:
        add(_WALL, F.unix_micros(F.current_timestamp()).alias(_WALL))  # Spark tells no time to such an operator
    key_places = tuple(add_sql(key, f"__key_{key}") for key in keys)
    read_places = tuple(add_sql(reads[read], f"__read_{read}") for read in operator.reads)
    return _Plan(frame=frame.select(*chosen), keys=key_places, reads=read_places, keeps_rows=keeps_rows)


def _shape(frame: DataFrame, side: Side, keys: Sequence[str]) -> Any:
    """The columns of a side, as Spark has them."""
    from pyspark.sql.types import StructType

    own = StructType.fromDDL(side.columns) if side.columns else StructType([])
    assert isinstance(own, StructType)
    shown = frame.columns if side.keeps_row else keys if side.adds_key else ()
    return StructType([*frame.select(*map(quote, shown)).schema.fields, *own.fields])


# Before the exchange


def _pack(frame: DataFrame, partitions: int, *, is_told: bool) -> DataFrame:
    """The rows as one binary value for each bucket and batch."""
    buckets, lists = buckets_of(partitions), null_columns(frame)

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np
        import pyarrow as pa

        def as_batch(numbers: Sequence[int], values: Sequence[Any]) -> pa.RecordBatch:
            columns = [pa.array([buckets[number] for number in numbers], pa.int32()), pa.array(values, pa.binary())]
            return pa.RecordBatch.from_arrays(columns, names=["bucket", "rows"])

        for given in batches:
            if not given.num_rows:
                continue
            batch = with_nulls(given, lists)
            numbers = bucket_numbers(batch.column(0).to_numpy(), partitions)
            order = np.argsort(numbers, kind="stable")
            dealt, ends = batch.take(pa.array(order)), np.searchsorted(numbers[order], np.arange(partitions + 1))
            held = [number for number in range(partitions) if ends[number] < ends[number + 1]]
            parts = [dealt.slice(ends[number], ends[number + 1] - ends[number]) for number in held]
            yield as_batch(held, [part.serialize().to_pybytes() for part in parts])
        if is_told:
            # Every bucket is called, those without rows too: it learns the time, without which its first row could not
            # be called late, and says whose state it holds.
            yield as_batch(range(partitions), [None] * partitions)

    return with_empty(frame, lists).mapInArrow(pack, "bucket INT, rows BINARY")


def buckets_of(partitions: int) -> list[int]:
    """A number for every partition of state, which Spark's exchange by that number leads to that partition."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < partitions:
        found.setdefault(_spark_hash(number) % partitions, number)
        number += 1
    return [found[partition] for partition in range(partitions)]


def _spark_hash(number: int) -> int:
    """Spark's hash of an INT, which decides in which partition a row is: Murmur3 with 32 bits and seed 42."""
    bits = 0xFFFFFFFF
    mixed = (number * 0xCC9E2D51) & bits
    mixed = ((mixed << 15) | (mixed >> 17)) & bits
    mixed = 42 ^ ((mixed * 0x1B873593) & bits)
    mixed = ((mixed << 13) | (mixed >> 19)) & bits
    mixed = ((mixed * 5 + 0xE6546B64) & bits) ^ 4
    mixed = ((mixed ^ (mixed >> 16)) * 0x85EBCA6B) & bits
    mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) & bits
    mixed ^= mixed >> 16
    return mixed - (1 << 32) if mixed >> 31 else mixed


# Behind the exchange


@dataclass(frozen=True)
class _Run:
    """What the worker is told."""

    operator: Operator
    place: Place
    where: str
    schema: Any  # of the packed rows
    keys: tuple[int, ...]
    reads: tuple[int, ...]
    kept: tuple[int, ...]  # where the columns of a row that is kept are in the packed rows
    sides: Mapping[int, Any]  # the columns of those that somebody wants
    dropped: Accumulator[int] | None
    declared: Declared
    initial: Any  # the columns of packed initial states
    rejects: Accumulator[list[str]] | None
    crashes: Address | None = None
    signer: Signer = field(default_factory=driver_signer)

    def begin(self, value: bytes, pages: Pages, wall: int) -> None:
        """Let keys begin with the states that are packed here; before any row, in the first epoch."""
        import pyarrow as pa

        operator = self.operator
        if not isinstance(operator, ProcessOperator):
            raise InvariantBroken("an initial state of no function", where=self.where, fix="report this")
        pages.declared = self.declared
        states, clock = states_of(operator.function), Clock(before=0, now=0, wall=wall)
        given = pa.ipc.read_record_batch(pa.py_buffer(value), self.initial)
        keys: list[Key] = _zip([as_keys(column) for column in given.columns[1:-1]], given.num_rows)
        texts = given.column(len(given.columns) - 1).to_pylist()

        def begin(key: Key, state: Any, rows: Sequence[Values], _: Clock) -> Outcome:
            text = rows[0][0]
            try:
                if state is not None or len(rows) > 1:
                    raise StepFailed(f"two initial states are given for key {key!r}")
                return operator.init_state(key, read_state(text, states), clock)
            except (StepFailed, ValueError) as failed:
                reason = failed.reason if isinstance(failed, StepFailed) else f"key {key!r}: {failed}"
                failure = RowFailure("function", self.where, "the initial state", -1, reason, text)
                raise RowError(failure.token(self.signer)) from failed

        groups = _by_text(given.column(0).to_pylist(), keys, [(text,) for text in texts])
        pages.run(groups, begin, Clock(before=0, now=0, wall=0))  # when nobody is woken
        pages.flush(pages.clock)

    def check_place(self, owner: str) -> None:
        """See that the state at hand is not that of another step."""
        try:
            self.place.check(owner, self.where)
        except LockgateError as refusal:
            raise Carried(refusal, self.signer) from refusal

    def settle(self, pages: Pages) -> None:
        """See that what is kept is what this code keeps; convert it where that is safe, refuse it where it is not."""
        if pages.declared is not None and pages.declared != self.declared:
            try:
                evolution = adapt(pages.declared, self.declared, where=self.where)
            except LockgateError as refusal:
                raise Carried(refusal, self.signer) from refusal
            if evolution.forgotten:
                log.warning("%s: forgotten is %s, which it kept and declares no more", self.where, evolution.forgotten)
            if evolution.is_needed or evolution.is_redated:
                pages.convert(evolution, is_woken=evolution.is_redated)
        pages.declared = self.declared

    def take(self, values: Sequence[bytes], pages: Pages, watermark: int, wall: int) -> list[tuple[int, bytes]]:
        """One epoch of one bucket: packed rows in, packed rows out."""
        self.settle(pages)
        # An epoch makes millions of plain tuples, none of which is in a cycle: Python would search them all, often.
        with _without_collecting():
            return self._take(self._in_order(values), pages, watermark, wall)

    def _take(self, table: pa.Table, pages: Pages, watermark: int, wall: int) -> list[tuple[int, bytes]]:
        if _WALL in table.column_names and table.num_rows:
            wall = table.column(_WALL)[0].as_py()
        table, groups = self._in_groups(table)
        put_aside = None if self.rejects is None else lambda failed: self._put_aside(failed, table)
        try:
            with self._watching(table) as watch:
                found = run_epoch(
                    self.operator, pages, groups, watermark=watermark, wall=wall, put_aside=put_aside, watch=watch
                )
        except StepFailed as failed:
            raise RowError(self._failure(failed, table).token(self.signer)) from failed
        if self.dropped is not None:
            # Rows of other sides that nobody wants, as matches that have timed out, were not late.
            late = {number for number, side in enumerate(self.operator.sides) if side.name == "late"}
            self.dropped.add(sum(side in late for side, _, _ in found))
        made = []
        for index, schema in self.sides.items():
            rows = [(key, values) for side, key, values in found if side == index]
            for start in range(0, len(rows), _BATCH_ROWS):
                batch = self._as_batch(rows[start : start + _BATCH_ROWS], index, schema, table)
                made.append((index, batch.serialize().to_pybytes()))
        return made

    def _in_groups(self, table: pa.Table) -> tuple[pa.Table, Groups]:
        """The rows of each key, without those that hold what Python cannot have."""
        import numpy as np

        while True:
            try:
                return table, self._grouped(table)
            except OutOfReach as far:
                if far.number is None or self.rejects is None:
                    raise RowError(self._failure(far, table).token(self.signer)) from far
                self._put_aside(far, table)
                table = table.take(np.delete(np.arange(table.num_rows), far.number))

    def _put_aside(self, failed: StepFailed, table: pa.Table) -> None:
        """Let a row that it failed on become a letter."""
        if self.rejects is None or failed.number is None:
            raise InvariantBroken("nobody takes a row that failed", where=self.where, fix="report this")
        position, shown = self._seen(failed.number, table)
        original = table.column(ORIGINAL)[failed.number].as_py() if ORIGINAL in table.column_names else None
        rejection = Rejection(self.place.step, failed.reason, position, shown, as_base64(original), failed.is_final)
        self.rejects.add([rejection.text()])

    def _seen(self, number: int, table: pa.Table) -> tuple[dict[str, Any], str]:
        """The place of a row, and the row as people are shown it."""
        place = [table.column(at)[number].as_py() for at in range(1, 1 + len(_PLACE))]
        shown = {_told(table.column_names[at]): str(table.column(at)[number]) for at in self.reads}
        return dict(zip([name.removeprefix("__") for name in _PLACE], place, strict=True)), str(shown)

    @contextlib.contextmanager
    def _watching(self, table: pa.Table) -> Iterator[Watch | None]:
        """Let the driver know what the code has in hand, where this is not the first try."""
        with watched(self.crashes) as watch:
            if watch is None:
                yield None
                return

            def take(key: Key, number: int | None) -> None:
                place, shown = (None, f"key {key!r}") if number is None else self._seen(number, table)
                reason = watch.take(InHand(self.place.step, place, shown))
                if reason is not None:
                    raise StepFailed(reason if number is not None else f"{shown}: {reason}", number, is_final=True)

            yield take

    def _in_order(self, values: Sequence[bytes]) -> pa.Table:
        """The rows by the hash of their key, then by source position.

        Those of one position (a stream merged with itself) by their content.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        batches = [pa.ipc.read_record_batch(pa.py_buffer(value), self.schema) for value in values]
        table = pa.Table.from_batches(batches, schema=self.schema).combine_chunks()
        has_children = bool(pc.any(pc.greater(pc.list_value_length(table.column(4)), 0)).as_py())
        if not has_children:
            by = table.select([HASH, *_PLACE[:3]])
            table = table.take(pc.sort_indices(by, sort_keys=[(name, "ascending") for name in by.column_names]))
        if has_children or _has_ties(table):
            places = zip(*(table.column(place).to_pylist() for place in range(5)), strict=True)
            ranks = [(number, source, part, at, child or []) for number, source, part, at, child in places]
            content = [repr(row) for row in table.to_pylist()] if len({*map(repr, ranks)}) < len(ranks) else None
            order = sorted(range(len(ranks)), key=lambda at: (ranks[at], content[at] if content else ""))
            table = table.take(pa.array(order, pa.int64()))
        return table

    def _grouped(self, table: pa.Table) -> Groups:
        """The rows of each key, in the order of the keys' hashes."""
        import numpy as np

        if not table.num_rows:
            return Groups.of([])
        hashes = table.column(0).to_numpy()
        is_same = hashes[1:] == hashes[:-1]
        values = [as_list(table.column(place), _told(table.column_names[place])) for place in self.reads]
        rows = list(zip(range(table.num_rows), *values, strict=True))
        if not all((_equals_before(table.column(place)) | ~is_same).all() for place in self.keys):
            # Keys of one hash that are not equal: two that share it, or NaN, which equals itself in writing only.
            return _by_text(hashes.tolist(), self._keys(table, np.arange(len(rows))), rows)
        firsts = np.concatenate([[0], np.flatnonzero(~is_same) + 1])
        begins = firsts.tolist()
        own = map(rows.__getitem__, map(slice, begins, [*begins[1:], len(rows)]))
        return Groups(hashes[firsts], self._keys(table, firsts), list(own))

    def _keys(self, table: pa.Table, numbers: Any) -> list[Key]:
        """The keys of the rows of these numbers."""
        columns = [(table.column(place).take(numbers), _told(table.column_names[place])) for place in self.keys]
        try:
            return _zip([as_keys(column, name) for column, name in columns], len(numbers))
        except OutOfReach as far:
            raise OutOfReach(far.reason, None if far.number is None else int(numbers[far.number])) from far

    def _as_batch(
        self, rows: list[tuple[Key, Values]], index: int, schema: pa.Schema, table: pa.Table
    ) -> pa.RecordBatch:
        import pyarrow as pa

        columns: list[pa.Array] = []
        side = self.operator.sides[index]
        if side.keeps_row:
            numbers = pa.array([values[0] for _, values in rows], pa.int64())
            taken = table.select(list(self.kept)).take(numbers).combine_chunks()
            columns += [_one_chunk(column) for column in taken.columns]
            own = [values[1:] for _, values in rows]
        else:
            keys = range(len(self.keys) if side.adds_key else 0)
            columns += [pa.array([key[place] for key, _ in rows], schema.field(place).type) for place in keys]
            own = [values for _, values in rows]
        before = len(columns)
        for place in range(before, len(schema)):
            columns.append(self._as_array([values[place - before] for values in own], schema.field(place)))
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _as_array(self, values: list[Any], field: pa.Field) -> pa.Array:
        import pyarrow as pa

        try:
            return pa.array(values, type=field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError, TypeError) as error:
            reason = f"a value of {field.name} is not of type {field.type}: {str(error).splitlines()[0]}"
            raise RowError(
                RowFailure("function", self.where, "an unknown place", -1, reason, "").token(self.signer)
            ) from error

    def _failure(self, failed: StepFailed, table: pa.Table) -> RowFailure:
        part, at = "an unknown place", -1
        if failed.number is not None:
            source, inside, at = (table.column(place)[failed.number].as_py() for place in range(1, 4))
            part = f"{source}, {inside}"
        kind = "time" if isinstance(failed, OutOfReach) else "function"
        return RowFailure(kind, self.where, part, at, failed.reason, "")


@contextlib.contextmanager
def _without_collecting() -> Iterator[None]:
    """Keep Python from searching for cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _processor(run: _Run) -> Any:
    """The form in which Spark wants it."""
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
            run.begin(initialState["rows"], Pages(_Cells(self.cells)), max(wall, 0) * 1000)

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
            pages = Pages(_Cells(self.cells))
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
                self.cells.clear()  # of a time when a step of this name was here, before the one that is gone now
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


# When it is over


def _unpacker(sides: Mapping[int, Any], whole: Any, *, is_single: bool) -> Any:
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(whole, timezone="UTC")

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            for index, value in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
                rows = pa.ipc.read_record_batch(value.as_buffer(), sides[index])
                if is_single:
                    yield rows
                    continue
                columns = [pa.array([index] * rows.num_rows, pa.int32())]
                for place, other in enumerate(sides):
                    kind = schema.field(place + 1).type
                    columns.append(
                        pa.StructArray.from_arrays(rows.columns, fields=list(kind))
                        if other == index
                        else pa.nulls(rows.num_rows, kind)
                    )
                yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return unpack


def _by_text(hashes: Sequence[int], keys: Sequence[Key], rows: Sequence[Values]) -> Groups:
    """Rows by what their keys are in writing, in the order of the keys' hashes."""
    groups: dict[tuple[int, str], tuple[Key, list[Values]]] = {}
    for number, key, row in zip(hashes, keys, rows, strict=True):
        groups.setdefault((number, repr(key)), (key, []))[1].append(row)
    return Groups.of((number, key, held) for (number, _), (key, held) in groups.items())


def _has_ties(table: pa.Table) -> bool:
    """Do two rows of one key, of those in order, have one position?"""
    ties = [_equals_before(table.column(place)) for place in range(4)]
    return bool((ties[0] & ties[1] & ties[2] & ties[3]).any())


def _equals_before(column: pa.ChunkedArray) -> Any:
    """For every value but the first: does it equal the one before it? As null equals null here."""
    import pyarrow.compute as pc

    before, after = column.slice(0, max(len(column) - 1, 0)), column.slice(1)
    is_null = pc.and_(pc.is_null(before), pc.is_null(after))
    return pc.or_(pc.fill_null(pc.equal(before, after), False), is_null).to_numpy()


def _told(column: str) -> str:
    """A column as its author knows it."""
    return column.removeprefix("__read_").removeprefix("__key_")


def _zip(columns: list[list[Any]], length: int) -> list[tuple[Any, ...]]:
    return list(zip(*columns, strict=True)) if columns else [()] * length


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    import pyarrow as pa

    return column.chunk(0) if column.num_chunks else pa.array([], column.type)
