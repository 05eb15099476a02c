"""Functions of the user, row by row, in Python workers.

Rows travel in Arrow batches. If a function raises, or returns what its schema does not allow, the job stops with the
row's position and the user's own line, or the row becomes a dead letter (spark/rejectioncolumns.py). It is neither
dropped nor written as null.
Functions get timestamps as aware datetimes in UTC. A naive one that they return counts as UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from lockgate.connectors.rejects import Rejection, Rejects, as_base64
from lockgate.dataflow.endpoints import ORIGINAL, POSITION
from lockgate.failures import RowFailure
from lockgate.operators.deadline import TimedOut, deadline
from lockgate.serving.rpc import Address
from lockgate.signing import Signer, driver_signer
from lockgate.spark.crashes import InFlight, Watch, watched
from lockgate.spark.lists import null_columns, with_empty, with_nulls
from lockgate.spark.rejectioncolumns import parted, with_rejections, with_texts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.types import StructField


class Rejecter(Protocol):
    """A step of a worker, for rows without a result: its names, and what happens to these rows."""

    @property
    def name(self) -> str:
        """Its name in the plan."""

    @property
    def where(self) -> str:
        """Its place in errors."""

    @property
    def puts_aside(self) -> bool:
        """Are rows put aside if it fails on them? Else they stop the job."""

    @property
    def signer(self) -> Signer:
        """Signs the failure that stops the job."""


@dataclass(frozen=True)
class RowStep:
    """What a worker receives: a function, the meaning of its results, and its names for errors."""

    function: Callable[..., Any]
    kind: str  # "map", "flat_map" or "where"
    name: str
    where: str
    columns: tuple[str, ...]  # of the result; empty for "where"
    puts_aside: bool = False  # are rows put aside if it fails on them? Else they stop the job
    timeout_seconds: float | None = None  # for one row
    crashes: Address | None = None  # where to report what a worker dies with
    signer: Signer = field(default_factory=driver_signer)


class RowError(Exception):
    """Raised in a worker; its message is the token that carries the failure to the driver."""


class Unfit(Exception):
    """Why a row has no result; another attempt cannot help if it is final."""

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final


def apply_rows(
    frame: DataFrame, step: RowStep, ddl: str, hidden: Sequence[str], rejects: Rejects | None = None
) -> DataFrame:
    """The frame with the function applied to every row; hidden columns stay beside the results."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    kept = [field for field in frame.schema.fields if field.name in hidden]
    made = frame.schema.fields if step.kind == "where" else fields_of(ddl) + kept
    schema = StructType(made)
    arrow = to_arrow_schema(schema, timezone="UTC")
    leaving = with_texts(schema)
    arrow_leaving = to_arrow_schema(leaving, timezone="UTC")
    names = tuple(frame.columns)
    kept_names = tuple(field.name for field in kept)
    lists = null_columns(frame)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            aside: list[Rejection] = []
            with watched(step.crashes) as watch:
                made = _apply_batch(with_nulls(batch, lists), step, names, kept_names, arrow, aside, watch)
            if step.puts_aside:
                yield from with_rejections(made, aside, arrow_leaving)
            else:
                yield made

    if rejects is None:
        return with_empty(frame, lists).mapInArrow(run, schema)
    return parted(with_empty(frame, lists).mapInArrow(run, leaving), schema, rejects)


def fields_of(ddl: str) -> list[StructField]:
    """The columns of a DDL string, as Spark types."""
    from pyspark.sql.types import StructType

    parsed = StructType.fromDDL(ddl)
    return parsed.fields if isinstance(parsed, StructType) else []


def _apply_batch(
    batch: pa.RecordBatch,
    step: RowStep,
    names: tuple[str, ...],
    kept: tuple[str, ...],
    schema: pa.Schema,
    aside: list[Rejection],
    watch: Watch | None = None,
) -> pa.RecordBatch:
    """The results of a batch; rows without one are added to those that are put aside."""
    import pyarrow as pa

    batch, rows = read_rows(batch, step, names, aside)

    def leave_out(index: int, unfit: Unfit) -> None:
        aside.append(rejected(step, *seen_as(rows[index]), original_of(batch, index, names), unfit))

    if step.kind == "where":
        keep = []
        for index, row in enumerate(rows):
            try:
                keep.append(_call(step, row, watch))
            except Unfit as unfit:
                leave_out(index, unfit)
                keep.append(False)
        return batch.filter(pa.array(keep, type=pa.bool_()))
    results: list[_Result] = []
    for index, row in enumerate(rows):
        try:
            made = _call(step, row, watch)
        except Unfit as unfit:
            leave_out(index, unfit)
            continue
        results += [_Result(index, child, values) for child, values in enumerate(made)]
    while (unfit_rows := _unfit_rows(results, step, schema)) is not None:
        for index, told in unfit_rows.items():
            leave_out(index, told)
        results = [result for result in results if result.parent not in unfit_rows]
    return _as_batch(batch, results, step, names, kept, schema)


def read_rows(
    batch: pa.RecordBatch, step: Rejecter, names: tuple[str, ...], aside: list[Rejection]
) -> tuple[pa.RecordBatch, list[Row]]:
    """The rows for the user's function, and the batch without those that Python cannot represent."""
    import pyarrow as pa
    from pyspark.sql import Row

    # The original of a row is for dead letters, and not for the user's function.
    seen = [place for place, name in enumerate(names) if name != ORIGINAL]
    make_row = Row(*(names[place] for place in seen))
    try:
        columns = [batch.column(place).to_pylist() for place in seen]
        return batch, [make_row(*values) for values in zip(*columns, strict=True)]
    except Exception:  # noqa: BLE001 - once more, one by one, to find out which it is: a year beyond 9999, no UTF-8
        kept, rows = [], []
        for index in range(batch.num_rows):
            try:
                rows.append(make_row(*(batch.column(place)[index].as_py() for place in seen)))
                kept.append(index)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this row's
                shown = str({names[at]: repr(batch.column(at)[index]) for at in seen if not names[at].startswith("_")})
                place = batch.column(names.index(POSITION))[index].as_py() if POSITION in names else None
                unfit = Unfit(f"Python cannot have a value of it: {type(error).__name__}: {error}")
                aside.append(rejected(step, place, shown, original_of(batch, index, names), unfit))
        return batch.take(pa.array(kept, type=pa.int64())), rows


def original_of(batch: pa.RecordBatch, index: int, names: tuple[str, ...]) -> dict[str, Any] | None:
    """The source's original of a row of a batch; None if it is not needed."""
    return batch.column(names.index(ORIGINAL))[index].as_py() if ORIGINAL in names else None


@dataclass(frozen=True)
class _Result:
    """A row that a function returned: the batch row that it comes from, its number among their results, its values."""

    parent: int
    child: int
    values: tuple[Any, ...]


def _as_batch(
    batch: pa.RecordBatch,
    results: list[_Result],
    step: RowStep,
    names: tuple[str, ...],
    kept: tuple[str, ...],
    schema: pa.Schema,
) -> pa.RecordBatch:
    """The results, and beside each the hidden columns of the row that it came from."""
    import pyarrow as pa

    columns = [
        pa.array([result.values[place] for result in results], type=schema.field(place).type)
        for place in range(len(step.columns))
    ]
    beside = batch.take(pa.array([result.parent for result in results], type=pa.int64()))
    for name in kept:
        field = schema.field(len(columns))
        if name == POSITION and step.kind == "flat_map":
            places = beside.column(names.index(name)).to_pylist()
            told = [
                {**place, "child": [*(place["child"] or []), result.child]}
                for place, result in zip(places, results, strict=True)
            ]
            columns.append(pa.array(told, type=field.type))
        else:
            columns.append(beside.column(names.index(name)).cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _call(step: RowStep, row: Row, watch: Watch | None) -> Any:
    """The function's result for a row: whether it stays ("where"), or the rows that it becomes, as tuples."""
    if watch is not None:
        place, shown = seen_as(row)
        reason = watch.take(InFlight(step.name, place, shown))
        if reason is not None:
            raise Unfit(reason, is_final=True)
    try:
        with deadline(step.timeout_seconds):
            made = step.function(row)
            if step.kind == "where":
                return bool(made)
            # A generator runs the user's code while it is read.
            return [_as_tuple(one, step) for one in ([made] if step.kind == "map" else _as_list(made))]
    except Unfit:
        raise
    except TimedOut:
        raise Unfit(f"it took longer than {step.timeout_seconds:g} seconds") from None
    except BaseException as error:  # for example sys.exit, which is no Exception
        raise Unfit(f"{type(error).__name__}: {error}") from error


def _as_list(result: Any) -> list[Any]:
    if isinstance(result, str | bytes | Mapping) or not isinstance(result, Iterable):
        raise Unfit(f"flat_map returns an iterable of rows, not {type(result).__name__}")
    return list(result)


def _as_tuple(result: Any, step: RowStep) -> tuple[Any, ...]:
    from pyspark.sql import Row

    if isinstance(result, Row) and hasattr(result, "__fields__"):
        result = result.asDict()
    if isinstance(result, Mapping):
        unknown = set(result) - set(step.columns)
        missing = set(step.columns) - set(result)
        if not unknown and not missing:
            return tuple(result[name] for name in step.columns)
        told = f"lacks {sorted(missing)}" if missing else f"has {sorted(unknown)} beside it"
        raise Unfit(f"the result {told}; its schema has {', '.join(step.columns)}")
    if isinstance(result, tuple | list) and len(result) == len(step.columns):
        return tuple(result)
    raise Unfit(f"{result!r} is not a dict or tuple of ({', '.join(step.columns)})")


def _unfit_rows(results: list[_Result], step: RowStep, schema: pa.Schema) -> dict[int, Unfit] | None:
    """The rows whose results have values that their columns cannot hold, with the reason; None if all fit."""
    import pyarrow as pa

    for place, name in enumerate(step.columns):
        field = schema.field(place)
        try:
            made = pa.array([result.values[place] for result in results], type=field.type)
            if made.null_count and not field.nullable:
                raise ValueError(f"{name} is NOT NULL")
        except Exception:
            # Check again, one by one, to find the rows that do not fit.
            found: dict[int, Unfit] = {}
            for result in results:
                try:
                    if result.values[place] is None and not field.nullable:
                        raise ValueError("it is NOT NULL")
                    pa.array([result.values[place]], type=field.type)
                except Exception as error:  # noqa: BLE001 - an object may raise whatever it likes when it is read
                    told = f"{name}={result.values[place]!r} is not of type {field.type}: {str(error).splitlines()[0]}"
                    found.setdefault(result.parent, Unfit(told))
            if not found:
                raise
            return found
    return None


def seen_as(row: Row) -> tuple[dict[str, Any] | None, str]:
    """The place of a row, and the row as text for people."""
    values = row.asDict()
    place = values.get(POSITION)  # it may be a column of the user with this name
    known = place if isinstance(place, dict) and isinstance(place.get("at"), int) else None
    return known, str({name: value for name, value in values.items() if not name.startswith("_")})


def rejected(
    step: Rejecter, place: Mapping[str, Any] | None, shown: str, original: Mapping[str, Any] | None, unfit: Unfit
) -> Rejection:
    """A row without a result, as it is put aside; or stop the job."""
    if step.puts_aside:
        return Rejection(step.name, str(unfit), place, shown, as_base64(original), unfit.is_final)
    raise RowError(
        RowFailure(
            kind="function",
            where=step.where,
            part=f"{place['source']}, {place['part']}" if place else "an unknown place",
            at=place["at"] if place else -1,
            reason=str(unfit),
            row=shown,
        ).token(step.signer)
    ) from unfit
