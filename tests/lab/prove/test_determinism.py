"""A job that has more than one right answer is found, with the reason; one that has one answer is left in peace."""

from collections.abc import Callable
from functools import partialmethod, wraps
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from lockgate import Guarantee, Job, KafkaSink, KafkaSource, Late, StatefulFunction, acks, plan, stream, value, windows
from lockgate.cli.jobfile import load_job
from lockgate.dataflow.stream import Stream
from lockgate.lab.prove.determinism import find_reasons


class Counting(StatefulFunction):
    schema = "n BIGINT"
    total = value("BIGINT")

    def process(self, row: Any, context: Any) -> Any:
        self.total.set((self.total.get() or 0) + 1)
        yield (self.total.get(),)


class Forgetting(Counting):
    last = value("BIGINT", ttl="1 hour")


class Waiting(Counting):
    def process(self, row: Any, context: Any) -> Any:
        context.after("1 second")

    def on_timer(self, timer: Any, context: Any) -> Any:
        return [(1,)]


class Alarming(Waiting):
    def process(self, row: Any, context: Any) -> Any:
        return [context.at(row.at) for _ in range(1)] and None


class Naming(Counting):
    """Reads columns that are called as what a context has."""

    def process(self, row: Any, context: Any) -> Any:
        yield from ((context.key.k, one) for one in (row.at, row.after, row.watermark, row.is_late))

    def on_timer(self, timer: Any, context: Any) -> Any:
        return [(timer.at, context.key.k)]


class HandingOn(Counting):
    def process(self, row: Any, context: Any) -> Any:
        self.wait(context)

    def wait(self, context: Any) -> None:
        context.at(0)


class Renaming(Counting):
    def process(self, row: Any, context: Any) -> Any:
        other = context
        other.at(row.v)


class ByName(Counting):
    def process(self, row: Any, context: Any) -> Any:
        getattr(context, "at")(row.v)  # noqa: B009


class ByDefault(Counting):
    def process(self, row: Any, context: Any) -> Any:
        def wait(one: Any = context) -> None:
            one.at(row.v)

        wait()


class Inside(Counting):
    def process(self, row: Any, context: Any) -> Any:
        def wait() -> None:
            context.at(row.v)

        wait()


class Storing(Counting):
    def process(self, row: Any, context: Any) -> Any:
        for each in [context]:
            each.at(row.v)


class Twice(Counting):
    def process(self, row: Any, context: Any) -> Any:
        set_at(context, context.key)


def set_at(context: Any, key: Any) -> None:
    context.at(key)


def logged(function: Callable[..., Any], *, is_marked: bool) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        return function(*given, **named)

    return wraps(function)(call) if is_marked else call


def wait(self: Any, row: Any, context: Any) -> Any:
    return [context.at(row.v)]


class Waits:
    def __call__(self, row: Any, context: Any) -> Any:
        context.at(row.v)


class Decorated(Counting):
    process = logged(wait, is_marked=True)


class DecoratedInSecret(Counting):
    process = logged(wait, is_marked=False)


class Assigned(Counting):
    process = wait


class Bound(Counting):
    process = partialmethod(wait)


class Called(Counting):
    process = Waits()


class Hidden(Counting):
    process = attrgetter("v")


class TakingAll(Counting):
    def process(self, row: Any, *rest: Any) -> Any:
        rest[0].at(row.v)


def source(name: str = "in") -> Stream:
    return stream(name, KafkaSource(topic=name, servers="h:1", value="k STRING, v DOUBLE, at TIMESTAMP"))


def timed(**more: Any) -> Stream:
    return source().event_time("at", lateness="1 minute", **more)


def minutes(of: Stream) -> Any:
    return of.key_by("k").window(windows.tumbling("1 minute"))


def reasons(*last: Stream, guarantee: Guarantee = Guarantee.AT_LEAST_ONCE, **more: Any) -> str:
    outputs = [one.to(f"o{n}", KafkaSink(topic=f"o{n}", servers="h:1")) for n, one in enumerate(last)]
    return "; ".join(map(str, find_reasons(plan(Job("job", *outputs, guarantee=guarantee, **more)))))


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (lambda: minutes(source().processing_time()).aggregate(n="count(*)"), "tells the time by the clock"),
        (lambda: minutes(timed(idle="1 second")).aggregate(n="count(*)"), "idle="),
        (lambda: minutes(timed()).trigger(every=10).aggregate(n="count(*)"), "emits early results"),
        (lambda: source().map(lambda row: (row.k,), "k STRING", deterministic=False), "declared not to be"),
        (lambda: source().where(lambda row: True, deterministic=False), "declared not to be"),
        (lambda: source().select(t="current_timestamp()"), "current_timestamp"),
        (lambda: source().where("at > current_date - INTERVAL 1 DAY"), "current_date"),
        (lambda: source().select(t="now()"), "now"),
        (lambda: source().select(x="rand()"), "by rand in"),
        (lambda: source().select(x="uuid()"), "by uuid in"),
        (lambda: source().transform(lambda frame: frame), "whole DataFrame"),
        (lambda: minutes(timed()).aggregate(x="stddev(v)"), "order of its rows, by stddev"),
        (lambda: source().key_by("k").process(Forgetting()), "ttl="),
        (lambda: source().key_by("k").process(Waiting()), "timers by the clock"),
        (lambda: timed().key_by("k").process(Alarming()), "due when an epoch ends"),
        *(
            (lambda function=function: timed().key_by("k").process(function()), "due when an epoch ends")
            for function in (HandingOn, Renaming, ByName, ByDefault, Inside, Storing, Twice)
        ),
        *(
            (lambda function=function: timed().key_by("k").process(function()), "due when an epoch ends")
            for function in (Decorated, DecoratedInSecret, Assigned, Bound, Called, Hidden, TakingAll)
        ),
        (lambda: source().merge(source("b")).key_by("k").rolling(n="count(*)"), "have none between them"),
    ],
)
def test_a_job_without_one_answer_is_found(last: Callable[[], Stream], why: str) -> None:
    told = reasons(last())
    assert why in told
    assert "test_determinism.py:" in told


@pytest.mark.parametrize(
    "last",
    [
        lambda: source().where("k = 'current_timestamp' OR k = 'rand()'"),
        lambda: source().key_by("k").rolling(n="sum(v)"),
        lambda: source().key_by("k").process(Counting()),
        lambda: timed().key_by("k").process(Naming()),
        lambda: minutes(timed()).aggregate(n="count(*)", x="avg(v)"),
        lambda: minutes(source().merge(source("b")).event_time("at", lateness="1 minute")).aggregate(n="count(*)"),
        lambda: minutes(timed(late=Late.CORRECT, allowed="1 hour")).aggregate(n="count(*)"),
    ],
)
def test_a_job_with_one_answer_has_no_reasons(last: Callable[[], Stream]) -> None:
    assert reasons(last()) == ""


def test_events_that_may_be_late_are_a_reason_where_anything_waits() -> None:
    def found(last: Stream) -> int:
        job = Job("job", last.to("o", KafkaSink(topic="o", servers="h:1")), guarantee=Guarantee.AT_LEAST_ONCE)
        return len(find_reasons(plan(job), unsure_count=3))

    assert found(minutes(timed()).aggregate(n="count(*)")) == 1
    assert found(source()) == 0


def test_a_promise_that_lets_state_go_is_a_reason() -> None:
    rolling = source().key_by("k").rolling(n="count(*)")
    letters = KafkaSink(topic="letters", servers="h:1")
    assert "after a restart" in reasons(rolling, guarantee=Guarantee.AT_MOST_ONCE)
    assert reasons(source(), guarantee=Guarantee.AT_MOST_ONCE) == ""
    assert "tracking=" in reasons(rolling, tracking=acks(), dead_letters=letters)
    assert reasons(source(), tracking=acks(), dead_letters=letters) == ""


@pytest.mark.parametrize(
    "example",
    [
        "app_tracking",
        "bubbles",
        "crossings",
        "hashtags",
        "order_volume",
        "payments",
        "reading_sessions",
        "requests_per_ip",
        "smoke_alarm",
    ],
)
def test_the_examples_have_one_answer(example: str) -> None:
    job = load_job(str(Path(__file__).parents[3] / "examples" / f"{example}.py"), [])
    assert find_reasons(plan(job)) == ()
