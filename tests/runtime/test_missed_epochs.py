"""Epochs that end between two looks at a query are counted all the same."""

from typing import Any

from lockgate.runtime.progress import Watcher, count_events, count_lag
from lockgate.runtime.scans import Scans, count_once


def report(epoch: int, rows: int, second: int) -> dict[str, Any]:
    sources = [{"description": "orders", "numInputRows": rows}]
    return {"timestamp": f"2026-01-01T00:00:{second:02}.000Z", "batchId": epoch, "sources": sources}


def test_an_epoch_that_was_not_looked_at_is_missed_until_its_report_is_taken() -> None:
    watcher = Watcher()
    watcher.take(report(epoch=0, rows=10, second=1))
    assert not watcher.has_missed(report(epoch=1, rows=10, second=2))
    assert watcher.has_missed(report(epoch=2, rows=10, second=3))
    for recent in (report(0, 10, 1), report(1, 10, 2), report(2, 10, 3)):
        watcher.take(recent)
    assert watcher.events_total == 30
    assert not watcher.has_missed(report(epoch=2, rows=10, second=3))


def test_no_report_counts_twice() -> None:
    watcher = Watcher()
    assert watcher.take(report(epoch=0, rows=10, second=1)) is not None
    assert watcher.take(report(epoch=0, rows=10, second=1)) is None
    assert watcher.take(report(epoch=1, rows=10, second=2)) is not None
    assert watcher.take(report(epoch=0, rows=10, second=1)) is None
    assert watcher.take(None) is None
    assert watcher.events_total == 20


def test_a_run_that_continues_may_have_ended_epochs_before_the_first_look() -> None:
    watcher = Watcher()
    assert watcher.has_missed(report(epoch=7, rows=10, second=1))
    watcher.take(report(epoch=7, rows=10, second=1))
    assert watcher.events_total == 10


def test_a_source_that_two_branches_read_is_counted_once() -> None:
    twice = [{"description": "orders", "numInputRows": 10}, {"description": "orders", "numInputRows": 10}]
    assert count_events([*twice, {"description": "payments", "numInputRows": 5}]) == 15


def test_topics_of_one_name_in_two_clusters_are_counted_one_by_one() -> None:
    source = {"description": "KafkaV2[Subscribe[orders]]", "numInputRows": 20, "endOffset": '{"orders": {"0": 20}}'}
    report = {"sources": [{**source, "latestOffset": {"orders": {"0": end}}} for end in (23, 27)]}
    counted = count_once(report, [Scans(2, "eu:9092"), Scans(1, "us:9092")])["sources"]
    assert (count_events(counted), count_lag(counted)) == (30, 10)
