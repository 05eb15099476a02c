"""Rows that a step cannot use: they stop the job, or are put aside with all that is known of them.

Who puts them aside has to be asked once the rows of an epoch are there: what Spark itself finds to be unusable is
observed on the way (`DataFrame.observe`), what fails in Python travels in an accumulator. Both tell the same: JSON text
of the fields of `Rejection`, bytes in base64. A task that is repeated may tell twice, so rejections are told apart by
the event's place and the step.
"""

from __future__ import annotations

import base64
import copy
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockgate.dataflow.endpoints import ORIGINAL, ORIGINAL_DDL, POSITION, Reading, Rejecting
from lockgate.sources.parsing import stop_where

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import Column, DataFrame, SparkSession

# With all digits, which Spark leaves away unless it is told; what was read must come back as it was.
TIMESTAMP_FORMAT = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"
JSON_OPTIONS = {
    "timestampFormat": TIMESTAMP_FORMAT,
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}
_REASON = "__reason"
_REJECTS, _EVENTS = "lockgate_rejects_", "lockgate_events_"
_HEADERS = "array<struct<key: string, value: binary>>"
_ROW_MAX, _REASON_MAX = 10_000, 4_000  # a letter has to fit into a record, whatever an error quotes


@dataclass(frozen=True)
class Rejection:
    """An event that a step could not use."""

    step: str
    reason: str
    position: Mapping[str, Any] | None  # the fields of POSITION
    shown: str  # the row as the step saw it
    original: Mapping[str, Any] | None  # the fields of ORIGINAL, bytes in base64
    is_final: bool = False  # is another attempt in vain, and not to be made?

    @property
    def place(self) -> tuple[Any, ...]:
        """What tells it apart from others: the event's place in its source; without one, what it is made of."""
        if self.position is None:
            return (self.step, self.shown, self.reason)
        at = self.position
        return (self.step, at["source"], at["part"], at["at"], *(at.get("child") or ()), self.shown)

    @property
    def event(self) -> tuple[Any, ...]:
        """What tells its event apart, whichever part of it failed, and wherever."""
        return tuple((self.position or {}).get(name) for name in ("source", "part", "at"))

    @property
    def attempts(self) -> int:
        """How often the event was tried by now."""
        return ((self.original or {}).get("attempts") or 0) + 1

    def text(self) -> str:
        """As it travels."""
        return json.dumps(
            {
                "step": self.step,
                "reason": self.reason[:_REASON_MAX],
                "position": self.position,
                "shown": self.shown[:_ROW_MAX],
                "original": self.original,
                "is_final": self.is_final,
            }
        )


def read_rejection(text: str) -> Rejection:
    """One that has travelled."""
    told = json.loads(text)
    return Rejection(
        told["step"],
        told["reason"],
        told.get("position"),
        told.get("shown") or "",
        told.get("original"),
        bool(told.get("is_final")),
    )


def as_base64(original: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What a source gave, as Python has it, in the form in which it travels."""
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
        from pyspark.accumulators import AccumulatorParam

        class Texts(AccumulatorParam[list[str]]):
            def zero(self, value: list[str]) -> list[str]:
                return []

            def addInPlace(self, value1: list[str], value2: list[str]) -> list[str]:  # noqa: N802 - Spark's name
                value1.extend(value2)
                return value1

        self.told: Accumulator[list[str]] = spark.sparkContext.accumulator([], Texts())
        """What workers add texts of rejections to."""
        self._names: Iterator[str] = map(str, itertools.count())

    def in_epoch(self) -> Rejects:
        """The same for steps that are compiled again in every epoch, whose names must not run on."""
        found = copy.copy(self)
        found._names = (f"below_{number}" for number in itertools.count())
        return found

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
        """The rows without those for which there is a reason, which are put aside natively.

        Where an event came from, and what it was, is in the columns for that unless it is given.
        """
        from pyspark.sql import functions as F

        name = f"{_REJECTS}{next(self._names)}"

        def field(column: str) -> Column:
            return F.col(column) if column in frame.columns else F.lit(None).cast("string")

        # to_json writes bytes in base64; the row as it was shown may be long, the original is whole.
        text = F.to_json(
            F.struct(
                (F.lit(step) if isinstance(step, str) else step).alias("step"),
                F.col(_REASON).alias("reason"),
                (field(POSITION) if position is None else position).alias("position"),
                F.substring(shown, 1, _ROW_MAX).alias("shown"),
                (field(ORIGINAL) if original is None else original).alias("original"),
            ),
            JSON_OPTIONS,
        )
        told = F.collect_list(F.when(F.col(_REASON).isNotNull(), text))
        reasoned = frame.withColumn(_REASON, reason).observe(name, told.alias("told"))
        return reasoned.where(F.col(_REASON).isNull()).drop(_REASON)

    def count(self, frame: DataFrame) -> DataFrame:
        """The same rows, which count as events."""
        from pyspark.sql import functions as F

        name = f"{_EVENTS}{next(self._names)}"
        before = F.col(ORIGINAL)["attempts"]
        again = F.collect_list(F.when(before > 0, before))
        return frame.observe(name, F.struct(F.count(F.lit(1)).alias("events"), again.alias("again")).alias("told"))

    def forget(self) -> None:
        """Begin an epoch: what a failed try of it has told is nobody's."""
        self.told.value = []

    def collect(self, observed: Mapping[str, Any]) -> tuple[list[Rejection], Counter[int]]:
        """What was put aside in an epoch whose rows are there, given what was observed.

        And how many events came, by how often they had been tried before.
        """
        texts = [text for name, told in observed.items() if name.startswith(_REJECTS) for text in told or ()]
        found: dict[tuple[Any, ...], Rejection] = {}
        for text in [*texts, *self.told.value]:
            rejection = read_rejection(text)
            found.setdefault(rejection.place, rejection)
        events: Counter[int] = Counter()
        for told in (told for name, told in observed.items() if name.startswith(_EVENTS) and told):
            again = told.get("again") or []
            events.update(again)
            events[0] += told["events"] - len(again)
        for rejection in found.values():
            if rejection.position is not None and rejection.step == rejection.position["source"]:
                events[rejection.attempts - 1] += 1  # what a source itself put aside is not among its rows
        # In an order that does not depend on tasks: a repeated epoch has the same letters in the same order.
        return [found[place] for place in sorted(found, key=repr)], events


@dataclass(frozen=True)
class Guard:
    """Stands behind a check of rows: those that fail it stop the job, or are put aside."""

    step: str
    where: str
    kind: str = "value"
    rejects: Rejecting | None = None

    @classmethod
    def of(cls, reading: Reading) -> Guard:
        """That of a source."""
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
        """The rows for which there is no reason not to; the place is in `__part` and `__at` unless given.

        `wall` is a condition that holds always, and keeps others from being moved past it.
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
            # None are an empty list: null ones are dear on their way to Python (spark/lists.py).
            (F.array() if headers is None else F.coalesce(headers, F.array().cast(_HEADERS)))
            .cast(_HEADERS)
            .alias("headers"),
            (nothing if timestamp is None else timestamp).cast("timestamp").alias("timestamp"),
            F.lit(0).alias("attempts"),
        )
        .cast(ORIGINAL_DDL)
        .alias(ORIGINAL)
    )
