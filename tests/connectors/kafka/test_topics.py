"""Topics are looked up, made and checked, and never made by looking."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from lockgate.connectors.kafka.settings import ClientSettings
from lockgate.connectors.kafka.topics import (
    OutputTopic,
    TimeLimits,
    asked,
    create_topics,
    describe_outputs,
    existing_topics,
    make_topic,
    refuse_old_broker,
    transaction_timeout_ms,
)
from lockgate.connectors.kafka.wire import Connection, Unanswered
from lockgate.errors import BadMachine, Failed, Refused
from support.refusals import require_accepted


def told(version: tuple[int, ...] = (4, 3), wanted: int | None = None, **broker: str) -> Any:
    settings = replace(ClientSettings("host:9092"), transaction_timeout_ms=wanted)
    return SimpleNamespace(broker_version=version, settings=settings, configs=lambda **_: {"": broker})


@pytest.mark.parametrize("version", [(3, 6), (3, 9, 1), (4, 0), (4, 3)])
def test_brokers_that_verify_partitions_are_taken(version: tuple[int, ...]) -> None:
    require_accepted(refuse_old_broker, told(version), where="here")


@pytest.mark.parametrize("version", [(), (0, 11), (2, 8), (3, 5), (3, 5, 2)])
def test_older_brokers_are_refused_with_what_to_do(version: tuple[int, ...]) -> None:
    with pytest.raises(BadMachine, match="do not verify") as caught:
        refuse_old_broker(told(version), where="here")
    assert "Kafka 3.6 or newer" in caught.value.fix
    assert "AT_LEAST_ONCE" in caught.value.fix


@pytest.mark.parametrize(
    ("wanted", "most", "expected"),
    [(None, "900000", 600_000), (None, "60000", 60_000), (None, None, 600_000), (5000, "900000", 5000)],
)
def test_a_transaction_may_stay_open_for_ten_minutes_or_what_is_allowed_or_asked_for(
    wanted: int | None, most: str | None, expected: int
) -> None:
    broker = {} if most is None else {"transaction.max.timeout.ms": most}
    assert transaction_timeout_ms(told(wanted=wanted, **broker), where="here") == expected


def test_limits_of_times_are_those_that_the_broker_goes_by() -> None:
    none, kind = str(2**63 - 1), "message.timestamp.type"
    both = {"message.timestamp.after.max.ms": "1000", "message.timestamp.before.max.ms": "2000"}
    assert TimeLimits.of({**both, kind: "CreateTime"}) == TimeLimits(ahead_ms=1000, behind_ms=2000)
    assert TimeLimits.of({**both, kind: "LogAppendTime"}) == TimeLimits()  # the broker sets the times itself
    assert TimeLimits.of(dict.fromkeys(both, none)) == TimeLimits() == TimeLimits.of({})
    older = {**dict.fromkeys(both, none), "message.timestamp.difference.max.ms": "3000"}
    assert TimeLimits.of(older) == TimeLimits(ahead_ms=3000, behind_ms=3000)


def test_a_longer_time_out_than_the_broker_allows_is_refused() -> None:
    with pytest.raises(Refused, match=r"transaction.timeout.ms=70000 is more than the broker allows \(60000\)"):
        transaction_timeout_ms(told(wanted=70_000, **{"transaction.max.timeout.ms": "60000"}), where="here")


def test_a_look_is_repeated_for_a_while_and_then_reported() -> None:
    answers = [Unanswered("dead"), Unanswered("dead"), "here"]

    def ask() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Unanswered):
            raise answer
        return answer

    assert asked(ask, "there") == "here"
    answers += [Unanswered("dead")] * 100
    with pytest.raises(Failed, match="do not answer: dead"):
        asked(ask, "there", seconds=0.2)


@pytest.fixture
def name() -> str:
    return f"topic-{uuid4().hex[:8]}"


@pytest.mark.system
def test_topics_that_are_missing_are_made_and_named(kafka: str, name: str) -> None:
    wanted = [name, f"{name}-b"]
    assert create_topics(kafka, wanted[:1], where="test") == (name,)
    assert create_topics(kafka, wanted, partitions=7, where="test") == (f"{name}-b",)
    assert create_topics(kafka, wanted, where="test") == ()
    assert set(wanted) <= existing_topics(kafka, where="test")


@pytest.mark.system
def test_looking_at_a_topic_does_not_make_it(connection: Connection, kafka: str, name: str) -> None:
    """The broker of the tests makes topics for whoever does not say that he wants none."""
    assert connection.configs(broker=True)[""]["auto.create.topics.enable"] == "true"
    assert describe_outputs(connection, [name], where="test") == {}
    assert connection.shapes([name], is_fresh=True) == {}
    assert name not in existing_topics(kafka, where="test")


@pytest.mark.system
def test_a_topic_is_described_as_a_writer_needs_it(connection: Connection, name: str) -> None:
    shape = make_topic(
        connection, name, partitions=3, replication=1, configs={"max.message.bytes": "5000"}, where="test"
    )
    assert (shape.partitions, shape.replication) == (3, 1)
    assert min(shape.leaders) >= 0
    assert describe_outputs(connection, [name, "no-such-topic"], where="test") == {
        name: OutputTopic(
            name=name, partitions=3, max_message_bytes=5000, id=shape.id, times=TimeLimits(ahead_ms=3_600_000)
        )
    }


@pytest.mark.system
def test_a_topic_that_another_process_made_first_is_taken_as_it_is(connection: Connection, name: str) -> None:
    make_topic(connection, name, partitions=2, where="test")
    assert make_topic(connection, name, partitions=5, where="test").partitions == 2


@pytest.mark.system
@pytest.mark.parametrize(
    ("bad", "how", "what"),
    [
        ("no/slashes", {}, "InvalidTopic"),
        ("too-many-replicas", {"replication": 9}, "InvalidReplicationFactor"),
        ("bad-config", {"configs": {"cleanup.policy": "hope"}}, "InvalidConfig"),
    ],
)
def test_a_topic_that_cannot_be_made_is_refused_with_kafkas_reason(
    bad: str, how: dict[str, Any], what: str, connection: Connection
) -> None:
    with pytest.raises(Refused, match=rf"topic '{bad}' cannot be created: {what}"):
        make_topic(connection, bad, where="test", **how)


@pytest.mark.system
def test_the_broker_says_its_version_and_how_long_a_transaction_may_last(connection: Connection) -> None:
    refuse_old_broker(connection, where="test")
    assert transaction_timeout_ms(connection, where="test") == 600_000
