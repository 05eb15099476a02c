"""The dead letters of an epoch: events that its steps could not process, written together with its rows.

They are known only after the rows are computed. So the rows are computed once and kept. The tasks put aside the events
that their steps could not process (connectors/aside.py). Then

    count    a query over these events counts them; here `stop_after` decides
    write    they become rows of one more output, and everything is written together: a dead letter is visible exactly
             when the rows of its epoch are visible

No dead letter passes through the driver: it gets counts, and the first characters of a few reasons. It reads only the
events that an acker retries, a few megabytes at a time, because it stores them in files.

Kept rows that are lost are not computed again (runtime/persistedrows.py): functions might fail on other events then.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lockgate.checkpoints.checkpoint import RunningQuery
from lockgate.connectors.aside import Block
from lockgate.connectors.rejects import Rejects
from lockgate.dataflow.deadletters import DeadLetters
from lockgate.dataflow.endpoints import PLACE
from lockgate.errors import Failed, TooManyLetters
from lockgate.escaping import escape
from lockgate.faultpoints import FaultPoint, reach
from lockgate.planner.logical import LogicalGraph
from lockgate.planner.replaysafety import find_hindrances
from lockgate.runtime.acker import Acker
from lockgate.runtime.metrics.figures import add_reasons
from lockgate.runtime.persistedrows import as_plain, finished
from lockgate.runtime.rejectedevents import Epoch, Found, Group, Rejections
from lockgate.spark.compile import Finish
from lockgate.spark.tagging import TAG, CompiledOutput

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger(__name__)

EVENTS_MIN = 100
"""A share needs at least this number of events to mean anything."""

DRIVER_PART = 8
"""Dead letters of an epoch take at most this part of the driver's memory if their sink copies them there."""

_REFUSED = "__refused"
_NOT_WHOLE = ("key", "value", "headers", "timestamp")


@dataclass
class DeadLetterWriter:
    """Takes the dead letters of a job, epoch by epoch."""

    spark: SparkSession
    job: str
    where: str
    letters: DeadLetters
    rejects: Rejects
    output: CompiledOutput
    graph: LogicalGraph
    acker: Acker | None = None  # keeps events that are retried first
    total: int = 0
    by_reason: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by step, and the kind of reason
    done: dict[int, Counter[int]] = field(default_factory=dict)
    """The events of finished epochs, by how often each had been tried before; the counter removes what it counted."""
    _events: int = 0
    _counted: tuple[str, int] | None = None  # the newest counted epoch, which does not count again when it repeats
    _refusal: tuple[Column | None] | None = (
        None  # a column that says why the sink would refuse a dead letter, after the first question
    )

    @contextlib.contextmanager
    def opened(
        self, rows: DataFrame, epoch: int, query: RunningQuery, finish: Finish | None = None
    ) -> Iterator[tuple[DataFrame, dict[str, Any]]]:
        """The rows of an epoch with its dead letters, kept inside the context; and the observations of steps below."""
        self.rejects.forget()
        try:
            with finished(self.spark, rows, finish, epoch=epoch, where=self.where) as (all_rows, below):
                events = self.rejects.events(dead_letter_observations({**observed(self.spark, query), **below}))
                blocks = self.rejects.blocks()
                aside = Rejections(self.rejects, blocks, Epoch(self.job, query.id, epoch), self._retried_below)
                found = aside.count() if blocks else Found()
                events += found.unread
                self.done[epoch] = events
                self._count((query.id, epoch), found, events.total())
                if found.letters:
                    self._refuse_floods(blocks)
                if self.acker is not None and found.retries:
                    kept = self.acker.keep(aside.retries(), epoch=epoch, run=query.run.replace("-", ""))
                    self.done[epoch] = events - kept
                if found.letters:
                    self._report(found, epoch)
                    reach(FaultPoint.ASIDE)
                    all_rows = self._with_letters(all_rows, aside.letters(found, self._hindered))
                yield all_rows, below
        finally:
            self.rejects.forget()

    def _refuse_floods(self, blocks: Sequence[Block]) -> None:
        """Stop if a sink that takes its rows through the driver would use up the driver's memory."""
        if self.output.sink.execution(is_exact=self.output.is_exact)[0] != "driver":
            return
        size = sum(block.bytes for block in blocks)
        jvm: Any = self.spark.sparkContext._jvm
        most = int(jvm.java.lang.Runtime.getRuntime().maxMemory()) // DRIVER_PART
        if size > most:
            raise Failed(
                f"{size} bytes of dead letters are more than the driver can take at once, which is {most}:"
                f" a {type(self.output.sink).__name__} gets all rows through the driver",
                where=self.output.where,
                fix="write dead letters to a KafkaSink, a PostgresSink or a FileSink; or plan the epoch again with"
                " fewer rows (lockgate checkpoints rollback --uncommitted, then lockgate run --rows-per-epoch N), or"
                " give Spark's driver more memory. The current epoch is not written, nothing is lost",
            )

    def _report(self, found: Found, epoch: int) -> None:
        first = next(group for group in found.groups if not group.is_retried)
        log.warning(
            "job %s: %d events became dead letters, e.g. %s",
            self.job,
            found.letters,
            escape(first.reason),
            extra={"epoch": epoch, "step": first.step},
        )

    def _with_letters(self, rows: DataFrame, letters: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        made = self._fitting(letters)
        row = F.struct(*(F.col(f"`{name}`") for name in made.columns))
        given = {TAG: F.lit(self.output.tag), self.output.struct: row}
        if PLACE in rows.columns:
            given[PLACE] = _place_of_letter()
        columns = [given.get(name, F.lit(None)).cast(rows.schema[name].dataType).alias(name) for name in rows.columns]
        return rows.union(made.select(*columns))

    def _fitting(self, letters: DataFrame) -> DataFrame:
        """The dead letters in a form that their sink accepts: those that it would refuse lose the original event."""
        from pyspark.sql import functions as F

        sink = self.output.sink
        made = sink.prepare(letters)
        if self._refusal is None:  # ask once: the sink may have to ask its system
            self._refusal = (sink.refusal(made, within=None, where=self.output.where),)
        (refusal,) = self._refusal
        if refusal is None:
            return made

        def measured(name: str) -> Column:
            told = F.concat(
                F.lit(f"; its {name} has "),
                F.octet_length(name).cast("string"),
                F.lit(" bytes, SHA-256 "),
                F.sha2(name, 256),
            )
            return F.coalesce(told, F.lit(""))

        is_refused = F.col(_REFUSED).isNotNull()
        why = F.concat(
            F.substring("reason", 1, 1_000),
            F.lit("; the event itself is not in this dead letter: "),
            F.col(_REFUSED),
            measured("key"),
            measured("value"),
        )
        changed = {"reason": F.when(is_refused, why).otherwise(F.col("reason"))}
        changed |= {name: F.when(~is_refused, F.col(name)) for name in _NOT_WHOLE}
        # First make the refusal a column, so that it is computed once, and before its columns are gone.
        tried = made.withColumn(_REFUSED, refusal)
        return sink.prepare(tried.select(*(changed.get(name, F.col(name)).alias(name) for name in letters.columns)))

    @property
    def _retried_below(self) -> int:
        """An event that was tried less often than this is retried."""
        return 0 if self.acker is None else self.acker.max_attempts

    def _hindered(self, group: Group) -> str | None:
        """The outputs and states that have the events already, in the job as it is now. A later version may differ."""
        if group.source is None:
            return None
        found = find_hindrances(self.graph, step=group.step, source=group.source, is_child=group.is_child)
        return "; ".join(found) or None

    def _count(self, epoch: tuple[str, int], found: Found, events: int) -> None:
        """Add the dead letters of an epoch, once for all repeats, and stop the job if there are too many."""
        if epoch != self._counted:
            self._counted = epoch
            self.total += found.letters
            self.by_reason = add_reasons(self.by_reason, found.kinds)
            self._events += events
        limit = self.letters.stop_after
        if limit is None or not found.letters:
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
            fix="see why in the committed dead letters (lockgate dead-letters list), fix the step or the events, and"
            " run the job again: the current epoch is not written, nothing is lost",
        )


def _place_of_letter() -> Column:
    """The place of a dead letter's event in its source, from the columns of the dead letter."""
    from pyspark.sql import functions as F

    child = F.filter(F.split(F.coalesce("child", F.lit("")), r"\."), lambda one: one != "")
    return F.struct("source", "part", "at", child.alias("child"))


def observed(spark: SparkSession, query: RunningQuery) -> dict[str, Any]:
    """The observations of the epoch that is being written, by name."""
    session = spark._jsparkSession
    return as_plain(session.streams().get(query.id).streamingQuery().lastExecution().observedMetrics(), spark)


def dead_letter_observations(observed: Mapping[str, Any]) -> dict[str, Any]:
    """The observations about dead letters; the other ones are counts of rows for metrics."""
    return {name: row["told"] for name, row in observed.items() if "told" in row}
