"""Dead letters are read back from their sink and sent back into a fixed job: each event comes out once."""

from __future__ import annotations

import json
import sqlite3
from base64 import b64decode
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from lockgate import (
    ConsoleSink,
    FileSink,
    FileSource,
    Guarantee,
    Job,
    KafkaSink,
    KafkaSource,
    MemorySink,
    MemorySource,
    PostgresSink,
    SqliteSink,
    StatefulFunction,
    Stream,
    stream,
    value,
)
from lockgate.connectors.kafka.topics import create_topics
from lockgate.dataflow.endpoints import Sink
from lockgate.errors import Refused
from lockgate.lab.services.stack import Stack
from lockgate.runtime.deadletterrows import COLUMNS
from lockgate.runtime.deadletters import DeadLetterStore, Letter, Standing
from support.files import put
from support.records import producing, read_json, send
from support.runs import run_to_the_end

EXACT = Guarantee.END_TO_END_EXACTLY_ONCE
VALUE = "k STRING, v INT"
HALVES = "k STRING, half INT"
GARBAGE = b'\xff\x00 "no" \\ JSON'


def half(row: Any) -> dict[str, Any]:
    return {"k": row.k, "half": 10 // row.v}


def half_or_nothing(row: Any) -> dict[str, Any]:
    return {"k": row.k, "half": 10 // row.v if row.v else None}


class Halving:
    """A place with a job that halves, and that can be fixed."""

    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "in").mkdir()

    def put(self, *lines: str | bytes) -> None:
        """A file of lines, in place whole."""
        put(self.place / "in", *lines)

    def events(self) -> Stream:
        return stream("in", FileSource(path=str(self.place / "in"), value=VALUE))

    def table(self, name: str) -> SqliteSink:
        return SqliteSink(table=name, path=str(self.place / "results.db"))

    def job(
        self,
        function: Callable[[Any], Any] = half,
        *,
        dead_letters: Sink | None = None,
        guarantee: Guarantee = EXACT,
        beside: bool = False,
    ) -> Job:
        read = self.events()
        outputs = [read.map(function, schema=HALVES).to("out", self.table("halves"))]
        outputs += [read.to("all", self.table("all_events"))] if beside else []
        return Job("halves", *outputs, guarantee=guarantee, dead_letters=dead_letters or self.table("letters"))

    @property
    def checkpoint(self) -> str:
        return str(self.place / "checkpoint")

    def run(self, job: Job) -> None:
        run_to_the_end(job, self.place, checkpoint=self.checkpoint)

    def store(self, job: Job) -> DeadLetterStore:
        return DeadLetterStore(job, checkpoint=self.checkpoint)

    def rows(self, table: str = "halves") -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.place / "results.db")) as connection:
            return sorted(connection.execute(f"SELECT * FROM {table}"), key=repr)


@pytest.fixture
def halving(tmp_path: Path) -> Halving:
    return Halving(tmp_path)


def sink_of(kind: str, place: Path, request: pytest.FixtureRequest) -> Sink:
    if kind in ("parquet", "json"):
        return FileSink(str(place / "letters"), kind)
    if kind == "partitioned":
        return FileSink(str(place / "letters"), partition_by=("step", "epoch"))
    if kind == "sqlite":
        return SqliteSink(table="dead", path=str(place / "letters.db"), key="id")
    name = f"letters_{uuid4().hex[:8]}"
    stack: Stack = request.getfixturevalue("stack")
    if kind == "postgres":
        dsn = stack.status().postgres.dsn
        assert dsn is not None
        return PostgresSink(table=name, dsn=dsn, create=True)
    return KafkaSink(topic=name, servers=request.getfixturevalue("kafka"), key="id")


SYSTEM = pytest.mark.system


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("guarantee", [EXACT, Guarantee.AT_LEAST_ONCE], ids=lambda one: one.name.lower())
@pytest.mark.parametrize(
    "kind",
    [
        "json",
        pytest.param("sqlite", marks=pytest.mark.prove),
        pytest.param("parquet", marks=pytest.mark.prove),
        pytest.param("partitioned", marks=pytest.mark.prove),
        pytest.param("postgres", marks=pytest.mark.prove),
        pytest.param("kafka", marks=SYSTEM),
    ],
)
def test_dead_letters_are_read_back_from_every_sink_as_they_were_written(
    kind: str, guarantee: Guarantee, halving: Halving, request: pytest.FixtureRequest
) -> None:
    job = halving.job(dead_letters=sink_of(kind, halving.place, request), guarantee=guarantee)
    halving.put('{"k":"a","v":2}', '{"k":"é\\u0000","v":0}', GARBAGE)
    halving.run(job)
    halving.put('{"k":"c","v":0}')
    halving.run(job)
    store = halving.store(job)
    if kind == "partitioned" and guarantee is not EXACT:
        with pytest.raises(Refused, match="partitioned files"):
            store.letters()
        return
    letters = store.letters()
    assert [(one.epoch, one.step) for one in letters[2:]] == [(1, "map")]
    assert sorted((one.epoch, one.step, one.value) for one in letters[:2]) == [
        (0, "in", GARBAGE),
        (0, "map", '{"k":"é\\u0000","v":0}'.encode()),
    ]
    for letter in letters:
        assert (letter.job, letter.source, letter.attempts, letter.key) == ("halves", "in", 1, None)
        assert (letter.child, letter.headers, letter.timestamp) == (None, (), None)
        assert store.standing(letter) is Standing.WAITING
        assert store.find([letter.id]) == [letter]
    assert letters[2].reason.startswith("ZeroDivisionError")
    # Another job's letters are not this one's.
    other = halving.store(Job("other", *job.outputs, guarantee=guarantee, dead_letters=job.dead_letters))
    if kind in ("parquet", "json", "partitioned") and guarantee is EXACT:
        with pytest.raises(Refused, match="there are no manifests of job 'other'"):
            other.letters()
    else:
        assert other.letters() == []


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_fixed_job_takes_each_dead_letter_once(halving: Halving) -> None:
    halving.put('{"k":"a","v":2}', '{"k":"b","v":0}', '{"k":"c","v":0}')
    halving.run(halving.job())
    fixed = halving.job(half_or_nothing)
    store = halving.store(fixed)
    first, second = store.letters()
    assert [one.is_sent for one in store.send([first])] == [True]
    halving.run(fixed)
    keys = {letter.id: json.loads(letter.value or b"")["k"] for letter in (first, second)}
    assert halving.rows() == sorted([("a", 5), (keys[first.id], None)], key=repr)
    store = halving.store(fixed)
    assert [store.standing(one) for one in store.letters()] == [Standing.SENT, Standing.WAITING]
    sendings = store.send(store.letters())
    assert [(one.is_sent, one.told) for one in sendings] == [(False, "it was sent before"), (True, None)]
    halving.run(fixed)
    halving.run(fixed)
    assert halving.rows() == [("a", 5), ("b", None), ("c", None)]
    assert [one.is_sent for one in store.send(store.letters())] == [False, False]
    assert len(store.letters()) == 2


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_dead_letter_that_fails_again_is_a_new_dead_letter_with_one_more_attempt(halving: Halving) -> None:
    halving.put('{"k":"b","v":0}', b"nonsense")
    job = halving.job()
    halving.run(job)
    store = halving.store(job)
    old = store.letters()
    assert all(one.is_sent for one in store.send(old))
    halving.run(job)
    store = halving.store(job)
    new = [letter for letter in store.letters() if letter not in old]
    assert sorted((one.attempts, one.step, one.value) for one in new) == [
        (2, "in", b"nonsense"),
        (2, "map", b'{"k":"b","v":0}'),
    ]
    # At the same place in the source, so that they can be told to be of the same events.
    assert {one.place for one in new} == {one.place for one in old}
    assert [one.is_sent for one in store.send([*old, *new])] == [False, False, True, True]
    fixed = halving.job(half_or_nothing)
    halving.run(fixed)
    assert halving.rows() == [("b", None)]
    assert [one.attempts for one in halving.store(fixed).letters()] == [1, 1, 2, 2, 3]


class Total(StatefulFunction):
    """Sums up what is not negative."""

    schema = "k STRING, total INT"
    total = value("INT")
    least = 0

    def process(self, row: Any, context: Any) -> Any:
        if row.v < self.least:
            raise ValueError("nobody pays less than nothing")
        self.total.set((self.total.get() or 0) + row.v)
        yield {"k": row.k, "total": self.total.get()}


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_state_has_a_dead_letter_once_that_is_sent_back_to_its_own_step(halving: Halving) -> None:
    def job(least: int) -> Job:
        total = Total()
        total.least = least
        rows = stream("in", MemorySource([("a", 1), ("a", -5), ("a", 20)], value=VALUE))
        sums = rows.key_by("k").process(total, name="totals").to("out", halving.table("halves"))
        return Job("totals", sums, guarantee=EXACT, dead_letters=halving.table("letters"))

    halving.run(job(0))
    store = halving.store(job(-9))
    (letter,) = store.letters()
    assert (letter.step, json.loads(letter.value or b"")) == ("totals", {"k": "a", "v": -5})
    assert [one.is_sent for one in store.send([letter])] == [True]
    halving.run(job(-9))
    assert halving.rows() == [("a", 1), ("a", 16), ("a", 21)]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("guarantee", [EXACT, Guarantee.AT_LEAST_ONCE], ids=lambda one: one.name.lower())
def test_a_step_or_output_that_has_the_event_already_prevents_a_replay_by_its_declaration(
    guarantee: Guarantee, halving: Halving
) -> None:
    halving.put('{"k":"a","v":2}', '{"k":"b","v":0}')
    halving.run(halving.job(beside=True, guarantee=guarantee))
    fixed = halving.job(half_or_nothing, beside=True, guarantee=guarantee)
    store = halving.store(fixed)
    (sending,) = store.send(store.letters())
    halving.run(fixed)
    assert sending.told is not None
    if guarantee is Guarantee.AT_LEAST_ONCE:
        assert (sending.is_sent, sending.told) == (True, "output 'all' has the event already, and gets it twice")
        assert halving.rows() == [("a", 5), ("b", None)]
        assert halving.rows("all_events") == [("a", 2), ("b", 0), ("b", 0)]
    else:
        assert not sending.is_sent
        assert sending.told.startswith("output 'all' has the event already. The job is declared")
        assert "put step 'map' before" in sending.told
        assert halving.rows() == [("a", 5)]
        assert halving.rows("all_events") == [("a", 2), ("b", 0)]


@pytest.mark.system
@pytest.mark.usefixtures("spark")
def test_a_record_of_kafka_comes_back_with_its_key_headers_and_time(kafka: str, halving: Halving) -> None:
    name = f"letters-{uuid4().hex[:8]}"
    create_topics(kafka, [f"{name}-in"], partitions=3, where="test")
    moment = datetime(2026, 1, 1, 12, 30, 15, 123_000, tzinfo=UTC)
    send(
        kafka,
        f"{name}-in",
        [{"k": f"k{number}", "v": number % 10} for number in range(30)],
        key=lambda event: b"\xff%d" % int(event["k"][1:]),
        headers=lambda event: [("trace", b"\xfe%d" % int(event["k"][1:])), ("empty", b"")],
        timestamp_ms=lambda event: int(moment.timestamp() * 1000),
    )

    def job(function: Callable[[Any], Any]) -> Job:
        read = stream("in", KafkaSource(topic=f"{name}-in", servers=kafka, value=VALUE))
        kept = read.select("k", "v", at="_timestamp", record="_key", offset="_offset", trace="_headers[0].value")
        made = kept.map(function, schema="k STRING, half INT, at TIMESTAMP, record BINARY, offset BIGINT, trace BINARY")
        return Job(
            name,
            made.to("out", KafkaSink(topic=f"{name}-out", servers=kafka, key="k")),
            guarantee=EXACT,
            dead_letters=KafkaSink(topic=f"{name}-letters", servers=kafka),
        )

    def beside(row: Any) -> dict[str, Any]:
        return {"at": row.at, "record": row.record, "offset": row.offset, "trace": row.trace}

    halving.run(job(lambda row: {**half(row), **beside(row)}))
    fixed = job(lambda row: {**half_or_nothing(row), **beside(row)})
    store = halving.store(fixed)
    letters = store.letters()
    assert sorted(json.loads(one.value or b"")["k"] for one in letters) == ["k0", "k10", "k20"]
    for letter in letters:
        number = int(json.loads(letter.value or b"")["k"][1:])
        assert (letter.key, letter.timestamp) == (b"\xff%d" % number, moment)
        assert letter.headers == (("trace", b"\xfe%d" % number), ("empty", b""))
    assert len({letter.place for letter in letters}) == 3
    assert all(one.is_sent for one in store.send(letters))
    halving.run(fixed)
    assert not any(one.is_sent for one in store.send(store.letters()))
    halving.run(fixed)
    out = read_json(kafka, f"{name}-out")
    assert sorted(row["k"] for row in out) == sorted(f"k{number}" for number in range(30))
    for row in out:
        letter = next((one for one in letters if json.loads(one.value or b"")["k"] == row["k"]), None)
        assert row["at"] == "2026-01-01T12:30:15.123000Z"
        if letter is not None:
            assert (row["half"], row["offset"]) == (None, letter.at)
            assert (b64decode(row["record"]), b64decode(row["trace"])) == (letter.key, letter.headers[0][1])
    assert len(halving.store(fixed).letters()) == 3


@pytest.mark.system
def test_what_is_open_aborted_or_no_dead_letter_is_not_read(kafka: str, halving: Halving) -> None:
    topic = f"letters-{uuid4().hex[:8]}"
    job = halving.job(dead_letters=KafkaSink(topic=topic, servers=kafka))
    with pytest.raises(Refused, match=f"topic '{topic}' does not exist") as refused:
        halving.store(job).letters()
    assert "run the job once" in refused.value.fix
    create_topics(kafka, [topic], partitions=2, where="test")
    assert halving.store(job).letters() == []

    with producing(kafka, transactional_id=topic) as producer:

        def send_letter(id: str, partition: int) -> None:
            row = {name: one for name, one in vars(letter(id)).items() if name not in ("headers", "value", "timestamp")}
            producer.send(topic, json.dumps(row).encode(), partition=partition)

        producer.init_transactions()
        for ids, is_committed in (("a1", True), ("b1", False), ("c1", True)):
            producer.begin_transaction()
            for partition in (0, 1):
                send_letter(f"{ids}{partition}", partition)
            producer.flush()
            producer.commit_transaction() if is_committed else producer.abort_transaction()
        producer.begin_transaction()
        producer.send(topic, b"no letter", partition=0)
        producer.send(topic, b'{"id": "no letter either"}', partition=0)
        producer.commit_transaction()
        producer.begin_transaction()
        send_letter("d10", 0)
        producer.flush()
        assert [one.id for one in halving.store(job).letters()] == ["a10", "a11", "c10", "c11"]
        producer.commit_transaction()
    assert [one.id for one in halving.store(job).letters()] == ["a10", "a11", "c10", "c11", "d10"]


def letter(id: str = "0123456789abcdef", **changes: Any) -> Letter:
    made = Letter(id, "halves", "here", 0, "map", "no", 1, None, "in", "f#0", 3, None, "{}", None, b"{}", (), None)
    return replace(made, **changes)


def begin(halving: Halving, *, commits: int = 1) -> None:
    """A checkpoint of a life called `here`, with so many committed epochs."""
    place = Path(halving.checkpoint)
    (place / "commits").mkdir(parents=True)
    (place / "metadata").write_text('{"id":"here"}')
    for number in range(commits):
        (place / "commits" / str(number)).write_text("v1\n{}")


def test_a_dead_letter_is_put_beside_the_checkpoint_as_the_job_reads_it(halving: Halving) -> None:
    begin(halving)
    moment = datetime(2026, 1, 1, 0, 0, 1, 5, tzinfo=UTC)
    sent = letter(key=b"\xff", headers=(("a", b"\x00"), ("b", None)), timestamp=moment, attempts=4)
    assert halving.store(halving.job()).send([sent])[0].is_sent
    (file,) = (Path(halving.checkpoint) / "returns").iterdir()
    assert file.name == "letter-0123456789abcdef.json"
    assert json.loads(file.read_text()) == {
        "_position": {"source": "in", "part": "f#0", "at": 3, "child": []},
        "__original": {
            "key": "/w==",
            "value": "e30=",
            "headers": [{"key": "a", "value": "AA=="}, {"key": "b", "value": None}],
            "timestamp": "2026-01-01T00:00:01.000005+00:00",
            "attempts": 4,
        },
    }
    assert halving.store(halving.job()).send([sent])[0].told == "it was sent before"


@pytest.mark.parametrize(
    ("changes", "standing", "told"),
    [
        ({"life": "before"}, Standing.BEFORE_RESET, "it is from before a reset of the job"),
        ({"epoch": 1}, Standing.UNFINISHED, "epoch 1 is not over"),
        ({"source": None}, Standing.WAITING, "the event's place was lost"),
        ({"value": None}, Standing.WAITING, "it lacks the original event"),
        ({"source": "old"}, Standing.WAITING, "the job has no source 'old' any more, only in"),
        ({"step": "old"}, Standing.WAITING, "'old' or 'in' is not in the job any more"),
        ({"child": "0"}, Standing.WAITING, "the event was split into several rows"),
    ],
)
def test_dead_letters_that_are_not_sent(
    changes: dict[str, Any], standing: Standing, told: str, halving: Halving
) -> None:
    begin(halving)
    store = halving.store(halving.job())
    unsent = letter(**changes)
    assert store.standing(unsent) is standing
    (sending,) = store.send([unsent])
    assert not sending.is_sent
    assert told in (sending.told or "")
    assert not (Path(halving.checkpoint) / "returns").exists()


@pytest.mark.parametrize("guarantee", Guarantee)
def test_only_a_job_that_may_repeat_sends_what_others_have(guarantee: Guarantee, halving: Halving) -> None:
    begin(halving)
    store = halving.store(halving.job(beside=True, guarantee=guarantee))
    if guarantee is Guarantee.AT_MOST_ONCE:
        with pytest.raises(Refused, match="keeps no checkpoint"):
            store.send([letter()])
        return
    (sending,) = store.send([letter()])
    assert sending.is_sent is (guarantee is Guarantee.AT_LEAST_ONCE)
    assert (sending.told or "").startswith("output 'all' has the event already")


def test_what_had_the_event_when_it_failed_has_it_still_in_a_job_that_was_changed(halving: Halving) -> None:
    begin(halving)
    hindered = letter(hindered="output 'gone' has the event already")
    exact = replace_guarantee(halving.job(), Guarantee.EXACTLY_ONCE)
    (sending,) = halving.store(exact).send([hindered])
    assert not sending.is_sent
    assert "output 'gone' has the event already" in str(sending.told)


def replace_guarantee(job: Job, guarantee: Guarantee) -> Job:
    """The same job, which promises something else."""
    return Job(job.name, *job.outputs, guarantee=guarantee, dead_letters=job.dead_letters)


def test_an_id_that_is_none_names_no_file(halving: Halving) -> None:
    begin(halving)
    with pytest.raises(Refused, match="is not the id of a dead letter"):
        halving.store(halving.job()).send([letter("../../etc/x")])


HOSTILE: tuple[dict[str, Any], ...] = (
    {"id": "../../etc/x"},
    {"id": 7},
    {"life": None},
    {"epoch": "many"},
    {"epoch": 1.5},
    {"attempts": b"one"},
    {"step": b"\xff"},
    {"at": "three"},
    {"key": 7},
    {"value": "not base64!"},
    {"headers": "[" * 100_000},
    {"headers": '{"key": "a"}'},
    {"headers": '[{"key": 1}]'},
    {"timestamp": "0001-01-01T00:00:00+14:00"},
    {"timestamp": "yesterday"},
)


def test_records_of_others_hide_no_dead_letter(halving: Halving, caplog: pytest.LogCaptureFixture) -> None:
    good = {name: one for name, one in vars(letter()).items() if name not in ("headers", "value")}
    columns = ", ".join(COLUMNS)
    with closing(sqlite3.connect(halving.place / "results.db")) as connection, connection:
        connection.execute(f"CREATE TABLE letters ({columns})")
        for number, changes in enumerate(({}, *HOSTILE, {})):
            row = {**good, "id": f"a{number}", **changes}
            marks = ", ".join("?" for _ in COLUMNS)
            connection.execute(f"INSERT INTO letters VALUES ({marks})", [row.get(name) for name in COLUMNS])
    assert [one.id for one in halving.store(halving.job()).letters()] == ["a0", f"a{len(HOSTILE) + 1}"]
    assert f"{len(HOSTILE)} records are not dead letters and are skipped" in caplog.text


def test_jobs_that_nothing_can_be_sent_back_to(halving: Halving) -> None:
    with pytest.raises(Refused, match="there is no checkpoint of the job"):
        halving.store(halving.job()).send([letter()])
    with pytest.raises(Refused, match="keeps no checkpoint"):
        halving.store(halving.job(guarantee=Guarantee.AT_MOST_ONCE)).send([letter()])
    with pytest.raises(Refused, match="is not on this machine's disk"):
        DeadLetterStore(halving.job(), checkpoint="hdfs://name:9000/checkpoint").send([letter()])
    assert halving.store(halving.job()).standing(letter()) is Standing.UNKNOWN
    plain = Job("halves", halving.events().to("out", MemorySink()), guarantee=EXACT)
    with pytest.raises(Refused, match="has no dead letters: an event that it cannot process stops it"):
        halving.store(plain)


@pytest.mark.parametrize(
    ("sink", "told"),
    [
        (MemorySink(), "letters in a MemorySink cannot be read back"),
        (ConsoleSink(), "letters in a ConsoleSink cannot be read back"),
        (KafkaSink(topic="t", servers="k:9092", key="id", format="csv"), "written with format='csv' cannot be read"),
        (KafkaSink(route="step", servers="k:9092"), "written with route= cannot be read back"),
        (KafkaSink(topic="t", servers="k:9092", timestamp="timestamp"), "with timestamp= cannot be read back"),
        (FileSink("hdfs://name:9000/letters"), "are not on this machine's disk"),
        (FileSink("missing/letters"), "there is no directory"),
        (SqliteSink(table="letters", path="missing.db"), "there is no file missing.db"),
    ],
    ids=repr,
)
def test_dead_letters_that_cannot_be_read_back(sink: Sink, told: str, halving: Halving) -> None:
    with pytest.raises(Refused, match=told) as refused:
        halving.store(halving.job(dead_letters=sink, guarantee=Guarantee.AT_LEAST_ONCE)).letters()
    assert refused.value.fix


def test_a_table_that_is_not_one_of_dead_letters(halving: Halving) -> None:
    with closing(sqlite3.connect(halving.place / "results.db")) as connection:
        connection.execute("CREATE TABLE other (id TEXT)")
    with pytest.raises(Refused, match="there is no table 'letters'"):
        halving.store(halving.job()).letters()
    with pytest.raises(
        Refused, match=r"table 'other' has no column job, life, .* so it is not a table of dead letters"
    ):
        halving.store(halving.job(dead_letters=halving.table("other"))).letters()
