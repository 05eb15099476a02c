"""A task's side of an epoch: Arrow batches into a staging table by COPY; its result is its vote.

Runs in Spark's Python workers. Every attempt of a task creates a table of its own and fills it in one transaction, so
attempts cannot mix. Only tables that reach the driver as votes are ever moved. Those of other attempts are removed.

Arrow writes the rows as CSV, whole batches at a time. In it PostgreSQL distinguishes an empty field (null) from a
quoted one (''). If Arrow has no text for a value that PostgreSQL reads, the JVM writes the text before: bytes as hex
digits, nested values as JSON.

If PostgreSQL refuses a row, that is no failure of the task but its result. A retry cannot help, and Spark would retry
three times. The same holds for a server that is away. The driver waits for it, because no user sees what a worker
reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from lockgate.connectors.postgres.connect import Away, connect, translated_errors
from lockgate.connectors.postgres.staging import Staging, make_table
from lockgate.connectors.postgres.tableschema import NESTED, Fit
from lockgate.dataflow.deletes import DELETED
from lockgate.dataflow.schema import quote
from lockgate.errors import EpochFailed, LockgateError
from lockgate.failures import Carried, carry, find_error, find_raised
from lockgate.faultpoints import Fault, FaultPoint, arm, reach
from lockgate.signing import Signer, driver_signer

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

VOTES = "write STRING, output STRING, rows BIGINT, failure STRING"
"""One row per task that had rows: the table it wrote and how many rows, or why PostgreSQL refused them."""

_PATIENCE = timedelta(seconds=5)
_ROW_BITS = 40
_JSON = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "timeZone": "UTC"}


@dataclass(frozen=True)
class CopyOrder:
    """What a task receives: the target, and the shape of the rows."""

    dsn: str
    staging: Staging
    output: str
    faults: tuple[Fault, ...]
    where: str
    signer: Signer = field(default_factory=driver_signer)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage the rows of a task and cast its vote."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        arm(self.faults)
        yield from self.vote(batches, task=context.partitionId())

    def vote(self, batches: Iterable[pa.RecordBatch], *, task: int) -> Iterator[pa.RecordBatch]:
        """Stage rows in a table of this attempt; yield its vote."""
        try:
            staged = self.copy(batches, task=task)
        except LockgateError as error:
            if isinstance(error, EpochFailed) and not isinstance(error, Away):
                raise Carried(error, self.signer) from error
            yield _as_batch([(None, self.output, 0, carry(error, self.signer))])
            return
        if staged is not None:
            yield _as_batch([(*staged, None)])

    def copy(self, batches: Iterable[pa.RecordBatch], *, task: int) -> tuple[str, str, int] | None:
        """Write all rows to a new table, or none: its name, the output, how many; None if there are no rows."""
        from psycopg.sql import SQL, Identifier

        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return None
        reach(FaultPoint.RECEIVE)
        staging, rows = self.staging, 0
        connection = connect(self.dsn, where=self.where, name=f"lockgate task {task}", patience=_PATIENCE)
        try:
            with translated_errors(where=self.where, table=str(staging.table)):
                name = make_table(connection, staging)
                statement = SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(
                    name.sql, SQL(", ").join(map(Identifier, staging.all_columns))
                )
                if not staging.is_logged:
                    # A crash of the server may take the commit: the rows are gone then anyway.
                    connection.execute("SET LOCAL synchronous_commit = off")
                with connection.cursor() as cursor, cursor.copy(statement) as copy:
                    for batch in _chain(first, filled):
                        copy.write(as_csv(batch, number=(task << _ROW_BITS) + rows if staging.key else None))
                        rows += batch.num_rows
                        reach(FaultPoint.HALF)
                connection.commit()
        finally:
            connection.close()
        reach(FaultPoint.EMIT)
        return name.name, self.output, rows


def encode(rows: DataFrame, fits: Sequence[Fit]) -> DataFrame:
    """The columns that are copied, in the table's names, as types that Arrow writes and PostgreSQL reads."""
    from pyspark.sql import functions as F

    made = [_text_form(F.col(quote(one.row.name)), one).alias(one.column.name) for one in fits]
    return rows.select(*made, *([DELETED] if DELETED in rows.columns else []))


def collect_votes(rows: DataFrame, order: CopyOrder) -> dict[str, int]:
    """Let the tasks stage these rows; return the ids of what is staged, with their row counts."""
    try:
        votes = rows.mapInArrow(order, VOTES).collect()
    except Exception as error:
        failure = find_raised(error)
        if failure is None:
            raise
        raise failure from error
    for vote in votes:
        if vote.failure is not None:
            raise find_error(vote.failure) or EpochFailed(
                f"a task failed: {vote.failure}", where=order.where, fix="the epoch is repeated"
            )
    return {vote.write: vote.rows for vote in votes}


def as_csv(batch: pa.RecordBatch, *, number: int | None) -> bytes:
    """A batch as PostgreSQL's CSV; with a number, every row ends with a running number that starts there."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv as csv

    columns = [_utc(column) for column in batch.columns]
    if number is not None:
        columns.append(pa.array(np.arange(number, number + batch.num_rows, dtype=np.int64)))
    names = [str(place) for place in range(len(columns))]
    buffer = pa.BufferOutputStream()
    options = csv.WriteOptions(include_header=False, batch_size=batch.num_rows, quoting_style="needed")
    csv.write_csv(pa.RecordBatch.from_arrays(columns, names=names), buffer, options)
    text: bytes = buffer.getvalue().to_pybytes()
    return text


def _utc(column: Any) -> Any:
    """Moments as text in UTC: for any other zone Arrow needs a time zone database, which a worker may not have."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        return column.cast(pa.timestamp("us", tz="UTC"))
    if pa.types.is_time(column.type):
        return column.cast(pa.time64("us"), safe=False)
    return column


def _text_form(column: Column, fit: Fit) -> Column:
    from pyspark.sql import functions as F

    if fit.row.kind == "binary":
        return F.concat(F.lit("\\x"), F.hex(column))
    if fit.row.kind in NESTED:
        return F.to_json(column, _JSON)
    if fit.row.kind == "float" and fit.column.base == "float8":
        return column.cast("double")  # the same number, and not the one that its shortest text means
    return column


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _as_batch(votes: list[tuple[Any, ...]]) -> pa.RecordBatch:
    import pyarrow as pa

    kinds = {"write": pa.string(), "output": pa.string(), "rows": pa.int64(), "failure": pa.string()}
    return pa.RecordBatch.from_pylist([dict(zip(kinds, vote, strict=True)) for vote in votes], schema=pa.schema(kinds))
