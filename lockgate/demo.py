"""The show: real services, a million payments, a job from topic to topic, and a reader of its own who counts.

Whoever verifies does not believe the job. Every payment is a function of its number, so what must arrive is known
without looking at what was sent or processed, and a reader apart from Spark compares:

    lost          a payment that must arrive and did not
    duplicated    a copy beyond the first; at-least-once allows it
    foreign       a record that no payment explains: damaged, or one that the job had to leave out

It can be shown again and again: every show has topics of its own, those of the show before are deleted, and of the
services only what the show itself has started is stopped.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from lockgate.dataflow.job import Job
from lockgate.dataflow.stream import stream
from lockgate.errors import Failed, Refused
from lockgate.guarantees import Guarantee
from lockgate.kafka.topics import create_topics, existing_topics
from lockgate.planner.plan import plan
from lockgate.runtime.run import Run, run
from lockgate.services.stack import Stack
from lockgate.sinks.kafka import KafkaSink
from lockgate.sources.kafka import KafkaSource
from lockgate.spark.jars import connector_jars
from lockgate.spark.session import SessionPlan, open_session

EVENTS = 1_000_000
PARTITIONS = 4
EPOCHS = 8
"""About so many epochs, so that there is something to watch."""

LIMIT_CENTS = 50_000
PAYMENT = "id BIGINT, account STRING, cents INT, currency STRING, at TIMESTAMP"
PREFIX = "lockgate-demo-"
"""Topics with this prefix are ours to delete."""

_BEGAN = datetime(2026, 1, 1, tzinfo=timezone.utc)
_SILENCE_SECONDS = 60.0

Tell = Callable[[str], None]
GoOn = Callable[[], None]


def job(servers: str, payments: str, large: str) -> Job:
    """Payments above a limit, from one topic into another."""
    chosen = (
        stream("payments", KafkaSource(topic=payments, servers=servers, value=PAYMENT))
        .where(f"cents > {LIMIT_CENTS}")
        .select("id", "account", "cents", "at")
    )
    return Job(
        "demo-large-payments",
        chosen.to("large", KafkaSink(topic=large, servers=servers, key="account")),
        guarantee=Guarantee.AT_LEAST_ONCE,
    )


# -- the payments: the same arithmetic twice, in SQL for whoever sends and in Python for whoever verifies ------------

_PAYMENT_SQL = (
    "id",
    "concat('account-', lpad(string(id * 31 % 10000), 4, '0')) AS account",
    "int(id * 7919 % 100000) AS cents",
    "'EUR' AS currency",
    f"timestamp_millis({int(_BEGAN.timestamp() * 1000)} + id) AS at",
)


def cents_of(id: int) -> int:
    """The amount of a payment."""
    return id * 7919 % 100_000


def large_payment(id: int) -> dict[str, object]:
    """A payment as the job must write it."""
    at = _BEGAN + timedelta(milliseconds=id)
    return {
        "id": id,
        "account": f"account-{id * 31 % 10_000:04}",
        "cents": cents_of(id),
        "at": f"{at:%Y-%m-%dT%H:%M:%S.%f}Z",
    }


# -- the verification -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tally:
    """What must have arrived, compared with what did."""

    expected_count: int
    delivered_count: int
    lost_count: int
    duplicated_count: int
    foreign_count: int
    expected_cents: int
    delivered_cents: int  # of every payment once
    examples: tuple[str, ...]  # the first few of what is wrong

    @property
    def holds(self) -> bool:
        """Is every expected payment there, and nothing that is none?"""
        return not self.lost_count and not self.foreign_count and self.expected_cents == self.delivered_cents


def count_delivered(values: Iterable[bytes], sent_count: int) -> Tally:
    """Compare delivered records with what must come of the payments 0 .. sent_count - 1."""
    seen = bytearray(sent_count)
    delivered = duplicated = foreign = delivered_cents = 0
    examples: list[str] = []
    for value in values:
        delivered += 1
        id = _recognise(value, sent_count)
        if id is None:
            foreign += 1
            if len(examples) < 5:
                examples.append(f"foreign: {value[:200]!r}")
        elif seen[id]:
            duplicated += 1
        else:
            seen[id] = 1
            delivered_cents += cents_of(id)
    expected = lost = expected_cents = 0
    for id in range(sent_count):
        cents = cents_of(id)
        if cents > LIMIT_CENTS:
            expected += 1
            expected_cents += cents
            if not seen[id]:
                lost += 1
                if len(examples) < 5:
                    examples.append(f"lost: {large_payment(id)}")
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


def _recognise(value: bytes, sent_count: int) -> int | None:
    """The number of the payment that this record is, whole and rightly chosen; None where it is none."""
    try:
        row = json.loads(value)
    except ValueError:
        return None
    id = row.get("id") if isinstance(row, dict) else None
    if type(id) is not int or not 0 <= id < sent_count or cents_of(id) <= LIMIT_CENTS:
        return None
    return id if row == large_payment(id) else None


def read_values(servers: str, topic: str) -> Iterator[bytes]:
    """The committed records of a topic up to its end as it is now, read without Spark."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=servers.split(","),
        isolation_level="read_committed",
        auto_offset_reset="none",
        enable_auto_commit=False,
        max_poll_records=10_000,
    )
    try:
        partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        heard = time.monotonic()
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            batches = consumer.poll(timeout_ms=500)
            for partition, records in batches.items():
                yield from (record.value for record in records if record.offset < ends[partition])
            now = time.monotonic()
            heard = now if batches else heard
            if now - heard > _SILENCE_SECONDS:
                raise Failed(
                    f"Topic {topic!r} cannot be read to its end: nothing came for {_SILENCE_SECONDS:.0f} s.",
                    where=f"Kafka at {servers}",
                    fix="see the broker's log (lockgate status names it), then run the demo again",
                )
    finally:
        consumer.close()


# -- the show ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """What a show did, as facts."""

    kafka_servers: str
    kafka_log: str
    are_services_left_running: bool
    topic_in: str
    topic_out: str
    partitions: int
    sent_count: int
    sent_seconds: float
    declared: Guarantee
    reached: Guarantee
    reasons: tuple[str, ...]
    epoch_count: int
    run_seconds: float
    checkpoint: str
    log: str
    tally: Tally
    verified_seconds: float

    @property
    def events_per_second(self) -> float:
        """From the start of the query to its end, warm-up included."""
        return self.sent_count / self.run_seconds

    def as_json(self) -> dict[str, Any]:
        """The facts as plain data."""
        return {
            **asdict(self),
            "declared": self.declared.name,
            "reached": self.reached.name,
            "events_per_second": round(self.events_per_second),
            "tally": asdict(self.tally),
            "holds": self.tally.holds,
        }

    def lines(self) -> list[str]:
        """The facts in ten lines for people; more only where something is wrong."""
        tally = self.tally
        left = "still running" if self.are_services_left_running else "started for this and stopped again"
        verdict = "every expected payment arrived" if tally.holds else "NOT what was expected"
        wrong = f"lost {tally.lost_count:,}, duplicated {tally.duplicated_count:,}, foreign {tally.foreign_count:,}"
        speed = f"{self.run_seconds:.1f} s, {self.events_per_second:,.0f} events/s with warm-up"
        told = {
            "services": f"Kafka at {self.kafka_servers}, {left}",
            "sent": f"{self.sent_count:,} payments to {self.topic_in}, {self.partitions} partitions",
            "job": f"payments above {LIMIT_CENTS / 100:.2f} EUR, to {self.topic_out}",
            "guarantee": f"declared {self.declared.label}, reached {self.reached.label}",
            "because": "; ".join(self.reasons),
            "run": f"{self.epoch_count} epochs, {speed}",
            "expected": f"{tally.expected_count:,} payments, {_euro(tally.expected_cents)}, computed without the run",
            "delivered": f"{tally.delivered_count:,} records, {_euro(tally.delivered_cents)}: {wrong}; {verdict}",
            "files": f"checkpoint {_short(self.checkpoint)}, logs {_short(self.log)}, {_short(self.kafka_log)}",
            "next": "lockgate up; python examples/hashtags.py; lockgate plan examples/order_volume.py",
        }
        return [*(f"{label:<11} {text}" for label, text in told.items()), *tally.examples]


def show(
    stack: Stack,
    home: Path,
    *,
    events: int,
    now: datetime,
    tell: Tell,
    watch: Callable[[Run], None],
    go_on: GoOn = lambda: None,
) -> Report:
    """Start what is missing, send, run, verify, and stop what was started.

    Args:
        home: the directory of the show's checkpoint and log; an earlier show's are replaced.
        now: names the topics.
        watch: waits for the end of a run, in front of whoever looks on.
        go_on: called between the steps; what it raises ends the show.
    """
    if events < 1:
        raise Refused(f"{events} events are no show", where="--events", fix="send at least one")
    with _alone(home), _services(stack, tell) as is_left_running:
        status = stack.status().kafka
        servers = status.servers or ""
        checkpoint, log = home / "checkpoint", home / "demo.spark.log"
        shutil.rmtree(checkpoint, ignore_errors=True)
        log.unlink(missing_ok=True)
        name = f"{PREFIX}{now:%Y%m%d-%H%M%S}"
        payments, large = f"{name}-payments", f"{name}-large"
        _delete_topics(servers)
        create_topics(servers, [payments, large], partitions=PARTITIONS, where="the demo's topics")
        described = job(servers, payments, large)
        planned = plan(described)
        go_on()
        with _driver(log, tell) as spark:
            began = time.monotonic()
            for first in range(0, events, part := max(1, events // 10)):
                go_on()
                last = min(events, first + part)
                frame = spark.range(first, last, numPartitions=PARTITIONS).selectExpr(*_PAYMENT_SQL)
                KafkaSink(topic=payments, servers=servers, key="account").write(frame, epoch=0)
                tell(f"sent {last:,} of {events:,} payments")
            sent_seconds = time.monotonic() - began
            _require_sent(servers, payments, events)
            go_on()
            tell(f"running job {described.name}, declared {planned.declared.label}, reached {planned.reached.label}")
            began = time.monotonic()
            started = run(
                described,
                checkpoint=str(checkpoint),
                until_caught_up=True,
                rows_per_epoch=events // EPOCHS + PARTITIONS,
                log_file=log,
                wait=False,
            )
            try:
                watch(started)
            except BaseException:
                started.stop()
                raise
            run_seconds = time.monotonic() - began
        go_on()
        tell("verifying: reading every record of the output back, apart from Spark")
        began = time.monotonic()
        tally = count_delivered(_watched(read_values(servers, large), tell, go_on), events)
        return Report(
            kafka_servers=servers,
            kafka_log=status.brokers[0].log,
            are_services_left_running=is_left_running,
            topic_in=payments,
            topic_out=large,
            partitions=PARTITIONS,
            sent_count=events,
            sent_seconds=round(sent_seconds, 3),
            declared=planned.declared,
            reached=planned.reached,
            reasons=planned.reasons,
            epoch_count=sum(1 for entry in (checkpoint / "commits").iterdir() if entry.name.isdigit()),
            run_seconds=round(run_seconds, 3),
            checkpoint=str(checkpoint),
            log=str(log),
            tally=tally,
            verified_seconds=round(time.monotonic() - began, 3),
        )


@contextlib.contextmanager
def _alone(home: Path) -> Iterator[None]:
    """One show at a time in a directory: the next one deletes what the last one left."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                "a demo is running here already", where=str(home), fix="wait for its end, or use another LOCKGATE_HOME"
            ) from None
        yield


@contextlib.contextmanager
def _services(stack: Stack, tell: Tell) -> Iterator[bool]:
    """Kafka, for as long as it is needed; whether it goes on running afterwards."""
    before = stack.status()
    was_anything_running = before.postgres.running or any(broker.running for broker in before.kafka.brokers)
    is_left_running = not stack.up(postgres=False, progress=tell) or was_anything_running
    try:
        yield is_left_running
    finally:
        if not is_left_running:
            stack.down(progress=tell)


@contextlib.contextmanager
def _driver(log: Path, tell: Tell) -> Iterator[Any]:
    """A Spark session; a driver that was not there before is stopped at the end."""
    from pyspark import SparkContext

    was_there = SparkContext._active_spark_context is not None
    tell("starting Spark")
    on_interrupt = signal.getsignal(signal.SIGINT)
    spark = open_session(SessionPlan(app="lockgate demo", master=None, jars=connector_jars(), log_file=log.resolve()))
    if threading.current_thread() is threading.main_thread():
        # A new driver takes Ctrl-C for itself; whoever shows has decided about that already.
        signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield spark
    finally:
        if not was_there:
            spark.sparkContext.stop()


def _watched(values: Iterator[bytes], tell: Tell, go_on: GoOn) -> Iterator[bytes]:
    for count, value in enumerate(values, start=1):
        yield value
        if count % 20_000 == 0:
            go_on()
        if count % 100_000 == 0:
            tell(f"read {count:,} records back")


def _delete_topics(servers: str) -> None:
    from kafka import KafkaAdminClient

    old = [topic for topic in existing_topics(servers, where="the demo's topics") if topic.startswith(PREFIX)]
    if old:
        admin = KafkaAdminClient(bootstrap_servers=servers.split(","))
        try:
            admin.delete_topics(old)
        finally:
            admin.close()


def _require_sent(servers: str, topic: str, events: int) -> None:
    """Spark's writer may send a record again after a failure of its own; then the topic is not what the show needs."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=servers.split(","))
    try:
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        there = sum(consumer.end_offsets(partitions).values())
    finally:
        consumer.close()
    if there != events:
        raise Failed(
            f"{events:,} payments were to be sent, but topic {topic!r} holds {there:,}.",
            where=f"Kafka at {servers}",
            fix="run the demo again",
        )


def _euro(cents: int) -> str:
    return f"{cents / 100:,.2f} EUR"


def _short(path: str) -> str:
    """A path as it is seen from here."""
    with contextlib.suppress(ValueError):
        return str(Path(path).relative_to(Path.cwd()))
    return path
