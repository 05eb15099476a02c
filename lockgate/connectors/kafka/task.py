"""A task's side of an epoch: Arrow batches into the partitions of its rows, under permits; its result is its votes.

Runs in Spark's Python workers. A WriteOrder contains all that it needs. The process keeps connections, which also serve
the tasks of later epochs. Before its first byte for a partition the task asks the driver for a permit, then adds the
partition to the transaction: late, so that computing does not use up the transaction's time.

A task reports a failure to the driver before it raises it. Otherwise only the refused permit of the next attempt would
be seen, because Spark tries the task again. The refusal itself is no failure of the task but its result: a retry cannot
help, and Spark would retry three times.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lockgate.commit.permits import Caller, Place
from lockgate.connectors.kafka.settings import ClientSettings
from lockgate.connectors.kafka.topics import OutputTopic
from lockgate.connectors.kafka.wire import Producer
from lockgate.errors import EpochFailed, Failed, LockgateError, TimeRefused
from lockgate.failures import Carried, carry
from lockgate.faultpoints import Fault, FaultPoint, arm, reach
from lockgate.serving.rpc import Address
from lockgate.signing import Signer, driver_signer

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from lockgate.connectors.kafka.encode import Records
    from lockgate.connectors.kafka.wire import Connection
    from lockgate.connectors.kafka.writer import Writer

VOTES = "attempt BIGINT, topic STRING, partition INT, records BIGINT, last_sequence BIGINT, refusal STRING"
"""One row per partition written, and one with topic null: how many rows came to the task, or what refused it."""

_READY_BYTES = 256 << 10
_HELD_BYTES = 32 << 20


class PermitRefused(EpochFailed):
    """Another attempt of the task has written before this one, or its try is over."""


class PartitionShared(PermitRefused):
    """Two tasks have rows for one partition: the rows must be exchanged first."""


@dataclass(frozen=True)
class WriteOrder:
    """What a task receives: the transaction, the address for permits, the topics and the columns."""

    settings: ClientSettings
    transactional_id: str
    producer: Producer
    name: str  # of the try
    permits: Address
    topics: tuple[OutputTopic, ...]
    topic: str | None  # the only topic, or None if a column names it
    spread_over: int | None  # without keys: how many tasks share the partitions among them
    faults: tuple[Fault, ...]
    where: str
    times: tuple[str, ...] = ()  # the columns that give records their times, as the user calls them
    signer: Signer = field(default_factory=driver_signer)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of a task and cast its votes."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        attempt, index = context.taskAttemptId(), context.partitionId()
        arm(self.faults)
        permits = _caller(self.permits)
        try:
            yield _Task(self, attempt, index, permits).run(batches)
        except PermitRefused as refusal:
            yield _as_batch([(attempt, None, None, 0, None, carry(refusal, self.signer))])
        except LockgateError as error:
            permits.tell(self.name, carry(error, self.signer))
            raise Carried(error, self.signer) from error
        except Exception as error:
            permits.tell(self.name, f"{type(error).__name__}: {error}")
            raise


_callers: dict[Address, Caller] = {}


def _caller(address: Address) -> Caller:
    if address not in _callers:
        _callers.clear()  # a worker serves one driver at a time
        _callers[address] = Caller(address)
    return _callers[address]


class _Task:
    def __init__(self, order: WriteOrder, attempt: int, index: int, permits: Caller) -> None:
        self._order = order
        self._attempt = attempt
        self._index = index
        self._permits = permits
        self._topics = {topic.name: topic for topic in order.topics}
        self._held: set[Place] = set()
        self._waiting: dict[Place, list[pa.RecordBatch]] = {}
        self._held_bytes = 0
        # Start at another partition in each epoch, so that small epochs are spread too; all attempts of a try agree.
        self._turn = order.producer.epoch
        self._writer: Writer | None = None

    def run(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
        rows = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            if not rows:
                reach(FaultPoint.RECEIVE)
            rows += batch.num_rows
            self._take(batch)
        for place in list(self._waiting):
            self._flush(place)
        written = self._writer.finish() if self._writer is not None else []
        if written:
            reach(FaultPoint.EMIT)
        votes = [(self._attempt, *one.place, one.records, one.last_sequence, None) for one in written]
        return _as_batch([*votes, (self._attempt, None, None, rows, None, None)])

    def _take(self, batch: pa.RecordBatch) -> None:
        groups = list(self._spread(batch) if self._order.spread_over is not None else self._split(batch))
        self._admit([place for place, _ in groups])
        share = batch.nbytes / batch.num_rows
        for place, part in groups:
            waiting = self._waiting.setdefault(place, [])
            waiting.append(part)
            if sum(one.num_rows for one in waiting) * share >= _READY_BYTES:
                self._flush(place)
        # A part is a view: as long as one row of a batch waits, all of it stays in memory.
        self._held_bytes = self._held_bytes + batch.nbytes if self._waiting else 0
        if self._held_bytes > _HELD_BYTES:
            for place in list(self._waiting):
                self._flush(place)
            self._held_bytes = 0

    def _spread(self, batch: pa.RecordBatch) -> Iterator[tuple[Place, pa.RecordBatch]]:
        """Rows without a key: each batch goes to the next of the partitions that this task owns."""
        self._turn += 1
        for name, part in self._by_topic(batch):
            topic = self._topic(name)
            own = range(self._index, topic.partitions, self._order.spread_over or 1)
            yield (topic.name, own[self._turn % len(own)]), part

    def _split(self, batch: pa.RecordBatch) -> Iterator[tuple[Place, pa.RecordBatch]]:
        """Rows of each partition together, in the order of arrival."""
        import numpy as np

        for name, part in self._by_topic(batch):
            topic = self._topic(name)
            partitions = self._partitions(part, topic)
            first = int(partitions[0])
            if (partitions == first).all():
                yield (topic.name, first), part
                continue
            order = np.argsort(partitions, kind="stable")
            placed = partitions[order]
            sorted_part = part.take(order)
            cuts = [0, *(np.flatnonzero(np.diff(placed)) + 1).tolist(), part.num_rows]
            for start, stop in itertools.pairwise(cuts):
                yield (topic.name, int(placed[start])), sorted_part.slice(start, stop - start)

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        import pyarrow.compute as pc

        if self._order.topic is not None:
            yield self._order.topic, batch
            return
        column = batch.column("topic")
        if column.null_count:
            raise Failed("a row names no topic", where=self._order.where, fix="fill the column that names the topic")
        for name in pc.unique(column).to_pylist():
            yield name, batch.filter(pc.equal(column, name))

    def _partitions(self, part: pa.RecordBatch, topic: OutputTopic) -> np.ndarray[Any, Any]:
        import numpy as np
        import pyarrow.compute as pc

        hashed: np.ndarray[Any, Any] = part.column("hash").to_numpy(zero_copy_only=False) % topic.partitions
        if "partition" not in part.schema.names:
            return hashed
        asked = part.column("partition")
        filled = pc.fill_null(asked, -1).to_numpy(zero_copy_only=False)
        chosen: np.ndarray[Any, Any] = np.where(asked.is_valid().to_numpy(zero_copy_only=False), filled, hashed)
        wrong = np.flatnonzero((chosen < 0) | (chosen >= topic.partitions))
        if len(wrong):
            raise Failed(
                f"a row asks for partition {int(chosen[wrong[0]])} of topic {topic.name!r}, which has"
                f" {topic.partitions}",
                where=self._order.where,
                fix="correct the column that names the partition; null leaves the choice to the key",
            )
        return chosen

    def _topic(self, name: str) -> OutputTopic:
        if name not in self._topics:
            from lockgate.connectors.kafka.topics import describe_outputs
            from lockgate.connectors.kafka.transaction import GONE_SECONDS

            deadline = time.monotonic() + GONE_SECONDS  # a new topic may be unknown for a moment
            while name not in self._topics and time.monotonic() < deadline:
                self._topics.update(describe_outputs(self._connect(), [name], where=self._order.where))
                time.sleep(0 if name in self._topics else 0.2)
        if name not in self._topics:
            raise Failed(
                f"topic {name!r} does not exist", where=self._order.where, fix="create it, or correct the column"
            )
        return self._topics[name]

    def _connect(self) -> Connection:
        """This process's connection; a new worker waits for brokers that are away, as others do."""
        from lockgate.connectors.kafka.wire import NoBroker, connect

        deadline = time.monotonic() + self._order.settings.delivery_timeout_ms / 1000
        while True:
            try:
                return connect(self._order.settings, where=self._order.where)
            except NoBroker as error:
                if time.monotonic() > deadline:
                    raise EpochFailed(error.what, where=error.where, fix=error.fix) from None

    def _admit(self, places: list[Place]) -> None:
        """Ask for the permits that this task does not have yet, then add the partitions to the transaction."""
        from lockgate.connectors.kafka.transaction import add_partitions
        from lockgate.connectors.kafka.writer import Writer

        new = sorted(set(places) - self._held)
        if not new:
            return
        refusal = self._permits.ask(self._order.name, task=self._index, attempt=self._attempt, places=new)
        if refusal is not None:
            raise (PartitionShared if refusal.is_clash else PermitRefused)(
                f"no permit to write: {refusal.reason}",
                where=f"task {self._index}, attempt {self._attempt}, {self._order.where}",
                fix="the epoch is repeated as a whole",
            )
        reach(FaultPoint.PERMIT)
        connection = self._connect()
        add_partitions(connection, self._order.transactional_id, self._order.producer, new, where=self._order.where)
        reach(FaultPoint.ADD)
        self._held.update(new)
        if self._writer is None:
            self._writer = Writer(
                connection,
                transactional_id=self._order.transactional_id,
                producer=self._order.producer,
                where=self._order.where,
            )

    def _flush(self, place: Place) -> None:
        import pyarrow as pa

        parts = self._waiting.pop(place)
        part = parts[0] if len(parts) == 1 else pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
        assert self._writer is not None
        topic = self._topics[place[0]]
        now_ms = int(time.time() * 1000)
        records = _as_records(part, now_ms)
        refuse_times(records, topic, place, columns=self._order.times, now_ms=now_ms, where=self._order.where)
        self._writer.write(place, records, max_message_bytes=topic.max_message_bytes, now_ms=now_ms)
        reach(FaultPoint.HALF)


def _as_records(part: pa.RecordBatch, now_ms: int) -> Records:
    import pyarrow as pa

    from lockgate.connectors.kafka.encode import Records

    names = part.schema.names
    times = None
    if "timestamp" in names:
        times = part.column("timestamp").cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
        times = times.fill_null(now_ms)  # a record without a time of its own has that of its batch
    return Records(
        keys=_as_bytes(part.column("key")) if "key" in names else None,
        values=_as_bytes(part.column("value")),
        headers=part.column("headers") if "headers" in names else None,
        timestamps_ms=None if times is None else times.to_numpy(zero_copy_only=False),
    )


def refuse_times(
    records: Records, topic: OutputTopic, place: Place, *, columns: Sequence[str], now_ms: int, where: str
) -> None:
    """Raise TimeRefused for a record whose time the topic would refuse, and with it the whole batch."""
    import numpy as np

    from lockgate.connectors.kafka.writer import key_text

    if records.timestamps_ms is None:
        return
    ahead = records.timestamps_ms - now_ms
    for limit, sign, direction, setting in (
        (topic.times.ahead_ms, 1, "ahead of", "after"),
        (topic.times.behind_ms, -1, "behind", "before"),
    ):
        beyond = np.zeros(0) if limit is None else sign * ahead > limit
        if beyond.any():
            first = int(beyond.argmax())
            at = np.datetime64(int(records.timestamps_ms[first]), "ms")  # Python has no year 10000
            key = None if records.keys is None else records.keys[first].as_py()
            raise TimeRefused(
                f"the time of a record {key_text(key)}, {at}Z, is too far"
                f" {direction} the clock: the topic takes {limit} ms",
                where=f"column {' or '.join(columns)}, topic {place[0]!r}, partition {place[1]}, {where}",
                fix=f"correct the column, or raise message.timestamp.{setting}.max.ms of the topic; a job without"
                " dead_letters= can declare it, and such events become dead letters. A job that has it compares with"
                " the clock of the epoch, and this is the clock of the machine: if the epoch was planned long ago,"
                " lockgate checkpoints rollback FILE --uncommitted plans it again, by the clock of now; else compare"
                " the clocks of the machines",
            )


def _as_bytes(column: pa.Array) -> pa.Array:
    """Text as its bytes; nothing is copied."""
    import pyarrow as pa

    return column.cast(pa.binary()) if pa.types.is_string(column.type) else column


def _as_batch(votes: list[tuple[Any, ...]]) -> pa.RecordBatch:
    import pyarrow as pa

    kinds = (pa.int64(), pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.string())
    names = ("attempt", "topic", "partition", "records", "last_sequence", "refusal")
    columns = [pa.array(list(values), type=kind) for values, kind in zip(zip(*votes, strict=True), kinds, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=list(names))
