"""A reader in a process of its own: every record that it is given, one line of JSON each, until it is told to end.

    kill_reader.py SERVERS ISOLATION FILE TOPIC...

It knows nothing of Lockgate. It remembers its own positions, so a broker that dies and comes back costs it nothing.
"""

import json
import signal
import sys
from pathlib import Path
from typing import Any

from kafka.errors import KafkaError

from kafka import KafkaConsumer, TopicPartition


def open_consumer(servers: str, topics: list[str], *, isolation: str) -> tuple[Any, list[TopicPartition]]:
    """A consumer of all partitions of these topics, from their beginning, without a group."""
    consumer = KafkaConsumer(
        bootstrap_servers=servers,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",  # a position that is gone would be an error, not a new start
        isolation_level=isolation,
        fetch_max_wait_ms=100,
        metadata_max_age_ms=5_000,
    )
    places = [
        TopicPartition(topic, number)
        for topic in topics
        for number in sorted(consumer.partitions_for_topic(topic) or ())
    ]
    consumer.assign(places)
    return consumer, places


def as_line(record: Any) -> list[Any]:
    """A record as plain data: topic, partition, offset, key, value."""
    key = None if record.key is None else record.key.decode()
    return [record.topic, record.partition, record.offset, key, record.value.decode()]


def main() -> None:
    """Read until SIGTERM."""
    servers, isolation, file, *topics = sys.argv[1:]
    is_told_to_end = []
    signal.signal(signal.SIGTERM, lambda number, frame: is_told_to_end.append(number))
    positions: dict[TopicPartition, int] = {}
    with Path(file).open("a", encoding="utf-8") as lines:
        while not is_told_to_end:
            try:
                consumer, places = open_consumer(servers, topics, isolation=isolation)
                try:
                    for place in places:
                        consumer.seek(place, positions.get(place, 0))
                    while not is_told_to_end:
                        for place, records in consumer.poll(timeout_ms=200).items():
                            for record in records:
                                lines.write(json.dumps(as_line(record)) + "\n")
                                positions[place] = record.offset + 1
                        lines.flush()
                finally:
                    consumer.close()
            except KafkaError as error:
                print(f"again, after {type(error).__name__}: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
