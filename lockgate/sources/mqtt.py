"""MqttSource: messages of an MQTT broker, acknowledged when they are complete.

A broker keeps a message until it is acknowledged, and no longer: nothing can be read again. The broker hears of a
message when its epoch is in Spark's commit log. What was in hand when a process died comes again, under new numbers and
maybe in another order, and nothing tells a message that comes again from one that was sent twice: at-least-once.

    Spark asks for what follows N   the epoch up to N is in the commit log: acknowledge it; number what has arrived
    Spark plans an epoch            its messages travel inside its partition, so a task can be tried again
    Spark repeats an epoch          one that a dead driver planned is empty: its messages come under numbers behind it

Spark's own call for this, `commit`, comes only with the next epoch that has rows. A broker that has no more than so
many messages unacknowledged (20 by default, often) would wait for us then, and we for it. Asking for what follows an
epoch is a sign that comes without rows, too: Spark does so only when the epoch is in its commit log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lockgate.dataflow.endpoints import ORIGINAL, POSITION, Reading, Source, SourceAbility
from lockgate.dataflow.schema import Schema, parse_ddl
from lockgate.errors import BadJob, LockgateError
from lockgate.failures import Carried
from lockgate.signing import driver_signer
from lockgate.sources.mqttsession import Link, Session, probe
from lockgate.sources.parsing import check_format, parse_values
from lockgate.sources.position import position
from lockgate.sources.rejects import Guard, original

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HIDDEN = ("_topic", "_timestamp", "_retained", POSITION)
MESSAGE = "number BIGINT, topic STRING, payload BINARY, at_ms BIGINT, is_retained BOOLEAN"
"""A message as it comes from the broker."""

_NEXT = "next"  # an offset is the number of the message behind it


@dataclass(frozen=True)
class MqttSource(Source):
    """Messages of `topic`, which may hold the wildcards + and #; `value` is Spark DDL.

    `client_id` names the session that the broker keeps; without it, it is made of the names of job and source and of
    the topic. `_timestamp` is when a message arrived.
    """

    topic: str
    host: str
    value: str
    port: int = 1883
    format: str = "json"
    client_id: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def ability(self) -> SourceAbility:
        return SourceAbility(
            is_replayable=False,
            is_acknowledged=True,
            reason="an MQTT broker keeps a message until it is acknowledged, which is done when its epoch is complete:"
            " none is lost, but what was in hand at a failure comes again, in another epoch and maybe another order,"
            " and cannot be told from a new message",
        )

    @property
    def tasks(self) -> str:
        return "1"

    @property
    def is_native(self) -> bool:
        return False

    def columns(self, where: str) -> Schema:
        for name, text in (("topic", self.topic), ("host", self.host)):
            if not isinstance(text, str) or not text:
                raise BadJob(f"{name}={text!r} is not the name of a {name}", where=where, fix=f'{name}="..."')
        _check_topic(self.topic, where)
        if type(self.port) is not int or not 1 <= self.port <= 65_535:
            raise BadJob(f"port={self.port!r} is no port", where=where, fix="use 1 to 65535; MQTT's own is 1883")
        if self.client_id is not None and (not isinstance(self.client_id, str) or not self.client_id):
            raise BadJob(
                f"client_id={self.client_id!r} names no session", where=where, fix="leave it away, or give a text"
            )
        if self.password is not None and self.username is None:
            raise BadJob("a password= needs a username=", where=where, fix="give both, or none")
        columns = parse_ddl(self.value, where)
        check_format(self.format, columns, where)
        return columns

    @property
    def has_bytes(self) -> bool:
        return True

    def hidden_columns(self) -> Sequence[str]:
        return HIDDEN

    def summary(self) -> tuple[str, ...]:
        return ("MqttSource", f"topic {self.topic}")

    def check(self, reading: Reading) -> None:
        if reading.start != "earliest":
            raise BadJob(
                f"an MQTT broker cannot be read from {reading.start!r} on",
                where=reading.where,
                fix="leave the start away: it delivers what it kept for this job, and what is sent from now on",
            )
        probe(self._link(reading))

    def read(self, spark: SparkSession, reading: Reading) -> DataFrame:
        return self.rows_of(_read_messages(spark, self._link(reading), per_epoch=reading.rows_per_epoch), reading)

    def rows_of(self, messages: DataFrame, reading: Reading) -> DataFrame:
        """The rows that messages are, with the columns of MESSAGE."""
        from pyspark.sql import functions as F

        columns = parse_ddl(self.value, reading.where)
        frame = messages.select(
            F.col("payload").alias("__raw"),
            F.col("number").alias("__at"),
            F.col("topic").alias("_topic"),
            F.timestamp_millis(F.col("at_ms")).alias("_timestamp"),
            F.col("is_retained").alias("_retained"),
            position(source=reading.name, part=F.lit(reading.name), at=F.col("number")),
        )
        hidden = [*HIDDEN]
        if reading.rejects is not None:
            made = original(F.col("__raw"), key=F.col("_topic"), timestamp=F.col("_timestamp"))
            frame, hidden = frame.withColumn(ORIGINAL, made), [*HIDDEN, ORIGINAL]
        if reading.returned is not None:
            frame = frame.unionByName(_returned(reading.returned))
        frame = frame.withColumn("__part", F.concat(F.lit("topic '"), F.col("_topic"), F.lit("'")))
        guard = Guard.of(reading)
        frame = parse_values(frame, raw="__raw", columns=columns, ddl=self.value, format=self.format, guard=guard)
        return frame.select(*columns.names, *hidden)

    def _link(self, reading: Reading) -> Link:
        # 23 letters and digits are what every broker has to accept. With the topic, because a session that is kept
        # keeps its subscription too, and would go on delivering a topic that the job reads no more.
        names = "\0".join((reading.job, reading.name, self.topic))
        own = f"lockgate{hashlib.sha256(names.encode()).hexdigest()[:15]}"
        if reading.is_at_most_once:
            own = f"lockgate{uuid4().hex[:15]}"  # the session of a job that was declared higher before stays as it is
        return Link(
            host=self.host,
            port=self.port,
            topic=self.topic,
            client_id=self.client_id or own,
            username=self.username,
            password=self.password,
            is_kept=not reading.is_at_most_once,
            room=reading.rows_per_epoch,
            where=reading.where,
        )


def _returned(events: DataFrame) -> DataFrame:
    """Events that come once more, as the messages that they were: the broker has forgotten them."""
    from pyspark.sql import functions as F

    event = F.col(ORIGINAL)
    return events.select(
        event["value"].alias("__raw"),
        F.col(POSITION)["at"].alias("__at"),
        event["key"].cast("string").alias("_topic"),
        event["timestamp"].alias("_timestamp"),
        F.lit(False).alias("_retained"),
        POSITION,
        ORIGINAL,
    )


def _check_topic(topic: str, where: str) -> None:
    levels = topic.split("/")
    if topic.startswith("$share/"):
        raise BadJob(
            f"topic={topic!r} is shared among readers, and a job is one reader",
            where=where,
            fix="read the topic itself, without $share/GROUP/",
        )
    is_odd = any(len(level) > 1 and ("+" in level or "#" in level) for level in levels) or "#" in levels[:-1]
    if is_odd or "\0" in topic:
        raise BadJob(
            f"topic={topic!r} is no filter of topics",
            where=where,
            fix="+ stands for one whole level, # for all that follow, as in plant/+/temperature or plant/#",
        )


def _read_messages(spark: SparkSession, link: Link, *, per_epoch: int) -> DataFrame:
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows

    format = f"lockgate_mqtt_{uuid4().hex[:16]}"
    signer = driver_signer()

    class Messages(InputPartition):
        def __init__(self, rows: list[tuple[Any, ...]]) -> None:
            self.rows = rows

    class Reader(DataSourceStreamReader):
        # Spark makes one beside the driver, which is asked for offsets, and others that only say how rows are read.
        session: Session | None = None

        def opened(self) -> Session:
            if self.session is None:
                self.session = Session(link)
            return self.session

        def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
            return {_NEXT: 0}

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
            return ReadMaxRows(per_epoch)

        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
            try:
                session = self.opened()
                session.complete(start[_NEXT])
                return {_NEXT: session.number(start[_NEXT], per_epoch)}
            except LockgateError as error:
                raise Carried(error, signer) from None

        def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
            try:
                messages = self.opened().numbered(start[_NEXT], end[_NEXT])
            except LockgateError as error:
                raise Carried(error, signer) from None
            rows = [
                (number, message.topic, message.payload, message.at_ms, message.is_retained)
                for number, message in messages
            ]
            return [Messages(rows)] if rows else []

        def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
            assert isinstance(partition, Messages)
            return iter(partition.rows)

        def commit(self, end: dict[str, Any]) -> None:
            self.opened().complete(end[_NEXT])

        def stop(self) -> None:
            if self.session is not None:
                self.session.close()

    class Mqtt(DataSource):
        @classmethod
        def name(cls) -> str:
            return format

        def schema(self) -> str:
            return MESSAGE

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
            return Reader()

    spark.dataSource.register(Mqtt)
    return spark.readStream.format(format).load()
