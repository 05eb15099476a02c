"""Figures out of reports: each epoch counts once, the present is the last one told, and names are those of the job."""

import json
import threading
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lockgate.operators.fanout import Ending, Joined, Score, Tally
from lockgate.runtime.metrics.figures import METRICS, OTHER_REASON, REASONS_MAX, Names, add_reasons, kind_of
from lockgate.runtime.metrics.meter import Facts, Meter, resident_bytes
from lockgate.runtime.metrics.prometheus import page_of

NAMES = Names(
    sources={"[requests]": "requests"},
    steps=("last", "first"),
    inputs={"kept": ("requests",), "joined": ("kept", "requests"), "unseen": ("elsewhere",)},
    outputs={0: "counts"},
    topics={"out": "exact"},
)


def report(epoch: int, *, rows: int = 10, end: int = 90, life: str = "a", is_idle: bool = False) -> dict[str, Any]:
    """A report as Spark's JSON has it."""
    source = {
        "description": "KafkaV2[Subscribe[requests]]",
        "numInputRows": 0 if is_idle else 2 * rows,  # once for each branch
        "endOffset": json.dumps({"requests": {"0": end, "1": 100}}),
        "latestOffset": {"requests": {"0": 100, "1": 100, "2": 5}},
    }
    told: dict[str, Any] = {
        "id": life,
        "batchId": epoch,
        "timestamp": f"2026-01-01T00:00:{epoch:02d}.000Z",
        "sources": [source, source],
        "durationMs": {"triggerExecution": 1500, "latestOffset": 500},
        "eventTime": {"watermark": "2026-01-01T00:00:00.500Z"},
        "stateOperators": [],
    }
    if is_idle:
        return told
    told["durationMs"]["addBatch"] = 900
    told["stateOperators"] = [
        {"operatorName": "b", "numRowsTotal": 3, "numRowsUpdated": 2, "memoryUsedBytes": 70},
        {"operatorName": "a", "numRowsTotal": 4, "numRowsUpdated": 1, "memoryUsedBytes": 80},
    ]
    told["observedMetrics"] = {
        "lockgate rows of step requests": {"rows": rows},
        "lockgate rows of step kept": {"rows": 7},
        "lockgate rows of outputs": {"rows_0": 5},
    }
    return told


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def meter(clock: Clock) -> Meter:
    meter = Meter("j", guarantee="exactly-once", restarts=2, limit_seconds=60, clock=clock, wall=lambda: 1767225610.5)
    meter.begin(NAMES, epoch_seconds=1, open_seconds=lambda: 4.5, jvm=None)
    return meter


def shown(meter: Meter) -> dict[tuple[str, ...], float]:
    return {(one.name, *one.labels): one.value for one in meter.figures()}


def test_an_epoch_is_counted_once_however_often_it_is_reported(meter: Meter) -> None:
    for one in (report(0), report(0), report(1), report(1, is_idle=True), report(0)):
        meter.take(one)
    figures = shown(meter)
    assert figures["lockgate_epochs_total",] == 2
    assert figures["lockgate_events_in_total", "requests"] == 20
    assert ("lockgate_step_events_out_total", "requests") not in figures
    assert figures["lockgate_epoch_seconds_total",] == 3
    assert figures["lockgate_epoch_phase_seconds_total", "addBatch"] == 1.8
    assert figures["lockgate_state_rows_updated_total", "last"] == 4
    assert figures["lockgate_rows_out_total", "counts"] == 10


def test_a_reader_never_sees_the_reports_of_an_epoch_without_what_the_run_knows_after_it(meter: Meter) -> None:
    is_over = threading.Event()

    def work() -> None:
        for epoch in range(500):
            meter.update([report(epoch)], Facts(processed={"1x": 10 * (epoch + 1)}))
        is_over.set()

    worker = threading.Thread(target=work)
    worker.start()
    looks = []
    while not is_over.is_set() or not looks:
        figures = shown(meter)
        if ("lockgate_events_in_total", "requests") in figures:
            looks.append(
                (figures["lockgate_events_in_total", "requests"], figures["lockgate_events_processed_total", "1x"])
            )
    worker.join()
    assert all(read == processed for read, processed in looks)


def test_a_fresh_checkpoint_numbers_its_epochs_from_zero(meter: Meter) -> None:
    for one in (report(0), report(1), report(0, life="b")):
        meter.take(one)
    assert shown(meter)["lockgate_epochs_total",] == 3


def test_rows_into_a_step_are_those_out_of_what_feeds_it(meter: Meter) -> None:
    meter.take(report(0))
    figures = shown(meter)
    assert figures["lockgate_step_events_out_total", "kept"] == 7
    assert figures["lockgate_step_events_in_total", "kept"] == 10
    assert figures["lockgate_step_events_in_total", "joined"] == 17
    assert ("lockgate_step_events_in_total", "unseen") not in figures  # nobody has counted what feeds it


def test_the_present_is_what_was_reported_last(meter: Meter) -> None:
    meter.take(report(3))
    meter.take(report(4, end=100, is_idle=True))
    figures = shown(meter)
    assert figures["lockgate_lag_records", "requests", "requests", "0"] == 0
    assert figures["lockgate_lag_records", "requests", "requests", "2"] == 5  # a new partition, not read yet
    assert figures["lockgate_epoch",] == 3
    assert figures["lockgate_state_rows", "first"] == 4
    assert figures["lockgate_state_bytes", "last"] == 70
    assert figures["lockgate_last_epoch_seconds",] == 1.5
    assert figures["lockgate_last_epoch_end_seconds",] == 1767225610.5
    assert figures["lockgate_watermark_seconds",] == 1767225600.5
    assert figures["lockgate_watermark_delay_seconds",] == 10
    assert figures["lockgate_open_transactions",] == 1
    assert figures["lockgate_open_transaction_age_seconds",] == 4.5


def test_state_that_a_transform_hides_has_sparks_name(meter: Meter) -> None:
    told = report(0)
    told["stateOperators"].append({"operatorName": "dedupe", "numRowsTotal": 9})
    meter.take(told)
    assert shown(meter)["lockgate_state_rows", "dedupe 2"] == 9


def test_no_watermark_is_no_figure(meter: Meter) -> None:
    meter.take({**report(0), "eventTime": {"watermark": "1970-01-01T00:00:00.000Z"}})
    assert not [name for name, *_ in shown(meter) if "watermark" in name]


def test_commits_tell_records_times_and_the_rows_of_outputs_with_a_topic_of_their_own(meter: Meter) -> None:
    meter.add_try()
    meter.add_commit({"begin": 0.25, "write": 1.0}, {("out", 0): 3, ("out", 1): 4, ("shared", 0): 5})
    meter.add_commit({"begin": 0.5}, {})
    figures = shown(meter)
    assert figures["lockgate_commit_seconds_total", "begin"] == 0.75
    assert figures["lockgate_last_commit_seconds", "begin"] == 0.5
    assert figures["lockgate_records_written_total", "out", "1"] == 4
    assert figures["lockgate_records_written_total", "shared", "0"] == 5
    assert figures["lockgate_rows_out_total", "exact"] == 7
    assert figures["lockgate_epoch_tries_total",] == 1


def test_what_the_run_knows_is_shown(meter: Meter) -> None:
    meter.take(report(0))
    letters = {("map", "ValueError"): 2, ("requests", "no JSON"): 1}
    meter.note(
        Facts(late=3, letters=letters, letters_output="letters", processed={"1x": 9, "2x": 1}, rows_per_epoch=500)
    )
    figures = shown(meter)
    assert figures["lockgate_restarts_total",] == 2
    assert figures["lockgate_late_events_total",] == 3
    assert figures["lockgate_dead_letters_total", "map", "ValueError"] == 2
    assert figures["lockgate_events_in_total", "requests"] == 11  # with the one that it put aside itself
    assert figures["lockgate_rows_out_total", "letters"] == 3
    assert figures["lockgate_events_processed_total", "2x"] == 1
    assert figures["lockgate_rows_per_epoch_limit",] == 500
    assert figures["lockgate_memory_bytes", "python"] > 1_000_000


def fan_outs(*, is_stamped: bool = True) -> dict[str, Any]:
    tally = Tally(began=1000.0)
    for ending in (Ending.ANSWERED, Ending.TIMED_OUT):
        tally.count(Joined({"place": Score(ending)}, 0.02))
        if is_stamped:
            tally.arrive(999.0)
    return {"scores": tally.publish(1000.5).report()}


def test_what_fan_outs_count_is_shown(meter: Meter) -> None:
    meter.note(Facts(fan_outs=fan_outs()))
    figures = shown(meter)
    assert figures["lockgate_fan_out_events_total", "scores"] == 2
    assert figures["lockgate_fan_out_partial_total", "scores"] == 1
    calls = {ending: figures["lockgate_fan_out_calls_total", "scores", "place", ending.value] for ending in Ending}
    assert calls == {Ending.ANSWERED: 1, Ending.TIMED_OUT: 1, Ending.FAILED: 0, Ending.SKIPPED: 0}
    for quantile in ("0.5", "0.99", "0.999"):
        assert figures["lockgate_fan_out_seconds", "scores", quantile] == pytest.approx(0.02, rel=0.02)
        assert figures["lockgate_fan_out_end_to_end_seconds", "scores", quantile] == pytest.approx(1.5, rel=0.03)


def test_an_unknown_value_of_a_fan_out_is_no_figure(meter: Meter) -> None:
    meter.note(Facts(fan_outs=fan_outs(is_stamped=False)))
    assert ("lockgate_fan_out_seconds", "scores", "0.5") in shown(meter)
    assert not [name for name, *_ in shown(meter) if "end_to_end" in name]


def test_health_follows_the_reports(meter: Meter, clock: Clock) -> None:
    assert meter.verdict().status == "starting"
    meter.take(report(0))
    clock.now += 60
    assert meter.verdict().status == "working"
    clock.now += 1
    assert meter.verdict().reason.startswith("no epoch after 0 has ended for 61 s")
    assert shown(meter)["lockgate_healthy",] == 0
    meter.take(report(1, is_idle=True))  # nothing waits
    assert meter.verdict().status == "working"
    meter.fail("it broke")
    assert meter.verdict().facts() == {"status": "failed", "reason": "it broke"}


def test_every_figure_is_declared_with_its_labels_and_prometheus_reads_the_page(meter: Meter) -> None:
    meter.take(report(0))
    meter.add_commit({"end": 0.1}, {("out", 0): 1})
    meter.note(Facts(letters={("s", 'a "quoted" reason'): 1}, heap_bytes={"used": 1}, fan_outs=fan_outs()))
    declared = {metric.name: len(metric.labels) for metric in METRICS}
    assert len(declared) == len(METRICS)
    assert all(declared[one.name] == len(one.labels) for one in meter.figures())
    page = page_of("j", meter.figures)
    kind, text = page("")
    assert kind.startswith("text/plain")
    samples = [sample for family in text_string_to_metric_families(text.decode()) for sample in family.samples]
    assert {sample.name for sample in samples} == {one.name for one in meter.figures()}
    assert {sample.labels["lockgate_job"] for sample in samples} == {"j"}
    kind, text = page("application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")


def test_reasons_are_few() -> None:
    assert kind_of("ValueError: -17 is not 'EUR'\n  File x") == kind_of("ValueError: 4.5 is not 'USD'")
    assert kind_of("at is 2026-01-01T00:00:00Z, more than") == "at is …, more than"
    assert kind_of("") == ""
    news = {("map", f"reason {chr(97 + number // 26)}{chr(97 + number % 26)}"): 2 for number in range(80)}
    many = add_reasons({}, news)
    assert many["map", OTHER_REASON] == 2 * (80 - REASONS_MAX)
    assert len(many) == REASONS_MAX + 1


def test_a_process_that_is_not_there_has_no_memory() -> None:
    assert resident_bytes(2**22 + 1) is None


def test_a_start_that_comes_to_nothing_is_stuck_and_one_whose_tasks_end_is_not() -> None:
    clock = Clock()
    meter = Meter("job", limit_seconds=60, clock=clock)
    for done in (1, 2, 3):
        clock.now += 500
        meter.note(Facts(tasks_done={7: done}))
        assert meter.verdict().status == "starting"
    clock.now += 601
    meter.note(Facts(tasks_done={7: 3}))
    assert meter.verdict().facts() == {
        "status": "stuck",
        "reason": "the start has made no progress for 601 s; 600 s are allowed",
    }


def test_an_epoch_whose_tasks_end_is_long_and_not_stuck() -> None:
    clock = Clock()
    meter = Meter("job", limit_seconds=60, clock=clock)
    meter.note(Facts(tasks_done={1: 1}))
    assert meter.verdict().status == "starting"
    meter.take(report(0))
    for done in (1, 2, 3):
        clock.now += 50
        meter.note(Facts(tasks_done={7: done}))
        assert meter.verdict().status == "working"
    clock.now += 61
    meter.note(Facts(tasks_done={7: 3}))
    assert meter.verdict().status == "stuck"
    meter.note(Facts(tasks_done={8: 1}))
    assert meter.verdict().status == "working"
