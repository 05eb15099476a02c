"""Look up topics, create them, and check them before a guarantee depends on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from lockgate.connectors.kafka.errorcodes import Code, name_of
from lockgate.connectors.kafka.rights import Operation, located
from lockgate.connectors.kafka.settings import read_settings
from lockgate.connectors.kafka.wire import OLDEST, Clock, Connection, TopicShape, Unanswered
from lockgate.errors import BadMachine, EpochFailed, Failed, Refused

_EXISTS = 36
_NO_LIMIT_MS = 10**14  # three thousand years; Kafka's default is 2**63 - 1
PATIENCE_SECONDS = 30.0

T = TypeVar("T")


@dataclass(frozen=True)
class TimeLimits:
    """How far the time of a record may be from the clock of the broker, in milliseconds; None for any."""

    ahead_ms: int | None = None
    behind_ms: int | None = None

    @classmethod
    def of(cls, configs: Mapping[str, str], prefix: str = "message.timestamp.") -> TimeLimits:
        """The limits in the settings of a topic; those of a broker have another prefix.

        >>> TimeLimits.of({"message.timestamp.after.max.ms": "3600000", "message.timestamp.type": "CreateTime"})
        TimeLimits(ahead_ms=3600000, behind_ms=None)
        """
        if configs.get(f"{prefix}type") == "LogAppendTime":
            return cls()  # the broker sets the time of every record
        either = configs.get(f"{prefix}difference.max.ms")  # before Kafka 4 one limit in both directions

        def limit(side: str) -> int | None:
            told = (configs.get(f"{prefix}{side}.max.ms"), either)
            return next((int(text) for text in told if text is not None and int(text) < _NO_LIMIT_MS), None)

        return cls(ahead_ms=limit("after"), behind_ms=limit("before"))


@dataclass(frozen=True)
class OutputTopic:
    """An output topic, with what a writer needs to know of it."""

    name: str
    partitions: int
    max_message_bytes: int
    id: str
    times: TimeLimits = TimeLimits()


def exists(
    servers: str, topic: str, *operations: Operation, where: str, client: Mapping[str, str] | None = None
) -> bool:
    """Does the topic exist? Denied if one of these operations is not allowed on it."""
    with _look(servers, client, where) as connection:
        return asked(lambda: connection.require_rights(topic, *operations), where)


def existing_topics(servers: str, *, where: str, client: Mapping[str, str] | None = None) -> frozenset[str]:
    """The names of all topics at these servers."""
    with _look(servers, client, where) as connection:
        return asked(connection.topic_names, where)


def create_topics(
    servers: str,
    topics: Sequence[str],
    *,
    partitions: int = -1,
    where: str,
    client: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Create the topics that do not exist, with the broker's own defaults, and return their names.

    Denied if the client may not write to one of them, or may not create it.
    """
    with _look(servers, client, where) as connection:
        missing = [topic for topic in topics if not require_writable(connection, topic, where)]
        for topic in missing:
            make_topic(connection, topic, partitions=partitions, where=where)
    return tuple(missing)


def delete_topics(servers: str, topics: Iterable[str], *, where: str) -> None:
    """Delete those of the topics that exist."""
    with _look(servers, None, where) as connection:
        asked(lambda: connection.delete_topics(connection.topic_names() & set(topics)), where)


def delete_ours(servers: str, prefix: str, *, where: str) -> None:
    """Delete the topics whose names have this prefix, and the ledgers of jobs with such names."""
    ours = [name for name in existing_topics(servers, where=where) if name.startswith((prefix, f"lockgate.{prefix}"))]
    if ours:
        delete_topics(servers, ours, where=where)


def make_topic(
    connection: Connection,
    name: str,
    *,
    partitions: int = -1,
    replication: int = -1,
    configs: Mapping[str, str] | None = None,
    where: str,
) -> TopicShape:
    """Create a topic, and wait until all its partitions have a leader."""

    def create() -> int:
        return connection.create_topic(name, partitions=partitions, replication=replication, configs=configs)

    code = asked(create, where)
    if code not in (Code.NONE, _EXISTS):  # another client may create it at the same moment
        raise Refused(
            f"topic {name!r} cannot be created: {name_of(code)}",
            where=where,
            fix="create it yourself, or give this client the right to create it",
        )
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        shape = asked(lambda: connection.shapes([name], is_fresh=True), where).get(name)
        if shape is not None and min(shape.leaders) >= 0:
            return shape
        time.sleep(0.02)
    raise Failed(
        f"topic {name!r} was created, but its partitions have no leader",
        where=where,
        fix="look at the brokers: one of them may be down",
    )


def describe_outputs(connection: Connection, topics: Sequence[str], *, where: str) -> dict[str, OutputTopic]:
    """Those of the topics that exist, with their partitions and the largest batch that they accept."""
    shapes = asked(lambda: connection.shapes(topics, is_fresh=True, needs=Operation.WRITE), where)
    configs = asked(lambda: connection.configs(topics=list(shapes)), where) if shapes else {}
    return {
        name: OutputTopic(
            name=name,
            partitions=shape.partitions,
            # If a broker does not report its limit, assume Kafka's default.
            max_message_bytes=int(configs.get(name, {}).get("max.message.bytes", 1_048_588)),
            id=shape.id,
            times=TimeLimits.of(configs.get(name, {})),
        )
        for name, shape in shapes.items()
    }


def refuse_old_broker(connection: Connection, *, where: str) -> None:
    """Refuse brokers that may append to a transaction that is over."""
    version = connection.broker_version
    if version < OLDEST:
        raise BadMachine(
            f"the Kafka brokers at {connection.settings.servers} are version {'.'.join(map(str, version))}; they do not"
            " verify that a partition belongs to the open transaction",
            where=where,
            fix="use Kafka 3.6 or newer, or declare Guarantee.AT_LEAST_ONCE",
        )


def transaction_timeout_ms(connection: Connection, *, where: str) -> int:
    """How long a transaction may stay open: the user's limit, else ten minutes or what the broker allows."""
    asked_for = connection.settings.transaction_timeout_ms
    told = asked(lambda: connection.configs(broker=True), where).get("", {})
    most = int(told.get("transaction.max.timeout.ms", 900_000))
    if asked_for is not None and asked_for > most:
        raise Refused(
            f"transaction.timeout.ms={asked_for} is more than the broker allows ({most})",
            where=where,
            fix="ask for less, or raise transaction.max.timeout.ms of the brokers",
        )
    return min(600_000, most) if asked_for is None else asked_for


def asked(ask: Callable[[], T], where: str, *, seconds: float = PATIENCE_SECONDS, clock: Clock = time) -> T:
    """The answer to a question to the cluster; retried for a while, because a question changes nothing."""
    deadline = clock.monotonic() + seconds
    while True:
        try:
            with located(where):
                return ask()
        except Unanswered as error:
            if clock.monotonic() > deadline:
                raise EpochFailed(
                    f"the Kafka brokers do not answer: {error}",
                    where=where,
                    fix="look at the brokers; when they are back, run it again: it continues where it stopped",
                ) from None
        clock.sleep(0.1)


def find_output(servers: str, topic: str, *, where: str, client: Mapping[str, str] | None = None) -> OutputTopic | None:
    """An output topic as it is now; None if it does not exist yet."""
    with _look(servers, client, where) as connection:
        return describe_outputs(connection, [topic], where=where).get(topic)


def find_time_limits(servers: str, topic: str, *, where: str, client: Mapping[str, str] | None = None) -> TimeLimits:
    """The limits of a topic for the time of a record; if it does not exist yet, the limits of a new one."""
    with _look(servers, client, where) as connection:
        found = describe_outputs(connection, [topic], where=where).get(topic)
        if found is not None:
            return found.times
        configs = asked(lambda: connection.configs(broker=True), where).get("", {})
        return TimeLimits.of(configs, "log.message.timestamp.")


def require_writable(connection: Connection, topic: str, where: str) -> bool:
    """Raise Denied if a topic may not be written; does it exist?"""
    return asked(lambda: connection.require_rights(topic, Operation.WRITE), where)


@contextmanager
def _look(servers: str, client: Mapping[str, str] | None, where: str) -> Iterator[Connection]:
    connection = Connection(read_settings(servers, client or {}, where=where, is_lookup=True), where=where)
    try:
        yield connection
    finally:
        connection.close()
