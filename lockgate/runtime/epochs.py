"""One epoch end to end: the rows of every output into its sink.

Spark calls this with the rows of an epoch after it has logged their offsets, and logs the commit after it returns. A
crash in between repeats the epoch, with the same number and the same rows.

    written in transactions   one decision for all such outputs (a further Kafka cluster decides after it); an epoch
                              that is out is not written again. These are the outputs that are declared end-to-end
                              exactly-once, and upserts (planner/physical.py, `is_exact`)
    all others                written whenever the epoch runs, before it is decided
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from lockgate.commit.coordinator import Outcome
from lockgate.commit.protocol import Step
from lockgate.errors import LockgateError, RecordsGone
from lockgate.failures import TRIED, find_error
from lockgate.faultpoints import FaultPoint, reach
from lockgate.kafka.wire import hosts_of
from lockgate.runtime.checkpoints import Past, running_query
from lockgate.runtime.commits import Commits
from lockgate.runtime.gaps import Gaps
from lockgate.runtime.kept import finished, kept
from lockgate.runtime.late import cut_late, watermark_before
from lockgate.runtime.letters import LetterBox
from lockgate.runtime.metrics.meter import Meter
from lockgate.runtime.pacer import Pacer
from lockgate.runtime.sourcefiles import SourceFiles
from lockgate.runtime.tables import Tables
from lockgate.runtime.times import Tries
from lockgate.runtime.topicids import TopicIds
from lockgate.sinks.kafka import KafkaSink
from lockgate.sinks.kafkaepoch import EpochRows, RecordColumns
from lockgate.sources.kafka import KafkaSource
from lockgate.spark.attempts import first_attempts
from lockgate.spark.compile import TAG, CompiledOutput, Finish
from lockgate.spark.crashes import CrashDesk
from lockgate.spark.fanout import Tallies
from lockgate.spark.timing import LateLog

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_REPORTS = 100
"""So many epochs Spark reports at the most, when somebody looks."""


@dataclass
class EpochWriter:
    """Writes the epochs of one job."""

    spark: SparkSession
    outputs: tuple[CompiledOutput, ...]
    commits: Commits = field(default_factory=Commits)
    resources: Mapping[str, Sequence[CompiledOutput]] = field(default_factory=dict)  # beside Kafka, by name
    can_repeat: bool = False
    is_alike: bool = False
    tries_once: bool = False  # must a task that Spark tries again be stopped?
    is_wild: bool = False  # is a step not deterministic, so that rows that are computed again may be others?
    where: str = ""  # the job, as errors name it
    finish: Finish | None = None  # makes the rows of all outputs, where the query ends before them
    has_late: bool = False  # do late events leave the query, and beside them all that are in time?
    sources: tuple[KafkaSource, ...] = ()
    tables: Tables | None = None
    topics: TopicIds | None = None
    files: SourceFiles | None = None
    gaps: Gaps | None = None
    letters: LetterBox | None = None
    crashes: CrashDesk | None = None
    tallies: Tallies | None = None  # of fan-outs
    pacer: Pacer | None = None
    meter: Meter | None = None  # where somebody wants metrics
    first_error: list[Exception] = field(default_factory=list)
    tries: Tries = field(default_factory=Tries)
    past: Past = field(default_factory=Past)  # what the query found when it started
    on_first: Callable[[], None] | None = None  # what is done when the first epoch has gone through
    busy: threading.Lock = field(default_factory=threading.Lock)  # held while an epoch is written
    observed: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)  # by steps below the query, by epoch
    newest: int = -1  # the newest epoch of this query, in hand or written
    _earlier: int = 0  # epochs of queries before it, whose checkpoints are forgotten

    def begin_anew(self) -> None:
        """Go on with a fresh checkpoint, whose epochs are numbered from 0; a sink must not take them for repeated."""
        self._earlier, self.newest = self._earlier + self.newest + 1, -1
        self.first_error.clear()
        self.tries.forget()

    def write(self, rows: DataFrame, epoch: int) -> None:
        """Write the rows of one epoch; returning means that every sink has its part."""
        try:
            with self.busy:
                self.newest = epoch
                self.tries.begin(epoch)
                if self.meter is not None:
                    self.meter.add_try()
                is_repeated = self.tries.of(epoch)[0] > 1
                # Tasks of an epoch that failed before say what they have in hand, in case that it is what they die of.
                self.spark.sparkContext.setLocalProperty(TRIED, "1" if is_repeated else "")
                if self.crashes is not None:
                    self.crashes.begin(is_repeated=is_repeated)
                self.commits.clear_errors()
                if self.topics is not None:
                    self.topics.look()  # the epoch is planned: by the records of which topics?
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
                if self.pacer is not None:
                    self.pacer.look()
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
        """What is missing, with all that is known of it, if Spark could not read records of the epoch."""
        found = error if isinstance(error, LockgateError) else find_error(str(error))
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
        # Each of these is an action of its own, and Kafka's transaction is one for all outputs of a cluster. An action
        # that recomputes would read the source, and update the state, once more.
        has_several_actions = len(plain) + staged + len(self.commits.clusters) > 1
        with self._computed_once(rows, epoch) if has_several_actions else nullcontext(rows) as all_rows:
            for output in plain:
                own = output.rows_of(all_rows)
                # Behind what is kept of the rows, which a task that is tried again would take from there.
                output.sink.write(first_attempts(own) if self.tries_once else own, self._earlier + epoch)
                reach(FaultPoint.SENT)
            if plain:
                self._confirm()
            if self.commits != Commits():
                self._commit(all_rows, epoch)

    @contextmanager
    def _computed_once(self, rows: DataFrame, epoch: int) -> Iterator[DataFrame]:
        """The rows for several actions; those of dead letters or of a cut query were kept (runtime/kept.py)."""
        if self.finish is not None:
            yield rows
            return
        if self.is_wild and self.letters is None:
            with kept(self.spark, rows, epoch=epoch, where=self.where) as found:
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
            cluster.epochs.claim(epoch, query_run=query.run)  # all, before anything is out in the first of them
        offsets = query.checkpoint.kafka_offsets(number) if self.commits.clusters else {}
        for index, cluster in enumerate(self.commits.clusters):
            # Offsets can be committed only in the cluster that they belong to.
            own = {source.topic for source in self.sources if hosts_of(source.servers) & cluster.hosts}
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
        """Fail if a file was changed while it was read."""
        if self.files is not None:
            self.files.confirm()

    def _note(self, number: int, outcome: Outcome) -> None:
        """What is told of a commit."""
        if outcome.step is Step.SKIP:
            self._confirm()  # nothing was decided, but state was computed
        self.tries.repeat(number, outcome.tries - 1)
        if self.meter is not None:
            for _ in range(outcome.tries - 1):
                self.meter.add_try()
            self.meter.add_commit(outcome.seconds, outcome.written)


def records_of(outputs: Sequence[CompiledOutput], rows: DataFrame, epoch: int) -> RecordColumns:
    """The records of all these outputs as one frame, made in one pass over the rows."""
    from pyspark.sql import functions as F

    made = [
        (output, cast("KafkaSink", output.sink).columns(rows, within=output.struct, where=output.where, epoch=epoch))
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
                # One sink's key may be text and another's bytes.
                column = columns[name].cast("binary") if name in ("key", "value") else columns[name]
                chosen = F.when(F.col(TAG).eqNullSafe(F.lit(output.tag)), column).otherwise(chosen)
        return chosen

    return RecordColumns(
        frame=rows.where(F.col(TAG).isin(tags)),
        columns={name: pick(name) for name in names},
    )
