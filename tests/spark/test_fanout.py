"""Fan-outs over Arrow batches, and what they count, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from lockgate.connectors.rejects import Rejection
from lockgate.dataflow.endpoints import POSITION
from lockgate.failures import find_failure
from lockgate.operators.fanout import Ending, Joined, Score, Tally
from lockgate.spark import fanout
from lockgate.spark.fanout import STAMP, FanOutStep, Tallies, join_batch
from lockgate.spark.functions import RowError

PLACE = pa.struct([("source", pa.string()), ("part", pa.string()), ("at", pa.int64()), ("child", pa.list_(pa.int32()))])
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NAMES = ("v", "at", "tags", POSITION)
BATCH = pa.record_batch(
    [
        pa.array([1, 2, 3], type=pa.int32()),
        pa.array([NOON] * 3, type=pa.timestamp("us", tz="UTC")),
        pa.array([["a"], None, []], type=pa.list_(pa.string())),
        pa.array([{"source": "in", "part": "in-0", "at": at, "child": []} for at in (40, 41, 42)], PLACE),
    ],
    names=list(NAMES),
)
TEXTS = pa.list_(pa.string())
SCHEMA = pa.schema(
    [
        *BATCH.schema,
        ("a", pa.int32()),
        ("b", pa.float64()),
        ("is_partial", pa.bool_()),
        ("missing", TEXTS),
        ("why_missing", TEXTS),
    ]
)


class Told:
    """Takes what is added, as an accumulator of Spark's does."""

    def __init__(self) -> None:
        self.value: Any = []

    def add(self, more: Any) -> None:
        self.value += more


def fan(
    *, puts_aside: bool = False, goes_on: bool = True, has_stamps: bool = False, **functions: Callable[[Any], Any]
) -> FanOutStep:
    return FanOutStep(
        name="scores",
        where="fan_out 'scores', declared at job.py:7",
        functions=functions,
        deadline_seconds=30.0,
        in_flight=2,
        goes_on_partial=goes_on,
        identity=repr(functions),
        tallies=Told(),  # type: ignore[arg-type]
        puts_aside=puts_aside,
        has_stamps=has_stamps,
    )


def join(
    batch: pa.RecordBatch,
    step: FanOutStep,
    names: tuple[str, ...],
    schema: pa.Schema,
    tally: Tally,
    *,
    aside: list[Rejection] | None = None,
    watch: Any = None,
) -> pa.RecordBatch:
    """The rows of a batch; what is put aside is added."""
    return join_batch(batch, step, names, schema, tally, [] if aside is None else aside, watch)


def test_scores_stand_beside_the_columns_of_the_event_which_come_back_as_they_were() -> None:
    tally = Tally()
    made = join(BATCH, fan(a=lambda row: row.v * 2, b=lambda row: row.at.hour / 2), NAMES, SCHEMA, tally)
    rows = made.to_pylist()
    assert made.schema == SCHEMA
    assert made.select(list(NAMES)).to_pylist() == BATCH.to_pylist()
    assert [(row["a"], row["b"], row["is_partial"], row["missing"]) for row in rows] == [
        (2, 6.0, False, []),
        (4, 6.0, False, []),
        (6, 6.0, False, []),
    ]
    assert (tally.events, tally.partial) == (3, 0)


def test_what_fails_or_is_not_of_its_type_is_missing_with_the_reason() -> None:
    def by_type(row: Any) -> Any:
        return {1: "many", 2: 2**40, 3: 3}[row.v]

    tally = Tally()
    rows = join(BATCH, fan(a=by_type, b=lambda row: 1 / (row.v - 1)), NAMES, SCHEMA, tally).to_pylist()
    assert [(row["a"], row["b"], row["missing"]) for row in rows] == [
        (None, None, ["a", "b"]),
        (None, 1.0, ["a"]),
        (3, 0.5, []),
    ]
    assert "'many' is not of type int32" in rows[0]["why_missing"][0]
    assert rows[0]["why_missing"][1] == "ZeroDivisionError: division by zero"
    assert tally.report()["functions"]["a"] == {"answered": 1, "timed_out": 0, "failed": 2, "skipped": 0}
    assert tally.partial == 2


def test_an_event_that_must_be_whole_becomes_a_dead_letter_and_the_others_continue() -> None:
    aside: list[Rejection] = []
    step = fan(puts_aside=True, goes_on=False, a=lambda row: row.v, b=lambda row: 1 / (row.v - 2))
    rows = join(BATCH, step, NAMES, SCHEMA, Tally(), aside=aside).to_pylist()
    assert [(row["v"], row["b"]) for row in rows] == [(1, -1.0), (3, 1.0)]
    (letter,) = aside
    assert (letter.step, letter.reason) == ("scores", "b is missing: ZeroDivisionError: division by zero")
    assert letter.position is not None
    assert (letter.position["at"], letter.is_final) == (41, False)


class Death:
    """A watch that knows a row that workers died with."""

    def take(self, in_hand: Any) -> str | None:
        return "its worker died" if in_hand.place["at"] == 42 else None


def test_a_row_that_workers_died_with_is_given_to_no_function_and_follows_the_policy() -> None:
    given: list[int] = []

    def note(row: Any) -> int:
        given.append(row.v)
        return int(row.v)

    watch: Any = Death()
    rows = join(BATCH, fan(a=note, b=lambda row: 0.0), NAMES, SCHEMA, Tally(), watch=watch).to_pylist()
    assert rows[2]["why_missing"] == ["its worker died"] * 2
    aside: list[Rejection] = []
    step = fan(puts_aside=True, goes_on=False, a=note, b=lambda row: 0.0)
    join(BATCH, step, NAMES, SCHEMA, Tally(), aside=aside, watch=watch)
    (letter,) = aside
    assert letter.is_final
    assert given == [1, 2, 1, 2]


def test_a_row_that_python_cannot_represent_stops_a_job_without_dead_letters() -> None:
    far = pa.record_batch(
        [*BATCH.columns[:1], pa.array([2**60] * 3, type=pa.timestamp("us", tz="UTC")), *BATCH.columns[2:]],
        names=list(NAMES),
    )
    with pytest.raises(RowError) as caught:
        join(far, fan(a=lambda row: 1, b=lambda row: 1.0), NAMES, SCHEMA, Tally())
    found = find_failure(str(caught.value))
    assert found is not None
    assert (found.at, found.where) == (40, "fan_out 'scores', declared at job.py:7")


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError("not even this")


def test_reasons_are_short_and_a_value_that_cannot_be_shown_fails_alone() -> None:
    def unfit(row: Any) -> Any:
        return {1: "x" * 5_000_000, 2: Shy(), 3: "\ud800"}[row.v]

    rows = join(BATCH, fan(a=unfit, b=lambda row: 1.0), NAMES, SCHEMA, Tally()).to_pylist()
    assert [(row["missing"], row["b"]) for row in rows] == [(["a"], 1.0)] * 3
    assert all("is not of type int32" in row["why_missing"][0] for row in rows)
    assert max(len(row["why_missing"][0]) for row in rows) < 500


STAMPS = [NOON - timedelta(seconds=90), None, datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)]


@pytest.mark.parametrize(("has_stamps", "stamped"), [(True, 1), (False, 0)])
def test_how_long_events_have_waited_is_measured_by_the_stamps_of_their_source(has_stamps: bool, stamped: int) -> None:
    batch = BATCH.append_column(STAMP, pa.array(STAMPS, type=pa.timestamp("us", tz="UTC")))
    schema = pa.schema([*batch.schema, *list(SCHEMA)[len(NAMES) :]])
    tally = Tally(began=NOON.timestamp())
    step = fan(has_stamps=has_stamps, a=lambda row: row.v, b=lambda row: 1.0)
    join(batch, step, (*NAMES, STAMP), schema, tally)
    report = tally.publish(NOON.timestamp() + 10).report()
    assert (report["events"], report["stamped"]) == (3, stamped), "Kafka has -1 for a record without a time"
    if has_stamps:
        assert report["end_to_end_ms_p50"] == pytest.approx(100_000, rel=0.02)


def test_a_stamp_that_is_no_time_any_more_is_none() -> None:
    batch = BATCH.append_column(STAMP, pa.array(["a", "b", "c"]))
    schema = pa.schema([*batch.schema, *list(SCHEMA)[len(NAMES) :]])
    tally = Tally()
    join(batch, fan(has_stamps=True, a=lambda row: 1, b=lambda row: 1.0), (*NAMES, STAMP), schema, tally)
    assert tally.publish(1.0).report()["stamped"] == 0


@pytest.fixture
def no_machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A worker process that has run nothing yet, and what lets its calls return."""
    monkeypatch.setattr(fanout, "_machines", {})
    free = threading.Event()
    yield free
    free.set()


def test_calls_that_hang_are_bounded_where_queries_take_turns_in_a_process(no_machines: threading.Event) -> None:
    def hang(row: Any) -> int:
        no_machines.wait(60)
        return 1

    steps = [
        replace(fan(a=hang, b=lambda row: 1.0), identity=query, in_flight=1, deadline_seconds=0.001)
        for query in ("one", "other")
    ]
    for turn in range(12):
        join(BATCH.slice(0, 1), steps[turn % 2], NAMES, SCHEMA, Tally())
    hanging = [machine.running["a"] for machine in fanout._machines.values()]
    assert hanging == [2, 2], "twice as many as may be in flight, for each of the two functions"


def test_what_has_no_threads_left_is_forgotten(no_machines: threading.Event) -> None:
    fanout._machine(replace(fan(a=lambda row: 1), identity="over"))
    fanout._machine(replace(fan(a=lambda row: 1), identity="new"))
    assert [identity for identity, _ in fanout._machines] == ["new"]


class Context:
    """Makes accumulators, as Spark's context does."""

    def accumulator(self, value: Any, param: Any) -> Told:
        return Told()


class Session:
    sparkContext = Context()  # noqa: N815 - Spark's name


def tally_of(*endings: Ending) -> Tally:
    tally = Tally()
    for ending in endings:
        tally.count(Joined({"a": Score(ending)}, 0.01))
    return tally


def test_an_epoch_counts_once_however_often_it_is_tried_or_written() -> None:
    session: Any = Session()
    tallies = Tallies(session)

    def write(epoch: int, *told: dict[tuple[str, int], Tally], fails: bool = False) -> None:
        tallies.begin()
        for one in told:
            tallies.told.value.update(one)
        if not fails:
            tallies.keep(epoch, now=epoch)

    assert tallies.report() == {}
    write(0, {("scores", 0): tally_of(Ending.ANSWERED, Ending.FAILED)}, {("scores", 1): tally_of(Ending.ANSWERED)})
    write(1, {("scores", 0): tally_of(Ending.ANSWERED)}, fails=True)
    write(1, {("scores", 0): tally_of(Ending.TIMED_OUT)}, {("scores", 0): tally_of(Ending.TIMED_OUT)})
    write(1, {("scores", 0): tally_of(Ending.SKIPPED)})  # once more, after a crash behind its commit
    report = tallies.report()["scores"]
    assert (report["events"], report["partial"]) == (4, 2)
    assert report["functions"]["a"] == {"answered": 2, "timed_out": 0, "failed": 1, "skipped": 1}
    assert report["latency_ms_p50"] == pytest.approx(10, rel=0.02)


def test_ages_are_those_at_the_end_of_the_epoch_that_wrote_the_events() -> None:
    session: Any = Session()
    tallies = Tallies(session)
    for epoch, (began, arrived, now) in enumerate([(100.0, 99.0, 102.0), (200.0, 170.0, 210.0)]):
        tally = tally_of(Ending.ANSWERED)
        tally.began = began
        tally.arrive(arrived)
        tallies.begin()
        tallies.told.value[("scores", 0)] = tally
        tallies.keep(epoch, now=now)
    report = tallies.report()["scores"]
    assert report["stamped"] == 2
    assert report["end_to_end_ms_p50"] == pytest.approx(3000, rel=0.03)
    assert report["end_to_end_ms_p99"] == pytest.approx(40_000, rel=0.03)
