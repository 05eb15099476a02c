"""Functions of the author's, row by row, in Python workers.

Rows travel in Arrow batches. A function that raises, or returns what its schema does not allow, stops the job with the
row's position and the author's own line; the row is neither dropped nor written as null. Timestamps are given as
aware datetimes in UTC, and a naive one that comes back is taken as UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockgate.dataflow.endpoints import POSITION
from lockgate.failures import RowFailure

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.types import StructField


@dataclass(frozen=True)
class RowStep:
    """What a worker is told: a function, how its results count, and how to name it in errors."""

    function: Callable[..., Any]
    kind: str  # "map", "flat_map" or "where"
    where: str
    columns: tuple[str, ...]  # of the result; empty for "where"


class RowError(Exception):
    """Raised in a worker; its message is the token that carries the failure home."""


def apply_rows(frame: DataFrame, step: RowStep, ddl: str, hidden: Sequence[str]) -> DataFrame:
    """The frame with the function applied to every row; hidden columns stay beside the results."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    kept = [field for field in frame.schema.fields if field.name in hidden]
    made = frame.schema.fields if step.kind == "where" else _fields(ddl) + kept
    schema = StructType(made)
    arrow = to_arrow_schema(schema, timezone="UTC")
    positions = frame.columns.index(POSITION) if POSITION in frame.columns else None
    names = tuple(frame.columns)
    kept_names = tuple(field.name for field in kept)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from _apply_batch(batch, step, names, kept_names, positions, arrow)

    return frame.mapInArrow(run, schema)


def _fields(ddl: str) -> list[StructField]:
    from pyspark.sql.types import StructType

    parsed = StructType.fromDDL(ddl)
    return parsed.fields if isinstance(parsed, StructType) else []


def _apply_batch(
    batch: pa.RecordBatch,
    step: RowStep,
    names: tuple[str, ...],
    kept: tuple[str, ...],
    positions: int | None,
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    from pyspark.sql import Row

    make_row = Row(*names)
    rows = [make_row(*values) for values in zip(*(column.to_pylist() for column in batch.columns), strict=True)]
    if step.kind == "where":
        keep = [bool(_call(step, row, positions)) for row in rows]
        yield batch.filter(pa.array(keep, type=pa.bool_()))
        return
    results: list[tuple[Any, ...]] = []
    parents: list[int] = []
    children: list[int] = []
    for index, row in enumerate(rows):
        result = _call(step, row, positions)
        made = [result] if step.kind == "map" else _as_list(result, step, row, positions)
        for child, one in enumerate(made):
            results.append(_as_tuple(one, step, row, positions))
            parents.append(index)
            children.append(child)
    columns: list[pa.Array] = []
    for place, name in enumerate(step.columns):
        values = [result[place] for result in results]
        columns.append(_as_array(values, schema.field(place), name, step, rows, parents, positions))
    beside = batch.take(pa.array(parents, type=pa.int64()))
    for name in kept:
        if name == POSITION and step.kind == "flat_map":
            told = [
                {**row, "child": [*(row["child"] or []), child]}
                for row, child in zip(beside.column(names.index(name)).to_pylist(), children, strict=True)
            ]
            columns.append(pa.array(told, type=schema.field(len(columns)).type))
        else:
            columns.append(beside.column(names.index(name)).cast(schema.field(len(columns)).type))
    yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _call(step: RowStep, row: Row, positions: int | None) -> Any:
    try:
        return step.function(row)
    except Exception as error:
        raise _failure(step, row, positions, f"{type(error).__name__}: {error}") from error


def _as_list(result: Any, step: RowStep, row: Row, positions: int | None) -> list[Any]:
    if isinstance(result, str | bytes | Mapping) or not isinstance(result, Iterable):
        raise _failure(step, row, positions, f"flat_map returns an iterable of rows, not {type(result).__name__}")
    try:
        return list(result)  # a generator runs the author's code here, so it may raise here
    except Exception as error:
        raise _failure(step, row, positions, f"{type(error).__name__}: {error}") from error


def _as_tuple(result: Any, step: RowStep, row: Row, positions: int | None) -> tuple[Any, ...]:
    from pyspark.sql import Row

    if isinstance(result, Row) and hasattr(result, "__fields__"):
        result = result.asDict()
    if isinstance(result, Mapping):
        unknown = set(result) - set(step.columns)
        missing = set(step.columns) - set(result)
        if not unknown and not missing:
            return tuple(result[name] for name in step.columns)
        told = f"lacks {sorted(missing)}" if missing else f"has {sorted(unknown)} beside it"
        raise _failure(step, row, positions, f"the result {told}; its schema has {', '.join(step.columns)}")
    if isinstance(result, tuple | list) and len(result) == len(step.columns):
        return tuple(result)
    raise _failure(step, row, positions, f"{result!r} is not a dict or tuple of ({', '.join(step.columns)})")


def _as_array(
    values: list[Any],
    field: pa.Field,
    name: str,
    step: RowStep,
    rows: list[Row],
    parents: list[int],
    positions: int | None,
) -> pa.Array:
    import pyarrow as pa

    try:
        made = pa.array(values, type=field.type)
        if made.null_count and not field.nullable:
            raise ValueError(f"{name} is NOT NULL")
        return made
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError, TypeError):
        # Once more, one by one, to find the row that does not fit.
        for value, parent in zip(values, parents, strict=True):
            try:
                if value is None and not field.nullable:
                    raise ValueError("it is NOT NULL")
                pa.array([value], type=field.type)
            except Exception as error:
                reason = f"{name}={value!r} is not of type {field.type}: {str(error).splitlines()[0]}"
                raise _failure(step, rows[parent], positions, reason) from error
        raise


def _failure(step: RowStep, row: Row, positions: int | None, reason: str) -> RowError:
    place = row[positions] if positions is not None else None
    shown = {name: value for name, value in row.asDict().items() if not name.startswith("_")}
    return RowError(
        RowFailure(
            kind="function",
            where=step.where,
            part=f"{place['source']}, {place['part']}" if place else "an unknown place",
            at=place["at"] if place else -1,
            reason=reason,
            row=str(shown),
        ).token()
    )
