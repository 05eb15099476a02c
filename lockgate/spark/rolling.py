"""Rolling aggregates: every event, with aggregates over its key as of that event.

Spark has no native form of it in a stream, so `transformWithState` keeps one small row of accumulators for each key.
The rows of a key are sorted by source position first: Spark replays an epoch with the same rows, but not in the same
order, and replayed state must equal the rows that are already out. State is read and written once a key and epoch,
because every call for it is a round trip to the JVM.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lockgate.dataflow.endpoints import POSITION
from lockgate.errors import InvariantBroken
from lockgate.failures import RowFailure
from lockgate.faultpoints import FaultPoint, arm, armed, reach
from lockgate.planner.sql import Fold, read_fold
from lockgate.spark.functions import RowError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row


def apply_rolling(frame: DataFrame, keys: Sequence[str], aggregates: Mapping[str, str], where: str) -> DataFrame:
    """The frame with the aggregates as of each row beside its columns."""
    from pyspark.sql import Row
    from pyspark.sql import functions as F
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import LongType, StructField, StructType

    folds: dict[str, Fold] = {}
    for name, sql in aggregates.items():
        fold = read_fold(sql)
        if fold is None:
            raise InvariantBroken(
                f"{sql!r} is no fold", where=f"rolling {name!r}", fix="report this: the planner let it pass"
            )
        folds[name] = fold
    columns = tuple(frame.columns)
    # Spark's own analyser tells the type of each result, e.g. BIGINT for the sum of INTs.
    types = frame.groupBy().agg(*(F.expr(sql).alias(name) for name, sql in aggregates.items())).schema
    results = StructType([StructField(name, types[name].dataType) for name in aggregates])
    output = StructType([*frame.schema.fields, *results.fields])
    # An average is kept as its sum, which needs more room than the average itself.
    kept = {
        name: frame.groupBy().agg(F.expr(f"sum({fold.argument})").alias(name)).schema[name].dataType
        if fold.function == "avg"
        else types[name].dataType
        for name, fold in folds.items()
    }
    state = StructType(
        [StructField(f"value_{name}", kept[name]) for name in aggregates]
        + [StructField(f"count_{name}", LongType()) for name in aggregates]
    )
    plans = tuple((f"__{name}", fold.function, isinstance(kept[name], LongType)) for name, fold in folds.items())
    fed = frame.select(
        "*",
        *(
            (F.lit(1) if fold.argument is None else F.expr(fold.argument).cast(_input_type(fold, kept[name]))).alias(
                f"__{name}"
            )
            for name, fold in folds.items()
        ),
    )
    width = len(columns)
    # Made here, not in the worker: a Row factory is plain data.
    make_row = Row(*columns, *aggregates)

    faults = armed()

    class Accumulate(StatefulProcessor):
        def init(self, handle: Any) -> None:
            arm(faults)
            self.kept = handle.getValueState("accumulators", state)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
            before = self.kept.get()
            values = list(before[: len(plans)]) if before else [None] * len(plans)
            counts = list(before[len(plans) :]) if before else [0] * len(plans)
            for row in in_order(list(rows)):
                shown = []
                for place, (column, function, is_whole) in enumerate(plans):
                    value = row[column]
                    if value is not None:
                        values[place] = _fold(function, values[place], value)
                        counts[place] += 1
                    if is_whole and not -(2**63) <= (values[place] or 0) < 2**63:
                        raise RowError(_overflow(row, column, where).token())
                    shown.append(_result(function, values[place], counts[place]))
                yield make_row(*row[:width], *shown)
            self.kept.update((*values, *counts))
            reach(FaultPoint.STATE_UPDATE)

        def close(self) -> None:
            pass

    return fed.groupBy(*keys).transformWithState(
        statefulProcessor=Accumulate(), outputStructType=output, outputMode="Append", timeMode="None"
    )


def in_order(rows: list[Row]) -> list[Row]:
    """The rows by source position; rows of one position (a stream merged with itself) by their content."""
    rows.sort(key=_place)
    if any(_place(one) == _place(two) for one, two in pairwise(rows)):
        rows.sort(key=lambda row: (_place(row), repr(row)))
    return rows


def _place(row: Row) -> tuple[str, str, int, list[int]]:
    position = row[POSITION]
    return position["source"], position["part"], position["at"], position["child"] or []


def _input_type(fold: Fold, result: Any) -> str:
    """The type in which values are folded: wide enough for a sum, as it is for a min or max."""
    return "bigint" if fold.function == "count" else str(result.simpleString())


def _fold(function: str, before: Any, value: Any) -> Any:
    if before is None or function == "count":
        return value
    if function == "min":
        return min(before, value, key=_rank)
    if function == "max":
        return max(before, value, key=_rank)
    return before + value


def _rank(value: Any) -> Any:
    """NaN is greater than every other number, as Spark has it; in Python it is neither greater nor less."""
    return (value != value, value) if isinstance(value, float) else value


def _overflow(row: Row, column: str, where: str) -> RowFailure:
    source, part, at, _ = _place(row)
    reason = f"the rolling sum {column.removeprefix('__')} is too large for a BIGINT"
    return RowFailure("function", where, f"{source}, {part}", at, reason, "")


def _result(function: str, value: Any, count: int) -> Any:
    if function == "count":
        return count
    if function == "avg":
        return None if count == 0 else value / count
    return value
