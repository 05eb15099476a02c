"""The answers of the examples: right on small inputs, not empty over made events, and what their jobs really give."""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lockgate import (
    FileSink,
    FileSource,
    FileTable,
    Guarantee,
    Job,
    KafkaSink,
    KafkaSource,
    SqliteSink,
    run,
    stream,
    table,
)
from lockgate.cli.jobfile import load_answer, load_job
from lockgate.dataflow.rebuilding import rebuild
from lockgate.dataflow.steps import Read as ReadStep
from lockgate.dataflow.steps import Step, Write
from lockgate.dataflow.stream import Stream
from lockgate.errors import Refused
from lockgate.lab.prove.answers import Answer, answer_of, batches_of, rows_of
from lockgate.lab.prove.redirect import Redirected, Site, redirect
from lockgate.lab.prove.workload import Shape, Workload, make_workload
from lockgate.lab.rig.history import Content, Fact, History, Read, Reader, ReadToEnd
from lockgate.lab.rig.judge.canonical import Form, canonical, write
from lockgate.lab.rig.judge.checkers import check_aggregates
from lockgate.lab.rig.judge.findings import Outcome
from lockgate.lab.rig.judge.promises import Keeping, Promise, Row
from lockgate.lab.rig.readers.files import Files
from lockgate.lab.rig.readers.rows import canonical as fact_of
from lockgate.lab.rig.readers.rows import key_of

EXAMPLES = Path(__file__).parents[3] / "examples"
# Without fraud_detection/: made payments would share ids, of which a table has one each. tests/examples/
# fraud_detection/ hold it against its answer.
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))
BEGAN = datetime(2026, 1, 1, 12, tzinfo=UTC)
SITE = Site("proof-1", "127.0.0.1:5555", Path("/nowhere/site"))
Event = dict[str, Any]


@pytest.fixture(autouse=True)
def path_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a job file makes the modules beside it importable; not for the tests after this one."""
    monkeypatch.setattr(sys, "path", [*sys.path])


def example(name: str, *parameters: str) -> Answer:
    answer = load_answer(str(EXAMPLES / f"{name}.py"), parameters)
    assert answer is not None
    return answer


def moved(name: str, site: Site = SITE) -> Redirected:
    return redirect(load_job(str(EXAMPLES / f"{name}.py"), []), site)


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def timed(*events: Event) -> list[Event]:
    """Events with seconds as their time; late where they say so."""
    return [{"_late": False, **event, "at": at(event["at"])} for event in events]


def told(name: str, stream: str, events: Sequence[Event], *parameters: str) -> Any:
    return example(name, *parameters)({stream: events})


# -- over made events --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_answer_of_every_output_over_made_events_has_rows(name: str) -> None:
    job = moved(name)
    made = make_workload(job, Shape(events=1000, rows_per_epoch=50))
    rows = answer_of(example(name), job, made)
    assert rows.keys() == {one.name for one in job.results if not one.is_letters}
    assert all(len(some) >= 5 for some in rows.values()), {output: len(some) for output, some in rows.items()}


def test_the_answers_are_given_by_the_labels_of_topics() -> None:
    job = moved("order_volume")
    made = make_workload(job, Shape(events=300))
    rows = answer_of(example("order_volume"), job, made)
    assert batches_of(example("order_volume"), job, made) == {"out-0": rows["volume"], "out-1": rows["totals"]}


# -- right on small inputs ---------------------------------------------------------------------------------------------


def test_order_volume_counts_a_late_order_in_the_totals_alone() -> None:
    orders = timed(
        {"order_id": 1, "promotion": "a", "amount": Decimal("1.10"), "product": "tea", "at": 5},
        {"order_id": 2, "promotion": None, "amount": Decimal("9.00"), "product": "tea", "at": 999},
        {"order_id": 3, "promotion": "a", "amount": Decimal("2.20"), "product": "mug", "at": 6},
        {"order_id": 4, "promotion": "b", "amount": Decimal("4.00"), "product": "mug", "at": 130},
        {"order_id": 5, "promotion": "a", "amount": Decimal("8.00"), "product": "mug", "at": 7, "_late": True},
    )
    rows = told("order_volume", "orders", orders)
    one = {"promotion": "a", "window_start": at(0), "window_end": at(60), "orders": 2, "amount": Decimal("3.30")}
    assert rows["volume"] == [one]
    assert [(row["order_id"], row["total_orders"], row["total_amount"]) for row in rows["totals"]] == [
        (1, 1, Decimal("1.10")),
        (3, 2, Decimal("3.30")),
        (4, 1, Decimal("4.00")),
        (5, 3, Decimal("11.30")),
    ]
    assert all("_late" not in row for row in rows["totals"])


def test_a_minute_is_emitted_when_the_watermark_has_reached_its_end() -> None:
    def counted(last: float) -> list[tuple[str, int]]:
        events = timed({"ip": "a", "url": "u", "at": 3}, {"ip": "a", "url": "u", "at": 59}, {"ip": "b", "at": last})
        return [(row["ip"], row["requests"]) for row in told("requests_per_ip", "requests", events)["counts"]]

    assert counted(69.999) == []
    assert counted(70) == [("a", 2)]


def test_a_late_request_is_reported_with_the_minute_that_it_missed() -> None:
    events = timed({"ip": "a", "url": "u", "at": 200}, {"ip": "b", "url": "v", "at": 3, "_late": True})
    rows = told("requests_per_ip", "requests", events)
    assert rows["late"] == [{"ip": "b", "url": "v", "at": at(3), "window_start": at(0), "window_end": at(60)}]
    assert rows["counts"] == []


def test_payments_in_euro_are_settled_with_a_fee() -> None:
    paid = {"account": "a", "currency": "EUR", "at": 0}
    refused = [{**paid, "cents": 0}, {**paid, "cents": None}, {**paid, "cents": 900, "currency": None}]
    rows = told("payments", "payments", timed({**paid, "id": 1, "cents": 799}, *refused))["settlements"]
    assert rows == [{"id": 1, "account": "a", "cents": 799, "at": at(0), "fee_cents": 1}]


def test_hashtags_are_counted_as_often_as_they_are_used() -> None:
    posts = timed({"text": "#A and #a, #b", "at": 1}, {"text": "#z", "at": 70}, {"text": "none", "at": 999})
    rows = told("hashtags", "posts", posts)["counts"]
    assert {(row["hashtag"], row["uses"]) for row in rows} == {("a", 2), ("b", 1)}
    assert told("hashtags", "posts", []) == {"counts": []}


def test_sensor_averages() -> None:
    readings = [{"sensor": "s", "temperature": one, "at": second} for second, one in ((1, 20.0), (2, 21.0), (80, 0.0))]
    window = {"window_start": at(0), "window_end": at(60)}
    assert told("sensor_averages", "readings", timed(*readings)) == {
        "averages": [{"sensor": "s", **window, "temperature": 20.5, "readings": 2}]
    }


def test_a_vehicle_is_in_five_windows() -> None:
    vehicles = [
        {"crossing": "c", "kind": "lorry", "speed": 30, "at": 61},
        {"crossing": "c", "kind": "car", "speed": 50, "at": 1},
        {"crossing": "d", "kind": "car", "speed": 1, "at": 10_000},
    ]
    rows = [row for row in told("crossings", "vehicles", timed(*vehicles))["counts"] if row["crossing"] == "c"]
    facts = {row["window_start"]: (row["vehicles"], row["lorries"], row["fastest"]) for row in rows}
    both = {at(-60 * minutes): (2, 1, 50) for minutes in range(4)}
    assert facts == {at(60): (1, 1, 30), **both, at(-240): (1, 0, 50)}


def test_bubbles_of_a_minute_earn_a_bonus_from_500_on() -> None:
    popped = [
        {"team": "a", "bubbles": 250, "at": 5},
        {"team": "a", "bubbles": 250, "at": 55},
        {"team": "b", "bubbles": 499, "at": 5},
        {"team": "b", "bubbles": 1, "at": 70},
        {"team": "c", "bubbles": 1, "at": 5_000},
    ]
    rows = told("bubbles", "popped", timed(*popped))["bonuses"]
    assert rows == [{"team": "a", "window_start": at(0), "window_end": at(60), "bubbles": 500}]
    for least, teams in ((499, {"a", "b"}), (501, set())):
        assert {row["team"] for row in told("bubbles", "popped", timed(*popped), f"least={least}")["bonuses"]} == teams
    waiting = told("bubbles", "popped", timed(*popped), "lateness=2 hours")
    assert waiting == {"bonuses": []}
    assert told("bubbles", "popped", timed(*popped), "allowed=1 minute") == {}


def test_a_session_ends_when_nothing_comes_for_longer_than_the_gap() -> None:
    pages = [{"reader": "ada", "at": 60 * minute} for minute in (15, 0, 31, 200)]
    rows = told("reading_sessions", "pages", timed(*pages))["sessions"]
    assert [(row["window_start"], row["window_end"], row["pages"], row["seconds"]) for row in rows] == [
        (at(0), at(30 * 60), 2, 900),
        (at(31 * 60), at(46 * 60), 1, 0),
    ]


def test_a_purchase_counts_for_the_clicks_of_the_day_before_it() -> None:
    day = 24 * 3600
    ways = [("ada", "banner", 0), ("ada", None, 60), ("ada", "letter", 7_200), ("ben", "banner", 3_600)]
    clicks = timed(
        *[{"user": user, "page": "home", "campaign": campaign, "at": second} for user, campaign, second in ways],
        {"user": "eve", "page": "home", "campaign": "banner", "at": 100, "_late": True},
        {"user": "zoe", "page": "home", "campaign": None, "at": 3 * day},
    )
    spent = [("ada", 1, day), ("ada", 2, 7_199), ("ben", 3, day + 3_601), ("ben", 4, 3_599), ("eve", 5, 200)]
    purchases = [{"user": user, "cents": cents, "bought": at(second), "_late": False} for user, cents, second in spent]
    purchases += [{"user": "zoe", "cents": 6, "bought": at(2 * day), "_late": False}]
    rows = example("app_tracking")({"clicks": clicks, "purchases": purchases})
    assert {(row["user"], row["campaign"], row["cents"]) for row in rows["sales"]} == {
        ("ada", "banner", 1),
        ("ada", "banner", 2),
        ("ada", "letter", 1),
    }
    assert rows["sales"][0] == {
        "user": "ada",
        "page": "home",
        "campaign": "banner",
        "at": at(0),
        "cents": 1,
        "bought": at(day),
    }
    visits = {(row["user"], row["window_start"]): (row["window_end"], row["clicks"]) for row in rows["visits"]}
    assert visits == {
        ("ada", at(0)): (at(60 + 1_800), 2),
        ("ada", at(7_200)): (at(9_000), 1),
        ("ben", at(3_600)): (at(5_400), 1),
    }


def test_smoke_within_ten_minutes_of_heat_is_an_alarm() -> None:
    readings = [
        *[("in order", 70, False, 0), ("in order", 75, False, 60), ("in order", 20, True, 180)],
        *[("smoke was first", 70, False, 60), ("smoke was first", 20, True, 30)],
        *[("at the last moment", 70, False, 60), ("a moment later", 70, False, 60)],
        *[("at the last moment", 20, True, 660), ("a moment later", 20, True, 661)],
        *[("still open", 70, False, 1_400), ("quiet", 20, False, 2_000)],
    ]
    events = [
        {"room": room, "temperature": float(heat), "smoke": smoke, "at": second}
        for room, heat, smoke, second in readings
    ]
    rows = told("smoke_alarm", "readings", timed(*events))
    alarms = {row["room"]: row["match_end"] - row["match_start"] for row in rows["alarms"]}
    assert alarms == {"in order": timedelta(seconds=180), "at the last moment": timedelta(seconds=600)}
    assert {row["room"] for row in rows["hot"]} == {"smoke was first", "a moment later"}
    assert {(row["reached"], row["smoke"]) for row in rows["hot"]} == {("hot", None)}


def test_transactions_are_counted_without_malformed_calls() -> None:
    calls = [("a", "GET /x"), ("b", "POST"), ("a", "GET"), ("a", "PUT /y"), ("a", "a b c")]
    events = [{"id": number, "customer": who, "call": call, "_late": False} for number, (who, call) in enumerate(calls)]
    assert told("system_usage", "events", events) == {
        "writer": [{"customer": "a", "id": 0, "transactions": 1}, {"customer": "a", "id": 3, "transactions": 2}]
    }


# -- what an answer is given -------------------------------------------------------------------------------------------

EVERY_TYPE = (
    "a TINYINT, e FLOAT, f DOUBLE, g DECIMAL(10,2), h STRING, l BINARY, m BOOLEAN, n DATE, o TIMESTAMP,"
    " p TIMESTAMP_NTZ, q ARRAY<STRUCT<x: INT, y: DECIMAL(4,1)>>, r MAP<STRING, TIMESTAMP>, s STRING"
)


def source(value: str, **more: Any) -> Stream:
    return stream("in", KafkaSource(topic="in", servers="h:1", value=value, **more))


def job_of(*streams: Stream, **more: Any) -> Redirected:
    outputs = [
        one.to(f"out-{number}", KafkaSink(topic=f"out-{number}", servers="h:1", **more))
        for number, one in enumerate(streams)
    ]
    return redirect(Job("job", *outputs, guarantee=Guarantee.AT_LEAST_ONCE), SITE)


def given(job: Redirected, tmp_path: Path, *lines: str) -> Workload:
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(lines))
    return make_workload(job, Shape(), {"in": path})


def test_events_are_read_as_plain_python(tmp_path: Path) -> None:
    job = job_of(source(EVERY_TYPE))
    line = {
        "a": 7,
        "e": 0.1,
        "f": 0.1,
        "g": 1.5,
        "h": "2026-01-01",
        "l": "AAE=",
        "m": True,
        "n": "2026-01-02",
        "o": "2026-01-01T02:00:00+02:00",
        "p": "2026-01-01T02:00:00",
        "q": [{"x": 1, "y": 2}],
        "r": {"k": "2026-01-01T00:00:00Z"},
    }
    (row,) = rows_of(job, given(job, tmp_path, json.dumps(line)))["in"]
    zero = datetime(2026, 1, 1, tzinfo=UTC)
    assert row == {
        "a": 7,
        "e": 0.10000000149011612,
        "f": 0.1,
        "g": Decimal("1.50"),
        "h": "2026-01-01",
        "l": b"\x00\x01",
        "m": True,
        "n": date(2026, 1, 2),
        "o": zero,
        "p": datetime(2026, 1, 1, 2),
        "q": [{"x": 1, "y": Decimal("2.0")}],
        "r": {"k": zero},
        "s": None,
        "_late": False,
    }
    assert (str(row["g"]), row["o"].tzinfo) == ("1.50", UTC)


@pytest.mark.parametrize(
    ("key", "line", "expected"),
    [
        ("k BIGINT", '{"k": -7, "v": 1}', {"k": -7}),
        ("k INT", '{"k": 7, "v": 1}', {"k": 7}),
        ("k STRING", '{"k": "x", "v": 1}', {"k": "x"}),
        ("k STRING, l INT", '{"k": "x", "l": 2, "v": 1}', {"k": "x", "l": 2}),
    ],
)
def test_the_key_of_a_record_is_read(key: str, line: str, expected: Event, tmp_path: Path) -> None:
    job = job_of(source("v INT", key=key))
    assert rows_of(job, given(job, tmp_path, line))["in"] == [{**expected, "v": 1, "_late": False}]


def test_late_events_are_marked_and_bad_ones_omitted() -> None:
    late = moved("requests_per_ip")
    made = make_workload(late, Shape(events=1000, rows_per_epoch=50, late_share=0.05))
    marks = [number for number, row in enumerate(rows_of(late, made)["requests"]) if row["_late"]]
    assert tuple(marks) == made.late != ()
    bad = moved("system_usage")
    made = make_workload(bad, Shape(events=400))
    assert len(rows_of(bad, made)["events"]) == 400 - len(made.bad) < 400


def test_streams_of_one_topic_and_tables_have_rows_of_their_own(tmp_path: Path) -> None:
    names = FileTable(path="/srv/names", format="csv", schema="k STRING, since DATE")
    other = stream("other", KafkaSource(topic="in", servers="h:1", value="V INT"))
    job = job_of(source("k STRING, v INT").join(table("names", names, refresh="1 hour"), on="k"), other)
    rows = rows_of(job, make_workload(job, Shape(events=20)))
    assert [{"V": row["v"], "_late": False} for row in rows["in"]] == rows["other"]
    assert all(isinstance(row["since"], date) for row in rows["names"])


def test_lines_of_csv_and_text_are_read(tmp_path: Path) -> None:
    read = stream("in", FileSource(path="/srv/in", value="k STRING, v INT, b BOOLEAN", format="csv"))
    text = stream("text", FileSource(path="/srv/text", value="line STRING", format="text"))
    outputs = [one.to(name, FileSink(path=f"/srv/{name}")) for name, one in (("a", read), ("b", text))]
    job = redirect(Job("job", *outputs, guarantee=Guarantee.AT_LEAST_ONCE), SITE)
    rows = rows_of(job, make_workload(job, Shape(events=6)))
    assert {type(row["v"]) for row in rows["in"]} == {int}
    assert {type(row["b"]) for row in rows["in"]} == {bool}
    assert all(row["line"].startswith("line-") for row in rows["text"])


def test_an_event_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    job = job_of(source("v INT"))
    with pytest.raises(Refused, match="event 2 cannot be read as v"):
        rows_of(job, given(job, tmp_path, '{"v": 1}', '{"v": "x"}'))


# -- what an answer gives ----------------------------------------------------------------------------------------------


def ask(answer: Callable[[Any], object], **sink: Any) -> Mapping[str, Sequence[Row]]:
    job = job_of(source("k BIGINT, v DOUBLE"), **sink)
    return answer_of(answer, job, make_workload(job, Shape(events=3)))


def test_rows_have_the_bytes_of_keys() -> None:
    row = {"k": 7, "v": 1.0}
    assert ask(lambda _: {"out-0": [row]}, key="k") == {"out-0": (Row(b"\0\0\0\0\0\0\0\x07", b'{"k":7,"v":1}'),)}
    assert ask(lambda _: {"out-0": [row]}, key=("k", "v"))["out-0"][0].key == b"[7,1]"
    assert ask(lambda _: {"out-0": [row]})["out-0"][0].key is None
    assert ask(lambda _: {"out-0": iter(())}) == {"out-0": ()}
    assert ask(lambda _: {}) == {}


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (lambda events: {"counts": []}, "output 'counts', and the job has out-0"),
        (lambda events: None, "returned nothing"),
        (lambda events: [], "returned a list"),
        (lambda events: {"out-0": {"k": 1}}, "a dict of output 'out-0', not a list"),
        (lambda events: {"out-0": [(1, 2)]}, "row 1 of output 'out-0' is a tuple"),
        (lambda events: {"out-0": [{"k": 1, "v": {1}}]}, "row 1 .* set has no form in JSON"),
        (lambda events: {"out-0": [{"v": 1}]}, "has no 'k'"),
        (lambda events: events["elsewhere"], "answer\\(\\) failed: KeyError: 'elsewhere'"),
    ],
)
def test_an_answer_that_says_nothing_of_use_is_refused(answer: Callable[[Any], object], match: str) -> None:
    with pytest.raises(Refused, match=match) as refused:
        ask(answer, key="k")
    assert "test_answers.py:" in refused.value.where


def test_rows_that_are_not_json_objects_are_not_compared() -> None:
    with pytest.raises(Refused, match="CSV") as refused:
        ask(lambda _: {"out-0": []}, format="csv")
    assert "leave this output out" in refused.value.fix


def test_an_answer_takes_parameters_of_the_job(tmp_path: Path) -> None:
    file = tmp_path / "own_job.py"

    def load(text: str, *parameters: str) -> Answer | None:
        file.write_text(f"def job(size: int = 3, name: str = 'x'): ...\n{text}")
        return load_answer(str(file), parameters)

    assert load("") is None
    for parameters, size in (((), 3), (("size=5", "name=y"), 5)):
        answer = load("def answer(events, size): return size", *parameters)
        assert answer is not None
        assert answer({}) == size
    with pytest.raises(Refused, match="asks for 'length'"):
        load("def answer(events, length): ...")
    with pytest.raises(Refused, match="is not a function"):
        load("answer = 7")


# -- compared with what was read ---------------------------------------------------------------------------------------


def finding_of(batch: Sequence[Row], there: Sequence[Content], keeping: Keeping = Keeping.LOG) -> Any:
    facts: list[Fact] = [
        Read(Reader.AFTER, "out", 0, number, key, value, None, 0, 1.0) for number, (key, value) in enumerate(there)
    ]
    promise = Promise(Guarantee.END_TO_END_EXACTLY_ONCE, rows=None, batch=tuple(batch), keeping=keeping)
    return check_aggregates(History((*facts, ReadToEnd(Reader.AFTER, 2.0))), {"out": promise})


@pytest.mark.parametrize("name", ["order_volume", "payments", "requests_per_ip", "system_usage"])
def test_a_planted_wrong_row_is_caught(name: str) -> None:
    job = moved(name)
    for label, batch in batches_of(
        example(name), job, make_workload(job, Shape(events=600, rows_per_epoch=30))
    ).items():
        there = [row.content for row in batch]
        assert finding_of(batch, there).outcome is Outcome.HOLDS, label
        key, value = there[1]
        row = json.loads(value or b"", parse_float=Decimal)
        number = next(name for name, one in row.items() if isinstance(one, int | Decimal) or name == "at")
        wrong = write({**row, number: "other" if number == "at" else row[number] + 1})
        for planted in ((key, wrong), (b"another key", value)):
            found = finding_of(batch, [there[0], planted, *there[2:]])
            assert (found.outcome, found.count) == (Outcome.BROKEN, 2), label
            assert found.subject.content == planted
        assert finding_of(batch, there[1:]).outcome is Outcome.BROKEN
        assert finding_of(batch, [there[0], *there]).outcome is Outcome.BROKEN


SAME = [
    (b'{"a": 1, "b": [1.50, null]}', b'{"b":[1.5,null],"a":1.0}'),
    (b'{"a": 1E2, "b": null}', b'{"a": 100}'),
    (b'{"at": "2026-01-01T00:00:00.5Z"}', b'{"at": "2026-01-01T02:00:00.500+02:00"}'),
    (b'{"at": "2026-01-01T00:00:00"}', b'{"at": "2026-01-01 00:00:00.000"}'),
    (b'{"a": 0.30000000000000004, "b": -0.0}', b'{"a": 0.30000000000000005, "b": 0}'),  # one double
    (b'{"a": {"y": 1, "x": "\\u00e9"}}', '{"a": {"x": "é", "y": 1}}'.encode()),
]
OTHER = [
    (b'{"a": 1}', b'{"a": "1"}'),
    (b'{"a": 1}', b'{"a": true}'),
    (b'{"a": 0}', b'{"a": null}'),
    (b'{"a": [1, 2]}', b'{"a": [2, 1]}'),
    (b'{"a": "2026-01-01T00:00:00Z"}', b'{"a": "2026-01-01T00:00:00"}'),
    (b'{"a": 12345678901234567.89}', b'{"a": 12345678901234567.88}'),
    (b'{"a": 9007199254740993}', b'{"a": 9007199254740992}'),
    (b"1", b"1.0"),
]


@pytest.mark.parametrize(("one", "same"), SAME)
def test_the_order_of_fields_and_the_form_of_numbers_and_times_do_not_matter(one: bytes, same: bytes) -> None:
    assert canonical((None, one)) == canonical((None, same))
    assert finding_of([Row(b"k", one)], [(b"k", same)]).outcome is Outcome.HOLDS
    assert canonical(canonical((None, one))) == canonical((None, one))


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_what_means_something_else_is_another_row(one: bytes, other: bytes) -> None:
    assert finding_of([Row(b"k", one)], [(b"k", other)]).outcome is Outcome.BROKEN


def test_plain_values_have_the_form_of_what_spark_writes() -> None:
    row = {
        "d": Decimal("10.00"),
        "f": 659.5833333333334,
        "n": float("nan"),
        "b": b"\0\1",
        "none": None,
        "day": date(2026, 1, 2),
        "at": at(0).astimezone(timezone(timedelta(hours=2))),
        "s": {"y": [], "x": True},
    }
    spark = (
        b'{"d":10.00,"f":659.5833333333334,"n":"NaN","b":"AAE=","none":null,"day":"2026-01-02",'
        b'"at":"2026-01-01T12:00:00.000000Z","s":{"y":[],"x":true}}'
    )
    assert canonical((None, write(row))) == canonical((None, spark))


def test_rows_of_tables_and_files_are_compared_although_they_tell_fractions_as_text() -> None:
    row: Event = {
        "k": "x",
        "d": Decimal("10.00"),
        "f": 20.5,
        "at": at(0),
        "b": True,
        "raw": b"\0\1",
        "n": 7,
        "s": {"x": [1.5]},
    }
    sinks = [SqliteSink(table="t", path="/srv/t.db", key="k"), SqliteSink(table="u", path="/srv/t.db")]
    read = source("k STRING")
    outputs = [read.to(f"out-{number}", sink) for number, sink in enumerate(sinks)]
    job = redirect(Job("job", *outputs, guarantee=Guarantee.AT_LEAST_ONCE), SITE)
    told = {name: [{**row, "n": 6}, row] for name in ("out-0", "out-1")}
    batches = batches_of(lambda _: told, job, make_workload(job, Shape(events=1)))
    # Rows of a key replace each other.
    assert {label: len(some) for label, some in batches.items()} == {"out-0-t": 1, "out-0-u": 2}
    for there in (row, {**row, "b": 1, "at": "2026-01-01T12:00:00", "s": '{"x": [1.50]}', "raw": "\\x0001"}):
        found = finding_of(batches["out-0-t"], [(key_of(there, ["k"]), fact_of(there))], Keeping.REPLACED)
        assert found.outcome is Outcome.HOLDS
    wrong = {**row, "f": 20.25}
    assert (
        finding_of(batches["out-0-t"], [(key_of(wrong, ["k"]), fact_of(wrong))], Keeping.REPLACED).outcome
        is Outcome.BROKEN
    )


# -- the real jobs -----------------------------------------------------------------------------------------------------

SHAPE = Shape(events=200, seed=3, rows_per_epoch=40, late_share=0.2)


def over_files(job: Redirected) -> Job:
    """The job with files in the place of topics: a file is an epoch, and no broker is needed."""
    directory = job.site.directory
    labels = {one.place: one.label for one in job.inputs if one.is_topic}

    def in_files(step: Step) -> Step:
        if isinstance(step, ReadStep) and isinstance(step.source, KafkaSource):
            path = str(directory / labels[step.source.topic])
            return replace(step, source=FileSource(path=path, value=step.source.value))
        if isinstance(step, Write):
            return replace(step, sink=FileSink(path=str(directory / step.name)))
        return step

    return rebuild(
        job.job,
        name=job.site.name,
        exchange=in_files,
        letters=lambda _: FileSink(path=str(directory / "letters")),
        guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
    )


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(
    "name", ["order_volume", pytest.param("requests_per_ip", marks=pytest.mark.prove), "reading_sessions"]
)
def test_the_answer_is_what_the_job_gives(
    name: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # runs write their log below the current directory
    job = moved(name, Site("proof-1", "127.0.0.1:5555", tmp_path / "site"))
    made = make_workload(job, SHAPE)
    (label,) = made.partitions
    directory = tmp_path / "site" / label
    directory.mkdir(parents=True)
    per_file = SHAPE.rows_per_epoch if made.late else len(made.events) // 2  # late events need epochs before them
    for number in range(0, len(made.events), per_file):
        part = made.events[number : number + per_file]
        file = directory / f"{number:06}.json"
        file.write_bytes(b"\n".join(event.value or b"" for event in part))
        os.utime(file, (number, number))  # Spark reads the oldest file first
    run(over_files(job), checkpoint=str(tmp_path / "checkpoint"), until_caught_up=True, rows_per_epoch=1)

    for output, rows in answer_of(example(name), job, made).items():
        reader = Files(output, tmp_path / "site" / output, "parquet", is_exact=True)
        there = [fact for fact in reader.after(lambda: 1.0) if isinstance(fact, Read)]
        found, wanted = (Counter(canonical((None, row.value), Form.TOLD) for row in some) for some in (there, rows))
        assert found == wanted, output
        assert len(rows) >= 5
