"""A task's side of a transaction: write record batches into its partitions, in order, each once.

At most five batches of a partition are in flight, because a broker remembers the last five and recognizes a repeated
one by its sequence number. If one fails for a temporary reason, the writer waits for the answers to those after it: the
broker refused them as out of order, because of that failure. Then it sends all unacknowledged batches again, in order
and with exactly the same bytes. A limit in bytes holds for batches in flight or waiting, so a task's memory does not
grow with its epoch.

The first batch of a partition is alone in flight. A broker that does not know a producer yet accepts any sequence
number from it. If the broker refused the first batch because the partition is new to it, it could accept the second,
and then refuse the first permanently.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from lockgate.commit.permits import Place
from lockgate.connectors.kafka.codecs import Codec
from lockgate.connectors.kafka.encode import (
    HEADER_BYTES,
    HeaderWithoutKey,
    Records,
    RecordTooLarge,
    cut,
    encode,
    next_sequence,
)
from lockgate.connectors.kafka.errorcodes import FENCED, RETRIABLE, Code, name_of
from lockgate.connectors.kafka.rights import Kind, Operation, Wanted, refuse_denied
from lockgate.connectors.kafka.transaction import GONE_SECONDS, TransactionLost, refuse_gone
from lockgate.connectors.kafka.wire import Connection, Producer, Unanswered
from lockgate.errors import EpochFailed, RowRefused, TimeRefused

IN_FLIGHT_PER_PARTITION = 5
_IN_FLIGHT_BYTES = 24 << 20
_KEY_SHOWN = 80


class RecordRefused(RowRefused):
    """A record that its topic does not accept."""


@dataclass
class _Batch:
    bytes: bytes
    state: str = "new"  # new, sent, done, failed
    code: int = 0
    told: str = ""
    first_sent: float = 0.0


@dataclass
class _Lane:
    """The batches of one partition: how many records were sent, and which batches have no answer yet."""

    place: Place
    records: int = 0
    sequence: int = 0
    is_begun: bool = False  # has the broker accepted the first batch?
    batches: deque[_Batch] = field(default_factory=deque)

    @property
    def has_room(self) -> bool:
        """May another batch be sent after those in flight?"""
        return len(self.batches) < (IN_FLIGHT_PER_PARTITION if self.is_begun else 1)

    @property
    def can_settle(self) -> bool:
        """Is there work to do: an answer for the first batch, or a failure and all answers after it?"""
        states = [batch.state for batch in self.batches]
        return states[:1] == ["done"] or ("failed" in states and "sent" not in states)


@dataclass(frozen=True)
class Written:
    """The records that a partition has acknowledged."""

    place: Place
    records: int
    last_sequence: int


class Writer:
    """The writer of one task attempt; used by one thread."""

    def __init__(self, connection: Connection, *, transactional_id: str, producer: Producer, where: str) -> None:
        self._connection = connection
        self._transactional_id = transactional_id
        self._producer = producer
        self._codec = Codec.named(connection.settings.codec, where=where)
        self._where = where
        self._lanes: dict[Place, _Lane] = {}
        self._flying = 0
        self._news = threading.Condition()
        self._patience = connection.settings.delivery_timeout_ms / 1000

    def write(self, place: Place, records: Records, *, max_message_bytes: int, now_ms: int) -> None:
        """Append records to a partition; returns when they are sent, and waits if too much is in flight."""
        lane = self._lanes.setdefault(place, _Lane(place))
        pieces = self._cut(place, records, max_message_bytes)
        for start, stop in pieces:
            data = encode(
                records.slice(start, stop),
                codec=self._codec,
                producer_id=self._producer.id,
                producer_epoch=self._producer.epoch,
                base_sequence=lane.sequence,
                now_ms=now_ms,
            )
            lane.records += stop - start
            lane.sequence = next_sequence(lane.sequence, stop - start)
            self._make_room(lane, len(data))
            batch = _Batch(data)
            lane.batches.append(batch)
            self._flying += len(data)
            self._send(lane, batch)

    def _cut(self, place: Place, records: Records, max_message_bytes: int) -> list[tuple[int, int]]:
        """Batches of our preferred size; if one record is larger than that, of the topic's maximum size."""
        liked = min(self._connection.settings.batch_bytes, max_message_bytes)
        try:
            try:
                return cut(records, limit_bytes=liked)
            except RecordTooLarge:
                return cut(records, limit_bytes=max_message_bytes)
        except RecordTooLarge as error:
            raise self._too_large(place, records, error, max_message_bytes) from None
        except HeaderWithoutKey as error:
            raise RecordRefused(
                f"row {error.index} of a batch has a header without a key",
                where=f"{_name(place)}, {self._where}",
                fix="give every header a key; its value may be null",
            ) from None

    def finish(self) -> list[Written]:
        """Wait until every batch is acknowledged."""
        for lane in self._lanes.values():
            self._until(lane, lambda lane=lane: not lane.batches)
        return [
            Written(place=lane.place, records=lane.records, last_sequence=(lane.records - 1) % 2**31)
            for lane in self._lanes.values()
        ]

    def _make_room(self, lane: _Lane, size: int) -> None:
        self._until(lane, lambda: lane.has_room)
        while self._flying and self._flying + size > _IN_FLIGHT_BYTES:
            # The partition with the most bytes in flight frees the most.
            busiest = max(self._lanes.values(), key=lambda one: sum(len(batch.bytes) for batch in one.batches))
            waiting = len(busiest.batches)
            self._until(busiest, lambda one=busiest, now=waiting: len(one.batches) < now)

    def _until(self, lane: _Lane, is_enough: Any) -> None:
        """Process the answers for one partition, with retries, until there is enough room."""
        while True:
            self._settle(lane)
            if is_enough():
                return
            with self._news:
                if not lane.can_settle:
                    self._news.wait(timeout=1.0)
            # A request has a deadline of its own; this one is for an answer that never arrives.
            if lane.batches and time.monotonic() - lane.batches[0].first_sent > 2 * self._patience:
                raise EpochFailed(
                    f"no answer for {2 * self._patience:.0f} s",
                    where=f"{_name(lane.place)}, {self._where}",
                    fix="look at the brokers; the epoch is repeated",
                )

    def _settle(self, lane: _Lane) -> None:
        while lane.batches and lane.batches[0].state == "done":
            lane.is_begun = True
            self._flying -= len(lane.batches.popleft().bytes)
        failed = [batch for batch in lane.batches if batch.state == "failed"]
        if not failed or any(batch.state == "sent" for batch in lane.batches):
            return
        # All answers are here. Only the first failure counts: the batches after it were refused as out of order.
        first = next(batch for batch in lane.batches if batch.state != "done")
        if first.state == "failed":
            self._judge(lane, first)
            self._look_again(lane, first)
        for batch in lane.batches:
            if batch.state != "done":
                self._send(lane, batch)

    def _judge(self, lane: _Lane, batch: _Batch) -> None:
        """Raise if the failure of a batch is permanent, or has lasted too long."""
        code, where = batch.code, f"{_name(lane.place)}, {self._where}"
        write = Operation.WRITE
        refuse_denied(
            code,
            self._connection.settings,
            where,
            Wanted(write, Kind.TOPIC, lane.place[0]),
            Wanted(write, Kind.TRANSACTIONAL_ID, self._transactional_id),
        )
        if code in FENCED:
            raise TransactionLost(
                f"the partition no longer accepts this producer: {name_of(code)}",
                where=where,
                fix="the transaction timed out, or another driver took over; the ledger says which",
            )
        if code == Code.MESSAGE_TOO_LARGE:
            raise EpochFailed(
                f"the topic refuses a batch of {len(batch.bytes):,} bytes as too large",
                where=where,
                fix="its max.message.bytes was made smaller while the epoch ran; the epoch is repeated",
            )
        if code == Code.INVALID_TIMESTAMP:
            raise TimeRefused(
                f"the broker refuses the time of a record: {batch.told or name_of(code)}",
                where=where,
                fix="the times were within the topic's limits when this job last read them: compare the clocks of its"
                " machines with those of the brokers, and check whether message.timestamp.after.max.ms or"
                " before.max.ms of the topic was lowered; then run the job again, it reads them at its start",
            )
        if code and code not in RETRIABLE:
            raise EpochFailed(f"the broker refuses a batch: {name_of(code)}", where=where, fix="see the broker's log")
        waited = time.monotonic() - batch.first_sent
        if code == Code.UNKNOWN_TOPIC_OR_PARTITION and waited > min(GONE_SECONDS, self._patience):
            refuse_gone(self._connection, [lane.place[0]], where=where)
        if waited > self._patience:
            raise EpochFailed(
                f"a batch could not be delivered for {self._patience:.0f} s: {batch.told or name_of(code)}",
                where=where,
                fix="look at the brokers that lead the partition, and at min.insync.replicas",
            )

    def _look_again(self, lane: _Lane, batch: _Batch) -> None:
        """Find the leader of the partition before the batches are sent again."""
        time.sleep(min(0.5, 0.02 if time.monotonic() - batch.first_sent < 1 else 0.2))
        try:
            self._connection.shapes([lane.place[0]], is_fresh=True)
        except Unanswered as error:
            batch.told = str(error)

    def _send(self, lane: _Lane, batch: _Batch) -> None:
        batch.first_sent = batch.first_sent or time.monotonic()
        topic, partition = lane.place
        try:
            shape = self._connection.shapes([topic]).get(topic)
        except Unanswered as error:
            batch.state, batch.code, batch.told = "failed", 0, str(error)
            return
        if shape is None or partition >= shape.partitions or shape.leaders[partition] < 0:
            batch.state, batch.code, batch.told = "failed", int(Code.UNKNOWN_TOPIC_OR_PARTITION), ""
            return
        batch.state, batch.code, batch.told = "sent", 0, ""

        def done(answer: Any, error: BaseException | None) -> None:
            with self._news:
                if error is not None:
                    batch.state, batch.told = "failed", f"{type(error).__name__}: {error}"
                else:
                    part = answer.responses[0].partition_responses[0]
                    code = int(part.error_code)
                    is_there = code in (Code.NONE, Code.DUPLICATE_SEQUENCE_NUMBER)
                    batch.state, batch.code = ("done", 0) if is_there else ("failed", code)
                    batch.told = _broker_message(part) if code == Code.INVALID_TIMESTAMP else ""
                self._news.notify_all()

        request = self._connection.produce_request(self._transactional_id, lane.place, batch.bytes)
        self._connection.post(request, node=shape.leaders[partition], done=done)

    def _too_large(self, place: Place, records: Records, error: RecordTooLarge, limit_bytes: int) -> RecordRefused:
        key = None if records.keys is None else records.keys[error.index].as_py()
        return RecordRefused(
            f"a record {key_text(key)} is {error.size_bytes:,} bytes;"
            f" the topic takes at most {limit_bytes - HEADER_BYTES:,}",
            where=f"{_name(place)}, {self._where}",
            fix="make the row smaller, or raise max.message.bytes of the topic (and what its readers fetch)",
        )


def key_text(key: bytes | None) -> str:
    """How an error names a record.

    >>> key_text(None), key_text(b"a")
    ('without a key', "with key 'a'")
    """
    if key is None:
        return "without a key"
    shown = key.decode("utf-8", errors="backslashreplace")
    return f"with key {shown if len(shown) <= _KEY_SHOWN else shown[:_KEY_SHOWN] + '…'!r}"


def _broker_message(part: Any) -> str:
    """The broker's message about a batch: about its first wrong record, or about all records."""
    records = [str(one.batch_index_error_message or "") for one in getattr(part, "record_errors", None) or ()]
    return next(filter(None, [*records, str(getattr(part, "error_message", None) or "")]), "")


def _name(place: Place) -> str:
    return f"topic {place[0]!r}, partition {place[1]}"
