"""The harness: what is fed comes out as production would give it, and time moves when the test says so."""

import importlib
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lockgate import (
    FileTable,
    Guarantee,
    Job,
    KafkaSink,
    KafkaSource,
    Late,
    PostgresSink,
    PostgresTable,
    StatefulFunction,
    acks,
    pattern,
    stream,
    table,
    value,
    windows,
)
from lockgate.errors import FunctionFailed
from lockgate.testing import Harness

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
NOWHERE = "broker.invalid:9092"
ORDER = "customer STRING, amount DOUBLE, at TIMESTAMP"


def orders(**more: Any) -> KafkaSource:
    return KafkaSource(topic="orders", servers=NOWHERE, value=ORDER, **more)


def topic(name: str) -> KafkaSink:
    return KafkaSink(topic=name, servers=NOWHERE)


def order(customer: str, amount: float, seconds: float) -> dict[str, Any]:
    return {"customer": customer, "amount": amount, "at": NOON + seconds * SECOND}


@pytest.mark.slow
def test_windows_and_sessions_close_when_time_has_passed_and_what_comes_then_is_late() -> None:
    timed = stream("orders", orders()).event_time("at", lateness="10 seconds", late=Late.TO_SIDE_OUTPUT)
    volume = timed.key_by("customer").window(windows.tumbling(MINUTE)).aggregate(total="sum(amount)")
    visits = timed.key_by("customer").window(windows.session(gap="30 seconds")).aggregate(n="count(*)")
    job = Job(
        "orders",
        volume.to("volume", topic("volume")),
        visits.to("visits", topic("visits")),
        volume.late.to("too late", topic("late")),
        guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
    )
    with Harness(job) as harness:
        harness.feed("orders", order("ann", 5, 0), order("ann", 100, 20), order("ann", 1, 55))
        assert harness.now == NOON + 55 * SECOND, "the time goes with the rows"
        assert harness.rows("volume") == harness.rows("visits") == []
        harness.advance(10 * SECOND)  # the watermark is 12:00:55: a session has ended, a window waits for late rows
        assert [(row["window_start"], row["n"]) for row in harness.rows("visits")] == [(NOON, 2)]
        assert harness.rows("volume") == []
        harness.advance_to(NOON + MINUTE + 10 * SECOND)
        minute = {"window_start": NOON, "window_end": NOON + MINUTE}
        assert harness.rows("volume") == [{"customer": "ann", **minute, "total": 106.0}]
        harness.feed("orders", order("ann", 7, 40))
        assert harness.rows("too late") == [{**order("ann", 7, 40), **minute}]
        assert harness.rows("volume") == []
        assert len(harness.all_rows("volume")) == 1


class Reminder(StatefulFunction):
    """Counts the orders of a customer, and reminds of it: by event time, and by the clock."""

    schema = "customer STRING, what STRING, n INT, at TIMESTAMP"
    n = value("INT")

    def process(self, row: Any, context: Any) -> Iterator[Any]:
        self.n.set((self.n.get() or 0) + 1)
        context.at(row.at + MINUTE, name="by events")
        context.after("5 minutes", name="by the clock")
        yield (row.customer, "taken", self.n.get(), context.processing_time)

    def on_timer(self, timer: Any, context: Any) -> Iterator[Any]:
        yield (context.key.customer, timer.name, self.n.get(), timer.at)


def keyed_job() -> Job:
    read = stream("orders", orders())
    keyed = read.event_time("at", lateness="0 seconds").key_by("customer")
    jumps = pattern.begin("small", "amount < 10").then("large", "amount > 100").within(MINUTE)
    return Job(
        "keyed",
        keyed.process(Reminder(), name="reminder").to("reminders", topic("reminders")),
        keyed.rolling(total="sum(amount)").select("customer", "total").to("totals", topic("totals")),
        keyed.detect(jumps, name="jumps").to("found", topic("found")),
        guarantee=Guarantee.END_TO_END_EXACTLY_ONCE,
    )


@pytest.mark.slow
def test_state_timers_and_patterns_continue_where_they_were_after_a_restart() -> None:
    with Harness(keyed_job()) as harness:
        harness.feed("orders", order("ann", 5, 0))
        assert harness.rows("reminders") == [{"customer": "ann", "what": "taken", "n": 1, "at": NOON}]
        assert harness.state("reminder") == {("ann",): {"n": 1}}
        harness.restart()
        harness.feed("orders", order("ann", 200, 30))
        assert harness.rows("totals") == [{"customer": "ann", "total": 5}, {"customer": "ann", "total": 205}]
        assert [row["n"] for row in harness.rows("reminders")] == [2]
        harness.advance_to(NOON + 6 * MINUTE)
        (found,) = harness.rows("found")
        assert (found["small"]["amount"], found["large"]["amount"]) == (5, 200)
        rung = {row["what"]: (row["n"], row["at"]) for row in harness.rows("reminders")}
        assert rung.keys() == {"by events", "by the clock"}
        assert rung["by events"] == (2, NOON + 1.5 * MINUTE)
        assert rung["by the clock"][1] - NOON - 5.5 * MINUTE < SECOND


CUSTOMERS = FileTable(path="/nowhere/customers.csv", format="csv", schema="customer STRING, country STRING")
RATES = PostgresTable(table="rates", dsn="postgresql://nobody@db.invalid/rates", schema="country STRING, rate DOUBLE")


def test_tables_hold_what_they_are_given_and_splits_and_dead_letters_are_outputs() -> None:
    def price(row: Any) -> tuple[str, float]:
        if row.amount < 0:
            raise ValueError("a negative amount")
        return row.customer, row.amount * row.rate

    known = stream("orders", orders()).join(table("customers", CUSTOMERS, refresh="1 hour"), on="customer")
    priced = known.join(table("rates", RATES, refresh="1 hour"), on="country").map(
        price, schema="who STRING, eur DOUBLE"
    )
    parts = priced.split(large="eur >= 100", small="eur < 100")
    job = Job(
        "prices",
        parts["large"].to("large", topic("large")),
        parts["small"].select("eur").to("small", PostgresSink(table="small", dsn="postgresql://nobody@db.invalid/x")),
        guarantee=Guarantee.AT_LEAST_ONCE,
        tracking=acks(max_attempts=2, backoff="1 hour"),
        dead_letters=topic("letters"),
    )
    customers = [{"customer": "ann", "country": "fr"}, {"customer": "bob", "country": None}]
    with Harness(job, tables={"customers": customers, "rates": [{"country": "fr", "rate": 2.0}]}) as harness:
        harness.feed("orders", order("ann", 5, 0), order("ann", 70, 1), order("bob", 5, 2), order("ann", -1, 3), b"{]")
        assert harness.rows("large") == [{"who": "ann", "eur": 140.0}]
        assert harness.rows("small") == [{"eur": 10.0}]
        letters = {row["at"]: (row["attempts"], row["value"]) for row in harness.rows("dead-letters")}
        assert letters[4] == (2, b"{]")
        assert letters[3][0] == 2, "it was tried again at once, though its pause is an hour"
        harness.set_table("rates", {"country": "fr", "rate": 1.0})
        harness.feed("orders", order("ann", 8, 4))
        assert harness.rows("small") == [{"eur": 8.0}]


def test_an_error_of_a_function_is_raised_and_fixed_code_repeats_the_epoch() -> None:
    def job(*, is_mended: bool) -> Job:
        def double(row: Any) -> tuple[float]:
            if row.amount > 10 and not is_mended:
                raise ValueError("too much")
            return (row.amount * 2,)

        read = stream("orders", orders()).map(double, schema="doubled DOUBLE")
        return Job("doubles", read.to("out", topic("out")), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)

    with Harness(job(is_mended=False)) as harness:
        with pytest.raises(FunctionFailed, match="too much"):
            harness.feed("orders", order("ann", 1, 0), order("ann", 20, 1))
        assert harness.rows("out") == [], "what an epoch that failed has written is not out"
        harness.restart(job(is_mended=True))
        assert harness.rows("out") == [{"doubled": 2.0}, {"doubled": 40.0}]


@pytest.mark.slow
def test_time_that_goes_by_the_clock_is_moved_too_and_nothing_is_left_at_the_end() -> None:
    read = stream("orders", orders(key="shop INT")).where("amount > 0")
    arrived = read.processing_time().key_by("shop").window(windows.tumbling(MINUTE))
    counted = arrived.aggregate(n="count(*)", headers="max(cast(_headers[0].value AS STRING))", part="max(_partition)")
    job = Job("arrivals", counted.to("out", topic("out")), guarantee=Guarantee.AT_MOST_ONCE)
    before = {*Path(tempfile.gettempdir()).glob("lockgate-*")}
    with Harness(job, now=NOON) as harness:
        record = {"shop": -7, "_partition": 3, "_headers": {"trace": b"abc"}}
        harness.feed("orders", {**order("ann", 1, 9_000), **record}, {**order("ann", 2, 0), **record})
        assert harness.now == NOON
        harness.advance(MINUTE)
        window = {"window_start": NOON, "window_end": NOON + MINUTE}
        assert harness.rows("out") == [{"shop": -7, **window, "n": 2, "headers": "abc", "part": 3}]
        harness.feed("orders", {**order("ann", 1, 0), **record})
        harness.restart()  # at most once: nothing is kept
        harness.feed("orders", {**order("ann", 1, 0), **record, "_partition": 1})
        harness.advance(MINUTE)
        assert [(row["n"], row["part"]) for row in harness.rows("out")] == [(1, 1)]
    left = {*Path(tempfile.gettempdir()).glob("lockgate-*")} - before
    assert [path for path in left if "harness-log" not in path.name] == []


def test_the_package_of_tests_loads_what_is_asked_for_and_no_more() -> None:
    testing = importlib.import_module("lockgate.testing")
    assert {"Harness", "ResourceContract", "opening"} <= {*dir(testing)}
    with pytest.raises(AttributeError, match="nothing"):
        testing.nothing  # noqa: B018
