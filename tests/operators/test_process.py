"""A stateful function at work: state, expiry and timers, epoch by epoch.

`Epochs` runs an operator as the engine does, key by key: it keeps state as bytes from one epoch to the next, and takes
every epoch twice, from the same bytes and from the same objects. All three must give the same.
"""

import functools
import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import Row

from lockgate.dataflow.state import Context, StatefulFunction, Timer, list_of, make_operator, map_of, value
from lockgate.operators import process
from lockgate.operators.contract import Clock, Outcome, StepFailed, Time
from lockgate.operators.encoding import PLAIN
from lockgate.operators.epoch import run_epoch
from lockgate.operators.page import Groups
from lockgate.operators.pagestore import INDEX, PageStore
from lockgate.operators.rows import Given, Results, row_maker

SECOND = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


class Epochs:
    """One key, epoch after epoch; time is told in seconds."""

    def __init__(self, function: StatefulFunction, columns: Sequence[str] = ("x",), *, event_time: bool = True) -> None:
        self.operator = make_operator(
            function, keys=("k",), columns=columns, event_time="__time" if event_time else None
        )
        self.event_time = event_time
        self.state: Any = None
        self.before = 0
        self.outcome = Outcome(None)

    def run(self, *rows: Any, now: int = 0, wall: int = 0) -> list[Any]:
        """An epoch; a row is its value, or a tuple of values and, behind them, its time in seconds."""
        told = [row if isinstance(row, tuple) else (row, 0) for row in rows]
        made = [
            (number, *row[:-1], row[-1] * SECOND) if self.event_time else (number, *row[:-1])
            for number, row in enumerate(told, start=100)
        ]
        clock = Clock(before=self.before * SECOND, now=now * SECOND, wall=wall * SECOND)
        kept = PLAIN.encode(self.state)
        self.outcome = self.operator.step(("key",), PLAIN.decode(kept), made, clock)
        held = self.outcome._replace(state=PLAIN.decode(PLAIN.encode(self.outcome.state)))
        assert self.operator.step(("key",), self.state, made, clock) == held
        assert self.operator.step(("key",), self.state, made, clock) == held
        assert PLAIN.encode(self.state) == kept, "a step changes nothing that it was given"
        self.state, self.before = held.state, now
        assert all(side == 0 for side, _ in held.rows)
        return [values[0] if len(values) == 1 else values for _, values in held.rows]

    @property
    def wakes(self) -> tuple[float | None, float | None]:
        return tuple(  # type: ignore[return-value]
            None if wake is None else wake / SECOND for wake in (self.outcome.wake, self.outcome.wake_wall)
        )


Body = Callable[[Any, Any, Context], Any]


def function(process: Body, on_timer: Body | None = None, schema: str = "a STRING", **states: Any) -> StatefulFunction:
    members = {"process": process, "schema": schema, **states} | ({"on_timer": on_timer} if on_timer else {})
    return type("Made", (StatefulFunction,), members)()  # type: ignore[no-any-return]


# State


class Totals(StatefulFunction):
    schema = "total BIGINT"
    total = value("BIGINT")

    def process(self, row: Any, context: Context) -> Iterator[Any]:
        self.total.set((self.total.get() or 0) + row.x)
        yield {"total": self.total.get()}


def test_a_value_is_kept_from_row_to_row_and_from_epoch_to_epoch() -> None:
    epochs = Epochs(Totals())
    assert epochs.run(1, 2, 3) == [1, 3, 6]
    assert epochs.run(4) == [10]
    assert epochs.state == [[10]]


def test_keys_share_nothing() -> None:
    operator = make_operator(Totals(), keys=("k",), columns=("x",))
    clock = Clock(0, 0, 0)
    one = operator.step((1,), None, [(0, 5)], clock)
    two = operator.step((2,), None, [(0, 7)], clock)
    assert operator.step((1,), one.state, [(0, 1)], clock).rows == [(0, (6,))]
    assert operator.step((2,), two.state, [(0, 1)], clock).rows == [(0, (8,))]


def test_two_operators_of_one_function_share_nothing() -> None:
    totals, clock = Totals(), Clock(0, 0, 0)
    one, two = (make_operator(totals, keys=("k",), columns=("x",)) for _ in range(2))
    one.step((1,), None, [(0, 5)], clock)
    assert two.step((1,), None, [(0, 5)], clock).rows == [(0, (5,))]


def test_a_key_with_nothing_is_forgotten() -> None:
    def change(self: Any, row: Any, context: Context) -> None:
        if row.x:
            self.one.set(row.x)
            self.many.append(row.x)
            self.named.set(row.x, row.x)
        else:
            self.one.set(None)
            self.many.clear()
            for key in self.named:
                self.named.remove(key)

    made = function(change, one=value("INT"), many=list_of("INT"), named=map_of("INT", "INT"))
    epochs = Epochs(made)
    epochs.run(5)
    assert epochs.state == [[[5], [[5], [5]], 5]]  # in the order of their names
    epochs.run(0)
    assert epochs.state is None


def test_a_list_and_a_map_do_what_their_names_say() -> None:
    found: list[Any] = []

    def use(self: Any, row: Any, context: Context) -> None:
        found.clear()
        self.many.extend([row.x, None])
        self.many.set(one for one in self.many if one != 1)
        self.named.set("a", row.x)
        self.named.set("b", None)
        found.extend([self.many.get(), len(self.many), list(self.many)])
        found.extend([self.named.get("a"), self.named.get("z"), self.named.get("z", 9), "b" in self.named])
        found.extend([self.named.items(), list(self.named), len(self.named)])

    epochs = Epochs(function(use, many=list_of("INT"), named=map_of("STRING", "INT")))
    epochs.run(1)
    assert found == [[None], 1, [None], 1, None, 9, True, [("a", 1), ("b", None)], ["a", "b"], 2]
    epochs.run(2)
    assert found[:4] == [[None, 2, None], 3, [None, 2, None], 2]


def test_what_is_read_may_be_changed_and_changes_nothing() -> None:
    def meddle(self: Any, row: Any, context: Context) -> Iterator[Any]:
        if row.x:
            self.one.set([1])
            self.many.append({"a": [1]})
            self.named.set("k", [1])
        self.one.get().append(2)
        self.many.get()[0]["a"].append(2)
        self.many.get().clear()
        self.named.get("k").append(2)
        yield (f"{self.one.get()} {self.many.get()} {self.named.get('k')}",)

    states = {
        "one": value("ARRAY<INT>"),
        "many": list_of("STRUCT<a: ARRAY<INT>>"),
        "named": map_of("STRING", "ARRAY<INT>"),
    }
    epochs = Epochs(function(meddle, **states))
    assert epochs.run(1, 0) == ["[1] [{'a': [1]}] [1]"] * 2
    assert epochs.run(0) == ["[1] [{'a': [1]}] [1]"]


def test_keys_of_a_map_are_found_however_they_are_written() -> None:
    def note(self: Any, row: Any, context: Context) -> Iterator[Any]:
        self.seen.set(datetime(2024, 1, 1), 1)
        yield (str(self.seen.get(datetime(2024, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))))),)

    assert Epochs(function(note, seen=map_of("TIMESTAMP", "INT"))).run(1) == ["1"]


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        (lambda self: self.one.set("x"), "state 'one' holds INT: 'x' is not of type INT"),
        (lambda self: self.many.append(2**40), "state 'many' holds INT: 1099511627776 is not of type INT"),
        (lambda self: self.named.set("a", 1.5), "state 'named' holds INT: 1.5 is not of type INT"),
        (lambda self: self.named.set(1, 1), "state 'named' has keys of STRING: 1 is not of type STRING"),
        (lambda self: self.named.get(None), "state 'named' has keys of STRING: None is not of type STRING"),
    ],
)
def test_a_value_of_another_type_fails_with_the_state_and_the_row(use: Callable[[Any], object], reason: str) -> None:
    made = function(
        lambda self, row, context: use(self) if row.x else None,
        one=value("INT"),
        many=list_of("INT"),
        named=map_of("STRING", "INT"),
    )
    with pytest.raises(StepFailed) as failed:
        Epochs(made).run(0, 1)
    assert failed.value.reason == reason
    assert failed.value.number == 101


# Time to live


def test_state_expires_by_processing_time_since_its_last_write() -> None:
    def use(self: Any, row: Any, context: Context) -> Iterator[Any]:
        if row.x:
            self.one.set(row.x)
        yield (str(self.one.get()),)

    epochs = Epochs(function(use, one=value("INT", ttl="10 seconds"), kept=value("INT")))
    assert epochs.run(7, wall=100) == ["7"]
    assert epochs.wakes == (None, 110)
    assert epochs.run(0, wall=109) == ["7"]
    assert epochs.run(8, wall=109) == ["8"]
    assert epochs.wakes == (None, 119)
    assert epochs.run(0, wall=119) == ["None"]
    assert epochs.state is None
    assert epochs.wakes == (None, None)


def test_expired_state_is_purged_without_an_event() -> None:
    def use(self: Any, row: Any, context: Context) -> None:
        self.one.set(1)
        self.many.append(1)
        self.named.set("a", 1)

    states = {
        "one": value("INT", ttl="1 second"),
        "many": list_of("INT", ttl="2 seconds"),
        "named": map_of("STRING", "INT", ttl="3 seconds"),
    }
    epochs = Epochs(function(use, **states))
    epochs.run(1, wall=10)
    for wall, left in ((11, {"many", "named"}), (12, {"named"})):
        assert epochs.wakes == (None, wall)
        assert epochs.run(wall=wall) == []
        for kept in epochs.state[:2]:
            assert {name for name, one in zip(sorted(states), kept, strict=True) if one is not None} == left
    assert epochs.run(wall=13) == []
    assert epochs.state is None


def test_a_time_to_live_that_is_new_counts_from_now() -> None:
    def use(self: Any, row: Any, context: Context) -> Iterator[Any]:
        yield (f"{self.one.get()} {self.many.get()} {self.named.items()}",)

    states: dict[str, Any] = {
        "one": value("INT", ttl="5 seconds"),
        "many": list_of("INT", ttl="5 seconds"),
        "named": map_of("INT", "INT", ttl="5 seconds"),
    }
    epochs = Epochs(function(use, **states))
    epochs.state = ([[2], {3: 4}, 1],)
    assert epochs.run(0, wall=100) == ["1 [2] [(3, 4)]"]
    assert epochs.run(0, wall=104) == ["1 [2] [(3, 4)]"]
    assert epochs.run(0, wall=105) == ["None [] []"]


@pytest.mark.parametrize("seed", range(20))
def test_state_is_what_a_model_says_through_any_epochs(seed: int) -> None:
    """The model keeps (value, written) and looks at the time with every read; states take expired ones away once."""
    rng, ttl = random.Random(seed), random.Random(seed).choice([None, 3])

    class Model(StatefulFunction):
        schema = "one STRING, many STRING, named STRING"
        one = value("INT", ttl=None if ttl is None else timedelta(seconds=ttl))
        many = list_of("INT", ttl=None if ttl is None else timedelta(seconds=ttl))
        named = map_of("STRING", "INT", ttl=None if ttl is None else timedelta(seconds=ttl))

        def process(self, row: Any, context: Context) -> Iterator[Any]:
            what, key, number = row.what, row.key, row.number
            if what == "set":
                self.one.set(number)
                self.many.append(number)
                self.named.set(key, number)
            elif what == "remove":
                self.named.remove(key)
                self.one.clear()
            elif what == "clear":
                self.many.set(self.many.get()[:1])
                self.named.clear()
            yield str(self.one.get()), str(self.many.get()), str(sorted(self.named.items()))

    epochs, wall = Epochs(Model(), ("what", "key", "number")), 0
    one: list[tuple[int, int]] = []
    many: list[tuple[int, int]] = []
    named: dict[str, tuple[int, int]] = {}

    def alive(written: int) -> bool:
        return ttl is None or written + ttl > wall

    for _ in range(30):
        wall += rng.randrange(3)
        rows, expected = [], []
        for _ in range(rng.randrange(5)):
            what, key, number = (
                rng.choice(["set", "set", "remove", "clear", "look"]),
                rng.choice("ab"),
                rng.randrange(9),
            )
            rows.append((what, key, number, 0))
            if what == "set":
                one, named[key] = [(number, wall)], (number, wall)
                many.append((number, wall))
            elif what == "remove":
                one = []
                named.pop(key, None)
            elif what == "clear":
                many = [(kept, wall) for kept, written in many if alive(written)][:1]
                named = {}
            expected.append(
                (
                    str(next((kept for kept, written in one if alive(written)), None)),
                    str([kept for kept, written in many if alive(written)]),
                    str(sorted((name, kept) for name, (kept, written) in named.items() if alive(written))),
                )
            )
        assert epochs.run(*rows, wall=wall) == expected


# Timers


def told(self: Any, timer: Timer, context: Context) -> Iterator[Any]:
    yield (f"{timer.name or '-'}{'e' if timer.is_event_time else 'p'}{(timer.at - EPOCH).total_seconds():g}",)


def test_event_timers_fire_in_the_order_of_time_when_the_watermark_reaches_them() -> None:
    epochs = Epochs(function(lambda self, row, context: context.at(at(row.x)), told))
    assert epochs.run(7, 5, 9, 5) == []
    assert epochs.wakes == (5, None)
    assert epochs.state == [[], [], [[5 * SECOND, ""], [7 * SECOND, ""], [9 * SECOND, ""]], []]
    assert epochs.run(now=4) == []
    assert epochs.run(now=7) == ["-e5", "-e7"]
    assert epochs.wakes == (9, None)
    assert epochs.run(now=100) == ["-e9"]
    assert epochs.state is None


def test_processing_timers_fire_when_the_epoch_was_planned_late_enough() -> None:
    epochs = Epochs(function(lambda self, row, context: context.after(row.x), told), event_time=False)
    assert epochs.run("5 seconds", timedelta(seconds=2), "1 minute -30 seconds", wall=100) == []
    assert epochs.wakes == (None, 102)
    assert epochs.run(wall=101) == []
    assert epochs.run(wall=105) == ["-p102", "-p105"]
    assert epochs.run(wall=130) == ["-p130"]
    assert epochs.state is None


def test_both_kinds_of_time_live_side_by_side() -> None:
    def both(self: Any, row: Any, context: Context) -> Iterator[Any]:
        context.after("5 seconds", "idle")
        context.at(at(50), "end")
        yield ("row",)

    epochs = Epochs(function(both, told))
    assert epochs.run(1, wall=10) == ["row"]
    assert epochs.wakes == (50, 15)
    assert epochs.run(now=49, wall=15) == ["idlep15"]
    assert epochs.run(now=50, wall=15) == ["ende50"]
    epochs.run(1, wall=10)
    assert epochs.run(1, now=60, wall=15) == ["row", "ende50"]


def test_a_timer_with_a_name_moves_and_can_be_cancelled() -> None:
    def plan(self: Any, row: Any, context: Context) -> None:
        if row.x == "off":
            context.cancel("a")
        else:
            context.at(at(row.x), "a")
            context.after(timedelta(seconds=row.x), "a")
            context.at(at(row.x), "b" if row.x == 9 else "")

    epochs = Epochs(function(plan, told))
    epochs.run(5, 7)
    assert epochs.run(now=100, wall=100) == ["-e5", "-e7", "ae7", "ap7"]
    epochs.run(5, 9, "off")
    assert epochs.run(now=100, wall=100) == ["-e5", "be9"]


def test_a_timer_that_was_due_when_it_was_set_fires_behind_the_rows() -> None:
    def plan(self: Any, row: Any, context: Context) -> Iterator[Any]:
        context.at(at(row.x))
        context.after(timedelta(0))
        yield ("row",)

    epochs = Epochs(function(plan, told))
    epochs.run(now=10)
    assert epochs.run(3, 12, now=10, wall=1) == ["row", "row", "-e3", "-p1"]
    assert epochs.wakes == (12, None)


def test_no_event_timer_fires_while_the_time_is_unknown() -> None:
    epochs = Epochs(function(lambda self, row, context: context.at(at(-5)), told))
    assert epochs.run(1, now=0) == []
    assert epochs.run(now=1) == ["-e-5"]


def test_a_timer_sets_cancels_and_overtakes_others_in_the_same_epoch() -> None:
    def chain(self: Any, timer: Timer, context: Context) -> Iterator[Any]:
        yield from told(self, timer, context)
        if timer.name == "first":
            context.cancel("second")
            context.at(at(2), "between")
            context.at(at(30), "later")

    def plan(self: Any, row: Any, context: Context) -> None:
        context.at(at(1), "first")
        context.at(at(3), "second")
        context.at(at(4), "third")

    epochs = Epochs(function(plan, chain))
    epochs.run(1)
    assert epochs.run(now=10) == ["firste1", "betweene2", "thirde4"]
    assert epochs.wakes == (30, None)


def test_a_ticking_timer_catches_up_with_the_watermark() -> None:
    def tick(self: Any, timer: Timer, context: Context) -> Iterator[Any]:
        yield from told(self, timer, context)
        context.at(timer.at + timedelta(seconds=1))

    epochs = Epochs(function(lambda self, row, context: context.at(at(row.x)), tick))
    epochs.run(1)
    assert epochs.run(now=4) == ["-e1", "-e2", "-e3", "-e4"]
    assert epochs.wakes == (5, None)


def test_timers_that_would_continue_forever_stop_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CHAIN_MAX", 50)
    agains: list[Body] = [
        lambda self, timer, context: context.at(timer.at),
        lambda self, timer, context: context.after("0 seconds"),
    ]
    for again in agains:
        endless = Epochs(function(lambda self, row, context: context.at(at(1)), again))
        endless.run(1)
        with pytest.raises(StepFailed, match=r"keeps setting timers .* after context.watermark") as failed:
            endless.run(now=1)
        assert failed.value.number is None
    many = Epochs(function(lambda self, row, context: [context.at(at(row.x + n)) for n in range(200)] and None, told))
    many.run(1)
    assert len(many.run(now=1000)) == 200


@pytest.mark.parametrize("seed", range(20))
def test_timers_are_what_a_model_says_through_any_epochs(seed: int) -> None:
    rng = random.Random(seed)

    def plan(self: Any, row: Any, context: Context) -> None:
        if row.what == "cancel":
            context.cancel(row.name)
        elif row.what == "at":
            context.at(at(row.when), row.name)
        else:
            context.after(timedelta(seconds=row.when), row.name)

    epochs, now, wall = Epochs(function(plan, told), ("what", "name", "when")), 0, 0
    event: set[tuple[int, str]] = set()
    processing: set[tuple[int, str]] = set()

    def put(timers: set[tuple[int, str]], when: int, name: str) -> None:
        timers -= {timer for timer in timers if name and timer[1] == name}
        timers.add((when, name))

    for _ in range(40):
        now, wall, rows = now + rng.randrange(3), wall + rng.randrange(3), []
        for _ in range(rng.randrange(4)):
            what, name = rng.choice(["at", "after", "cancel"]), rng.choice(["", "a", "b"])
            when = rng.randrange(6) + (now if what == "at" else 0)
            rows.append((what, name, when, 0))
            if what == "cancel":
                event = {timer for timer in event if timer[1] != name}
                processing = {timer for timer in processing if timer[1] != name}
            else:
                put(event if what == "at" else processing, when + (0 if what == "at" else wall), name)
        due_event = sorted(timer for timer in event if now and timer[0] <= now)
        due_wall = sorted(timer for timer in processing if timer[0] <= wall)
        expected = [f"{name or '-'}e{when}" for when, name in due_event]
        expected += [f"{name or '-'}p{when}" for when, name in due_wall]
        event, processing = event - set(due_event), processing - set(due_wall)
        assert epochs.run(*rows, now=now, wall=wall) == expected
        assert epochs.wakes == (min(event, default=(None,))[0], min(processing, default=(None,))[0])


# What a function is told


def test_a_function_knows_its_key_its_time_and_whether_an_event_is_late() -> None:
    def look(self: Any, row: Any, context: Context) -> Iterator[Any]:
        watermark = None if context.watermark is None else (context.watermark - EPOCH).total_seconds()
        context.at(at(0))
        yield f"{row.x} {context.key.k} {watermark} {(context.processing_time - EPOCH).seconds}", context.is_late

    def on_timer(self: Any, timer: Timer, context: Context) -> Iterator[Any]:
        yield str(context.watermark and (context.watermark - EPOCH).total_seconds()), context.is_late

    epochs = Epochs(function(look, on_timer, schema="told STRING, late BOOLEAN"))
    assert epochs.run(("a", 0), ("b", -5), wall=9) == [("a key None 9", False), ("b key None 9", False)]
    assert epochs.run(now=10) == [("10.0", False)]
    assert epochs.run(("c", 10), ("d", 11), ("e", 9), now=20, wall=12) == [
        ("c key 10.0 12", False),
        ("d key 10.0 12", False),
        ("e key 10.0 12", True),
        ("20.0", False),
    ]


def test_an_event_without_a_time_is_not_late() -> None:
    made = function(lambda self, row, context: [(str(context.is_late),)])
    operator = make_operator(made, keys=("k",), columns=("x",), event_time="__time")
    assert operator.step((1,), None, [(0, "a", None)], Clock(5, 6, 0)).rows == [(0, ("False",))]


def test_a_row_is_a_row_of_spark() -> None:
    make = row_maker(("name", "count", "asDict", "_offset", "two words"))
    row = make(("a", 3, "hidden", 7, 8))
    assert isinstance(row, Row)
    assert (row.name, row.count, row._offset) == ("a", 3, 7)
    assert (row["asDict"], row["two words"], row[1], "count" in row) == ("hidden", 8, 3, True)
    assert row.asDict()["count"] == 3
    assert pickle.loads(pickle.dumps(row)) == row
    assert repr(row).startswith("Row(name='a', count=3")
    with pytest.raises(AttributeError):
        _ = row.missing


# What a function gives


@pytest.mark.parametrize(
    "made",
    [
        [{"a": "x", "b": 1}],
        [{"b": 1, "a": "x"}],
        [("x", 1)],
        [["x", 1]],
        [Row(b=1, a="x")],
        (one for one in [("x", 1)]),
        iter([("x", 1)]),
        (("x", 1),),
    ],
)
def test_rows_are_given_as_dicts_tuples_and_rows(made: Iterable[Any]) -> None:
    results = Results([Given("a", "STRING", True), Given("b", "BIGINT", True)], "Made.process")
    assert [results.values(one) for one in results.rows(made)] == [("x", 1)]


def test_values_are_given_as_their_columns_want_them() -> None:
    kinds = ("DOUBLE", "TIMESTAMP", "DECIMAL(5, 2)", "ARRAY<DOUBLE>", "STRUCT<a: INT>", "TINYINT", "DATE")
    results = Results([Given(f"c{place}", kind, True) for place, kind in enumerate(kinds)], "Made.process")
    values = results.values((1, datetime(2024, 1, 1), Decimal(1), (1, None), Row(a=1), 5, date(2024, 1, 1)))
    assert values == (
        1.0,
        datetime(2024, 1, 1, tzinfo=UTC),
        Decimal("1.00"),
        [1.0, None],
        {"a": 1},
        5,
        date(2024, 1, 1),
    )
    assert results.values((None,) * 7) == (None,) * 7


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ({"a": "x", "b": 1}, "Made.process gives an iterable of rows, or yields them, not dict"),
        ("ab", "Made.process gives an iterable of rows, or yields them, not str"),
        (7, "Made.process gives an iterable of rows, or yields them, not int"),
        ([{"a": "x"}], "the result lacks ['b']; its schema has a, b"),
        ([{"a": "x", "c": 1}], "the result lacks ['b']; its schema has a, b"),
        ([{"a": "x", "b": 1, "c": 1}], "the result has ['c'] beside it; its schema has a, b"),
        ([("x",)], "('x',) is not a dict or tuple of (a, b)"),
        (["xy"], "'xy' is not a dict or tuple of (a, b)"),
        ([None], "None is not a dict or tuple of (a, b)"),
        ([("x", "1")], "b: '1' is not of type BIGINT"),
        ([("x", 2**63)], "b: 9223372036854775808 is not of type BIGINT"),
        ([(1, 1)], "a: 1 is not of type STRING"),
        ([("x", None)], "b is NOT NULL, and the result has None for it"),
    ],
)
def test_a_row_that_does_not_fit_the_schema_fails_by_its_column(made: Any, reason: str) -> None:
    epochs = Epochs(function(lambda self, row, context: made, schema="a STRING, b BIGINT NOT NULL"))
    with pytest.raises(StepFailed) as failed:
        epochs.run(1)
    assert failed.value.reason == reason
    assert failed.value.number == 100


def test_what_the_user_raises_names_the_row() -> None:
    def divide(self: Any, row: Any, context: Context) -> Iterator[Any]:
        yield (str(1 // row.x),)

    with pytest.raises(StepFailed) as failed:
        Epochs(function(divide)).run(1, 2, 0, 3)
    assert failed.value.reason.startswith("ZeroDivisionError: ")
    assert failed.value.number == 102
    assert isinstance(failed.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("on_timer", "reason"),
    [
        (lambda self, timer, context: 1 // 0, "the timer 'end' of 1970-01-01 00:00:05+00:00: ZeroDivisionError: "),
        (lambda self, timer, context: {"a": "x"}, "Made.on_timer gives an iterable of rows, or yields them, not dict"),
        (lambda self, timer, context: [("x", 1)], "is not a dict or tuple of (a)"),
        (lambda self, timer, context: context.after("soon"), "context.after takes a timedelta or a text"),
    ],
)
def test_what_a_timer_raises_names_the_timer(on_timer: Body, reason: str) -> None:
    epochs = Epochs(function(lambda self, row, context: context.at(at(5), "end"), on_timer))
    epochs.run(1)
    with pytest.raises(StepFailed) as failed:
        epochs.run(now=5)
    assert reason in failed.value.reason
    assert "'end'" in failed.value.reason
    assert failed.value.number is None


@pytest.mark.parametrize(
    ("use", "event_time", "reason"),
    [
        (lambda context: context.at(5), True, "context.at takes a datetime, not 5"),
        (lambda context: context.after(5), True, "context.after takes a timedelta or a text"),
        (lambda context: context.at(at(5)), False, "the stream has no event time"),
    ],
)
def test_a_timer_that_cannot_be_set_names_the_row(
    use: Callable[[Context], object], event_time: bool, reason: str
) -> None:
    epochs = Epochs(function(lambda self, row, context: use(context), told), event_time=event_time)
    with pytest.raises(StepFailed, match=reason) as failed:
        epochs.run(1)
    assert failed.value.number == 100


def test_a_timer_without_on_timer_is_reported() -> None:
    with pytest.raises(StepFailed, match="Made has timers and no on_timer"):
        Epochs(function(lambda self, row, context: context.at(at(5)))).run(1)


def test_a_failed_step_leaves_nothing_behind() -> None:
    epochs = Epochs(Totals())
    epochs.run(1)
    with pytest.raises(StepFailed):
        epochs.run(5, "x")
    assert epochs.run(1) == [2]


class Cells(dict[str, bytes]):
    def put(self, name: str, value: bytes) -> None:
        self[name] = value

    def remove(self, name: str) -> None:
        self.pop(name, None)


def test_keys_in_pages_are_woken_by_their_timers_and_by_what_expires() -> None:
    def count(self: Any, row: Any, context: Context) -> None:
        self.total.set((self.total.get() or 0) + 1)
        context.at(at(row.x), "end")

    def tell(self: Any, timer: Timer, context: Context) -> Iterator[Any]:
        yield (f"{context.key.k} {self.total.get()}",)

    made = function(count, tell, total=value("INT", ttl="1 minute"))
    operator, cells = make_operator(made, keys=("k",), columns=("x",), event_time="__time"), Cells()

    def run(rows: dict[str, list[int]], watermark: int, wall: int) -> list[Any]:
        groups = Groups.of(
            (ord(key), (key,), [(number, x, 0) for number, x in enumerate(values)]) for key, values in rows.items()
        )
        found = run_epoch(operator, PageStore(cells), groups, watermark=watermark * SECOND, wall=wall * SECOND)
        return [values[0] for _, _, values in found]

    assert run({"a": [5, 6], "b": [20]}, 1, 0) == []
    assert run({"c": [6]}, 10, 1) == ["c 1", "a 2"]
    assert run({"a": [30]}, 10, 59) == []
    assert run({}, 25, 60) == ["b None"]
    assert run({}, 30, 61) == ["a 3"]
    assert [name for name in cells if name != INDEX] != []
    assert run({}, 30, 119) == []
    assert [name for name in cells if name != INDEX] == []


# State from outside


class Everything(StatefulFunction):
    schema = "n INT"
    one = value("STRUCT<a: INT, at: TIMESTAMP>")
    many = list_of("DECIMAL(5, 2)", ttl="1 minute")
    named = map_of("DATE", "ARRAY<STRING>")
    empty = map_of("STRING", "INT")

    def process(self, row: Any, context: Context) -> None:
        self.one.set({"a": 1, "at": at(row.x)})
        self.many.extend([Decimal(1), Decimal(row.x)])
        self.named.set(date(2024, 1, 1), ["x"])


def test_state_that_is_read_can_be_begun_with() -> None:
    epochs, clock = Epochs(Everything()), Clock(0, 0, 70 * SECOND)
    epochs.run(5, wall=60)
    read = epochs.operator.get_state(("key",), epochs.state, clock)
    assert read == {
        "one": {"a": 1, "at": at(5)},
        "many": [Decimal("1.00"), Decimal("5.00")],
        "named": {date(2024, 1, 1): ["x"]},
    }
    begun = epochs.operator.init_state(("key",), read, clock)
    assert begun.state[0] == epochs.state[0]
    assert begun.state[1] == [None, [70 * SECOND] * 2, None, None]
    assert begun.wake_wall == 130 * SECOND
    assert epochs.operator.get_state(("key",), begun.state, clock) == read
    assert epochs.operator.get_state(("key",), None, clock) == {}


def test_state_that_has_expired_is_not_shown() -> None:
    epochs = Epochs(Everything())
    epochs.run(5, wall=60)
    assert "many" not in epochs.operator.get_state(("key",), epochs.state, Clock(0, 0, 120 * SECOND))


def test_both_may_be_overridden_to_convert() -> None:
    class Cents(Totals):
        def get_state(self) -> dict[str, Any]:
            return {"euros": (self.total.get() or 0) / 100}

        def init_state(self, state: dict[str, Any]) -> None:
            self.total.set(round(state["euros"] * 100))

    operator, clock = make_operator(Cents(), keys=("k",), columns=("x",)), Clock(0, 0, 0)
    begun = operator.init_state((1,), {"euros": 1.5}, clock)
    assert begun.state == [[150]]
    assert operator.get_state((1,), begun.state, clock) == {"euros": 1.5}
    with pytest.raises(StepFailed, match=r"init_state of key \(1,\): KeyError: 'euros'"):
        operator.init_state((1,), {}, clock)
    with pytest.raises(StepFailed, match=r"get_state of key \(1,\): TypeError"):
        operator.get_state((1,), (["x"],), clock)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"total": 1, "sum": 2}, r"the initial state has \['sum'\], which is not declared; declared is total"),
        ({"total": "1"}, "state 'total' holds BIGINT: '1' is not of type BIGINT"),
    ],
)
def test_an_initial_state_that_does_not_fit_is_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(StepFailed, match=reason):
        make_operator(Totals(), keys=("k",), columns=("x",)).init_state((1,), given, Clock(0, 0, 0))


def arm(context: Context) -> None:
    context.after("1 minute")


def noted(method: Any) -> Any:
    @functools.wraps(method)
    def call(self: Any, row: Any, context: Context) -> Any:
        return method(self, row, context)

    return call


class Plain(StatefulFunction):
    """Has a row with a column `after`, and asks no clock."""

    schema = "s STRING"

    def process(self, row: Any, context: Context) -> Any:
        return [(row.after,)]

    def on_timer(self, timer: Timer, context: Context) -> None:
        """Nothing."""


class Decorated(Plain):
    """Asks the clock behind a decorator, in a function inside."""

    @noted
    def process(self, row: Any, context: Context) -> Any:
        def ask() -> None:
            context.after("1 minute")

        ask()


class Hidden(Plain):
    """Asks the clock where Lockgate does not look for it."""

    def process(self, row: Any, context: Context) -> Any:
        arm(context)


@pytest.mark.parametrize(("made", "time"), [(Plain(), Time.EVENT), (Decorated(), Time.BOTH), (Hidden(), Time.EVENT)])
def test_a_function_is_moved_by_the_clock_where_it_asks_for_it(made: StatefulFunction, time: Time) -> None:
    assert make_operator(made, keys=("k",), columns=("after",), event_time="__time").time is time


def test_a_timer_by_the_clock_that_no_epoch_would_come_for_is_refused() -> None:
    operator = make_operator(Hidden(), keys=("k",), columns=("after",), event_time="__time")
    with pytest.raises(StepFailed, match="called where Lockgate does not look for it"):
        operator.step(("a",), None, [(0, "x", 0)], Clock(before=0, now=0, wall=0))
