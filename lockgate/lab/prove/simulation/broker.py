"""A model of a Kafka broker: transactions, the idempotent producer's checks, and what readers of committed rows get.

Each request is one function that returns the code a broker answers with. What the model knows of Kafka:

    state of a transaction      InitProducerId     AddPartitions   EndTxn commit   EndTxn abort   time-out
    none, complete              epoch + 1          opens it        0 if the same   0 if the same  -
    open                        fenced, then 51    0               decided         decided        fenced
    decided, ends are missing   51                 51              51 if the same  51 if the same -

    fenced      the epoch is raised, and the transaction is decided as aborted
    decided     an end is written to each partition, one after the other and later than the answer
    another     producer id 49, producer epoch 90; at a partition an older epoch 47

A lax broker answers InitProducerId while ends are missing. Kafka does not, but the protocol must not depend on that.
A test with a real broker checks whether the other answers are Kafka's (tests/lab/prove/test_broker_is_kafka.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lockgate.commit.permits import Place
from lockgate.connectors.kafka.errorcodes import Code
from lockgate.connectors.kafka.wire import Producer

REMEMBERED = 5
"""So many batches of a producer a partition remembers, to tell a repeated one."""


@dataclass(frozen=True)
class Batch:
    """A piece of a partition: rows of a producer, or the end of its transaction."""

    offset: int
    count: int
    producer: Producer
    payload: Any
    is_end: bool = False
    is_commit: bool = False


@dataclass
class Writer:
    """What a partition knows of a producer id."""

    epoch: int
    last_sequence: int = -1
    batches: list[tuple[int, int, int]] = field(default_factory=list)  # first and last sequence, offset


@dataclass
class Partition:
    """A log, and the transactions that are open in it."""

    log: list[Batch] = field(default_factory=list)
    end: int = 0  # the high watermark: one replica has everything that is written
    writers: dict[int, Writer] = field(default_factory=dict)
    open: dict[Producer, int] = field(default_factory=dict)  # the offset of its first row
    tried: dict[int, tuple[int, int]] = field(default_factory=dict)  # epoch and lowest sequence not yet appended
    aborted: list[tuple[Producer, int, int]] = field(default_factory=list)  # its first row, and its end

    @property
    def stable(self) -> int:
        """The last stable offset: below it everything is decided."""
        return min(self.open.values(), default=self.end)

    def read(self, position: int, *, below: int) -> tuple[list[Batch], list[tuple[Producer, int, int]]]:
        """What a reader of committed rows is sent: batches, and which transactions among them were aborted."""
        sent: list[Batch] = []
        for batch in reversed(self.log):
            if batch.offset + batch.count <= position:
                break
            if batch.offset < below:
                sent.append(batch)
        return sent[::-1], [one for one in self.aborted if one[2] >= position and one[1] < below]

    def without(self, lacked: int) -> Partition:
        """The partition as it was some batches ago, to be read."""
        if not lacked:
            return self
        log = self.log[:-lacked]
        end = log[-1].offset + log[-1].count if log else 0
        still: dict[Producer, int] = {}
        for batch in log:
            if not batch.is_end:
                still.setdefault(batch.producer, batch.offset)
                continue
            ended = [one for one in still if one.id == batch.producer.id and one.epoch <= batch.producer.epoch]
            for one in ended:
                del still[one]
        aborted = [one for one in self.aborted if one[2] < end]
        return Partition(log=log, end=end, open=still, aborted=aborted)

    def append(self, producer: Producer, sequence: int, count: int, payload: Any) -> tuple[int, int]:
        """Append a batch unless it is there already or out of order; returns the code and its offset."""
        last = sequence + count - 1
        writer = self.writers.get(producer.id)
        if writer is not None and writer.epoch == producer.epoch:
            for first_known, last_known, offset in writer.batches:
                if (first_known, last_known) == (sequence, last):
                    return Code.NONE, offset
        code = self._refuse(writer, producer, sequence)
        if code:
            return code, -1
        if writer is None or producer.epoch > writer.epoch:
            writer = self.writers[producer.id] = Writer(producer.epoch)
        self.tried.pop(producer.id, None)
        offset = self.end
        writer.last_sequence = last
        writer.batches = [*writer.batches[1 - REMEMBERED :], (sequence, last, offset)]
        self.open.setdefault(producer, offset)
        self._add(Batch(offset, count, producer, payload))
        return Code.NONE, offset

    def _refuse(self, writer: Writer | None, producer: Producer, sequence: int) -> int:
        if writer is not None and producer.epoch < writer.epoch:
            return Code.INVALID_PRODUCER_EPOCH
        if sequence > self.tried.get(producer.id, (0, sequence))[1]:
            return Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        if writer is None:
            return Code.NONE  # one that is not known here may begin with any sequence
        expected = 0 if producer.epoch > writer.epoch else writer.last_sequence + 1
        return Code.NONE if sequence == expected else Code.OUT_OF_ORDER_SEQUENCE_NUMBER

    def note(self, producer: Producer, sequence: int) -> None:
        """A producer wants to begin here: no batch behind the first that it has tried is to come before that one."""
        epoch, lowest = self.tried.get(producer.id, (producer.epoch, sequence))
        if epoch == producer.epoch:
            self.tried[producer.id] = (epoch, min(lowest, sequence))
        elif epoch < producer.epoch:
            self.tried[producer.id] = (producer.epoch, sequence)

    def finish(self, producer: Producer, *, epoch: int, is_commit: bool) -> None:
        """Write the end of a transaction; `epoch` fences writers with an older epoch from now on."""
        writer = self.writers.get(producer.id)
        if writer is None or epoch > writer.epoch:
            self.writers[producer.id] = Writer(epoch)
        self.tried.pop(producer.id, None)
        first = self.open.pop(producer, None)
        if first is not None and not is_commit:
            self.aborted.append((producer, first, self.end))
        self._add(Batch(self.end, 1, Producer(producer.id, epoch), None, is_end=True, is_commit=is_commit))

    def _add(self, batch: Batch) -> None:
        self.log.append(batch)
        self.end += batch.count


@dataclass(eq=False)
class Ends:
    """The ends that a decided transaction still has to write."""

    transaction: Transaction
    producer: Producer  # the producer that wrote in it
    epoch: int  # under which the ends are written: a newer one where it was fenced
    is_commit: bool
    places: list[Place]


@dataclass
class Transaction:
    """What the coordinator knows of one transactional id."""

    name: str
    producer: Producer
    timeout_ms: int
    state: str = "Empty"
    places: set[Place] = field(default_factory=set)
    started: float = 0.0
    ends: Ends | None = None


class Broker:
    """One broker that coordinates all transactions and leads all partitions; what it knows outlives its restarts."""

    def __init__(self, *, is_lax: bool = False, is_fencing: bool = True) -> None:
        self.is_lax = is_lax
        self.is_fencing = is_fencing  # a mutant gives each one who begins a producer id, and stops no older one
        self.now = 0.0
        self.partitions: dict[Place, Partition] = {}
        self.transactions: dict[int, Transaction] = {}  # by producer id
        self._latest: dict[str, Transaction] = {}  # by transactional id
        self.unwritten: list[Ends] = []
        self._producer_ids = 0

    def partition(self, place: Place) -> Partition:
        """A partition, made when it is first asked for."""
        found = self.partitions.get(place)
        if found is None:
            found = self.partitions[place] = Partition()
        return found

    # ---- the coordinator

    def init_producer(self, name: str, timeout_ms: int) -> tuple[int, Producer]:
        """Fence older writers, end what they left open, give a fresh epoch."""
        known = self._latest.get(name) if self.is_fencing else None
        if known is None:
            self._producer_ids += 1
            fresh = Producer(self._producer_ids, 0)
            known = self._latest[name] = self.transactions[fresh.id] = Transaction(name, fresh, timeout_ms)
            return Code.NONE, fresh
        if known.state == "Ongoing":
            self._fence(known)
            if not self.is_lax:
                return Code.CONCURRENT_TRANSACTIONS, Producer(-1, -1)
        if known.ends is not None and not self.is_lax:
            return Code.CONCURRENT_TRANSACTIONS, Producer(-1, -1)
        known.producer = Producer(known.producer.id, known.producer.epoch + 1)
        known.timeout_ms = timeout_ms
        known.state, known.ends, known.places = "Empty", None, set()
        return Code.NONE, known.producer

    def add_partitions(self, name: str, producer: Producer, places: Iterable[Place]) -> int:
        """Make partitions part of the transaction, and open it where it is not."""
        known = self.transactions.get(producer.id)
        if known is None or known.name != name:
            return Code.INVALID_PRODUCER_ID_MAPPING
        if known.producer.epoch != producer.epoch:
            return Code.PRODUCER_FENCED
        if known.ends is not None:
            return Code.CONCURRENT_TRANSACTIONS
        if known.state != "Ongoing":
            known.state, known.places, known.started = "Ongoing", set(), self.now
        known.places.update(places)
        return Code.NONE

    def end_transaction(self, name: str, producer: Producer, *, is_commit: bool) -> int:
        """Decide; the same decision again is acknowledged, the other one is not."""
        known = self.transactions.get(producer.id)
        if known is None or known.name != name:
            return Code.INVALID_PRODUCER_ID_MAPPING
        if known.producer.epoch != producer.epoch:
            return Code.PRODUCER_FENCED
        if known.state == "Ongoing":
            self._decide(known, is_commit=is_commit, epoch=producer.epoch)
            return Code.NONE
        if known.state != ("PrepareCommit" if known.ends else "CompleteCommit") and is_commit:
            return Code.INVALID_TXN_STATE
        if known.state != ("PrepareAbort" if known.ends else "CompleteAbort") and not is_commit:
            return Code.INVALID_TXN_STATE
        return Code.CONCURRENT_TRANSACTIONS if known.ends else Code.NONE

    def describe(self, name: str) -> Transaction:
        """A transaction as its coordinator sees it."""
        return self._latest[name]

    def time_out(self) -> bool:
        """Give up what is open for too long; was there any?"""
        late = [
            one
            for one in self.transactions.values()
            if one.state == "Ongoing" and self.now - one.started >= one.timeout_ms / 1000
        ]
        for one in late:
            self._fence(one)
        return bool(late)

    def write_end(self, ends: Ends) -> None:
        """Write one of the ends that are missing; the last one of a transaction makes it complete."""
        place = ends.places.pop(0)
        self.partition(place).finish(ends.producer, epoch=ends.epoch, is_commit=ends.is_commit)
        if not ends.places:
            self.unwritten.remove(ends)
            self._complete(ends)

    def _fence(self, known: Transaction) -> None:
        writer = known.producer
        known.producer = Producer(writer.id, writer.epoch + 1)
        self._decide(known, is_commit=False, epoch=known.producer.epoch, writer=writer)

    def _decide(self, known: Transaction, *, is_commit: bool, epoch: int, writer: Producer | None = None) -> None:
        known.state = "PrepareCommit" if is_commit else "PrepareAbort"
        known.ends = Ends(known, writer or known.producer, epoch, is_commit, sorted(known.places))
        if known.places:
            self.unwritten.append(known.ends)
        else:
            self._complete(known.ends)

    def _complete(self, ends: Ends) -> None:
        known = ends.transaction
        if known.ends is ends:  # a lax broker may have begun another one
            known.state = "CompleteCommit" if ends.is_commit else "CompleteAbort"
            known.ends, known.places = None, set()

    # ---- the partitions

    def produce(
        self, name: str, place: Place, producer: Producer, *, sequence: int, count: int, payload: Any
    ) -> tuple[int, int]:
        """Append a batch in a transaction; returns the code and its offset."""
        partition = self.partition(place)
        if producer not in partition.open:
            writer = partition.writers.get(producer.id)
            if writer is not None and producer.epoch < writer.epoch:
                return Code.INVALID_PRODUCER_EPOCH, -1
            partition.note(producer, sequence)
            code = self._verify(name, place, producer)
            if code:
                return code, -1
        return partition.append(producer, sequence, count, payload)

    def _verify(self, name: str, place: Place, producer: Producer) -> int:
        """The first batch of a transaction: is the partition part of it?"""
        known = self.transactions.get(producer.id)
        if known is None or known.name != name:
            return Code.INVALID_PRODUCER_ID_MAPPING
        if known.producer.epoch != producer.epoch:
            return Code.INVALID_PRODUCER_EPOCH
        if known.ends is not None:
            return Code.NOT_ENOUGH_REPLICAS
        return Code.NONE if place in known.places and known.state == "Ongoing" else Code.TRANSACTION_ABORTABLE
