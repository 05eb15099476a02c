"""The output of jobs that count payments by card, as an independent reader sees it."""

import json

from kafka import KafkaConsumer, TopicPartition


def read_counts(servers: str, topic: str) -> dict[str, list[int]]:
    """What a read_committed reader sees of a topic of two partitions: the counts of each card in their order."""
    consumer = KafkaConsumer(bootstrap_servers=servers, isolation_level="read_committed", enable_auto_commit=False)
    places = [TopicPartition(topic, number) for number in range(2)]
    consumer.assign(places)
    consumer.seek_to_beginning()
    ends = consumer.end_offsets(places)
    found: dict[str, list[int]] = {}
    while any(consumer.position(place) < ends[place] for place in places):
        for records in consumer.poll(timeout_ms=1000).values():
            for record in records:
                row = json.loads(record.value)
                found.setdefault(row["card"], []).append(row["payments"])
    consumer.close()
    return found
