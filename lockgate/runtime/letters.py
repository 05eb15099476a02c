"""The letters of an epoch: events that its steps could not use, put beside its rows.

Which they are is known only when the rows are there. So these are computed once and kept, the letters are asked for and
become rows of one more output, and everything is written together: a letter is out exactly when the rows of its epoch
are. Rows that were kept and then lost are not computed again (runtime/kept.py): functions might fail on others then.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lockgate.dataflow.deadletters import LETTER, DeadLetters
from lockgate.dataflow.endpoints import PLACE
from lockgate.dataflow.schema import parse_ddl
from lockgate.errors import TooManyLetters
from lockgate.escaping import escape
from lockgate.planner.again import find_hindrances
from lockgate.planner.logical import LogicalGraph
from lockgate.runtime.acker import Acker
from lockgate.runtime.checkpoints import RunningQuery
from lockgate.runtime.kept import as_plain, finished
from lockgate.runtime.metrics.figures import add_reasons
from lockgate.sources.rejects import Rejection, Rejects
from lockgate.spark.compile import TAG, CompiledOutput, Finish

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger(__name__)

EVENTS_MIN = 100
"""A share of fewer events than these says nothing."""


@dataclass
class LetterBox:
    """Takes the letters of a job, epoch by epoch."""

    spark: SparkSession
    job: str
    where: str
    letters: DeadLetters
    rejects: Rejects
    output: CompiledOutput
    graph: LogicalGraph
    acker: Acker | None = None  # keeps events that are tried again first
    total: int = 0
    by_reason: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by step, and the kind of reason
    done: dict[int, Counter[int]] = field(default_factory=dict)
    """The events that epochs are done with, by how often each had been tried before; who counts them takes them out."""
    _events: int = 0
    _counted: tuple[str, int] | None = None  # the newest epoch counts already, however often it runs

    @contextlib.contextmanager
    def opened(
        self, rows: DataFrame, epoch: int, query: RunningQuery, finish: Finish | None = None
    ) -> Iterator[tuple[DataFrame, dict[str, Any]]]:
        """The rows of an epoch and its letters, for the time that they are needed; and what steps below observed."""
        self.rejects.forget()
        with finished(self.spark, rows, finish, epoch=epoch, where=self.where) as (all_rows, below):
            rejected, events = self.rejects.collect(told_of({**observed(self.spark, query), **below}))
            self.done[epoch] = events
            if self.acker is not None:
                retries = [one for one in rejected if self.acker.may_retry(one)]
                self.acker.keep(retries, epoch=epoch, run=query.run.replace("-", ""))
                rejected = [one for one in rejected if not self.acker.may_retry(one)]
                self.done[epoch] = events - Counter({one.event: one.attempts - 1 for one in retries}.values())
            self._count((query.id, epoch), rejected, events.total())
            yield self._with_letters(all_rows, [self._letter(one, epoch, query.id) for one in rejected]), below

    def _with_letters(self, rows: DataFrame, letters: Sequence[Mapping[str, Any]]) -> DataFrame:
        from pyspark.sql import functions as F

        if not letters:
            return rows
        log.warning(
            "job %s: %d events became dead letters, e.g. %s",
            self.job,
            len(letters),
            escape(letters[0]["reason"]),
            extra={"epoch": letters[0]["epoch"], "step": letters[0]["step"]},
        )
        made = self.output.sink.prepare(as_frame(self.spark, letters))
        row = F.struct(*(F.col(f"`{name}`") for name in made.columns))
        given = {TAG: F.lit(self.output.tag), self.output.struct: row}
        if PLACE in rows.columns:
            given[PLACE] = _place_of_letter()
        columns = [given.get(name, F.lit(None)).cast(rows.schema[name].dataType).alias(name) for name in rows.columns]
        return rows.union(made.select(*columns))

    def _letter(self, rejection: Rejection, epoch: int, life: str) -> dict[str, Any]:
        place = rejection.position or {}
        original = rejection.original or {}
        identity = json.dumps([self.job, life, epoch, *rejection.place])
        headers = original.get("headers")
        return {
            "id": hashlib.sha256(identity.encode()).hexdigest()[:16],
            "job": self.job,
            "life": life,
            "epoch": epoch,
            "step": rejection.step,
            "reason": _without_nul(rejection.reason),
            "attempts": rejection.attempts,
            "hindered": self._hindered(rejection),
            "source": place.get("source"),
            "part": place.get("part"),
            "at": place.get("at"),
            "child": ".".join(map(str, place.get("child") or ())) or None,
            "shown": _without_nul(rejection.shown),
            "key": original.get("key"),
            "value": original.get("value"),
            "headers": json.dumps(headers) if headers else None,
            "timestamp": original.get("timestamp"),
        }

    def _hindered(self, rejection: Rejection) -> str | None:
        """Who has the event already; as the job is now, because it may be another one when the letter is sent back."""
        place = rejection.position
        if place is None:
            return None
        found = find_hindrances(
            self.graph, step=rejection.step, source=place["source"], is_child=bool(place.get("child"))
        )
        return "; ".join(found) or None

    def _count(self, epoch: tuple[str, int], rejected: Sequence[Rejection], events: int) -> None:
        """Add what an epoch brought, and stop the job where it is too much; an epoch that is repeated counts once."""
        if epoch != self._counted:
            self._counted = epoch
            self.total += len(rejected)
            self.by_reason = add_reasons(self.by_reason, [(one.step, one.reason) for one in rejected])
            self._events += events
        limit = self.letters.stop_after
        if limit is None or not rejected:
            return
        is_share = isinstance(limit, float)
        if is_share and (self._events < EVENTS_MIN or self.total <= limit * self._events):
            return
        if not is_share and self.total <= limit:
            return
        told = f"{self.total} of {self._events} events" if is_share else f"{self.total} events"
        raise TooManyLetters(
            f"{told} of job {self.job!r} became dead letters since it was started, more than stop_after={limit}",
            where=self.where,
            fix="see why in the letters that are out (lockgate dead-letters list), mend the step or the events, and run"
            " the job again: the epoch in hand is not written, nothing is lost",
        )


def _place_of_letter() -> Column:
    """Where the event of a letter was, out of the columns of the letter."""
    from pyspark.sql import functions as F

    child = F.filter(F.split(F.coalesce("child", F.lit("")), r"\."), lambda one: one != "")
    return F.struct("source", "part", "at", child.alias("child"))


def _without_nul(text: str) -> str:
    """Text that every sink takes: PostgreSQL has no NUL in text, and a letter that its sink refuses stops the job."""
    return text.replace("\0", "\\0")


def observed(spark: SparkSession, query: RunningQuery) -> dict[str, Any]:
    """What was observed on the way of the rows of the epoch that is being written, by name."""
    session = spark._jsparkSession
    return as_plain(session.streams().get(query.id).streamingQuery().lastExecution().observedMetrics(), spark)


def told_of(observed: Mapping[str, Any]) -> dict[str, Any]:
    """What rows tell of themselves; others are counts of rows for metrics."""
    return {name: row["told"] for name, row in observed.items() if "told" in row}


def as_frame(spark: SparkSession, letters: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Letters as rows, out of a literal: Spark's own way from Python would change which session is the active one."""
    from pyspark.sql import functions as F

    text = base64.b64encode(json.dumps(list(letters)).encode()).decode()
    parsed = F.from_json(F.unbase64(F.lit(text)).cast("string"), f"ARRAY<STRUCT<{_fields()}>>", {"mode": "FAILFAST"})
    return spark.range(0, 1, 1, numPartitions=1).select(F.inline(parsed))


def _fields() -> str:
    return ", ".join(f"{column.name}: {column.type}" for column in parse_ddl(LETTER, "dead letters").columns)
