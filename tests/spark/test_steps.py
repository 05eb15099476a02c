"""Every step of the dataflow, run by Spark and compared with the same thing computed in plain Python."""

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, Row, SparkSession

from lockgate import Guarantee, Job, Late, MemorySink, MemorySource, Stream, exchange, pattern, stream, windows
from lockgate.errors import BadJob, Failed, FunctionFailed
from support.runs import run_to_the_end

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
EVENTS = [(f"k{i % 3}", i, BEGIN + timedelta(seconds=i)) for i in range(60)]
SCHEMA = "k STRING, v INT, at TIMESTAMP"


def source(name: str = "events", rows: list[tuple[Any, ...]] = EVENTS, per_epoch: int | None = None) -> Stream:
    return stream(name, MemorySource(rows, value=SCHEMA, per_epoch=per_epoch))


def rows_of(last: Stream, tmp_path: Path) -> list[Row]:
    sink = MemorySink()
    run_to_the_end(Job("steps", last.to("out", sink), guarantee=Guarantee.AT_LEAST_ONCE), tmp_path)
    return sink.rows


def tuples(rows: list[Row]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in rows)


@pytest.mark.slow
def test_where_select_map_flat_map_filter_and_transform_do_what_they_say(tmp_path: Path) -> None:
    def double(row: Row) -> dict[str, Any]:
        assert row.at.tzinfo is not None
        return {"k": row.k, "v": row.v * 2, "at": row.at}

    def repeat(row: Row) -> list[tuple[Any, ...]]:
        return [(row.k, number, row.at) for number in range(row.v % 4)]

    def add_one(frame: DataFrame) -> DataFrame:
        return frame.selectExpr("k", "v + 1 AS v", "at")

    last = (
        source()
        .where("v >= 10")
        .filter(lambda row: row.v % 2 == 0)
        .select("k", "at", v="v + 1")
        .map(double, SCHEMA)
        .flat_map(repeat, SCHEMA)
        .transform(add_one)
    )
    expected: Counter[tuple[Any, ...]] = Counter()
    for key, value, at in EVENTS:
        if value >= 10 and value % 2 == 0:
            expected.update((key, number + 1, at) for number in range((value + 1) * 2 % 4))
    assert tuples(rows_of(last, tmp_path)) == expected


def test_a_split_sends_an_event_to_every_part_whose_condition_holds_and_a_merge_brings_them_back(
    tmp_path: Path,
) -> None:
    parts = source().split(small="v < 40", even="v % 2 = 0")
    small, even, both = MemorySink(), MemorySink(), MemorySink()
    job = Job(
        "split",
        parts["small"].to("small", small),
        parts["even"].to("even", even),
        parts["small"].merge(parts["even"]).select("v").to("both", both),
        guarantee=Guarantee.AT_LEAST_ONCE,
    )
    run_to_the_end(job, tmp_path)
    assert sorted(row.v for row in small.rows) == list(range(40))
    assert sorted(row.v for row in even.rows) == list(range(0, 60, 2))
    assert sorted(row.v for row in both.rows) == sorted([*range(40), *range(0, 60, 2)])


def test_the_parts_of_a_split_are_one_pass_over_the_source(tmp_path: Path) -> None:
    parts = source().split(small="v < 40", even="v % 2 = 0", none="v > 1000")
    small, even, none = MemorySink(), MemorySink(), MemorySink()
    job = Job(
        "one-pass",
        parts["small"].where("v >= 10").to("small", small),
        parts["even"].where("v < 50").select("k", half="v / 2").to("even", even),
        parts["none"].to("none", none),
        guarantee=Guarantee.AT_LEAST_ONCE,
    )
    done = run_to_the_end(job, tmp_path)
    assert sorted(row.v for row in small.rows) == list(range(10, 40))
    assert tuples(even.rows) == Counter((f"k{v % 3}", v / 2) for v in range(0, 50, 2))
    assert none.rows == []
    assert done._query.lastProgress["numInputRows"] == len(EVENTS)
    assert len(done._query.lastProgress["sources"]) == 1


@pytest.mark.slow
def test_what_leaves_an_operator_through_sql_costs_no_second_pass(tmp_path: Path) -> None:
    late = ("k0", 100, BEGIN + timedelta(seconds=1))
    timed = source(rows=[*EVENTS, late], per_epoch=20).event_time("at", lateness="0 seconds", late=Late.TO_SIDE_OUTPUT)
    fire = pattern.begin("hot", "v % 10 = 5").then("smoke", "v % 20 = 11").within("8 seconds")
    alarms = timed.key_by("k").parallel(1).detect(fire)
    totals = timed.key_by("k").parallel(1).rolling(total="sum(v)")
    outputs = {
        "alarms": alarms.select("k", hot_at="hot.at", took="smoke.v - hot.v"),
        "high": alarms.where("hot.v > 10").where("hot.v < 40").select("match_end"),
        "cold": alarms.timed_out.where("hot.v > 20").select("reached", v="if(hot is null, raise_error('none'), hot.v)"),
        "late": alarms.late.select("k", doubled="v * 2"),
        "totals": totals.select("v", more="total + 1"),
        "last": totals.where("v >= 58"),
    }
    sinks = {name: MemorySink() for name in outputs}
    job = Job(
        "sides", *(made.to(name, sinks[name]) for name, made in outputs.items()), guarantee=Guarantee.AT_LEAST_ONCE
    )
    done = run_to_the_end(job, tmp_path)
    found = {name: sorted(map(tuple, sink.rows)) for name, sink in sinks.items()}
    assert found["alarms"] == [("k0", EVENTS[45][2], 6), ("k1", EVENTS[25][2], 6), ("k2", EVENTS[5][2], 6)]
    assert found["high"] == [(EVENTS[31][2],)]
    assert found["cold"] == [("hot", 35)]
    assert found["late"] == [("k0", 200)]
    so_far = {v: sum(range(v % 3, v + 1, 3)) for v in range(60)}
    assert found["totals"] == [*((v, so_far[v] + 1) for v in range(60)), (100, so_far[57] + 101)]
    assert [row[0::3] for row in found["last"]] == [("k0", so_far[57] + 100), ("k1", so_far[58]), ("k2", so_far[59])]
    # The pattern and the rolling aggregate, each once.
    assert len(done._query.lastProgress["stateOperators"]) == 2


def closed(end: datetime, lateness: timedelta) -> bool:
    return end <= EVENTS[-1][2] - lateness


@pytest.mark.slow
def test_a_window_that_two_outputs_share_closes_for_both(tmp_path: Path) -> None:
    counts = source(per_epoch=20).event_time("at", lateness="0 seconds").window(windows.tumbling("10 seconds"))
    told = counts.aggregate(n="count(*)")
    one, two = MemorySink(), MemorySink()
    job = Job(
        "two-outputs",
        told.to("one", one),
        told.where("n > 0").select("n", ended="window_end").to("two", two),
        guarantee=Guarantee.AT_LEAST_ONCE,
    )
    run_to_the_end(job, tmp_path)
    # The last window is open: nothing says that it is over.
    assert [row.n for row in one.rows] == [10] * 5
    assert [row.n for row in two.rows] == [10] * 5


@pytest.mark.slow
@pytest.mark.parametrize("is_keyed", [True, False], ids=["keyed", "global"])
def test_tumbling_and_sliding_windows_equal_a_batch_computation(is_keyed: bool, tmp_path: Path) -> None:
    timed = source(per_epoch=25).event_time("at", lateness="5 seconds")
    grouped = timed.key_by("k") if is_keyed else timed
    tumbling, sliding = MemorySink(), MemorySink()
    job = Job(
        "windows",
        grouped.window(windows.tumbling("10 seconds")).aggregate(n="count(*)", total="sum(v)").to("tumbling", tumbling),
        grouped.window(windows.sliding("10 seconds", every="5 seconds")).aggregate(n="count(*)").to("sliding", sliding),
        guarantee=Guarantee.AT_LEAST_ONCE,
    )
    run_to_the_end(job, tmp_path)
    ten, five = timedelta(seconds=10), timedelta(seconds=5)
    sums: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    slides: Counter[tuple[Any, ...]] = Counter()
    for key, value, at in EVENTS:
        keys = (key,) if is_keyed else ()
        begin = BEGIN + (at - BEGIN) // ten * ten
        sums[(*keys, begin, begin + ten)].append(value)
        last = BEGIN + (at - BEGIN) // five * five
        for start in (last, last - five):
            slides[(*keys, start, start + ten)] += 1
    assert tuples(tumbling.rows) == Counter(
        (*group, len(values), sum(values)) for group, values in sums.items() if closed(group[-1], five)
    )
    assert tuples(sliding.rows) == Counter((*group, n) for group, n in slides.items() if closed(group[-1], five))


@pytest.mark.parametrize("is_keyed", [True, False], ids=["keyed", "global"])
def test_a_session_ends_when_nothing_comes_for_the_gap(is_keyed: bool, tmp_path: Path) -> None:
    seconds = [0, 1, 2, 20, 21, 40, 100]
    events = [("k", second, BEGIN + timedelta(seconds=second)) for second in seconds]
    timed = source(rows=events, per_epoch=3).event_time("at", lateness="0 seconds")
    grouped = timed.key_by("k") if is_keyed else timed
    rows = rows_of(grouped.window(windows.session(gap="5 seconds")).aggregate(n="count(*)"), tmp_path)
    found = sorted(((row.window_start - BEGIN).seconds, (row.window_end - BEGIN).seconds, row.n) for row in rows)
    assert found == [(0, 7, 3), (20, 26, 2), (40, 45, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_join_pairs_events_that_agree_and_are_close_in_time(how: str, tmp_path: Path) -> None:
    orders = [("a", 1, BEGIN), ("b", 2, BEGIN + timedelta(seconds=10)), ("a", 3, BEGIN + timedelta(hours=1))]
    paid = [
        ("a", 10, BEGIN + timedelta(seconds=30)),
        ("b", 20, BEGIN + timedelta(minutes=5)),
        ("z", 30, BEGIN + timedelta(hours=1)),
    ]
    left = source("orders", orders).event_time("at", lateness="1 second")
    right = source("payments", paid).select("k", paid="v", paid_at="at").event_time("paid_at", lateness="1 second")
    rows = rows_of(left.join(right, on="k", within="1 minute", how=how), tmp_path)
    expected = [("a", 1, BEGIN, 10, BEGIN + timedelta(seconds=30))]
    if how == "left":
        expected.append(("b", 2, BEGIN + timedelta(seconds=10), None, None))
    assert tuples(rows) == Counter(expected)
    assert rows[0].asDict().keys() == {"k", "v", "at", "paid", "paid_at"}


@pytest.mark.slow
def test_a_rolling_aggregate_is_as_of_every_event_in_source_order_although_rows_were_shuffled(tmp_path: Path) -> None:
    values = [5, None, 3, 9, 3, 7, 1, 8, 2, 6, None, 4]
    events = [(f"k{i % 2}", value, BEGIN + timedelta(seconds=i)) for i, value in enumerate(values)]
    last = (
        source(rows=events, per_epoch=5)
        .exchange(exchange.random())
        .parallel(3)
        .key_by("k")
        .rolling(total="sum(v)", least="min(v)", most="max(v * 2)", mean="avg(v)", n="count(v)", all="count(*)")
    )
    rows = rows_of(last, tmp_path)
    seen: dict[str, list[int | None]] = defaultdict(list)
    expected = []
    for key, value, at in events:
        seen[key].append(value)
        known = [one for one in seen[key] if one is not None]
        expected.append(
            (
                key,
                value,
                at,
                sum(known) if known else None,
                min(known, default=None),
                2 * max(known) if known else None,
                sum(known) / len(known) if known else None,
                len(known),
                len(seen[key]),
            )
        )
    assert tuples(rows) == Counter(expected)


@pytest.mark.slow
def test_rolling_folds_as_spark_does_and_names_the_row_where_it_cannot(tmp_path: Path) -> None:
    nan = float("nan")
    rows = [("k", Decimal("99999999.99"), value, 1) for value in (nan, 1.0, 2.0)]
    read = stream("odd", MemorySource(rows, value="k STRING, d DECIMAL(10,2), x DOUBLE, n BIGINT"))
    made = rows_of(read.key_by("k").rolling(mean="avg(d)", least="min(x)", most="max(x)"), tmp_path)
    assert [row.mean for row in made] == [Decimal("99999999.990000")] * 3
    assert [row.least for row in made[1:]] == [1.0, 1.0]
    assert all(row.most != row.most for row in made)
    huge = stream("huge", MemorySource([("k", 2**62)] * 3, value="k STRING, n BIGINT"))
    with pytest.raises(FunctionFailed, match="too large for a BIGINT") as caught:
        rows_of(huge.key_by("k").rolling(total="sum(n)"), tmp_path / "huge")
    assert "rolling 'rolling', declared at test_steps.py:" in caught.value.where


@pytest.mark.slow
def test_children_of_one_event_keep_their_order_in_a_rolling_aggregate(tmp_path: Path) -> None:
    def count_down(row: Row) -> list[tuple[str, int]]:
        return [(row.k, number) for number in (3, 1, 2)]

    last = source(rows=EVENTS[:2]).flat_map(count_down, "k STRING, n INT").key_by("k").rolling(least="min(n)")
    assert tuples(rows_of(last, tmp_path)) == Counter(
        (key, number, least) for key in ("k0", "k1") for number, least in ((3, 3), (1, 1), (2, 1))
    )


def place(row: Row) -> dict[str, Any]:
    context = TaskContext.get()
    assert context is not None
    return {"k": row.k, "v": row.v, "task": context.partitionId()}


def placed(moved: Stream, tmp_path: Path) -> list[Row]:
    # Tagged behind the exchange, in the task that the exchange chose.
    return rows_of(moved.map(lambda row: place(row), "k STRING, v INT, task INT"), tmp_path)


def test_an_exchange_by_key_brings_the_rows_of_a_key_into_one_task(tmp_path: Path) -> None:
    rows = placed(source().exchange(exchange.by_key("k")).parallel(3), tmp_path)
    tasks = defaultdict(set)
    for row in rows:
        tasks[row.k].add(row.task)
    assert len(rows) == len(EVENTS)
    assert all(len(found) == 1 for found in tasks.values())


def test_a_random_exchange_and_parallel_deal_rows_out_evenly(tmp_path: Path) -> None:
    rows = placed(source().parallel(4), tmp_path)
    assert Counter(row.task for row in rows) == {0: 15, 1: 15, 2: 15, 3: 15}


def test_a_broadcast_brings_every_row_to_every_task(tmp_path: Path) -> None:
    rows = placed(source(rows=EVENTS[:6]).exchange(exchange.broadcast()).parallel(3), tmp_path)
    assert Counter((row.v, row.task) for row in rows) == {(v, task): 1 for v in range(6) for task in range(3)}


def test_forward_leaves_rows_where_they_are_and_can_only_lower_the_number_of_tasks(tmp_path: Path) -> None:
    spread = source().parallel(4).exchange(exchange.forward()).parallel(2)
    assert set(Counter(row.task for row in placed(spread, tmp_path))) == {0, 1}


def test_a_function_that_raises_stops_the_job_with_the_row_and_the_users_line(tmp_path: Path) -> None:
    def fail(row: Row) -> dict[str, Any]:
        if row.v == 17:
            raise ValueError("no such product")
        return {"v": row.v}

    with pytest.raises(FunctionFailed) as caught:
        rows_of(source().map(fail, "v INT"), tmp_path)
    assert "ValueError: no such product" in caught.value.what
    assert "events, events, offset 17" in caught.value.what
    assert "test_steps.py:" in caught.value.where


@pytest.mark.slow
def test_a_time_that_python_cannot_have_stops_the_job_with_the_row(tmp_path: Path) -> None:
    far = source(per_epoch=30).select("k", "v", at="if(v = 26, timestamp_seconds(1000000000000L), at)")
    with pytest.raises(Failed) as stopped:
        rows_of(
            far.key_by("k").parallel(1).window(windows.tumbling_count(3)).apply(lambda key, all: [], "n INT"), tmp_path
        )
    assert "events, events, offset 26" in stopped.value.what
    assert "not within the years 1 to 9999" in stopped.value.what


def test_hidden_columns_can_be_named_and_reach_a_sink_only_if_a_select_names_them(tmp_path: Path) -> None:
    assert rows_of(source(rows=EVENTS[:1]), tmp_path)[0].asDict().keys() == {"k", "v", "at"}
    named = source(rows=EVENTS[:3]).where("_position.at >= 1").select("v", number="_position.at")
    assert [row.asDict() for row in rows_of(named, tmp_path / "named")] == [
        {"v": 1, "number": 1},
        {"v": 2, "number": 2},
    ]


def test_a_column_behind_a_transform_is_refused_by_spark_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(BadJob) as caught:
        rows_of(source().transform(lambda frame: frame.drop("v")).where("w > 1"), tmp_path)
    assert "`w`" in caught.value.what
    assert "where 'where', declared at test_steps.py:" in caught.value.where
    assert not (tmp_path / "checkpoint").exists()


def test_a_transform_that_raises_is_refused_with_its_line(tmp_path: Path) -> None:
    def fail(frame: DataFrame) -> DataFrame:
        raise KeyError("region")

    with pytest.raises(BadJob, match="KeyError: 'region'") as caught:
        rows_of(source().transform(fail), tmp_path)
    assert "declared at test_steps.py:" in caught.value.where


def test_a_merge_behind_a_transform_fills_nothing_up(tmp_path: Path) -> None:
    with pytest.raises(BadJob, match="streams with different columns are merged"):
        rows_of(source("a").transform(lambda frame: frame.drop("v")).merge(source("b")), tmp_path)


def test_a_transform_that_returns_no_frame_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadJob, match="returned NoneType"):
        rows_of(source().transform(lambda frame: None), tmp_path)  # type: ignore[arg-type, return-value]


def test_a_condition_in_python_keeps_the_event_time(tmp_path: Path) -> None:
    timed = source(per_epoch=30).event_time("at", lateness="0 seconds").where(lambda row: row.v % 2 == 0)
    rows = rows_of(timed.window(windows.tumbling("30 seconds")).aggregate(n="count(*)"), tmp_path)
    assert [(row.window_start, row.n) for row in rows] == [(BEGIN, 15)]


def test_event_time_is_declared_again_after_a_function(tmp_path: Path) -> None:
    doubled = source().map(lambda row: (row.k, row.v * 2, row.at), SCHEMA).event_time("at", lateness="0 seconds")
    rows = rows_of(doubled.window(windows.tumbling("30 seconds")).aggregate(total="sum(v)"), tmp_path)
    assert [(row.window_start, row.total) for row in rows] == [(BEGIN, 2 * sum(range(30)))]


def test_rows_that_lost_their_place_in_a_transform_cannot_be_ordered(tmp_path: Path) -> None:
    with pytest.raises(BadJob, match="have lost their place before rolling"):
        rows_of(source().transform(lambda frame: frame.select("k", "v")).key_by("k").rolling(n="count(*)"), tmp_path)


@pytest.mark.slow
def test_two_independent_branches_overlap_in_time(spark: SparkSession, tmp_path: Path) -> None:
    def wait(row: Row) -> dict[str, Any]:
        import time

        time.sleep(1.0)
        return {"v": row.v}

    one, two = MemorySink(), MemorySink()
    job = Job(
        "branches",
        source("left", EVENTS[:2]).map(wait, "v INT").to("one", one),
        source("right", EVENTS[:2]).map(wait, "v INT").to("two", two),
        guarantee=Guarantee.AT_LEAST_ONCE,
    )
    before = max((stage.stageId() for stage in stages(spark)), default=-1)
    run_to_the_end(job, tmp_path)
    assert len(one.rows) == len(two.rows) == 2
    new = [stage for stage in stages(spark) if stage.stageId() > before]
    tasks = [
        (begin, begin + duration) for stage in new for begin, duration in tasks_of(spark, stage) if duration >= 2000
    ]
    assert len(tasks) == 2
    (first_begin, first_end), (second_begin, second_end) = tasks
    assert max(first_begin, second_begin) < min(first_end, second_end)


def stages(spark: SparkSession) -> list[Any]:
    """The stages that Spark itself has noted."""
    store = spark.sparkContext._jsc.sc().statusStore()
    jvm: Any = spark.sparkContext._jvm
    gateway: Any = spark.sparkContext._gateway
    nothing = jvm.java.util.ArrayList()
    noted = store.stageList(nothing, False, False, gateway.new_array(gateway.jvm.double, 0), nothing)
    return list(jvm.scala.jdk.javaapi.CollectionConverters.asJava(noted))


def tasks_of(spark: SparkSession, stage: Any) -> list[tuple[int, int]]:
    """When each task of a stage was launched, and how long it took, in ms."""
    jvm: Any = spark.sparkContext._jvm
    store = spark.sparkContext._jsc.sc().statusStore()
    noted = jvm.scala.jdk.javaapi.CollectionConverters.asJava(store.taskList(stage.stageId(), stage.attemptId(), 100))
    return [(task.launchTime().getTime(), task.duration().getOrElse(None) or 0) for task in noted]
