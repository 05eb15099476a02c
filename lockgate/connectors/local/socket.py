"""SocketSource: lines from a TCP socket, for experiments.

If the process dies, received lines that are not yet processed are lost, and the server does not send them again:
at-most-once.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockgate.connectors.parsing import check_format, parse_values
from lockgate.connectors.position import UNKNOWN, number_rows, position
from lockgate.connectors.rejects import Guard, original
from lockgate.dataflow.arguments import explain_wrong_calls
from lockgate.dataflow.endpoints import ORIGINAL, POSITION, Encoding, Reading, Source, SourceAbility
from lockgate.dataflow.format import Format
from lockgate.dataflow.schema import Schema, parse_ddl
from lockgate.errors import BadJob, Unreachable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@explain_wrong_calls('SocketSource(host="localhost", port=9999)')
@dataclass(frozen=True)
class SocketSource(Source):
    """The lines that a server sends. They cannot be read again, so a job over them reaches at most at-most-once.

    Args:
        host: the host of the server.
        port: its port.
        value: the columns, as Spark DDL.
        format: `"text"`, `"json"` or `"csv"`.

    >>> lines = stream("lines", SocketSource(host="localhost", port=9999))
    """

    host: str
    port: int
    value: str = "line STRING"
    format: Format | str = Format.TEXT

    @property
    def ability(self) -> SourceAbility:
        return SourceAbility(
            is_replayable=False, reason="what a socket delivered before a failure is lost and cannot be read again"
        )

    @property
    def tasks(self) -> str:
        return "one per core"

    def columns(self, where: str) -> Schema:
        columns = parse_ddl(self.value, where)
        if self.format == "bytes":
            raise BadJob("a socket delivers lines of text", where=where, fix='use format="text", "json" or "csv"')
        check_format(self.format, columns, where)
        return columns

    def hidden_columns(self) -> Sequence[str]:
        return (POSITION,)

    @property
    def encoding(self) -> Encoding:
        return Encoding(self.value, self.format)

    @property
    def endless(self) -> str:
        return "a socket"

    def summary(self) -> tuple[str, ...]:
        return ("SocketSource", f"{self.host}:{self.port}")

    def check(self, reading: Reading) -> None:
        if reading.start != "earliest":
            raise BadJob(
                f"a socket cannot be read from {reading.start!r} on",
                where=reading.where,
                fix="omit the start: a socket delivers what is sent from now on",
            )
        try:
            socket.create_connection((self.host, self.port), timeout=5).close()
        except OSError as error:
            raise Unreachable(
                f"no server listens at {self.host}:{self.port} ({error})",
                where=reading.where,
                fix="start the server first, e.g. `nc -lk 9999`",
            ) from None

    def read(self, spark: SparkSession, reading: Reading) -> DataFrame:
        from pyspark.sql import functions as F

        columns = parse_ddl(self.value, reading.where)
        lines = spark.readStream.format("socket").option("host", self.host).option("port", self.port).load()
        place = f"socket {self.host}:{self.port}"
        frame = lines.select(F.col("value").alias("__raw"), F.lit(place).alias("__part"))
        if reading.is_order_needed:
            frame = number_rows(frame, part="__part", tasks=spark.sparkContext.defaultParallelism)
        else:
            frame = frame.withColumn("__at", F.lit(UNKNOWN).cast("bigint"))
        frame = frame.withColumn(POSITION, position(source=reading.name, part=F.col("__part"), at=F.col("__at")))
        guard, hidden = Guard.of(reading), [POSITION]
        if reading.rejects is not None:
            frame, hidden = frame.withColumn(ORIGINAL, original(F.col("__raw"))), [POSITION, ORIGINAL]
        frame = parse_values(frame, raw="__raw", columns=columns, ddl=self.value, format=self.format, guard=guard)
        return frame.select(*columns.names, *hidden)
