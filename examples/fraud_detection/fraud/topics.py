"""The topics of the show: created with the broker's clock, and read to their end by an independent reader."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fraud.measured import Given
from lockgate.connectors.kafka.settings import read_settings
from lockgate.connectors.kafka.topics import make_topic
from lockgate.connectors.kafka.wire import Connection
from lockgate.errors import Failed

ANALYSERS = ("amount", "velocity", "place", "blacklist")
_WHERE = "the topics of the show"
_PATIENCE_SECONDS = 60.0
_AT_ONCE = 5_000


@dataclass(frozen=True)
class Topics:
    """The names of a show's topics; the job file makes the same names from its `prefix`."""

    servers: str
    prefix: str

    @property
    def payments(self) -> str:
        """The topic of payments."""
        return f"{self.prefix}payments"

    @property
    def scores(self) -> dict[str, str]:
        """The topic of each analyser."""
        return {analyser: f"{self.prefix}scores-{analyser}" for analyser in ANALYSERS}

    @property
    def results(self) -> str:
        """The topic of the presenter's answers."""
        return f"{self.prefix}results"

    @property
    def table(self) -> str:
        """The table of the exactly-once job: payments with their scores."""
        return f"{self.prefix}results".replace("-", "_")

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return (self.payments, *self.scores.values(), self.results)

    def make(self, partitions: int) -> None:
        """Create them; the broker sets the timestamps of records, so that all times use one clock."""
        connection = Connection(read_settings(self.servers, {}, where=_WHERE), where=_WHERE)
        try:
            for name in self.names:
                stamped = {"message.timestamp.type": "LogAppendTime"}
                make_topic(connection, name, partitions=partitions, configs=stamped, where=_WHERE)
        finally:
            connection.close()

    def counts(self, names: Sequence[str]) -> dict[str, int]:
        """How many records topics have received; none is removed during a show."""
        from confluent_kafka import Consumer

        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "lockgate-show"})
        try:
            return {name: sum(end for _, end in _ends(consumer, name)) for name in names}
        finally:
            consumer.close()

    def newest(self, topic: str) -> datetime | None:
        """The payment's time in the newest record of a topic."""
        found = [datetime.fromisoformat(value["at"]) for value, _ in self.read(topic, last=1)]
        return max(found, default=None)

    def arrivals(self) -> dict[str, int]:
        """When each payment arrived."""
        return {value["id"]: at for value, at in self.read(self.payments)}

    def first_scores(self, analyser: str) -> dict[str, int]:
        """When the first score of each payment arrived."""
        found: dict[str, int] = {}
        for value, at in self.read(self.scores[analyser]):
            found.setdefault(value["id"], at)
        return found

    def answers(self) -> dict[str, list[Given]]:
        """The answers for each payment, in their order."""
        found: dict[str, list[Given]] = {}
        for value, at in self.read(self.results):
            found.setdefault(value["id"], []).append(Given(at, value["is_partial"], tuple(value["missing"])))
        return found

    def read(self, topic: str, last: int | None = None) -> Iterator[tuple[dict[str, Any], int]]:
        """Every record up to the current end of the topic, with its timestamp; or the last ones of each partition."""
        from confluent_kafka import Consumer, TopicPartition

        settings = {"bootstrap.servers": self.servers, "group.id": "lockgate-show", "isolation.level": "read_committed"}
        consumer = Consumer(settings)
        try:
            ends = dict(_ends(consumer, topic))
            begin = {partition: 0 if last is None else max(0, end - last) for partition, end in ends.items()}
            consumer.assign([TopicPartition(topic, partition, offset) for partition, offset in begin.items()])
            left = {partition for partition, end in ends.items() if end}
            while left:
                messages = consumer.consume(num_messages=_AT_ONCE, timeout=0.2)
                for message in messages:
                    partition, offset = message.partition(), message.offset()
                    if message.error() is not None or partition is None or offset is None:
                        raise Failed(
                            f"topic {topic!r} cannot be read: {message.error()}",
                            where=_WHERE,
                            fix="look at the broker, and run the show again",
                        )
                    if offset < ends[partition]:
                        yield json.loads(message.value() or b""), message.timestamp()[1]
                    if offset + 1 >= ends[partition]:
                        left.discard(partition)
        finally:
            consumer.close()


def _ends(consumer: Any, topic: str) -> Iterator[tuple[int, int]]:
    from confluent_kafka import TopicPartition

    for partition in consumer.list_topics(topic, timeout=_PATIENCE_SECONDS).topics[topic].partitions:
        yield partition, consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_PATIENCE_SECONDS)[1]
