"""Branches of a step that is not deterministic: its rows are computed once per epoch, and kept for all branches."""

import json
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from lockgate import Guarantee, Job, MemorySink, MemorySource, SqliteSink, Stream, plan, stream, windows
from lockgate.errors import InvariantBroken, Refused
from lockgate.planner.passes import Cuts
from lockgate.runtime.epochs import EpochWriter
from lockgate.runtime.metrics.meter import Meter
from lockgate.runtime.persistedrows import _persisted
from lockgate.spark.compile import compile_plan
from support.runs import run_to_the_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

IDS = list(range(120))
MADE = "id BIGINT, n BIGINT, u STRING, r DOUBLE"


def events() -> Stream:
    return stream("in", MemorySource([(number, number % 2) for number in IDS], value="id BIGINT, k INT", per_epoch=60))


def chance(row: Any) -> dict[str, Any]:
    return {"id": row.id, "n": row.id, "u": str(uuid4()), "r": random.random()}


def counted_chance(row: Any) -> dict[str, Any]:
    return {**chance(row), "n": row.n}


def as_it_is(row: Any) -> dict[str, Any]:
    return {"id": row.id, "n": row.n, "u": row.u, "r": row.r}


def unless_seven(row: Any) -> dict[str, Any]:
    return {**as_it_is(row), "n": 1 // (row.id - 7) + row.n}


def by_id(sink: MemorySink) -> dict[int, str]:
    assert len({row.id for row in sink.rows}) == len(sink.rows), "no event is there twice"
    return {row.id: row.u for row in sink.rows}


@pytest.mark.slow
def test_all_branches_see_the_same_values_and_state_above_counts_each_event_once(tmp_path: Path) -> None:
    wild = events().key_by("k").rolling(n="count(*)").map(counted_chance, MADE, deterministic=False)
    branches = {
        "low": wild.where("r < 0.5"),
        "high": wild.where("r >= 0.5"),
        "merged": wild.where(lambda row: row.r < 0.5).merge(wild.where("r >= 0.5")),
        "mapped": wild.map(as_it_is, MADE).parallel(2),
        "twice": wild.select("id", "u", a="r").select("id", "u", "a", b="a + 1", c="a + 2"),
    }
    sinks = {name: MemorySink() for name in branches}
    outputs = [rows.to(name, sinks[name]) for name, rows in branches.items()]
    meter = Meter("kept")
    started = run_to_the_end(Job("kept", *outputs, guarantee=Guarantee.AT_LEAST_ONCE), tmp_path, meter=meter)
    assert started.plan.cuts.branches == {"map": 5}
    low, high, merged, mapped = (by_id(sinks[name]) for name in ("low", "high", "merged", "mapped"))
    assert not low.keys() & high.keys()
    assert sorted(merged) == IDS
    assert mapped == merged == low | high == by_id(sinks["twice"])
    assert all((row.b, row.c) == (row.a + 1, row.a + 2) for row in sinks["twice"].rows)
    assert sorted(row.n for row in sinks["merged"].rows) == sorted([*range(1, 61), *range(1, 61)])
    counts = {labels: value for (name, labels), value in meter._counters.items() if name.endswith("_out_total")}
    assert counts["map",] == counts["merge",] == counts["merged",] == len(IDS)


def test_a_step_with_two_places_in_the_compiled_plan_is_found_whatever_the_planner_says(spark: "SparkSession") -> None:
    wild = events().map(chance, MADE, deterministic=False)
    outputs = [wild.to("a", MemorySink()), wild.map(as_it_is, MADE).to("b", MemorySink())]
    planned = plan(Job("kept-wrong", *outputs, guarantee=Guarantee.AT_LEAST_ONCE))
    compile_plan(planned, spark, start=None, rows_per_epoch=10)
    with pytest.raises(InvariantBroken, match="map 'map' is compiled 2 times") as broken:
        compile_plan(replace(planned, cuts=Cuts()), spark, start=None, rows_per_epoch=10)
    assert "test_persisted_rows.py:" in broken.value.where


def sums(*, below: Callable[[Stream], Stream]) -> tuple[Job, dict[str, MemorySink]]:
    """Two branches of a window that adds fractions, with conditions on the sum that exclude each other."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [(one % 3, 0.1 * one, start + timedelta(seconds=one)) for one in IDS]
    read = stream("in", MemorySource(rows, value="k INT, x DOUBLE, at TIMESTAMP", per_epoch=60))
    timed = read.event_time("at", lateness="1 second").key_by("k")
    made = timed.window(windows.tumbling("10 seconds")).aggregate(total="sum(x)")
    sinks = {"low": MemorySink(), "high": MemorySink()}
    outputs = [made.where("total < 15").to("low", sinks["low"]), below(made).to("high", sinks["high"])]
    return Job("sums", *outputs, guarantee=Guarantee.AT_LEAST_ONCE), sinks


@pytest.mark.slow
@pytest.mark.parametrize(("is_kept", "below"), [
    (False, lambda rows: rows.where("total >= 15")),
    (True, lambda rows: rows.where(lambda row: row.total >= 15)),
])  # fmt: skip
def test_branches_of_a_window_that_adds_fractions_have_the_same_sums(
    is_kept: bool, below: Callable[[Stream], Stream], tmp_path: Path
) -> None:
    job, sinks = sums(below=below)
    started = run_to_the_end(job, tmp_path)
    assert started.plan.cuts.branches == ({"window": 2} if is_kept else {})
    noted = json.loads((tmp_path / "checkpoint" / "native/steps.json").read_text())
    assert [one["step"] for one in noted] == ["window"], "Spark has it once"
    found = [(row.k, row.window_start) for sink in sinks.values() for row in sink.rows]
    assert len(found) == len(set(found)) == 33, "all windows that are closed"
    assert all(sink.rows for sink in sinks.values())


@pytest.mark.slow
def test_a_checkpoint_that_has_such_a_window_once_for_each_branch_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("lockgate.planner.passes.depends_on_order", lambda graph, node: False)
        run_to_the_end(sums(below=lambda rows: rows.where("total >= 15"))[0], tmp_path)
    for below in (lambda rows: rows.where("total >= 15"), lambda rows: rows.where(lambda row: row.total >= 15)):
        job, sinks = sums(below=below)
        with pytest.raises(Refused, match="it has window, window, but the job has window"):
            run_to_the_end(job, tmp_path)
        assert not any(sink.rows for sink in sinks.values())


@pytest.mark.slow
def test_an_event_that_fails_in_one_branch_is_a_dead_letter_once(tmp_path: Path) -> None:
    wild = events().map(chance, MADE, deterministic=False)
    sinks = [MemorySink(), MemorySink(), MemorySink()]
    outputs = [
        wild.map(unless_seven, MADE).to("a", sinks[0]),
        wild.select("id", "u", x="1 / (id - 9)").to("b", sinks[1]),
    ]
    job = Job("kept-letters", *outputs, guarantee=Guarantee.AT_LEAST_ONCE, dead_letters=sinks[2])
    run_to_the_end(job, tmp_path)
    a, b = by_id(sinks[0]), by_id(sinks[1])
    assert sorted(a) == [one for one in IDS if one != 7]
    assert sorted(b) == [one for one in IDS if one != 9]
    assert all(b[one] == u for one, u in a.items() if one != 9)
    assert sorted((letter.step, letter.at) for letter in sinks[2].rows) == [("map-2", 7), ("select", 9)]


@pytest.mark.slow
def test_an_epoch_whose_kept_rows_are_lost_fails_and_is_repeated_whole(
    tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    deliver = EpochWriter._deliver

    def lose(self: EpochWriter, rows: "DataFrame", epoch: int) -> None:
        written.append(epoch)
        if written == [0]:
            assert _persisted(spark)
            for number in _persisted(spark):  # its blocks are removed from all executors, as if these had died
                spark.sparkContext._jsc.sc().unpersistRDD(number, True)  # type: ignore[union-attr]
        deliver(self, rows, epoch)

    monkeypatch.setattr(EpochWriter, "_deliver", lose)
    wild = events().map(chance, MADE, deterministic=False)
    place = str(tmp_path / "out.db")
    outputs = [
        wild.where(lambda row: row.r < 0.5).merge(wild.where("r >= 0.5")).to("a", SqliteSink(path=place, table="a")),
        wild.map(as_it_is, MADE).to("b", SqliteSink(path=place, table="b")),
    ]
    run_to_the_end(Job("kept-lost", *outputs, guarantee=Guarantee.END_TO_END_EXACTLY_ONCE), tmp_path)
    assert written == [0, 0, 1]
    with closing(sqlite3.connect(place)) as opened:
        a, b = (sorted(opened.execute(f"SELECT id, u FROM {table}")) for table in ("a", "b"))
    assert a == b
    assert [one for one, _ in a] == IDS
    assert not _persisted(spark), "nothing is kept when its epoch is written"
