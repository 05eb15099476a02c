"""A call with wrong arguments is an error of the job: it names the user's line and shows a right call."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockgate import (
    FileSource,
    FileTable,
    Guarantee,
    Job,
    KafkaSink,
    KafkaSource,
    MemorySink,
    PostgresSink,
    Stream,
    WindowedStream,
    acks,
    stream,
    table,
    windows,
)
from lockgate.errors import BadJob

HERE = Path(__file__).name


def orders() -> Stream:
    return stream("orders", KafkaSource(topic="orders", servers="h:1", value="id BIGINT, cents BIGINT, at TIMESTAMP"))


def windowed() -> WindowedStream:
    return orders().key_by("id").window(windows.tumbling("1 minute"))


def build(called: Any, *given: Any, **named: Any) -> Callable[[], Any]:
    return lambda: called(*given, **named)


@pytest.mark.parametrize(
    ("call", "what", "fix"),
    [
        (
            build(KafkaSource, "orders", "h:1", "id BIGINT"),
            "KafkaSource(...) takes its arguments by name, but has 3 without",
            "KafkaSource(topic=",
        ),
        (build(KafkaSource, topic="orders", value="id BIGINT"), "KafkaSource(...) needs servers=", "servers="),
        (build(KafkaSource, topic="orders"), "KafkaSource(...) needs servers= and value=", "servers="),
        (
            build(KafkaSource, topic="orders", server="h:1", value="id BIGINT"),
            "KafkaSource(...) has no argument server=; the nearest is servers=",
            "servers=",
        ),
        (build(KafkaSink, "counts", servers="h:1"), "KafkaSink(...) takes its arguments by name", "KafkaSink(topic="),
        (build(PostgresSink, table="t", url="x"), "PostgresSink(...) has no argument url=", "dsn="),
        (build(FileSource, "d", "id INT", path="e"), "FileSource(...) has path twice, by place and by name", "path="),
        (build(FileTable, "d"), "FileTable(...) takes its arguments by name", "FileTable(path="),
        (lambda: windowed().aggregate("count(*)"), "aggregate(...) takes its arguments by name", 'requests="count(*)"'),  # type: ignore[call-arg]
        (lambda: orders().key_by("id").rolling("sum(cents)"), "rolling(...) takes its arguments by name", "total="),
        (lambda: orders().split("cents > 10"), "split(...) takes its arguments by name", "small="),  # type: ignore[call-arg]
        (lambda: orders().event_time("at", "10s"), "event_time(...) takes 1 without a name (column), but", "lateness="),
        (lambda: orders().event_time("at"), "event_time(...) needs lateness=", "lateness="),  # type: ignore[call-arg]
        (build(windows.sliding, "1h", "5m"), "sliding(...) takes 1 without a name (size), but has 2", "every="),
        (build(windows.session, "5m"), "session(...) takes its arguments by name", "gap="),
        (build(acks, 3), "acks(...) takes its arguments by name", "max_attempts="),
        (
            build(table, "customers", None, "1m"),
            "table(...) takes 2 without a name (name, rows), but has 3",
            "refresh=",
        ),
        (build(Job, "orders"), "Job(...) needs guarantee=", "Guarantee.AT_LEAST_ONCE"),
        (
            build(Job, "orders", garantee=Guarantee.AT_LEAST_ONCE),
            "Job(...) has no argument garantee=; the nearest is guarantee=",
            "Guarantee.AT_LEAST_ONCE",
        ),
    ],
)
def test_a_wrong_call_says_what_is_wrong_where_and_how_to_write_it(
    call: Callable[[], Any], what: str, fix: str
) -> None:
    with pytest.raises(BadJob) as refused:
        call()
    assert refused.value.what.startswith(what)
    assert HERE in refused.value.where
    assert fix in refused.value.fix


def test_no_value_is_shown_because_it_can_be_a_password() -> None:
    with pytest.raises(BadJob) as refused:
        PostgresSink("counts", "postgresql://me:hunter2@h/db")  # type: ignore[misc]
    assert "hunter2" not in str(refused.value)


def test_a_right_call_is_not_touched() -> None:
    source = KafkaSource(topic="orders", servers="h:1", value="id BIGINT")
    assert (source.topic, source.key, source.format) == ("orders", None, "json")
    made = Job("orders", orders().to("out", MemorySink()), guarantee=Guarantee.AT_LEAST_ONCE)
    assert made.name == "orders"
