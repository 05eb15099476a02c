"""KafkaSink: rows as records of a topic.

The bytes are a contract with every reader, in any language:

    value   JSON of all columns, nulls included, timestamps ISO-8601 in UTC with `Z`, to the microsecond
    key     STRING as UTF-8, BINARY as is, INT and BIGINT big-endian, several columns as a JSON array

Records are sent by Spark's own writer: an epoch that is repeated after a failure is sent again (at-least-once).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockgate.dataflow.endpoints import Sink, SinkAbility
from lockgate.dataflow.origin import caller
from lockgate.dataflow.schema import quote
from lockgate.errors import BadJob
from lockgate.guarantees import Delivery
from lockgate.kafka.wire import create_topics, name_topic, refuse_settings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FORMATS = ("json", "csv", "text", "bytes")
_TAKEN = ("acks", "bootstrap.servers", "enable.idempotence", "key.serializer", "transactional.id", "value.serializer")
TIMESTAMP_FORMAT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"


@dataclass(frozen=True, init=False)
class KafkaSink(Sink):
    """Records for a topic; `route` names a column that holds each row's topic, `deleted` is SQL for tombstones."""

    topic: str | None
    servers: str
    key: tuple[str, ...]
    format: str
    route: str | None
    partition: str | None
    deleted: str | None
    client: Mapping[str, str] = field(default_factory=dict)

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
        refuse_settings(client or {}, _TAKEN, where)
        keys = () if key is None else (key,) if isinstance(key, str) else tuple(key)
        object.__setattr__(self, "topic", topic)
        object.__setattr__(self, "servers", servers)
        object.__setattr__(self, "key", keys)
        object.__setattr__(self, "format", format)
        object.__setattr__(self, "route", route)
        object.__setattr__(self, "partition", partition)
        object.__setattr__(self, "deleted", deleted)
        object.__setattr__(self, "client", dict(client or {}))

    @property
    def ability(self) -> SinkAbility:
        return SinkAbility(
            delivery=Delivery.PLAIN,
            reason="Kafka gets the rows of an epoch again when the epoch is repeated after a failure",
            cure="make readers drop what they have seen; transactional writing is not part of this version",
        )

    @property
    def is_fit_for_real_time(self) -> bool:
        return True

    @property
    def places(self) -> frozenset[tuple[str, str]]:
        return frozenset() if self.topic is None else name_topic(self.servers, self.topic)

    def columns_needed(self) -> Sequence[str]:
        return (*self.key, *(name for name in (self.route, self.partition) if name is not None))

    def expressions(self) -> Sequence[str]:
        return () if self.deleted is None else (self.deleted,)

    def summary(self) -> tuple[str, ...]:
        return ("KafkaSink", f"topic {self.topic}" if self.topic else f"topic by {self.route}")

    def check_rows(self, rows: DataFrame, where: str) -> None:
        self.encode(rows, where)

    def check(self, where: str) -> None:
        if self.topic is not None and not self.client:
            create_topics(self.servers, [self.topic], where=where)

    def write(self, rows: DataFrame, epoch: int) -> None:
        writer = self.encode(rows, where="KafkaSink").write.format("kafka")
        for name, text in self.options().items():
            writer = writer.option(name, text)
        writer.save()

    def options(self) -> dict[str, str]:
        """The settings of Spark's Kafka writer."""
        return {
            "kafka.bootstrap.servers": self.servers,
            "kafka.acks": "all",
            **{f"kafka.{name}": text for name, text in self.client.items()},
        }

    def encode(self, rows: DataFrame, where: str) -> DataFrame:
        """The rows as Spark's Kafka writer takes them: topic, key, value, partition."""
        from pyspark.sql import functions as F

        columns = [
            (F.col(quote(self.route)) if self.route is not None else F.lit(self.topic)).alias("topic"),
            self._key(rows, where).alias("key"),
            self._value(rows, where).alias("value"),
        ]
        if self.partition is not None:
            columns.append(F.col(quote(self.partition)).cast("int").alias("partition"))
        return rows.select(*columns)

    def _key(self, rows: DataFrame, where: str) -> Column:
        from pyspark.sql import functions as F

        if not self.key:
            return F.lit(None).cast("binary")
        if len(self.key) > 1:
            # A single-element array shows each value as JSON; its brackets are cut away.
            elements = [F.to_json(F.array(F.col(quote(name))), _json_options()) for name in self.key]
            texts = [F.regexp_extract(element, r"(?s)^\[(.*)\]$", 1) for element in elements]
            return F.concat(F.lit("["), F.concat_ws(",", *texts), F.lit("]")).cast("binary")
        column = F.col(quote(self.key[0]))
        kind = rows.select(column).schema[0].dataType.simpleString()
        if kind in ("string", "binary"):
            return column.cast("binary")
        digits = {"int": 8, "bigint": 16}.get(kind)
        if digits is None:
            raise BadJob(
                f"column {self.key[0]!r} of type {kind} cannot be a key: no bytes are agreed on for it",
                where=where,
                fix="use a STRING, BINARY, INT or BIGINT column, or several columns",
            )
        # hex() writes a negative number in 16 digits, and a small one in few.
        return F.unhex(F.right(F.lpad(F.hex(column.cast("bigint")), 16, "0"), F.lit(digits)))

    def _value(self, rows: DataFrame, where: str) -> Column:
        from pyspark.sql import functions as F

        if self.format == "json":
            value = F.to_json(F.struct(*map(quote, rows.columns)), _json_options()).cast("binary")
        elif self.format == "csv":
            value = F.to_csv(F.struct(*map(quote, rows.columns)), {"timestampFormat": TIMESTAMP_FORMAT}).cast("binary")
        else:
            used = {*self.key, self.route, self.partition}
            rest = [name for name in rows.columns if name not in used]
            if len(rest) != 1:
                raise BadJob(
                    f"format={self.format!r} writes one column, but the row has {len(rest)} beside key and route",
                    where=where,
                    fix="select the one column to be written, and the key",
                )
            value = F.col(quote(rest[0])).cast("binary")
        return value if self.deleted is None else F.when(~F.coalesce(F.expr(self.deleted), F.lit(False)), value)


def _json_options() -> dict[str, str]:
    return {"ignoreNullFields": "false", "timestampFormat": TIMESTAMP_FORMAT}
