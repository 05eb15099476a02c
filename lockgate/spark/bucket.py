"""One bucket in a worker: packed rows in, the operator over the rows of each key, packed results out.

The rows of a key are in the order of their source positions, whatever order Spark gives them: a repeated epoch has the
same results. Everything that can be wrong with a row, a state or a function of the user becomes an error with the
step's name, or a rejected row.
"""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lockgate.connectors.rejects import Rejection, as_base64
from lockgate.dataflow.endpoints import ORIGINAL
from lockgate.errors import CheckpointDamaged, InvariantBroken, LockgateError, Refused
from lockgate.failures import Carried, RowFailure
from lockgate.operators.contract import Clock, Key, Operator, Outcome, StepFailed, Values, Watch
from lockgate.operators.encoding import PLAIN, Encoding
from lockgate.operators.epoch import run_epoch
from lockgate.operators.evolution import Declared, adapt
from lockgate.operators.keyedstate import states_of
from lockgate.operators.page import Groups
from lockgate.operators.pagestore import Cells, PageStore
from lockgate.operators.process import ProcessOperator
from lockgate.operators.statejson import read_state
from lockgate.serving.rpc import Address
from lockgate.signing import Signer, driver_signer
from lockgate.spark.crashes import InFlight, watched
from lockgate.spark.functions import RowError
from lockgate.spark.keys import HASH, OutOfReach, as_keys, as_list
from lockgate.spark.packing import ASIDE
from lockgate.spark.rejectioncolumns import as_texts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.accumulators import Accumulator

log = logging.getLogger(__name__)

WALL = "__wall"
"""Column of packed rows, for an operator to which Spark gives no time: the time of the epoch."""

PLACES = ("__source", "__part", "__at", "__child")
"""Columns of packed rows: the source position, field by field."""

_BATCH_ROWS = 10_000


@dataclass(frozen=True)
class Place:
    """A step, and what is known of other steps whose state may be in its place.

    Spark numbers the operators of a query, and gives each the state of its number. So if a step is put before others,
    or removed before them, they would find each other's state, or none.
    """

    step: str
    steps: frozenset[str]  # with state in this job
    is_known: bool  # has the checkpoint state of this step?

    def check(self, owner: str, where: str) -> None:
        """Refuse to use the place of another step, unless it is clear that this is meant."""
        if owner == self.step or not (owner in self.steps or self.is_known):
            return  # under a new name, in the place of one that is gone, a step starts with an empty state
        raise Refused(
            f"the state in the checkpoint, where that of step {self.step!r} would be, is that of step {owner!r}",
            where=where,
            fix="put the steps with state back into their old order, and restore those that were removed;"
            " or reset the whole job: lockgate run --new-life",
        )


@dataclass(frozen=True)
class BucketRun:
    """The part that a worker receives."""

    operator: Operator
    place: Place
    where: str
    schema: Any  # of the packed rows
    keys: tuple[int, ...]
    reads: tuple[int, ...]
    kept: tuple[int, ...]  # the places of the columns of a kept row in the packed rows
    sides: Mapping[int, Any]  # the columns of those that are used
    dropped: Accumulator[int] | None
    declared: Declared
    initial: Any  # the columns of packed initial states
    puts_aside: bool
    crashes: Address | None = None
    encoding: Encoding = PLAIN
    checkpoint: str | None = None
    signer: Signer = field(default_factory=driver_signer)

    def begin(self, value: bytes, pages: PageStore, wall: int) -> None:
        """Start keys with these packed states; before any row, in the first epoch."""
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
        pages.run(groups, begin, Clock(before=0, now=0, wall=0))  # at a time at which no timer fires
        pages.flush(pages.clock)

    def open(self, cells: Cells) -> PageStore:
        """The pages of a bucket."""
        with self._carrying():
            return PageStore(cells, encoding=self.encoding)

    @contextlib.contextmanager
    def _carrying(self) -> Iterator[None]:
        """Add the step and the checkpoint to the error for a state that cannot be read."""
        try:
            yield
        except (CheckpointDamaged, InvariantBroken) as error:
            where = self.where if self.checkpoint is None else f"{self.where}; checkpoint {self.checkpoint}"
            raise Carried(type(error)(error.what, where=where, fix=error.fix), self.signer) from error

    def check_place(self, owner: str) -> None:
        """Check that this state is not that of another step."""
        try:
            self.place.check(owner, self.where)
        except LockgateError as refusal:
            raise Carried(refusal, self.signer) from refusal

    def settle(self, pages: PageStore) -> None:
        """Compare the declared state with that of this code; convert it if that is safe, refuse it if not."""
        if pages.declared is not None and pages.declared != self.declared:
            try:
                evolution = adapt(pages.declared, self.declared, where=self.where)
            except LockgateError as refusal:
                raise Carried(refusal, self.signer) from refusal
            if evolution.forgotten:
                forgotten = evolution.forgotten
                log.warning("%s: its state loses %s, which this code no longer declares", self.where, forgotten)
            if evolution.is_needed or evolution.is_redated:
                pages.convert(evolution, is_woken=evolution.is_redated)
        pages.declared = self.declared

    def take(self, values: Sequence[bytes], pages: PageStore, watermark: int, wall: int) -> list[tuple[int, bytes]]:
        """One epoch of one bucket: packed rows in, packed rows out."""
        # An epoch makes millions of plain tuples, none of them in a cycle: Python would often search them all.
        with _without_collecting(), self._carrying():
            self.settle(pages)
            return self._take(self._in_order(values), pages, watermark, wall)

    def _take(self, table: pa.Table, pages: PageStore, watermark: int, wall: int) -> list[tuple[int, bytes]]:
        if WALL in table.column_names and table.num_rows:
            wall = table.column(WALL)[0].as_py()
        aside: list[Rejection] = []
        table, groups = self._in_groups(table, aside)
        put_aside = None if not self.puts_aside else lambda failed: aside.append(self._rejected(failed, table))
        try:
            with self._watching(table) as watch:
                found = run_epoch(
                    self.operator, pages, groups, watermark=watermark, wall=wall, put_aside=put_aside, watch=watch
                )
        except StepFailed as failed:
            raise RowError(self._failure(failed, table).token(self.signer)) from failed
        if self.dropped is not None:
            # Rows of other unused sides, such as matches that have timed out, were not late.
            late = {number for number, side in enumerate(self.operator.sides) if side.name == "late"}
            self.dropped.add(sum(side in late for side, _, _ in found))
        made = []
        for index, schema in self.sides.items():
            rows = [(key, values) for side, key, values in found if side == index]
            for start in range(0, len(rows), _BATCH_ROWS):
                batch = self._as_batch(rows[start : start + _BATCH_ROWS], index, schema, table)
                made.append((index, batch.serialize().to_pybytes()))
        made += [(ASIDE, texts.serialize().to_pybytes()) for texts in as_texts(aside)]
        return made

    def _in_groups(self, table: pa.Table, aside: list[Rejection]) -> tuple[pa.Table, Groups]:
        """The rows of each key, without those with values that Python cannot represent."""
        import numpy as np

        while True:
            try:
                return table, self._grouped(table)
            except OutOfReach as far:
                if far.number is None or not self.puts_aside:
                    raise RowError(self._failure(far, table).token(self.signer)) from far
                aside.append(self._rejected(far, table))
                table = table.take(np.delete(np.arange(table.num_rows), far.number))

    def _rejected(self, failed: StepFailed, table: pa.Table) -> Rejection:
        """A row on which the operator failed, as it is put aside."""
        if failed.number is None:
            raise InvariantBroken("a failure without a row was put aside", where=self.where, fix="report this")
        position, shown = self._seen(failed.number, table)
        original = table.column(ORIGINAL)[failed.number].as_py() if ORIGINAL in table.column_names else None
        return Rejection(self.place.step, failed.reason, position, shown, as_base64(original), failed.is_final)

    def _seen(self, number: int, table: pa.Table) -> tuple[dict[str, Any], str]:
        """The place of a row, and the row as text for people."""
        place = [table.column(at)[number].as_py() for at in range(1, 1 + len(PLACES))]
        shown = {_users_name(table.column_names[at]): str(table.column(at)[number]) for at in self.reads}
        return dict(zip([name.removeprefix("__") for name in PLACES], place, strict=True)), str(shown)

    @contextlib.contextmanager
    def _watching(self, table: pa.Table) -> Iterator[Watch | None]:
        """Report to the driver what the code has in hand, if this is not the first try."""
        with watched(self.crashes) as watch:
            if watch is None:
                yield None
                return

            def take(key: Key, number: int | None) -> None:
                place, shown = (None, f"key {key!r}") if number is None else self._seen(number, table)
                reason = watch.take(InFlight(self.place.step, place, shown))
                if reason is not None:
                    raise StepFailed(reason if number is not None else f"{shown}: {reason}", number, is_final=True)

            yield take

    def _in_order(self, values: Sequence[bytes]) -> pa.Table:
        """The rows by the hash of their key, then by source position.

        Those of one position (a stream merged with itself) are sorted by their content.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        batches = [pa.ipc.read_record_batch(pa.py_buffer(value), self.schema) for value in values]
        table = pa.Table.from_batches(batches, schema=self.schema).combine_chunks()
        has_children = bool(pc.any(pc.greater(pc.list_value_length(table.column(4)), 0)).as_py())
        if not has_children:
            by = table.select([HASH, *PLACES[:3]])
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
        values = [as_list(table.column(place), _users_name(table.column_names[place])) for place in self.reads]
        rows = list(zip(range(table.num_rows), *values, strict=True))
        if not all((_equals_before(table.column(place)) | ~is_same).all() for place in self.keys):
            # Keys of one hash that are not equal: two that share it, or NaN, which equals itself only as text.
            return _by_text(hashes.tolist(), self._keys(table, np.arange(len(rows))), rows)
        firsts = np.concatenate([[0], np.flatnonzero(~is_same) + 1])
        begins = firsts.tolist()
        own = map(rows.__getitem__, map(slice, begins, [*begins[1:], len(rows)]))
        return Groups(hashes[firsts], self._keys(table, firsts), list(own))

    def _keys(self, table: pa.Table, numbers: Any) -> list[Key]:
        """The keys of the rows of these numbers."""
        columns = [(table.column(place).take(numbers), _users_name(table.column_names[place])) for place in self.keys]
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

        if pa.types.is_struct(field.type):
            # Arrow takes dicts or tuples, but not both in one column. A combine of one value returns a dict, as Spark
            # gave it.
            values = [value._asdict() if hasattr(value, "_asdict") else value for value in values]
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


def _by_text(hashes: Sequence[int], keys: Sequence[Key], rows: Sequence[Values]) -> Groups:
    """Rows by the text of their keys, in the order of the keys' hashes."""
    groups: dict[tuple[int, str], tuple[Key, list[Values]]] = {}
    for number, key, row in zip(hashes, keys, rows, strict=True):
        groups.setdefault((number, repr(key)), (key, []))[1].append(row)
    return Groups.of((number, key, held) for (number, _), (key, held) in groups.items())


def _has_ties(table: pa.Table) -> bool:
    """Do two rows of one key have one position? The rows are in order."""
    ties = [_equals_before(table.column(place)) for place in range(4)]
    return bool((ties[0] & ties[1] & ties[2] & ties[3]).any())


def _equals_before(column: pa.ChunkedArray) -> Any:
    """For every value but the first: does it equal the one before it? Here null equals null."""
    import pyarrow.compute as pc

    before, after = column.slice(0, max(len(column) - 1, 0)), column.slice(1)
    is_null = pc.and_(pc.is_null(before), pc.is_null(after))
    return pc.or_(pc.fill_null(pc.equal(before, after), False), is_null).to_numpy()


def _users_name(column: str) -> str:
    """The user's name of a column."""
    return column.removeprefix("__read_").removeprefix("__key_")


def _zip(columns: list[list[Any]], length: int) -> list[tuple[Any, ...]]:
    return list(zip(*columns, strict=True)) if columns else [()] * length


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    import pyarrow as pa

    return column.chunk(0) if column.num_chunks else pa.array([], column.type)
