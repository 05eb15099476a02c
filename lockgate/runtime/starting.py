"""Start a job: refuse what cannot run, then open what it needs, and begin its query.

    open     Spark's driver, after all checks that need none
    look     at the checkpoint, under its lock: refuse what cannot continue. Nothing is changed.
    take     the checkpoint, the outputs, the ledger and the tables. From here on the start changes things.
    begin    the query. A restart of the run begins the next one with the same parts.

A start that fails closes what it has opened.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockgate.checkpoints.checkpoint import Checkpoint, put_aside
from lockgate.checkpoints.locking import CheckpointLock, lock_exclusively, lock_shared
from lockgate.checkpoints.marker import mark_if_missing, mark_if_new, refuse_other_job, refuse_unmarked
from lockgate.checkpoints.rescaling import refuse_unfinished
from lockgate.checkpoints.stateread import check_state, kept_partitions, kept_states
from lockgate.checkpoints.tree import open_tree
from lockgate.commit.ledger import Gap
from lockgate.dataflow.duration import as_spark_text
from lockgate.dataflow.job import Job
from lockgate.dataflow.locations import topics_among
from lockgate.dataflow.steps import Read, Timed, Transform
from lockgate.guarantees import Guarantee, Mode
from lockgate.planner.physical import has_state
from lockgate.planner.plan import Plan, plan, with_partitions
from lockgate.provision.kafkajars import kafka_jars
from lockgate.runtime.assembly import (
    MakeTopicIds,
    make_dead_letter_writer,
    make_epoch_writer,
    make_gaps,
    make_source_files,
    make_topic_ids,
)
from lockgate.runtime.atmostonce import forget
from lockgate.runtime.backpressure import Backpressure
from lockgate.runtime.deliverycounts import Tries
from lockgate.runtime.epochsize import EpochSize
from lockgate.runtime.heartbeat import report_interval
from lockgate.runtime.initial import InitialStates
from lockgate.runtime.libraries import modules_of, uses_kafka
from lockgate.runtime.metrics.driver import process_of
from lockgate.runtime.metrics.meter import Meter
from lockgate.runtime.metrics.names import names_of
from lockgate.runtime.nativestate import NativeSteps
from lockgate.runtime.options import Options
from lockgate.runtime.poisonnotes import PoisonNotes
from lockgate.runtime.progress import Watcher
from lockgate.runtime.running import Run
from lockgate.runtime.sourcelist import SourceList
from lockgate.runtime.stepped import SteppedRun
from lockgate.runtime.tablerefresh import Tables
from lockgate.runtime.translating import reaching, refusing
from lockgate.spark.clock import job_clock, start_query
from lockgate.spark.compile import Compiled, compile_plan
from lockgate.spark.crashes import CrashRegistry
from lockgate.spark.machines import check_machines
from lockgate.spark.session import SessionPlan, is_local, is_submitted, open_session
from lockgate.spark.sources import read_from
from lockgate.spark.stepping import Stepper

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROWS_FIRST = 10_000
"""The rows of the first epoch of a live run; later epochs take what fits into the declared length of an epoch."""


def launch(
    job: Job,
    options: Options | None = None,
    *,
    stepper: Stepper | None = None,
    job_file: Path | None = None,
    meter: Meter | None = None,
    topic_ids: MakeTopicIds = make_topic_ids,
) -> Run:
    """Start a job, and return the run without waiting for its end.

    Args:
        job: what to run.
        options: what the user asked for.
        stepper: the clock of a test. Time stands still and no epoch starts unless the stepper says so. Nothing that
            depends on the clock happens by itself. The result is a `SteppedRun`.
        job_file: the file whose imported neighbours travel to the machines of a cluster; default: the file that
            declares the job.
        meter: collects the figures for metrics.
        topic_ids: makes the comparison of topics; a simulation answers for its brokers.
    """
    planned = plan(job)
    refusal = planned.refusal()
    if refusal is not None:
        raise refusal
    with ExitStack() as opened:
        start = _Start(planned, (options or Options()).checked(planned), stepper, meter, topic_ids, opened)
        start.open(job_file or Path(job.origin.file))
        with reaching(start.past):
            start.look()
            start.take()
            run = start.begin()
        opened.pop_all()
    return run


class _Start:
    """One start of a job. Each phase leaves what the next ones need."""

    def __init__(
        self,
        planned: Plan,
        options: Options,
        stepper: Stepper | None,
        meter: Meter | None,
        topic_ids: MakeTopicIds,
        opened: ExitStack,
    ) -> None:
        self.planned, self.options, self.stepper, self.meter = planned, options, stepper, meter
        self.topic_ids = topic_ids
        self.opened = opened  # what a start that fails closes
        self.job = job = planned.job
        self.is_tracked = job.guarantee is not Guarantee.AT_MOST_ONCE
        # A run that ends when it is caught up is fastest with large epochs, and no reader waits for them.
        is_live = not options.until_caught_up and stepper is None and job.mode is Mode.MICRO_BATCH
        self.is_paced = options.rows_per_epoch is None and is_live and _reads_topics(planned)
        # A driver that spark-submit started already has a log: its cluster stores its output.
        own_log = Path("stderr") if is_submitted() else Path(".lockgate") / "logs" / f"{job.name}.spark.log"
        self.log_file = options.log_file or own_log

    def open(self, job_file: Path) -> None:
        """Check every source before Spark starts, which takes seconds; then open the session."""
        for node in self.planned.logical.nodes:
            if isinstance(node.step, Read):
                node.step.source.check(read_from(self.planned, node, self.options.start, self.options.rows_max))
        self.spark = open_session(
            SessionPlan(
                app=f"lockgate {self.job.name}",
                master=self.options.master,
                jars=kafka_jars() if uses_kafka(self.planned) and not is_submitted() else (),
                log_file=self.log_file.resolve(),
                are_tasks_retried=self.is_tracked,
                is_real_time=self.job.mode is Mode.REAL_TIME,
                has_few_rows=self.stepper is not None,
                job_file=job_file,
                keep_epochs=self.options.keep_epochs,
                must_authenticate=self.options.secure,
            )
        )
        if not is_local(self.spark.sparkContext):
            _check_machines(self.planned, self.spark, self.options)
        self._set_report_interval()
        self.past = Checkpoint(root=self.options.place(self.job), spark=self.spark) if self.is_tracked else None

    def look(self) -> None:
        """Refuse a job that cannot continue from its checkpoint. A refused job leaves no directory."""
        past, spark, new_life = self.past, self.spark, self.options.new_life
        self.held: CheckpointLock | None = None
        if past is not None:
            refuse_other_job(open_tree(past.root, spark), self.job.name)
            if new_life:  # the old checkpoint will be moved aside
                refuse_unmarked(open_tree(past.root, spark), self.job.name)
            else:
                # Lock it before it is read, so that nothing changes after the look.
                if past.local is not None and past.local.exists():
                    self._hold(past)
                refuse_unfinished(past)
                self.planned = with_partitions(self.planned, kept_partitions(past))
        kept = {} if past is None or new_life else kept_states(spark, past, self.planned)
        self.initial = InitialStates(past, spark, is_reset=new_life)
        self.tables = Tables(self.planned.logical.nodes, spark)
        self.opened.callback(self.tables.close)
        self.crashes = CrashRegistry(self.job.name, spark.sparkContext)
        self.opened.callback(self.crashes.close)
        self._compile = partial(
            compile_plan,
            self.planned,
            spark,
            rows_per_epoch=self.options.rows_max,
            rows_first=ROWS_FIRST if self.is_paced else None,
            tables=self.tables.address,
            crashes=self.crashes.address,
            initial=self.initial.find,
            kept=frozenset(kept),
            checkpoint=None if past is None else past.root,
            is_counting=self.meter is not None and self.job.mode is Mode.MICRO_BATCH,
        )
        self.compiled = compiled = self._compile(start=self.options.start)
        self.missing: tuple[Gap, ...] = ()
        if past is None:
            self.native = self.sources = self.topics = self.files = self.gaps = None
            return
        self.native = NativeSteps(past, self.planned, compiled.parts)
        self.sources = SourceList(past, self.planned, compiled.parts)
        self.topics = self.topic_ids(past, self.planned, compiled)
        self.files = make_source_files(past, self.planned, compiled)
        self.gaps = make_gaps(past, self.planned)
        if not new_life:
            self.native.check()
            self.sources.check()
            self.topics.check(accepts_outputs=self.options.accept_outputs)
            self.missing = self.gaps.check(is_accepting=self.options.accept_gap)
            if self.files is not None:
                self.files.begin()
            check_state(past, self.planned, compiled.operators, kept)

    def take(self) -> None:
        """Take the checkpoint, and open the outputs."""
        spark, job, compiled = self.spark, self.job, self.compiled
        has_end = self.options.until_caught_up
        self.at_most_once = None if self.is_tracked else forget(self.planned, until_caught_up=has_end)
        if self.at_most_once is None:
            self.place = self.options.place(job)
        else:
            self.place = str(self.at_most_once.begin())
            self.opened.callback(self.at_most_once.close)
        checkpoint, tree = Checkpoint(root=self.place, spark=spark), open_tree(self.place, spark)
        for output in compiled.outputs:
            self.opened.callback(output.sink.close)
            if not output.is_exact:  # their transactional writer checks the exact ones
                # Only now: the check may create a topic, and a refused job leaves nothing.
                output.sink.check(output.where)
        if self.options.new_life and self.is_tracked:
            with lock_exclusively(checkpoint.local, job.name):  # not while a driver uses it
                refuse_unmarked(tree, job.name)
                put_aside(checkpoint)
        if self.held is None and self.is_tracked:
            self._hold(checkpoint)
        is_marked = not self.is_tracked or mark_if_new(tree, job.name, datetime.now(UTC))
        self.initial.keep()
        if self.native is not None and self.sources is not None:
            self.native.keep()
            self.sources.keep()
        self.tables.open(checkpoint)
        letters = make_dead_letter_writer(self.planned, compiled, checkpoint, spark)
        self.writer = make_epoch_writer(self.planned, compiled, spark, self.tables, letters, self.options.new_life)
        self._complete_writer()
        if not is_marked:
            self.writer.on_first = lambda: mark_if_missing(tree, job.name, datetime.now(UTC))

    def _complete_writer(self) -> None:
        writer, past, epoch_seconds = self.writer, self.past, self.planned.physical.epoch.total_seconds()
        writer.topics, writer.gaps, writer.files = self.topics, self.gaps, self.files
        if self.topics is not None:  # only now: outputs may have been created
            self.topics.keep()
        if self.gaps is not None and self.missing:
            self.gaps.accept(self.missing, writer.commits)
        if self.files is not None:
            self.files.begin()
        writer.crashes, writer.meter, writer.tallies = self.crashes, self.meter, self.compiled.tallies
        writer.poison = PoisonNotes(past)
        if self.meter is not None:
            self.meter.begin(
                names_of(self.planned, self.compiled),
                epoch_seconds=epoch_seconds,
                open_seconds=writer.commits.open_seconds,
                jvm=process_of(self.spark),
            )
        if self.is_paced:
            epoch_size = EpochSize(epoch_seconds, ROWS_FIRST, self.options.rows_max)
            writer.backpressure = Backpressure(self.spark, epoch_size, job=self.job.name)
        writer.tries = Tries(None if past is None else past.local, planned=-1 if past is None else past.past().planned)

    def begin(self) -> Run:
        """Begin the query, and what runs beside it."""
        self.clock = job_clock(self.spark) if self.stepper is None else self.stepper
        make: Callable[..., Run] = Run if self.stepper is None else partial(SteppedRun, stepper=self.stepper)
        run = make(
            job=self.job,
            plan=self.planned,
            checkpoint=self.place,
            log_file=self.log_file,
            _query=self._begin_query(self.place, self.compiled),
            _writer=self.writer,
            _start=self._begin_again if self.at_most_once is None else self._begin_with_new_events,
            _at_most_once=self.at_most_once,
            _has_end=self.options.until_caught_up,
            _ends_in_silence=self.options.until_caught_up and self.compiled.runs_without_rows,
            _dropped=self.compiled.count_dropped,
            _crashes=self.crashes,
            _held=self.held,
            pulse=self.compiled.pulse,
            goes_by_clock=self.compiled.runs_without_rows,
            _meter=self.meter,
            _rows_per_epoch=self.options.rows_max,
            accepted=self.missing,
            _watcher=Watcher(steps=self.compiled.stateful),
        )
        idle = _longest_idle(self.planned)
        if self.stepper is not None:
            return run  # nothing that depends on the clock happens by itself
        if self.compiled.pulse is not None and idle is not None and not self.options.until_caught_up:
            run._beat(idle, self.compiled.pulse)
        if self.writer.letters is not None and self.writer.letters.acker is not None:
            self.writer.letters.acker.start()
        return run

    def _begin_query(self, place: str, compiled: Compiled) -> StreamingQuery:
        self.tables.begin()
        writer, clock = self.writer, self.clock
        with reaching(self.past):
            writer.past = Checkpoint(root=place, spark=self.spark).past()
            if writer.letters is not None and writer.letters.acker is not None:
                writer.letters.acker.begin(writer.past.planned, is_endless=not self.options.until_caught_up)
            if isinstance(clock, Stepper):
                clock.begin(least_ms=writer.past.clock_ms)
            else:
                clock.goOnFrom(writer.past.clock_ms)
            with refusing(self.job):
                if self.job.mode is Mode.REAL_TIME:  # no step of such a job uses the clock
                    return _start_real_time(self.planned, compiled, place)
                frame = compiled.frame
                query = frame.writeStream.option("checkpointLocation", place)
                query = query.foreachBatch(writer.write).outputMode("append")
                if self.options.until_caught_up:
                    query = query.trigger(availableNow=True)
                else:
                    epoch = timedelta(milliseconds=1) if self.stepper is not None else self.planned.physical.epoch
                    query = query.trigger(processingTime=as_spark_text(epoch))
                return start_query(frame, query, name=self.job.name, checkpoint=place, clock=clock)

    def _begin_again(self) -> StreamingQuery:
        return self._begin_query(self.place, self.compiled)

    def _begin_with_new_events(self) -> StreamingQuery:
        assert self.at_most_once is not None
        place = str(self.at_most_once.place)
        self.tables.keep_in(Checkpoint(root=place, spark=self.spark))
        self.writer.reset()
        # Wherever the run began, it continues with new events.
        compiled = self.compiled if self.options.start is None else self._compile(start=None, before=self.compiled)
        return self._begin_query(place, compiled)

    def _hold(self, checkpoint: Checkpoint) -> None:
        self.held = lock_shared(checkpoint.local, self.job.name)
        if self.held is not None:
            self.opened.callback(self.held.close)

    def _set_report_interval(self) -> None:
        """Let Spark report that it found nothing as often as the heartbeat and the metrics need it."""
        idle = _longest_idle(self.planned)
        silences = [] if idle is None else [idle]
        if self.meter is not None:
            silences.append(timedelta(seconds=self.meter.limit_seconds))  # a query that is silent for longer is stuck
        if silences:
            interval_ms = report_interval(min(silences)) // timedelta(milliseconds=1)
            self.spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", f"{interval_ms}ms")


def _start_real_time(planned: Plan, compiled: Compiled, checkpoint: str) -> StreamingQuery:
    sink: Any = compiled.outputs[0].sink
    rows = sink.encode(compiled.frame, where=compiled.outputs[0].where)
    writer: Any = rows.writeStream.queryName(planned.job.name).format("kafka").outputMode("update")
    for name, text in {**sink.options(), "checkpointLocation": checkpoint}.items():
        writer = writer.option(name, text)
    query: StreamingQuery = writer.trigger(realTime=as_spark_text(planned.physical.epoch)).start()
    return query


def _check_machines(planned: Plan, spark: SparkSession, options: Options) -> None:
    """Check the cluster before anything is read: tasks of a job with state write to its checkpoint."""
    is_written_there = planned.job.guarantee is not Guarantee.AT_MOST_ONCE and any(
        has_state(node) or isinstance(node.step, Transform) for node in planned.logical.nodes
    )
    place = Checkpoint(root=options.place(planned.job)).local
    check_machines(
        spark.sparkContext,
        libraries=modules_of(planned),
        checkpoint=place.absolute() if place is not None and is_written_there else None,
    )


def _longest_idle(planned: Plan) -> timedelta | None:
    """How long all inputs must be silent before time advances without them; None if it never does."""
    asked = [node.step.time.idle for node in planned.logical.nodes if isinstance(node.step, Timed)]
    return max((idle for idle in asked if idle is not None), default=None)


def _reads_topics(planned: Plan) -> bool:
    """Does a source report how many records wait in it?"""
    return any(topics_among(node.step.source for node in planned.logical.nodes if isinstance(node.step, Read)))
