"""The driver's side of an epoch into Kafka: rows to writers, votes back, one transaction.

Rows must reach the one writer of their partition:

    rows                                                 how they get there
    without a key, and no partition asked for            coalesced to at most as many tasks as there are partitions
    partitioned alike in the source and in the topic     as they are; exchanged if that turns out wrong
    all others                                           exchanged by partition; a writer owns several of them

All Kafka outputs of a job share the transaction, so a reader of two topics never sees half an epoch for long.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lockgate.commit.causes import find_cause
from lockgate.commit.coordinator import Coordinator, Outcome, Work
from lockgate.commit.followers import Followers, Rows
from lockgate.commit.ledger import Entry, reset_entry
from lockgate.commit.permits import Permits, PermitServer, Place
from lockgate.commit.protocol import Cause, Epoch, Vote
from lockgate.connectors.kafka.ledgeredit import replace_entry
from lockgate.connectors.kafka.ledgertopic import LedgerTopic, transactional_id
from lockgate.connectors.kafka.partitioning import place_hash
from lockgate.connectors.kafka.settings import ClientSettings, read_settings
from lockgate.connectors.kafka.task import VOTES, PartitionShared, WriteOrder
from lockgate.connectors.kafka.topics import (
    OutputTopic,
    asked,
    describe_outputs,
    make_topic,
    refuse_old_broker,
    require_writable,
    transaction_timeout_ms,
)
from lockgate.connectors.kafka.transaction import GONE_SECONDS, Transactions, refuse_gone
from lockgate.connectors.kafka.wire import Producer, connect
from lockgate.dataflow.locations import Topic
from lockgate.errors import BadJob, EpochFailed, InvariantBroken, LedgerMismatch, LockgateError, TopicGone
from lockgate.failures import TRIED, find_error, find_raised
from lockgate.faultpoints import armed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_LOOK_EVERY_SECONDS = 5.0
_ROUTED_TOPICS = 100  # this many topics of a route are spread over writers by partition, others as a whole


@dataclass(frozen=True)
class RecordColumns:
    """The records of an epoch as columns of one frame."""

    frame: DataFrame
    # topic, key and value (text stays text: Spark gives it to Arrow without a copy), and, if there are any, partition,
    # headers and timestamp
    columns: Mapping[str, Column]


@dataclass(frozen=True)
class EpochRows:
    """What is to be written in an epoch, and what is known of it."""

    records: RecordColumns
    can_repeat: bool
    is_alike: bool = False  # does every task hold the rows of one output partition, as far as the plan knows?
    offsets: Mapping[Place, int] = field(default_factory=dict)
    staged: Rows = field(default_factory=dict)  # what other systems stage
    check: Callable[[], None] = lambda: None  # called before the decision: are the sources still what was read?


class KafkaEpochs:
    """The transactional writer of a job's Kafka outputs; lives as long as the driver runs the job."""

    def __init__(
        self,
        job: str,
        outputs: Sequence[Topic],
        *,
        spark: SparkSession,
        where: str,
        followers: Followers | None = None,
        is_adopting: bool = False,
        is_reset: bool = False,
        is_second: bool = False,
    ) -> None:
        self.job = job
        self.where = where
        self._outputs = tuple(outputs)
        self._settings = common_settings(outputs, where)
        self._connection = connect(self._settings, where=where)
        refuse_old_broker(self._connection, where=where)
        timeout_ms = transaction_timeout_ms(self._connection, where=where)
        self.ledger = LedgerTopic(self._connection, job, where=where)
        self._names = [*dict.fromkeys(one.name for one in outputs if one.name is not None)]
        missing = [name for name in self._names if not require_writable(self._connection, name, where)]
        if is_reset or not self._has_committed():
            # The topics of a job that starts. A topic that is missing later was deleted, and is not silently created.
            for name in missing:
                make_topic(self._connection, name, where=self.where)
        if is_adopting:
            self._refuse_second_adoption()
        self._topics: dict[str, OutputTopic] = {}
        self._topics = self._find_topics()
        self.ledger.ensure(self._topics)
        self._transactions = Transactions(self._connection, transactional_id(job), timeout_ms=timeout_ms, where=where)
        self._permits = Permits()
        conf = spark.sparkContext._conf  # getConf() copies all settings, one call to the JVM for each
        host = conf.get("spark.driver.host") or "127.0.0.1"
        self._permit_server = PermitServer(self._permits, host=host, bind=conf.get("spark.driver.bindAddress") or host)
        self._followers = followers or Followers(job, {})
        self._coordinator = Coordinator(
            job,
            transactions=self._transactions,
            ledger=self.ledger,
            permits=self._permits,
            followers=self._followers,
            is_adopting=is_adopting,
            can_roll_back=not is_second,
        )
        self.spark = spark
        self._first: LockgateError | None = None  # the error of the first task that failed in this epoch
        self._hashes: dict[bool, Column] = {}
        self._committing = threading.Lock()  # an epoch of a query that is being stopped may still be at work

    def stop(self) -> None:
        """Give up what takes long: the run should end."""
        self._transactions.stopping.set()
        self.ledger.stopping.set()

    def close(self) -> None:
        """Admit no more tasks."""
        self._permits.close()
        self._permit_server.close()
        self._followers.close()

    def _has_committed(self) -> bool:
        entry = self.ledger.peek() if self.ledger.exists else None
        return entry is not None and entry.epoch is not None

    def _refuse_second_adoption(self) -> None:
        """A checkpoint is adopted once. Later an empty ledger is a lost one, and to adopt again would be to guess."""
        group = transactional_id(self.job)
        # On a cluster that never had a group, the topic of their offsets is created when the first one is asked for.
        if not self._has_committed() and asked(lambda: self._connection.has_group_offsets(group), self.where):
            raise LedgerMismatch(
                f"job {self.job!r} was adopted before: it has committed offsets as group {group!r}, but its ledger is"
                " empty or gone",
                where=self.where,
                fix=f"remove adopt=True; `lockgate ledger set {self.job} --epoch N --checkpoint PLACE --servers"
                " HOST:PORT` writes what you know to be committed",
            )

    def forget(self) -> None:
        """Let the ledger say that nothing is committed: the job starts over, and delivers committed rows again."""
        try:
            seen = self.ledger.peek()
        except InvariantBroken:
            seen = None  # an entry that cannot be read is forgotten too
        entry = reset_entry(datetime.now(UTC))
        replace_entry(self.ledger, self._transactions, seen, entry)
        self._followers.forget(entry)

    @property
    def cluster(self) -> str:
        """The id of the cluster, by whichever of its addresses it is reached."""
        return asked(self._connection.cluster_id, self.where)

    def claim(self, epoch: Epoch, *, query_run: str) -> Entry | None:
        """Take over the ledger, before anything is written anywhere; its entry then, None if that was done before."""
        with self._committing:
            self._coordinator.enter(query_run)
            return self._coordinator.claim(epoch)

    @property
    def open_seconds(self) -> float | None:
        """How long the transaction is open; None if none is."""
        return self._coordinator.open_seconds

    def clear_error(self) -> None:
        """Forget what failed before this epoch."""
        self._first = None

    def commit(self, epoch: Epoch, rows: EpochRows, *, query_run: str) -> Outcome:
        """Make an epoch visible once. `query_run` is Spark's id of this start of the query."""
        with self._committing:
            self._coordinator.enter(query_run)
            self._first = None
            outcome = self._coordinator.commit(
                epoch,
                Work(
                    write=lambda producer, name, is_exchanging: self._write(rows, producer, name, is_exchanging),
                    skip=lambda: _compute(rows.records),
                    check=lambda: self._check(rows),
                    cause_of=self._cause_of,
                    stage=lambda: self._followers.stage(rows.staged, epoch.number),
                    can_repeat=rows.can_repeat,
                    offsets=rows.offsets,
                ),
            )
            self._first = None  # what failed was fixed; another cluster may be asked next for what failed there
            return outcome

    def _find_topics(self) -> dict[str, OutputTopic]:
        """The topics of the outputs, and for routed rows those that were seen before."""
        self._looked_at, self._is_look_due = time.monotonic(), False
        known = [*dict.fromkeys([*self._names, *self._topics])]
        found = describe_outputs(self._connection, known, where=self.where)
        deadline = time.monotonic() + GONE_SECONDS  # a broker that has just returned may not know all topics yet
        while not set(self._names) <= set(found) and time.monotonic() < deadline:
            time.sleep(0.2)
            found = describe_outputs(self._connection, known, where=self.where)
        refuse_gone(self._connection, set(self._names) - set(found), where=self.where)
        self._refuse_recreated({name: topic.id for name, topic in found.items()})
        return found

    def _check(self, rows: EpochRows) -> None:
        rows.check()
        self._check_topics()

    def _check_topics(self) -> None:
        """Are the topics still those that the epoch was written to? The content of a deleted topic is gone."""
        shapes = asked(lambda: self._connection.shapes(self._topics, is_fresh=True), self.where)
        self._refuse_recreated({name: shape.id for name, shape in shapes.items()})
        refuse_gone(self._connection, set(self._names) - set(shapes), where=self.where)

    def _refuse_recreated(self, ids: Mapping[str, str]) -> None:
        for name, id in ids.items():
            if name in self._topics and self._topics[name].id != id:
                raise TopicGone(
                    f"topic {name!r} was deleted and re-created while the job ran",
                    where=self.where,
                    fix="what was in it is gone; see that it has the partitions it should have, and continue with the"
                    " epoch that could not be written: lockgate run --accept-outputs",
                )

    def _write(self, rows: EpochRows, producer: Producer, name: str, is_exchanging: bool) -> tuple[Sequence[Vote], int]:
        if self._is_look_due or time.monotonic() - self._looked_at > _LOOK_EVERY_SECONDS:  # partitions may be new
            self._topics = self._find_topics()
        placed, spread_over = self._place(rows, is_exchanging)
        only = self._outputs[0].name if len(self._outputs) == 1 else None
        order = WriteOrder(
            settings=self._settings,
            transactional_id=self._transactions.id,
            producer=producer,
            name=name,
            permits=self._permit_server.address,
            topics=tuple(self._topics.values()),
            topic=only,
            spread_over=spread_over,
            faults=armed(),
            where=self.where,
            times=tuple(dict.fromkeys(one.timestamp for one in self._outputs if one.timestamp is not None)),
        )
        told = placed.mapInArrow(order, VOTES).collect()
        refused = next((row.refusal for row in told if row.refusal is not None), None)
        if refused is not None:
            # The error of the first attempt is the cause; an attempt that was killed could not report one.
            raise (
                find_error(self._permits.failure or "")
                or find_error(refused)
                or EpochFailed("a task was refused", where=self.where, fix="the epoch is repeated")
            )
        votes = [
            Vote(
                attempt=row.attempt,
                topic=row.topic,
                partition=row.partition,
                records=row.records,
                last_sequence=row.last_sequence,
            )
            for row in told
            if row.topic is not None
        ]
        seen = {vote.topic for vote in votes} - set(self._topics)
        if seen:
            self._topics.update(describe_outputs(self._connection, sorted(seen), where=self.where))
        return votes, sum(row.records for row in told if row.topic is None)

    def _place(self, rows: EpochRows, is_exchanging: bool) -> tuple[DataFrame, int | None]:
        """The records at their writers, and over how many tasks those without a key are spread."""
        from pyspark.sql import functions as F

        made = dict(rows.records.columns)
        only = self._outputs[0].name if len(self._outputs) == 1 else None
        if only is not None:
            del made["topic"]
        frame = rows.records.frame
        least = min((topic.partitions for topic in self._topics.values()), default=1)
        is_routed = any(one.route is not None for one in self._outputs)
        if "key" not in made and "partition" not in made and not is_routed:
            tasks = max(1, min(_tasks_of(frame), least))  # an epoch may be empty
            spread = frame.select(*_aliased(made)).coalesce(tasks)
            return spread, tasks
        placed = frame.select(*_aliased(made)).select("*", self._hashed("key" in made).alias("hash"))
        if rows.is_alike and not is_exchanging and only is not None:
            return placed, None
        writers = self._writers(is_routed)
        partition = F.col("hash") if "partition" not in made else F.coalesce(F.col("partition"), F.col("hash"))
        if only is not None:
            writer = F.pmod(F.pmod(partition, F.lit(self._topics[only].partitions)), F.lit(writers))
        else:
            writer = self._routed_writer(partition, writers)
        return placed.repartitionById(writers, writer.cast("int")), None

    def _hashed(self, has_key: bool) -> Column:
        """The column that decides the writer; built once, because that takes many calls into the JVM."""
        from pyspark.sql import functions as F

        if has_key not in self._hashes:
            self._hashes[has_key] = place_hash(self.spark, F.col("key") if has_key else None, F.col("value"))
        return self._hashes[has_key]

    def _writers(self, is_routed: bool) -> int:
        """How many tasks write: one per slot is enough, because each owns several partitions."""
        slots = self.spark.sparkContext.defaultParallelism
        partitions = sum(topic.partitions for topic in self._topics.values())
        return max(1, slots if is_routed else min(slots, partitions))

    def _routed_writer(self, partition: Column, writers: int) -> Column:
        """By partition for known topics; a topic that is seen for the first time has one writer."""
        from pyspark.sql import functions as F

        writer = F.pmod(F.xxhash64("topic"), F.lit(writers))
        for number, topic in enumerate([*self._topics.values()][:_ROUTED_TOPICS]):
            own = F.pmod(F.pmod(partition, F.lit(topic.partitions)) + F.lit(number), F.lit(writers))
            writer = F.when(F.col("topic") == topic.name, own).otherwise(writer)
        return writer

    def _cause_of(self, error: Exception) -> Cause:
        """Why a try failed; the first task's own error counts before Spark's version of it."""
        cause, carried = find_cause(error, self._permits.failure or "")
        self._first = self._first or carried
        self._is_look_due = True  # for the next try: a topic may have changed under this one
        self.spark.sparkContext.setLocalProperty(TRIED, "1")
        return Cause.NOT_ALIKE if isinstance(carried, PartitionShared) else cause

    def first_error(self, error: Exception) -> LockgateError | None:
        """The error to show: that of the first task that failed, or the one in the message."""
        if isinstance(error, LockgateError):
            return error
        return self._first or find_raised(error)


def common_settings(outputs: Sequence[Topic], where: str) -> ClientSettings:
    """The one way to reach the cluster that all these outputs share."""
    read = [read_settings(one.servers, one.client, where=where) for one in outputs]
    for one in read[1:]:
        if one != read[0]:
            raise BadJob(
                "the Kafka outputs of an exactly-once job have different servers or client settings, but commit in one"
                " transaction",
                where=where,
                fix="give them the same servers= and client=, or declare less for one of them:"
                " .to(name, sink, guarantee=Guarantee.AT_LEAST_ONCE)",
            )
    return read[0]


def _aliased(made: Mapping[str, Column]) -> list[Column]:
    return [column.alias(name) for name, column in made.items()]


def _compute(records: RecordColumns) -> None:
    """Compute the rows of an epoch that is committed already: state and watermark need it."""
    records.frame.write.format("noop").mode("append").save()


def _tasks_of(frame: DataFrame) -> int:
    return int(frame._jdf.queryExecution().toRdd().getNumPartitions())
