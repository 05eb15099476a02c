"""Topics, read by the consumer of the client library: it shares nothing with Spark or with our encoder.

    along     reads committed records in a thread, while faults strike and until the job is over
    after     reads committed records from the first to the end; the log, everything that was ever written
    standing  the end of each partition: an open transaction holds back its last stable offset; and which runs wrote
              the ledger of the job, from its first record to the end

A history names a topic by its label, which is the same in all runs.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from lockgate.errors import Failed
from lockgate.lab.rig.history import Fact, Gap, Ledger, Position, Read, Reader, Signed, Standing, Trace
from lockgate.lab.rig.readers.output import Clock, Output

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
_TRACE = "lockgate-trace"
_POLL_MS = 200
_PAUSE_SECONDS = 0.1
_SILENCE_SECONDS = 90.0
_TOPIC_SECONDS = 10.0

Labels = Mapping[str, str]
"""The label of every topic that the job reads or writes."""


class Topics(Output):
    """The topics of a job's outputs, by their labels.

    Args:
        inputs: the labels of the topics that traces name.
        ledger: the topic of the job's ledger; None if the job has none here.
    """

    isolation = COMMITTED  # of the reader that reads along

    def __init__(self, servers: str, topics: Mapping[str, str], *, inputs: Labels, ledger: str | None = None) -> None:
        self.labels = tuple(topics)
        self._servers, self._ledger = servers, ledger
        self._topics = tuple(topics.values())
        self._names: Labels = {**inputs, **{topic: label for label, topic in topics.items()}}
        self._facts: list[Fact] = []
        self._along: Along | None = None

    def start_along(self, clock: Clock) -> None:
        def take(record: Any) -> None:
            self._facts.append(as_read(record, Reader.ALONG, self._names, clock()))

        self._clock, self._along = clock, Along(self._servers, self._topics, take, isolation=self.isolation)
        self._along.start()

    def seen(self) -> Sequence[Fact]:
        return self._facts

    def finish_along(self) -> list[Fact]:
        error = "" if self._along is None else self._along.finish()
        return [*self._facts, Gap(Reader.ALONG, error, self._clock())] if error else self._facts

    def after(self, clock: Clock) -> list[Fact]:
        return self._scan(Reader.AFTER, COMMITTED, clock)

    def log(self, clock: Clock) -> list[Fact]:
        return self._scan(Reader.LOG, UNCOMMITTED, clock)

    def standing(self, clock: Clock) -> list[Fact]:
        stable, high = (_ends(self._servers, self._topics, isolation) for isolation in (COMMITTED, UNCOMMITTED))
        found: list[Fact] = [
            Standing(
                output=self._names[place.topic],
                partition=place.partition,
                open_transactions=int(stable[place] < high[place]),
                last_stable_offset=stable[place],
                high_watermark=high[place],
                at_seconds=clock(),
            )
            for place in high
        ]
        return found if self._ledger is None else [*found, _signed(self._servers, self._ledger, clock)]

    def _scan(self, reader: Reader, isolation: str, clock: Clock) -> list[Fact]:
        found: list[Fact] = []
        try:
            for record in read_records(self._servers, self._topics, isolation=isolation):
                found.append(as_read(record, reader, self._names, clock()))
        except Failed as error:
            found.append(Gap(reader, error.what, clock()))
        return found


class Along(threading.Thread):
    """Reads topics while they are written, in a thread of its own, and gives every record to `take`."""

    def __init__(
        self, servers: str, topics: Sequence[str], take: Callable[[Any], None], *, isolation: str = COMMITTED
    ) -> None:
        super().__init__(name="lockgate-rig-reader", daemon=True)
        self.error = ""  # why it saw nothing more
        self._servers, self._topics, self._take, self._isolation = servers, topics, take, isolation
        self._is_over = threading.Event()

    def run(self) -> None:
        """Read until the job is over, and then to the end."""
        is_over, isolation = self._is_over.is_set, self._isolation
        try:
            for record in read_records(self._servers, self._topics, isolation=isolation, is_over=is_over):
                self._take(record)
        except Exception as error:  # noqa: BLE001 - a reader that died saw nothing more, and that has to be known
            self.error = f"{type(error).__name__}: {error}"

    def finish(self) -> str:
        """The job is over: read to the end. Why that failed; empty if it did not."""
        self._is_over.set()
        self.join()
        return self.error


def _signed(servers: str, topic: str, clock: Clock) -> Ledger:
    """What a ledger has said in turn; its topic is compacted, and may have lost the beginning."""
    found: list[Signed] = []
    try:
        for record in read_records(servers, [topic]):
            told = json.loads(record.value)
            found.append(Signed(told["run"], told["epoch"]))
    except Failed as error:
        return Ledger((), error.what, clock())
    return Ledger(tuple(found), "", clock())


def as_read(record: Any, reader: Reader, labels: Labels, at_seconds: float) -> Read:
    """A record as a fact."""
    header = next((value for name, value in record.headers or () if name == _TRACE), None)
    told: dict[str, Any] = {} if header is None else json.loads(header)
    return Read(
        reader=reader,
        output=labels[record.topic],
        partition=record.partition,
        offset=record.offset,
        key=record.key,
        value=record.value,
        trace=_trace(told, labels),
        epoch=told.get("epoch"),
        at_seconds=at_seconds,
    )


def _trace(told: Mapping[str, Any], labels: Labels) -> Trace | None:
    if "part" not in told:
        return None
    topic, _, partition = str(told["part"]).rpartition("-")
    return (Position(labels.get(topic, topic), int(partition), int(told["at"]), tuple(told.get("child") or ())),)


def read_records(
    servers: str, topics: Sequence[str], *, isolation: str = COMMITTED, is_over: Callable[[], bool] = lambda: True
) -> Iterator[Any]:
    """Records as they come; once it is over, up to the end that the topics have then, which nothing may hold back.

    A broker that dies and comes back costs nothing: the reader remembers its positions.
    """
    from kafka.errors import KafkaError

    positions: dict[Any, int] = {}
    ends: dict[Any, int] = {}
    heard, over_at = 0.0, float("inf")

    def is_complete() -> bool:
        nonlocal over_at
        if over_at == float("inf") and is_over():
            over_at = time.monotonic()
        return over_at < float("inf")

    while True:
        try:
            with _open(servers, topics, isolation, positions) as consumer:
                while not ends or any(consumer.position(place) < end for place, end in ends.items()):
                    if not ends and is_complete():
                        ends = _ends(servers, topics, UNCOMMITTED)
                    batches = consumer.poll(timeout_ms=_POLL_MS if ends else 0)
                    for place, records in batches.items():
                        positions[place], heard = records[-1].offset + 1, time.monotonic()
                        yield from records
                    if not batches and not ends:
                        time.sleep(_PAUSE_SECONDS)  # a wait inside `poll` spins as long as a transaction is open
                    _refuse_silence(servers, isolation, max(heard, over_at))
                return
        except KafkaError as error:
            if not error.retriable:
                raise
            is_complete()
            _refuse_silence(servers, isolation, max(heard, over_at))
            time.sleep(_PAUSE_SECONDS)


def _refuse_silence(servers: str, isolation: str, since: float) -> None:
    if time.monotonic() - since > _SILENCE_SECONDS:
        raise Failed(
            f"topics cannot be read to their end ({isolation}): nothing came for {_SILENCE_SECONDS:.0f} s",
            where=f"Kafka at {servers}",
            fix="an open transaction holds readers back: lockgate transactions list",
        )


@contextmanager
def _open(servers: str, topics: Sequence[str], isolation: str, positions: Mapping[Any, int]) -> Iterator[Any]:
    """A consumer of all partitions, at these positions or at the beginning."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=servers.split(","),
        isolation_level=isolation,
        auto_offset_reset="none",  # a position that is gone is an error, not a new start
        enable_auto_commit=False,
        max_poll_records=10_000,
        max_partition_fetch_bytes=8 << 20,
    )
    try:
        places = []
        for topic in topics:
            # A busy broker knows a topic only a while after it was made.
            deadline = time.monotonic() + _TOPIC_SECONDS
            while not (parts := consumer.partitions_for_topic(topic)):
                if time.monotonic() > deadline:
                    raise Failed(
                        f"there is no topic {topic!r}", where=f"Kafka at {servers}", fix="see whether it was deleted"
                    )
                time.sleep(_PAUSE_SECONDS)
            places += [TopicPartition(topic, one) for one in sorted(parts)]
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        for place, offset in positions.items():
            consumer.seek(place, offset)
        yield consumer
    finally:
        consumer.close()


def _ends(servers: str, topics: Sequence[str], isolation: str) -> dict[Any, int]:
    """The ends of all partitions, as a reader with this isolation sees them."""
    with _open(servers, topics, isolation, {}) as consumer:
        return dict(consumer.end_offsets([*consumer.assignment()]))
