from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lockgate.connectors.local.memorysink import MemorySink
from lockgate.connectors.local.memorysource import MemorySource
from lockgate.dataflow import exchange, windows
from lockgate.dataflow.eventtime import Late
from lockgate.dataflow.job import Job
from lockgate.dataflow.steps import Exchanged, Rolling, Select, Timed, Where, WindowAggregate, Write
from lockgate.dataflow.stream import KeyedStream, Stream, stream
from lockgate.errors import BadJob
from lockgate.guarantees import Guarantee, Mode

HERE = Path(__file__).name


def orders() -> Stream:
    return stream("orders", MemorySource([], value="ip STRING, amount DOUBLE, at TIMESTAMP"))


def refusal(call: Callable[[], object]) -> BadJob:
    """What the call is refused with; its `where` has to be the very line on which the call is written."""
    with pytest.raises(BadJob) as refused:
        call()
    assert refused.value.where.endswith(f"declared at {HERE}:{call.__code__.co_firstlineno}")
    assert refused.value.fix
    return refused.value


# Values


CALLS: dict[str, Callable[[Stream], Any]] = {
    "where": lambda s: s.where("amount > 1"),
    "filter": lambda s: s.filter("amount > 1"),
    "select": lambda s: s.select("ip", twice="amount * 2"),
    "map": lambda s: s.map(lambda row: {"a": 1}, "a INT"),
    "flat_map": lambda s: s.flat_map(lambda row: [], "a INT"),
    "transform": lambda s: s.transform(lambda frame: frame),
    "split": lambda s: s.split(small="amount < 1")["small"],
    "merge": lambda s: s.merge(orders()),
    "join": lambda s: s.join(orders(), on="ip", within="1 minute"),
    "event_time": lambda s: s.event_time("at", lateness="1 second"),
    "exchange": lambda s: s.exchange(exchange.random()),
    "parallel": lambda s: s.parallel(2),
    "rolling": lambda s: s.key_by("ip").rolling(total="sum(amount)"),
    "window": lambda s: s.window(windows.tumbling("1 minute")).aggregate(n="count(*)"),
    "to": lambda s: s.to("out", MemorySink()),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_call_is_a_new_value_and_leaves_the_old_one_as_it_was(name: str) -> None:
    before = orders()
    step = before.step
    after = CALLS[name](before)
    assert before.step is step
    assert after.step is not step
    assert step in after.step.inputs
    assert CALLS[name](before).step is not after.step


@pytest.mark.parametrize("name", CALLS)
def test_what_a_call_returns_is_frozen_and_knows_its_line(name: str) -> None:
    after = CALLS[name](orders())
    with pytest.raises(FrozenInstanceError):
        after.step = None
    with pytest.raises(FrozenInstanceError):
        after.step.origin = None
    assert str(after.step.origin) == f"{HERE}:{CALLS[name].__code__.co_firstlineno}"


def test_keys_make_no_step_of_their_own() -> None:
    source = orders()
    keyed = source.key_by("ip")
    assert keyed == KeyedStream(step=source.step, keys=("ip",))
    assert keyed.parallel(3).tasks == 3
    assert keyed.tasks is None


def test_names_and_sql_are_kept_as_they_were_written() -> None:
    select = orders().select("ip", total="sum( amount )").step
    assert isinstance(select, Select)
    assert select.columns == ("ip",)
    assert select.expressions == {"total": "sum( amount )"}
    with pytest.raises(TypeError):
        select.expressions["total"] = "1"  # type: ignore[index]


def test_event_time_takes_text_and_defaults_to_dropping_late_events() -> None:
    step = orders().event_time("at", lateness="10 seconds").step
    assert isinstance(step, Timed)
    assert (step.time.column, step.time.lateness, step.time.late) == ("at", timedelta(seconds=10), Late.DROP)


def test_functions_are_deterministic_unless_it_is_said_otherwise() -> None:
    steps = [
        orders().where(lambda row: True, deterministic=False).step,
        orders().map(lambda row: {}, "a INT", deterministic=False).step,
    ]
    assert not any(step.is_deterministic for step in steps)  # type: ignore[attr-defined]
    plain = orders().where("true").step
    assert isinstance(plain, Where)
    assert plain.is_deterministic


def test_keys_names_and_tasks_reach_the_steps_with_state() -> None:
    rolling = orders().key_by("ip", "at").parallel(3).rolling(name="totals", total="sum(amount)").step
    assert isinstance(rolling, Rolling)
    assert (rolling.name, rolling.keys, rolling.tasks) == ("totals", ("ip", "at"), 3)
    window = (
        orders().key_by("ip").parallel(2).window(windows.session(gap="1 hour"), name="visits").aggregate(n="count(*)")
    )
    assert isinstance(window.step, WindowAggregate)
    assert (window.step.name, window.step.keys, window.step.tasks) == ("visits", ("ip",), 2)


def test_parallel_behind_an_exchange_says_how_many_tasks_it_feeds() -> None:
    step = orders().exchange(exchange.by_key("ip")).parallel(5).step
    assert isinstance(step, Exchanged)
    assert (step.exchange, step.tasks) == (exchange.by_key("ip"), 5)
    second = orders().exchange(exchange.random()).parallel(5).parallel(2).step
    assert isinstance(second, Exchanged)
    assert (second.exchange, second.tasks) == (None, 2)


def test_an_exchange_reads_as_people_say_it() -> None:
    told = [
        str(one) for one in (exchange.forward(), exchange.broadcast(), exchange.by_key("a", "b"), exchange.random())
    ]
    assert told == ["forward", "broadcast", "by key (a, b)", "random"]


def test_an_output_keeps_its_own_lower_guarantee() -> None:
    output = orders().to("screen", MemorySink(), guarantee=Guarantee.AT_MOST_ONCE)
    assert isinstance(output.step, Write)
    assert (output.step.name, output.step.guarantee) == ("screen", Guarantee.AT_MOST_ONCE)


# Refusals at the call


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: stream("", MemorySource([], value="a INT")), "a source needs a name, not ''"),
        (lambda: stream("orders", None), "stream 'orders' has no source to read from: None is not one"),
        (lambda: stream("orders", "orders.json"), "'orders.json' is not one"),
        (lambda: orders().where(""), "a condition is SQL or a function of a row, not ''"),
        (lambda: orders().where(True), "not True"),
        (lambda: orders().select(), "at least one"),
        (lambda: orders().select(ip=1), "column names and SQL text"),
        (lambda: orders().select("ip", ip="lower(ip)"), "column ip is selected twice"),
        (lambda: orders().select("ip", "ip"), "column ip is selected twice"),
        (lambda: orders().select("ip", IP="lower(ip)"), "column ip is selected twice"),
        (lambda: orders().map("amount", "a INT"), "map takes a function of a row and the schema"),
        (lambda: orders().map(lambda row: {}, None), "map takes a function of a row and the schema"),
        (lambda: orders().flat_map(lambda row: [], ["a"]), "flat_map takes a function of a row and the schema"),
        (lambda: orders().transform("x"), "transform takes a function of a DataFrame"),
        (lambda: orders().split(), "a split needs at least one part"),
        (lambda: orders().split(small=lambda row: True), "each with a SQL condition"),
        (lambda: orders().merge(), "merge takes at least one other stream"),
        (lambda: orders().merge(orders().key_by("ip")), "merge takes at least one other stream"),
        (
            lambda: orders().join("payments", on="ip", within="1 minute"),
            "join takes a stream or a table, not 'payments'",
        ),
        (lambda: orders().join(orders(), on=(), within="1 minute"), "at least one, not ()"),
        (lambda: orders().join(orders(), on=5, within="1 minute"), "names of columns that both sides have"),
        (lambda: orders().join(orders(), on="ip", within="soon"), "the bound of a join is not a duration: 'soon'"),
        (lambda: orders().event_time(5, lateness="1 second"), "event_time takes the name of a column, not 5"),
        (lambda: orders().event_time("at", lateness="-1 second"), "lateness must be zero or more"),
        (lambda: orders().event_time("at", lateness=10), "lateness is not a duration: 10"),
        (lambda: orders().event_time("at", lateness="1 second", late="drop"), "late= takes a Late, not 'drop'"),
        (lambda: orders().event_time("at", lateness="1 second", allowed="1 hour"), "but late=Late.DROP corrects none"),
        (lambda: orders().event_time("at", lateness="1 second", idle="0 seconds"), "idle must be more than zero"),
        (
            lambda: orders().event_time("at", lateness="1 second", max_ahead="-1 day"),
            "max_ahead must be more than zero",
        ),
        (lambda: orders().exchange("random"), "exchange takes a strategy, not 'random'"),
        (lambda: orders().parallel(0), "a whole number of tasks above zero, not 0"),
        (lambda: orders().parallel(True), "not True"),
        (lambda: orders().key_by("ip").parallel(1.5), "not 1.5"),
        (lambda: orders().key_by(), "key_by takes the names of columns"),
        (lambda: orders().key_by(lambda row: row.ip), "key_by takes the names of columns"),
        (lambda: orders().key_by("ip").rolling(), "rolling takes at least one aggregate"),
        (lambda: orders().key_by("ip").rolling(total=sum), "rolling takes at least one aggregate"),
        (lambda: orders().window("1 minute"), "window takes a window, not '1 minute'"),
        (lambda: orders().window(windows.tumbling("1 minute")).aggregate(), "aggregate takes at least one aggregate"),
        (lambda: orders().late, "only the result of a window or a pattern has late events"),
        (lambda: orders().to("", MemorySink()), "an output needs a name, not ''"),
        (lambda: orders().to("out", print), "output 'out' has no sink to write to"),
        (lambda: orders().to("out", MemorySink(), guarantee="exactly-once"), "'exactly-once', which is no guarantee"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused_at_its_line(call: Callable[[], object], what: str) -> None:
    assert what in refusal(call).what


# Jobs


def job(*outputs: Any, **options: Any) -> Job:
    return Job("orders", *outputs, **{"guarantee": Guarantee.AT_LEAST_ONCE, **options})


def test_a_job_keeps_what_it_was_given_and_has_defaults_for_all_but_the_guarantee() -> None:
    output = orders().to("out", MemorySink())
    made = Job("orders-2.v_1", output, guarantee=Guarantee.EXACTLY_ONCE)
    assert (made.name, made.outputs, made.guarantee) == ("orders-2.v_1", (output,), Guarantee.EXACTLY_ONCE)
    assert (made.epoch, made.mode, made.tracking, made.dead_letters) == (
        timedelta(seconds=1),
        Mode.MICRO_BATCH,
        None,
        None,
    )
    with pytest.raises(BadJob, match=r"Job\(\.\.\.\) needs guarantee=") as refused:
        Job("orders", output)  # type: ignore[call-arg]
    assert "Guarantee.AT_LEAST_ONCE" in refused.value.fix


def test_a_job_is_frozen_and_knows_its_line() -> None:
    made, line = job(), job.__code__.co_firstlineno + 1
    assert str(made.origin) == f"{HERE}:{line}"
    with pytest.raises(FrozenInstanceError):
        made.name = "other"  # type: ignore[misc]


def test_the_epoch_of_a_job_may_be_text() -> None:
    assert job(epoch="500 milliseconds").epoch == timedelta(milliseconds=500)


@pytest.mark.parametrize("name", ["", "my job", "-x", "a/b", "ä", "x" * 201, None, 7])
def test_a_name_that_no_topic_or_directory_could_have_is_refused(name: Any) -> None:
    line = sys._getframe().f_lineno + 2
    with pytest.raises(BadJob) as refused:
        Job(name, guarantee=Guarantee.AT_LEAST_ONCE)
    assert refused.value.what == f"a job cannot be named {name!r}"
    assert refused.value.where == f"job {name!r}, declared at {HERE}:{line}"
    assert "letters, digits" in refused.value.fix


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"guarantee": "exactly-once"}, "declares no guarantee: 'exactly-once' is not one"),
        ({"guarantee": None}, "declares no guarantee: None is not one"),
        ({"guarantee": 4}, "declares no guarantee: 4 is not one"),
        ({"mode": "real-time"}, "mode= takes a Mode, not 'real-time'"),
        ({"epoch": "0 seconds"}, "epoch must be more than zero"),
        ({"epoch": 1}, "epoch is not a duration: 1"),
    ],
)
def test_a_job_that_declares_nonsense_is_refused_at_its_line(options: dict[str, Any], what: str) -> None:
    with pytest.raises(BadJob) as refused:
        job(**options)
    assert what in refused.value.what
    assert f"{HERE}:{job.__code__.co_firstlineno + 1}" in refused.value.where


def test_the_line_is_that_of_the_user_also_if_the_folder_is_called_like_the_package() -> None:
    import lockgate

    beside = str(Path(lockgate.__file__).parent) + "-jobs/orders.py"
    found: dict[str, Any] = {"orders": orders}
    exec(compile("step = orders().where('true').step", beside, "exec"), found)  # noqa: S102 - a file beside the package
    assert found["step"].origin.file == beside
