"""Move the state of a checkpoint to another number of partitions, by Spark's offline repartition.

Spark adds an epoch to the checkpoint that reads nothing and calls no sink: the old offsets with another number of
partitions, all state rewritten for it, then the commit. Spark redistributes its own operators by their keys. Ours need
more: Spark knows only buckets, and the keys inside their pages belong elsewhere (`dealing`):

    deal      in the tasks that read the old state: every page as pieces, one for each new bucket
    exchange  to the partition of the bucket, by the least hash of each piece
    gather    pages again, the index after them, and what a bucket has once: its owner, its timers

Spark's repartition accepts no function of ours. So we call its steps one by one, each as Spark calls it. They are
private, and this file is the one place that knows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lockgate.errors import InvariantBroken, Refused
from lockgate.failures import Carried
from lockgate.operators.pagestore import INDEX, damaged
from lockgate.operators.redistribution import gather, redistribute
from lockgate.signing import driver_signer
from lockgate.spark.keyed import OWNER
from lockgate.spark.packing import buckets_of
from lockgate.spark.staterows import binary_row, bucket_key, cell_key, cell_of, read_binary, timer_of
from lockgate.untrusted import Unreadable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_TIMERS = ("$eventTimers", "$procTimers")
_ROWS_AT_ONCE = 16  # a page may have half a megabyte
# The steps of Spark's own `run`, except the move.
_STEPS = (
    "checkpointMetadata",
    "resolvedCpLocation",
    "hadoopConf",
    "getLastCommittedBatchId",
    "getLastBatchId",
    "createNewBatchIfNeeded",
    "updateNumPartitionsInOperatorMetadata",
    "commitBatch",
)
_PIECES = "part INT, family STRING, least BIGINT, piece BINARY"


@dataclass(frozen=True)
class Buckets:
    """What the buckets of one operator of ours have in common, and their pages do not contain."""

    owner: str  # the step that they belong to
    pages: Mapping[str, Common] = field(default_factory=dict)  # by the names of the states


@dataclass(frozen=True)
class Common:
    """What the indexes of all buckets have in common."""

    clock: int
    declared: Mapping[str, Any] | None


def repartition_state(spark: SparkSession, root: str, partitions: int, buckets: Mapping[int, Buckets]) -> int:
    """Rewrite the state for this number of partitions; returns the number of the epoch that was added for it.

    Continues a run that was interrupted. No query of the checkpoint may run in the meantime.

    Args:
        buckets: the operators of ours, by the numbers that Spark gave them.
    """
    from pyspark.java_gateway import ensure_callback_server_started
    from pyspark.sql import DataFrame

    def move(operator: int, rows: DataFrame) -> DataFrame:
        if operator in buckets:
            return deal_out(rows, partitions, buckets[operator])
        return rows.repartition(partitions, "partition_key")

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", _ROWS_AT_ONCE)
    jvm: Any = spark._jvm
    state = jvm.org.apache.spark.sql.execution.streaming.state
    call = _Private(spark, state.OfflineStateRepartitionRunner(spark._jsparkSession, root, partitions, True), _STEPS)
    logs, committed = call("checkpointMetadata"), call("getLastCommittedBatchId")
    added = int(call("createNewBatchIfNeeded", call("getLastBatchId"), committed))
    ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
    mover = _Mover(lambda operator, rows: move(operator, DataFrame(rows, spark)))
    rewriter = state.StateRewriter(
        spark._jsparkSession,
        committed,
        added,
        call("resolvedCpLocation"),
        call("hadoopConf"),
        jvm.scala.Option.empty(),
        jvm.scala.Some(mover),
        jvm.scala.Some(logs),
    )
    try:
        written = rewriter.run()
    except Exception:
        if mover.error is not None:
            raise mover.error from None
        raise
    call("updateNumPartitionsInOperatorMetadata", added, committed)
    call("commitBatch", added, committed, written)
    return added


class _Mover:
    """A move as a function of the JVM; its exception is kept, because the JVM keeps only the text."""

    def __init__(self, move: Callable[[int, Any], DataFrame]) -> None:
        self._move = move
        self.error: Exception | None = None

    def apply(self, rows: Any) -> Any:
        try:
            operator = int(rows.queryExecution().analyzed().options().get("operatorId"))
            return self._move(operator, rows)._jdf
        except Exception as error:
            self.error = error
            raise

    class Java:
        implements = ["scala.Function1"]  # noqa: RUF012 - as py4j wants it


class _Private:
    """An object of Spark's whose methods are private, looked up before any of them is called."""

    def __init__(self, spark: SparkSession, target: Any, names: Sequence[str]) -> None:
        self._spark, self._target = spark, target
        declared = {str(method.getName()): method for method in target.getClass().getDeclaredMethods()}
        missing = [name for name in names if name not in declared]
        if missing:
            raise Refused(
                f"this release of Spark repartitions state in another way: it has no {missing[0]}",
                where="Spark's offline repartition",
                fix="use the release of PySpark that this version of Lockgate was made for: 4.3",
            )
        self._methods = {name: declared[name] for name in names}
        for method in self._methods.values():
            method.setAccessible(True)

    def __call__(self, name: str, *arguments: Any) -> Any:
        """Call a method with as many of these arguments as it takes; reflection widens numbers."""
        jvm: Any = self._spark._jvm
        gateway: Any = self._spark.sparkContext._gateway
        method = self._methods[name]
        given = gateway.new_array(jvm.java.lang.Object, method.getParameterCount())
        for place, argument in enumerate(arguments[: method.getParameterCount()]):
            given[place] = argument
        return method.invoke(self._target, given)


def deal_out(rows: DataFrame, partitions: int, buckets: Buckets) -> DataFrame:
    """The rows of an operator of ours, in this number of new buckets."""
    from pyspark.sql.types import StructType

    timers, as_pieces = _timers(rows), StructType.fromDDL(_PIECES)
    assert isinstance(as_pieces, StructType)
    numbers, pages = buckets_of(partitions), dict(buckets.pages)
    owner, schema, signer = binary_row(buckets.owner.encode()), rows.schema, driver_signer()

    def row(bucket: int, key: bytes, value: bytes, family: str) -> pa.RecordBatch:
        return _batch(({"bucket": bucket}, key, value, family), schema)

    def pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for key, value, family in zip(*(batch.column(place).to_pylist() for place in (1, 2, 3)), strict=True):
                cell = cell_of(key)
                if cell == INDEX:
                    continue
                try:
                    dealt = list(redistribute(read_binary(value), partitions))
                except Unreadable as error:
                    raise Carried(damaged(cell, error), signer) from error
                for piece in dealt:
                    yield _batch((piece.bucket, family, piece.least, piece.content), as_pieces)

    def buckets_again(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        bucket = numbers[context.partitionId()]
        given = _Given(batches)
        for family in sorted(pages):
            common = pages[family]
            for name, content in gather(given.of(family), clock=common.clock, declared=common.declared):
                yield row(bucket, cell_key(bucket, name), binary_row(content), family)
        given.check()
        yield row(bucket, bucket_key(bucket), owner, OWNER)
        for family, key, value in timers:
            yield row(bucket, timer_of(key, bucket), value, family)

    dealt = rows.where(rows["column_family_name"].isin(list(pages))).mapInArrow(pieces, as_pieces)
    placed = dealt.repartitionById(partitions, dealt["part"]).sortWithinPartitions("family", "least")
    return placed.mapInArrow(buckets_again, schema)


class _Given:
    """Pieces by family, one after the other, in their order."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._rows = (
            row
            for batch in batches
            for row in zip(*(batch.column(place).to_pylist() for place in (1, 2, 3)), strict=True)
        )
        self._next = next(self._rows, None)

    def of(self, family: str) -> Iterator[tuple[int, bytes]]:
        """The pieces of a family."""
        while self._next is not None and self._next[0] == family:
            _, least, piece = self._next
            self._next = next(self._rows, None)
            yield least, piece

    def check(self) -> None:
        """Check that none is left."""
        if self._next is not None:
            raise InvariantBroken(
                f"pieces of {self._next[0]!r} were out of order", where="rescaling of state", fix="report this"
            )


def is_timers(state: str) -> bool:
    """Are these timers, which Spark keeps as states of an operator?"""
    return state.startswith(_TIMERS)


def _timers(rows: DataFrame) -> list[tuple[str, bytes, bytes]]:
    """The timers of one bucket. All buckets have the same: each must be called when the time moves."""
    from pyspark.sql import functions as F

    family = F.col("column_family_name")
    is_timer = F.lit(False)
    for kind in _TIMERS:
        is_timer = is_timer | family.startswith(kind)
    found = rows.where(is_timer).collect()
    first = min((row["partition_key"]["bucket"] for row in found), default=None)
    return [
        (row["column_family_name"], bytes(row["key_bytes"]), bytes(row["value_bytes"]))
        for row in found
        if row["partition_key"]["bucket"] == first
    ]


def _batch(values: tuple[Any, ...], schema: Any) -> pa.RecordBatch:
    """One row."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    made = to_arrow_schema(schema)
    columns = [pa.array([value], one.type) for value, one in zip(values, made, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=made)
