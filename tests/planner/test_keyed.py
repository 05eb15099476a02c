"""Keyed steps in a plan: what leaves them, which form they take, what they are worth, and what is refused."""

from collections.abc import Callable

import pytest

from lockgate.connectors.kafka.sink import KafkaSink
from lockgate.connectors.kafka.source import KafkaSource
from lockgate.dataflow import aggregates, patterns, synopses, windows
from lockgate.dataflow.eventtime import Late
from lockgate.dataflow.job import Job
from lockgate.dataflow.state import StatefulFunction, value
from lockgate.dataflow.stream import Stream, stream
from lockgate.errors import BadJob
from lockgate.guarantees import Guarantee
from lockgate.planner.plan import Plan, plan

MINUTE = windows.tumbling("1 minute")
ALARM = patterns.begin("hot", "v > 60").then("smoke", "v < 0").within("10 minutes")


class Counter(StatefulFunction):
    """Counts."""

    schema = "k STRING, n BIGINT"
    n = value("BIGINT")

    def process(self, row: object, context: object) -> list[object]:
        return []


def events(name: str = "events") -> Stream:
    return stream(name, KafkaSource(topic=name, servers="localhost:9092", value="k STRING, v DOUBLE, at TIMESTAMP"))


def timed(**options: object) -> Stream:
    return events().event_time("at", lateness="10 seconds", **options)  # type: ignore[arg-type]


def planned(result: Stream) -> Plan:
    sink = KafkaSink(topic="out", servers="localhost:9092")
    return plan(Job("job", result.to("out", sink), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE))


def columns(result: Stream) -> tuple[str, ...]:
    found = planned(result).logical.nodes[-1].flow.columns
    assert found is not None
    return found.names


SPAN = ("window_start", "window_end")


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: events().key_by("k").window(windows.tumbling_count(5)).aggregate(n="count(*)"), ("k", *SPAN, "n")),
        (lambda: timed().key_by("k").window(MINUTE).apply(len, "m DOUBLE"), ("k", *SPAN, "m")),
        (
            lambda: timed(late=Late.CORRECT, allowed="1 hour").window(MINUTE).aggregate(n="count(*)"),
            (*SPAN, "revision", "is_final", "n"),
        ),
        (
            lambda: timed().window(MINUTE).trigger(every=10).aggregate(n="count(*)"),
            (*SPAN, "revision", "is_final", "n"),
        ),
        (lambda: events().key_by("k").process(Counter()), ("k", "n")),
        (lambda: timed().key_by("k").detect(ALARM), ("k", "match_start", "match_end", "hot", "smoke")),
        (
            lambda: timed().key_by("k").detect(ALARM).timed_out,
            ("k", "match_start", "match_end", "reached", "hot", "smoke"),
        ),
        (
            lambda: timed(late=Late.TO_SIDE_OUTPUT).key_by("k").detect(ALARM).late,
            ("k", "v", "at"),
        ),
        (
            lambda: timed(late=Late.TO_SIDE_OUTPUT).key_by("k").window(MINUTE).apply(len, "m DOUBLE").late,
            ("k", "v", "at", *SPAN),
        ),
    ],
)
def test_what_leaves_a_keyed_step(make: Callable[[], Stream], expected: tuple[str, ...]) -> None:
    assert columns(make()) == expected


@pytest.mark.parametrize(
    ("make", "execution", "reason"),
    [
        (lambda: timed().window(MINUTE).aggregate(n="count(*)", m=synopses.count()), "native", "natively"),
        (lambda: timed().window(MINUTE).aggregate(n=synopses.distinct("v")), "Python", "no aggregate like n"),
        (lambda: events().window(windows.until("v > 5")).aggregate(n="count(*)"), "Python", "only by time"),
        (lambda: timed().window(MINUTE).trigger(every="1 second").aggregate(n="count(*)"), "Python", "early results"),
        (lambda: timed().window(MINUTE).apply(len, "m DOUBLE"), "Python", "all events are kept"),
        (
            lambda: events().key_by("k").rolling(m=aggregates.history("v", len, "INT")),
            "Python",
            "all values are kept for m",
        ),
        (
            lambda: timed(late=Late.CORRECT, allowed="1 hour").window(MINUTE).aggregate(n="count(*)"),
            "Python",
            "not corrected",
        ),
    ],
)
def test_the_plan_says_which_form_a_step_takes_and_why(make: Callable[[], Stream], execution: str, reason: str) -> None:
    step = next(step for step in planned(make()).physical.steps if step.has_state)
    assert step.execution == execution
    assert reason in step.reason


@pytest.mark.parametrize(
    ("make", "reached"),
    [
        (lambda: events().key_by("k").process(Counter()), Guarantee.END_TO_END_EXACTLY_ONCE),
        (lambda: events().key_by("k").process(Counter(), deterministic=False), Guarantee.AT_LEAST_ONCE),
        (lambda: events().key_by("k").rolling(f=aggregates.first("v")), Guarantee.END_TO_END_EXACTLY_ONCE),
        (lambda: events().key_by("k").rolling(f=aggregates.first("v * rand()")), Guarantee.AT_LEAST_ONCE),
        (
            lambda: events().key_by("k").rolling(f=aggregates.history("v", len, "INT", deterministic=False)),
            Guarantee.AT_LEAST_ONCE,
        ),
        (lambda: events().window(windows.until("v > 5")).aggregate(n="count(*)"), Guarantee.END_TO_END_EXACTLY_ONCE),
        (lambda: events().window(windows.until("rand() < 0.1")).aggregate(n="count(*)"), Guarantee.AT_LEAST_ONCE),
        (lambda: events().window(windows.until("rand() < 0.1")).apply(len, "n INT"), Guarantee.AT_LEAST_ONCE),
        (
            lambda: events().detect(patterns.begin("a", "rand() < 0.1").next("b", "v > 1")),
            Guarantee.AT_LEAST_ONCE,
        ),
    ],
)
def test_what_a_keyed_step_is_worth(make: Callable[[], Stream], reached: Guarantee) -> None:
    assert planned(make()).reached is reached


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: timed(late=Late.CORRECT), "does not say for how long"),
        (lambda: events().window(windows.until("w > 5")).aggregate(n="count(*)"), "column 'w'"),
        (lambda: events().key_by("k").detect(patterns.begin("a", "w > 5").next("b", "v > 1")), "column 'w'"),
        (lambda: events().key_by("j").process(Counter()), "column 'j'"),
        (lambda: timed().window(MINUTE).trigger(on_late=True).aggregate(n="count(*)"), "do not correct results"),
        (lambda: timed().window(MINUTE).trigger(every=True).aggregate(n="count(*)"), "every True events"),
        (lambda: timed().window(MINUTE).trigger(every=0).aggregate(n="count(*)"), "every 0 events"),
        (lambda: events().window(windows.tumbling_count(3)).trigger(every=1), "never before"),
        (lambda: timed().window(MINUTE).trigger(every=5).aggregate(n="stddev(v)"), "cannot keep n='stddev(v)'"),
        (
            lambda: timed().key_by("k").window(windows.session(gap="1 minute")).aggregate(f=aggregates.first("v")),
            "order of the source",
        ),
        (lambda: timed().window(MINUTE).aggregate(n="count(*)").late, "late=Late.DROP"),
        (
            lambda: timed(late=Late.TO_SIDE_OUTPUT).window(windows.tumbling_count(3)).aggregate(n="count(*)").late,
            "no event is late",
        ),
        (
            lambda: timed(late=Late.CORRECT, allowed="1 hour").key_by("k").detect(ALARM),
            "cannot be taken back",
        ),
        (
            lambda: (
                timed()
                .window(MINUTE)
                .aggregate(v="sum(v)")
                .select("v", k="'all'", at="window_end")
                .merge(events("more"))
                .key_by("k")
                .rolling(t="sum(v)")
            ),
            "lost their order",
        ),
        (
            lambda: timed().merge(
                events("more").event_time("at", lateness="10 seconds", late=Late.CORRECT, allowed="1 hour")
            ),
            "different things for their late events",
        ),
        (lambda: events().transform(lambda frame: frame).key_by("k").process(Counter()), "not known"),
        (lambda: timed().key_by("k").window(MINUTE).apply(len, "k STRING"), "would exist twice"),
        (lambda: timed().window(windows.sliding("1 day", every="1 millisecond")), "in 86,400,000 windows"),
        (lambda: timed(late=Late.TO_SIDE_OUTPUT).window(MINUTE).aggregate(n="count(*)"), "that no sink takes"),
        (lambda: timed(late=Late.TO_SIDE_OUTPUT).key_by("k").detect(ALARM).timed_out, "that no sink takes"),
        (lambda: timed(late=Late.LOG), "late=Late.LOG means nothing here"),
        (lambda: timed(late=Late.TO_SIDE_OUTPUT).key_by("k").process(Counter()), "late=Late.TO_SIDE_OUTPUT means"),
        (lambda: timed(late=Late.LOG).key_by("k").rolling(t="sum(v)"), "late=Late.LOG means nothing here"),
        (
            lambda: timed(late=Late.CORRECT, allowed="1 hour").window(windows.until("v > 5")).aggregate(n="count(*)"),
            "late=Late.CORRECT means nothing here",
        ),
    ],
)
def test_what_cannot_mean_anything_is_refused(make: Callable[[], Stream], what: str) -> None:
    with pytest.raises(BadJob) as refused:
        planned(make())
    assert what in refused.value.what
    assert refused.value.fix
    assert "test_keyed.py" in refused.value.where


def test_one_step_behind_it_gives_late_events_a_meaning() -> None:
    late = timed(late=Late.TO_SIDE_OUTPUT).merge(
        events("more").event_time("at", lateness="1 second", late=Late.TO_SIDE_OUTPUT)
    )
    counts = late.key_by("k").window(MINUTE).aggregate(n="count(*)")
    sinks = [KafkaSink(topic=name, servers="localhost:9092") for name in ("late", "totals", "hours")]
    hours = late.key_by("k").window(windows.tumbling("1 hour")).aggregate(n="count(*)")
    outputs = (
        counts.late.to("late", sinks[0]),
        late.key_by("k").rolling(t="sum(v)").to("totals", sinks[1]),
        hours.to("hours", sinks[2]),
    )
    assert plan(Job("job", *outputs, guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)).refusal() is None
    with pytest.raises(BadJob, match="that no sink takes") as refused:
        plan(Job("job", *outputs[1:], guarantee=Guarantee.END_TO_END_EXACTLY_ONCE))
    assert "counts.late.to(" in refused.value.fix


def test_windows_that_overlap_less_are_taken() -> None:
    assert windows.sliding("10000 seconds", every="1 second")
