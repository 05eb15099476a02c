"""Events that are read once more: dead letters that were sent back, and events that an acker has kept for a retry.

They are files of JSON lines beside the checkpoint, and a source of the query like any other. Spark's log has each file
that was read, so an event comes back once. Each line has the event's place in its source, and what the source gave. The
event takes the same way as the first time, from the parser on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lockgate.connectors.files.source import FOREVER
from lockgate.connectors.parsing import parse_values
from lockgate.connectors.rejects import Guard
from lockgate.dataflow.endpoints import ORIGINAL, ORIGINAL_DDL, POSITION, POSITION_DDL, Reading
from lockgate.dataflow.schema import Schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOLDER = "returns"
"""The folder of the files, below the checkpoint."""


def as_line(position: Mapping[str, Any], original: Mapping[str, Any], *, attempts: int) -> bytes:
    """The line of an event that had this many attempts: the whole event, even if only a part of it failed."""
    whole = {**position, "child": []}
    return json.dumps({POSITION: whole, ORIGINAL: {**original, "attempts": attempts}}).encode() + b"\n"


def read_returned(spark: SparkSession, checkpoint: str, source: str) -> DataFrame:
    """The events of one source that are read once more: POSITION and ORIGINAL."""
    from pyspark.sql import functions as F

    # A pattern, because Spark requires that a plain directory exists, and no event may have come back yet.
    place = f"{checkpoint.rstrip('/')}/{FOLDER[:-1]}[{FOLDER[-1]}]/*.json"
    lines = (
        spark.readStream.schema(f"{POSITION} {POSITION_DDL}, {ORIGINAL} {ORIGINAL_DDL}")
        .option("latestFirst", "false")
        .option("maxFileAge", FOREVER)
        .option("mode", "FAILFAST")
        .option("maxStringLen", str(2**31 - 1))  # an event is one text; Spark's default is 20 million characters
        .json(place)
    )
    return lines.where(F.col(POSITION)["source"] == F.lit(source)).select(POSITION, ORIGINAL)


def parse_returned(events: DataFrame, columns: Schema, reading: Reading) -> DataFrame:
    """Events of a source of typed rows, from their JSON: the columns, then POSITION and ORIGINAL."""
    from pyspark.sql import functions as F

    raw = events.select(
        F.col(ORIGINAL)["value"].cast("string").alias("__raw"),
        F.concat_ws(", ", F.col(POSITION)["source"], F.col(POSITION)["part"]).alias("__part"),
        F.col(POSITION)["at"].alias("__at"),
        POSITION,
        ORIGINAL,
    )
    guard = Guard.of(reading)
    return parse_values(raw, raw="__raw", columns=columns, ddl=str(columns), format="json", guard=guard)
