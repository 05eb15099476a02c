"""The events of a comparison: copied from the job's own topics, or made from the schemas of its sources.

Every run gets the same events in the same order, in the same number of partitions.
"""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from lockgate.connectors.kafka.settings import is_java_only, read_settings
from lockgate.connectors.kafka.topics import existing_topics
from lockgate.dataflow.schema import Column, parse_ddl
from lockgate.errors import Refused
from lockgate.lab.compare.renamed import ReadTopic
from lockgate.lab.prove.values import BEGAN, key_bytes, kind_of, maker
from lockgate.lab.rig.feed import Event

_STEP = timedelta(milliseconds=50)
_SILENCE_POLLS = 50
_FILL = "send some events to the topic, and omit --generate"


@dataclass(frozen=True)
class Events:
    """The events to send, and their origin."""

    all: tuple[Event, ...]
    partitions: dict[str, int]  # of each topic of the user
    origin: str  # for people


def make_events(sources: Sequence[ReadTopic], *, count: int, seed: int) -> Events:
    """Make events from the schemas: numbers and a few words by the seed, times 50 ms apart.

    A topic has one partition, so that every run has the same order; rolling results depend on it.
    """
    rng = random.Random(seed)
    makers = [_maker(source) for source in sources]
    events = tuple(makers[number % len(makers)](rng, number) for number in range(count))
    return Events(events, {source.topic: 1 for source in sources}, f"made from the schema, seed {seed}")


def _maker(source: ReadTopic) -> Callable[[random.Random, int], Event]:
    where = f"source topic {source.topic!r}"
    if source.encoding.format != "json":
        raise Refused(
            f"events cannot be made for format={str(source.encoding.format)!r}",
            where=where,
            fix="send some to the topic, and omit --generate",
        )
    value = parse_ddl(source.encoding.value, where).columns
    key = () if source.encoding.key is None else parse_ddl(source.encoding.key, where).columns
    makers = {column.name: _plain(column, where) for column in (*key, *value)}

    def make(rng: random.Random, number: int) -> Event:
        at = BEGAN + number * _STEP
        row = {column.name: makers[column.name](rng, number, at) for column in value}
        made = [makers[column.name](rng, number, at) for column in key]
        raw = key_bytes(key, made) if key else None
        text = json.dumps(row, separators=(",", ":")).encode()
        return Event(source.topic, 0, raw, text, timestamp_ms=int(at.timestamp() * 1000))

    return make


def _plain(column: Column, where: str) -> Callable[[random.Random, int, datetime], Any]:
    """The function that makes the values of a column without parts."""
    if kind_of(column) in ("ARRAY", "MAP", "STRUCT"):
        raise Refused(f"no values are made for column {column.name!r} of type {column.type}", where=where, fix=_FILL)
    return maker(column, where, _FILL)


def copy_events(sources: Sequence[ReadTopic], *, count: int) -> Events:
    """The first events of the job's own topics, at most `count` in all."""
    share = -(-count // len(sources))
    streams, partitions = [], {}
    for source in sources:
        events, partitions[source.topic] = _read(source, share)
        streams.append(events)
    # By time, so that joined sources advance together.
    merged = tuple(heapq.merge(*streams, key=lambda event: event.timestamp_ms or 0))[:count]
    return Events(merged, partitions, f"copied from {', '.join(repr(source.topic) for source in sources)}")


def _read(source: ReadTopic, count: int) -> tuple[list[Event], int]:
    from kafka import KafkaConsumer, TopicPartition

    where = f"topic {source.topic!r} at {source.servers}"
    fill = "send some events there, or make them from its schema: --generate"
    if is_java_only(source.client):
        raise Refused("the settings of this source are for Java's client alone", where=where, fix="--generate")
    if source.topic not in existing_topics(source.servers, where=where, client=source.client):
        raise Refused("there is no such topic, so there are no events to compare with", where=where, fix=fill)
    arguments = read_settings(source.servers, source.client, where=where, is_lookup=True).client_arguments(where=where)
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
    """The first of each partition, then the second of each, so that a part has events of every partition."""
    for number in range(max(map(len, partitions), default=0)):
        yield from (events[number] for events in partitions if number < len(events))
