"""Every example of topics runs on real Kafka and Spark, and its result equals a computation in plain Python."""

import ast
import base64
import http.client
import itertools
import json
import re
import runpy
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import pytest
from pyspark.sql import SparkSession

from lockgate import Guarantee, Job, plan
from lockgate.cli.jobfile import load_job
from lockgate.connectors.kafka.topics import create_topics
from lockgate.errors import Refused
from lockgate.lab.demo.catalog import find_examples
from support import process, records
from support.records import unique
from support.runs import run_to_the_end

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
FILES = {one.name: one.path for one in find_examples()}
NAMES = [*FILES]
LATENESS = timedelta(seconds=10)
MINUTE = timedelta(minutes=1)
PARTITIONS = 4
EVENTS = 3000
ROWS_PER_EPOCH = 1000


@pytest.fixture(autouse=True)
def path_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules beside an example are importable, as with `python FILE`; not for the tests after this one."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(EXAMPLES)])


# -- what each example promises, without a broker ---------------------------------------------------------------------

DECLARED = {
    "app_tracking": Guarantee.END_TO_END_EXACTLY_ONCE,
    "bubbles": Guarantee.END_TO_END_EXACTLY_ONCE,
    "crossings": Guarantee.END_TO_END_EXACTLY_ONCE,
    "fraud_detection": Guarantee.END_TO_END_EXACTLY_ONCE,
    "fraud_in_python": Guarantee.END_TO_END_EXACTLY_ONCE,
    "hashtags": Guarantee.AT_LEAST_ONCE,
    "order_volume": Guarantee.END_TO_END_EXACTLY_ONCE,
    "payments": Guarantee.END_TO_END_EXACTLY_ONCE,
    "reading_sessions": Guarantee.END_TO_END_EXACTLY_ONCE,
    "requests_per_ip": Guarantee.END_TO_END_EXACTLY_ONCE,
    "sensor_averages": Guarantee.END_TO_END_EXACTLY_ONCE,
    "smoke_alarm": Guarantee.END_TO_END_EXACTLY_ONCE,
    "system_usage": Guarantee.END_TO_END_EXACTLY_ONCE,
}


# A test that holds its rows against plain Python, and one that kills it.
OVER_TIME, KILLED = "test_examples_over_time.py::", "test_examples_killed.py::"
COMPARED = {
    "app_tracking": f"{OVER_TIME}test_purchases_within_a_day_of_a_click_and_visits",
    "bubbles": f"{OVER_TIME}test_a_team_gets_its_bonus_although_a_player_was_in_a_tunnel",
    "crossings": f"{OVER_TIME}test_vehicles_per_crossing_in_five_minutes",
    "fraud_detection": "test_jobs.py::test_analysers_score_every_payment_and_the_table_has_them_joined",
    "fraud_in_python": "test_fraud_in_python.py::test_payments_are_scored_and_what_is_slow_is_cut_off",
    "hashtags": "test_examples.py::test_hashtags_are_counted_per_minute",
    "order_volume": "test_examples.py::test_order_volume_is_added_up_per_minute_and_as_of_each_order",
    "payments": "test_examples.py::test_payments_are_settled_once_with_their_fee_and_in_the_order_of_their_account",
    "reading_sessions": f"{OVER_TIME}test_reading_sessions_with_their_pages_and_their_duration",
    "requests_per_ip": "test_examples.py::test_requests_are_counted_per_address_and_minute",
    "sensor_averages": f"{OVER_TIME}test_the_average_temperature_of_each_sensor_and_minute",
    "smoke_alarm": f"{OVER_TIME}test_smoke_within_ten_minutes_of_heat_is_an_alarm_also_out_of_order",
    "system_usage": "test_examples.py::test_transactions_are_counted_per_customer[exactly-once]",
}
STRUCK = {name: f"{KILLED}test_example_keeps_its_promise_although_its_driver_is_killed[{name}]" for name in NAMES} | {
    "fraud_detection": f"{KILLED}test_the_table_of_fraud_detection_keeps_its_promise_although_its_driver_is_killed",
    "fraud_in_python": "test_fraud_in_python.py::test_each_payment_is_scored_once_although_the_driver_is_killed",
}


@pytest.mark.process
def test_every_example_is_tested() -> None:
    assert sorted(COMPARED) == NAMES
    assert {*COMPARED.values()} - collected("not prove") == set()  # as `make test` asks
    assert {*STRUCK.values()} - collected("") == set()


def collected(marks: str) -> set[str]:
    """The tests of the examples that pytest finds, as FILE::TEST."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", "-m", marks, str(HERE)]
    found = subprocess.run(command, cwd=EXAMPLES.parent, capture_output=True, text=True, check=True)
    return {line.rpartition("/")[2] for line in found.stdout.splitlines() if "::" in line}


@pytest.mark.parametrize("name", NAMES)
def test_example_plans_with_the_guarantee_it_declares(name: str) -> None:
    planned = plan(job_of(name))
    assert planned.declared is DECLARED[name]
    assert planned.reached is max(DECLARED[name], Guarantee.EXACTLY_ONCE)
    assert planned.refusal() is None


@pytest.mark.parametrize(
    ("mode", "declared", "is_tracked"),
    [
        ("acks", Guarantee.AT_LEAST_ONCE, True),
        ("checkpoints", Guarantee.AT_LEAST_ONCE, False),
        ("exactly-once", Guarantee.END_TO_END_EXACTLY_ONCE, False),
    ],
)
def test_system_usage_promises_what_its_mode_says(mode: str, declared: Guarantee, is_tracked: bool) -> None:
    planned = plan(job_of("system_usage", mode=mode))
    assert planned.refusal() is None
    assert planned.declared is declared
    assert (planned.job.tracking is not None) == is_tracked
    assert planned.job.dead_letters is not None


def test_system_usage_refuses_a_mode_that_it_has_not() -> None:
    with pytest.raises(Refused, match="mode='foo' is not one of acks, checkpoints, exactly-once"):
        job_of("system_usage", mode="foo")
    modes = runpy.run_path(str(EXAMPLES / "system_usage.py"))
    assert get_args(modes["Promise"]) == (*modes["MODES"],)


@pytest.mark.parametrize("name", NAMES)
def test_example_makes_the_same_events_from_the_same_seed(name: str) -> None:
    assert list(make_events(name, count=50, seed=3)) == list(make_events(name, count=50, seed=3))
    assert list(make_events(name, count=50, seed=3)) != list(make_events(name, count=50, seed=4))


@pytest.mark.parametrize("name", NAMES)
def test_example_is_short_enough_to_be_read(name: str) -> None:
    text = FILES[name].read_text()
    assert len(text.splitlines()) < 100
    # What is read first is the job, and what runs it is a few lines.
    functions = [one for one in ast.parse(text).body if isinstance(one, ast.FunctionDef)]
    lines = {one.name: (one.end_lineno or 0) - one.lineno + 1 for one in functions}
    assert [one.name for one in functions if one.name in ("job", "answer", "main")] == ["job", "answer", "main"]
    assert lines["main"] <= 20


# -- against a computation in plain Python ----------------------------------------------------------------------------


@pytest.mark.system
def test_hashtags_are_counted_per_minute(spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    posts, counts = unique("posts"), unique("hashtag-counts")
    events = list(make_events("hashtags", count=EVENTS, seed=11))
    send(kafka, posts, events)
    job = job_of("hashtags", servers=kafka, posts=posts, counts=counts)
    run_all(job, tmp_path)

    used = [
        (word[1:].lower(), event) for event in events for word in str(event["text"]).split() if word.startswith("#")
    ]
    # A post without a hashtag has no row behind the flat_map, so it does not move the watermark either.
    is_closed = closed_by(event for _, event in used)
    expected = Counter((hashtag, minute_of(event)) for hashtag, event in used if is_closed(event))
    rows = read(kafka, counts)
    assert Counter({(row["hashtag"], moment(row["window_start"])): row["uses"] for row in rows}) == expected
    assert len(rows) == len(expected) > 15
    assert all(row["_key"] == row["hashtag"].encode() for row in rows)


@pytest.mark.system
def test_requests_are_counted_per_address_and_minute(spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    requests, counts, late = unique("requests"), unique("counts"), unique("late-requests")
    events = list(make_events("requests_per_ip", count=EVENTS, seed=12))
    send(kafka, requests, events)
    job = job_of("requests_per_ip", servers=kafka, requests=requests, counts=counts, late=late)
    run_all(job, tmp_path)

    # Every request of a closed minute is counted once or late once, as it was sent, and only stragglers are late.
    is_closed = closed_by(events)
    expected = Counter((event["ip"], minute_of(event)) for event in events if is_closed(event))
    rows, missed = read(kafka, counts), read(kafka, late)
    counted = Counter({(row["ip"], moment(row["window_start"])): row["requests"] for row in rows})
    assert counted + Counter((row["ip"], moment(row["window_start"])) for row in missed) == expected
    assert len(rows) == len(counted) > 100
    assert all(moment(row["window_end"]) - moment(row["window_start"]) == MINUTE for row in [*rows, *missed])
    sent = Counter(told(event) for event in stragglers(events))
    assert 0 < len(missed) <= sent.total()
    assert Counter(map(told, missed)) <= sent
    assert {row["_key"] for row in missed} == {row["ip"].encode() for row in missed}


def stragglers(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The events that are behind an earlier one by more than lateness."""
    latest = moment(events[0]["at"])
    for event in events:
        if moment(event["at"]) < latest - LATENESS:
            yield event
        latest = max(latest, moment(event["at"]))


def told(event: dict[str, Any]) -> tuple[str, str, datetime]:
    return event["ip"], event["url"], moment(event["at"])


@pytest.mark.system
def test_order_volume_is_added_up_per_minute_and_as_of_each_order(
    spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    orders, volume, totals = unique("orders"), unique("order-volume"), unique("order-totals")
    events = list(make_events("order_volume", count=EVENTS, seed=13))
    send(kafka, orders, events)
    job = job_of("order_volume", servers=kafka, orders=orders, volume=volume, totals=totals)
    run_all(job, tmp_path)

    promoted = [event for event in events if event["promotion"] is not None]
    is_closed = closed_by(promoted)
    expected: dict[tuple[str, datetime], list[Decimal]] = defaultdict(list)
    for event in filter(is_closed, promoted):
        expected[event["promotion"], minute_of(event)].append(Decimal(str(event["amount"])))
    rows = read(kafka, volume)
    assert len(rows) == len(expected) >= 8
    assert {
        (row["promotion"], moment(row["window_start"])): (row["orders"], Decimal(str(row["amount"]))) for row in rows
    } == {key: (len(amounts), sum(amounts)) for key, amounts in expected.items()}

    check_totals(read(kafka, totals), events)


def check_totals(rows: list[dict[str, Any]], events: list[dict[str, Any]]) -> None:
    """Every promoted order once, each with the sum and number of all orders of its promotion up to it."""
    amounts = {event["order_id"]: Decimal(str(event["amount"])) for event in events}
    for promotion in ("winter-sale", "two-for-one"):
        sent = [event["order_id"] for event in events if event["promotion"] == promotion]
        mine = sorted((row for row in rows if row["promotion"] == promotion), key=lambda row: row["total_orders"])
        assert sorted(row["order_id"] for row in mine) == sent
        total = Decimal(0)
        for place, row in enumerate(mine, start=1):
            total += amounts[row["order_id"]]
            assert (row["total_orders"], Decimal(str(row["total_amount"]))) == (place, total)
        for partition in range(PARTITIONS):  # the order of an input partition is kept
            ids = [row["order_id"] for row in mine if row["order_id"] % PARTITIONS == partition]
            assert ids == sorted(ids)
    assert {row["promotion"] for row in rows} == {"winter-sale", "two-for-one"}


def test_the_check_of_the_totals_notices_an_order_that_is_missing_or_counted_twice() -> None:
    events = list(make_events("order_volume", count=60, seed=1))
    counts: Counter[str] = Counter()
    sums: dict[str, Decimal] = defaultdict(Decimal)
    rows = []
    for event in events:
        if (promotion := event["promotion"]) is not None:
            counts[promotion] += 1
            sums[promotion] += Decimal(str(event["amount"]))
            totals = {"total_orders": counts[promotion], "total_amount": sums[promotion]}
            rows.append({"promotion": promotion, "order_id": event["order_id"], **totals})
    check_totals(rows, events)
    for wrong in (rows[:-1], [*rows, rows[5]], [{**rows[0], "total_amount": Decimal(0)}, *rows[1:]]):
        with pytest.raises(AssertionError):
            check_totals(wrong, events)


@pytest.mark.system
def test_payments_are_settled_once_with_their_fee_and_in_the_order_of_their_account(
    spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    payments, settlements = unique("payments"), unique("settlements")
    events = list(make_events("payments", count=EVENTS, seed=14))
    send(kafka, payments, events)
    run_all(job_of("payments", servers=kafka, payments=payments, settlements=settlements), tmp_path)

    due = {event["id"]: event for event in events if event["currency"] == "EUR" and event["cents"] > 0}
    rows = read(kafka, settlements)
    assert sorted(row["id"] for row in rows) == sorted(due)
    for row in rows:
        event = due[row["id"]]
        assert (row["account"], row["cents"], moment(row["at"])) == (
            event["account"],
            event["cents"],
            moment(event["at"]),
        )
        assert row["fee_cents"] == Decimal(event["cents"]) * 25 // 10_000
        assert row["_key"] == event["account"].encode()
    for account in {event["account"] for event in events}:
        for partition in range(PARTITIONS):  # the order of an input partition is kept
            ids = [row["id"] for row in rows if row["account"] == account and row["id"] % PARTITIONS == partition]
            assert ids == sorted(ids)


@pytest.mark.system
@pytest.mark.parametrize("mode", ["acks", "checkpoints", "exactly-once"])
def test_transactions_are_counted_per_customer(mode: str, spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    events, usage, letters = unique("api-events"), unique("usage"), unique("usage-letters")
    calls = list(make_events("system_usage", count=EVENTS, seed=15))
    send(kafka, events, calls)
    places = {"servers": kafka, "events": events, "usage": usage, "letters": letters}
    run_all(job_of("system_usage", **places, mode=mode), tmp_path)

    rows = read(kafka, usage)
    check_usage(rows, calls)
    assert all(row["_key"] == row["customer"].encode() for row in rows)
    put_aside = [json.loads(base64.b64decode(letter["value"])) for letter in read(kafka, letters)]
    assert sorted(call["id"] for call in put_aside) == [call["id"] for call in calls if is_malformed(call)]


def is_malformed(call: dict[str, Any]) -> bool:
    return " " not in call["call"]


def check_usage(rows: list[dict[str, Any]], calls: list[dict[str, Any]]) -> None:
    """Every good call once, and those of a customer counted 1, 2, 3 to their number."""
    good = [call for call in calls if not is_malformed(call)]
    assert sorted(row["id"] for row in rows) == [call["id"] for call in good]
    customers = {call["id"]: call["customer"] for call in good}
    assert all(customers[row["id"]] == row["customer"] for row in rows)
    for customer in set(customers.values()):
        mine = sorted((row for row in rows if row["customer"] == customer), key=lambda row: row["transactions"])
        assert [row["transactions"] for row in mine] == [*range(1, len(mine) + 1)]
        for partition in range(PARTITIONS):  # the order of an input partition is kept
            ids = [row["id"] for row in mine if row["id"] % PARTITIONS == partition]
            assert ids == sorted(ids)


def test_the_check_of_the_usage_notices_a_state_that_counts_wrongly() -> None:
    calls = list(make_events("system_usage", count=200, seed=1))
    counts: Counter[str] = Counter()
    rows = []
    for call in calls:
        if not is_malformed(call):
            counts[call["customer"]] += 1
            rows.append({"customer": call["customer"], "id": call["id"], "transactions": counts[call["customer"]]})
    check_usage(rows, calls)
    forgetful = [{**row, "transactions": 1} for row in rows]
    twice = [{**row, "transactions": row["transactions"] + 1} for row in rows]
    for wrong in (forgetful, twice, rows[:-1], [*rows, rows[5]], [{**rows[0], "customer": "other"}, *rows[1:]]):
        with pytest.raises(AssertionError):
            check_usage(wrong, calls)


# -- as a user runs them ----------------------------------------------------------------------------------------------


@pytest.mark.system
@pytest.mark.process
def test_example_is_a_script_that_prints_what_the_page_of_the_examples_shows(
    shown: Callable[[str], str], kafka: str, tmp_path: Path
) -> None:
    done = process.run(sys.executable, EXAMPLES / "payments.py", kafka, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert shown("payments") in done.stdout


@pytest.mark.system
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("name", ["hashtags", "order_volume", "requests_per_ip", "system_usage"])
def test_example_prints_what_the_page_of_the_examples_shows(
    name: str, shown: Callable[[str], str], kafka: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(FILES[name]))["main"](servers=kafka)
    printed = capsys.readouterr().out
    assert shown(name) in printed
    if name == "hashtags":
        assert [word for word in ("Logical graph", "Physical graph", "by key (hashtag)") if word not in printed] == []


@pytest.mark.system
@pytest.mark.process
def test_the_figure_of_order_volume_updates_while_orders_come(kafka: str, tmp_path: Path) -> None:
    with process.running(sys.executable, EXAMPLES / "order_volume.py", kafka, "--live", cwd=tmp_path) as example:
        example.wait_for("an address", lambda: "\n" in example.printed)
        told = re.match(r"open http://([^/]+)/ ", example.printed)
        assert told is not None, example.text
        seen = []
        for lines in figures_at(told[1]):
            if len(lines) == 2:  # of both promotions
                seen.append({name: dict(points) for name, points in lines.items()})
                if all(len(points) > len(seen[0][name]) for name, points in lines.items()):
                    break
        assert example.end(signal.SIGINT) == 130, example.said
    assert len(seen) >= 2, "it ended before it grew"
    expected: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    for order in runpy.run_path(str(EXAMPLES / "order_volume.py"))["make_orders"](count=60_000, seed=7, minutes=60):
        expected[str(order["promotion"]), minute_of(order).isoformat()] += Decimal(str(order["amount"]))
    assert {*seen[-1]} == {"winter-sale", "two-for-one"}
    for name, points in seen[-1].items():
        for minute, amount in points.items():
            assert Decimal(str(amount)) == expected[name, minute]


def figures_at(address: str) -> Iterator[dict[str, list[tuple[str, float]]]]:
    """The lines of a figure, each time that they have changed, as a browser gets them."""
    connection = http.client.HTTPConnection(address, timeout=300)
    try:
        connection.request("GET", "/points")
        for line in connection.getresponse():
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))["lines"]
    finally:
        connection.close()


@pytest.mark.process
def test_example_tells_of_its_options(tmp_path: Path) -> None:
    done = process.run(sys.executable, EXAMPLES / "order_volume.py", "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert "How does a promotion sell?" in done.stdout
    assert "HOST:PORT" in done.stdout
    assert "--live" in done.stdout


@pytest.mark.process
def test_example_with_a_broker_that_does_not_answer_says_so(tmp_path: Path) -> None:
    done = process.run(sys.executable, EXAMPLES / "payments.py", "127.0.0.1:1", cwd=tmp_path)
    assert done.returncode == 2
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.process
def test_example_refuses_a_directory_that_has_a_run_in_it(tmp_path: Path) -> None:
    (tmp_path / "out" / "readings").mkdir(parents=True)
    done = process.run(sys.executable, EXAMPLES / "sensor_averages.py", "out", cwd=tmp_path)
    assert done.returncode == 2
    assert "choose another directory, or remove these" in done.stderr
    assert "Traceback" not in done.stderr


# -- the parts --------------------------------------------------------------------------------------------------------


def job_of(name: str, **parameters: str) -> Job:
    """The job of an example, loaded as the command line loads it."""
    return load_job(str(FILES[name]), [f"{key}={text}" for key, text in parameters.items()])


MAKERS = {
    "app_tracking": "make_activity",
    "bubbles": "make_bubbles",
    "crossings": "make_vehicles",
    "fraud_detection": "make_transactions",
    "fraud_in_python": "make_transactions",
    "hashtags": "make_posts",
    "order_volume": "make_orders",
    "payments": "make_payments",
    "reading_sessions": "make_pages",
    "requests_per_ip": "make_requests",
    "sensor_averages": "make_readings",
    "smoke_alarm": "make_readings",
    "system_usage": "make_calls",
}


def make_events(name: str, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """The events that the example makes for itself."""
    made: Iterator[dict[str, Any]] = runpy.run_path(str(FILES[name]))[MAKERS[name]](count=count, seed=seed)
    return made


def run_all(job: Job, tmp_path: Path) -> None:
    """Run to the end of what is there, in several epochs."""
    run_to_the_end(job, tmp_path, rows_per_epoch=ROWS_PER_EPOCH, new_life=True)
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) >= EVENTS // ROWS_PER_EPOCH


def send(servers: str, topic: str, events: list[dict[str, Any]]) -> None:
    """Spread the events over all partitions in turn: they are out of order across partitions, too, but not much."""
    if "at" in events[0]:
        at = [moment(event["at"]) for event in events]
        assert any(one > two for one, two in itertools.pairwise(at)), "the events are to be out of order"
    create_topics(servers, [topic], partitions=PARTITIONS, where="test")
    turns = itertools.cycle(range(PARTITIONS))
    records.send(servers, topic, events, partition=lambda event: next(turns))


def read(servers: str, topic: str) -> list[dict[str, Any]]:
    """What a reader who knows nothing of Spark finds in a topic."""
    found = records.read(servers, topic)
    return [{**json.loads(record.value, parse_float=Decimal), "_key": record.key} for record in found]


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def minute_of(event: dict[str, Any]) -> datetime:
    return moment(event["at"]).replace(second=0, microsecond=0)


def closed_by(events: Iterable[dict[str, Any]]) -> Callable[[dict[str, Any]], bool]:
    """Whether the minute of an event is closed when all events have been seen."""
    watermark = max(moment(event["at"]) for event in events) - LATENESS
    return lambda event: minute_of(event) + MINUTE <= watermark
