"""Columns as Python's values: what they are, and which row holds what Python cannot have."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from lockgate.spark.keys import OutOfReach, as_keys, as_list

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
MICROS = 1_767_225_600_000_000  # that moment


def chunked(kind: pa.DataType, *chunks: list[int | None]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(chunk, pa.int64()).cast(kind) for chunk in chunks])


def test_times_are_aware_where_the_column_is() -> None:
    assert as_list(chunked(pa.timestamp("us", "UTC"), [MICROS, None])) == [MOMENT, None]
    assert as_list(chunked(pa.timestamp("us"), [MICROS])) == [MOMENT.replace(tzinfo=None)]
    last = datetime.max.replace(tzinfo=UTC)
    beyond = (last - MOMENT) // timedelta(microseconds=1) + MICROS
    assert as_list(chunked(pa.timestamp("us", "UTC"), [beyond])) == [last]


@pytest.mark.parametrize("beyond", [MICROS * 1000, -MICROS * 1000])
def test_a_time_beyond_the_years_of_python_is_named_with_its_row(beyond: int) -> None:
    times = chunked(pa.timestamp("us", "UTC"), [MICROS, None], [MICROS, beyond, beyond])
    for read in (as_list, as_keys):
        with pytest.raises(OutOfReach) as refused:
            read(times, "at")
        assert refused.value.number == 3
        assert refused.value.reason.startswith(f"at holds a time ({beyond} microseconds from 1970)")


def test_so_are_dates_and_what_is_inside_of_other_values() -> None:
    dates = pa.chunked_array([pa.array([0, 4_000_000], pa.int32()).cast(pa.date32())])
    times = pa.array([MICROS, MICROS * 1000], pa.int64()).cast(pa.timestamp("us", "UTC"))
    inside = pa.chunked_array([pa.StructArray.from_arrays([times], names=["at"])])
    first: list[Any] = [date(1970, 1, 1), {"at": MOMENT}]
    for column, value in zip((dates, inside), first, strict=True):
        assert as_list(column.slice(0, 1)) == [value]
        with pytest.raises(OutOfReach, match="holds a time that is not within") as refused:
            as_list(column)
        assert refused.value.number == 1
