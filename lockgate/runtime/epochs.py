"""Write one epoch: the rows of every output into its sink.

Spark calls this with the rows of an epoch after it has logged their offsets, and logs the commit after it returns. A
crash in between repeats the epoch, with the same number and the same rows.

    written in transactions   one decision for all such outputs (a further Kafka cluster decides after it); a
                              committed epoch is not written again. These are the outputs that are declared end-to-end
                              exactly-once, and upserts (planner/physical.py, `is_exact`)
    all others                written whenever the epoch runs, before the decision
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from lockgate.checkpoints.checkpoint import Past, running_query
from lockgate.commit.coordinator import Outcome
from lockgate.commit.protocol import Step
from lockgate.commit.resource import TransactionSink
from lockgate.connectors.kafka.epoch import EpochRows, RecordColumns
from lockgate.connectors.kafka.wire import hosts_of
from lockgate.dataflow.endpoints import Source
from lockgate.dataflow.locations import topics_among
from lockgate.errors import LockgateError, RecordsGone
from lockgate.failures import TRIED, find_raised
from lockgate.faultpoints import FaultPoint, reach
from lockgate.runtime.backpressure import Backpressure
from lockgate.runtime.commits import Commits
from lockgate.runtime.deadletterwriter import DeadLetterWriter
from lockgate.runtime.deliverycounts import Tries
from lockgate.runtime.gaps import Gaps
from lockgate.runtime.late import cut_late, watermark_before
from lockgate.runtime.metrics.meter import Meter
from lockgate.runtime.persistedrows import finished, persisted
from lockgate.runtime.poisonnotes import PoisonNotes
from lockgate.runtime.sourcefiles import SourceFiles
from lockgate.runtime.tablerefresh import Tables
from lockgate.runtime.topicids import TopicIds
from lockgate.spark.attempts import first_attempts
from lockgate.spark.compile import Finish
from lockgate.spark.crashes import CrashRegistry
from lockgate.spark.fanout import Tallies
from lockgate.spark.tagging import TAG, CompiledOutput
from lockgate.spark.timing import LateLog

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_REPORTS = 100
"""The most epochs that Spark reports at one look."""


@dataclass
class EpochWriter:
    """Writes the epochs of one job."""

    spark: SparkSession
    outputs: tuple[CompiledOutput, ...]
    commits: Commits = field(default_factory=Commits)
    resources: Mapping[str, Sequence[CompiledOutput]] = field(default_factory=dict)  # other than Kafka, by name
    can_repeat: bool = False
    is_alike: bool = False
    tries_once: bool = False  # must a second attempt of a task stop?
    may_differ: bool = False  # may rows differ when they are computed again, by a step that must be computed once?
    where: str = ""  # the job, as errors name it
    finish: Finish | None = None  # makes the rows of all outputs, if the query ends before them
    has_late: bool = False  # do late events leave the query, together with all that are in time?
    sources: tuple[Source, ...] = ()
    tables: Tables | None = None
    topics: TopicIds | None = None
    files: SourceFiles | None = None
    gaps: Gaps | None = None
    letters: DeadLetterWriter | None = None
    crashes: CrashRegistry | None = None
    poison: PoisonNotes | None = None
    tallies: Tallies | None = None  # of fan-outs
    backpressure: Backpressure | None = None
    meter: Meter | None = None  # if the run has metrics
    first_error: list[Exception] = field(default_factory=list)
    tries: Tries = field(default_factory=Tries)
    past: Past = field(default_factory=Past)  # what the query found when it started
    on_first: Callable[[], None] | None = None  # runs after the first epoch is done
    busy: threading.Lock = field(default_factory=threading.Lock)  # held while an epoch is written
    observed: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)  # by steps below the query, by epoch
    newest: int = -1  # the newest epoch of this query, current or written
    _earlier: int = 0  # epochs of earlier queries, whose checkpoints are gone

    def reset(self) -> None:
        """Continue with a new checkpoint, whose epochs begin at 0; a sink must not take them for repeated ones."""
        self._earlier, self.newest = self._earlier + self.newest + 1, -1
        self.first_error.clear()
        self.tries.forget()

    def write(self, rows: DataFrame, epoch: int) -> None:
        """Write the rows of one epoch. When this returns, every sink has its part."""
        try:
            with self.busy:
                self.newest = epoch
                self.tries.begin(epoch)
                if self.meter is not None:
                    self.meter.add_try()
                is_repeated = self.tries.of(epoch)[0] > 1
                # Tasks of an epoch that failed before report their current event, in case that it kills them.
                noted = () if self.poison is None else self.poison.of(epoch)
                self.spark.sparkContext.setLocalProperty(TRIED, "1" if is_repeated or noted else "")
                if self.crashes is not None:
                    self.crashes.begin(is_repeated=is_repeated, noted=noted)
                self.commits.clear_errors()
                if self.topics is not None:
                    self.topics.look()  # the epoch is planned: are its records from the noted topics?
                if self.files is not None:
                    self.files.plan(epoch)
                if self.gaps is not None:
                    self.gaps.look(epoch)
                if self.tables is not None:
                    self.tables.choose(epoch)
                if self.tallies is not None:
                    self.tallies.begin()
                self._write(rows, epoch)
                if self.files is not None:
                    self.files.end_epoch()
                if self.tallies is not None:
                    self.tallies.keep(self._earlier + epoch, time.time())
                sinks = [output for output in self.outputs if not isinstance(output.sink, LateLog)]
                self.tries.deliver(epoch, is_exact=all(output.is_exact for output in sinks))
                if self.backpressure is not None:
                    self.backpressure.look()
                if self.on_first is not None:
                    self.on_first()
                    self.on_first = None
        except Exception as error:
            if self.crashes is not None:
                self.crashes.end()
            # Before Spark wraps it.
            self.first_error.append(self._gap_behind(error, epoch) or self.commits.first_error(error) or error)
            raise

    def _gap_behind(self, error: Exception, epoch: int) -> RecordsGone | None:
        """The exact error if Spark could not read records of the epoch."""
        found = error if isinstance(error, LockgateError) else find_raised(error)
        if not isinstance(found, RecordsGone):
            return None
        return found if self.gaps is None else self.gaps.explain(found, epoch)

    def _write(self, rows: DataFrame, epoch: int) -> None:
        if self.has_late:
            rows = cut_late(rows, watermark_before(running_query(self.spark).checkpoint, epoch))
        if self.letters is None and self.finish is None:
            self._deliver(rows, epoch)
            return
        if self.letters is not None:
            opened = self.letters.opened(rows, epoch, running_query(self.spark), self.finish)
        else:
            opened = finished(self.spark, rows, self.finish, epoch=epoch, where=self.where)
        with opened as (all_rows, observed):
            self.observed = {**{one: self.observed[one] for one in [*self.observed][-_REPORTS:]}, epoch: observed}
            self._deliver(all_rows, epoch)

    def _deliver(self, rows: DataFrame, epoch: int) -> None:
        plain = [output for output in self.outputs if not output.is_exact]
        staged = sum(map(len, self.resources.values()))
        # Each of these is a separate action; Kafka's transaction is one for all outputs of a cluster. An action that
        # recomputes would read the source, and update the state, again.
        has_several_actions = len(plain) + staged + len(self.commits.clusters) > 1
        with self._computed_once(rows, epoch) if has_several_actions else nullcontext(rows) as all_rows:
            for output in plain:
                own = output.rows_of(all_rows)
                # After the rows are kept, because a retried task would take them from there.
                output.sink.write(first_attempts(own) if self.tries_once else own, self._earlier + epoch)
                reach(FaultPoint.SENT)
            if plain:
                self._confirm()
            if self.commits != Commits():
                self._commit(all_rows, epoch)

    @contextmanager
    def _computed_once(self, rows: DataFrame, epoch: int) -> Iterator[DataFrame]:
        """The rows for several actions; those of dead letters or of a cut query are kept already
        (runtime/persistedrows.py)."""
        if self.finish is not None:
            yield rows
            return
        if self.may_differ and self.letters is None:
            with persisted(self.spark, rows, epoch=epoch, where=self.where) as found:
                yield found
            return
        found = rows.persist()
        try:
            yield found
        finally:
            found.unpersist()

    def _commit(self, rows: DataFrame, number: int) -> None:
        query = running_query(self.spark)
        epoch = query.checkpoint.epoch(number, query.id)
        staged = {
            name: {output.name: output.rows_of(rows) for output in outputs} for name, outputs in self.resources.items()
        }
        if self.commits.resources is not None:
            outcome = self.commits.resources.commit(
                epoch, rows, staged, can_repeat=self.can_repeat, query_run=query.run, check=self._confirm
            )
            self._note(number, outcome)
        for cluster in self.commits.clusters:
            cluster.epochs.claim(epoch, query_run=query.run)  # all of them, before anything is visible in the first one
        offsets = query.checkpoint.kafka_offsets(number) if self.commits.clusters else {}
        for index, cluster in enumerate(self.commits.clusters):
            # Offsets can be committed only in their own cluster.
            own = {one.name for one in topics_among(self.sources) if hosts_of(one.servers) & cluster.hosts}
            outcome = cluster.epochs.commit(
                epoch,
                EpochRows(
                    records=records_of(cluster.outputs, rows, number),
                    can_repeat=self.can_repeat,
                    is_alike=self.is_alike,
                    offsets={place: offset for place, offset in offsets.items() if place[0] in own},
                    staged=staged if index == 0 else {},
                    check=self._confirm,
                ),
                query_run=query.run,
            )
            self._note(number, outcome)

    def _confirm(self) -> None:
        """Right before a decision: fail if a file changed while it was read; note what a replay must put aside."""
        if self.files is not None:
            self.files.confirm()
        if self.crashes is not None and self.poison is not None:
            self.poison.keep(self.newest, self.crashes.poison_events)

    def _note(self, number: int, outcome: Outcome) -> None:
        """Note a commit for tries and metrics."""
        if outcome.step is Step.SKIP:
            self._confirm()  # no decision was made, but state was computed
        self.tries.repeat(number, outcome.tries - 1)
        if self.meter is not None:
            for _ in range(outcome.tries - 1):
                self.meter.add_try()
            self.meter.add_commit(outcome.seconds, outcome.written)


def records_of(outputs: Sequence[CompiledOutput], rows: DataFrame, epoch: int) -> RecordColumns:
    """The records of all these outputs as one frame, from one pass over the rows."""
    from pyspark.sql import functions as F

    made = [
        (
            output,
            cast("TransactionSink", output.sink).columns(rows, within=output.struct, where=output.where, epoch=epoch),
        )
        for output in outputs
    ]
    if outputs[0].tag is None:
        return RecordColumns(frame=rows, columns=made[0][1])
    tags = [output.tag for output in outputs]
    names = list(dict.fromkeys(name for _, columns in made for name in columns))

    def pick(name: str) -> Column:
        chosen: Column = F.lit(None)
        for output, columns in made:
            if name in columns:
                # The key of one sink may be text, the key of another one bytes.
                column = columns[name].cast("binary") if name in ("key", "value") else columns[name]
                chosen = F.when(F.col(TAG).eqNullSafe(F.lit(output.tag)), column).otherwise(chosen)
        return chosen

    return RecordColumns(
        frame=rows.where(F.col(TAG).isin(tags)),
        columns={name: pick(name) for name in names},
    )
