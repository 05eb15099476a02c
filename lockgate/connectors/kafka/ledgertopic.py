"""The ledger as a topic: one compacted partition, for this job alone.

Another job's open transaction in a shared partition would hide our own marker, so each job has its own topic. The topic
lives as long as the job (a consumer group's offsets expire). The admin API creates it, with the replication of the
outputs. A request for it never creates it: an empty topic would look like a job that has not started.

The caller fences older writers first. A read then takes the high watermark and reads up to it. It waits while the last
stable offset is below the watermark, because a transaction may be decided while its end is not yet written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from lockgate.commit.ledger import REPAIR, Entry, entry_of
from lockgate.connectors.kafka.batches import Last, last_committed
from lockgate.connectors.kafka.errorcodes import RETRIABLE, Code, name_of
from lockgate.connectors.kafka.rights import Kind, Operation, Wanted, refuse_denied
from lockgate.connectors.kafka.topics import asked, make_topic
from lockgate.connectors.kafka.transaction import TransactionLost
from lockgate.connectors.kafka.wire import Clock, Connection, Fetched, Producer, Unanswered
from lockgate.errors import BadMachine, EpochFailed, InvariantBroken, LedgerMismatch

T = TypeVar("T")

KEY = b"ledger"
_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.1",
    "unclean.leader.election.enable": "false",
    "compression.type": "producer",
}
_CHECKED = {"cleanup.policy": "compact", "unclean.leader.election.enable": "false"}
_RIGHTS = (Operation.READ, Operation.WRITE, Operation.DESCRIBE_CONFIGS)
_OFFSET_OUT_OF_RANGE = 1


def ledger_topic(job: str) -> str:
    """The name of a job's ledger topic."""
    return f"lockgate.{job}.ledger"


def transactional_id(job: str) -> str:
    """The transactional id of a job; its consumer group has the same name."""
    return f"lockgate.{job}"


class LedgerTopic:
    """A job's ledger; it remembers how far it has read."""

    def __init__(self, connection: Connection, job: str, *, where: str) -> None:
        self.connection = connection
        self.name = ledger_topic(job)
        self.where = f"ledger topic {self.name!r} at {connection.settings.servers}, {where}"
        self._job = job
        self._position = 0
        self._tail: int | None = None  # after a read: the offset that the next entry must get
        self._last: Last | None = None
        self.stopping = threading.Event()

    @property
    def _clock(self) -> Clock:
        return self.connection.clock

    @property
    def place(self) -> tuple[str, int]:
        """Its one partition."""
        return (self.name, 0)

    @property
    def exists(self) -> bool:
        """Is there such a topic?"""
        return self._asked(
            lambda: (
                self.connection.require_rights(self.name, Operation.READ)
                and self.name in self.connection.shapes([self.name], is_fresh=True)
            )
        )

    def ensure(self, outputs: Iterable[str]) -> bool:
        """Create the topic, or check it if it exists; was it created now?

        Without the right to read its settings, a ledger that forgets would pass for a good one: Denied.
        """
        if self._asked(lambda: self.connection.require_rights(self.name, *_RIGHTS)):
            self._check()
            return False
        shapes = self._asked(lambda: self.connection.shapes(outputs))
        configs = self._asked(lambda: self.connection.configs(topics=list(shapes))) if shapes else {}
        replication = max((shape.replication for shape in shapes.values()), default=-1)
        insync = {text["min.insync.replicas"] for text in configs.values() if "min.insync.replicas" in text}
        settings = {**_SETTINGS, **({"min.insync.replicas": max(insync, key=int)} if insync else {})}
        make_topic(
            self.connection, self.name, partitions=1, replication=replication, configs=settings, where=self.where
        )
        self._asked(lambda: self.connection.require_rights(self.name, *_RIGHTS))  # the next start needs them too
        return True

    def _check(self) -> None:
        shape = self._asked(lambda: self.connection.shapes([self.name], is_fresh=True))[self.name]
        configs = self._asked(lambda: self.connection.configs(topics=[self.name])).get(self.name, {})
        wrong = [f"{key}={configs[key]}" for key, text in _CHECKED.items() if configs.get(key, text) != text]
        if shape.partitions != 1:
            wrong.append(f"{shape.partitions} partitions")
        if wrong:
            raise BadMachine(
                f"the ledger topic has {' and '.join(wrong)}, so it may forget or lose what is committed",
                where=self.where,
                fix="it needs one partition, cleanup.policy=compact and unclean.leader.election.enable=false;"
                " set that with your Kafka tools",
            )

    def read(self) -> Entry | None:
        """The last committed entry. Fence older writers before the call: then no other writer can add one."""
        deadline = self._clock.monotonic() + self.connection.settings.delivery_timeout_ms / 1000
        high_watermark = self._high_watermark(deadline)
        if high_watermark < self._position:
            raise LedgerMismatch(
                f"The ledger of job {self._job!r} has lost records: it ends at {high_watermark},"
                f" and was read up to {self._position} before",
                where=self.where,
                fix="the topic was re-created, or a broker came back without its disk;"
                f" `lockgate ledger set {self._job} --epoch N --checkpoint PLACE --servers HOST:PORT` writes what you"
                " know to be committed",
            )
        pause = 0.002
        while self._position < high_watermark:
            fetched = self._fetch(deadline)
            if fetched is None:
                continue
            # If we waited for the end of a transaction, that end is after the watermark, and the next entry after it.
            high_watermark = max(high_watermark, fetched.high_watermark)
            last, position = last_committed(fetched, key=KEY, below=high_watermark)
            self._last = last or self._last
            if position > self._position:
                self._position = position
            elif fetched.last_stable_offset < high_watermark:
                # A transaction was committed or aborted, but its end is not here yet.
                self._wait(deadline, pause, "its last stable offset stays behind: a transaction is still open in it")
                pause = min(pause * 2, 0.2)
            else:
                self._position = high_watermark  # compaction may leave holes up to the end
        self._tail = high_watermark
        return self._entry_of(self._last)

    def _entry_of(self, last: Last | None) -> Entry | None:
        """The entry of the last record. Older records do not count: if the last one cannot be read, `ledger set` writes
        a new one after it."""
        if last is None:
            return None
        where = f"offset {last.offset} of {self.where}"
        if last.trouble:
            raise InvariantBroken(f"the ledger's last record cannot be read: {last.trouble}", where=where, fix=REPAIR)
        return entry_of(last.value, where)

    def peek(self) -> Entry | None:
        """The last committed entry, without waiting for open transactions: for commands and early refusals."""
        position, found = 0, None
        while True:
            fetched = self._peek_at(position)
            if fetched.code == _OFFSET_OUT_OF_RANGE:
                start = self._start()
                if start <= position:
                    return self._entry_of(found)
                position = start
                continue
            last, after = last_committed(fetched, key=KEY, below=max(0, fetched.last_stable_offset))
            found = last or found
            if after <= position:
                return self._entry_of(found)
            position = after

    def _start(self) -> int:
        return self._asked(lambda: self.connection.start_offset(self.place, leader=self._leader()))[1]

    def _peek_at(self, position: int) -> Fetched:
        def look() -> Fetched:
            try:
                fetched = self.connection.fetch(self.place, position, leader=self._leader())
                if fetched.code in (Code.NONE, _OFFSET_OUT_OF_RANGE):
                    return fetched
                raise Unanswered(name_of(fetched.code))
            except Unanswered:
                # Another broker may lead now: an answer of the old one must not pass for an empty ledger.
                self.connection.shapes([self.name], is_fresh=True)
                raise

        return self._asked(look)

    def write(self, entry: Entry, producer: Producer) -> None:
        """Write an entry in the transaction, which must already include the ledger's partition."""
        batch = self._encode(entry.to_bytes(), producer, now_ms=int(self._clock.time() * 1000))
        deadline = self._clock.monotonic() + self.connection.settings.delivery_timeout_ms / 1000
        told = ""
        while self._clock.monotonic() < deadline and not self.stopping.is_set():
            try:
                request = self.connection.produce_request(transactional_id(self._job), self.place, batch)
                answer = self.connection.ask(request, node=self._leader())
                part = answer.responses[0].partition_responses[0]
                code = int(part.error_code)
            except Unanswered as error:
                told = str(error)
            else:
                if code in (Code.NONE, Code.DUPLICATE_SEQUENCE_NUMBER):
                    self._check_tail(int(part.base_offset))
                    return
                write = Operation.WRITE
                refuse_denied(
                    code,
                    self.connection.settings,
                    self.where,
                    Wanted(write, Kind.TOPIC, self.name),
                    Wanted(write, Kind.TRANSACTIONAL_ID, transactional_id(self._job)),
                )
                if code not in RETRIABLE:
                    raise TransactionLost(
                        f"the marker was refused: {name_of(code)}", where=self.where, fix="the ledger decides"
                    )
                told = name_of(code)
            with suppress(Unanswered):
                self.connection.shapes([self.name], is_fresh=True)
            self._clock.sleep(0.05)
        raise EpochFailed(f"the marker cannot be written: {told}", where=self.where, fix="look at the brokers")

    def _encode(self, value: bytes, producer: Producer, *, now_ms: int) -> bytes:
        import pyarrow as pa

        from lockgate.connectors.kafka.codecs import Codec
        from lockgate.connectors.kafka.encode import Records, encode

        return encode(
            Records(
                keys=pa.array([KEY], pa.binary()),
                values=pa.array([value], pa.binary()),
                headers=None,
                timestamps_ms=None,
            ),
            codec=Codec.NONE,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=0,
            now_ms=now_ms,
        )

    def _check_tail(self, offset: int) -> None:
        """Older writers are fenced, so the new entry must directly follow what was read; else the read was incomplete.

        A broker that lost its network and does not know the new leader would show an older end.
        """
        tail, self._tail = self._tail, None
        if tail is not None and offset >= 0 and offset != tail:
            raise EpochFailed(
                f"the ledger was read up to {tail}, but the next entry is at {offset}",
                where=self.where,
                fix="it was read from a broker that no longer leads it; nothing is committed, and it is read again",
            )

    def _high_watermark(self, deadline: float) -> int:
        pause = 0.01
        while True:
            told = ""
            try:
                code, offset = self.connection.end_offset(self.place, leader=self._leader())
                if not code:
                    return offset
                told = name_of(code)
            except Unanswered as error:
                told = str(error)
            self._wait(deadline, pause, told)
            pause = min(pause * 2, 0.5)
            self._asked(lambda: self.connection.shapes([self.name], is_fresh=True))

    def _fetch(self, deadline: float) -> Fetched | None:
        told = ""
        try:
            fetched = self.connection.fetch(self.place, self._position, leader=self._leader())
            if not fetched.code:
                return fetched
            if fetched.code == _OFFSET_OUT_OF_RANGE and (start := self._start()) > self._position:
                self._position = start
                return None
            told = name_of(fetched.code)
        except Unanswered as error:
            told = str(error)
        self._wait(deadline, 0.05, told)
        self._asked(lambda: self.connection.shapes([self.name], is_fresh=True))
        return None

    def _asked(self, ask: Callable[[], T]) -> T:
        return asked(ask, self.where, clock=self._clock)

    def _leader(self) -> int:
        shape = self._asked(lambda: self.connection.shapes([self.name])).get(self.name)
        if shape is None:
            raise LedgerMismatch(
                f"The ledger topic of job {self._job!r} is gone",
                where=self.where,
                fix=f"it was deleted; `lockgate ledger set {self._job} --epoch N --checkpoint PLACE --servers"
                " HOST:PORT` re-creates it, and first lists what may be doubled or lost",
            )
        return shape.leaders[0]

    def _wait(self, deadline: float, pause_seconds: float, told: str) -> None:
        if self._clock.monotonic() > deadline or self.stopping.is_set():
            raise EpochFailed(
                f"the ledger cannot be read: {told}",
                where=self.where,
                fix="look at the brokers; `lockgate transactions list` shows transactions that hold readers back",
            )
        self._clock.sleep(pause_seconds)
