"""Join a stream with a small table that every worker holds.

For every epoch the driver says which snapshot of a table its rows meet (runtime/tablerefresh.py). This travels with the
tasks, as a property of the Spark job. A worker asks for a snapshot once and keeps it, indexed by the columns of the
join.

    event   -> key columns alone, in Arrow batches -> Python: the rows of the table that have this key, as an array
            -> native: one row for each of them, with all columns of the event unchanged

So a watermark, and all else that Spark knows of a column, is kept. As in SQL a null key meets no row, and whole numbers
are equal whatever their width.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lockgate.dataflow.endpoints import POSITION
from lockgate.dataflow.joinkind import JoinKind
from lockgate.dataflow.schema import quote
from lockgate.dataflow.table import TableRows
from lockgate.errors import BadJob, EpochFailed, InvariantBroken
from lockgate.failures import Carried
from lockgate.serving.rpc import Address
from lockgate.signing import Signer, driver_signer
from lockgate.spark.tableserver import fetch

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import ArrayType, StructType

SNAPSHOTS = "lockgate.tables"
"""The property of an epoch's Spark jobs that says which snapshot of each table their rows meet, as JSON."""

ROWS_AT_ONCE = 50_000
"""At most this many rows of a table are returned at once, however many have the same key."""

_HELD_MAX = 16
_WHOLE = ("tinyint", "smallint", "int", "bigint")
_KEYS = (*_WHOLE, "string", "boolean", "date", "timestamp", "timestamp_ntz", "binary", "decimal")
_PRESENT = "__present"
"""Replaces the columns of a table that has none beside its key."""


@dataclass(frozen=True)
class TableJoining:
    """The part that a worker receives."""

    table_server: Address
    table: str
    on: tuple[str, ...]  # by the names in the table
    columns: tuple[str, ...]  # the columns that the table adds
    signer: Signer = field(default_factory=driver_signer)


def schema_of(rows: TableRows) -> StructType:
    """The declared columns of a table as Spark types."""
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(rows.schema)
    assert isinstance(schema, StructType)
    return schema


def join_table(
    frame: DataFrame,
    schema: StructType,
    *,
    table_server: Address,
    table: str,
    on: Sequence[str],
    how: JoinKind,
    where: str,
) -> DataFrame:
    """Every row with the columns of each table row that agrees in `on`; with how="left" also rows that meet none."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, BooleanType, StructField, StructType

    keys = [_key(frame, schema, name, table, where) for name in on]
    wanted = {name.lower() for name in on}
    taken = [field for field in schema.fields if field.name.lower() not in wanted]
    here = {name.lower() for name in frame.columns}
    twice = [field.name for field in taken if field.name.lower() in here]
    if twice:
        raise BadJob(
            f"both the stream and table {table!r} have a column {', '.join(twice)}",
            where=where,
            fix="rename it in a select before the join, or omit it from the schema of the table",
        )
    joining = TableJoining(
        table_server=table_server,
        table=table,
        on=tuple(next(field.name for field in schema.fields if field.name.lower() == name.lower()) for name in on),
        columns=tuple(field.name for field in taken),
    )
    made = [StructField(field.name, field.dataType) for field in taken] or [StructField(_PRESENT, BooleanType())]
    found = frame.withColumn("__found", _look_up(joining, ArrayType(StructType(made)))(F.struct(*keys)))
    explode = F.posexplode_outer if how is JoinKind.LEFT else F.posexplode
    rows = found.select("*", explode("__found").alias("__number", "__row"))
    return rows.select(
        *(_numbered() if name == POSITION else F.col(quote(name)) for name in frame.columns),
        *(F.col("__row").getField(field.name).alias(field.name) for field in taken),
    )


def _key(frame: DataFrame, schema: StructType, name: str, table: str, where: str) -> Column:
    """A column of the join as it is looked up; refuses types that are not equal in the same way on both sides."""
    from pyspark.sql import functions as F

    if name.lower() not in map(str.lower, frame.columns):  # after a transform only Spark knows the columns
        raise BadJob(
            f"column {name!r} does not exist", where=where, fix=f"the columns here are {', '.join(frame.columns)}"
        )
    types = [
        next(field.dataType.simpleString() for field in fields if field.name.lower() == name.lower())
        for fields in (frame.schema.fields, schema.fields)
    ]
    if types[0] not in types[1:] and not set(types) <= set(_WHOLE):
        raise BadJob(
            f"column {name!r} is {types[0]} in the stream and {types[1]} in table {table!r}",
            where=where,
            fix=f'make them alike before the join: .select(..., {name}="cast({name} AS {types[1]})")',
        )
    if types[0].partition("(")[0] not in _KEYS:
        raise BadJob(
            f"column {name!r} of type {types[0]} cannot be looked up in a table",
            where=where,
            fix="join on whole numbers, texts, dates or times",
        )
    return F.col(quote(name)).cast("bigint") if types[0] in _WHOLE else F.col(quote(name))


def _numbered() -> Column:
    """The position of an event, made unique for each of the rows that it becomes."""
    from pyspark.sql import functions as F

    number = F.coalesce(F.col("__number"), F.lit(0))  # an event that meets no row has none
    child = F.concat(F.coalesce(F.col(f"{POSITION}.child"), F.array().cast("array<int>")), F.array(number))
    return F.col(POSITION).withField("child", child).alias(POSITION)


def _look_up(joining: TableJoining, returned: ArrayType) -> Any:
    """The function from a key to its rows that runs in the workers."""
    import pyarrow as pa
    from pyspark.sql.pandas.functions import arrow_udf

    def look_up(keys: Iterator[pa.Array]) -> Iterator[pa.Array]:
        lookup: Lookup | None = None
        for batch in keys:
            lookup = lookup or held_lookup(joining)
            yield from lookup.find(batch.flatten())

    # Spark reads these annotations. As texts they could not be resolved: only this function knows what pa is.
    look_up.__annotations__ = {"keys": Iterator[pa.Array], "return": Iterator[pa.Array]}
    return arrow_udf(look_up, returned)  # type: ignore[call-overload] # its stub knows only the older form


class Lookup:
    """A snapshot, indexed by its key."""

    def __init__(self, rows: pa.Table, on: Sequence[str], columns: Sequence[str]) -> None:
        import numpy as np
        import pyarrow as pa

        self._numbers: dict[Any, int] = {}
        keys = _keys([_joined(rows, name) for name in on])
        groups = np.fromiter((self._number(key) for key in keys), dtype=np.int64, count=len(rows))
        order = np.argsort(groups, kind="stable")
        order = order[np.count_nonzero(groups < 0) :]  # rows without a key come first, and no event meets them
        # One more group, which is empty: the number -1 of a key that is not found leads there.
        self._counts = np.append(np.bincount(groups[order], minlength=len(self._numbers)), 0)
        self._starts = np.append(np.cumsum(self._counts[:-1]) - self._counts[:-1], 0)
        ordered = rows.take(pa.array(order))
        if columns:
            arrays = [_joined(ordered, name) for name in columns]
            self._rows = pa.StructArray.from_arrays(arrays, names=list(columns))
        else:
            self._rows = pa.StructArray.from_arrays([pa.array(np.ones(len(ordered), dtype=bool))], names=[_PRESENT])

    def find(self, keys: Sequence[pa.Array]) -> Iterator[pa.Array]:
        """For every event, by the columns of its key, the list of rows; in several arrays if there are many."""
        import numpy as np

        get = self._numbers.get
        found = np.fromiter((get(key, -1) for key in _keys(keys)), dtype=np.int64, count=len(keys[0]))
        ends = np.cumsum(self._counts[found])
        first = 0
        while first < len(found):
            before = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, before + ROWS_AT_ONCE, side="right")))
            yield self._lists(found[first:last])
            first = last

    def _lists(self, found: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Array:
        import numpy as np
        import pyarrow as pa

        counts = self._counts[found]
        offsets = np.concatenate(([0], np.cumsum(counts)))
        places = np.repeat(self._starts[found] - offsets[:-1], counts) + np.arange(offsets[-1])
        return pa.ListArray.from_arrays(pa.array(offsets, type=pa.int32()), self._rows.take(pa.array(places)))

    def _number(self, key: Any) -> int:
        if key is None or (isinstance(key, tuple) and None in key):
            return -1
        return self._numbers.setdefault(key, len(self._numbers))


def _keys(columns: Sequence[pa.Array]) -> Iterable[Any]:
    """The keys of rows as values that are equal if SQL says so: a value, or a tuple of several."""
    import pyarrow as pa

    def plain(column: pa.Array) -> list[Any]:
        if pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        values: list[Any] = column.to_pylist()
        return values

    lists = [plain(column) for column in columns]
    return lists[0] if len(lists) == 1 else zip(*lists, strict=True)


def _joined(rows: pa.Table, name: str) -> pa.Array:
    """A column as one array."""
    import pyarrow as pa

    column = rows.column(name).combine_chunks()
    return column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks)


_held: dict[TableJoining, tuple[str, Lookup]] = {}


def held_lookup(joining: TableJoining) -> Lookup:
    """The lookup of the epoch that this task belongs to; a worker keeps it from task to task."""
    snapshot = _snapshot_of_epoch(joining.table, joining.signer)
    held = _held.get(joining)
    if held is not None and held[0] == snapshot:
        return held[1]
    try:
        content = fetch(joining.table_server, joining.table, snapshot)
    except EpochFailed as error:
        raise Carried(error, joining.signer) from None
    lookup = load_lookup(content, joining)
    _held.pop(joining, None)
    while len(_held) >= _HELD_MAX:  # those of ended runs, in a worker that serves many
        del _held[next(iter(_held))]
    _held[joining] = (snapshot, lookup)
    return lookup


def load_lookup(content: bytes, joining: TableJoining) -> Lookup:
    """The lookup of a snapshot's bytes."""
    import pyarrow as pa
    from pyarrow import parquet

    return Lookup(parquet.read_table(pa.BufferReader(content)), joining.on, joining.columns)


def _snapshot_of_epoch(table: str, signer: Signer) -> str:
    from pyspark import TaskContext

    context = TaskContext.get()
    told = None if context is None else context.getLocalProperty(SNAPSHOTS)
    if told is None or table not in (chosen := json.loads(told)):
        what = f"the task does not know which snapshot of table {table!r} this epoch sees"
        raise Carried(InvariantBroken(what, where="a task", fix="report this"), signer)
    return str(chosen[table])
