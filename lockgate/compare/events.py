"""The events of a comparison: a copy of what is in the job's own topics, or made up from the schemas of its sources.

Every run gets the same events in the same order, in partitions of the same number.
"""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from lockgate.dataflow.schema import Column, parse_ddl
from lockgate.errors import Refused
from lockgate.kafka.settings import is_java_only, read_settings
from lockgate.kafka.topics import existing_topics
from lockgate.lab.rig.feed import Event
from lockgate.proof.values import BEGAN, key_bytes, kind_of, maker
from lockgate.sources.kafka import KafkaSource

_STEP = timedelta(milliseconds=50)
_SILENCE_POLLS = 50
_FILL = "send some events to the topic, and leave --generate away"


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
    """What makes the values of a column that has no parts."""
    if kind_of(column) in ("ARRAY", "MAP", "STRUCT"):
        raise Refused(f"no values are made for column {column.name!r} of type {column.type}", where=where, fix=_FILL)
    return maker(column, where, _FILL)


def copy_events(sources: Sequence[KafkaSource], *, count: int) -> Events:
    """The first events of the job's own topics, as many of each as there are, up to `count` in all."""
    share = -(-count // len(sources))
    streams, partitions = [], {}
    for source in sources:
        events, partitions[source.topic] = _read(source, share)
        streams.append(events)
    # By their time, so that sources which are joined go on side by side.
    merged = tuple(heapq.merge(*streams, key=lambda event: event.timestamp_ms or 0))[:count]
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
