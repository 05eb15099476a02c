"""The model of the broker against a real one: the same sequences of requests get the same answers and show the same.

Each sequence is made from a seed: producers begin, add partitions, write (in order, again, or with a gap), commit and
abort, also under producer epochs that are over, and in partitions that are not part of the transaction. After each
request the codes are compared, and what it gave: producer epochs, offsets. After each end, high watermark, last stable
offset and the committed rows of all partitions.

A decided transaction is given the time to write its ends before the next request: when it does so is the broker's to
choose, and the simulation has every order of it.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4

import pyarrow as pa
import pytest

from lockgate.connectors.kafka.batches import read_batches
from lockgate.connectors.kafka.codecs import Codec
from lockgate.connectors.kafka.encode import Records, encode
from lockgate.connectors.kafka.errorcodes import RETRIABLE, Code
from lockgate.connectors.kafka.settings import read_settings
from lockgate.connectors.kafka.topics import make_topic
from lockgate.connectors.kafka.transaction import DECIDED
from lockgate.connectors.kafka.wire import Connection, Place, Producer, Unanswered
from lockgate.lab.prove.simulation.broker import Broker
from lockgate.lab.prove.simulation.checks import committed

PARTITIONS = 3
LONG_MS = 60_000
ANSWER_SECONDS = 30.0


@dataclass(frozen=True)
class Shown:
    """What a partition shows."""

    high_watermark: int
    stable: int
    rows: tuple[int, ...]


class Side(Protocol):
    """A broker, real or not."""

    def init(self, name: str, timeout_ms: int) -> tuple[int, Producer]: ...
    def add(self, name: str, producer: Producer, partition: int) -> int: ...
    def produce(
        self, name: str, producer: Producer, partition: int, sequence: int, rows: list[int]
    ) -> tuple[int, int]: ...
    def end(self, name: str, producer: Producer, *, is_commit: bool) -> int: ...
    def show(self, partition: int) -> Shown: ...


class ModelSide:
    """The model; ends are written as soon as they are decided."""

    def __init__(self) -> None:
        self.broker = Broker()

    def init(self, name: str, timeout_ms: int) -> tuple[int, Producer]:
        while True:
            code, producer = self.broker.init_producer(name, timeout_ms)
            if code != Code.CONCURRENT_TRANSACTIONS:
                return code, producer
            self.settle()

    def add(self, name: str, producer: Producer, partition: int) -> int:
        return self.broker.add_partitions(name, producer, [("out", partition)])

    def produce(self, name: str, producer: Producer, partition: int, sequence: int, rows: list[int]) -> tuple[int, int]:
        return self.broker.produce(
            name, ("out", partition), producer, sequence=sequence, count=len(rows), payload=tuple(rows)
        )

    def end(self, name: str, producer: Producer, *, is_commit: bool) -> int:
        code = self.broker.end_transaction(name, producer, is_commit=is_commit)
        self.settle()
        return code

    def show(self, partition: int) -> Shown:
        log = self.broker.partition(("out", partition))
        rows = tuple(row for payload in committed(self.broker, ("out", partition), 0) for row in payload)
        return Shown(log.end, log.stable, rows)

    def time_out(self, seconds: float) -> None:
        self.broker.now += seconds
        assert self.broker.time_out()
        self.settle()

    def settle(self) -> None:
        while self.broker.unwritten:
            self.broker.write_end(self.broker.unwritten[0])


@dataclass
class RealSide:
    """A real broker; producer ids are its own, so they are told by the order in which they were first seen."""

    connection: Connection
    topic: str
    ids: list[int] = field(default_factory=list)

    def init(self, name: str, timeout_ms: int) -> tuple[int, Producer]:
        for _ in _patience():
            try:
                code, producer = self.connection.init_producer(name, timeout_ms)
            except Unanswered:  # a broker that is new makes the topic of its coordinators first
                continue
            if code not in RETRIABLE:
                if not code and producer.id not in self.ids:
                    self.ids.append(producer.id)
                return code, Producer(self.ids.index(producer.id) + 1, producer.epoch)
        raise AssertionError

    def add(self, name: str, producer: Producer, partition: int) -> int:
        for _ in _patience():
            (code,) = self.connection.add_partitions(name, self._real(producer), [self._place(partition)]).values()
            if code not in RETRIABLE:
                return code
        raise AssertionError

    def produce(self, name: str, producer: Producer, partition: int, sequence: int, rows: list[int]) -> tuple[int, int]:
        real = self._real(producer)
        batch = encode(
            Records(keys=None, values=pa.array([str(row).encode() for row in rows], pa.binary())),
            codec=Codec.NONE,
            producer_id=real.id,
            producer_epoch=real.epoch,
            base_sequence=sequence,
            now_ms=int(time.time() * 1000),
        )
        for _ in _patience():
            request = self.connection.produce_request(name, self._place(partition), batch)
            part = self.connection.ask(request, node=self._leader(partition)).responses[0].partition_responses[0]
            if part.error_code not in RETRIABLE:
                return int(part.error_code), int(part.base_offset)
        raise AssertionError

    def end(self, name: str, producer: Producer, *, is_commit: bool) -> int:
        for _ in _patience():
            code = self.connection.end_transaction(name, self._real(producer), is_commit=is_commit)
            if code not in RETRIABLE:
                self.settle(name)
                return code
        raise AssertionError

    def show(self, partition: int) -> Shown:
        place = self._place(partition)
        for _ in _patience():
            code, high_watermark = self.connection.end_offset(place, leader=self._leader(partition))
            fetched = self.connection.fetch(place, 0, leader=self._leader(partition))
            if code not in RETRIABLE and fetched.code not in RETRIABLE:  # a leader may not know yet that it is one
                rows = (int(record.value) for batch, is_seen in read_batches(fetched) if is_seen for record in batch)
                return Shown(high_watermark, fetched.last_stable_offset, tuple(rows))
        raise AssertionError

    def settle(self, name: str) -> None:
        for _ in _patience():
            code, view = self.connection.describe_transaction(name)
            if not code and view.state not in DECIDED:
                return

    def _place(self, partition: int) -> Place:
        return (self.topic, partition)

    def _leader(self, partition: int) -> int:
        return self.connection.shapes([self.topic])[self.topic].leaders[partition]

    def _real(self, producer: Producer) -> Producer:
        return Producer(self.ids[producer.id - 1], producer.epoch)


def _patience() -> Iterator[None]:
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline:
        yield
        time.sleep(0.005)
    pytest.fail(f"the broker is not ready after {ANSWER_SECONDS} s")


@pytest.fixture(scope="module")
def connection(kafka: str) -> Iterator[Connection]:
    connection = Connection(read_settings(kafka, {}, where="test"), where="test")
    yield connection
    connection.close()


@pytest.fixture
def sides(connection: Connection) -> tuple[ModelSide, RealSide]:
    topic = f"model-{uuid4().hex[:8]}"
    make_topic(connection, topic, partitions=PARTITIONS, where="test")
    return ModelSide(), RealSide(connection, topic)


class Sequence:
    """A sequence of requests, put to both sides."""

    def __init__(self, seed: int, sides: tuple[ModelSide, RealSide]) -> None:
        self.rng = random.Random(seed)
        self.sides = sides
        self.names = [f"model-{uuid4().hex[:8]}" for _ in range(2)]
        self.producers: dict[str, list[Producer]] = {name: [] for name in self.names}
        self.sequences: dict[tuple[Producer, int], list[tuple[int, int]]] = {}
        self.rows = 0
        self.told: list[str] = []
        self.codes: set[int] = set()

    def run(self, requests: int) -> None:
        for name in self.names:
            self.init(name)
        for _ in range(requests):
            name = self.rng.choice(self.names)
            known = self.producers[name]
            producer = known[-1] if self.rng.random() < 0.85 else self.rng.choice(known)
            if self.rng.random() < 0.06:
                self.init(name)
            else:
                self.rng.choices((self.add, self.produce, self.end), weights=(4, 9, 3))[0](name, producer)
        self.show()

    def init(self, name: str, timeout_ms: int = LONG_MS) -> None:
        _, producer = self.require_same(f"{name} begins", lambda side: side.init(name, timeout_ms))
        self.producers[name].append(producer)

    def add(self, name: str, producer: Producer) -> None:
        partition = self.rng.randrange(PARTITIONS)
        self.require_same(f"{producer} adds {partition}", lambda side: side.add(name, producer, partition))

    def produce(self, name: str, producer: Producer) -> None:
        partition = self.rng.randrange(PARTITIONS)
        done = self.sequences.setdefault((producer, partition), [])
        sequence, count = sum(size for _, size in done), self.rng.randint(1, 2)
        choice = self.rng.random()
        if choice < 0.2 and done:
            sequence, count = self.rng.choice(done)
        elif choice < 0.3:
            sequence += self.rng.randint(1, 3)
        rows = list(range(self.rows, self.rows + count))
        self.rows += count
        code, _ = self.require_same(
            f"{producer} writes {rows} to {partition} from {sequence}",
            lambda side: side.produce(name, producer, partition, sequence, rows),
        )
        if code == Code.NONE and (sequence, count) not in done:
            done.append((sequence, count))

    def end(self, name: str, producer: Producer) -> None:
        is_commit = self.rng.random() < 0.7
        self.require_same(
            f"{producer} {'commits' if is_commit else 'aborts'}",
            lambda side: side.end(name, producer, is_commit=is_commit),
        )
        self.show()

    def show(self) -> None:
        for partition in range(PARTITIONS):
            self.require_same(f"partition {partition} shows", lambda side, one=partition: side.show(one))

    def require_same(self, what: str, ask: Any) -> Any:
        expected, found = (ask(side) for side in self.sides)
        self.told.append(f"{what}: {found}")
        code = found[0] if isinstance(found, tuple) else found
        if isinstance(code, int):
            self.codes.add(code)
        assert found == expected, "\n".join([*self.told, f"and the model says {expected}"])
        return found


@pytest.mark.system
def test_the_model_answers_as_a_real_broker_does_and_shows_the_same(sides: tuple[ModelSide, RealSide]) -> None:
    codes: set[int] = set()
    _, real = sides
    topics = [real.topic]
    for seed in range(30):
        if seed:  # an empty topic each, so that offsets are the model's
            topics.append(f"model-{uuid4().hex[:8]}")
            make_topic(real.connection, topics[-1], partitions=PARTITIONS, where="test")
        sequence = Sequence(seed, (ModelSide(), RealSide(real.connection, topics[-1])))
        sequence.run(requests=40)
        codes |= sequence.codes
    # Else the sequences are not what they are meant to be.
    assert {
        Code.NONE,
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
        Code.INVALID_PRODUCER_EPOCH,
        Code.INVALID_TXN_STATE,
        Code.PRODUCER_FENCED,
        Code.TRANSACTION_ABORTABLE,
    } <= codes


@pytest.mark.system
def test_a_time_out_shuts_the_writer_out_in_the_model_as_on_a_real_broker(sides: tuple[ModelSide, RealSide]) -> None:
    model, real = sides
    sequence = Sequence(0, sides)
    name = sequence.names[0]
    sequence.init(name, timeout_ms=1000)
    (producer,) = sequence.producers[name]
    sequence.require_same("add", lambda side: side.add(name, producer, 0))
    sequence.require_same("write", lambda side: side.produce(name, producer, 0, 0, [1]))
    sequence.require_same("show", lambda side: side.show(0))
    model.time_out(seconds=2)
    for _ in _patience():
        if real.connection.describe_transaction(name)[1].state == "CompleteAbort":
            break
    sequence.require_same("show", lambda side: side.show(0))
    sequence.require_same("write on", lambda side: side.produce(name, producer, 0, 1, [2]))
    sequence.require_same("write elsewhere", lambda side: side.produce(name, producer, 1, 0, [3]))
    sequence.require_same("add", lambda side: side.add(name, producer, 1))
    sequence.require_same("commit", lambda side: side.end(name, producer, is_commit=True))
    sequence.init(name)
    sequence.require_same("add", lambda side: side.add(name, sequence.producers[name][-1], 0))
    sequence.require_same("write", lambda side: side.produce(name, sequence.producers[name][-1], 0, 0, [4]))
    sequence.require_same("commit", lambda side: side.end(name, sequence.producers[name][-1], is_commit=True))
    sequence.show()


def test_a_model_that_differs_is_reported_with_the_requests_that_led_there() -> None:
    """The comparison itself, against a second model that forgets what was written in the second place."""
    other = ModelSide()
    produce = other.broker.produce

    def forget(*facts: Any, **more: Any) -> tuple[int, int]:
        code, offset = produce(*facts, **more)
        return (code, offset + 1) if offset > 0 else (code, offset)

    other.broker.produce = forget  # type: ignore[method-assign]
    sequence = Sequence(1, (ModelSide(), other))  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=r"begins(.|\n)*and the model says"):
        sequence.run(requests=200)
