"""Tracking by acknowledgement: an event that fails comes again alone; its neighbours are neither held nor repeated."""

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lockgate import FileSource, Guarantee, Job, MemorySink, StatefulFunction, Stream, acks, stream, value
from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.connectors.files.filesystem import LocalSystem
from lockgate.connectors.rejects import Rejection
from lockgate.connectors.returned import FOLDER
from lockgate.dataflow.tracking import Acks
from lockgate.errors import BadJob
from lockgate.planner.plan import plan
from lockgate.runtime.acker import WAITING, Acker
from support.files import put
from support.runs import live, run_to_the_end, wait_for_run

VALUE = "k STRING, v INT"


# The acker alone


def rejection(at: int, *, attempts: int = 0, step: str = "map") -> Rejection:
    position = {"source": "in", "part": "p", "at": at, "child": [1]}
    original = {"key": None, "value": "eA==", "headers": [], "timestamp": None, "attempts": attempts}
    return Rejection(step, "ValueError: no", position, "{}", original)


def acker_at(place: Path, committed: set[int], tracking: Acks | None = None, planned: int = 0) -> Acker:
    chosen = tracking or acks(max_attempts=3, backoff="10 seconds")
    return Acker(LocalSystem(place), chosen, is_committed=committed.__contains__, planned=lambda: planned, job="acks")


def lines_in(place: Path, folder: str) -> list[dict[str, Any]]:
    files = sorted((place / folder).glob("*.json")) if (place / folder).is_dir() else []
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_an_event_comes_back_when_its_epoch_is_committed_and_its_pause_is_over(tmp_path: Path) -> None:
    committed: set[int] = set()
    acker = acker_at(tmp_path, committed)
    acker.keep([rejection(7)], epoch=4, run="r1")
    assert (acker.waiting, acker.take_released()) == (1, 0)
    acker.release(time.time() + 11)
    assert lines_in(tmp_path, FOLDER) == []  # its epoch may yet be repeated
    committed.add(4)
    acker.release(time.time())
    assert lines_in(tmp_path, FOLDER) == []  # its pause is not over
    acker.release(time.time() + 11)
    (line,) = lines_in(tmp_path, FOLDER)
    assert line["_position"] == {"source": "in", "part": "p", "at": 7, "child": []}
    assert (line["__original"]["attempts"], line["__original"]["value"]) == (1, "eA==")
    assert (acker.waiting, acker.take_released(), acker.take_released()) == (0, 1, 0)
    assert lines_in(tmp_path, WAITING) == []


@pytest.mark.parametrize(("is_endless", "left"), [(True, []), (False, [7])])
def test_what_came_back_is_removed_when_the_epoch_that_must_have_read_it_is_committed(
    tmp_path: Path, is_endless: bool, left: list[int]
) -> None:
    committed = {4}
    acker = acker_at(tmp_path, committed, planned=5)
    acker.begin(5, is_endless=is_endless)
    acker.keep([rejection(7)], epoch=4, run="r1")
    acker.release(time.time() + 11)
    for epoch in (5, 6):
        committed.add(epoch)
        acker.clean()
        assert [line["_position"]["at"] for line in lines_in(tmp_path, FOLDER)] == [7]  # 6 may be planned without it
    committed.add(7)
    acker.clean()
    assert [line["_position"]["at"] for line in lines_in(tmp_path, FOLDER)] == left
    acker.begin(7, is_endless=is_endless)  # a query with an end reads what is there when it starts
    acker.clean()
    assert [line["_position"]["at"] for line in lines_in(tmp_path, FOLDER)] == left
    committed.add(8)
    acker.clean()
    assert lines_in(tmp_path, FOLDER) == []


def test_dead_letters_that_were_sent_back_are_left_where_they_are(tmp_path: Path) -> None:
    LocalSystem(tmp_path).publish(f"{FOLDER}/letter-1.json", b"{}\n")
    acker = acker_at(tmp_path, {0, 1, 2})
    acker.begin(0, is_endless=True)
    acker.clean()
    assert lines_in(tmp_path, FOLDER) == [{}]


def test_an_event_of_which_several_parts_failed_comes_back_once(tmp_path: Path) -> None:
    acker = acker_at(tmp_path, {4})
    acker.keep([rejection(7), rejection(7, step="where"), rejection(8)], epoch=4, run="r1")
    acker.release(time.time() + 11)
    assert sorted(line["_position"]["at"] for line in lines_in(tmp_path, FOLDER)) == [7, 8]


def test_pauses_grow_and_attempts_end(tmp_path: Path) -> None:
    acker = acker_at(tmp_path, {4})
    acker.keep([rejection(1, attempts=1)], epoch=4, run="r1")
    acker.release(time.time() + 11)
    assert acker.waiting == 1
    acker.release(time.time() + 21)
    assert acker.waiting == 0


def test_events_that_wait_are_counted_once_by_how_often_they_were_tried(tmp_path: Path) -> None:
    retries = [rejection(1, attempts=1), rejection(2), rejection(2, step="where"), rejection(3)]
    assert acker_at(tmp_path, set()).keep(iter(retries), epoch=4, run="r1") == {1: 1, 0: 2}


def test_events_that_are_too_large_for_one_file_wait_in_several(tmp_path: Path) -> None:
    large = {"key": None, "value": "x" * 9_000_000, "headers": [], "timestamp": None, "attempts": 0}
    retries = [replace(rejection(at), original=large) for at in range(5)]
    acker = acker_at(tmp_path, {4})
    acker.keep(retries, epoch=4, run="r1")
    assert acker.waiting == 5
    assert len([*(tmp_path / WAITING).iterdir()]) == 3
    acker.release(time.time() + 11)
    assert sorted(line["_position"]["at"] for line in lines_in(tmp_path, FOLDER)) == [0, 1, 2, 3, 4]


def test_another_process_finds_what_waits_also_what_a_repeated_epoch_has_kept(tmp_path: Path) -> None:
    acker_at(tmp_path, set()).keep([rejection(1)], epoch=4, run="r1")
    acker_at(tmp_path, set()).keep([rejection(2)], epoch=4, run="r2")
    third = acker_at(tmp_path, {4})
    assert third.waiting == 2
    third.release(time.time() + 11)
    assert sorted(line["_position"]["at"] for line in lines_in(tmp_path, FOLDER)) == [1, 2]


def test_a_crash_between_letting_back_and_forgetting_lets_nothing_back_twice(tmp_path: Path) -> None:
    acker = acker_at(tmp_path, {4})
    acker.keep([rejection(1)], epoch=4, run="r1")
    (name,) = (file.name for file in (tmp_path / WAITING).iterdir())
    content = (tmp_path / WAITING / name).read_bytes()
    acker.release(time.time() + 11)
    (tmp_path / WAITING / name).write_bytes(content)
    again = acker_at(tmp_path, {4})
    again.release(time.time() + 11)
    assert len(lines_in(tmp_path, FOLDER)) == 1
    assert lines_in(tmp_path, WAITING) == []


def test_an_event_that_waits_longer_than_the_log_of_epochs_is_kept_comes_back(tmp_path: Path) -> None:
    commits = tmp_path / "commits"
    commits.mkdir()
    checkpoint = Checkpoint(root=str(tmp_path))
    acker = Acker(LocalSystem(tmp_path), acks(), is_committed=checkpoint.is_committed, planned=lambda: 0, job="acks")
    acker.keep([rejection(7)], epoch=4, run="r1")
    (commits / "3").touch()
    acker.release(time.time() + 11)
    assert acker.waiting == 1
    (commits / "3").unlink()
    (commits / "200").touch()  # by now Spark has thrown the file of epoch 4 away
    acker.release(time.time() + 11)
    assert [line["_position"]["at"] for line in lines_in(tmp_path, FOLDER)] == [7]


# What is refused


def job_of(ends: Stream, sink: MemorySink, letters: MemorySink | None, **more: Any) -> Job:
    settings = {"guarantee": Guarantee.AT_LEAST_ONCE, "tracking": acks(backoff="10 milliseconds"), **more}
    return Job("acks", ends.to("out", sink), dead_letters=letters, **settings)


def test_what_acks_cannot_be_declared_with(tmp_path: Path) -> None:
    read = stream("in", FileSource(path=str(tmp_path), value=VALUE))
    with pytest.raises(BadJob, match="no sink takes the events that fail at every attempt"):
        plan(job_of(read, MemorySink(), None))
    with pytest.raises(BadJob, match="gives at-least-once"):
        plan(job_of(read, MemorySink(), MemorySink(), guarantee=Guarantee.EXACTLY_ONCE))
    with pytest.raises(BadJob, match="tracking= takes acks"):
        job_of(read, MemorySink(), MemorySink(), tracking=3)
    for wrong in ({"max_attempts": 0}, {"max_attempts": True}, {"timeout": "0 seconds"}, {"timeout": "3 days"}):
        with pytest.raises(BadJob):
            acks(**wrong)  # type: ignore[arg-type]


# The same with Spark


def put_events(place: Path, *events: tuple[str, int]) -> None:
    put(place / "in", *({"k": key, "v": number} for key, number in events))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path


def events(place: Path) -> Stream:
    return stream("in", FileSource(path=str(place / "in"), value=VALUE))


def noting(place: Path, then: Callable[[Any, int], Any]) -> Callable[[Any], Any]:
    """A function that notes every call in a file, and is told how often the row has come by now."""
    calls = place / "calls"

    def call(row: Any) -> Any:
        with calls.open("a+") as file:
            file.write(f"{row.k}\n")
            file.seek(0)
            times = file.read().split().count(row.k)
        return then(row, times)

    return call


def calls_of(place: Path) -> Counter[str]:
    return Counter((place / "calls").read_text().split())


def fail_twice(row: Any, times: int) -> Any:
    if row.k == "bad" and times < 3:
        raise OSError("the service is away")
    return (row.k, row.v)


def fail_always(row: Any, times: int) -> Any:
    if row.k == "bad":
        raise OSError("the service is gone")
    return (row.k, row.v)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_an_event_that_fails_is_tried_again_alone(place: Path) -> None:
    put_events(place, ("a", 1), ("bad", 2), ("c", 3))
    sink, letters = MemorySink(), MemorySink()
    run_to_the_end(job_of(events(place).map(noting(place, fail_twice), schema=VALUE), sink, letters), place)
    assert sorted((row.k, row.v) for row in sink.rows) == [("a", 1), ("bad", 2), ("c", 3)]
    assert calls_of(place) == {"a": 1, "bad": 3, "c": 1}
    assert letters.rows == []


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_an_event_that_fails_at_every_attempt_is_a_dead_letter(place: Path) -> None:
    put_events(place, ("a", 1), ("bad", 2))
    sink, letters = MemorySink(), MemorySink()
    run_to_the_end(job_of(events(place).map(noting(place, fail_always), schema=VALUE), sink, letters), place)
    assert [row.k for row in sink.rows] == ["a"]
    assert calls_of(place) == {"a": 1, "bad": 3}
    (letter,) = letters.rows
    assert (letter.attempts, bytes(letter.value)) == (3, b'{"k": "bad", "v": 2}')


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_an_event_that_sql_fails_on_is_tried_again_and_is_a_dead_letter_then(place: Path) -> None:
    put_events(place, ("a", 1), ("bad", 0), ("c", 2))
    sink, letters = MemorySink(), MemorySink()
    run_to_the_end(job_of(events(place).where("10 / v > 1").select("k", each="10 div v"), sink, letters), place)
    assert sorted((row.k, row.each) for row in sink.rows) == [("a", 10), ("c", 5)]
    (letter,) = letters.rows
    assert (letter.step, letter.reason, letter.attempts) == ("where", "SQL fails: 10 / v > 1", 3)
    assert bytes(letter.value) == b'{"k": "bad", "v": 0}'


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_rows_of_a_table_file_come_again_as_they_were(place: Path) -> None:
    def fail_first(row: Any, times: int) -> Any:
        if times < 2:
            raise OSError("the service is away")
        return (row.k, row.at, row._file.rsplit("/", 1)[-1])

    (place / "in" / "one.csv").write_text("a,2026-01-01T00:00:00.123456Z\n")
    read = stream("in", FileSource(path=str(place / "in"), value="k STRING, at TIMESTAMP", format="csv"))
    sink, letters = MemorySink(), MemorySink()
    mapped = read.map(noting(place, fail_first), schema="k STRING, at TIMESTAMP, file STRING")
    run_to_the_end(job_of(mapped, sink, letters), place)
    moment = datetime(2026, 1, 1, microsecond=123456, tzinfo=UTC)
    assert [(row.k, row.at, row.file) for row in sink.rows] == [("a", moment, "one.csv")]
    assert letters.rows == []


class Sums(StatefulFunction):
    schema = "k STRING, total INT"
    total = value("INT")

    def process(self, row: Any, context: Any) -> Any:
        self.total.set((self.total.get() or 0) + row.v)
        while row.v == 13:
            pass
        yield row.k, self.total.get()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_functions_that_hang_are_cut_off_with_and_without_state(place: Path) -> None:
    def hang(row: Any) -> Any:
        while row.v == 12:
            pass
        return (row.k, row.v)

    put_events(place, ("a", 1), ("a", 12), ("a", 13), ("a", 2))
    sink, letters = MemorySink(), MemorySink()
    # Long enough for the quick ones on a machine that is busy.
    tracking = acks(timeout="1500 milliseconds", max_attempts=2, backoff="10 milliseconds")
    sums = events(place).map(hang, schema=VALUE).key_by("k").process(Sums())
    run_to_the_end(job_of(sums, sink, letters, tracking=tracking), place)
    assert sorted((row.k, row.total) for row in sink.rows) == [("a", 1), ("a", 3)]
    assert sorted((row.step, row.attempts, row.reason) for row in letters.rows) == [
        ("map", 2, "it took longer than 1.5 seconds"),
        ("process", 2, "it took longer than 1.5 seconds"),
    ]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_running_job_continues_beside_events_that_wait_and_the_next_run_has_them(place: Path) -> None:
    def until_mended(row: Any, times: int) -> Any:
        if row.k == "bad" and not mended.exists():
            raise OSError("not mended")
        return (row.k, row.v)

    mended = place / "mended"
    sink, letters = MemorySink(), MemorySink()
    # Enough attempts for a machine that is slow: pauses double.
    tracking = acks(max_attempts=12, backoff="500 milliseconds")
    job = job_of(events(place).map(noting(place, until_mended), schema=VALUE), sink, letters, tracking=tracking)
    put_events(place, ("bad", 1), ("a", 1))
    with live(job, place) as running:
        wait_for_run("one row", lambda: [row.k for row in sink.rows] == ["a"], running)
        put_events(place, ("b", 1))
        wait_for_run("two rows", lambda: sorted(row.k for row in sink.rows) == ["a", "b"], running)
    assert letters.rows == []
    mended.touch()
    run_to_the_end(job, place)
    # At least once: the run may have been stopped in an epoch, which the next one repeats.
    assert {row.k for row in sink.rows} == {"a", "b", "bad"}
    assert letters.rows == []
