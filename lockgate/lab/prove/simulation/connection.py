"""The wire's connection to the model of the broker; the real transactions and ledger use it.

The ledger's entries are in Kafka's own format, and the job's own code reads them. A few lines here write the same
bytes: the real encoder is made for columns of a million rows, and with one row it would take longer than the rest of a
schedule.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from lockgate.commit.permits import Place
from lockgate.connectors.kafka.errorcodes import Code
from lockgate.connectors.kafka.ledgertopic import KEY, LedgerTopic
from lockgate.connectors.kafka.rights import Operation
from lockgate.connectors.kafka.settings import ClientSettings
from lockgate.connectors.kafka.wire import Clock, Connection, Fetched, Producer, TopicShape, TransactionView
from lockgate.lab.prove.simulation.broker import Batch, Broker

T = TypeVar("T")

SETTINGS = ClientSettings(servers="model", request_timeout_ms=5_000, delivery_timeout_ms=20_000)
TIMEOUT_MS = 60_000
"""How long a transaction may last; a request is given up long before."""

_SHAPE = TopicShape(name="of the model", leaders=(0,), replication=1, id="0")
_PRODUCER = struct.Struct(">qhii")  # producer id and epoch, first sequence, count: at byte 43 of a batch
_HEADER = struct.Struct(">qiibIhiqqqhii")  # a batch without records
_UNCHECKED_BYTES = 21  # the checksum is of what is behind it
_TRANSACTIONAL, _TRANSACTIONAL_END = 0x10, 0x30


class Carrier(Protocol):
    """What brings a request to the broker and the reply back, or fails to."""

    def __call__(self, what: str, effect: Callable[[], T], *, is_change: bool) -> T:
        """The reply; raises Unanswered where none comes."""


@dataclass(frozen=True)
class _Request:
    place: Place
    transactional_id: str
    batch: bytes


@dataclass(frozen=True)
class _PartitionAnswer:
    error_code: int
    base_offset: int


@dataclass(frozen=True)
class _TopicAnswer:
    partition_responses: tuple[_PartitionAnswer]


@dataclass(frozen=True)
class _Answer:
    responses: tuple[_TopicAnswer]


class ModelConnection(Connection):
    """A driver's connection to the model."""

    def __init__(
        self, broker: Broker, carry: Carrier, clock: Clock, *, is_waiting: bool, lacking: Callable[[], int]
    ) -> None:
        self.settings = SETTINGS
        self.clock = clock
        self._broker = broker
        self._carry = carry
        self._is_waiting = is_waiting  # a mutant takes the last stable offset for the high watermark
        self._lacking = lacking  # how many batches the broker that answers lacks: none where it leads
        self._lacked = 0  # by the one that was asked last

    def shapes(
        self, topics: Iterable[str], *, is_fresh: bool = False, needs: Operation = Operation.DESCRIBE
    ) -> dict[str, TopicShape]:
        """One broker leads everything."""
        return dict.fromkeys(topics, _SHAPE)

    def init_producer(self, transactional_id: str, timeout_ms: int) -> tuple[int, Producer]:
        """Fence older writers."""
        return self._carry("begin", lambda: self._broker.init_producer(transactional_id, timeout_ms), is_change=True)

    def add_partitions(self, transactional_id: str, producer: Producer, places: Iterable[Place]) -> dict[Place, int]:
        """Make partitions part of the transaction."""
        wanted = list(places)
        code = self._carry(
            "add", lambda: self._broker.add_partitions(transactional_id, producer, wanted), is_change=True
        )
        return dict.fromkeys(wanted, code)

    def add_group(self, transactional_id: str, producer: Producer, group: str) -> int:
        """Offsets are for lag tools, and not in the model."""
        return Code.NONE

    def commit_offsets(
        self, transactional_id: str, producer: Producer, group: str, offsets: Mapping[Place, int]
    ) -> dict[Place, int]:
        """Offsets are for lag tools, and not in the model."""
        return dict.fromkeys(offsets, Code.NONE)

    def end_transaction(self, transactional_id: str, producer: Producer, *, is_commit: bool) -> int:
        """Commit or abort."""
        return self._carry(
            f"end {'commit' if is_commit else 'abort'}",
            lambda: self._broker.end_transaction(transactional_id, producer, is_commit=is_commit),
            is_change=True,
        )

    def describe_transaction(self, transactional_id: str) -> tuple[int, TransactionView]:
        """What the coordinator knows."""

        def look() -> tuple[int, TransactionView]:
            known = self._broker.describe(transactional_id)
            started_ms = int(known.started * 1000)
            places = tuple(sorted(known.places))
            return Code.NONE, TransactionView(
                transactional_id, known.state, known.producer, known.timeout_ms, started_ms, places
            )

        return self._carry("describe", look, is_change=False)

    def produce_request(self, transactional_id: str, place: Place, batch: bytes) -> Any:
        """A request that appends one record batch."""
        return _Request(place, transactional_id, batch)

    def ask(self, request: Any, *, node: int | None = None) -> Any:
        """Append a batch: the only request that is not sent by a function of its own."""
        assert isinstance(request, _Request)
        producer_id, producer_epoch, sequence, count = _PRODUCER.unpack_from(request.batch, 43)
        producer = Producer(producer_id, producer_epoch)

        def append() -> tuple[int, int]:
            return self._broker.produce(
                request.transactional_id,
                request.place,
                producer,
                sequence=sequence,
                count=count,
                payload=request.batch,
            )

        code, offset = self._carry("write the ledger", append, is_change=True)
        return _Answer((_TopicAnswer((_PartitionAnswer(code, offset),)),))

    def end_offset(self, place: Place, *, leader: int) -> tuple[int, int]:
        """The high watermark; of a moment ago where the broker that answers was deposed."""

        def look() -> tuple[int, int]:
            partition = self._broker.partition(place)
            self._lacked = self._lacking()
            return Code.NONE, partition.without(self._lacked).end

        return self._carry("high watermark", look, is_change=False)

    def fetch(self, place: Place, offset: int, *, leader: int, max_bytes: int = 1 << 20) -> Fetched:
        """What a reader of committed records gets."""

        def look() -> Fetched:
            partition = self._broker.partition(place).without(self._lacked)
            self._lacked = 0  # it hears of the new leader, and says so to the next one who asks
            end, stable = partition.end, partition.stable
            batches, aborted = partition.read(offset, below=stable)
            return Fetched(
                code=Code.NONE,
                high_watermark=end,
                last_stable_offset=stable if self._is_waiting else end,
                records=b"".join(map(_as_bytes, batches)),
                aborted=tuple((producer.id, first) for producer, first, _ in aborted),
            )

        return self._carry("fetch", look, is_change=False)


class ModelLedger(LedgerTopic):
    """The real ledger, with a quick encoder of its one record."""

    def _encode(self, value: bytes, producer: Producer, *, now_ms: int) -> bytes:
        from crc32c import crc32c

        text = b"\0\0\0" + _varint(len(KEY)) + KEY + _varint(len(value)) + value + b"\0"
        record = _varint(len(text)) + text
        size = _HEADER.size - 12 + len(record)

        def pack(checksum: int) -> bytes:
            times = (now_ms, now_ms)
            head = (0, size, -1, 2, checksum, _TRANSACTIONAL, 0, *times, producer.id, producer.epoch, 0, 1)
            return _HEADER.pack(*head) + record

        return pack(crc32c(pack(0)[_UNCHECKED_BYTES:]))


def _varint(value: int) -> bytes:
    """A length, as the records of a batch have it: sevens of bits, the lowest first, of the doubled number."""
    left, data = value << 1, bytearray()
    while left > 0x7F:
        data.append(left & 0x7F | 0x80)
        left >>= 7
    data.append(left)
    return bytes(data)


def _as_bytes(batch: Batch) -> bytes:
    if not batch.is_end:
        data: bytes = batch.payload
        return batch.offset.to_bytes(8, "big") + data[8:]
    producer = batch.producer
    # Length, leader epoch, version, checksum, attributes, last offset, times, producer, sequence, no record: readers
    # know the end of a transaction by its attributes, and look no further.
    return _HEADER.pack(batch.offset, 49, 0, 2, 0, _TRANSACTIONAL_END, 0, 0, 0, producer.id, producer.epoch, -1, 0)
