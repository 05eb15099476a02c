"""An event that kills its Python worker is found, named, and put aside; the job does not die of it again and again."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockgate import (
    FileSource,
    Guarantee,
    Job,
    KafkaSink,
    KafkaSource,
    MemorySink,
    StatefulFunction,
    Stream,
    acks,
    aggregates,
    stream,
    value,
)
from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.errors import Failed, FunctionFailed
from lockgate.runtime.epochs import EpochWriter
from lockgate.runtime.poisonnotes import PoisonNotes
from support.records import make_topics, read, read_json, send, unique
from support.runs import run_to_the_end

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

VALUE = "k STRING, v INT"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    lines = [f'{{"k":"{"ab"[number % 2]}","v":{number}}}' for number in range(40)]
    (tmp_path / "in" / "events.json").write_text("\n".join(lines))
    return tmp_path


def events(place: Path) -> Stream:
    return stream("in", FileSource(path=str(place / "in"), value=VALUE))


def die_at(number: int) -> Any:
    """A function that ends its process, as a crash in C would: without a word."""

    def double(row: Any) -> dict[str, Any]:
        if row.v == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"k": row.k, "twice": 2 * row.v}

    return double


def job_of(ends: Stream, sink: MemorySink, **more: Any) -> Job:
    return Job("crashes", ends.to("out", sink), guarantee=Guarantee.AT_LEAST_ONCE, **more)


@pytest.mark.slow
@pytest.mark.parametrize("tracking", [None, acks(max_attempts=3, backoff="1 second")], ids=["letters", "acks"])
def test_an_event_that_kills_its_worker_is_a_dead_letter_and_all_others_are_committed(
    place: Path, tracking: Any
) -> None:
    sink, letters = MemorySink(), MemorySink()
    doubled = events(place).map(die_at(23), schema="k STRING, twice INT")
    run_to_the_end(job_of(doubled, sink, dead_letters=letters, tracking=tracking), place)
    assert sorted(row.twice for row in sink.rows) == [2 * number for number in range(40) if number != 23]
    (letter,) = letters.rows
    assert (letter.step, letter.attempts, bytes(letter.value)) == ("map", 1, b'{"k":"b","v":23}')
    assert "its Python worker died with it in hand" in letter.reason


@pytest.mark.slow
def test_several_events_that_kill_the_worker_of_one_task_are_all_found(place: Path) -> None:
    def double(row: Any) -> dict[str, Any]:
        if row.v in (3, 17, 31):
            os.kill(os.getpid(), signal.SIGKILL)
        return {"twice": 2 * row.v}

    sink, letters = MemorySink(), MemorySink()
    run_to_the_end(job_of(events(place).map(double, schema="twice INT"), sink, dead_letters=letters), place)
    assert sorted(row.twice for row in sink.rows) == [2 * number for number in range(40) if number not in (3, 17, 31)]
    assert sorted(row.shown for row in letters.rows) == sorted(str({"k": "b", "v": number}) for number in (3, 17, 31))


@pytest.mark.slow
def test_code_that_every_event_kills_its_worker_with_ends_the_job(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockgate.runtime.restartpolicy.POISON_EVENTS_MAX", 1)

    def broken(row: Any) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        return {"twice": 0}

    sink, letters = MemorySink(), MemorySink()
    with pytest.raises(Failed) as caught:
        run_to_the_end(job_of(events(place).map(broken, schema="twice INT"), sink, dead_letters=letters), place)
    assert "Python workers died 2x with step 'map'" in caught.value.what
    assert sink.rows == letters.rows == []


def test_without_dead_letters_the_job_ends_and_names_the_event(place: Path) -> None:
    doubled = events(place).map(die_at(23), schema="k STRING, twice INT")
    with pytest.raises(FunctionFailed) as caught:
        run_to_the_end(job_of(doubled, MemorySink()), place)
    assert "'v': 23" in caught.value.what
    assert "its Python worker died with it in hand" in caught.value.what
    assert Path(__file__).name in caught.value.where


def test_a_worker_that_was_killed_once_from_outside_costs_no_event(place: Path) -> None:
    been_here = place / "been-here"

    def double(row: Any) -> dict[str, Any]:
        if row.v == 23 and not been_here.exists():
            been_here.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"twice": 2 * row.v}

    sink, letters = MemorySink(), MemorySink()
    run_to_the_end(job_of(events(place).map(double, schema="twice INT"), sink, dead_letters=letters), place)
    assert been_here.exists()
    assert sorted(row.twice for row in sink.rows) == [2 * number for number in range(40)]
    assert letters.rows == []


def test_workers_that_die_with_another_event_each_time_end_the_job_and_no_event_is_blamed(place: Path) -> None:
    deaths = place / "deaths"
    deaths.mkdir()

    def double(row: Any) -> dict[str, Any]:
        if row.v == 5 * len(list(deaths.iterdir())):
            (deaths / str(row.v)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"twice": 2 * row.v}

    sink, letters = MemorySink(), MemorySink()
    with pytest.raises(Failed) as caught:
        run_to_the_end(job_of(events(place).map(double, schema="twice INT"), sink, dead_letters=letters), place)
    assert "Python workers died 1x with step 'map', the row from in" in caught.value.what
    assert sink.rows == letters.rows == []


class Sums(StatefulFunction):
    """The sum so far of each key, which dies of one event."""

    schema = "k STRING, v INT, total INT"
    total = value("INT")

    def process(self, row: Any, context: Any) -> Iterator[dict[str, Any]]:
        if row.v == 23:
            os.kill(os.getpid(), signal.SIGKILL)
        self.total.set((self.total.get() or 0) + row.v)
        yield {"k": row.k, "v": row.v, "total": self.total.get()}


@pytest.mark.slow
def test_state_is_as_if_the_event_had_not_come(place: Path) -> None:
    sink, letters = MemorySink(), MemorySink()
    run_to_the_end(job_of(events(place).key_by("k").process(Sums()), sink, dead_letters=letters), place)
    totals = {key: max(row.total for row in sink.rows if row.k == key) for key in "ab"}
    assert totals == {"a": sum(range(0, 40, 2)), "b": sum(range(1, 40, 2)) - 23}
    (letter,) = letters.rows
    assert (letter.step, bytes(letter.value)) == ("process", b'{"k":"b","v":23}')


def fatal(one: Any, other: Any) -> Any:
    if other == 23:
        os.kill(os.getpid(), signal.SIGKILL)
    return one + other


@pytest.mark.slow
def test_code_that_sees_all_of_a_key_is_named_with_the_key(place: Path) -> None:
    rolled = events(place).key_by("k").rolling(total=aggregates.combine("v", fatal, "INT"))
    with pytest.raises(FunctionFailed) as caught:
        run_to_the_end(job_of(rolled, MemorySink(), dead_letters=MemorySink()), place)
    assert "key ('b',): its Python worker died with it in hand" in caught.value.what


@pytest.mark.slow
def test_exactly_once_the_event_is_named_though_tries_are_repeated_by_their_coordinator(
    kafka: str, tmp_path: Path
) -> None:
    names = make_topics(kafka, unique("in"), unique("out"), partitions=1)
    send(kafka, names[0], [{"k": "a", "v": number} for number in range(40)])
    source = KafkaSource(topic=names[0], servers=kafka, value=VALUE)
    doubled = stream("in", source).map(die_at(23), schema="k STRING, twice INT")
    out = doubled.to("out", KafkaSink(topic=names[1], servers=kafka))
    with pytest.raises(FunctionFailed) as caught:
        run_to_the_end(Job(f"crashes-{names[1]}", out, guarantee=Guarantee.END_TO_END_EXACTLY_ONCE), tmp_path)
    assert "'v': 23" in caught.value.what
    assert read(kafka, names[1]) == []


@pytest.mark.slow
def test_a_repeated_epoch_omits_the_same_event_although_it_kills_no_worker_any_more(
    kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths = tmp_path / "deaths"
    deaths.mkdir()

    def fragile(row: Any) -> dict[str, Any]:
        if row.v == 23 and len(died := list(deaths.iterdir())) < 3:  # a first try reports nothing
            (deaths / str(len(died))).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"k": row.k, "v": row.v}

    came, gone, letters = make_topics(kafka, unique("in"), unique("out"), unique("letters"), partitions=1)
    send(kafka, came, [{"k": "a", "v": number} for number in range(40)])
    source = stream("in", KafkaSource(topic=came, servers=kafka, value=VALUE))
    totals = source.map(fragile, schema=VALUE).key_by("k").rolling(total="sum(v)")
    job = Job(
        f"crashes-{gone}",
        totals.to("out", KafkaSink(topic=gone, servers=kafka)),
        guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
        dead_letters=KafkaSink(topic=letters, servers=kafka),
    )
    write = EpochWriter.write

    def write_and_die(writer: EpochWriter, rows: Any, epoch: int) -> None:
        write(writer, rows, epoch)
        raise RuntimeError("the driver dies before Spark logs the epoch")

    with monkeypatch.context() as patch:
        patch.setattr(EpochWriter, "write", write_and_die)
        with pytest.raises(Failed):
            run_to_the_end(job, tmp_path)
    assert len(read(kafka, letters)) == 1
    assert len([*deaths.iterdir()]) == 3
    run_to_the_end(job, tmp_path)
    send(kafka, came, [{"k": "a", "v": 100}])
    run_to_the_end(job, tmp_path)
    assert max(row["total"] for row in read_json(kafka, gone)) == sum(range(40)) - 23 + 100
    assert len(read_json(kafka, gone)) == 40
    assert len(read(kafka, letters)) == 1


def test_notes_of_one_epoch_are_not_those_of_another(tmp_path: Path) -> None:
    checkpoint = Checkpoint(root=str(tmp_path))
    notes = PoisonNotes(checkpoint)
    assert notes.of(3) == ()
    notes.keep(3, ["one", "two"])
    notes.keep(3, ["one"])
    after = PoisonNotes(checkpoint)
    assert after.of(3) == ("one", "two")
    assert after.of(2) == after.of(4) == ()
    PoisonNotes(None).keep(3, ["one"])
