"""The live line: what a run tells of itself after an epoch."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lockgate.operators.fanout import Ending, Joined, Score, Tally
from lockgate.runtime.metrics.figures import Names, lags
from lockgate.runtime.progress import Progress, Watcher, behind_job
from lockgate.runtime.realtime import with_waiting

# As Spark 4.3 reported the first two epochs of a real-time query over a topic that two records came to all the time.
REAL_TIME: list[Mapping[str, Any]] = [
    {
        "timestamp": "2026-11-18T19:59:40.603Z",
        "batchId": 0,
        "durationMs": {"addBatch": 6835, "latestOffset": 1058, "triggerExecution": 8871},
        "sources": [
            {
                "description": "KafkaV2[Subscribe[in]]",
                "startOffset": "null",
                "endOffset": '{"in": {"0": 35, "1": 35}}',
                "latestOffset": '{"in": {"0": 18, "1": 18}}',
                "numInputRows": 70,
                "metrics": {"avgOffsetsBehindLatest": "1.0", "maxOffsetsBehindLatest": "2"},
            }
        ],
    },
    {
        "timestamp": "2026-11-18T19:59:49.803Z",
        "batchId": 1,
        "durationMs": {"addBatch": 6348, "latestOffset": 27, "triggerExecution": 6826},
        "sources": [
            {
                "description": "KafkaV2[Subscribe[in]]",
                "startOffset": '{"in": {"0": 35, "1": 35}}',
                "endOffset": '{"in": {"0": 52, "1": 50}}',
                "latestOffset": '{"in": {"0": 35, "1": 37}}',
                "numInputRows": 32,
                "metrics": {"avgOffsetsBehindLatest": "0.0", "maxOffsetsBehindLatest": "0"},
            }
        ],
    },
]


def test_in_real_time_what_waits_is_what_has_come_since_the_epoch_ended() -> None:
    watcher = Watcher()
    told = [watcher.take(with_waiting(report)) for report in REAL_TIME]
    assert [(one.events_total, one.lag) for one in told if one] == [(70, 2), (102, 0)]
    names = Names(sources={"[in]": "payments"})
    assert [lags(with_waiting(report), names) for report in REAL_TIME] == [
        {("payments", "", ""): 2},
        {("payments", "", ""): 0},
    ]


def test_in_real_time_a_source_that_does_not_say_what_waits_has_no_lag() -> None:
    report = {**REAL_TIME[0], "sources": [{**REAL_TIME[0]["sources"][0], "metrics": {}}]}
    told = Watcher().take(with_waiting(report))
    assert told is not None
    assert told.lag is None
    assert lags(with_waiting(report), Names()) == {}


@pytest.mark.parametrize(("second", "behind"), [(40, 20), (59, 1), (60, 0), (61, 0)])
def test_a_clock_is_behind_a_job_by_the_time_of_its_last_report(second: int, behind: int) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)
    assert behind_job({"timestamp": "2026-01-01T00:01:00.000Z"}, now) == timedelta(seconds=behind)


def line_of(tally: Tally) -> str:
    return Progress(
        epoch=3,
        events_total=2,
        events_per_second=1.0,
        lag=0,
        watermark=None,
        epoch_ms=240,
        fan_outs={"scores": tally.report()},
    ).line()


def tally(*, is_stamped: bool) -> Tally:
    made = Tally(began=1000.0)
    for ending in (Ending.ANSWERED, Ending.TIMED_OUT):
        made.count(Joined({"a": Score(ending)}, 0.02))
        if is_stamped:
            made.arrive(999.0)
    return made.publish(1000.5)


def test_the_latency_from_end_to_end_stands_beside_that_of_a_fan_out() -> None:
    shown = line_of(tally(is_stamped=True))
    functions, rest = shown.split(" | scores p99 ")[1].split(" ms, end to end p99 ")
    age, partial = rest.split(" ms, ")
    assert abs(float(functions) - 20) < 0.5
    assert abs(int(age.replace(",", "")) - 1500) < 40, "and not the 240 ms of the epoch"
    assert partial == "1 of 2 partial"


def test_if_no_source_says_when_events_came_it_is_not_known() -> None:
    assert " ms, end to end -, 1 of 2 partial" in line_of(tally(is_stamped=False))


def test_a_fan_out_without_events_has_nothing_to_tell() -> None:
    assert "scores" not in line_of(Tally())
