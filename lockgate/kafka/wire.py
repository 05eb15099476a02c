"""The one door to the Kafka client library: topics are looked up and made here.

The library is an extra. It is imported where it is first used, and a missing one is reported with its cure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lockgate.errors import BadJob, BadMachine, Refused

if TYPE_CHECKING:
    from kafka import KafkaAdminClient


def name_topic(servers: str, topic: str) -> frozenset[tuple[str, str]]:
    """The topic at each of its servers, so that two lists of servers with one in common name the same topic."""
    hosts = (server.strip().lower().replace("localhost:", "127.0.0.1:") for server in servers.split(","))
    return frozenset((host, f"topic {topic!r}") for host in hosts)


def refuse_settings(client: Mapping[str, str], taken: Collection[str], where: str) -> None:
    """Refuse settings of the client that a guarantee hangs on."""
    for name in client:
        if name.removeprefix("kafka.") in taken:
            raise BadJob(
                f"the client's setting {name!r} is not the author's to make: the guarantee hangs on it",
                where=where,
                fix=f"leave it away; also taken are {', '.join(sorted(taken))}",
            )


def existing_topics(servers: str, *, where: str) -> frozenset[str]:
    """The names of all topics at these servers."""
    with _admin(servers, where) as admin:
        return _names(admin)


def create_topics(servers: str, topics: Sequence[str], *, partitions: int = -1, where: str) -> tuple[str, ...]:
    """Make the topics that do not exist, with the broker's own defaults, and say which they were."""
    from kafka.admin import NewTopic
    from kafka.errors import TopicAlreadyExistsError

    with _admin(servers, where) as admin:
        existing = _names(admin)
        missing = [topic for topic in topics if topic not in existing]
        for topic in missing:
            # Somebody else may make it at the same moment, and then it is there too.
            try:
                admin.create_topics([NewTopic(name=topic, num_partitions=partitions)], wait_for_metadata=True)
            except TopicAlreadyExistsError:
                continue
    return tuple(missing)


def _names(admin: KafkaAdminClient) -> frozenset[str]:
    return frozenset(topic["name"] if isinstance(topic, dict) else topic for topic in admin.list_topics())


@contextmanager
def _admin(servers: str, where: str) -> Iterator[KafkaAdminClient]:
    try:
        from kafka import KafkaAdminClient
        from kafka.errors import KafkaError
    except ImportError:
        raise BadMachine(
            "the Kafka client library is not installed", where=where, fix="pip install 'lockgate[kafka]'"
        ) from None
    try:
        admin = KafkaAdminClient(bootstrap_servers=servers.split(","), bootstrap_timeout_ms=10_000)
    except (KafkaError, OSError, ValueError) as error:
        raise Refused(
            f"no Kafka broker answers at {servers} ({type(error).__name__})",
            where=where,
            fix="check the address and that the broker is up; `lockgate up` starts one, `lockgate status` names it",
        ) from None
    try:
        yield admin
    finally:
        admin.close()
