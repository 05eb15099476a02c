"""Records of Kafka topics, for tests: sent by one producer, read by a consumer that knows nothing of Lockgate."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from lockgate.connectors.kafka.topics import create_topics
from support.waiting import PATIENCE_SECONDS, Patience, wait_for


def unique(name: str) -> str:
    """A name that no other test has: for topics, jobs and tables."""
    return f"{name}-{uuid4().hex[:8]}"


def make_topics(servers: str, *names: str, partitions: int = 2) -> tuple[str, ...]:
    """Make topics; their names."""
    create_topics(servers, names, partitions=partitions, where="test")
    return names


def as_bytes(value: Any) -> bytes | None:
    """A value as it stands in a record: bytes and None as they are, text in UTF-8, everything else as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    text = value if isinstance(value, str) else json.dumps(value, default=lambda moment: moment.isoformat())
    return text.encode()


@contextmanager
def producing(servers: str, **settings: Any) -> Iterator[Any]:
    """A producer that is closed in the end."""
    producer = KafkaProducer(bootstrap_servers=servers.split(","), **settings)
    try:
        yield producer
    finally:
        producer.close(timeout=10)


def send(
    servers: str,
    topic: str,
    values: Iterable[Any],
    *,
    key: Callable[[Any], Any] = lambda value: None,
    partition: Callable[[Any], int | None] = lambda value: None,
    headers: Callable[[Any], list[tuple[str, bytes]]] = lambda value: [],
    timestamp_ms: Callable[[Any], int | None] = lambda value: None,
    as_one_batch: bool = False,
    **settings: Any,
) -> list[Any]:
    """Send values; each is in the topic when this returns. What the broker said of each of them.

    Args:
        as_one_batch: one request for all of them, so that one epoch takes all or none.
    """
    if as_one_batch:
        settings = {"linger_ms": 60_000, "batch_size": 1 << 20, **settings}
    with producing(servers, **{"acks": "all", **settings}) as producer:
        waiting = [
            producer.send(
                topic,
                as_bytes(value),
                key=as_bytes(key(value)),
                partition=partition(value),
                headers=headers(value),
                timestamp_ms=timestamp_ms(value),
            )
            for value in values
        ]
        producer.flush(timeout=PATIENCE_SECONDS)
        return [one.get(timeout=PATIENCE_SECONDS) for one in waiting]


@contextmanager
def consuming(
    servers: str, topics: Sequence[str], *, isolation: str = "read_committed", **settings: Any
) -> Iterator[tuple[Any, list[TopicPartition]]]:
    """A consumer at the beginning of all partitions of these topics, without a group, and the partitions."""
    consumer = KafkaConsumer(
        bootstrap_servers=servers.split(","),
        **{
            "group_id": None,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",  # a position that is gone would be an error, not a new start
            "isolation_level": isolation,
            "allow_auto_create_topics": False,
            **settings,
        },
    )
    try:
        # A broker tells of a new topic a while after it has made it.
        partitions = {
            topic: wait_for(f"topic {topic}", lambda topic=topic: consumer.partitions_for_topic(topic))
            for topic in topics
        }
        places = [TopicPartition(topic, number) for topic in topics for number in sorted(partitions[topic])]
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        yield consumer, places
    finally:
        consumer.close()


def read(
    servers: str, *topics: str, isolation: str = "read_committed", up_to: str = "end", **settings: Any
) -> list[Any]:
    """Every record of these topics, from the first to the end that is there now, in the order of each partition.

    Args:
        up_to: "end": of the log; if an open transaction hides something from this reader, that is a failure.
            "visible": what this reader can see now.
    """
    found: list[Any] = []
    ends: dict[TopicPartition, int] = {}
    if up_to == "end" and isolation != "read_uncommitted":
        with consuming(servers, topics, isolation="read_uncommitted", **settings) as (consumer, places):
            ends = consumer.end_offsets(places)
    with consuming(servers, topics, isolation=isolation, **settings) as (consumer, places):
        ends = ends or consumer.end_offsets(places)
        patience = Patience(f"the end of {', '.join(topics)}, where an open transaction may hide records")
        while any(consumer.position(place) < ends[place] for place in places):
            patience.check()
            for records in consumer.poll(timeout_ms=200).values():
                found += records
    return found


def read_json(servers: str, *topics: str, isolation: str = "read_committed") -> list[Any]:
    """The values of all records of topics as JSON tells them."""
    return [json.loads(record.value) for record in read(servers, *topics, isolation=isolation)]


def count_ids(servers: str, *topics: str, isolation: str = "read_committed") -> Counter[int]:
    """How often each `id` is there; records without a value are not counted."""
    found = read(servers, *topics, isolation=isolation)
    return Counter(json.loads(record.value)["id"] for record in found if record.value is not None)


def by_key(rows: Iterable[Mapping[str, Any]], key: str, column: str) -> dict[Any, list[Any]]:
    """One column of rows, by another one, in the order of the rows."""
    found: dict[Any, list[Any]] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row[column])
    return found
