"""Functions of the author's on Arrow batches, without Spark: what they return is checked row by row."""

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row

from lockgate.connectors.rejects import Rejection, read_rejection
from lockgate.dataflow.endpoints import POSITION
from lockgate.failures import RowFailure, find_failure
from lockgate.signing import driver_signer
from lockgate.spark.functions import RowError, RowStep, _apply_batch

PLACE = pa.struct([("source", pa.string()), ("part", pa.string()), ("at", pa.int64()), ("child", pa.list_(pa.int32()))])
BATCH = pa.record_batch(
    [
        pa.array([1, 2, 3], type=pa.int32()),
        pa.array([{"source": "orders", "part": "orders-000002", "at": at, "child": []} for at in (40, 41, 42)], PLACE),
    ],
    names=["v", POSITION],
)


def apply(function: Callable[..., Any], kind: str, schema: pa.Schema, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    step = RowStep(function=function, kind=kind, name="m", where="map 'm', declared at job.py:7", columns=columns)
    return list(_apply_batch(BATCH, step, ("v", POSITION), (POSITION,), schema, []).to_pylist())


def apply_map(function: Callable[..., Any], kind: str = "map") -> list[dict[str, Any]]:
    return apply(function, kind, pa.schema([("w", pa.int32()), (POSITION, PLACE)]), ("w",))


def failure(function: Callable[..., Any], kind: str = "map") -> RowFailure:
    with pytest.raises(RowError) as caught:
        apply_map(function, kind)
    found = find_failure(str(caught.value))
    assert found is not None
    return found


def test_a_dict_and_a_tuple_are_both_rows() -> None:
    assert [row["w"] for row in apply_map(lambda row: {"w": row.v * 2})] == [2, 4, 6]
    assert [row["w"] for row in apply_map(lambda row: (row.v * 2,))] == [2, 4, 6]


def test_a_filter_keeps_the_rows_for_which_the_function_holds() -> None:
    kept = apply(lambda row: row.v != 2, "where", BATCH.schema, ())
    assert [row["v"] for row in kept] == [1, 3]


def test_the_children_of_a_row_are_numbered_beside_its_position() -> None:
    made = apply_map(lambda row: [(row.v,)] * (row.v - 1), kind="flat_map")
    assert [(row["w"], row[POSITION]["at"], row[POSITION]["child"]) for row in made] == [
        (2, 41, [0]),
        (3, 42, [0]),
        (3, 42, [1]),
    ]


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ({"w": "many"}, "w='many' is not of type int32"),
        ({"v": 1}, "the result lacks ['w']"),
        ({"w": 1, "x": 2}, "the result has ['x'] beside it"),
        (5, "5 is not a dict or tuple of (w)"),
        ((1, 2), "(1, 2) is not a dict or tuple of (w)"),
        ({"w": 2**40}, "is not of type int32"),
        (None, "None is not a dict or tuple"),
    ],
)
def test_what_the_schema_does_not_allow_names_the_row(result: Any, told: str) -> None:
    found = failure(lambda row: result if row.v == 2 else {"w": row.v})
    assert told in found.reason
    assert (found.part, found.at, found.row) == ("orders, orders-000002", 41, "{'v': 2}")
    assert found.where == "map 'm', declared at job.py:7"


def test_a_row_is_read_by_its_names() -> None:
    schema = pa.schema([("a", pa.int32()), ("b", pa.int32()), (POSITION, PLACE)])
    made = apply(lambda row: Row(b=row.v, a=0), "map", schema, ("a", "b"))
    assert [(row["a"], row["b"]) for row in made] == [(0, 1), (0, 2), (0, 3)]


def test_none_in_a_column_that_is_not_null_names_the_row() -> None:
    schema = pa.schema([pa.field("w", pa.int32(), nullable=False), (POSITION, PLACE)])
    with pytest.raises(RowError) as caught:
        apply(lambda row: {"w": None if row.v == 2 else 1}, "map", schema, ("w",))
    found = find_failure(str(caught.value))
    assert found is not None
    assert (found.at, "it is NOT NULL" in found.reason) == (41, True)


@pytest.mark.parametrize("result", ["text", {"w": 1}, 7])
def test_a_flat_map_returns_an_iterable_of_rows(result: Any) -> None:
    assert "flat_map returns an iterable of rows" in failure(lambda row: result, kind="flat_map").reason


def test_a_generator_that_raises_half_way_names_the_row() -> None:
    def fail(row: Row) -> Any:
        yield (row.v,)
        if row.v == 3:
            raise KeyError("price")

    found = failure(fail, kind="flat_map")
    assert found.reason == "KeyError: 'price'"
    assert found.at == 42


def test_a_failure_survives_being_wrapped_in_other_text() -> None:
    found = failure(lambda row: 1 / 0)
    token = found.token(driver_signer())
    wrapped = f"[STREAM_FAILED] Query terminated: Traceback ... RowError: {token}\n\tat org.apache.spark"
    assert find_failure(wrapped) == found
    assert "A function failed on the row from orders, orders-000002, offset 40" in str(found.as_error())


def tolerant(function: Callable[..., Any], kind: str = "map", batch: pa.RecordBatch = BATCH) -> tuple[list[Any], Any]:
    """What comes out, and what is put aside, where nothing stops the job."""
    aside: list[Rejection] = []
    columns = () if kind == "where" else ("w",)
    step = RowStep(function=function, kind=kind, name="m", where="here", columns=columns, puts_aside=True)
    schema = batch.schema if kind == "where" else pa.schema([("w", pa.int32()), (POSITION, PLACE)])
    made = _apply_batch(batch, step, tuple(batch.schema.names), (POSITION,), schema, aside)
    return made.column(0).to_pylist(), [read_rejection(one.facts, one.whole) for one in aside]


class Lazy(Mapping[str, int]):
    """A mapping that finds out too late that it has nothing."""

    def __getitem__(self, name: str) -> int:
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(["w"])

    def __len__(self) -> int:
        return 1


class NoTruth:
    """What can be returned and not be asked whether it holds, as an array of numpy's."""

    def __bool__(self) -> bool:
        raise ValueError("the truth of many is not known")


@pytest.mark.parametrize(
    ("kind", "fails", "reason"),
    [
        ("map", lambda: sys.exit(2), "SystemExit: 2"),
        ("flat_map", lambda: sys.exit(2), "SystemExit: 2"),
        ("where", lambda: NoTruth(), "ValueError: the truth of many is not known"),
        ("map", lambda: Lazy(), "KeyError: 'w'"),
    ],
)
def test_however_a_function_fails_it_costs_one_row(kind: str, fails: Callable[[], Any], reason: str) -> None:
    def function(row: Any) -> Any:
        good = {"where": True, "map": {"w": row.v}, "flat_map": [{"w": row.v}]}[kind]
        return fails() if row.v == 2 else good

    made, (aside,) = tolerant(function, kind)
    assert made == [1, 3]
    assert (aside.position["at"], aside.reason) == (41, reason)


def test_a_value_that_python_cannot_have_costs_one_row() -> None:
    times = pa.array([0, 2**62, 3_000_000], pa.timestamp("us", "UTC"))
    batch = pa.record_batch([times, BATCH.column(1)], names=["t", POSITION])
    made, (aside,) = tolerant(lambda row: (row.t.second,), batch=batch)
    assert made == [0, 3]
    assert aside.position["at"] == 41
    assert "Python cannot have a value of it" in aside.reason


def test_a_long_reason_is_cut_so_that_its_dead_letter_fits_somewhere() -> None:
    def function(row: Any) -> Any:
        raise ValueError("x" * 1_000_000)

    _, aside = tolerant(function)
    assert [len(one.reason) < 10_000 for one in aside] == [True] * 3


def test_a_column_of_the_user_with_the_name_of_the_position_is_no_position() -> None:
    batch = pa.record_batch([pa.array([1, 2]), pa.array(["51 N", "52 N"])], names=["v", POSITION])
    aside: list[Rejection] = []
    step = RowStep(function=lambda row: 1 // 0, kind="map", name="m", where="here", columns=("w",), puts_aside=True)
    _apply_batch(batch, step, ("v", POSITION), (), pa.schema([("w", pa.int32())]), aside)
    assert [one.position for one in aside] == [None, None]
