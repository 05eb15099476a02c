"""KafkaSink: rows as records of a topic.

The bytes are a contract with every reader, in any language:

    value   JSON of all columns, nulls included, timestamps ISO-8601 in UTC with `Z`, to the microsecond
    key     STRING as UTF-8, BINARY as is, INT and BIGINT big-endian, several columns as a JSON array

An output that is declared end-to-end exactly-once is written in one transaction per epoch (see kafkaepoch.py); for less
than that, and in real-time mode, records are sent by Spark's own writer, and an epoch that is repeated after a failure
is sent again. For an at-most-once job its producer sends nothing twice, and asks for one broker's answer alone.

Under proof, and only then, a record carries one more header, TRACE: where its row came from, and in which epoch it was
written. An author cannot ask for it, and it is in no record of a job that runs by itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockgate.dataflow.deletes import DELETED, mark_deleted
from lockgate.dataflow.endpoints import PLACE, Sink, SinkAbility
from lockgate.dataflow.origin import caller
from lockgate.dataflow.schema import quote
from lockgate.errors import BadJob
from lockgate.guarantees import Delivery
from lockgate.kafka.allowlist import WRITING, check_client
from lockgate.kafka.settings import is_about_writing, is_java_only
from lockgate.kafka.topics import create_topics, find_output, find_time_limits
from lockgate.kafka.wire import hosts_of, name_topic
from lockgate.sources.rejects import TIMESTAMP_FORMAT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FORMATS = ("json", "csv", "text", "bytes")
MESSAGE_BYTES = 1_048_576
"""What Kafka's client sends at most in one request, unless it is told otherwise; brokers take a little more."""

CLOCKS_APART_MS = 60_000
"""So much earlier than its topic's limit, and at most a tenth, a record is a dead letter: clocks differ."""

TRACE = "lockgate-trace"
"""The header that records have under proof: JSON of `epoch`, and of `source`, `part`, `at` and `child` where the row
came of one event."""

_HEADERS = "array<struct<key: string, value: binary>>"
_RECORD_BYTES = 128  # more than a batch of one record takes beside key, value and headers
_UNTRACKED = {"kafka.acks": "1", "kafka.retries": "0", "kafka.enable.idempotence": "false"}


@dataclass(frozen=True, init=False)
class KafkaSink(Sink):
    """Records for a topic; `deleted` is SQL that says which rows are tombstones.

    Columns may be named for what a record has beside its value: `key`, `route` (its topic), `partition`, `headers`
    (an array of structs of key and value) and `timestamp`.
    """

    topic: str | None
    servers: str
    key: tuple[str, ...]
    format: str
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
        format: str = "json",
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
        if format not in FORMATS:
            raise BadJob(f"format={format!r} is not known", where=where, fix=f"use one of {', '.join(FORMATS)}")
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
        object.__setattr__(self, "client", dict(client or {}))
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
        """A record that is larger than its topic takes, or that names no topic, or no partition that there is."""
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
            # One header takes at most so much beside its name and value.
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
        """A time that the topic would not take. Spark's own writer, for lower guarantees, sets times itself."""
        from pyspark.sql import functions as F

        if self.timestamp is None or self.topic is None or is_java_only(self.client):
            return None
        limits = find_time_limits(self.servers, self.topic, where=where, client=self.client)
        at = self.columns(rows, within=within, where=where)["timestamp"]
        # Of the epoch, so an epoch that is repeated refuses the same rows. If the query ends at rows that are kept
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
        """The most that Kafka's own client sends at once; one record has to fit."""
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
        sink = copy.copy(self)
        object.__setattr__(sink, "is_tracked", False)
        return sink

    @property
    def wants_place(self) -> bool:
        return self.is_traced

    def traced(self) -> KafkaSink:
        """The sink as a proof uses it: its records tell where they came from."""
        sink = copy.copy(self)
        object.__setattr__(sink, "is_traced", True)
        return sink

    def moved(self, *, topic: str, servers: str) -> KafkaSink:
        """The same sink at another place: how it writes is kept, how its own brokers are reached is not."""
        sink = copy.copy(self)
        kept = {name: text for name, text in self.client.items() if is_about_writing(name)}
        for name, value in {"topic": topic, "servers": servers, "client": kept}.items():
            object.__setattr__(sink, name, value)
        return sink

    def with_client(self, settings: Mapping[str, str]) -> KafkaSink:
        """The same sink with these settings of its client beside the others."""
        sink = copy.copy(self)
        object.__setattr__(sink, "client", {**self.client, **settings})
        return sink

    def options(self) -> dict[str, str]:
        """The settings of Spark's Kafka writer."""
        return {
            "kafka.bootstrap.servers": self.servers,
            "kafka.acks": "all",
            **{f"kafka.{name.removeprefix('kafka.')}": text for name, text in self.client.items()},
            # Whatever the author says about retries: a producer that is not idempotent doubles by them.
            **({} if self.is_tracked else _UNTRACKED),
        }

    def prepare(self, rows: DataFrame) -> DataFrame:
        """The rows with what the sink's own SQL says about them, while its names can still be resolved."""
        return mark_deleted(rows, self.deleted)

    def encode(self, rows: DataFrame, where: str, epoch: int | None = None) -> DataFrame:
        """The rows as Spark's Kafka writer takes them: topic, key, value, and partition and headers where asked for."""
        rows = self.prepare(rows)
        made = self.columns(rows, within=None, where=where, epoch=epoch)
        return rows.select(*(column.alias(name) for name, column in made.items() if name != "timestamp"))

    def columns(
        self, rows: DataFrame, *, within: str | None, where: str, epoch: int | None = None
    ) -> dict[str, Column]:
        """What a record is made of, by name, out of prepared rows or of a struct in them that holds such rows."""
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
            # A single-element array shows each value as JSON; its brackets are cut away.
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
                f"format={self.format!r} writes one column, but the row has {len(rest)} beside key and route",
                where=where,
                fix="select the one column to be written, and the key",
            )
        return at(rest[0]).cast("binary")


def _trace(rows: DataFrame, epoch: int | None) -> Column:
    """The header that says where a row came from; one that an aggregate or a join made has the epoch alone."""
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
