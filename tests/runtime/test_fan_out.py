"""Fan-outs in a running query: cut off, put aside, counted once; and in the harness."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lockgate import (
    FileSink,
    Guarantee,
    Job,
    KafkaSink,
    KafkaSource,
    MemorySink,
    MemorySource,
    Partial,
    SqliteSink,
    Stream,
    run,
    stream,
)
from lockgate.dataflow.endpoints import Reading
from lockgate.errors import BadJob
from lockgate.runtime.metrics.meter import Meter
from lockgate.runtime.options import Options
from lockgate.runtime.progress import Progress
from lockgate.runtime.starting import launch
from lockgate.testing import Harness

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

EXACT = Guarantee.END_TO_END_EXACTLY_ONCE
ARRIVED = datetime.now(UTC) - timedelta(seconds=1000)
ROWS = [(number, ["a"] if number % 2 else None) for number in range(40)]


def double(row: Any) -> int:
    return int(row.v * 2)


def never(row: Any) -> float:
    """Blocks for some events, as a call to a service that does not answer."""
    if row.v in (3, 7):
        threading.Event().wait()
    return row.v / 2


def fail(row: Any) -> Any:
    return {5: lambda: 1 // 0, 6: lambda: "six"}.get(row.v, lambda: row.v)()


def numbers(per_epoch: int | None = None) -> Stream:
    return stream("numbers", MemorySource(ROWS, value="v INT, tags ARRAY<STRING>", per_epoch=per_epoch))


@pytest.mark.slow
def test_slow_and_failing_functions_are_missing_and_all_is_counted_once(tmp_path: Path) -> None:
    # Three seconds, on a loaded machine: who answers at all answers by then.
    scored = numbers(per_epoch=10).fan_out(
        deadline="3 seconds", schema="twice INT, half DOUBLE, odd INT", twice=double, half=never, odd=fail
    )
    parts = scored.split(whole="NOT is_partial", partial="is_partial")
    sinks = {name: MemorySink() for name in parts}
    job = Job(
        "fans",
        *(part.to(name, sinks[name]) for name, part in parts.items()),
        guarantee=Guarantee.AT_LEAST_ONCE,
    )
    told: list[Progress] = []
    started = run(job, checkpoint=str(tmp_path / "checkpoint"), until_caught_up=True, wait=False)
    started.wait(on_progress=told.append)

    whole = {row["v"]: row for row in (one.asDict() for one in sinks["whole"].rows)}
    partial = {row["v"]: row for row in (one.asDict() for one in sinks["partial"].rows)}
    assert len(sinks["whole"].rows) + len(sinks["partial"].rows) == 40
    assert partial.keys() == {3, 5, 6, 7}
    assert all((row["twice"], row["half"], row["odd"]) == (2 * v, v / 2, v) for v, row in whole.items())
    assert all(row["tags"] == dict(ROWS)[v] for v, row in (whole | partial).items())
    assert {v: row["missing"] for v, row in partial.items()} == {3: ["half"], 5: ["odd"], 6: ["odd"], 7: ["half"]}
    assert (partial[3]["twice"], partial[3]["half"], partial[3]["odd"]) == (6, None, 3)
    assert partial[3]["why_missing"] == ["it took longer than 3000 ms"]
    assert partial[5]["why_missing"][0].startswith("ZeroDivisionError")
    assert "'six' is not of type int32" in partial[6]["why_missing"][0]

    report = json.loads(json.dumps(told[-1].fan_outs))["fan_out"]
    assert (report["events"], report["partial"]) == (40, 4)
    assert report["functions"] == {
        "twice": {"answered": 40, "timed_out": 0, "failed": 0, "skipped": 0},
        "half": {"answered": 38, "timed_out": 2, "failed": 0, "skipped": 0},
        "odd": {"answered": 38, "timed_out": 0, "failed": 2, "skipped": 0},
    }
    assert report["latency_ms_p50"] < 3000 <= report["latency_ms_p99"] * 1.03
    assert "end to end -, 4 of 40 partial" in told[-1].line()


class Stamped(MemorySource):
    """Rows that arrived a thousand seconds before they were written down."""

    def hidden_columns(self) -> Sequence[str]:
        return (*super().hidden_columns(), "_timestamp")

    def read(self, spark: SparkSession, reading: Reading) -> DataFrame:
        from pyspark.sql import functions as F

        return super().read(spark, reading).withColumn("_timestamp", F.lit(ARRIVED))


@pytest.mark.slow
def test_an_event_is_as_old_as_it_is_when_its_epoch_is_written(tmp_path: Path) -> None:
    source = Stamped(ROWS, value="v INT, tags ARRAY<STRING>", per_epoch=20)
    known = stream("numbers", source).where("v >= 0").key_by("v").rolling(seen="count(*)")
    out = known.fan_out(deadline="30 seconds", twice=double, half=lambda row: row.v / 2).to("out", MemorySink())
    meter = Meter("ages")
    told: list[Progress] = []
    before = (datetime.now(UTC) - ARRIVED).total_seconds()
    started = launch(
        Job("ages", out, guarantee=Guarantee.AT_LEAST_ONCE),
        Options(checkpoint=str(tmp_path / "checkpoint"), until_caught_up=True),
        meter=meter,
    )
    started.wait(on_progress=told.append)
    after = (datetime.now(UTC) - ARRIVED).total_seconds()
    report = told[-1].fan_outs["fan_out"]
    assert (report["events"], report["stamped"], report["partial"]) == (40, 40, 0)
    assert before * 0.97 < report["end_to_end_ms_p50"] / 1000 <= report["end_to_end_ms_p99"] / 1000 < after * 1.03
    assert f"end to end p99 {report['end_to_end_ms_p99']:,.0f} ms" in told[-1].line()
    figures = {(one.name, *one.labels): one.value for one in meter.figures()}
    assert figures["lockgate_fan_out_events_total", "fan_out"] == 40
    assert figures["lockgate_fan_out_calls_total", "fan_out", "twice", "answered"] == 40
    assert figures["lockgate_fan_out_end_to_end_seconds", "fan_out", "0.99"] == report["end_to_end_ms_p99"] / 1000


@pytest.mark.slow
def test_an_event_that_must_be_whole_is_a_dead_letter_in_the_commit_of_the_others(tmp_path: Path) -> None:
    def table(name: str) -> SqliteSink:
        return SqliteSink(table=name, path=str(tmp_path / "results.db"))

    scored = numbers().fan_out(
        deadline="3 seconds", schema="half DOUBLE, odd INT", partial=Partial.DEAD_LETTER, half=never, odd=fail
    )
    job = Job("whole", scored.to("out", table("scores")), guarantee=EXACT, dead_letters=table("letters"))
    done = run(job, checkpoint=str(tmp_path / "checkpoint"), until_caught_up=True)
    assert done.plan.reached is EXACT
    with closing(sqlite3.connect(tmp_path / "results.db")) as database:
        out = [v for (v,) in database.execute("SELECT v FROM scores ORDER BY v")]
        letters = database.execute('SELECT "at", step, reason, hindered FROM letters ORDER BY "at"').fetchall()
    assert out == [number for number in range(40) if number not in (3, 5, 6, 7)]
    assert [(step, hindered) for _, step, _, hindered in letters] == [("fan_out", None)] * 4
    assert [at for at, *_ in letters] == [3, 5, 6, 7]
    assert letters[0][2] == "half is missing: it took longer than 3000 ms"
    assert letters[1][2].startswith("odd is missing: ZeroDivisionError")


def test_a_fan_out_that_two_ways_would_compute_twice_is_refused(tmp_path: Path) -> None:
    scored = numbers().fan_out(deadline="1 second", schema="twice INT", twice=double)
    more = scored.key_by("v").rolling(n="count(*)")
    job = Job(
        "twice",
        scored.to("scores", FileSink(path=str(tmp_path / "a"))),
        more.to("more", FileSink(path=str(tmp_path / "b"))),
        guarantee=EXACT,
    )
    with pytest.raises(BadJob) as refused:
        run(job, checkpoint=str(tmp_path / "checkpoint"), until_caught_up=True)
    assert "would be computed 2 times" in refused.value.what
    assert "split" in refused.value.fix


def test_the_harness_takes_a_job_with_a_fan_out_and_has_patience() -> None:
    def breathe(row: Any) -> int:
        threading.Event().wait(0.05)  # longer than the deadline, which is not what a test on a slow machine is about
        return int(row.v)

    payments = KafkaSource(topic="payments", servers="broker.invalid:9092", value="v INT, tags ARRAY<STRING>")
    scored = stream("payments", payments).fan_out(
        deadline="1 ms", schema="slow INT, odd INT", partial=Partial.DEAD_LETTER, slow=breathe, odd=fail
    )
    sink = KafkaSink(topic="scores", servers="broker.invalid:9092")
    letters = KafkaSink(topic="letters", servers="broker.invalid:9092")
    with Harness(Job("fans", scored.to("out", sink), guarantee=EXACT, dead_letters=letters)) as harness:
        harness.feed("payments", {"v": 4, "tags": None}, {"v": 5, "tags": ["x"]})
        (row,) = harness.rows("out")
        assert (row["slow"], row["odd"], row["missing"], row["is_partial"]) == (4, 4, [], False)
        (letter,) = harness.rows("dead-letters")
        assert (letter["step"], json.loads(letter["value"])["v"]) == ("fan_out", 5)
        assert letter["reason"].startswith("odd is missing: ZeroDivisionError")
