"""State: steps that run in Python, compared with hand-written transformWithState in its Row form.

    process    the number of payments of a card and their sum, with every payment
    count      the sum of every ten payments of a card
    pattern    three large payments of a card, one right after the other

The hand-written state of a key is one value, read once and written once in an epoch. The rows of a key are sorted
first, because otherwise a repeated epoch would give other results.

Then the first step runs with a hundred times as many keys: an epoch no longer touches all of the state, and touches
most keys once or twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from lockgate.dataflow import patterns, windows
from lockgate.dataflow.endpoints import Sink
from lockgate.dataflow.job import Job
from lockgate.dataflow.state import Context, StatefulFunction, value
from lockgate.dataflow.stream import KeyedStream, Stream, stream
from lockgate.guarantees import Guarantee
from lockgate.lab.bench.contest import Arena, Cards, Side
from lockgate.lab.bench.ratios import Contest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

KEYS, MANY_KEYS = 10_000, 1_000_000
_SIZE = 10
_LARGE = 80_000


def measure_state(arena: Arena) -> tuple[Contest, ...]:
    """Hold a contest for each kind of step."""
    cards = arena.cards(KEYS)
    made = {
        "process": (totals, totals_by_hand),
        "count window": (tens, tens_by_hand),
        "pattern": (large, large_by_hand),
    }
    return tuple(
        arena.hold(
            f"{name}, {KEYS:,} keys",
            (Side("hand-written", cards, query=by_hand), Side("Lockgate", cards, job=job_of(step))),
        )
        for name, (step, by_hand) in made.items()
    )


def measure_keys(arena: Arena) -> Contest:
    """The same step with few keys and with many."""
    few, many = (Side(f"{keys:,} keys", arena.cards(keys), job=job_of(totals)) for keys in (KEYS, MANY_KEYS))
    return arena.hold("process", (few, many), is_alike=False)


def job_of(step: Callable[[KeyedStream], Stream]) -> Callable[[Cards, Sink], Job]:
    """A job of one step with state."""

    def job(cards: Cards, sink: Sink) -> Job:
        made = step(stream("payments", cards.source).key_by("card"))
        return Job("bench-state", made.to("out", sink), guarantee=Guarantee.AT_LEAST_ONCE)

    return job


# With every payment


class Totals(StatefulFunction):
    """The number of payments so far, and their sum."""

    schema = "card STRING, payments BIGINT, total BIGINT"
    payments = value("BIGINT")
    total = value("BIGINT")

    def process(self, row: Any, context: Context) -> Iterator[tuple[str, int, int]]:
        payments = (self.payments.get() or 0) + 1
        total = (self.total.get() or 0) + row.cents
        self.payments.set(payments)
        self.total.set(total)
        yield row.card, payments, total


def totals(payments: KeyedStream) -> Stream:
    """As a job."""
    return payments.process(Totals())


def totals_by_hand(payments: DataFrame) -> DataFrame:
    """As a query of Spark's own."""
    from pyspark.sql import Row

    make_row = Row("card", "payments", "total")

    def take(card: str, state: Any, rows: list[Row]) -> tuple[Any, list[Row]]:
        count, total = state or (0, 0)
        made = []
        for row in rows:
            count += 1
            total += row[2]
            made.append(make_row(card, count, total))
        return (count, total), made

    return _by_hand(payments, take, state="payments BIGINT, total BIGINT", schema=Totals.schema)


# Every ten payments


def tens(payments: KeyedStream) -> Stream:
    """As a job."""
    sums = payments.window(windows.tumbling_count(_SIZE)).aggregate(total="sum(cents)", last="max(number)")
    return sums.select("card", "total", "last")


def tens_by_hand(payments: DataFrame) -> DataFrame:
    """As a query of Spark's own."""
    from pyspark.sql import Row

    make_row = Row("card", "total", "last")

    def take(card: str, state: Any, rows: list[Row]) -> tuple[Any, list[Row]]:
        count, total, last = state or (0, 0, 0)
        made = []
        for row in rows:
            count += 1
            total += row[2]
            last = max(last, row[0])
            if count == _SIZE:
                made.append(make_row(card, total, last))
                count = total = last = 0
        return (count, total, last), made

    state = "count BIGINT, total BIGINT, last BIGINT"
    return _by_hand(payments, take, state=state, schema="card STRING, total BIGINT, last BIGINT")


# Three large payments


def large(payments: KeyedStream) -> Stream:
    """As a job."""
    condition = f"cents >= {_LARGE}"
    found = payments.detect(patterns.begin("one", condition).next("two", condition).next("three", condition))
    return found.select("card", **{stage: f"{stage}.number" for stage in ("one", "two", "three")})


def large_by_hand(payments: DataFrame) -> DataFrame:
    """As a query of Spark's own."""
    from pyspark.sql import Row

    make_row = Row("card", "one", "two", "three")

    def take(card: str, state: Any, rows: list[Row]) -> tuple[Any, list[Row]]:
        before = list(state[0]) if state else []
        made = []
        for row in rows:
            if row[2] < _LARGE:
                before = []
                continue
            before.append(row[0])
            if len(before) == 3:
                made.append(make_row(card, *before))
                before = []
        return (before,), made

    schema = "card STRING, one BIGINT, two BIGINT, three BIGINT"
    return _by_hand(payments, take, state="before ARRAY<BIGINT>", schema=schema)


Take = Callable[[str, Any, "list[Row]"], "tuple[Any, list[Row]]"]
"""A card, its state and its rows (number, card, cents, at) in order: returns the new state and the results."""


def _by_hand(payments: DataFrame, take: Take, *, state: str, schema: str) -> DataFrame:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Processor(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.kept = handle.getValueState("kept", state)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
            kept, made = take(key[0], self.kept.get(), sorted(rows, key=lambda row: row[0]))
            self.kept.update(kept)
            yield from made

        def close(self) -> None:
            pass

    return payments.groupBy("card").transformWithState(
        statefulProcessor=Processor(), outputStructType=schema, outputMode="Append", timeMode="None"
    )
