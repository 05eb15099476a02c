"""Dead letters: events that cannot be used leave by a way of their own, and all others go on."""

import base64
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from lockgate import (
    DeadLetters,
    FileSource,
    Guarantee,
    Job,
    KafkaSink,
    Late,
    MemorySink,
    MemorySource,
    StatefulFunction,
    Stream,
    stream,
    value,
    windows,
)
from lockgate.connectors.kafka.topics import create_topics
from lockgate.errors import Failed, FunctionFailed, TimeRefused
from support.files import put
from support.records import read_json
from support.runs import run_to_the_end

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

VALUE = "k STRING, v INT"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path


def events(place: Path, declared: str = VALUE) -> Stream:
    return stream("in", FileSource(path=str(place / "in"), value=declared))


def job_of(ends: Stream, sink: MemorySink, letters: Any) -> Job:
    return Job("letters", ends.to("out", sink), guarantee=Guarantee.AT_LEAST_ONCE, dead_letters=letters)


def values_of(sink: MemorySink, *names: str) -> list[Any]:
    return sorted(tuple(row[name] for name in names) if len(names) > 1 else row[names[0]] for row in sink.rows)


def half(row: Any) -> dict[str, Any]:
    return {"k": row.k, "half": 10 // row.v}


def test_a_function_that_raises_lets_all_other_events_pass(place: Path) -> None:
    put(place / "in", '{"k":"a","v":2}', '{"k":"b","v":0}', '{"k":"c","v":5}')
    sink, letters = MemorySink(), MemorySink()
    run_to_the_end(job_of(events(place).map(half, schema="k STRING, half INT"), sink, letters), place)
    assert values_of(sink, "k", "half") == [("a", 5), ("c", 2)]
    (letter,) = letters.rows
    assert (letter.step, letter.attempts, letter.source, letter.job) == ("map", 1, "in", "letters")
    assert letter.reason.startswith("ZeroDivisionError")
    assert bytes(letter.value) == b'{"k":"b","v":0}'
    assert letter.shown == "{'k': 'b', 'v': 0}"


@pytest.mark.parametrize("condition", ["v > 1", "k IS NOT NULL"])
def test_a_value_that_does_not_parse_is_a_dead_letter_whatever_is_filtered_behind_it(
    place: Path, condition: str
) -> None:
    put(place / "in", '{"k":"a","v":2}', "nonsense", '{"k":"c","v":"x"}')
    sink, letters = MemorySink(), MemorySink()
    run_to_the_end(job_of(events(place).where(condition), sink, letters), place)
    assert values_of(sink, "k") == ["a"]
    assert [(bytes(row.value), row.step) for row in sorted(letters.rows, key=lambda row: bytes(row.value))] == [
        (b"nonsense", "in"),
        (b'{"k":"c","v":"x"}', "in"),
    ]
    assert all("it is not JSON" in row.reason for row in letters.rows)


def words(row: Any) -> Iterator[dict[str, Any]]:
    for number in range(row.v):
        yield {"word": row.k, "n": number if row.k != "b" else "many"}


def test_results_that_their_columns_cannot_hold_make_one_dead_letter_of_their_event(place: Path) -> None:
    put(place / "in", '{"k":"a","v":2}', '{"k":"b","v":3}', '{"k":"c","v":1}')
    sink, letters = MemorySink(), MemorySink()
    run_to_the_end(job_of(events(place).flat_map(words, schema="word STRING, n INT"), sink, letters), place)
    assert values_of(sink, "word", "n") == [("a", 0), ("a", 1), ("c", 0)]
    assert [(bytes(row.value), row.step) for row in letters.rows] == [(b'{"k":"b","v":3}', "flat_map")]


def test_columns_that_are_never_null_stay_so_beside_dead_letters(place: Path) -> None:
    put(place / "in", '{"k":"a","v":2}', '{"k":"b","v":0}', '{"k":null,"v":5}')
    sink, letters = MemorySink(), MemorySink()
    halves = events(place).map(half, schema="k STRING NOT NULL, half INT NOT NULL")
    run_to_the_end(job_of(halves.where("half > 1 AND k <> ''"), sink, letters), place)
    assert values_of(sink, "k", "half") == [("a", 5)]
    assert sorted(row.reason.split(":")[0] for row in letters.rows) == [
        "ZeroDivisionError",
        "k=None is not of type string",
    ]


def test_a_child_that_fails_is_a_dead_letter_of_its_own(place: Path) -> None:
    put(place / "in", '{"k":"a","v":3}')
    sink, letters = MemorySink(), MemorySink()
    split = events(place).flat_map(lambda row: [(row.k, n) for n in range(row.v)], schema="k STRING, v INT")
    run_to_the_end(job_of(split.map(half, schema="k STRING, half INT"), sink, letters), place)
    assert values_of(sink, "half") == [5, 10]
    assert [(row.child, row.step, bytes(row.value)) for row in letters.rows] == [("0", "map", b'{"k":"a","v":3}')]


def test_a_condition_in_python_that_raises(place: Path) -> None:
    put(place / "in", '{"k":"a","v":2}', '{"k":"b","v":0}')
    sink, letters = MemorySink(), MemorySink()
    run_to_the_end(job_of(events(place).where(lambda row: 10 / row.v > 1), sink, letters), place)
    assert values_of(sink, "k") == ["a"]
    assert [row.step for row in letters.rows] == ["where"]


def told(letters: MemorySink) -> list[tuple[str, str, Any]]:
    return sorted((row.step, row.reason, json.loads(bytes(row.value))["k"]) for row in letters.rows)


def test_sql_that_fails_on_an_event_makes_a_dead_letter_of_it(place: Path) -> None:
    put(place / "in", '{"k":"a","v":2}', '{"k":"b","v":0}', '{"k":"c","v":null}', '{"k":"7","v":2}', '{"k":"d","v":90}')
    sink, letters = MemorySink(), MemorySink()
    read = events(place)
    checked = read.where("v IS NULL OR array(1, 2, 3)[v] > 0")
    # What both expressions share is computed for each of them alone.
    each = checked.select("k", half="10 / v", more="10 / v + 1", same="v").where("k = '7' OR cast(k AS INT) IS NULL")
    chosen = read.select("k", half="10 / v", more="10 / v + 1", same="v")
    outputs = chosen.to("chosen", sink), each.to("each", MemorySink())
    run_to_the_end(Job("letters", *outputs, guarantee=Guarantee.AT_LEAST_ONCE, dead_letters=letters), place)
    assert sorted((row.k, row.half, row.more, row.same) for row in sink.rows if row.k != "c") == [
        ("7", 5.0, 6.0, 2),
        ("a", 5.0, 6.0, 2),
        ("d", 10 / 90, 10 / 90 + 1, 90),
    ]
    assert [(row.half, row.more, row.same) for row in sink.rows if row.k == "c"] == [(None, None, None)]
    assert told(letters) == [
        ("select", "SQL fails: half = 10 / v", "b"),
        ("select-2", "SQL fails: half = 10 / v", "b"),
        ("where", "SQL fails: v IS NULL OR array(1, 2, 3)[v] > 0", "d"),
        ("where-2", "SQL fails: k = '7' OR cast(k AS INT) IS NULL", "a"),
        ("where-2", "SQL fails: k = '7' OR cast(k AS INT) IS NULL", "c"),
    ]
    shown = {json.loads(row.shown)["k"]: json.loads(row.shown) for row in letters.rows if row.step == "where"}
    assert shown == {"d": {"k": "d", "v": 90}}


def test_parts_of_a_split_fail_one_by_one(place: Path) -> None:
    put(place / "in", '{"k":"a","v":2}', '{"k":"b","v":0}', '{"k":"x","v":1}')
    many, few, rest, letters = MemorySink(), MemorySink(), MemorySink(), MemorySink()
    parts = events(place).split(many="10 / v > 7", few="v < 2", rest="v >= 2")
    outputs = (
        parts["many"].to("out-many", many),
        parts["few"].select("k", byte="cast(v * 127 + 1 AS TINYINT)", one="1").to("out-few", few),
        parts["rest"].to("out-rest", rest),
    )
    run_to_the_end(Job("letters", *outputs, guarantee=Guarantee.AT_LEAST_ONCE, dead_letters=letters), place)
    assert (values_of(many, "k"), values_of(few, "k", "byte", "one"), values_of(rest, "k")) == (
        ["x"],
        [("b", 1, 1)],
        ["a"],
    )
    assert told(letters) == [
        ("many", "SQL fails: 10 / v > 7", "b"),
        ("select", "SQL fails: byte = cast(v * 127 + 1 AS TINYINT)", "x"),
    ]
    assert {row.hindered for row in letters.rows if row.step == "many"} != {None}


@pytest.mark.slow
def test_sql_behind_the_sides_of_a_step_with_state(place: Path) -> None:
    moments = [("5", 1), ("x", 2), ("9", 100), ("9", 101), ("5", 3), ("0", 4), ("9", 200)]
    rows = [(key, BEGIN + timedelta(seconds=at)) for key, at in moments]
    read = stream("in", MemorySource(rows, value="k STRING, at TIMESTAMP", per_epoch=1))
    timed = read.event_time("at", lateness="0 seconds", late=Late.TO_SIDE_OUTPUT)
    whole = timed.key_by("k").window(windows.tumbling("10 seconds")).apply(lambda key, rows: [(len(rows),)], "n INT")
    sink, late, letters = MemorySink(), MemorySink(), MemorySink()
    outputs = (
        whole.select("n", key="cast(k AS INT)").to("out", sink),
        whole.late.where("k <> 'x'").select("k", part="10 / cast(k AS INT)").to("late", late),
    )
    run_to_the_end(Job("letters", *outputs, guarantee=Guarantee.AT_LEAST_ONCE, dead_letters=letters), place)
    assert (values_of(sink, "key", "n"), values_of(late, "k", "part")) == ([(5, 1), (9, 2)], [("5", 2.0)])
    assert sorted((row.step, row.reason, json.loads(row.shown)["k"]) for row in letters.rows) == [
        ("select", "SQL fails: key = cast(k AS INT)", "x"),
        ("select-2", "SQL fails: part = 10 / cast(k AS INT)", "0"),
    ]
    # What came out of a window is of no single event; a late one is, and may be sent back.
    assert [(row.step, row.source) for row in letters.rows if row.source is not None] == [("select-2", "in")]


class Total(StatefulFunction):
    schema = "k STRING, total INT"
    total = value("INT")

    def process(self, row: Any, context: Any) -> Any:
        self.total.set((self.total.get() or 0) + row.v)
        if row.v < 0:
            raise ValueError("nobody pays less than nothing")
        yield {"k": row.k, "total": self.total.get()}


@pytest.mark.slow
def test_an_event_that_a_function_with_state_fails_on_leaves_no_trace_in_its_state(place: Path) -> None:
    put(place / "in", '{"k":"a","v":1}', '{"k":"a","v":-50}', '{"k":"a","v":2}', '{"k":"b","v":-1}')
    sink, letters = MemorySink(), MemorySink()
    job = job_of(events(place).key_by("k").process(Total()), sink, letters)
    run_to_the_end(job, place)
    put(place / "in", '{"k":"a","v":-9}', '{"k":"a","v":4}', '{"k":"b","v":7}')
    run_to_the_end(job, place)
    assert values_of(sink, "k", "total") == [("a", 1), ("a", 3), ("a", 7), ("b", 7)]
    assert sorted(bytes(row.value) for row in letters.rows) == [
        b'{"k":"a","v":-50}',
        b'{"k":"a","v":-9}',
        b'{"k":"b","v":-1}',
    ]
    assert {row.step for row in letters.rows} == {"process"}
    assert len({row.id for row in letters.rows}) == 3


@pytest.mark.slow
def test_times_that_cannot_be_used_close_no_window_and_are_dead_letters(place: Path) -> None:
    def line(key: str, at: str | None) -> str:
        return json.dumps({"k": key, "at": at})

    far = (datetime.now(UTC) + timedelta(days=400)).isoformat()
    put(place / "in", line("a", BEGIN.isoformat()), line("b", far), line("c", None))
    put(place / "in", line("d", (BEGIN + timedelta(minutes=10)).isoformat()))
    sink, letters = MemorySink(), MemorySink()
    timed = events(place, "k STRING, at TIMESTAMP").event_time("at", lateness="1 second", max_ahead="1 day")
    counts = timed.window(windows.tumbling("1 minute")).aggregate(n="count(*)")
    run_to_the_end(job_of(counts, sink, letters), place)
    assert [(row.window_start, row.n) for row in sink.rows] == [(BEGIN, 1)]
    assert sorted(json.loads(bytes(row.value))["k"] for row in letters.rows) == ["b", "c"]
    assert {row.step for row in letters.rows} == {"event_time"}


@pytest.mark.slow
def test_events_of_typed_rows_are_kept_as_json(place: Path) -> None:
    sink, letters = MemorySink(), MemorySink()
    read = stream("in", MemorySource([("a", 5), ("b", 0)], value=VALUE))
    run_to_the_end(job_of(read.map(half, schema="k STRING, half INT"), sink, letters), place)
    assert [json.loads(bytes(row.value)) for row in letters.rows] == [{"k": "b", "v": 0}]
    assert [(row.part, row.at) for row in letters.rows] == [("in", 1)]


def test_an_event_that_two_outputs_cannot_parse_is_one_dead_letter(place: Path) -> None:
    put(place / "in", '{"k":"a","v":2}', "nonsense")
    one, two, letters = MemorySink(), MemorySink(), MemorySink()
    read = events(place)
    halves = read.map(half, schema="k STRING, half INT")
    outputs = halves.to("one", one), read.select("k").to("two", two)
    run_to_the_end(Job("letters", *outputs, guarantee=Guarantee.AT_LEAST_ONCE, dead_letters=letters), place)
    assert (values_of(one, "half"), values_of(two, "k")) == ([5], ["a"])
    assert [bytes(row.value) for row in letters.rows] == [b"nonsense"]


@pytest.mark.parametrize(
    ("stop_after", "good", "bad", "told"),
    [(2, 1, 3, "3 events"), (0.01, 150, 3, "3 of 153 events"), (0, 1, 1, "1 events")],
)
def test_a_job_stops_that_sends_too_much_there(place: Path, stop_after: float, good: int, bad: int, told: str) -> None:
    put(place / "in", *['{"k":"a","v":2}'] * good, *['{"k":"b","v":0}'] * bad)
    sink, letters = MemorySink(), MemorySink()
    halves = events(place).map(half, schema="k STRING, half INT")
    with pytest.raises(Failed, match=f"{told} of job 'letters' became dead letters .* stop_after"):
        run_to_the_end(job_of(halves, sink, DeadLetters(letters, stop_after=stop_after)), place)
    assert (sink.rows, letters.rows) == ([], [])
    # Nothing is lost: with a limit that lets them pass, all come out.
    run_to_the_end(job_of(halves, sink, DeadLetters(letters, stop_after=0.9)), place)
    assert (len(sink.rows), len(letters.rows)) == (good, bad)


def test_a_few_dead_letters_within_the_limit_stop_nothing(place: Path) -> None:
    put(place / "in", *['{"k":"a","v":2}'] * 3, '{"k":"b","v":0}')
    sink, letters = MemorySink(), MemorySink()
    halves = events(place).map(half, schema="k STRING, half INT")
    # A quarter of four events is more than a hundredth, but says nothing yet.
    run_to_the_end(job_of(halves, sink, DeadLetters(letters, stop_after=0.01)), place)
    assert (len(sink.rows), len(letters.rows)) == (3, 1)


@pytest.mark.slow
def test_what_belongs_to_no_event_stops_the_job_as_before(place: Path) -> None:
    class Bell(StatefulFunction):
        schema = "k STRING"

        def process(self, row: Any, context: Any) -> None:
            context.at(BEGIN + timedelta(seconds=1))

        def on_timer(self, timer: Any, context: Any) -> Any:
            raise ValueError("no bell")

    put(place / "in", json.dumps({"k": "a", "at": BEGIN.isoformat()}))
    put(place / "in", json.dumps({"k": "a", "at": (BEGIN + timedelta(minutes=1)).isoformat()}))
    timed = events(place, "k STRING, at TIMESTAMP").event_time("at", lateness="1 second")
    with pytest.raises(FunctionFailed, match="no bell"):
        run_to_the_end(job_of(timed.key_by("k").process(Bell()), MemorySink(), MemorySink()), place)


@pytest.mark.system
def test_records_whose_time_a_topic_would_refuse(kafka: str, place: Path) -> None:
    topic = f"times-{uuid4().hex[:8]}"
    create_topics(kafka, [topic, f"{topic}-letters"], partitions=2, where="test")
    now = datetime.now(UTC)
    # Kafka takes one hour ahead unless a topic says otherwise; a little before that is refused here, as clocks differ.
    times = {"now": now, "close": now + timedelta(minutes=59, seconds=50), "ahead": now + timedelta(hours=2)}
    put(place / "in", *(json.dumps({"k": name, "at": at.isoformat()}) for name, at in times.items()))
    read = events(place, "k STRING, at TIMESTAMP")
    out = read.to("out", KafkaSink(topic=topic, servers=kafka, key="k", timestamp="at"))
    exact = Guarantee.END_TO_END_EXACTLY_ONCE
    with pytest.raises(TimeRefused, match=r"the time of a record with key 'ahead', .* is too far ahead of") as refused:
        run_to_the_end(Job("times", out, guarantee=exact), place)
    assert re.search(
        f"column at, topic '{topic}', partition .*job 'times', declared at .*test_deadletterwriter", str(refused.value)
    )
    letters = KafkaSink(topic=f"{topic}-letters", servers=kafka)
    run_to_the_end(Job(topic, out, guarantee=exact, dead_letters=letters), place, checkpoint=str(place / "other"))
    assert [row["k"] for row in read_json(kafka, topic)] == ["now"]
    found = sorted(read_json(kafka, letters.topic), key=lambda row: json.loads(row["shown"])["k"])
    assert [(row["step"], json.loads(row["shown"])["k"]) for row in found] == [("out", "ahead"), ("out", "close")]
    assert re.fullmatch(
        f"at is .*, too far ahead of the epoch's clock, .*: topic '{topic}' takes 3600000 ms", found[0]["reason"]
    )


@pytest.mark.system
@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.END_TO_END_EXACTLY_ONCE])
def test_records_that_a_topic_would_refuse(guarantee: Guarantee, kafka: str, place: Path) -> None:
    topic = f"refused-{uuid4().hex[:8]}"
    create_topics(kafka, [topic, f"{topic}-letters"], partitions=2, where="test")
    large = json.dumps({"k": "large", "v": 600_000})
    put(place / "in", '{"k":"a","v":1}', '{"k":"b","v":7}', large, '{"k":"c","v":0}')
    out = KafkaSink(topic=topic, servers=kafka, partition="v", key="k")
    letters = KafkaSink(topic=f"{topic}-letters", servers=kafka)
    padded = events(place).select("k", v="least(v, 7)", text="repeat('ab', greatest(v, 1))").where("k <> 'b' OR v = 7")
    chosen = padded.select("k", "text", v="if(k = 'large', 1, v)")
    run_to_the_end(Job("letters", chosen.to("out", out), guarantee=guarantee, dead_letters=letters), place)
    assert sorted(row["k"] for row in read_json(kafka, topic)) == ["a", "c"]
    found = sorted(
        (row["step"], row["reason"], base64.b64decode(row["value"])) for row in read_json(kafka, letters.topic)
    )
    assert [(step, value) for step, _, value in found] == [("out", large.encode()), ("out", b'{"k":"b","v":7}')]
    assert [re.sub(r"\d{3,}", "N", reason) for _, reason, _ in found] == [
        "as a record it has N bytes; the topic takes N",
        f"topic '{topic}' has no partition 7".replace(topic, re.sub(r"\d{3,}", "N", topic)),
    ]
