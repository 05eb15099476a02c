"""What a job left in a broker or a database, as a file of its fixture, and back in another broker or database."""

import json
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import psycopg
from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from lockgate.connectors.kafka.ledgertopic import ledger_topic
from lockgate.lab.services.postgres import find_binaries
from support.records import make_topics, read, send


class Store(Protocol):
    """Where a job's rows and its ledger are."""

    def save(self, place: Path) -> None:
        """Write all that is there to the directory of the fixture."""

    def load(self, place: Path) -> None:
        """Bring it to another broker or database, which has nothing of it."""

    def rows(self) -> list[Any]:
        """The rows that a reader sees, in an order of their own."""


class Topics:
    """An output topic and the ledger of its job."""

    def __init__(self, address: str) -> None:
        self.servers, self.topic = address.rsplit("/", 1)
        self._topics = (self.topic, ledger_topic(self.topic))

    def save(self, place: Path) -> None:
        kept = {
            topic: [
                (one.partition, one.timestamp, *(part.hex() for part in (one.key, one.value)))
                for one in read(self.servers, topic)
            ]
            for topic in self._topics
        }
        (place / "topics.json").write_text(json.dumps(list(kept.values())))

    def load(self, place: Path) -> None:
        make_topics(self.servers, self.topic, partitions=1)
        # The settings without which a job refuses a ledger.
        kept = {"cleanup.policy": "compact", "unclean.leader.election.enable": "false"}
        with closing(KafkaAdminClient(bootstrap_servers=self.servers.split(","))) as admin:
            admin.create_topics([NewTopic(self._topics[1], 1, 1, topic_configs=kept)])
        for topic, records in zip(self._topics, json.loads((place / "topics.json").read_text()), strict=True):
            for partition, timestamp, key, value in records:
                said = send(
                    self.servers,
                    topic,
                    [bytes.fromhex(value)],
                    key=lambda _, key=key: bytes.fromhex(key),
                    partition=lambda _, partition=partition: partition,
                    timestamp_ms=lambda _, timestamp=timestamp: timestamp,
                )
                assert len(said) == 1

    def rows(self) -> list[Any]:
        return sorted((one.key.decode(), json.loads(one.value)["id"]) for one in read(self.servers, self.topic))


class Database:
    """A database with a table, the ledger and what goes with it."""

    def __init__(self, address: str) -> None:
        self.dsn = address

    def save(self, place: Path) -> None:
        words = ["--no-owner", "--inserts", "--restrict-key=fixture", f"--file={place / 'database.sql'}", self.dsn]
        subprocess.run([find_binaries() / "pg_dump", *words], check=True)

    def load(self, place: Path) -> None:
        # What only psql understands begins with a backslash.
        lines = (place / "database.sql").read_text().splitlines()
        with psycopg.connect(self.dsn) as connection:
            connection.execute("\n".join(line for line in lines if not line.startswith("\\")))

    def rows(self) -> list[Any]:
        with psycopg.connect(self.dsn) as connection:
            return sorted(map(tuple, connection.execute("SELECT k, id FROM compat").fetchall()))
