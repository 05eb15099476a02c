"""The serving process: reads transactions and scores, answers each transaction by its deadline, publishes the answers.

    transactions ─┐
    scores of a  ─┼─> gather until all are there, or until the cut ─> result topic, key = transaction id
    scores of b  ─┘                                                └> GET /transactions/ID

Nothing here is durable, and nothing has to be: the topics hold what arrived and what was answered, and an exactly-once
job joins the full results a second time. A presenter starts at the end of its topics; only the result store answers for
transactions that arrived while none ran. Answers are at-least-once, and keyed: a later one replaces the earlier one.

It reads `read_committed`: a payment of an aborted transaction never happened, and must not be answered. Scores come
from real-time queries, which write without transactions, so for them this costs nothing.

The latency of an answer ends when it is written: at the broker's timestamp if the result topic uses the broker's clock
(`LogAppendTime`), otherwise when its delivery is reported.

One thread does all of this, so only questions wait for a lock. The client is librdkafka, which reads ahead in threads
of its own without Python's lock. Another thread checks whether Kafka answers (reachability.py).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from lockgate.connectors.kafka.allowlist import REFERABLE, hidden
from lockgate.connectors.kafka.rights import Kind, Operation, denied
from lockgate.connectors.kafka.settings import login_name
from lockgate.errors import BadMachine, Failed, Refused, Unreachable
from lockgate.presenter.answers import Answer, Answers
from lockgate.presenter.figures import Tally
from lockgate.presenter.gathering import Gathering, Limits
from lockgate.presenter.reachability import Asking, Reachability
from lockgate.presenter.records import Unreadable, read_score, read_transaction
from lockgate.secrets import resolve, reveal

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, Producer, TopicPartition

_IDLE_SECONDS = 0.05  # how long it waits when nothing is in progress, so that it notices the end
_AT_ONCE = 500  # at most this many records before it reads the clock
_GATHER_SECONDS = 0.002  # how long it collects records after the first: an iteration for each would take most of a core
_REPORT_SECONDS = 0.002  # how often it polls for delivery reports, if they are the only clock of answers
_PATIENCE_SECONDS = 30.0
_AWAY_SECONDS = 10.0  # a broker may take this long to restart before we report it
_ASKED_SECONDS = 2.0
_SILENT_SECONDS = 1.0  # at the end: stop after this long without an earlier record
_JSON = json.JSONEncoder(allow_nan=False)  # created once: `json.dumps` creates one for each answer
_READING = {
    "group.id": "lockgate-presenter",  # the client requires one; nothing is ever committed with it
    "enable.auto.commit": "false",
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
}
_WRITING = {"enable.idempotence": "true", "linger.ms": "1"}
_OTHER_NAMES = {"metadata.broker.list", "queue.buffering.max.ms"}  # aliases of the servers, and of the linger
OWN_SETTINGS = frozenset({"bootstrap.servers", *_OTHER_NAMES, *_READING, *_WRITING})
"""Client settings of the presenter itself: with other values it would not keep its promises."""

UNUSABLE_SETTINGS = {
    "transactional.id": "answers are written without a transaction, because they would have to wait for its end",
    "delivery.report.only.error": "the report of an answer says when it was written",
}
"""Client settings that a presenter cannot work with, and why."""


@dataclass(frozen=True)
class Places:
    """Where a presenter reads and writes."""

    servers: str
    transactions: str
    scores: Mapping[str, str]  # the topic of each analyser
    results: str
    client: Mapping[str, str] = field(default_factory=dict)  # more settings of librdkafka, as for TLS

    def __post_init__(self) -> None:
        object.__setattr__(self, "client", hidden(self.client))


def check_library() -> None:
    """Refuse to start if the client library is missing."""
    try:
        import confluent_kafka  # noqa: F401 - an extra
    except ImportError as error:
        raise BadMachine(
            "The Kafka client of the presenter is not installed.",
            where="package confluent-kafka",
            fix="pip install 'lockgate[presenter]'",
        ) from error


class Presenter:
    """Answers transactions, from `run` until it is stopped."""

    def __init__(
        self,
        places: Places,
        limits: Limits,
        *,
        clock: Callable[[], float] = time.time,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        check_library()
        from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME

        self._by_broker = TIMESTAMP_LOG_APPEND_TIME
        self.tally = Tally(tuple(places.scores))
        self._is_reading = threading.Event()
        self._reach = Reachability(_AWAY_SECONDS, time.monotonic, tell)
        self._places, self._limits, self._clock = places, limits, clock
        self._answers = Answers(limits.held_max)
        self._gathering = Gathering(tuple(places.scores), limits, self.tally, self._answers)
        self._analyser = {topic: analyser for analyser, topic in places.scores.items()}
        self._is_stamped = False  # has the result topic the timestamps of the broker?
        self._refused: Any = None  # the first error of an answer

    def run(self, is_over: threading.Event, *, ready: Callable[[], None] = lambda: None) -> None:
        """Read and answer until it is over. When this returns, all that arrived is answered in the result topic.

        Args:
            ready: called when every later transaction will be answered.
        """
        from confluent_kafka import KafkaException

        consumer, asker, producer = self._clients()
        asking = None
        try:
            ends, results = self._look(consumer)
            consumer.assign(ends)
            self._reach.note(None)
            asking = Asking(lambda: wrong_with(asker, [*ends, *results]), self._reach)
            self._is_reading.set()
            ready()
            while not is_over.is_set():
                self._turn(consumer, producer)
            self._catch_up(consumer, producer, ends)
            for answer in self._gathering.finish(self._clock()):
                self._publish(answer, producer)
            if left := producer.flush(_PATIENCE_SECONDS):
                producer.purge()
                producer.flush(_PATIENCE_SECONDS)  # so that each of them is reported as lost
            self._check_written(left)
        except KafkaException as error:  # ends the client; the next call raises it, whichever it is
            self._refuse_denied(error.args[0], Operation.WRITE, self._places.results)
            raise Failed(
                f"the Kafka client failed: {error.args[0].str()}",
                where=f"presenter, servers {self._places.servers}",
                fix="look at the brokers, and start the presenter again",
            ) from error
        finally:
            self._is_reading.clear()
            if asking is not None:
                asking.stop()
            asker.close()
            consumer.close()

    def trouble(self) -> str | None:
        """Why a new transaction would not be answered; None if it would. For any thread."""
        return self._reach.trouble() if self._is_reading.is_set() else "it has not started to read, or has ended"

    def ask(self, id: str) -> Answer | None:
        """The newest answer for a transaction, which may be in progress or about to arrive; None if it is unknown.

        For any thread.
        """
        return self._answers.get(id, seconds=self._limits.patience, is_under_way=self._gathering.is_under_way)

    def take(self, topic: str, value: bytes | None, *, stamp: float) -> Answer | None:
        """Take a record; returns the answer if this was the last missing part."""
        now = self._clock()
        try:
            if topic == self._places.transactions:
                return self._gathering.add_transaction(read_transaction(value), arrived=stamp, now=now)
            id, score = read_score(value)
        except Unreadable:
            self.tally.unreadable[topic] += 1
            return None
        return self._gathering.add_score(id, self._analyser[topic], score, written=stamp, now=now)

    def cut(self) -> list[Answer]:
        """The partial answers that are due."""
        return self._gathering.cut(self._clock())

    def _catch_up(self, consumer: Consumer, producer: Producer, begun: list[TopicPartition]) -> None:
        """Take what arrived before the end was requested, without waiting for open transactions."""
        from confluent_kafka import KafkaException

        began = silent_since = time.monotonic()
        try:
            ends = [consumer.get_watermark_offsets(place, timeout=_ASKED_SECONDS)[1] for place in begun]
            while time.monotonic() < min(began + _PATIENCE_SECONDS, silent_since + _SILENT_SECONDS):
                # The client knows no position before the first record.
                here = [max(at.offset, place.offset) for at, place in zip(consumer.position(begun), begun, strict=True)]
                if all(offset >= end for offset, end in zip(here, ends, strict=True)):
                    return
                if self._turn(consumer, producer):
                    silent_since = time.monotonic()
        except KafkaException:
            return  # the brokers do not answer: answer what has arrived

    def _turn(self, consumer: Consumer, producer: Producer) -> bool:
        """Take what arrives until the next cut, then cut; returns whether something arrived."""
        cut = self._gathering.next_cut
        wait = _REPORT_SECONDS if self.tally.unwritten and not self._is_stamped else _IDLE_SECONDS
        wait = wait if cut is None else min(wait, max(0.0, cut - self._clock()))
        # `consume` waits until a batch is full or its time is over. So wait for one record, then a moment for others.
        if (first := consumer.poll(wait)) is not None:
            self._take(first, producer)
            cut = self._gathering.next_cut
            moment = _GATHER_SECONDS if cut is None else min(_GATHER_SECONDS, max(0.0, cut - self._clock()))
            for message in consumer.consume(num_messages=_AT_ONCE, timeout=moment):
                self._take(message, producer)
        for answer in self.cut():
            self._publish(answer, producer)
        producer.poll(0)
        self._check_written(0)
        return first is not None

    def _take(self, message: Message, producer: Producer) -> None:
        topic = message.topic()
        if (error := message.error()) is not None:
            from confluent_kafka import KafkaError

            self._refuse_denied(error, Operation.READ, str(topic))
            # The client only reports all other errors, and retries.
            ends = (KafkaError._AUTO_OFFSET_RESET, KafkaError.UNKNOWN_TOPIC_OR_PART)
            if error.fatal() or error.code() in ends:
                raise Failed(
                    f"topic {topic!r} can no longer be read: {error.str()}",
                    where=f"presenter, servers {self._places.servers}",
                    fix="look at the brokers, and start the presenter again",
                )
            return
        answer = self.take(str(topic), message.value(), stamp=message.timestamp()[1] / 1000)
        if answer is not None:
            self._publish(answer, producer)

    def _publish(self, answer: Answer, producer: Producer) -> None:
        from confluent_kafka import KafkaException

        value = _JSON.encode(answer.facts()).encode()
        noted = partial(self._noted, answer)
        self.tally.unwritten += 1
        while True:
            try:
                producer.produce(self._places.results, value, answer.id.encode(), on_delivery=noted)
            except BufferError:  # the broker is slower than we are: let some answers leave first
                producer.poll(_IDLE_SECONDS)
                self._check_written(0)
            except KafkaException as error:
                self._refuse_denied(error.args[0], Operation.WRITE, self._places.results)
                raise Failed(
                    f"the Kafka client refused an answer: {error.args[0].str()}",
                    where=f"presenter, transaction {answer.id!r}, topic {self._places.results!r}",
                    fix="look at the settings that --client names, and start the presenter again",
                ) from error
            else:
                return

    def _noted(self, answer: Answer, error: Any, message: Message) -> None:
        """Count an answer that was delivered or lost."""
        self.tally.unwritten -= 1
        if error is not None:
            self._gathering.note_lost(answer)
            self._refused = self._refused or error
            return
        kind, stamp = message.timestamp()
        self._is_stamped = kind == self._by_broker
        self._gathering.note_written(answer, stamp / 1000 if self._is_stamped else self._clock())

    def _check_written(self, left: int) -> None:
        self._refuse_denied(self._refused, Operation.WRITE, self._places.results)
        if self._refused is not None or left:
            why = f"{left} of them are still on their way" if left else self._refused.str()
            raise Failed(
                f"answers could not be written: {why}",
                where=f"presenter, topic {self._places.results!r}, servers {self._places.servers}",
                fix="look at the brokers, and start the presenter again; what was under way is answered by the result"
                " store alone",
            )

    # The client

    def _clients(self) -> tuple[Consumer, Consumer, Producer]:
        """One that reads, one that looks whether Kafka is there, and one that writes."""
        from confluent_kafka import Consumer, KafkaException, Producer

        common = {**self._settings(), "bootstrap.servers": self._places.servers}
        common.setdefault("log_level", "2")
        try:
            return Consumer({**common, **_READING}), Consumer({**common, **_READING}), Producer({**common, **_WRITING})
        except (KafkaException, TypeError, ValueError, AttributeError) as error:  # those: it wants a function, no text
            told = error.args[0].str() if isinstance(error, KafkaException) else error
            raise Refused(
                f"the Kafka client does not take its settings: {told}",
                where="--client",
                fix="--client NAME=VALUE, by the names that librdkafka has (CONFIGURATION.md there)",
            ) from error

    def _settings(self) -> dict[str, str]:
        """What the client gets, with the values of references."""
        servers = self._places.servers
        return {
            name: reveal(resolve(text, login=login_name(servers, name), where=f"presenter, --client {name}"))
            if name in REFERABLE
            else text
            for name, text in self._places.client.items()
        }

    def _look(self, consumer: Consumer) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """The end of every partition that is read, and the partitions of the result topic."""
        from confluent_kafka import KafkaException

        try:
            read = (self._places.transactions, *self._places.scores.values())
            ends = [place for topic in read for place in self._partitions(consumer, topic, Operation.READ)]
            for place in ends:
                _, place.offset = consumer.get_watermark_offsets(place, timeout=_PATIENCE_SECONDS)
            return ends, self._partitions(consumer, self._places.results, Operation.WRITE)
        except KafkaException as error:
            raise Unreachable(
                f"Kafka at {self._places.servers} does not answer: {error.args[0].str()}",
                where="presenter",
                fix="start it, or name the servers of another: --servers HOST:PORT; a secured one needs --client, as"
                " in --client security.protocol=SASL_SSL",
            ) from error

    def _partitions(self, consumer: Consumer, topic: str, needs: Operation) -> list[TopicPartition]:
        from confluent_kafka import TopicPartition

        found = consumer.list_topics(topic, timeout=_PATIENCE_SECONDS).topics[topic]
        self._refuse_denied(found.error, needs, topic)
        if found.error is not None or not found.partitions:
            raise Unreachable(
                f"topic {topic!r} does not exist: {found.error.str() if found.error else 'it has no partitions'}",
                where=f"presenter, servers {self._places.servers}",
                fix="create it before the presenter starts, as a job that writes to it does",
            )
        return [TopicPartition(topic, partition) for partition in sorted(found.partitions)]

    def _refuse_denied(self, error: Any, operation: Operation, topic: str) -> None:
        """Name the right that is missing, if that is the error.

        The right to write any topic includes that to be idempotent, which is one on the cluster.
        """
        if error is not None and error.code() in (Kind.TOPIC.code, Kind.CLUSTER.code):
            user = self._places.client.get("sasl.username")
            raise denied(self._places.servers, user, [operation], Kind.TOPIC, topic, where="presenter")


def wrong_with(asker: Consumer, places: Sequence[TopicPartition]) -> str | None:
    """Why a partition cannot be read or written; None where the leaders of all have answered."""
    from confluent_kafka import KafkaException

    for place in places:
        try:
            asker.get_watermark_offsets(place, timeout=_ASKED_SECONDS)
        except KafkaException as error:
            return f"partition {place.partition} of topic {place.topic!r}: {error.args[0].str()}"
    return None
