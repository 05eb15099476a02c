"""The engine of keyed operators: keys, order, time and types, first without Spark, then through it."""

import math
import pickle
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from lockgate import (
    Guarantee,
    Job,
    Late,
    MemorySink,
    MemorySource,
    Output,
    Run,
    StatefulFunction,
    Stream,
    aggregates,
    pattern,
    stream,
    value,
    windows,
)
from lockgate.errors import BadJob, CheckpointDamaged, FunctionFailed, Refused
from lockgate.failures import Carried, find_error, find_failure
from lockgate.operators.contract import Clock, Key, Operator, Outcome, Side, StepFailed, Values
from lockgate.operators.pagestore import PageStore
from lockgate.spark.bucket import BucketRun, Place
from lockgate.spark.functions import RowError
from lockgate.spark.packing import buckets_of
from support.runs import run_to_the_end

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)

# -- without Spark -----------------------------------------------------------------------------------------------------

PLACED = pa.schema(
    [
        ("__hash", pa.int64()),
        ("__source", pa.string()),
        ("__part", pa.string()),
        ("__at", pa.int64()),
        ("__child", pa.list_(pa.int32())),
    ]
)


class Collect(Operator):
    """Gives the values of a key that have come so far, with every row."""

    reads = ("v",)
    sides = (Side("result", "seen ARRAY<INT>"), Side("late", "", keeps_row=True), Side("other", "n INT"))

    def step(self, key: Key, state: Any, rows: Sequence[Values], clock: Clock) -> Outcome:
        seen, told = list(state or ()), []
        for number, one in rows:
            if one is None:
                raise StepFailed("there is no value", number)
            seen.append(one)
            told.append((0, (list(seen),)))
        return Outcome(seen, [*told, (1, (0,)), (2, (7,))])


class Cells(dict[str, bytes]):
    """A state store."""

    def put(self, name: str, content: bytes) -> None:
        self[name] = content

    def remove(self, name: str) -> None:
        self.pop(name, None)


class Counted:
    """What Spark adds up."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, more: int) -> None:
        self.total += more


def engine(kind: pa.DataType, dropped: Any = None) -> BucketRun:
    schema = PLACED.append(pa.field("k", kind)).append(pa.field("v", pa.int32()))
    told = pa.schema([("k", kind), ("seen", pa.list_(pa.int32()))])
    return BucketRun(
        operator=Collect(),
        place=Place("collect", frozenset({"collect"}), is_known=False),
        where="test",
        schema=schema,
        keys=(5,),
        reads=(6,),
        kept=(),
        sides={0: told},
        dropped=dropped,
        declared={"parts": {}, "states": {}},
        initial=None,
        puts_aside=False,
    )


def packed(rows: Iterable[tuple[Any, ...]], run: BucketRun) -> bytes:
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), run.schema, strict=True)]
    return bytes(pa.RecordBatch.from_arrays(columns, schema=run.schema).serialize().to_pybytes())


def take(run: BucketRun, cells: Cells, *batches: bytes) -> list[tuple[Any, list[int]]]:
    schema = run.sides[0]
    made = [value for _, value in run.take(batches, PageStore(cells), 0, 0)]
    rows = [row for one in made for row in pa.ipc.read_record_batch(pa.py_buffer(one), schema).to_pylist()]
    return [(row["k"], row["seen"]) for row in rows]


@pytest.mark.parametrize("has_children", [True, False])
@pytest.mark.parametrize("has_ties", [True, False])
def test_the_order_of_rows_hangs_on_nothing_but_their_positions_and_contents(
    has_children: bool, has_ties: bool
) -> None:
    rng = random.Random(5)
    run = engine(pa.string())
    rows = []
    for number in range(120):
        child = [[rng.randrange(3), number]] if has_children else [None, []]
        place = (rng.choice("ab"), f"part-{rng.randrange(2)}", rng.randrange(9) if has_ties else number)
        rows.append((1, *place, rng.choice(child), "k", rng.randrange(1000)))
    found = []
    for seed in range(5):
        random.Random(seed).shuffle(rows)
        cuts = sorted(random.Random(seed).sample(range(1, 120), 3))
        parts = [rows[begin:end] for begin, end in zip([0, *cuts], [*cuts, 120], strict=True)]
        found.append(take(run, Cells(), *(packed(part, run) for part in parts)))
    assert all(other == found[0] for other in found)
    expected = [row[6] for row in sorted(rows, key=lambda row: (row[1], row[2], row[3], row[4] or []))]
    if not has_ties:
        assert found[0][-1] == ("k", expected)
    assert Counter(found[0][-1][1]) == Counter(expected)


@pytest.mark.parametrize(
    ("kind", "alike", "other"),
    [
        (pa.float64(), [0.0, -0.0], 1.0),
        (pa.float64(), [math.nan, float("-nan")], 0.0),
        (pa.float64(), [None], 0.0),
        (pa.decimal128(9, 2), [Decimal("1.00"), Decimal(1)], Decimal("1.01")),
        (pa.binary(), [b"\x00"], b""),
        (pa.timestamp("us", "UTC"), [BEGIN, BEGIN.astimezone(timezone(timedelta(hours=5)))], BEGIN + timedelta(1)),
    ],
    ids=str,
)
def test_keys_that_are_equal_share_their_state_in_one_epoch_and_in_the_next(
    kind: pa.DataType, alike: list[Any], other: Any
) -> None:
    run, cells = engine(kind), Cells()
    place, at = (1, "s", "p"), iter(range(100))
    for epoch in range(2):
        rows = [(*place, next(at), None, key, number) for key in alike for number in range(2)]
        rows.append((*place, next(at), None, other, -1))
        found = take(run, cells, packed(rows, run))
        count = (epoch + 1) * len(alike) * 2
        assert [len(seen) for _, seen in found[:-1]] == list(range(count - len(alike) * 2 + 1, count + 1))
        assert found[-1] == (other, [-1] * (epoch + 1))


def test_what_raises_names_the_place_of_its_row_and_leaves_the_state_alone() -> None:
    run, cells = engine(pa.string()), Cells()
    take(run, cells, packed([(1, "orders", "p-1", 3, None, "a", 1)], run))
    before = pickle.dumps(cells)
    rows = [(1, "orders", "p-1", 5, None, "a", None), (1, "orders", "p-1", 4, None, "a", 2)]
    with pytest.raises(RowError) as caught:
        take(run, cells, packed(rows, run))
    failure = find_failure(str(caught.value))
    assert failure is not None
    assert (failure.part, failure.at, failure.reason) == ("orders, p-1", 5, "there is no value")
    assert pickle.dumps(cells) == before


def test_state_that_cannot_be_read_is_named_with_its_step_and_checkpoint() -> None:
    run = replace(engine(pa.string()), checkpoint="/checkpoint")
    row = packed([(1, "orders", "p-1", 3, None, "a", 1)], run)
    for cell in (f"page {-(2**63)}", "index"):
        cells = Cells({cell: pickle.dumps(print)})
        with pytest.raises(Carried) as carried:
            run.take([row], run.open(cells), 0, 0)
        error = find_error(str(carried.value))
        assert isinstance(error, CheckpointDamaged)
        assert (
            error.what == f"cell '{cell}' of the state cannot be read: it names builtins.print, which is no plain data"
        )
        assert error.where == "test; checkpoint /checkpoint"


def test_only_late_rows_are_counted_as_dropped() -> None:
    counted = Counted()
    run = engine(pa.string(), dropped=counted)
    take(run, Cells(), packed([(1, "s", "p", at, None, "ab"[at % 2], at) for at in range(6)], run))
    assert counted.total == 2  # one for each key; rows of other sides that nobody wants are no late events


# -- through Spark -----------------------------------------------------------------------------------------------------


def run_outputs(place: Path, *outputs: Output) -> Run:
    job = Job("keyed", *outputs, guarantee=Guarantee.AT_LEAST_ONCE)
    return run_to_the_end(job, place)


@pytest.mark.spark
def test_a_bucket_leads_to_the_partition_of_its_number(spark: SparkSession) -> None:
    for partitions in (1, 2, 3, 7, 16, 200):
        buckets = buckets_of(partitions)
        frame = spark.createDataFrame(list(enumerate(buckets)), "partition INT, bucket INT")
        found = frame.select("partition", F.expr(f"pmod(hash(bucket), {partitions})").alias("led")).collect()
        assert len(set(buckets)) == partitions
        assert all(row.partition == row.led for row in found)


KINDS = {
    "s": "STRING",
    "b": "BOOLEAN",
    "tiny": "TINYINT",
    "small": "SMALLINT",
    "i": "INT",
    "l": "BIGINT",
    "f": "FLOAT",
    "d": "DOUBLE",
    "dec": "DECIMAL(12, 3)",
    "day": "DATE",
    "at": "TIMESTAMP",
    "raw": "BINARY",
}
PARTS = {"arr": "ARRAY<INT>", "st": "STRUCT<a: INT, b: STRING>", "m": "MAP<STRING, INT>"}
DDL = ", ".join(f"{name} {kind}" for name, kind in {**KINDS, **PARTS}.items())
WHOLE = ", ".join(f"w_{name} {kind}" for name, kind in {**KINDS, **PARTS}.items())
FULL: tuple[Any, ...] = (
    *("ü", True, 1, -2, 3, 2**62, 1.5, math.inf, Decimal("12.345"), date(1969, 7, 20), BEGIN, b"\x00\xff"),
    *([1, None, 3], {"a": 1, "b": "x"}, [("p", 1), ("q", None)]),
)
EMPTY = (None,) * len(FULL)
EARLY = BEGIN - timedelta(microseconds=1)
HOLLOW: tuple[Any, ...] = (
    *("", False, 0, 0, 0, 0, -0.0, math.nan, Decimal("0.000"), date(1, 1, 1), EARLY, b""),
    *([], {"a": None, "b": None}, []),
)
ZERO = (*HOLLOW[:6], 0.0, math.nan, *HOLLOW[8:])


class Numbers(StatefulFunction):
    """Gives every row again, with its number."""

    schema = f"number BIGINT, {DDL}"
    number = value("BIGINT")
    last = value("MAP<STRING, INT>")

    def process(self, row: Any, context: Any) -> Iterator[Any]:
        self.number.set((self.number.get() or 0) + 1)
        self.last.set(row.m if row.m is not None else {})
        yield (self.number.get(), *row)


def plain(values: Iterable[Any]) -> str:
    """One text for rows that are equal, NaN, the sign of zero and the class of a time zone aside."""

    def told(value: Any) -> Any:
        if isinstance(value, datetime):
            return value.astimezone(UTC)
        return value + 0.0 if isinstance(value, float) else value

    return repr([told(value) for value in values])


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_keys_of_every_type_and_none_and_columns_of_every_type_survive(tmp_path: Path) -> None:
    rows = [FULL, EMPTY, HOLLOW, ZERO, EMPTY, FULL, ZERO, HOLLOW, FULL]
    source = stream("rows", MemorySource(rows, value=DDL, per_epoch=5))
    sinks = {name: MemorySink() for name in ("scalars", "all", "whole")}
    applied = (
        source.key_by("s").parallel(2).window(windows.tumbling_count(1)).apply(lambda key, all: [tuple(all[0])], WHOLE)
    )
    run_outputs(
        tmp_path,
        source.key_by(*KINDS).parallel(2).rolling(count="count(*)").to("scalars", sinks["scalars"]),
        source.process(Numbers()).to("all", sinks["all"]),
        applied.select(*(f"w_{name}" for name in (*KINDS, *PARTS))).to("whole", sinks["whole"]),
    )
    counts: Counter[str] = Counter()
    expected = []
    for row in rows:
        counts[plain(row)] += 1
        expected.append(plain((*row, counts[plain(row)])))
    assert sorted(map(plain, sinks["scalars"].rows)) == sorted(expected)
    assert [plain(row) for row in sinks["all"].rows] == [plain((at, *row)) for at, row in enumerate(rows, start=1)]
    assert sorted(map(plain, sinks["whole"].rows)) == sorted(map(plain, rows))


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("key", PARTS)
def test_a_value_that_is_made_of_parts_is_refused_as_a_key(key: str, tmp_path: Path) -> None:
    source = stream("rows", MemorySource([EMPTY], value=DDL))
    with pytest.raises(BadJob, match=f"is keyed by '{key}', which is a ") as caught:
        run_outputs(tmp_path, source.key_by("i", key).rolling(count="count(*)").to("out", MemorySink()))
    assert "test_keyed.py" in caught.value.where


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_rows_are_taken_in_the_order_of_the_source_however_tasks_have_mixed_them(tmp_path: Path) -> None:
    rows = [(f"k{at % 2}", at) for at in range(40)]
    source = stream("rows", MemorySource(rows, value="k STRING, v INT", per_epoch=20))

    def three(row: Row) -> list[tuple[Any, ...]]:
        return [(row.k, row.v * 10 + child) for child in range(3)]

    def mixed(one: Stream) -> Stream:
        return one.transform(lambda frame: frame.repartition(3)).select("k", "v")

    seen = aggregates.history("v", list, "ARRAY<INT>")
    merged, children, chained = MemorySink(), MemorySink(), MemorySink()
    twice = mixed(source.merge(source.select("k", v="v + 1000")))
    counted = source.key_by("k").parallel(2).rolling(n="count(*)")
    run_outputs(
        tmp_path,
        twice.key_by("k").parallel(2).rolling(seen=seen).to("merged", merged),
        mixed(source.flat_map(three, "k STRING, v INT"))
        .key_by("k")
        .parallel(2)
        .rolling(seen=seen)
        .to("children", children),
        mixed(counted.select("k", "n", v="n")).key_by("k").parallel(2).rolling(total="sum(v)").to("chained", chained),
    )
    for key in ("k0", "k1"):
        values = [value for one, value in rows if one == key]
        told = max((row.seen for row in merged.rows if row.k == key), key=len)
        assert [value % 1000 for value in told] == [value for value in values for _ in range(2)]
        told = max((row.seen for row in children.rows if row.k == key), key=len)
        assert told == [value * 10 + child for value in values for child in range(3)]
        assert {(row.v, row.total) for row in chained.rows if row.k == key} == {
            (n, n * (n + 1) // 2) for n in range(1, 21)
        }
    assert [len(sink.rows) for sink in (merged, children, chained)] == [80, 120, 40]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_every_key_sees_every_step_of_the_watermark_and_a_side_costs_no_second_pass(tmp_path: Path) -> None:
    told = [("a", 0), ("a", 100), ("b", 5), ("c", 6), ("nobody", 900), ("e", 7), ("f", 105), ("f", 300)]
    rows = [(key, BEGIN + timedelta(seconds=at)) for key, at in told]
    calls = tmp_path / "calls"
    results, late = MemorySink(), MemorySink()

    def count(key: Row, all: list[Row]) -> list[tuple[int]]:
        with calls.open("a") as file:
            file.write("x")
        return [(len(all),)]

    counts = (
        stream("rows", MemorySource(rows, value="k STRING, at TIMESTAMP", per_epoch=1))
        .where("k <> 'nobody'")  # an epoch without rows
        .event_time("at", lateness="0 seconds", late=Late.TO_SIDE_OUTPUT)
        .key_by("k")
        .parallel(3)
        .window(windows.tumbling("10 seconds"))
        .apply(count, "n INT")
    )
    run_outputs(tmp_path, counts.to("results", results), counts.late.to("late", late))

    def seconds(row: Row) -> float:
        return float((row.window_start - BEGIN).total_seconds())

    found = {(row.k, seconds(row), row.n, epoch) for row, epoch in zip(results.rows, results.epochs, strict=True)}
    # Epoch 2 acts on the watermark that epoch 1 has made, and what it brings itself is still in time.
    assert found == {("a", 0, 1, 2), ("b", 0, 1, 2), ("a", 100, 1, 8), ("f", 100, 1, 8)}
    missed = {(row.k, seconds(row), epoch) for row, epoch in zip(late.rows, late.epochs, strict=True)}
    assert missed == {("c", 0, 3), ("e", 0, 5)}, "keys that were never there before know the time too"
    assert len(calls.read_text()) == 4


class Fussy(StatefulFunction):
    """Does not like sevens."""

    schema = "v INT"

    def process(self, row: Any, context: Any) -> Iterator[Any]:
        if row.v == 7:
            raise LookupError("no sevens")
        yield (row.v,)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_function_that_raises_stops_the_job_with_the_place_of_its_row(tmp_path: Path) -> None:
    source = stream("numbers", MemorySource([(v,) for v in range(20)], value="v INT", per_epoch=7))
    sink = MemorySink()
    with pytest.raises(FunctionFailed, match="numbers, offset 7: LookupError: no sevens") as caught:
        run_outputs(tmp_path, source.key_by("v").parallel(1).process(Fussy(), name="fussy").to("out", sink))
    assert "'fussy', declared at" in caught.value.where
    assert sorted(row.v for row in sink.rows) == list(range(7))


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_state_is_found_again_and_another_number_of_tasks_is_refused(tmp_path: Path) -> None:
    rows = [(f"k{at % 7}", at) for at in range(70)]
    sink = MemorySink()

    def run_over(tasks: int, count: int) -> None:
        source = stream("rows", MemorySource(rows[:count], value="k STRING, v INT"))
        counted = source.key_by("k").parallel(tasks).rolling(n="count(*)", name="counts")
        run_outputs(tmp_path, counted.to("out", sink))

    run_over(2, 35)
    with pytest.raises(Refused, match=r"has 2 partitions, and \.parallel\(5\) asks for 5"):
        run_over(5, 70)
    run_over(2, 70)
    assert {(row.v, row.n) for row in sink.rows} == {(v, v // 7 + 1) for _, v in rows}


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_steps_that_ask_for_the_same_rows_all_receive_the_time(tmp_path: Path) -> None:
    rows = [(v, BEGIN + timedelta(seconds=v)) for v in range(30)]
    source = stream("rows", MemorySource(rows, value="v INT, at TIMESTAMP", per_epoch=15))
    timed = source.event_time("at", lateness="0 seconds")
    sinks = {name: MemorySink() for name in ("native", "filtered", "sum", "count")}
    native = timed.key_by("v").parallel(1).window(windows.tumbling("5 seconds")).aggregate(n="count(*)")
    window = timed.key_by("v").parallel(1).window(windows.tumbling("5 seconds"))
    run_outputs(
        tmp_path,
        native.to("native", sinks["native"]),
        native.where("n > 0").to("filtered", sinks["filtered"]),
        window.apply(lambda key, all: [(sum(row.v for row in all),)], "s INT").to("sum", sinks["sum"]),
        window.apply(lambda key, all: [(len(all),)], "n INT").to("count", sinks["count"]),
    )
    assert {name: len(sink.rows) for name, sink in sinks.items()} == dict.fromkeys(sinks, 25)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_matches_that_time_out_are_not_counted_as_late_events(tmp_path: Path) -> None:
    rows = [(v, BEGIN + timedelta(seconds=100 * v)) for v in range(6)] + [(9, BEGIN)]
    source = stream("rows", MemorySource(rows, value="v INT, at TIMESTAMP", per_epoch=3))
    never = pattern.begin("one", "v >= 0").then("two", "v < 0").within("1 minute")
    sink = MemorySink()
    told = run_outputs(
        tmp_path, source.event_time("at", lateness="1 second").key_by("at").parallel(1).detect(never).to("out", sink)
    )
    assert sink.rows == []
    assert told._dropped() == 1
