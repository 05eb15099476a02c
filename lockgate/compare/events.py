"""The events of a comparison: a copy of what is in the job's own topics, or made up from the schemas of its sources.

Every run gets the same events in the same order, in partitions of the same number.
"""

from __future__ import annotations

import heapq
import json
import random
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from lockgate.dataflow.schema import Column, parse_ddl
from lockgate.errors import Refused
from lockgate.kafka.settings import is_java_only, read_settings
from lockgate.kafka.topics import existing_topics
from lockgate.sources.kafka import KafkaSource

_BEGAN = datetime(2026, 1, 1, tzinfo=timezone.utc)
_STEP = timedelta(milliseconds=50)
_WORDS = 20
_SILENCE_POLLS = 50

_MAKERS: dict[str, Callable[[random.Random, int], Any]] = {
    "TINYINT": lambda rng, number: rng.randrange(100),
    "SMALLINT": lambda rng, number: rng.randrange(1000),
    "INT": lambda rng, number: rng.randrange(1000),
    "BIGINT": lambda rng, number: number,
    "FLOAT": lambda rng, number: rng.randrange(100_000) / 100,
    "DOUBLE": lambda rng, number: rng.randrange(100_000) / 100,
    "DECIMAL": lambda rng, number: rng.randrange(1000) / 100,
    "BOOLEAN": lambda rng, number: rng.random() < 0.5,
    "DATE": lambda rng, number: (_BEGAN + number * _STEP).date().isoformat(),
    "TIMESTAMP": lambda rng, number: (_BEGAN + number * _STEP).isoformat(timespec="milliseconds"),
    "TIMESTAMP_NTZ": lambda rng, number: (_BEGAN + number * _STEP).replace(tzinfo=None).isoformat(),
}


@dataclass(frozen=True)
class Event:
    """A record to be sent."""

    topic: str  # the author's
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int = 0


@dataclass(frozen=True)
class Events:
    """What is sent, and where it came from."""

    all: tuple[Event, ...]
    partitions: dict[str, int]  # of each topic of the author's
    origin: str  # for people


def make_events(sources: Sequence[KafkaSource], *, count: int, seed: int) -> Events:
    """Events made from the schemas: numbers and a few words by the seed, times 50 ms apart.

    A topic has one partition, so that their order, on which rolling results hang, is the same in every run.
    """
    rng = random.Random(seed)
    makers = [_maker(source) for source in sources]
    events = tuple(makers[number % len(makers)](rng, number) for number in range(count))
    return Events(events, {source.topic: 1 for source in sources}, f"made from the schema, seed {seed}")


def _maker(source: KafkaSource) -> Callable[[random.Random, int], Event]:
    where = f"source topic {source.topic!r}"
    if source.format != "json":
        raise Refused(
            f"events cannot be made for format={source.format!r}",
            where=where,
            fix="send some to the topic, and leave --generate away",
        )
    value = parse_ddl(source.value, where).columns
    key = () if source.key is None else parse_ddl(source.key, where).columns
    for column in (*value, *key):
        _kind(column, where)

    def make(rng: random.Random, number: int) -> Event:
        row = {column.name: _value(column, rng, number) for column in value}
        made = [_value(column, rng, number) for column in key]
        raw = None if not key else _key(made[0], key[0]) if len(key) == 1 else json.dumps(made).encode()
        at_ms = int((_BEGAN + number * _STEP).timestamp() * 1000)
        return Event(source.topic, 0, raw, json.dumps(row, separators=(",", ":")).encode(), timestamp_ms=at_ms)

    return make


def _kind(column: Column, where: str) -> str:
    kind = re.split(r"[(<\s]", (column.type or "").upper())[0]
    kind = {"INTEGER": "INT", "LONG": "BIGINT", "NUMERIC": "DECIMAL"}.get(kind, kind)
    if kind not in _MAKERS and kind not in ("STRING", "VARCHAR", "CHAR"):
        raise Refused(
            f"no values are made for column {column.name!r} of type {column.type}",
            where=where,
            fix="send some events to the topic, and leave --generate away",
        )
    return kind


def _value(column: Column, rng: random.Random, number: int) -> Any:
    make = _MAKERS.get(_kind(column, ""))
    return f"{column.name}-{rng.randrange(_WORDS):02}" if make is None else make(rng, number)


def _key(value: Any, column: Column) -> bytes:
    """The bytes of a key of one column, as KafkaSource reads them."""
    kind = _kind(column, "")
    return struct.pack(">i" if kind == "INT" else ">q", value) if kind in ("INT", "BIGINT") else str(value).encode()


def copy_events(sources: Sequence[KafkaSource], *, count: int) -> Events:
    """The first events of the job's own topics, as many of each as there are, up to `count` in all."""
    share = -(-count // len(sources))
    streams, partitions = [], {}
    for source in sources:
        events, partitions[source.topic] = _read(source, share)
        streams.append(events)
    # By their time, so that sources which are joined go on side by side.
    merged = tuple(heapq.merge(*streams, key=lambda event: event.timestamp_ms))[:count]
    return Events(merged, partitions, f"copied from {', '.join(repr(source.topic) for source in sources)}")


def _read(source: KafkaSource, count: int) -> tuple[list[Event], int]:
    from kafka import KafkaConsumer, TopicPartition

    where = f"topic {source.topic!r} at {source.servers}"
    fill = "send some events there, or have them made from its schema: --generate"
    if is_java_only(source.client):
        raise Refused("the settings of this source are for Java's client alone", where=where, fix="--generate")
    if source.topic not in existing_topics(source.servers, where=where, client=source.client):
        raise Refused("there is no such topic, so there are no events to compare with", where=where, fix=fill)
    arguments = read_settings(source.servers, source.client, where=where, is_lookup=True).client_arguments()
    for name in ("bootstrap_timeout_ms", "kafka_client"):
        arguments.pop(name)
    consumer = KafkaConsumer(**arguments, isolation_level="read_committed", enable_auto_commit=False)
    try:
        places = [
            TopicPartition(source.topic, number) for number in sorted(consumer.partitions_for_topic(source.topic))
        ]
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        ends = consumer.end_offsets(places)
        taken: dict[int, list[Event]] = {place.partition: [] for place in places}
        silent = 0
        while silent < _SILENCE_POLLS and any(
            len(taken[place.partition]) < count and consumer.position(place) < ends[place] for place in places
        ):
            batches = consumer.poll(timeout_ms=200)
            silent = 0 if batches else silent + 1
            for record in (record for records in batches.values() for record in records):
                taken[record.partition].append(_copied(record))
    finally:
        consumer.close()
    found = list(_fairly(list(taken.values())))[:count]
    if not found:
        raise Refused("the topic is empty, so there are no events to compare with", where=where, fix=fill)
    return found, len(places)


def _copied(record: Any) -> Event:
    return Event(
        topic=record.topic,
        partition=record.partition,
        key=record.key,
        value=record.value,
        headers=tuple(record.headers or ()),
        timestamp_ms=record.timestamp,
    )


def _fairly(partitions: Sequence[Sequence[Event]]) -> Iterator[Event]:
    """The first of each partition, then the second of each: no partition is left out where only some are taken."""
    for number in range(max(map(len, partitions), default=0)):
        yield from (events[number] for events in partitions if number < len(events))
