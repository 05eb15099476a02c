"""Rows that a step cannot use: they stop the job, or are put aside with all that is known of them.

If Spark itself finds that a row is unusable, it puts the row aside at once. A step in Python returns the rows that it
fails on beside its results, in the columns FACTS and WHOLE, and Spark puts these aside after the step. Both columns are
JSON texts, with bytes in base64: the fields of `Rejection`, and those of ORIGINAL. The tasks keep them
(connectors/aside.py), and the driver asks for them when the rows of an epoch are computed. Several branches may read
one source and reject the same event. So the event's place and the step identify a rejection.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockgate.connectors.aside import Aside, Block
from lockgate.connectors.parsing import stop_where
from lockgate.dataflow.endpoints import ORIGINAL, ORIGINAL_DDL, POSITION, Reading, Rejecting

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# With all digits, which Spark omits by default: an event must come back unchanged.
TIMESTAMP_FORMAT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
JSON_OPTIONS = {
    "timestampFormat": TIMESTAMP_FORMAT,
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}
FACTS, WHOLE = "__facts", "__whole"
"""The columns beside the results of a step in Python: set in a row that it could not use, null in all others."""

FACTS_DDL = (
    "step STRING, reason STRING, position STRUCT<source: STRING, part: STRING, at: BIGINT, child: ARRAY<INT>>,"
    " shown STRING, attempts INT, is_final BOOLEAN"
)
_REASON, _STAYS = "__reason", "__stays"
_EVENTS = "lockgate_events_"
_HEADERS = "array<struct<key: string, value: binary>>"
_ROW_MAX, _REASON_MAX = 10_000, 4_000  # a dead letter must fit into a record, whatever an error quotes


@dataclass(frozen=True)
class Rejection:
    """An event that a step could not use."""

    step: str
    reason: str
    position: Mapping[str, Any] | None  # the fields of POSITION
    shown: str  # the row as the step saw it
    original: Mapping[str, Any] | None  # the fields of ORIGINAL, bytes in base64
    is_final: bool = False  # would another attempt fail for certain?

    @property
    def place(self) -> tuple[Any, ...]:
        """The identity of the rejection: the event's place in its source; without one, its content."""
        if self.position is None:
            return (self.step, self.shown, self.reason)
        at = self.position
        return (self.step, at["source"], at["part"], at["at"], *(at.get("child") or ()), self.shown)

    @property
    def event(self) -> tuple[Any, ...]:
        """The identity of its event, whichever part of it failed, in whichever step."""
        return tuple((self.position or {}).get(name) for name in ("source", "part", "at"))

    @property
    def attempts(self) -> int:
        """How often the event has been tried."""
        return ((self.original or {}).get("attempts") or 0) + 1

    @property
    def facts(self) -> str:
        """The rejection as a text, without what the source gave."""
        return json.dumps(
            {
                "step": self.step,
                "reason": self.reason[:_REASON_MAX],
                "position": self.position,
                "shown": self.shown[:_ROW_MAX],
                "attempts": self.attempts - 1,
                "is_final": self.is_final,
            }
        )

    @property
    def whole(self) -> str | None:
        """What the source gave, as a text."""
        return None if self.original is None else json.dumps(self.original)


def read_rejection(facts: str, whole: str | None) -> Rejection:
    """A rejection from its two texts."""
    told = json.loads(facts)
    return Rejection(
        told["step"],
        told["reason"],
        told.get("position"),
        told.get("shown") or "",
        None if whole is None else json.loads(whole),
        bool(told.get("is_final")),
    )


def as_base64(original: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What a source gave, from Python's form into the form of the text."""
    if original is None:
        return None
    timestamp = original["timestamp"]
    return {
        **original,
        "key": _base64(original["key"]),
        "value": _base64(original["value"]),
        "headers": [{**one, "value": _base64(one["value"])} for one in original["headers"] or ()],
        "timestamp": None if timestamp is None else timestamp.isoformat(),
    }


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


class Rejects:
    """Takes what the steps of one query cannot use."""

    def __init__(self, spark: SparkSession) -> None:
        self._aside = Aside(spark)
        self._names: Iterator[str] = map(str, itertools.count())

    def watch(
        self,
        frame: DataFrame,
        reason: Column,
        *,
        step: str | Column,
        shown: Column,
        position: Column | None = None,
        original: Column | None = None,
    ) -> DataFrame:
        """The rows for which there is no reason; Spark puts the others aside.

        The columns POSITION and ORIGINAL describe the event, unless both are given.
        """
        from pyspark.sql import functions as F

        def field(column: str) -> Column | None:
            return F.col(column) if column in frame.columns else None

        none = F.lit(None)
        place = field(POSITION) if position is None else position
        whole = field(ORIGINAL) if original is None else original
        # to_json writes bytes in base64. The shown row may be cut off, the original is whole.
        facts = F.to_json(
            F.struct(
                (F.lit(step) if isinstance(step, str) else step).alias("step"),
                F.col(_REASON).alias("reason"),
                (none.cast("string") if place is None else place).alias("position"),
                F.substring(shown, 1, _ROW_MAX).alias("shown"),
                (none.cast("int") if whole is None else whole["attempts"]).alias("attempts"),
            ),
            JSON_OPTIONS,
        )
        told = none.cast("string") if whole is None else F.to_json(whole, JSON_OPTIONS)
        return self._without(frame.withColumn(_REASON, reason), F.col(_REASON), facts, told).drop(_REASON)

    def part(self, frame: DataFrame) -> DataFrame:
        """The results of a step in Python without the rows that it could not use, and without FACTS and WHOLE."""
        from pyspark.sql import functions as F

        return self._without(frame, F.col(FACTS), F.col(FACTS), F.col(WHOLE)).drop(FACTS, WHOLE)

    def _without(self, frame: DataFrame, sign: Column, facts: Column, whole: Column) -> DataFrame:
        """The rows in which the sign is null; the others are put aside."""
        from pyspark.sql import functions as F

        # A separate column that is not deterministic: Spark neither moves its filter nor computes it twice.
        stays = F.when(sign.isNotNull(), self._aside.put(facts, whole)).otherwise(F.lit(True))
        return frame.withColumn(_STAYS, stays).where(_STAYS).drop(_STAYS)

    def count(self, frame: DataFrame) -> DataFrame:
        """The same rows; each of them counts as an event."""
        from pyspark.sql import functions as F

        name = f"{_EVENTS}{next(self._names)}"
        before = F.col(ORIGINAL)["attempts"]
        again = F.collect_list(F.when(before > 0, before))
        return frame.observe(name, F.struct(F.count(F.lit(1)).alias("events"), again.alias("again")).alias("told"))

    def forget(self) -> None:
        """Forget what was put aside: a try of an epoch begins or ends."""
        self._aside.forget()

    def blocks(self) -> list[Block]:
        """The blocks of rejected rows, once the rows of the epoch are computed."""
        return self._aside.blocks()

    def read(self, blocks: Sequence[Block]) -> DataFrame:
        """The texts of rejections: `facts` and `whole`."""
        return self._aside.read(blocks)

    def events(self, observed: Mapping[str, Any]) -> Counter[int]:
        """How many events left the sources, by how often they were tried before, from what Spark observed."""
        events: Counter[int] = Counter()
        for told in (told for name, told in observed.items() if name.startswith(_EVENTS) and told):
            again = told.get("again") or []
            events.update(again)
            events[0] += told["events"] - len(again)
        return events


@dataclass(frozen=True)
class Guard:
    """What follows a check of rows: a row that fails it stops the job, or is put aside."""

    step: str
    where: str
    kind: str = "value"
    rejects: Rejecting | None = None

    @classmethod
    def of(cls, reading: Reading) -> Guard:
        """The guard of a source."""
        return cls(reading.name, reading.where, rejects=reading.rejects)

    def keep(
        self,
        frame: DataFrame,
        reason: Column,
        *,
        shown: Column,
        part: Column | None = None,
        at: Column | None = None,
        wall: Column | None = None,
    ) -> DataFrame:
        """The rows without a reason to reject them; the place is in `__part` and `__at` unless given.

        `wall` is a condition that always holds, and past which Spark moves no other condition.
        """
        if self.rejects is not None:
            return self.rejects.watch(frame, reason, step=self.step, shown=shown)
        holds = stop_where(reason, row=shown, where=self.where, kind=self.kind, part=part, at=at)
        return frame.where(holds if wall is None else holds & wall)


def original(
    value: Column, *, key: Column | None = None, headers: Column | None = None, timestamp: Column | None = None
) -> Column:
    """The column ORIGINAL of rows as a source gave them, for the first time."""
    from pyspark.sql import functions as F

    nothing = F.lit(None)
    return (
        F.struct(
            (nothing if key is None else key).cast("binary").alias("key"),
            value.cast("binary").alias("value"),
            # No headers are an empty list: a null is expensive on its way to Python (spark/lists.py).
            (F.array() if headers is None else F.coalesce(headers, F.array().cast(_HEADERS)))
            .cast(_HEADERS)
            .alias("headers"),
            (nothing if timestamp is None else timestamp).cast("timestamp").alias("timestamp"),
            F.lit(0).alias("attempts"),
        )
        .cast(ORIGINAL_DDL)
        .alias(ORIGINAL)
    )
