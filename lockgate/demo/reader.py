"""Whoever verifies does not believe the job: a process of its own reads every committed record and counts.

It reads along while the job runs and its processes are killed, as a customer's program would; when the job is done, it
is told so by the end of its standard input, reads on to the end of the topic, and prints what it has counted.

    lost          a payment that must arrive and did not
    duplicated    a copy beyond the first
    foreign       a record that no payment explains: damaged, or one that the job had to leave out

It shares nothing with the writers: it reads with the client library's own consumer, apart from Spark and from our
encoder, and what must arrive it computes itself.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lockgate.demo.payments import Payments
from lockgate.errors import Failed, LockgateError

_SILENCE_SECONDS = 60.0
_LOOK_SECONDS = 0.3
_EXAMPLES = 5
_PREFIX = b'{"id":'


@dataclass(frozen=True)
class Tally:
    """What must have arrived, compared with what did."""

    expected_count: int
    delivered_count: int
    lost_count: int
    duplicated_count: int
    foreign_count: int
    expected_cents: int
    delivered_cents: int  # of every copy: what somebody would book who believes the topic
    examples: tuple[str, ...]  # the first few of what is wrong

    @property
    def is_exact(self) -> bool:
        """Is every expected payment there once, and nothing else?"""
        return not (self.lost_count or self.duplicated_count or self.foreign_count)


def count_delivered(values: Iterable[bytes], payments: Payments) -> Tally:
    """Compare delivered records with what must come of the payments."""
    seen = bytearray(payments.count)
    delivered = duplicated = foreign = delivered_cents = 0
    examples: list[str] = []

    def note(example: str) -> None:
        if len(examples) < _EXAMPLES:
            examples.append(example)

    for value in values:
        delivered += 1
        id = _recognise(value, payments)
        if id is None:
            foreign += 1
            note(f"foreign: {value[:200]!r}")
            continue
        delivered_cents += payments.cents(id)
        if seen[id]:
            duplicated += 1
            note(f"duplicated: {value.decode()}")
        seen[id] = 1
    expected = lost = expected_cents = 0
    for id in payments.expected():
        expected += 1
        expected_cents += payments.cents(id)
        if not seen[id]:
            lost += 1
            note(f"lost: {payments.written(id).decode()}")
    return Tally(
        expected_count=expected,
        delivered_count=delivered,
        lost_count=lost,
        duplicated_count=duplicated,
        foreign_count=foreign,
        expected_cents=expected_cents,
        delivered_cents=delivered_cents,
        examples=tuple(examples),
    )


def _recognise(value: bytes, payments: Payments) -> int | None:
    # Nearly every record has the very bytes that we expect, and comparing bytes is five times as fast as JSON.
    if value.startswith(_PREFIX):
        digits = value[len(_PREFIX) : value.find(b",")]
        id = int(digits) if digits.isdigit() and len(digits) < 19 else payments.count
        if id < payments.count and payments.is_large(id) and value == payments.written(id):
            return id
    return payments.recognise(value)


def read_values(servers: str, topic: str, *, is_complete: Callable[[], bool]) -> Iterator[bytes]:
    """The committed values of a topic as they come, up to its end when it is complete; read without Spark."""
    return (record.value for record in read_records(servers, [topic], is_complete=is_complete))


def read_records(servers: str, topics: Sequence[str], *, is_complete: Callable[[], bool]) -> Iterator[Any]:
    """The committed records of topics as they come, up to their end when they are complete; read without Spark."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=servers.split(","),
        isolation_level="read_committed",
        auto_offset_reset="none",
        enable_auto_commit=False,
        max_poll_records=10_000,
        max_partition_fetch_bytes=8 << 20,
    )
    try:
        partitions = [
            TopicPartition(topic, number)
            for topic in topics
            for number in sorted(consumer.partitions_for_topic(topic) or ())
        ]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends: dict[TopicPartition, int] = {}
        heard = time.monotonic()
        while not ends or any(consumer.position(partition) < ends[partition] for partition in partitions):
            if not ends and is_complete():
                ends, heard = consumer.end_offsets(partitions), time.monotonic()
            # While the job runs, now and then is enough, and leaves the cores to the job: a wait inside of `poll` spins
            # as long as a transaction is open.
            batches = consumer.poll(timeout_ms=200 if ends else 0)
            if not batches and not ends:
                time.sleep(_LOOK_SECONDS)
            for records in batches.values():
                yield from records
            now = time.monotonic()
            heard = now if batches else heard
            if ends and now - heard > _SILENCE_SECONDS:
                raise Failed(
                    f"Topic {', '.join(map(repr, topics))} cannot be read to its end: nothing came for"
                    f" {_SILENCE_SECONDS:.0f} s.",
                    where=f"Kafka at {servers}",
                    fix="see the broker's log (lockgate status names it), then run it again",
                )
    finally:
        consumer.close()


def _main(servers: str, topic: str, count: str, seed: str) -> int:
    """Print the tally of a topic as JSON, once standard input has ended."""
    is_complete = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        is_complete.set()

    threading.Thread(target=wait, name="lockgate-demo-end", daemon=True).start()
    values = read_values(servers, topic, is_complete=is_complete.is_set)
    try:
        tally = count_delivered(values, Payments(count=int(count), seed=int(seed)))
    except LockgateError as failure:
        print(failure, file=sys.stderr)
        return 1
    print(json.dumps(asdict(tally)))
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
