"""What a test may write down as a row, and what is refused with a reason; one small epoch for all kinds of sources."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from lockgate import (
    FileSource,
    Guarantee,
    Job,
    KafkaSink,
    KafkaSource,
    MemorySink,
    MemorySource,
    MqttSource,
    SensorSource,
    SocketSource,
    Stream,
    stream,
    table,
    windows,
)
from lockgate.dataflow.endpoints import Source
from lockgate.dataflow.table import FileTable
from lockgate.errors import BadJob, OverClaim, Refused
from lockgate.testing import Harness
from lockgate.testing.fitting import as_csv, as_json, as_struct, fitted

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ALL = (
    "i INT, s STRING, f DOUBLE, d DECIMAL(5,2), b BINARY, day DATE, at TIMESTAMP, n TIMESTAMP_NTZ, yes BOOLEAN,"
    " a ARRAY<INT>, m MAP<STRING, INT>, r STRUCT<x: INT, y: STRING>"
)
ROW: dict[str, Any] = {
    "i": -5,
    "s": 'a "word", ü',
    "f": 0.5,
    "d": Decimal("-123.45"),
    "b": b"\x00\xff",
    "day": date(2026, 1, 2),
    "at": NOON + timedelta(microseconds=7),
    "n": datetime(2026, 1, 2, 3),
    "yes": True,
    "a": [1, None],
    "m": {"k": 1},
    "r": {"x": 1, "y": None},
}
FLAT = "i INT, s STRING, f DOUBLE, d DECIMAL(5,2), day DATE, at TIMESTAMP, n TIMESTAMP_NTZ, yes BOOLEAN"
FLAT_ROW = {name: ROW[name] for name in ("i", "s", "f", "d", "day", "at", "n", "yes")}
NOTHING = dict.fromkeys(ROW)


def job(*streams: Stream, guarantee: Guarantee = Guarantee.AT_MOST_ONCE) -> Job:
    return Job("feeding", *(one.to(f"out {at}", MemorySink()) for at, one in enumerate(streams)), guarantee=guarantee)


@pytest.mark.slow
def test_rows_come_out_of_every_kind_of_source_as_they_were_fed() -> None:
    sources: dict[str, tuple[Source, dict[str, Any]]] = {
        "kafka": (KafkaSource(topic="t", servers="no.invalid:9092", value=ALL), ROW),
        "mqtt": (MqttSource(topic="t/#", host="no.invalid", value=ALL), ROW),
        "csv": (FileSource(path="/nowhere", value=FLAT, format="csv", header=True), FLAT_ROW),
        "socket": (SocketSource(host="no.invalid", port=9, value=ALL, format="json"), ROW),
        "memory": (MemorySource([], value=ALL), ROW),
        "sensors": (SensorSource(), {"sensor": "s", "temperature": 20.5, "smoke": False, "at": NOON}),
    }
    with Harness(job(*(stream(name, source) for name, (source, _) in sources.items()))) as harness:
        for name, (_, row) in sources.items():
            harness._inlets[name].put([row, dict.fromkeys(row)], NOON)  # all in the epoch of the last
        harness.feed("kafka", ROW)
        for at, (name, (_, row)) in enumerate(sources.items()):
            assert harness.rows(f"out {at}")[:2] == [row, dict.fromkeys(row)], name
        assert len(harness.all_rows("out 0")) == 3


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"more": 1}, "column 'more' that is not declared"),
        ({"i": 2**31}, "'i' .* no INT"),
        ({"i": True}, "no INT"),
        ({"i": 1.0}, "no INT"),
        ({"s": 5}, "no STRING"),
        ({"f": "0.5"}, "no DOUBLE"),
        ({"d": Decimal("1.234")}, "no DECIMAL"),
        ({"d": 1000}, "no DECIMAL"),
        ({"b": "text"}, "no BINARY"),
        ({"day": NOON}, "no DATE"),
        ({"at": datetime(2026, 1, 1)}, "give it a zone"),
        ({"n": NOON}, "no TIMESTAMP_NTZ"),
        ({"a": [1, "x"]}, "no INT"),
        ({"m": {1: 1}}, "no STRING"),
        ({"r": {"x": 1}}, "all of its fields"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(change: dict[str, Any], told: str) -> None:
    with pytest.raises(Refused, match=told) as refused:
        fitted({**ROW, **change}, as_struct(ALL), where="here")
    assert "i int" in refused.value.fix


def test_a_row_that_lacks_a_column_or_has_none_where_it_must_not_is_refused() -> None:
    with pytest.raises(Refused, match="lacks the column 's'"):
        fitted({"i": 1}, as_struct("i INT, s STRING"), where="here")
    with pytest.raises(Refused, match="NOT NULL"):
        fitted({"i": None}, as_struct("i INT NOT NULL"), where="here")


def test_rows_as_text() -> None:
    assert as_json({"f": float("nan"), "d": Decimal("1E+2"), "b": b"x"}) == b'{"f": "NaN", "d": "100", "b": "eA=="}'
    assert as_csv([None, True, 'a "b"', "", NOON]) == b',true,"a \\"b\\"","",2026-01-01T12:00:00.000000+00:00'


def test_what_cannot_be_asked_of_a_harness_is_refused_before_anything_runs() -> None:
    rows = stream("in", MemorySource([], value="k STRING, at TIMESTAMP"))
    one = job(rows)
    with pytest.raises(Refused, match="not entered"):
        Harness(one).feed("in", {"k": "a", "at": NOON})
    with Harness(one, now=NOON) as harness:
        with pytest.raises(Refused, match="no stream 'other'") as told:
            harness.feed("other", {"k": "a"})
        assert "'in'" in told.value.fix
        for bad, reason in (((), "no row"), (({"k": 5, "at": NOON},), "no STRING"), ((b"text",), "not a row")):
            with pytest.raises(Refused, match=reason):
                harness.feed("in", *bad)
        with pytest.raises(Refused, match="no output 'other'"):
            harness.rows("other")
        with pytest.raises(Refused, match="does not go back"):
            harness.advance(-timedelta(seconds=1))
        with pytest.raises(Refused, match="zone"):
            harness.advance_to(datetime(2026, 1, 1))
        with pytest.raises(Refused, match="no table 'customers'"):
            harness.set_table("customers")
        assert harness._run is None
    with pytest.raises(Refused, match="no table 'customers'"), Harness(one, tables={"customers": []}):
        pass
    with pytest.raises(Refused, match="zone"):
        Harness(one, now=datetime(2026, 1, 1))
    customers = FileTable(path="/nowhere", format="csv", schema="k STRING, n INT")
    joined = job(rows.join(table("customers", customers, refresh="1 hour"), on="k"))
    with pytest.raises(Refused, match="the test gives no rows to table 'customers'"), Harness(joined):
        pass
    with pytest.raises(Refused, match="no INT"), Harness(joined, tables={"customers": [{"k": "a", "n": "b"}]}):
        pass


def test_a_job_that_production_would_refuse_is_refused() -> None:
    rows = stream("in", SocketSource(host="no.invalid", port=9))
    with pytest.raises(OverClaim), Harness(job(rows, guarantee=Guarantee.EXACTLY_ONCE)):
        pass
    wrong = stream("in", MemorySource([], value="k STRING")).transform(lambda frame: frame.select("nothing"))
    with Harness(job(wrong)) as harness, pytest.raises(BadJob, match="nothing"):
        harness.feed("in", {"k": "a"})


def test_a_job_by_the_clock_whose_event_time_no_row_shows_needs_a_time() -> None:
    read = stream("in", KafkaSource(topic="t", servers="no.invalid:9092", value="k STRING, ms BIGINT"))
    timed = read.select("k", at="timestamp_millis(ms)").event_time("at", lateness="0 seconds", max_ahead="1 minute")
    counts = timed.key_by("k").window(windows.tumbling("1 minute")).aggregate(n="count(*)")
    made = Job("made", counts.to("out", KafkaSink(topic="o", servers="x")), guarantee=Guarantee.AT_LEAST_ONCE)
    with Harness(made) as harness, pytest.raises(Refused, match="the harness cannot know the time"):
        harness.feed("in", {"k": "a", "ms": 0})
