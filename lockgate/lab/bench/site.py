"""The site of a measurement: a Kafka, the topics that were created there, and the reports.

A topic is noted before it is created, and never forgotten. So however a measurement ends, its topics are known and
deleted, also a topic that returned: Spark keeps its producers for a while, and a producer that looks up its deleted
topic makes the broker create it again.
"""

from __future__ import annotations

from collections.abc import Callable

from lockgate.connectors.kafka.settings import read_settings
from lockgate.connectors.kafka.topics import make_topic
from lockgate.connectors.kafka.wire import Connection, Unanswered, disconnect_all
from lockgate.errors import Failed
from lockgate.lab.bench.counting import GoOn, count_committed
from lockgate.lab.bench.settings import WHERE, Settings

Tell = Callable[[str], None]


class Site:
    """One measurement's own part of a Kafka: everything created there has its name."""

    def __init__(self, settings: Settings, *, servers: str, name: str, tell: Tell, go_on: GoOn) -> None:
        self.settings = settings
        self.servers = servers
        self.name = name
        self.tell = tell
        self.go_on = go_on
        client = {"compression.type": settings.codec}
        self.connection = Connection(read_settings(servers, client, where=WHERE), where=WHERE)
        self._made: list[str] = []

    def close(self) -> None:
        """Delete what was created."""
        self.delete(*self._made)
        self.connection.close()
        disconnect_all()

    def make(self, topic: str, partitions: int) -> None:
        """Create a topic that is deleted at the end."""
        self.note(topic)
        make_topic(self.connection, topic, partitions=partitions, where=WHERE)

    def note(self, topic: str) -> None:
        """Note a topic that a job will create, to delete it at the end."""
        self._made.append(topic)

    def delete(self, *topics: str) -> None:
        """Delete the existing topics; report those that cannot be deleted."""
        try:
            self.connection.delete_topics(self.connection.topic_names() & set(topics))
        except Unanswered as error:
            self.tell(f"not deleted: {', '.join(topics)} ({error})")

    def count(self, topic: str) -> int:
        """The number of committed records of a topic, counted independently of their writers."""
        shape = self.connection.shapes([topic], is_fresh=True)[topic]
        return sum(
            count_committed(self.connection, (topic, number), leader=leader, go_on=self.go_on)
            for number, leader in enumerate(shape.leaders)
        )

    def require(self, topic: str, expected: int) -> None:
        """Stop if a topic holds anything except what was sent."""
        there = self.count(topic)
        if there != expected:
            raise Failed(
                f"{expected:,} events were sent, but topic {topic!r} holds {there:,}",
                where=f"Kafka at {self.servers}",
                fix="see the broker's log, then run it again",
            )
