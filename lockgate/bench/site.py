"""Where it is measured: a Kafka, the topics that were made there, and whoever is told about it.

A topic is noted before it is made, and never forgotten. So however a measurement ends, what it made is known, and taken
away; also a topic that came back: Spark keeps its producers for a while, and one of them that looks its topic up after
it was deleted makes the broker create it anew.
"""

from __future__ import annotations

from collections.abc import Callable

from lockgate.bench.counting import GoOn, count_committed
from lockgate.bench.settings import WHERE, Settings
from lockgate.errors import Failed
from lockgate.kafka.settings import read_settings
from lockgate.kafka.topics import make_topic
from lockgate.kafka.wire import Connection, Unanswered, disconnect_all

Tell = Callable[[str], None]


class Site:
    """One measurement's own part of a Kafka: everything made there carries its name."""

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
        """Take away what was made."""
        self.delete(*self._made)
        self.connection.close()
        disconnect_all()

    def make(self, topic: str, partitions: int) -> None:
        """Make a topic that is deleted at the end."""
        self.note(topic)
        make_topic(self.connection, topic, partitions=partitions, where=WHERE)

    def note(self, topic: str) -> None:
        """Have a topic deleted at the end that somebody else will make."""
        self._made.append(topic)

    def delete(self, *topics: str) -> None:
        """Delete those of the topics that are there; what cannot be deleted is told."""
        try:
            self.connection.delete_topics(self.connection.topic_names() & set(topics))
        except Unanswered as error:
            self.tell(f"not deleted: {', '.join(topics)} ({error})")

    def count(self, topic: str) -> int:
        """The committed records of a topic, read back by nobody who wrote them."""
        shape = self.connection.shapes([topic], is_fresh=True)[topic]
        return sum(
            count_committed(self.connection, (topic, number), leader=leader, go_on=self.go_on)
            for number, leader in enumerate(shape.leaders)
        )

    def require(self, topic: str, expected: int) -> None:
        """Stop if a topic holds anything but what was sent."""
        there = self.count(topic)
        if there != expected:
            raise Failed(
                f"{expected:,} events were sent, but topic {topic!r} holds {there:,}",
                where=f"Kafka at {self.servers}",
                fix="see the broker's log, then run it again",
            )
