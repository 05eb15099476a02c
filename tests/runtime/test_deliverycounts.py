"""How often events were processed and delivered, as a run counts it itself."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from lockgate import FileSource, Guarantee, Job, MemorySink, acks, stream
from lockgate.errors import Failed
from lockgate.runtime.deliverycounts import FILE, DeliveryCounts, Tries, as_text
from lockgate.runtime.progress import Progress
from support.files import put
from support.runs import start

VALUE = "k STRING, v INT"


def test_a_try_that_died_counts_in_the_next_process(tmp_path: Path) -> None:
    first = Tries(tmp_path)
    first.begin(4)
    first.deliver(4, is_exact=False)
    second = Tries(tmp_path)
    second.begin(4)
    assert second.of(4) == (2, 1)
    second.deliver(4, is_exact=False)
    second.begin(5)
    assert (second.of(4), second.of(5), second.of(99)) == ((2, 2), (1, 0), (1, 1))


def test_transactions_deliver_once_however_often_an_epoch_is_tried(tmp_path: Path) -> None:
    for _ in range(3):
        tries = Tries(tmp_path)
        tries.begin(7)
        tries.deliver(7, is_exact=True)
    assert tries.of(7) == (3, 1)


def test_tries_in_one_go_after_a_commit_that_failed_count_too(tmp_path: Path) -> None:
    tries = Tries(tmp_path)
    tries.begin(7)
    tries.repeat(7, 2)
    tries.repeat(7, 0)
    tries.deliver(7, is_exact=True)
    assert tries.of(7) == (3, 1)


def test_if_nothing_can_be_noted_an_epoch_of_an_earlier_process_was_tried_before() -> None:
    tries = Tries(None, planned=4)
    tries.begin(4)
    assert tries.of(4) == (2, 1)
    tries.deliver(4, is_exact=False)
    tries.begin(5)
    tries.deliver(5, is_exact=False)
    assert (tries.of(4), tries.of(5)) == ((2, 2), (1, 1))
    exact = Tries(None, planned=4)
    exact.begin(4)
    exact.deliver(4, is_exact=True)
    assert exact.of(4) == (2, 1)


def test_a_note_that_a_crash_has_torn_says_nothing(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"epoch": 4, "proc')
    tries = Tries(tmp_path)
    tries.begin(4)
    assert tries.of(4) == (1, 0)


def test_events_that_came_again_were_processed_more_often_than_their_epoch() -> None:
    times = DeliveryCounts()
    times.add({0: 90}, (1, 1))
    times.add({0: 8, 1: 2}, (2, 2))
    times.add({0: 0}, (5, 5))
    assert (as_text(times.processed), as_text(times.delivered)) == ({"1x": 90, "2x": 8, "3x": 2}, {"1x": 90, "2x": 10})


def told_by(job: Job, place: Path) -> Progress:
    told: list[Progress] = []
    running = start(job, place, until_caught_up=True, wait=False)
    running.wait(on_progress=told.append)
    return told[-1]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_run_tells_how_often_events_were_processed_and_delivered(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()

    def fail(row: Any) -> Any:
        calls = tmp_path / "calls"
        calls.open("a").write(row.k)
        if row.k == "x" and calls.read_text().count("x") < 3:
            raise OSError("not yet")
        return row.k, row.v

    sink = MemorySink()
    read = stream("in", FileSource(path=str(tmp_path / "in"), value=VALUE))
    job = Job(
        "times",
        read.map(fail, schema=VALUE).to("out", sink),
        guarantee=Guarantee.AT_LEAST_ONCE,
        tracking=acks(max_attempts=5, backoff="10 milliseconds"),
        dead_letters=MemorySink(),
    )
    put(tmp_path / "in", *({"k": key, "v": 1} for key in ("a", "x", "b")))
    told = told_by(job, tmp_path)
    assert (dict(told.processed), dict(told.delivered)) == ({"1x": 2, "3x": 1}, {"1x": 3})


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_an_epoch_that_is_repeated_is_counted_as_repeated(tmp_path: Path) -> None:
    class Failing(MemorySink):
        def write(self, rows: DataFrame, epoch: int) -> None:
            super().write(rows, epoch)
            if not (tmp_path / "mended").exists():
                raise ValueError("not mended")

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "one.json").write_text('{"k":"a","v":1}\n{"k":"b","v":1}')
    sink = Failing()
    read = stream("in", FileSource(path=str(tmp_path / "in"), value=VALUE))
    job = Job("times", read.to("out", sink), guarantee=Guarantee.AT_LEAST_ONCE)
    with pytest.raises(Failed):
        told_by(job, tmp_path)
    (tmp_path / "mended").touch()
    told = told_by(job, tmp_path)
    assert (dict(told.processed), dict(told.delivered)) == ({"2x": 2}, {"1x": 2})
    assert len(sink.rows) == 4  # what a sink took before it failed, only a reader knows
