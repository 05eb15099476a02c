"""MqttSource: messages of an MQTT broker, acknowledged when their epoch is complete.

A broker keeps a message until it is acknowledged, and no longer: nothing can be read again. The source acknowledges a
message when its epoch is in Spark's commit log. If a process dies, the broker sends its unacknowledged messages again,
with new numbers and maybe in another order. The source cannot distinguish such a message from one that was sent twice:
at-least-once.

    Spark asks for what follows N   the epoch up to N is in the commit log: acknowledge it; number what has arrived
    Spark plans an epoch            its messages travel inside its partition, so a task can be retried
    Spark repeats an epoch          if a dead driver planned it, it is empty: its messages come again with later numbers

Spark's own call for this, `commit`, comes only with the next epoch that has rows. But a broker allows only so many
unacknowledged messages (often 20): it would wait for us, and we for it. Spark also asks for what follows an epoch
without rows, and only when the epoch is in its commit log. So this call is the signal.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lockgate.connectors.mqtt.session import Link, Session, probe
from lockgate.connectors.mqtt.tls import check_tls, hidden
from lockgate.connectors.parsing import check_format, parse_values
from lockgate.connectors.position import position
from lockgate.connectors.rejects import Guard, original
from lockgate.dataflow.arguments import explain_wrong_calls
from lockgate.dataflow.endpoints import ORIGINAL, POSITION, Encoding, Reading, Source, SourceAbility
from lockgate.dataflow.format import Format
from lockgate.dataflow.schema import Schema, parse_ddl
from lockgate.errors import BadJob, LockgateError
from lockgate.failures import Carried
from lockgate.secrets import as_login, check_reference
from lockgate.signing import driver_signer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HIDDEN = ("_topic", "_timestamp", "_retained", POSITION)
MESSAGE = "number BIGINT, topic STRING, payload BINARY, at_ms BIGINT, is_retained BOOLEAN"
"""A message as it comes from the broker."""

log = logging.getLogger(__name__)

_NEXT = "next"  # an offset is the number of the message after it


@explain_wrong_calls('MqttSource(topic="plant/#", host="localhost", value="celsius DOUBLE")')
@dataclass(frozen=True)
class MqttSource(Source):
    """Messages of an MQTT broker, acknowledged when their epoch is complete.

    Beside the columns of `value` every event has `_topic`, `_timestamp` (when it arrived) and `_retained`.

    Args:
        topic: the topic filter; it can have the wildcards + and #.
        host: the broker.
        value: the columns of the payload, as Spark DDL.
        port: the port of the broker; with TLS it is usually 8883.
        format: how the payload is written.
        client_id: the session that the broker keeps; by default made of the names of job and source and of the topic.
        username: for the broker, if it asks for one; like the password, it may be a reference: env:NAME, file:/path,
            hook:module:function.
        password: for the broker; it needs a username.
        tls: True, or the files of certificates and key, as in {"ca_certs": "/etc/mqtt/ca.pem"}; see tls.py.

    >>> source = MqttSource(topic="plant/+/celsius", host="localhost", value="celsius DOUBLE")
    >>> readings = stream("readings", source)
    """

    topic: str
    host: str
    value: str
    port: int = 1883
    format: Format | str = Format.JSON
    client_id: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool | Mapping[str, str] = False

    def __post_init__(self) -> None:
        if isinstance(self.password, str):
            object.__setattr__(self, "password", as_login(self.password))
        object.__setattr__(self, "tls", hidden(self.tls))

    @property
    def ability(self) -> SourceAbility:
        return SourceAbility(
            is_replayable=False,
            is_acknowledged=True,
            reason="an MQTT broker keeps a message until it is acknowledged, when its epoch is complete: none is lost,"
            " but after a failure it sends unacknowledged messages again, in another epoch and maybe another order, and"
            " the job cannot distinguish them from new ones",
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
                f"client_id={self.client_id!r} does not name a session", where=where, fix="omit it, or give a text"
            )
        if self.password is not None and self.username is None:
            raise BadJob("a password= needs a username=", where=where, fix="give both, or none")
        for login in (self.username, self.password):
            check_reference(login or "", where=where)
        check_tls(self.tls, where)
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
                fix="omit the start: the broker delivers what it kept for this job, and what is sent from now on",
            )
        if self.password is not None and self.tls is False and not _is_here(self.host):
            log.warning("%s: the password goes to %s as plain text; tls=True hides it", reading.where, self.host)
        probe(self._link(reading))

    def read(self, spark: SparkSession, reading: Reading) -> DataFrame:
        return self.rows_of(_read_messages(spark, self._link(reading), per_epoch=reading.rows_per_epoch), reading)

    @property
    def encoding(self) -> Encoding:
        beside = ("_topic", "_timestamp", "_retained")
        return Encoding(self.value, self.format, record=MESSAGE, beside=beside)

    def record(
        self, value: bytes | None, key: bytes | None, beside: Mapping[str, Any], *, number: int, now: datetime
    ) -> dict[str, Any]:
        return {
            "number": number,
            "topic": beside.get("_topic", self.topic),
            "payload": value,
            "at_ms": int(beside.get("_timestamp", now).timestamp() * 1000),
            "is_retained": beside.get("_retained", False),
        }

    @property
    def endless(self) -> str:
        return "an MQTT broker"

    @property
    def extra(self) -> str:
        return "mqtt"

    def rows_of(self, messages: DataFrame, reading: Reading) -> DataFrame:
        """The rows of messages that have the columns of MESSAGE."""
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
        # Every broker has to accept 23 letters and digits. The topic is part of the id, because a session that is kept
        # also keeps its subscription, and would continue to deliver a topic that the job no longer reads.
        names = "\0".join((reading.job, reading.name, self.topic))
        own = f"lockgate{hashlib.sha256(names.encode()).hexdigest()[:15]}"
        if reading.is_at_most_once:
            own = f"lockgate{uuid4().hex[:15]}"  # do not touch the session that the job had under a higher guarantee
        return Link(
            host=self.host,
            port=self.port,
            topic=self.topic,
            client_id=self.client_id or own,
            username=self.username,
            password=self.password,
            tls=self.tls,
            is_kept=not reading.is_at_most_once,
            room=reading.rows_per_epoch,
            where=reading.where,
        )


def _returned(events: DataFrame) -> DataFrame:
    """Events that are read once more, as messages: the broker no longer has them."""
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


def _is_here(host: str) -> bool:
    try:
        return host.lower() == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _check_topic(topic: str, where: str) -> None:
    levels = topic.split("/")
    if topic.startswith("$share/"):
        raise BadJob(
            f"topic={topic!r} is shared among several readers, and a job is one reader",
            where=where,
            fix="read the topic itself, without $share/GROUP/",
        )
    is_odd = any(len(level) > 1 and ("+" in level or "#" in level) for level in levels) or "#" in levels[:-1]
    if is_odd or "\0" in topic:
        raise BadJob(
            f"topic={topic!r} is not a filter of topics",
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
        # Spark creates one near the driver, which it asks for offsets, and others that only say how rows are read.
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
