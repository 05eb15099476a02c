"""Topics: read by the client library's own consumer, apart from Spark and ours.

    along     reads committed records in a thread, while faults happen and until it is told that all is over
    after     reads committed records from the first to the end that is there; the log, all that was ever written
    standing  what a partition looks like in the end: a transaction that is open holds its last stable offset back
    signed    who signed the ledger of a job, from its first record to the end

A topic is told under the label that is the same in all runs.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lockgate.errors import Failed
from lockgate.lab.rig.history import Fact, Gap, Ledger, Position, Read, Reader, Signed, Standing, Trace
from lockgate.lab.rig.readers.output import Clock, Output

_TRACE = "lockgate-trace"
_POLL_MS = 200
_PAUSE_SECONDS = 0.1
_SILENCE_SECONDS = 90.0
_TOPIC_SECONDS = 10.0

Labels = Mapping[str, str]
"""What every topic of the job, read or written, is called in all runs alike."""


class Topics(Output):
    """The topics of a job's outputs, by their labels; `inputs` are the labels of topics that traces speak of."""

    def __init__(self, servers: str, topics: Mapping[str, str], *, inputs: Labels) -> None:
        self.labels = tuple(topics)
        self._servers = servers
        self._topics = tuple(topics.values())
        self._names: Labels = {**inputs, **{topic: label for label, topic in topics.items()}}
        self._along: _Along | None = None

    def start_along(self, clock: Clock) -> None:
        self._along = _Along(self._servers, self._topics, self._names, clock)
        self._along.start()

    def finish_along(self) -> list[Fact]:
        return [] if self._along is None else self._along.finish()

    def after(self, clock: Clock) -> list[Fact]:
        return self._scan(Reader.AFTER, "read_committed", clock)

    def log(self, clock: Clock) -> list[Fact]:
        return self._scan(Reader.LOG, "read_uncommitted", clock)

    def standing(self, clock: Clock) -> list[Standing]:
        marks: dict[str, dict[Any, int]] = {}
        for isolation in ("read_committed", "read_uncommitted"):
            consumer, places = _open(self._servers, self._topics, isolation)
            try:
                marks[isolation] = consumer.end_offsets(places)
            finally:
                consumer.close()
        stable, high = marks["read_committed"], marks["read_uncommitted"]
        return [
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

    def _scan(self, reader: Reader, isolation: str, clock: Clock) -> list[Fact]:
        found: list[Fact] = []
        try:
            for record in _records(self._servers, self._topics, isolation, lambda: True):
                found.append(as_read(record, reader, self._names, clock()))
        except Failed as error:
            found.append(Gap(reader, error.what, clock()))
        return found


class _Along(threading.Thread):
    """Reads along; its facts are those of the reader ALONG."""

    def __init__(self, servers: str, topics: Sequence[str], labels: Labels, clock: Clock) -> None:
        super().__init__(name="lockgate-proof-reader", daemon=True)
        self._facts: list[Fact] = []
        self._servers, self._topics, self._labels, self._clock = servers, topics, labels, clock
        self._is_over = threading.Event()

    def run(self) -> None:
        """Until it is told that all is over; then to the end."""
        try:
            for record in _records(self._servers, self._topics, "read_committed", self._is_over.is_set):
                self._facts.append(as_read(record, Reader.ALONG, self._labels, self._clock()))
        except Exception as error:  # noqa: BLE001 - a reader that died saw nothing more, and that has to be known
            self._facts.append(Gap(Reader.ALONG, f"{type(error).__name__}: {error}", self._clock()))

    def finish(self) -> list[Fact]:
        """All that it has seen, to the end."""
        self._is_over.set()
        self.join()
        return self._facts


def signed(servers: str, topic: str, clock: Clock) -> Ledger:
    """What a ledger has said in turn; its topic is compacted, and may have forgotten the beginning."""
    found: list[Signed] = []
    try:
        for record in _records(servers, [topic], "read_committed", lambda: True):
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


def _open(servers: str, topics: Sequence[str], isolation: str) -> tuple[Any, list[Any]]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=servers.split(","),
        isolation_level=isolation,
        auto_offset_reset="none",
        enable_auto_commit=False,
        max_poll_records=10_000,
    )
    places = []
    for topic in topics:
        # A broker that has much to do tells of a topic only a while after it has made it.
        deadline = time.monotonic() + _TOPIC_SECONDS
        while not (parts := consumer.partitions_for_topic(topic)):
            if time.monotonic() > deadline:
                consumer.close()
                raise Failed(
                    f"there is no topic {topic!r}", where=f"Kafka at {servers}", fix="see whether it was deleted"
                )
            time.sleep(_PAUSE_SECONDS)
        places += [TopicPartition(topic, one) for one in sorted(parts)]
    consumer.assign(places)
    consumer.seek_to_beginning(*places)
    return consumer, places


def _records(servers: str, topics: Sequence[str], isolation: str, is_over: Callable[[], bool]) -> Iterator[Any]:
    """Records as they come; when all is over, up to the end that topics have then, which nothing may hold back."""
    consumer, places = _open(servers, topics, isolation)
    try:
        ends: dict[Any, int] = {}
        heard = time.monotonic()
        while not ends or any(consumer.position(place) < ends[place] for place in places):
            if not ends and is_over():
                ends, heard = _whole_ends(servers, topics), time.monotonic()
            batches = consumer.poll(timeout_ms=_POLL_MS if ends else 0)
            for records in batches.values():
                yield from records
            if batches:
                heard = time.monotonic()
            elif not ends:
                time.sleep(_PAUSE_SECONDS)  # a wait inside of `poll` spins as long as a transaction is open
            if ends and time.monotonic() - heard > _SILENCE_SECONDS:
                raise Failed(
                    f"topics cannot be read to their end ({isolation}): nothing came for {_SILENCE_SECONDS:.0f} s",
                    where=f"Kafka at {servers}",
                    fix="a transaction that is left open holds readers back: lockgate transactions list",
                )
    finally:
        consumer.close()


def _whole_ends(servers: str, topics: Sequence[str]) -> dict[Any, int]:
    """The ends of partitions with all that is written, whoever may see it."""
    consumer, places = _open(servers, topics, "read_uncommitted")
    try:
        return dict(consumer.end_offsets(places))
    finally:
        consumer.close()
