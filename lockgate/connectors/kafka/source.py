"""KafkaSource: the committed records of a topic, by default from the beginning.

Reads are `read_committed`, so the job never sees rows of aborted transactions. `failOnDataLoss` stays on: if records
expire before they are read, the job stops and does not skip them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from lockgate.connectors.kafka.allowlist import READING, check_client, hidden
from lockgate.connectors.kafka.references import spark_options
from lockgate.connectors.kafka.rights import Operation
from lockgate.connectors.kafka.settings import is_java_only
from lockgate.connectors.kafka.topics import exists
from lockgate.connectors.kafka.wire import name_topic
from lockgate.connectors.parsing import check_format, parse_key, parse_values
from lockgate.connectors.position import position
from lockgate.connectors.rejects import Guard, original
from lockgate.dataflow.arguments import explain_wrong_calls
from lockgate.dataflow.endpoints import ORIGINAL, POSITION, Encoding, Reading, Source, SourceAbility
from lockgate.dataflow.format import Format
from lockgate.dataflow.locations import Topic
from lockgate.dataflow.relocation import Relocation
from lockgate.dataflow.schema import Schema, parse_ddl
from lockgate.errors import BadJob

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

HIDDEN = ("_key", "_topic", "_partition", "_offset", "_timestamp", "_headers", POSITION)
RECORD = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,"
    " headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
"""The columns of a record in Spark's Kafka connector."""


@explain_wrong_calls('KafkaSource(topic="orders", servers="localhost:9092", value="id BIGINT, cents BIGINT")')
@dataclass(frozen=True, kw_only=True)
class KafkaSource(Source):
    """The committed records of a topic.

    Beside the columns of `value` and `key` every event has `_key`, `_topic`, `_partition`, `_offset`, `_timestamp` and
    `_headers`.

    Args:
        topic: the name of one topic.
        servers: the brokers, `"host:9092,other:9092"`.
        value: the columns of the value, as Spark DDL.
        key: the columns of the key, as Spark DDL, if the job needs them.
        format: how the value is written.
        client: settings of Kafka's client; docs/KAFKA_SECURITY.md lists them. Logins can be references: `env:NAME`,
            `file:/path` or `hook:module:function`.

    >>> source = KafkaSource(topic="orders", servers="localhost:9092", value="id BIGINT, amount DOUBLE")
    >>> payments = stream("payments", source)
    """

    topic: str
    servers: str
    value: str
    key: str | None = None
    format: Format | str = Format.JSON
    client: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "client", hidden(self.client))

    @property
    def ability(self) -> SourceAbility:
        return SourceAbility(
            is_replayable=True,
            reason="Kafka keeps its records and they are read again by offset",
            can_skip_history=True,
        )

    @property
    def tasks(self) -> str:
        return "one per partition"

    @property
    def is_fit_for_real_time(self) -> bool:
        return True

    @property
    def has_bytes(self) -> bool:
        return True

    @property
    def partitioned_by(self) -> frozenset[str]:
        keys = () if self.key is None else parse_ddl(self.key, "the key of a KafkaSource").names
        return frozenset({"_partition", *(keys if len(keys) == 1 else ())})

    @property
    def places(self) -> frozenset[tuple[str, str]]:
        return name_topic(self.servers, self.topic)

    @property
    def offsets_of(self) -> str:
        return f"topic {self.topic}"  # its brokers may move

    @property
    def location(self) -> Topic:
        return Topic(self.servers, self.topic, self.client)

    @property
    def encoding(self) -> Encoding:
        beside = ("_key", "_partition", "_timestamp", "_headers")
        return Encoding(self.value, self.format, self.key, record=RECORD, beside=beside)

    def record(
        self, value: bytes | None, key: bytes | None, beside: Mapping[str, Any], *, number: int, now: datetime
    ) -> dict[str, Any]:
        given = beside.get("_headers", {}).items()
        return {
            "key": key if beside.get("_key") is None else _as_bytes(beside["_key"]),
            "value": value,
            "topic": self.topic,
            "partition": int(beside.get("_partition", 0)),
            "offset": number,
            "timestamp": beside.get("_timestamp", now),
            "headers": [{"key": name, "value": _as_bytes(one)} for name, one in given] or None,
        }

    def relocate(self, to: Relocation) -> KafkaSource:
        servers, topic = to.topic(self.servers, self.topic)
        return replace(self, topic=topic, servers=servers, client={})

    @property
    def reported_as(self) -> tuple[str, ...]:
        return (f"[{self.topic}]] at {self.servers}", f"[{self.topic}]")  # some reports do not name the servers

    @property
    def extra(self) -> str:
        return "kafka"

    def columns(self, where: str) -> Schema:
        for name, text in (("topic", self.topic), ("servers", self.servers)):
            if not isinstance(text, str) or not text or (name == "topic" and "," in text):
                raise BadJob(f"{name}={text!r} is not the name of one {name}", where=where, fix=f'{name}="..."')
        check_client(self.client, READING, where=where)
        value = parse_ddl(self.value, where)
        check_format(self.format, value, where)
        if self.key is None:
            return value
        key = parse_ddl(self.key, where)
        twice = [name for name in key.names if value.find(name)]
        if twice:
            raise BadJob(
                f"column {', '.join(twice)} is in the key and in the value of source topic {self.topic!r}",
                where=where,
                fix="remove it from one of them; the key's bytes are in _key anyway",
            )
        return Schema(columns=(*key.columns, *value.columns))

    def hidden_columns(self) -> Sequence[str]:
        return HIDDEN

    def summary(self) -> tuple[str, ...]:
        return ("KafkaSource", f"topic {self.topic}")

    def check(self, reading: Reading) -> None:
        if is_java_only(self.client):
            return  # our own client cannot check with these settings; Spark will
        if not exists(self.servers, self.topic, Operation.READ, where=reading.where, client=self.client):
            raise BadJob(
                f"topic {self.topic!r} does not exist at {self.servers}",
                where=reading.where,
                fix="create the topic, or send its first record; an empty topic is enough",
            )

    def read(self, spark: SparkSession, reading: Reading) -> DataFrame:
        reader = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.servers)
            .option("subscribe", self.topic)
            .option("includeHeaders", "true")
            .option("failOnDataLoss", "true")
            .option("kafka.isolation.level", "read_committed")
        )
        if not reading.is_real_time:
            reader = reader.option("maxOffsetsPerTrigger", reading.rows_first or reading.rows_per_epoch)
        for name, text in {
            **_starting(reading),
            **spark_options(self.client, self.servers, where=reading.where),
        }.items():
            reader = reader.option(name, text)
        return self.rows_of(reader.load(), reading)

    def rows_of(self, records: DataFrame, reading: Reading) -> DataFrame:
        """The rows of records that have the columns of Spark's connector."""
        from pyspark.sql import functions as F

        frame = records.select(
            F.col("value").alias("__raw"),
            F.col("offset").alias("__at"),
            F.col("key").alias("_key"),
            F.col("topic").alias("_topic"),
            F.col("partition").alias("_partition"),
            F.col("offset").alias("_offset"),
            F.col("timestamp").alias("_timestamp"),
            F.col("headers").alias("_headers"),
            position(source=reading.name, part=_part(F.col("topic"), F.col("partition")), at=F.col("offset")),
        )
        hidden = [*HIDDEN]
        if reading.rejects is not None:
            made = original(F.col("__raw"), key=F.col("_key"), headers=F.col("_headers"), timestamp=F.col("_timestamp"))
            frame, hidden = frame.withColumn(ORIGINAL, made), [*HIDDEN, ORIGINAL]
        if reading.returned is not None:
            frame = frame.unionByName(self._returned(reading.returned))
        part = F.concat(F.lit(f"topic {self.topic!r}, partition "), F.col("_partition").cast("string"))
        frame, guard = frame.withColumn("__part", part), Guard.of(reading)
        key_columns: tuple[str, ...] = ()
        if self.key is not None:
            key = parse_ddl(self.key, reading.where)
            frame, key_columns = parse_key(frame, raw="_key", columns=key, guard=guard), key.names
        value = parse_ddl(self.value, reading.where)
        frame = parse_values(frame, raw="__raw", columns=value, ddl=self.value, format=self.format, guard=guard)
        return frame.select(*key_columns, *value.names, *hidden)

    def _returned(self, events: DataFrame) -> DataFrame:
        """Events that are read once more, as records at their old offsets."""
        from pyspark.sql import functions as F

        event, place = F.col(ORIGINAL), F.col(POSITION)
        pieces = F.split(place["part"], "-")
        return events.select(
            event["value"].alias("__raw"),
            place["at"].alias("__at"),
            event["key"].alias("_key"),
            F.lit(self.topic).alias("_topic"),
            F.element_at(pieces, -1).cast("int").alias("_partition"),
            place["at"].alias("_offset"),
            event["timestamp"].alias("_timestamp"),
            event["headers"].alias("_headers"),
            POSITION,
            ORIGINAL,
        )


def _as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _part(topic: Column, partition: Column) -> Column:
    """A partition as a part of the source, which has an order."""
    from pyspark.sql import functions as F

    return F.concat_ws("-", topic, F.lpad(partition.cast("string"), 6, "0"))


def _starting(reading: Reading) -> dict[str, str]:
    if reading.start in ("earliest", "latest"):
        return {"startingOffsets": reading.start}
    moment = datetime.fromisoformat(reading.start)
    # A time after the last record means: from the next record on.
    return {
        "startingTimestamp": str(int(moment.timestamp() * 1000)),
        "startingOffsetsByTimestampStrategy": "latest",
    }
