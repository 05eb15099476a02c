"""Events that come once more: letters that were sent back, and events that an acker has kept for another try.

They lie as files of JSON lines beside the checkpoint, and are a source of the query like any other: a file that is read
is in Spark's log, so an event comes back once. Each line holds where the event was in its source and what the source
gave; it takes the same way as the first time, from the parser on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lockgate.dataflow.endpoints import ORIGINAL, ORIGINAL_DDL, POSITION, POSITION_DDL, Reading
from lockgate.dataflow.schema import Schema
from lockgate.sources.files import FOREVER
from lockgate.sources.parsing import parse_values
from lockgate.sources.rejects import Guard

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOLDER = "returns"
"""Where the files lie, below the checkpoint."""


def as_line(position: Mapping[str, Any], original: Mapping[str, Any], *, attempts: int) -> bytes:
    """An event that was tried so often, as it is read here: whole, also where only a part of it failed."""
    whole = {**position, "child": []}
    return json.dumps({POSITION: whole, ORIGINAL: {**original, "attempts": attempts}}).encode() + b"\n"


def read_returned(spark: SparkSession, checkpoint: str, source: str) -> DataFrame:
    """The events of one source that come once more: POSITION and ORIGINAL."""
    from pyspark.sql import functions as F

    # A pattern, because Spark wants a plain directory to exist, and nothing may have come back yet.
    place = f"{checkpoint.rstrip('/')}/{FOLDER[:-1]}[{FOLDER[-1]}]/*.json"
    lines = (
        spark.readStream.schema(f"{POSITION} {POSITION_DDL}, {ORIGINAL} {ORIGINAL_DDL}")
        .option("latestFirst", "false")
        .option("maxFileAge", FOREVER)
        .option("mode", "FAILFAST")
        .json(place)
    )
    return lines.where(F.col(POSITION)["source"] == F.lit(source)).select(POSITION, ORIGINAL)


def parse_returned(events: DataFrame, columns: Schema, reading: Reading) -> DataFrame:
    """Events of a source of typed rows, which were kept as JSON: its columns, then POSITION and ORIGINAL."""
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
