"""KafkaSink: rows as records of a topic.

The bytes are a contract with every reader, in any language:

    value   JSON of all columns, nulls included, timestamps ISO-8601 in UTC with `Z`, to the microsecond
    key     STRING as UTF-8, BINARY as is, INT and BIGINT big-endian, several columns as a JSON array

An output that is declared end-to-end exactly-once is written in one transaction per epoch (see epoch.py). With a
lower guarantee, and in real-time mode, Spark's own writer sends the records, and an epoch that is repeated after a
failure is sent again. For an at-most-once job its producer sends nothing twice, and waits for one broker's answer only.

In a proof, and only there, a record has one more header, TRACE: where its row came from, and in which epoch it was
written. A user cannot ask for it, and no record of a normal run has it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockgate.commit.resource import TransactionSink
from lockgate.connectors.kafka.allowlist import WRITING, check_client, hidden
from lockgate.connectors.kafka.references import spark_options
from lockgate.connectors.kafka.settings import is_about_writing, is_java_only
from lockgate.connectors.kafka.topics import create_topics, find_output, find_time_limits
from lockgate.connectors.kafka.wire import hosts_of, name_topic
from lockgate.connectors.rejects import TIMESTAMP_FORMAT
from lockgate.dataflow.arguments import explain_wrong_calls
from lockgate.dataflow.deletes import DELETED, mark_deleted
from lockgate.dataflow.endpoints import PLACE, SinkAbility
from lockgate.dataflow.format import Format, require_format
from lockgate.dataflow.locations import Topic
from lockgate.dataflow.origin import caller
from lockgate.dataflow.relocation import Relocation
from lockgate.dataflow.schema import quote
from lockgate.errors import BadJob
from lockgate.guarantees import Delivery

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FORMATS = (Format.JSON, Format.CSV, Format.TEXT, Format.BYTES)
MESSAGE_BYTES = 1_048_576
"""The most that Kafka's client sends in one request, by default; brokers accept a little more."""

CLOCKS_APART_MS = 60_000
"""A record becomes a dead letter this much before its topic's limit, and at most a tenth of it: clocks differ."""

TRACE = "lockgate-trace"
"""The header of records in a proof: JSON of `epoch`, and of `source`, `part`, `at` and `child` if the row came from one
event."""

_HEADERS = "array<struct<key: string, value: binary>>"
_RECORD_BYTES = 128  # more than a batch of one record takes beside key, value and headers
_UNTRACKED = {"kafka.acks": "1", "kafka.retries": "0", "kafka.enable.idempotence": "false"}


@explain_wrong_calls('KafkaSink(topic="counts", servers="localhost:9092", key="ip")')
@dataclass(frozen=True, init=False)
class KafkaSink(TransactionSink):
    """Records for a topic.

    Args:
        servers: the brokers, `"host:9092,other:9092"`.
        topic: the topic, if all rows go to the same.
        key: the column, or columns, of the record's key.
        format: how the value is written.
        route: the column that names the topic of a row, in place of `topic`.
        partition: the column that has the number of the partition.
        deleted: SQL for the rows that become tombstones.
        headers: the column that has the headers, an array of structs of key and value.
        timestamp: the column that has the record's time.
        client: settings of Kafka's client, as docs/KAFKA_SECURITY.md lists them. Logins can be references: `env:NAME`,
            `file:/path` or `hook:module:function`.

    Raises:
        BadJob: an argument cannot be valid.

    >>> counts = orders.to("counts", KafkaSink(topic="counts", servers="localhost:9092", key="ip"))
    """

    topic: str | None
    servers: str
    key: tuple[str, ...]
    format: Format | str
    route: str | None
    partition: str | None
    deleted: str | None
    headers: str | None
    timestamp: str | None
    client: Mapping[str, str] = field(default_factory=dict)
    is_tracked: bool = field(default=True, repr=False)
    is_traced: bool = field(default=False, repr=False)

    def __init__(
        self,
        *,
        servers: str,
        topic: str | None = None,
        key: str | Sequence[str] | None = None,
        format: Format | str = Format.JSON,
        route: str | None = None,
        partition: str | None = None,
        deleted: str | None = None,
        headers: str | None = None,
        timestamp: str | None = None,
        client: Mapping[str, str] | None = None,
    ) -> None:
        where = f"KafkaSink, declared at {caller()}"
        if (topic is None) == (route is None):
            raise BadJob(
                "a KafkaSink has a topic, or a route by column", where=where, fix='topic="counts" or route="column"'
            )
        require_format(format, FORMATS, where)
        if not (isinstance(servers, str) and servers) or not all(
            isinstance(name, str) and name for name in (topic, route) if name is not None
        ):
            raise BadJob("a KafkaSink needs servers and a topic as text", where=where, fix='servers="host:9092"')
        check_client(client or {}, WRITING, where=where)
        keys = () if key is None else (key,) if isinstance(key, str) else tuple(key)
        object.__setattr__(self, "topic", topic)
        object.__setattr__(self, "servers", servers)
        object.__setattr__(self, "key", keys)
        object.__setattr__(self, "format", format)
        object.__setattr__(self, "route", route)
        object.__setattr__(self, "partition", partition)
        object.__setattr__(self, "deleted", deleted)
        object.__setattr__(self, "headers", headers)
        object.__setattr__(self, "timestamp", timestamp)
        object.__setattr__(self, "client", hidden(client or {}))
        object.__setattr__(self, "is_tracked", True)
        object.__setattr__(self, "is_traced", False)

    @property
    def ability(self) -> SinkAbility:
        return SinkAbility(
            delivery=Delivery.TRANSACTIONAL,
            reason="Kafka gets the rows of an epoch in one transaction",
            cure="declare Guarantee.END_TO_END_EXACTLY_ONCE",
        )

    @property
    def is_fit_for_real_time(self) -> bool:
        return True

    @property
    def partitioned_by(self) -> tuple[str, ...]:
        return self.key if self.partition is None else (self.partition,)

    @property
    def commits_at(self) -> frozenset[str]:
        return hosts_of(self.servers)

    @property
    def places(self) -> frozenset[tuple[str, str]]:
        return frozenset() if self.topic is None else name_topic(self.servers, self.topic)

    @property
    def location(self) -> Topic:
        return Topic(
            self.servers,
            self.topic,
            self.client,
            route=self.route,
            key=self.key,
            format=self.format,
            partition=self.partition,
            headers=self.headers,
            timestamp=self.timestamp,
            deleted=self.deleted,
        )

    def relocate(self, to: Relocation) -> KafkaSink:
        if self.topic is None:
            raise to.refusal(
                f"writes into topics that its column {self.route!r} names, and they are not known before",
                fix="give the sink one topic=, and prove that job",
            )
        servers, topic = to.topic(self.servers, self.topic)
        # How it writes is kept, how its own brokers are reached is not.
        client = {name: text for name, text in self.client.items() if is_about_writing(name)}
        if to.transaction_timeout_ms is not None:
            client["transaction.timeout.ms"] = str(to.transaction_timeout_ms)
        moved = self._with(topic=topic, servers=servers, client=hidden(client))
        return moved.traced() if to.is_traced else moved

    @property
    def checks_rows_alone(self) -> bool:
        return True

    @property
    def extra(self) -> str:
        return "kafka"

    def task_modules(self, *, is_exact: bool) -> tuple[str, ...]:
        return ("kafka", "crc32c") if is_exact else ()  # otherwise Spark's own writer writes, in the JVM

    def columns_needed(self) -> Sequence[str]:
        return (*self.key, *(name for name in self._beside() if name is not None))

    def expressions(self) -> Sequence[str]:
        return () if self.deleted is None else (self.deleted,)

    def summary(self) -> tuple[str, ...]:
        return ("KafkaSink", f"topic {self.topic}" if self.topic else f"topic by {self.route}")

    def _beside(self) -> tuple[str | None, ...]:
        return (self.route, self.partition, self.headers, self.timestamp)

    def check_rows(self, rows: DataFrame, where: str) -> None:
        self.encode(rows, where)

    def refusal(self, rows: DataFrame, *, within: str | None, where: str) -> Column | None:
        """A record that is larger than its topic takes, or that names no topic, or a partition that does not exist."""
        from pyspark.sql import functions as F

        made = self.columns(rows, within=within, where=where)
        topic = None
        if self.topic is not None and not is_java_only(self.client):
            topic = find_output(self.servers, self.topic, where=where, client=self.client)
        reason = F.when(F.coalesce(F.length(made["topic"]), F.lit(0)) == 0, F.lit("it names no topic"))
        size: Column = F.lit(_RECORD_BYTES)
        for name in ("key", "value"):
            if name in made:
                size = size + F.coalesce(F.octet_length(made[name]), F.lit(0))
        if "headers" in made:
            # A header takes at most this much beside its name and value.
            each = F.transform(
                made["headers"],
                lambda one: F.octet_length(one["key"]) + F.coalesce(F.octet_length(one["value"]), F.lit(0)) + 10,
            )
            size = size + F.coalesce(F.aggregate(each, F.lit(0), lambda total, one: total + one), F.lit(0))
            is_nameless = F.exists(made["headers"], lambda one: one["key"].isNull())
            reason = reason.when(is_nameless, F.lit("it has a header without a key"))
        most = min(MESSAGE_BYTES if topic is None else topic.max_message_bytes, self._request_bytes())
        told = F.concat(F.lit("as a record it has "), size.cast("string"), F.lit(f" bytes; the topic takes {most}"))
        reason = reason.when(size > most, told)
        if "partition" in made and topic is not None:
            told = F.concat(F.lit(f"topic {topic.name!r} has no partition "), made["partition"].cast("string"))
            reason = reason.when(~made["partition"].between(0, topic.partitions - 1), told)
        return reason

    def refusal_if_exact(self, rows: DataFrame, *, within: str | None, where: str) -> Column | None:
        """A time that the topic would refuse. Spark's own writer, for lower guarantees, sets times itself."""
        from pyspark.sql import functions as F

        if self.timestamp is None or self.topic is None or is_java_only(self.client):
            return None
        limits = find_time_limits(self.servers, self.topic, where=where, client=self.client)
        at = self.columns(rows, within=within, where=where)["timestamp"]
        # The clock of the epoch, so a repeated epoch refuses the same rows. If the query ends at kept rows
        # (`find_cuts`), this runs in a batch and the clock is that of the batch: a repeat may refuse other rows. Within
        # a try no row is both sent and refused, because the result is kept too.
        clock = F.current_timestamp()
        ahead_ms = F.unix_millis(at) - F.unix_millis(clock)
        reason = F.when(F.lit(False), F.lit(""))
        for limit, distance_ms, direction in (
            (limits.ahead_ms, ahead_ms, "ahead of"),
            (limits.behind_ms, -ahead_ms, "behind"),
        ):
            if limit is not None:
                told = F.concat(
                    F.lit(f"{self.timestamp} is "),
                    at.cast("string"),
                    F.lit(f", too far {direction} the epoch's clock, "),
                    clock.cast("string"),
                    F.lit(f": topic {self.topic!r} takes {limit} ms"),
                )
                reason = reason.when(distance_ms > limit - min(CLOCKS_APART_MS, limit // 10), told)
        return reason

    def _request_bytes(self) -> int:
        """The most that Kafka's own client sends at once; one record must fit."""
        told = {name.removeprefix("kafka."): text for name, text in self.client.items()}.get("max.request.size", "")
        return int(told) if told.isdigit() else MESSAGE_BYTES

    def check(self, where: str) -> None:
        if self.topic is not None and not is_java_only(self.client):
            create_topics(self.servers, [self.topic], where=where, client=self.client)

    def execution(self, *, is_exact: bool) -> tuple[str, str]:
        if is_exact:
            return "Python", "tasks write into one transaction in Python workers, in Arrow batches"
        return "native", "Spark's own Kafka writer sends the records"

    def write(self, rows: DataFrame, epoch: int) -> None:
        writer = self.encode(rows, where="KafkaSink", epoch=epoch).write.format("kafka")
        for name, text in self.options().items():
            writer = writer.option(name, text)
        writer.save()

    def untracked(self) -> KafkaSink:
        return self._with(is_tracked=False)

    @property
    def wants_place(self) -> bool:
        return self.is_traced

    def traced(self) -> KafkaSink:
        """The sink as a proof uses it: its records say where they came from."""
        return self._with(is_traced=True)

    def _with(self, **changes: object) -> KafkaSink:
        """The same sink with other values of these fields."""
        sink = copy.copy(self)
        for name, value in changes.items():
            object.__setattr__(sink, name, value)
        return sink

    def options(self) -> dict[str, str]:
        """The settings of Spark's Kafka writer."""
        return {
            "kafka.bootstrap.servers": self.servers,
            "kafka.acks": "all",
            **spark_options(self.client, self.servers, where="KafkaSink"),
            # Whatever the user says about retries: a producer that is not idempotent duplicates records by them.
            **({} if self.is_tracked else _UNTRACKED),
        }

    def prepare(self, rows: DataFrame) -> DataFrame:
        """The rows with the results of the sink's own SQL, computed while these names can be resolved."""
        return mark_deleted(rows, self.deleted)

    def encode(self, rows: DataFrame, where: str, epoch: int | None = None) -> DataFrame:
        """The rows as Spark's Kafka writer takes them: topic, key, value, and partition and headers if asked for."""
        rows = self.prepare(rows)
        made = self.columns(rows, within=None, where=where, epoch=epoch)
        return rows.select(*(column.alias(name) for name, column in made.items() if name != "timestamp"))

    def columns(
        self, rows: DataFrame, *, within: str | None, where: str, epoch: int | None = None
    ) -> dict[str, Column]:
        from pyspark.sql import functions as F

        frame = rows if within is None else rows.select(f"{within}.*")
        kinds = {field.name.lower(): field.dataType.simpleString() for field in frame.schema}

        def at(name: str) -> Column:
            return F.col(quote(name) if within is None else f"{within}.{quote(name)}")

        beside = (DELETED, PLACE) if self.is_traced else (DELETED,)
        shown = [name for name in frame.columns if name not in beside]
        made = {
            "topic": F.lit(self.topic) if self.route is None else at(self.route).cast("string"),
            **({"key": self._key(at, kinds, where)} if self.key else {}),
            "value": self._value(at, shown, where),
        }
        if self.deleted is not None:
            made["value"] = F.when(~at(DELETED), made["value"])
        if self.partition is not None:
            made["partition"] = at(self.partition).cast("int")
        if self.headers is not None:
            made["headers"] = at(self.headers).cast(_HEADERS)
        if self.is_traced:
            trace = _trace(rows, epoch)
            given = made.get("headers")
            made["headers"] = trace if given is None else F.concat(F.coalesce(given, F.array().cast(_HEADERS)), trace)
        if self.timestamp is not None:
            made["timestamp"] = at(self.timestamp).cast("timestamp")
        return made

    def _key(self, at: Callable[[str], Column], kinds: Mapping[str, str], where: str) -> Column:
        from pyspark.sql import functions as F

        if len(self.key) > 1:
            # A single-element array shows each value as JSON; its brackets are cut off.
            elements = [F.to_json(F.array(at(name)), _json_options()) for name in self.key]
            texts = [F.regexp_extract(element, r"(?s)^\[(.*)\]$", 1) for element in elements]
            return F.concat(F.lit("["), F.concat_ws(",", *texts), F.lit("]"))
        column, kind = at(self.key[0]), kinds[self.key[0].lower()]
        if kind in ("string", "binary"):
            return column
        digits = {"int": 8, "bigint": 16}.get(kind)
        if digits is None:
            raise BadJob(
                f"column {self.key[0]!r} of type {kind} cannot be a key: no bytes are agreed on for it",
                where=where,
                fix="use a STRING, BINARY, INT or BIGINT column, or several columns",
            )
        # hex() writes a negative number in 16 digits, and a small one in few.
        return F.unhex(F.right(F.lpad(F.hex(column.cast("bigint")), 16, "0"), F.lit(digits)))

    def _value(self, at: Callable[[str], Column], shown: Sequence[str], where: str) -> Column:
        from pyspark.sql import functions as F

        # The record's own headers and time stand beside its value; key, topic and partition are part of it as well.
        fields = [name for name in shown if name not in (self.headers, self.timestamp)]
        row = F.struct(*(at(name).alias(name) for name in fields))
        if self.format == "json":
            return F.to_json(row, _json_options())
        if self.format == "csv":
            return F.to_csv(row, {"timestampFormat": TIMESTAMP_FORMAT, "timeZone": "UTC"})
        used = {*self.key, *self._beside()}
        rest = [name for name in shown if name not in used]
        if len(rest) != 1:
            raise BadJob(
                f"format={str(self.format)!r} writes one column, but the row has {len(rest)} beside key and route",
                where=where,
                fix="select the one column to be written, and the key",
            )
        return at(rest[0]).cast("binary")


def _trace(rows: DataFrame, epoch: int | None) -> Column:
    """The header that says where a row came from; a row of an aggregate or a join has only the epoch."""
    from pyspark.sql import functions as F

    told = [F.lit(epoch).cast("bigint").alias("epoch")]
    if PLACE in rows.columns:
        place, child = F.col(PLACE), F.col(PLACE)["child"]
        told += [place[name].alias(name) for name in ("source", "part", "at")]
        told.append(F.when(F.size(child) > 0, child).alias("child"))
    text = F.to_json(F.struct(*told)).cast("binary")  # without what is null
    return F.array(F.struct(F.lit(TRACE).alias("key"), text.alias("value"))).cast(_HEADERS)


def _json_options() -> dict[str, str]:
    return {"ignoreNullFields": "false", "timestampFormat": TIMESTAMP_FORMAT, "timeZone": "UTC"}
