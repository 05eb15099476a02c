"""Keys that come as text, from a file or a command line: Spark casts them to the types of the stream.

A key is found by Spark's hash of it, which differs between types. So Python's rules never read a key: for any type of
column, Spark's own cast makes of the text what the same text would have been in an event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lockgate.dataflow.schema import quote
from lockgate.errors import Refused
from lockgate.operators.contract import Key, StepFailed
from lockgate.operators.moments import EPOCH

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

_BATCH_ROWS = 10_000
STATE = "__state"
HASH = "__hash"

Texts = Sequence[str | None]
"""The columns of a key, as text."""

Begun = tuple[Texts, str]
"""A key and its initial state, as `statejson.read_state` reads it."""


def hash_of(keys: Sequence[str]) -> Column:
    """The hash that decides where a key's state is; the single key of an unkeyed step has one, too."""
    from pyspark.sql import functions as F

    made = F.xxhash64(*(quote(key) for key in keys)) if keys else F.lit(0).cast("bigint")
    return made.alias(HASH)


def keyed_frame(spark: SparkSession, rows: Sequence[Begun], kinds: Mapping[str, str], *, where: str) -> DataFrame:
    """Keys as texts, each with the text of a state, as a frame: hash, the key's columns, STATE."""
    import pyarrow as pa
    from pyspark.sql import functions as F

    texts = {_text_name(place): [key[place] for key, _ in rows] for place in range(len(kinds))}
    columns = {**texts, STATE: [state for _, state in rows]}
    table = pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})

    def tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield from table.to_batches(max_chunksize=_BATCH_ROWS)

    # Not by createDataFrame: it would make this session the active one, and Spark looks for the sources of all other
    # queries there.
    one = spark.range(0, 1, 1, numPartitions=1)
    given = one.mapInArrow(tell, ", ".join(f"{name} STRING" for name in columns))
    casts = [_cast(_text_name(place), kind).alias(name) for place, (name, kind) in enumerate(kinds.items())]
    made = given.select(*given.columns, *casts)
    unread = [f"({_text_name(place)} IS NOT NULL AND {quote(name)} IS NULL)" for place, name in enumerate(kinds)]
    for bad in made.where(" OR ".join(unread)).limit(1).collect() if unread else ():
        told = [bad[_text_name(place)] for place in range(len(kinds))]
        raise Refused(
            f"{told} is no key of {', '.join(f'{name} {kind}' for name, kind in kinds.items())}",
            where=where,
            fix="give a value for each column, in the order of key_by, that can be cast to its type",
        )
    return made.select(hash_of(list(kinds)), *map(quote, kinds), F.col(STATE))


class OutOfReach(StepFailed):
    """A row has a time or a date that Python cannot represent: its years are 1 to 9999."""


def as_list(column: pa.ChunkedArray, name: str = "a column") -> list[Any]:
    """The values of a column for Python; OutOfReach, with the number of the row, for a time beyond its years."""
    try:
        return _values(column)
    except OverflowError as error:
        number = next(at for at in range(len(column)) if not _is_in_reach(column.slice(at, 1)))
        reason = f"{name} holds a time{_as_micros(column.slice(number, 1))} that is not within the years 1 to 9999"
        raise OutOfReach(reason, number) from error


def as_keys(column: pa.ChunkedArray, name: str = "the key") -> list[Any]:
    """The values of a key's column: those that Spark calls equal are equal in Python, too."""
    import pyarrow as pa

    values = as_list(column, name)
    if pa.types.is_floating(column.type):
        return [None if value is None else value + 0.0 for value in values]  # removes the sign of zero
    return values


def _values(column: pa.ChunkedArray) -> list[Any]:
    import pyarrow as pa

    # Aware datetimes, without asking a time zone database for each.
    if pa.types.is_timestamp(column.type):
        begin = EPOCH if column.type.tz is not None else EPOCH.replace(tzinfo=None)
        return [
            None if at is None else begin + timedelta(microseconds=at) for at in column.cast(pa.int64()).to_pylist()
        ]
    return list(column.to_pylist(maps_as_pydicts="strict") if pa.types.is_nested(column.type) else column.to_pylist())


def _is_in_reach(column: pa.ChunkedArray) -> bool:
    try:
        _values(column)
    except OverflowError:
        return False
    return True


def _as_micros(column: pa.ChunkedArray) -> str:
    """The only time of a column as a number, since it cannot be written in another way."""
    import pyarrow as pa

    if not pa.types.is_timestamp(column.type):
        return ""
    return f" ({column.cast(pa.int64())[0].as_py()} microseconds from 1970)"


def locate(spark: SparkSession, texts: Texts, kinds: Mapping[str, str], *, where: str) -> tuple[int, Key]:
    """The hash of one key, and the key."""
    table = keyed_frame(spark, [(texts, "")], kinds, where=where).toArrow()
    (number,) = table.column(0).to_pylist()
    return number, tuple(as_keys(table.column(place + 1))[0] for place in range(len(kinds)))


def _text_name(place: int) -> str:
    return f"__text_{place}"


def _cast(name: str, kind: str) -> Column:
    from pyspark.sql import functions as F

    if kind == "binary":
        return F.try_to_binary(F.col(name), F.lit("base64"))
    return F.col(name).try_cast(kind)
