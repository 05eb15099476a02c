"""State from outside, initial state, and state that meets changed code; all through Spark."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from lockgate import (
    Guarantee,
    Job,
    Late,
    LockgateError,
    MemorySink,
    MemorySource,
    StatefulFunction,
    Stream,
    aggregates,
    get_state,
    list_of,
    map_of,
    pattern,
    stream,
    value,
    windows,
)
from lockgate.errors import BadJob, Failed, FunctionFailed, Refused
from support.runs import run_to_the_end

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
DDL = "k STRING, n INT, v INT, at TIMESTAMP"
Event = tuple[str, int, int, datetime]


def make_events(count: int) -> list[Event]:
    return [("abc"[at % 3], at % 2, at, BEGIN + timedelta(seconds=at)) for at in range(count)]


def read(events: Sequence[Event], per_epoch: int | None = None) -> Stream:
    return stream("events", MemorySource(events, value=DDL, per_epoch=per_epoch))


def work(rows: Stream, tmp_path: Path, *, name: str = "work", **options: Any) -> tuple[Job, MemorySink]:
    """Run a stream to its end; its checkpoint is kept."""
    sink = MemorySink()
    job = Job(name, rows.to("out", sink), guarantee=Guarantee.AT_LEAST_ONCE)
    run_to_the_end(job, tmp_path, **options)
    return job, sink


def place(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


class Totals(StatefulFunction):
    """Sums per key, and remembers the last values and when each came."""

    schema = "k STRING, total BIGINT"
    total = value("BIGINT")
    last = list_of("INT")
    seen = map_of("INT", "TIMESTAMP")
    exact = value("DECIMAL(20, 2)")

    def process(self, row: Any, context: Any) -> Any:
        self.total.set((self.total.get() or 0) + row.v)
        self.last.set([*self.last.get(), row.v][-2:])
        self.seen.set(row.n, row.at)
        self.exact.set((self.exact.get() or Decimal(0)) + Decimal("0.10"))
        yield {"k": row.k, "total": self.total.get()}


def expected(events: Sequence[Event]) -> dict[tuple[Any, ...], dict[str, Any]]:
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for k, n, v, at in events:
        state = found.setdefault((k,), {"total": 0, "last": [], "seen": {}, "exact": Decimal(0)})
        state["total"] += v
        state["last"] = [*state["last"], v][-2:]
        state["seen"] = {**state["seen"], n: at}
        state["exact"] += Decimal("0.10")
    return found


@pytest.mark.slow
def test_a_function_with_state_is_asked_for_all_keys_one_key_and_an_older_epoch(tmp_path: Path) -> None:
    events = make_events(30)
    job, _ = work(read(events, per_epoch=10).key_by("k").process(Totals(), name="totals"), tmp_path)
    cp = place(tmp_path)
    assert get_state(job, "totals", checkpoint=cp) == expected(events)
    assert get_state(job, "totals", checkpoint=cp, key="b") == {("b",): expected(events)[("b",)]}
    assert get_state(job, "totals", checkpoint=cp, key="nobody") == {}
    assert get_state(job, "totals", checkpoint=cp, epoch=0) == expected(events[:10])
    with pytest.raises(Refused, match="no epoch 77"):
        get_state(job, "totals", checkpoint=cp, epoch=77)
    with pytest.raises(Refused, match="key of 2 values"):
        get_state(job, "totals", checkpoint=cp, key=("a", 1))
    with pytest.raises(Refused, match="no step 'total' that keeps state"):
        get_state(job, "total", checkpoint=cp)
    with pytest.raises(Refused, match="there is no checkpoint"):
        get_state(job, "totals", checkpoint=str(tmp_path / "elsewhere"))


@pytest.mark.slow
def test_keys_of_several_columns_are_found_by_their_types(tmp_path: Path) -> None:
    events = [("a", None, 1, BEGIN), ("a", 2, 2, BEGIN), ("a", 2, 4, BEGIN)]
    job, _ = work(read(events).key_by("k", "n", "at").rolling(total="sum(v)", name="sums"), tmp_path)  # type: ignore[arg-type]
    cp = place(tmp_path)
    assert get_state(job, "sums", checkpoint=cp) == {("a", None, BEGIN): {"total": 1}, ("a", 2, BEGIN): {"total": 6}}
    assert get_state(job, "sums", checkpoint=cp, key=("a", "2", BEGIN)) == {("a", 2, BEGIN): {"total": 6}}
    assert get_state(job, "sums", checkpoint=cp, key=("a", None, BEGIN)) == {("a", None, BEGIN): {"total": 1}}
    with pytest.raises(Refused, match="is no key of k string, n int, at timestamp"):
        get_state(job, "sums", checkpoint=cp, key=("a", "two", BEGIN))


@pytest.mark.prove
def test_what_windows_and_patterns_hold_is_shown_in_words(tmp_path: Path) -> None:
    events = make_events(20)
    timed = read(events).event_time("at", lateness="5 seconds", late=Late.DROP)
    steps = {
        "count": timed.key_by("n").window(windows.tumbling_count(4), name="count").aggregate(total="sum(v)"),
        "until": timed.key_by("n").window(windows.until("v = 9"), name="until").aggregate(total="sum(v)"),
        "whole": timed.key_by("n")
        .window(windows.tumbling("10 seconds"), name="whole")
        .apply(lambda key, rows: [(len(rows),)], "c INT"),
        "found": timed.key_by("n").detect(
            pattern.begin("one", "v = 12").then("two", "v = 99").within("1 minute"), name="found"
        ),
        "native": timed.key_by("n").window(windows.tumbling("10 seconds"), name="native").aggregate(total="sum(v)"),
    }
    shown = {}
    for name, rows in steps.items():
        job, _ = work(rows, tmp_path / name, name=name)
        shown[name] = get_state(job, name, checkpoint=place(tmp_path / name))
    moment = [BEGIN + timedelta(seconds=at) for at in range(60)]
    assert shown["count"][(1,)] == {
        "events": 2,
        "window_start": moment[17],
        "window_end": moment[19],
        "total": 36,
    }
    assert shown["until"][(1,)]["total"] == 11 + 13 + 15 + 17 + 19
    whole = shown["whole"][(0,)]["windows"]
    assert [(one["window_start"], len(one["rows"])) for one in whole] == [(moment[10], 5)]
    found = shown["found"][(0,)]
    assert [(one["reached"], one["match_start"]) for one in found["partial_matches"]] == [("one", moment[12])]
    (native,) = shown["native"][(0,)]["rows"]
    assert native["window"]["start"].startswith("2026-01-01T00:00:10")
    assert 10 + 12 + 14 + 16 + 18 in native.values()


@pytest.mark.slow
def test_what_a_join_holds_is_shown_for_both_sides(tmp_path: Path) -> None:
    one = read(make_events(6)).event_time("at", lateness="5 seconds")
    two = stream("others", MemorySource([("a", 7, BEGIN)], value="k STRING, w INT, then TIMESTAMP"))
    joined = one.join(two.event_time("then", lateness="5 seconds"), on="k", within="1 minute")
    job, _ = work(joined, tmp_path)
    kept = get_state(job, "join", checkpoint=place(tmp_path))
    assert {row["side"] for row in kept[("a",)]["rows"]} == {"left", "right"}
    assert [row["side"] for row in kept[("b",)]["rows"]] == ["left", "left"]
    assert get_state(job, "join", checkpoint=place(tmp_path), key="b") == {("b",): kept[("b",)]}


@pytest.mark.slow
def test_a_key_of_a_native_window_is_found_by_its_types(tmp_path: Path) -> None:
    price = "if(v % 3 = 0, null, cast(v % 3 as decimal(10, 2)))"
    typed = read(make_events(6)).select("n", "v", "at", day="date_trunc('day', at)", price=price)
    keyed = typed.event_time("at", lateness="5 seconds").key_by("n", "day", "price").parallel(1)
    job, _ = work(keyed.window(windows.tumbling("1 hour"), name="hours").aggregate(total="sum(v)"), tmp_path)

    def totals(*key: Any) -> list[int]:
        found = get_state(job, "hours", checkpoint=place(tmp_path), key=key)
        return [row["sum"] for kept in found.values() for row in kept["rows"]]

    assert totals(1, BEGIN, Decimal("1.00")) == totals("01", "2026-01-01", "1") == [1]
    assert totals(0, BEGIN, Decimal("2.00")) == [2]
    assert totals(1, BEGIN, None) == [3]
    assert totals(1, BEGIN + timedelta(days=1), None) == []
    with pytest.raises(Refused, match=r"is no key of n int, day timestamp, price decimal\(10,2\)"):
        totals("one", BEGIN, None)


# Initial state


@pytest.mark.prove
def test_a_step_begins_with_what_another_run_kept_whatever_the_form(tmp_path: Path, spark: SparkSession) -> None:
    events = make_events(30)
    job, _ = work(read(events).key_by("k").parallel(1).process(Totals(), name="totals"), tmp_path / "first")
    kept = get_state(job, "totals", checkpoint=place(tmp_path / "first"))
    lines = tmp_path / "states.json"
    lines.write_text(
        "\n".join(
            json.dumps(
                {
                    "key": list(key),
                    "state": {
                        "total": state["total"],
                        "last": state["last"],
                        "seen": {str(n): at.isoformat() for n, at in state["seen"].items()},
                        "exact": str(state["exact"]),
                    },
                }
            )
            for key, state in kept.items()
        )
    )
    table = tmp_path / "states.parquet"
    spark.createDataFrame(
        [(key[0], state["total"], state["last"], state["seen"], state["exact"]) for key, state in kept.items()],
        "k STRING, total BIGINT, last ARRAY<INT>, seen MAP<INT, TIMESTAMP>, exact DECIMAL(20, 2)",
    ).write.parquet(str(table))
    more = make_events(45)[30:]
    for name, initial in (("lines", str(lines)), ("table", str(table)), ("savepoint", place(tmp_path / "first"))):
        rows = read(more, per_epoch=8).key_by("k").parallel(1).process(Totals(), name="totals", initial=initial)
        again, _ = work(rows, tmp_path / name)
        assert get_state(again, "totals", checkpoint=place(tmp_path / name)) == expected(make_events(45)), name


@dataclass(frozen=True)
class BreakingSink(MemorySink):
    """Fails with the first epoch, once."""

    broken: list[int] = field(default_factory=list)

    def write(self, rows: DataFrame, epoch: int) -> None:
        super().write(rows, epoch)
        if not self.broken:
            self.broken.append(epoch)
            raise RuntimeError("the sink breaks")


@pytest.mark.slow
def test_a_first_epoch_that_is_repeated_begins_with_the_same(tmp_path: Path) -> None:
    states = tmp_path / "states.json"
    states.write_text('{"key": ["a"], "state": {"total": 1000}}\n{"key": ["z"], "state": {"total": 5}}\n')
    sink = BreakingSink()
    rows = read(make_events(20)).key_by("k").parallel(1).process(Totals(), name="totals", initial=str(states))
    job = Job("work", rows.to("out", sink), guarantee=Guarantee.AT_LEAST_ONCE)
    with pytest.raises(Failed, match="the sink breaks"):
        run_to_the_end(job, tmp_path)
    states.unlink()
    run_to_the_end(job, tmp_path)
    kept = get_state(job, "totals", checkpoint=place(tmp_path))
    assert kept[("a",)]["total"] == 1000 + sum(v for k, _, v, _ in make_events(20) if k == "a")
    assert kept[("z",)] == {"total": 5}
    first = [row.total for epoch, row in zip(sink.epochs, sink.rows, strict=True) if epoch == 0 and row.k == "a"]
    assert first == first[: len(first) // 2] * 2
    rows = read(make_events(21)).key_by("k").parallel(1).process(Totals(), name="totals", initial=str(states))
    again, _ = work(rows, tmp_path)
    assert get_state(again, "totals", checkpoint=place(tmp_path), key="z") == {("z",): {"total": 5}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "error", "match"),
    [
        ('{"key": ["a"]}', Refused, "line 1 of the initial state is not a key"),
        ('\n{"key": ["a", 1], "state": {}}', Refused, "line 2 .* a key of 1"),
        ('{"key": ["a"], "state": {"total": "many"}}', FunctionFailed, "state 'total' holds BIGINT"),
        ('{"key": ["a"], "state": {"total": 1}}\n' * 2, FunctionFailed, "two initial states are given"),
    ],
)
def test_an_initial_state_that_is_none_is_refused(
    content: str, error: type[LockgateError], match: str, tmp_path: Path
) -> None:
    (tmp_path / "states.json").write_text(content)
    initial = str(tmp_path / "states.json")
    with pytest.raises(error, match=match):
        work(read(make_events(5)).key_by("k").parallel(1).process(Totals(), initial=initial), tmp_path)


@pytest.mark.parametrize("kind", ["STRING", "STRUCT<total: BIGINT>"])
def test_a_row_without_a_state_is_refused_with_its_key(kind: str, tmp_path: Path, spark: SparkSession) -> None:
    table = str(tmp_path / "states.parquet")
    given = '{"total": 1}' if kind == "STRING" else (1,)
    spark.createDataFrame([("a", given), ("b", None)], f"k STRING, State {kind}").write.parquet(table)
    with pytest.raises(Refused, match=r"key \['b'\] has no state"):
        work(read(make_events(5)).key_by("k").parallel(1).process(Totals(), initial=table), tmp_path)


@pytest.mark.slow
def test_lines_end_where_json_says(tmp_path: Path) -> None:
    states = tmp_path / "states.json"
    key = "a\u2028b\u0085"
    states.write_text(json.dumps({"key": [key], "state": {"total": 7}}, ensure_ascii=False) + "\r\n", encoding="utf-8")
    rows = read(make_events(5)).key_by("k").parallel(1).process(Totals(), name="totals", initial=str(states))
    job, _ = work(rows, tmp_path)
    assert get_state(job, "totals", checkpoint=place(tmp_path), key=key) == {(key,): {"total": 7}}


def test_an_initial_state_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="there is no initial state"):
        work(
            read(make_events(5)).key_by("k").parallel(1).process(Totals(), initial=str(tmp_path / "none.json")),
            tmp_path,
        )


# Code that has changed


class Narrow(StatefulFunction):
    schema = "k STRING, total BIGINT"
    total = value("INT")
    gone = value("STRING")

    def process(self, row: Any, context: Any) -> Any:
        self.total.set((self.total.get() or 0) + row.v)
        self.gone.set("soon")
        yield {"k": row.k, "total": self.total.get()}


class Wide(StatefulFunction):
    schema = "k STRING, total BIGINT"
    total = value("BIGINT")
    added = list_of("INT")

    def process(self, row: Any, context: Any) -> Any:
        self.total.set((self.total.get() or 0) + row.v + (1 << 40))
        self.added.append(row.v)
        yield {"k": row.k, "total": self.total.get()}


class Other(StatefulFunction):
    schema = "k STRING, total BIGINT"
    total = value("STRING")

    def process(self, row: Any, context: Any) -> Any:
        yield {"k": row.k, "total": 0}


@pytest.mark.slow
def test_state_is_taken_over_where_that_is_safe_and_refused_where_it_is_not(tmp_path: Path) -> None:
    def step(function: StatefulFunction, count: int) -> Stream:
        return read(make_events(count)).key_by("k").parallel(1).process(function, name="totals")

    work(step(Narrow(), 9), tmp_path)
    with pytest.raises(BadJob, match="state 'total' was kept as a value of INT, and is declared as a value of STRING"):
        work(step(Other(), 12), tmp_path)
    job, sink = work(step(Wide(), 12), tmp_path)
    assert {row.k: row.total - (1 << 40) for row in sink.rows} == {"a": 18, "b": 22, "c": 26}
    kept = get_state(job, "totals", checkpoint=place(tmp_path))
    assert kept[("a",)] == {"total": 18 + (1 << 40), "added": [9]}


@pytest.mark.prove
def test_aggregates_that_have_changed_are_refused(tmp_path: Path) -> None:
    match = r"aggregate 1 was total bigint by Sum\(\), and is total int by Max\(\) now"
    work(read(make_events(6)).key_by("k").parallel(1).rolling(total="sum(v)", name="sums"), tmp_path)
    with pytest.raises(BadJob, match=match) as refused:
        work(read(make_events(9)).key_by("k").parallel(1).rolling(total="max(v)", name="sums"), tmp_path)
    assert "another name=" in refused.value.fix
    assert "rolling 'sums', declared at test_state.py" in refused.value.where


@pytest.mark.prove
def test_another_key_is_refused_and_another_name_begins_with_nothing(tmp_path: Path) -> None:
    work(read(make_events(6)).key_by("k").parallel(1).rolling(total="sum(v)", name="sums"), tmp_path)
    with pytest.raises(BadJob, match="the key was k string, and is n int now"):
        work(read(make_events(9)).key_by("n").parallel(1).rolling(total="sum(v)", name="sums"), tmp_path)
    _, sink = work(read(make_events(9)).key_by("n").parallel(1).rolling(total="sum(v)", name="by n"), tmp_path)
    assert sorted(row.total for row in sink.rows) == [6, 7, 14]


@pytest.mark.prove
def test_a_function_of_the_user_may_change_if_its_state_stays_the_same(tmp_path: Path) -> None:
    def step(count: int, factor: int) -> Stream:
        total = aggregates.history("v", lambda values: sum(values) * factor, "BIGINT")
        return read(make_events(count)).key_by("k").parallel(1).rolling(total=total, name="sums")

    work(step(6, 1), tmp_path)
    _, sink = work(step(7, 10), tmp_path)
    assert [row.total for row in sink.rows] == [(0 + 3 + 6) * 10]


@pytest.mark.slow
def test_steps_that_have_changed_places_are_refused_before_one_reads_the_state_of_another(tmp_path: Path) -> None:
    def rows(count: int, *names: str) -> Stream:
        made = read(make_events(count))
        for name in names:
            made = made.key_by("k").parallel(1).rolling(**{f"{name}_total": "sum(v)"}, name=name)
        return made

    work(rows(3, "one", "two"), tmp_path)
    with pytest.raises(Refused, match=r"where that of step '(one|two)' would be, is that of step '(one|two)'"):
        work(rows(6, "two", "one"), tmp_path)
    for names in (("two",), ("new", "one", "two")):
        with pytest.raises(Refused, match="steps with state were added to the job, or removed"):
            work(rows(6, *names), tmp_path)
    _, sink = work(rows(6, "one", "two"), tmp_path)
    assert [(row["one_total"], row["two_total"]) for row in sink.rows] == [(3, 3), (5, 5), (7, 7)]


@pytest.mark.slow
@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: data[:-9] + b"\0" + data[-8:]])
def test_a_damaged_file_of_the_state_is_reported_at_once_and_nothing_is_lost(tmp_path: Path, damage: Any) -> None:
    def rows(count: int) -> Stream:
        return read(make_events(count)).key_by("k").parallel(1).rolling(total="sum(v)")

    work(rows(6), tmp_path)
    whole = {
        file: file.read_bytes() for file in (tmp_path / "checkpoint" / "state" / "0" / "0").glob("1.*")
    }  # log, snapshot
    for file, data in whole.items():
        file.write_bytes(damage(data))
    with pytest.raises(Failed, match="a file of the state in the checkpoint cannot be read") as told:
        work(rows(9), tmp_path)
    assert "from a copy" in told.value.fix
    for file, data in whole.items():
        file.write_bytes(data)
    _, sink = work(rows(9), tmp_path)
    assert sorted(row.total for row in sink.rows) == [0 + 3 + 6, 1 + 4 + 7, 2 + 5 + 8]


@pytest.mark.slow
def test_native_windows_that_have_changed_or_changed_places_are_refused_before_anything_runs(tmp_path: Path) -> None:
    def job(*sizes: str, total: str = "sum(v)", key: str = "k", count: int = 9) -> None:
        timed = read(make_events(count)).event_time("at", lateness="1 second")
        sums = [
            timed.key_by(key).parallel(1).window(windows.tumbling(size), name=size).aggregate(total=total)
            for size in sizes
        ]
        outputs = [one.to(f"out {number}", MemorySink()) for number, one in enumerate(sums)]
        work_job = Job("work", *outputs, guarantee=Guarantee.AT_LEAST_ONCE)
        run_to_the_end(work_job, tmp_path)

    job("2 seconds", "4 seconds")
    with pytest.raises(
        Refused, match=r"'2 seconds' was tumbling 2 seconds, .*, but '4 seconds' in its place is tumbling 4"
    ):
        job("4 seconds", "2 seconds")
    with pytest.raises(Refused, match=r"total=sum.v. over MemorySource, but .* total=sum.n. over MemorySource"):
        job("2 seconds", "4 seconds", total="sum(n)")
    with pytest.raises(Refused, match="it has 2 seconds, 4 seconds, but the job has 2 seconds"):
        job("2 seconds")
    job("2 seconds", "4 seconds", total="  sum(v)", count=12)


@pytest.mark.slow
def test_another_number_of_tasks_is_refused_before_anything_runs(tmp_path: Path) -> None:
    work(read(make_events(6)).key_by("k").rolling(total="sum(v)", name="sums"), tmp_path)
    with pytest.raises(Refused, match=r"has 2 partitions, and .parallel\(3\) asks for 3") as refused:
        work(read(make_events(9)).key_by("k").parallel(3).rolling(total="sum(v)", name="sums"), tmp_path)
    assert ".parallel(2)" in refused.value.fix
    _, sink = work(read(make_events(7)).key_by("k").parallel(2).rolling(total="sum(v)", name="sums"), tmp_path)
    assert [row.total for row in sink.rows] == [0 + 3 + 6]
    again = read(make_events(9)).key_by("k").parallel(3).rolling(total="sum(v)", name="sums")
    _, sink = work(again, tmp_path, new_life=True)
    assert len(sink.rows) == 9


@pytest.mark.slow
def test_another_time_is_refused_before_anything_runs(tmp_path: Path) -> None:
    work(read(make_events(6)).key_by("k").parallel(1).process(Totals(), name="totals"), tmp_path)
    timed = read(make_events(9)).event_time("at", lateness="1 second")
    with pytest.raises(Refused, match="uses no time, and would use event time now"):
        work(timed.key_by("k").parallel(1).process(Totals(), name="totals"), tmp_path)


@pytest.mark.slow
def test_native_windows_whose_passes_have_changed_are_refused(tmp_path: Path) -> None:
    def job(*kinds: str) -> None:
        timed = read(make_events(9)).event_time("at", lateness="1 second").key_by("k").parallel(1)
        short = timed.window(windows.tumbling("2 seconds"), name="short").aggregate(n="count(*)")
        long = timed.window(windows.tumbling("4 seconds"), name="long").aggregate(n="count(*)")
        made = {"short": short, "short too": short.where("n > 1"), "long": long}
        outputs = [made[kind].to(f"out {kind}", MemorySink()) for kind in kinds]
        work_job = Job("work", *outputs, guarantee=Guarantee.AT_LEAST_ONCE)
        run_to_the_end(work_job, tmp_path)

    job("short", "short too", "long")
    with pytest.raises(
        Refused, match=r"'short' was tumbling 2 seconds, .*, but 'long' in its place is tumbling 4 seconds"
    ):
        job("short", "long", "short too")
    job("short", "short too", "long")


@pytest.mark.slow
def test_a_step_of_another_name_begins_with_nothing_in_every_bucket_also_under_an_old_name(tmp_path: Path) -> None:
    def totals(name: str, *keys: str) -> list[tuple[str, int]]:
        seen.extend((key, 0, 1, BEGIN) for key in keys)
        _, sink = work(read(seen).key_by("k").parallel(2).rolling(total="sum(v)", name=name), tmp_path)
        return sorted((row.k, row.total) for row in sink.rows)

    seen: list[Event] = []
    many = [f"key {number}" for number in range(12)]
    assert totals("one", *many) == sorted((key, 1) for key in many)
    assert totals("two", many[0]) == [(many[0], 1)]
    assert totals("two", *many) == sorted((key, 2 if key == many[0] else 1) for key in many)
    assert totals("one", *many) == sorted((key, 1) for key in many)
