"""MemorySource: rows in the job file, for tests and first steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockgate.connectors.local.numbered import NumberedSource, read_numbered
from lockgate.dataflow.arguments import explain_wrong_calls
from lockgate.dataflow.endpoints import Reading, SourceAbility
from lockgate.dataflow.origin import caller
from lockgate.dataflow.schema import Schema, parse_ddl
from lockgate.errors import BadJob
from lockgate.failures import RowFailure
from lockgate.signing import driver_signer

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@explain_wrong_calls('MemorySource([("a", 1), ("b", 2)], value="name STRING, n INT")')
@dataclass(frozen=True, init=False)
class MemorySource(NumberedSource):
    """Rows in the job file, for tests and first steps.

    Args:
        rows: tuples or dicts.
        value: the columns, as Spark DDL.
        per_epoch: how many rows an epoch takes.

    Raises:
        BadJob: a row does not fit the columns.

    >>> numbers = stream("numbers", MemorySource([(1, "one"), {"n": 2, "word": "two"}], value="n INT, word STRING"))
    """

    rows: tuple[tuple[Any, ...], ...]
    value: str
    per_epoch: int | None

    def __init__(
        self, rows: Sequence[Sequence[Any] | Mapping[str, Any]], *, value: str, per_epoch: int | None = None
    ) -> None:
        where = f"MemorySource, declared at {caller()}"
        columns = parse_ddl(value, where)
        object.__setattr__(self, "rows", tuple(_as_tuple(row, columns, where) for row in rows))
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "per_epoch", per_epoch)

    @property
    def ability(self) -> SourceAbility:
        return SourceAbility(is_replayable=True, reason="the rows are in the job file")

    @property
    def tasks(self) -> str:
        return "1"

    def columns(self, where: str) -> Schema:
        return parse_ddl(self.value, where)

    def summary(self) -> tuple[str, ...]:
        return ("MemorySource", f"{len(self.rows)} rows")

    def read(self, spark: SparkSession, reading: Reading) -> DataFrame:
        rows, where, signer = self.rows, reading.where, driver_signer()

        def generate(first: int, last: int, schema: pa.Schema) -> pa.RecordBatch:
            import pyarrow as pa

            def column(index: int, field: pa.Field) -> pa.Array:
                try:
                    return pa.array([row[index] for row in numbered], type=field.type)
                except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                    reason = f"{field.name} is not of type {field.type}: {str(error).splitlines()[0]}"
                    failure = RowFailure("value", where, "the rows of the job file", first, reason, "")
                    raise ValueError(failure.token(signer)) from error

            numbered = [(*rows[number], number) for number in range(first, last)]
            arrays = [column(index, field) for index, field in enumerate(schema)]
            return pa.RecordBatch.from_arrays(arrays, schema=schema)

        return read_numbered(
            spark,
            name=reading.name,
            ddl=self.value,
            columns=parse_ddl(self.value, reading.where).names,
            generate=generate,
            available=lambda _: len(rows),
            per_epoch=self.per_epoch or reading.rows_per_epoch,
            partitions=1,
        )


def _as_tuple(row: Sequence[Any] | Mapping[str, Any], columns: Schema, where: str) -> tuple[Any, ...]:
    if isinstance(row, Mapping):
        unknown = set(row) - set(columns.names)
        if not unknown:
            return tuple(row.get(name) for name in columns.names)
    elif len(row) == len(columns.columns):
        return tuple(row)
    raise BadJob(
        f"the row {row!r} does not fit the columns ({columns})", where=where, fix="give every row these columns"
    )
