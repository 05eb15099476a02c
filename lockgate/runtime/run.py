"""Run a job: plan it, refuse what it cannot keep, start its query, watch it, end it cleanly.

    start          nothing yet, or "earliest" / "latest" / a time; counts only where there is no checkpoint
    every epoch    offsets logged -> rows computed and written -> commit logged
    the end        caught up, stopped by the author, or the first failure; the epoch in hand is repeated by the next run

A try of an exactly-once epoch that ended without a decision is not the end: where its rows come out of state, the query
is started again from its checkpoint, a few times in a row.

An at-most-once run keeps nothing: its checkpoint is fresh each time and no task is tried twice, because a repeated row
is the one thing that it promises not to deliver. After a failure it goes on with what comes next (forgetting.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockgate.commit.ledger import Gap
from lockgate.dataflow.duration import as_people_text, as_spark_text
from lockgate.dataflow.job import Job
from lockgate.dataflow.steps import LateEvents, Letters, Read, Timed, TimedOut, Transform, Write
from lockgate.errors import (
    BadJob,
    CheckpointDamaged,
    EpochFailed,
    Failed,
    LockgateError,
    Refused,
    TooManyLetters,
    Unreachable,
)
from lockgate.escaping import escape
from lockgate.failures import find_error, first_cause
from lockgate.files.system import open_system
from lockgate.guarantees import Guarantee, Mode
from lockgate.planner.chance import is_wild
from lockgate.planner.flow import MISSED
from lockgate.planner.physical import declared_of, has_state, is_exact, is_partitioned_alike
from lockgate.planner.plan import Plan, plan, with_partitions
from lockgate.runtime.acker import Acker
from lockgate.runtime.checkpoints import Checkpoint, put_aside
from lockgate.runtime.commits import group_outputs, open_commits
from lockgate.runtime.epochs import EpochWriter
from lockgate.runtime.forgetting import Forgetting, as_forgotten, forget
from lockgate.runtime.gaps import Gaps
from lockgate.runtime.heartbeat import Heartbeat, report_interval
from lockgate.runtime.initial import InitialStates
from lockgate.runtime.letters import LetterBox
from lockgate.runtime.libraries import modules_of
from lockgate.runtime.lifecycle.holding import Hold, alone, hold
from lockgate.runtime.lifecycle.marker import mark_if_missing, mark_if_new, refuse_other_job, refuse_unmarked
from lockgate.runtime.lifecycle.rescaling import refuse_unfinished
from lockgate.runtime.lifecycle.tree import open_tree
from lockgate.runtime.metrics.figures import Names
from lockgate.runtime.metrics.meter import Facts, Meter
from lockgate.runtime.nativestate import NativeSteps
from lockgate.runtime.pace import Pace
from lockgate.runtime.pacer import Pacer
from lockgate.runtime.progress import Progress, Watcher, behind_job, is_epoch
from lockgate.runtime.realtime import unended_records, with_waiting
from lockgate.runtime.scans import Scans, count_once, scans_of, source_logs
from lockgate.runtime.sourcefiles import ReadDirectory, SourceFiles
from lockgate.runtime.sourcelist import SourceList, sources_in_order
from lockgate.runtime.stateread import check_state, kept_partitions, kept_states
from lockgate.runtime.tables import Tables
from lockgate.runtime.times import Times, Tries, as_text
from lockgate.runtime.topicids import TopicIds, used_topics
from lockgate.sinks.kafka import KafkaSink
from lockgate.sources.files import FileSource
from lockgate.sources.kafka import KafkaSource
from lockgate.sources.mqtt import MqttSource
from lockgate.sources.socket import SocketSource
from lockgate.spark.clock import job_clock, start_query
from lockgate.spark.compile import Compiled, compile_plan, read_from
from lockgate.spark.crashes import CrashDesk
from lockgate.spark.jars import connector_jars
from lockgate.spark.machines import check_machines
from lockgate.spark.session import SessionPlan, is_local, is_submitted, open_session
from lockgate.spark.stepping import Stepper

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

ROWS_PER_EPOCH = 500_000
"""The most rows that one epoch takes from one source, so that the first run over a long history is no giant."""

ROWS_FIRST = 10_000
"""What the first epoch of a live run takes; the others take what fits into the time that an epoch is to last."""

GUILTY_MAX = 10
"""More events than these that workers die of, in one epoch, mean that the code is broken, and not the events."""

_POLL_SECONDS = 0.2
_QUIET_SECONDS = 5.0
_RESTARTS = 8
_LAST_EPOCH_SECONDS = 60.0
_END_SECONDS = 60
_TICK_MS = 2
_CLOCK_TOLERANCE = timedelta(seconds=5)
_OTHER_SOURCES = "sources in the checkpoint offsets"
_NO_STATE = "CANNOT_LOAD_STATE_STORE"
_DAMAGES = ("EOFException", "Stream is corrupted", "ChecksumException", "ZipException", "NullPointerException")
# What Java says where a file system does not answer, or not yet.
_AWAY = (
    "java.net.ConnectException",
    "java.net.NoRouteToHostException",
    "java.net.SocketTimeoutException",
    "java.net.UnknownHostException",
    "org.apache.hadoop.net.ConnectTimeoutException",
    "org.apache.hadoop.ipc.StandbyException",
    "SafeModeException",
)
# What Spark says where a query has other operators with state than its checkpoint.
_OTHER_STEPS = (
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
    "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY",
)


@dataclass
class Run:
    """A job that runs, or has run."""

    job: Job
    plan: Plan
    checkpoint: str
    log_file: Path
    _query: StreamingQuery
    _writer: EpochWriter
    _start: Callable[[], StreamingQuery]
    _forgetting: Forgetting | None  # of an at-most-once run
    _has_end: bool  # does it end when all is processed?
    _ends_in_silence: bool  # has it to be stopped when it is caught up, because its epochs go on without events?
    _dropped: Callable[[], int]  # the late events that operators have dropped, which Spark's reports do not know
    _crashes: CrashDesk
    _held: Hold | None = None  # its checkpoint, where that can be held
    _restarts: int = 0
    _guilty: int = 0  # events that workers died with, when the query was started
    _watcher: Watcher = field(default_factory=Watcher)
    _is_stopping: threading.Event = field(default_factory=threading.Event)
    _heartbeat: Heartbeat | None = None
    _times: Times = field(default_factory=Times)
    _newest: Progress | None = None  # what nobody was told yet
    _is_clock_behind: bool = False
    _stepper: Stepper | None = None  # who says, in a test, what time it is and when an epoch may begin
    _settled: int | None = None  # the newest epoch when it settled; None before the first step of a query
    _meter: Meter | None = None
    _rows_per_epoch: int = ROWS_PER_EPOCH
    _query_starts: int = 1
    _heap: dict[str, int] = field(default_factory=dict)  # of Spark's driver, at its last report
    _reported_at: float = 0.0  # by the clock of a machine that runs, when the query reported last
    pulse: Path | None = None  # where it is said that event time goes on without events; None where it never does
    unended: int | None = 0  # events, at most, of a real-time epoch that was stopped before its end; None if unknown
    epochs_done: int = 0  # that were reported, at the last look
    goes_by_clock: bool = False  # does a step go by the clock, so that there are epochs whether events come or not?
    accepted: tuple[Gap, ...] = ()  # what its sources no longer have, and was skipped when it started
    query_run: str = ""  # Spark's id of this start of the query, as its own log has it

    def __post_init__(self) -> None:
        self._begin(self._query)

    def _begin(self, query: StreamingQuery) -> None:
        # The id is asked for now: it belongs to each line of a log, also when the JVM is gone.
        self._query, self.query_run = query, str(query.runId)
        self._scans: list[Scans] | None = None  # of this query's sources, known when it has reported

    @property
    def is_running(self) -> bool:
        """Has the query not ended yet?"""
        return bool(self._query.isActive)

    @property
    def epoch(self) -> int | None:
        """The epoch in hand, or the newest one; None before the first."""
        return None if self._writer.newest < 0 else self._writer.newest

    @property
    def _acker(self) -> Acker | None:
        """Who looks after the events that are tried again, where there are any."""
        return None if self._writer.letters is None else self._writer.letters.acker

    @property
    def goes_on(self) -> str:
        """Where another run would go on if this one died now."""
        if self._forgetting is not None:
            return "with what comes next"
        return f"from epoch {max(self._watcher.upcoming, self._writer.past.upcoming)}"

    @property
    def final(self) -> str:
        """Why no other run may go on where this one dies; empty where one may."""
        if self._forgetting is None or self._forgetting.can_go_on:
            return ""
        return "another start of this at-most-once job would repeat events, or skip them in silence"

    def progress(self) -> Progress | None:
        """The progress since the last look, or None where nothing is new."""
        self._look()
        newest, self._newest = self._newest, None
        if newest is None:
            return None
        letters = self._writer.letters
        return replace(
            newest,
            processed=as_text(self._times.processed),
            delivered=as_text(self._times.delivered),
            late_total=newest.late_total + self._dropped(),
            letters_total=0 if letters is None else letters.total,
            waiting=0 if self._acker is None else self._acker.waiting,
            fan_outs={} if self._writer.tallies is None else self._writer.tallies.report(),
        )

    def _look(self) -> None:
        """Take what the query has reported since the last look."""
        if self._stepper is not None:
            return  # where no time passes, reports have rates that PySpark cannot read
        letters = self._writer.letters
        for report in self._reports(self._watcher):
            before = self._watcher.events_total
            news = self._watcher.take(report)
            if news is not None:
                self._newest = news
                self._look_at_clock(report)
                if self._meter is not None:
                    self._meter.take(report)
                    self._heap, self._reported_at = _heap_bytes(self._writer.spark), time.monotonic()
            if news is not None and is_epoch(report):
                self.epochs_done += 1
                done = {0: news.events_total - before} if letters is None else letters.done.pop(news.epoch, {})
                self._times.add(done, self._writer.tries.of(news.epoch))
        if self._meter is not None:
            self._meter.note(self._facts())

    def _look_at_clock(self, report: dict[str, Any]) -> None:
        """Warn once when the machine's clock is behind the job's time, and again only after it was right."""
        behind = timedelta(seconds=behind_job(report, datetime.now(UTC)) // timedelta(seconds=1))
        is_behind = behind >= _CLOCK_TOLERANCE
        if is_behind and not self._is_clock_behind:
            log.warning(
                "job %s: the clock of this machine is %s behind the time of the last epoch. No event is lost, but the"
                " job's time goes at half speed for about %s: epochs, windows in processing time, timers, time to live"
                " and idle= take twice as long. Check the clock of this machine, and that of the machine on which the"
                " job ran before",
                self.job.name,
                as_people_text(behind),
                as_people_text(2 * behind),
            )
        self._is_clock_behind = is_behind

    def _facts(self) -> Facts:
        """What there is to tell for metrics beside Spark's reports."""
        letters, pacer = self._writer.letters, self._writer.pacer
        are_counted = letters is not None and letters.output.is_exact and isinstance(letters.output.sink, KafkaSink)
        return Facts(
            query_restarts=self._query_starts - 1,
            skipped=sum(gap.count for gap in self.accepted),
            late=self._watcher.late_total + self._dropped(),
            letters={} if letters is None else letters.by_reason,
            letters_output=None if letters is None or are_counted else letters.output.name,
            waiting=0 if self._acker is None else self._acker.waiting,
            processed=as_text(self._times.processed),
            delivered=as_text(self._times.delivered),
            fan_outs={} if self._writer.tallies is None else self._writer.tallies.report(),
            rows_per_epoch=self._rows_per_epoch if pacer is None else pacer.rows,
            heap_bytes=self._heap,
            tasks_done=_tasks_done(self._writer.spark) if self._is_quiet else {},
        )

    @property
    def _is_quiet(self) -> bool:
        """Has the query not reported for so long that somebody may want to know whether it works on an epoch?"""
        return time.monotonic() - self._reported_at > _QUIET_SECONDS

    def _reports(self, watcher: Watcher) -> list[dict[str, Any]]:
        """The newest report of the query, and those before it where the watcher has missed some."""
        last = self._query.lastProgress
        if last is None:
            return []
        if self._scans is None:
            self._scans = scans_of(self._query._jsq)
        newest = _as_mapping(last)
        told = map(_as_mapping, self._query.recentProgress) if watcher.has_missed(newest) else [newest]
        once = (self._with_below(count_once(report, self._scans)) for report in told)
        return [with_waiting(report) if self.job.mode is Mode.REAL_TIME else report for report in once]

    def _with_below(self, report: dict[str, Any]) -> dict[str, Any]:
        """A report with what steps have observed that are no part of the query."""
        below = self._writer.observed.get(int(report["batchId"])) if is_epoch(report) else None
        return {**report, "observedMetrics": {**(report.get("observedMetrics") or {}), **below}} if below else report

    def wait(self, on_progress: Callable[[Progress], None] | None = None, timeout: float | None = None) -> bool:
        """Wait for the end, telling the progress; False where `timeout` seconds passed first. Raises what failed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._query.isActive or self._has_restarted() or self._has_retries():
            news = self.progress()
            if news is not None:
                self._restarts = self._guilty = 0
                if on_progress is not None:
                    on_progress(news)
            if self._is_stopping.is_set() or (news is not None and self._is_caught_up(news)):
                self._is_stopping.set()
                self._stop_query()
                break
            if deadline is not None and time.monotonic() >= deadline:
                return False
            try:
                if self._writer.files is not None:
                    self._writer.files.watch()
                if self.job.mode is Mode.REAL_TIME and self._writer.topics is not None:
                    self._writer.topics.watch()  # the writer looks in every epoch, and writes none of this query
            except LockgateError:
                self.stop()
                raise
            self._is_stopping.wait(_POLL_SECONDS)
        news = self.progress()
        if news is not None and on_progress is not None:
            on_progress(news)
        try:
            if self._has_end and self._writer.files is not None and self._query.exception() is None:
                self._writer.files.look()  # is something there that no epoch has read, and none ever would?
        finally:
            self._finish()
        return True

    def _is_caught_up(self, news: Progress) -> bool:
        """Has a query that runs epochs for ever read all? One that it repeats was empty then, and may not be now."""
        has_waiting = self._acker is not None and self._acker.waiting > 0
        is_silent = self._ends_in_silence and self._watcher.is_silent and not has_waiting
        return is_silent and news.epoch > self._writer.past.planned

    def _has_restarted(self) -> bool:
        """Start the query again, where its end was only that of one try, or what was in hand may be lost."""
        if self._forgetting is not None:
            return self._has_begun_anew(self._forgetting)
        errors = self._writer.first_error
        if self._query.exception() is None or not errors or self._is_stopping.is_set():
            return False
        if _is_damage(str(errors[0])):
            return False
        is_passing, is_ours = isinstance(errors[0], EpochFailed), isinstance(errors[0], LockgateError)
        # Tasks have only so many attempts, and one that has several events to die of may need more.
        guilty = 0 if self._writer.letters is None else len(self._crashes.guilty)
        has_new_guilty = self._guilty < guilty <= GUILTY_MAX and (is_passing or not is_ours)
        if not has_new_guilty:
            if not is_passing or self._restarts >= _RESTARTS:
                return False
            self._restarts += 1
        self._guilty = guilty
        self._look()  # at its last epochs
        log.warning(
            "job %s: the query starts again from its checkpoint: %s", self.job.name, first_cause(str(errors[0]))
        )
        errors.clear()
        self._start_again()
        self._query_starts += 1
        return True

    def _start_again(self) -> None:
        """Start the next query of the job."""
        self._await_end()
        self._begin(self._start())

    def _await_end(self) -> None:
        """A query is not active any more a moment before Spark gives up its name, which the job's next one needs."""
        from pyspark.errors import StreamingQueryException

        with suppress(StreamingQueryException):  # how it ended is asked for elsewhere
            self._query.awaitTermination(_END_SECONDS)

    def _has_retries(self) -> bool:
        """Start a query again that has ended with all that was there, while events wait for another attempt."""
        acker = self._acker
        if acker is None or not self._has_end or self._query.exception() is not None:
            return False
        self._look()  # at its last epochs
        while not self._is_stopping.is_set():
            waiting = acker.waiting  # first: what is released after this look was waiting here
            if acker.take_released():
                self._start_again()
                return True
            if not waiting:
                return False
            self._is_stopping.wait(_POLL_SECONDS)
        return False

    def _has_begun_anew(self, forgetting: Forgetting) -> bool:
        error: Exception | None = self._query.exception()
        if error is not None:
            self._look()  # at its last epochs
        while error is not None and not self._is_stopping.is_set():
            too_many = any(isinstance(one, TooManyLetters) for one in self._writer.first_error)
            if too_many or not forgetting.goes_on(self._watcher.events_total):
                return False
            told = _translate(error, self._writer.first_error, self).what
            message = "job %s: an epoch failed; the events in hand are forgotten, it goes on with what comes next: %s"
            log.warning(message, self.job.name, escape(told.removeprefix(f"Job {self.job.name!r} stopped: ")))
            if self._is_stopping.wait(forgetting.pause_seconds):
                return False
            try:
                self.checkpoint = str(forgetting.begin())
                self._watcher.begin_anew()
                self._start_again()
                self._query_starts += 1
                return True
            except Exception as failed:  # noqa: BLE001 - one more failure in a row, and told if it is the last
                error, self._writer.first_error = failed, [failed]
        return False

    def settle(self) -> None:
        """Of a run with a stepper: let epochs run until another one would change nothing. Raises what failed."""
        stepper, checkpoint = self._stepper, Checkpoint(root=self.checkpoint)
        assert stepper is not None
        while True:
            before = self._settled
            is_alive = stepper.wait(self._is_alive) if before is None else stepper.step(self._is_alive)
            if not is_alive:
                if not self._has_restarted():
                    self._finish()
                    return
                self._settled = None
                continue
            self._settled = max(checkpoint.epochs("commits"), default=-1)
            # Where a step goes by the clock, Spark runs epochs for ever.
            is_still = self._settled == before or (
                self.goes_by_clock and checkpoint.is_still(self._settled, stepper.now_ms)
            )
            if not self._has_let_back() and is_still:
                return
            if self.goes_by_clock:
                stepper.now_ms += _TICK_MS  # such a step looks at the watermark when the clock has moved

    def _is_alive(self) -> bool:
        return bool(self._query.isActive)

    def _has_let_back(self) -> bool:
        """Let events come again that wait for another attempt: in a test nobody waits for the clock."""
        acker = self._acker
        if acker is None:
            return False
        acker.release(float("inf"))
        acker.clean()
        return acker.take_released() > 0

    def read_tables_again(self) -> None:
        """Read the tables of the job now, and not when they are due: the next epoch sees them."""
        if self._writer.tables is not None:
            self._writer.tables.read_again()

    def stop(self) -> None:
        """End the run; the epoch in hand is given up and repeated by the next run."""
        self._is_stopping.set()
        self._stop_query()
        self._finish()

    def ask_to_stop(self) -> None:
        """Ask for the end from a signal handler or another thread; `wait` carries it out."""
        self._is_stopping.set()

    def _stop_query(self) -> None:
        self._writer.commits.stop()
        if self._stepper is None:
            self._query.stop()
        else:
            self._stepper.stop(self._query)

    def _finish(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()
        if self._acker is not None:
            self._acker.stop()
        # An epoch that is being decided when the query is stopped ends first: committed, or aborted.
        if self._writer.busy.acquire(timeout=_LAST_EPOCH_SECONDS):
            self._writer.busy.release()
        self._writer.commits.close()
        if self._writer.tables is not None:
            self._writer.tables.close()
        self._crashes.close()
        for output in self._writer.outputs:
            output.sink.close()
        if self.job.mode is Mode.REAL_TIME and self._is_stopping.is_set():
            checkpoint = Checkpoint(root=self.checkpoint, spark=self._writer.spark)
            self.unended = unended_records(checkpoint, self._writer.sources, where=f"job {self.job.name!r}")
        if self._forgetting is not None:
            self._forgetting.close()
        if self._held is not None:
            self._held.close()
        self._await_end()
        error = self._query.exception()
        if error is not None and not self._is_stopping.is_set():
            told = _translate(error, self._writer.first_error, self)
            if self._forgetting is not None:
                where = f"job {self.job.name!r}, declared at {self.job.origin}"
                told = as_forgotten(told, where=where, log_file=self.log_file)
            raise told


def run(
    job: Job,
    *,
    checkpoint: str | None = None,
    master: str | None = None,
    start: str | None = None,
    until_caught_up: bool = False,
    rows_per_epoch: int | None = None,
    new_life: bool = False,
    accept_outputs: bool = False,
    accept_gap: bool = False,
    keep_epochs: int | None = None,
    log_file: Path | None = None,
    wait: bool = True,
    stepper: Stepper | None = None,
    job_file: Path | None = None,
    meter: Meter | None = None,
) -> Run:
    """Run a job. With `until_caught_up` it returns when all that was there is processed (unless `wait=False`).

    `start` is earliest, latest or a time, and counts only without a checkpoint; without it nothing is skipped, but for
    an at-most-once job, which begins with what comes next. `new_life` starts again under the same name: the checkpoint
    is renamed, and rows that were delivered are delivered again. `accept_outputs` goes on with output topics that were
    deleted and created again. `accept_gap` skips records that were removed from a source before the job read them, and
    notes that in the checkpoint and the ledger. `keep_epochs` says how many epochs can be gone back to; older ones are
    removed from the checkpoint while the job runs, 100 are kept without it. Raises BadJob or OverClaim before anything
    runs, RecordsGone if a source has lost records before they were read, and Failed for what happens while running. The
    modules beside `job_file` (without it: the file where the job is declared) that it imports travel to the machines of
    a cluster. A `meter` takes what metrics are made of. With a `stepper`, in tests, time stands still and no epoch
    begins unless it says so, nothing that goes by the clock happens by itself, and `settle` is what waits.
    """
    planned = plan(job)
    refusal = planned.refusal()
    if refusal is not None:
        raise refusal
    start = _read_start(start, job)
    _refuse_endless(planned, until_caught_up)
    # A run that is to end has nobody who waits for its epochs, and is quickest with large ones.
    is_live = not until_caught_up and stepper is None and job.mode is Mode.MICRO_BATCH
    is_paced = rows_per_epoch is None and is_live and _reads_topics(planned)
    rows_per_epoch = ROWS_PER_EPOCH if rows_per_epoch is None else rows_per_epoch
    if rows_per_epoch < 1:
        raise Refused(
            f"rows_per_epoch is {rows_per_epoch}", where=f"job {job.name!r}", fix="take at least one row an epoch"
        )
    if keep_epochs is not None and keep_epochs < 1:
        raise Refused(
            f"keep_epochs is {keep_epochs}", where=f"job {job.name!r}", fix="keep at least one: a restart needs it"
        )
    _check_sources(planned, start, rows_per_epoch)
    # What spark-submit has started has a log already: whatever its cluster makes of what a driver says.
    own_log = Path("stderr") if is_submitted() else Path(".lockgate") / "logs" / f"{job.name}.spark.log"
    log_file = log_file or own_log
    is_tracked = job.guarantee is not Guarantee.AT_MOST_ONCE
    if checkpoint is not None and not is_tracked:
        raise Refused(
            "an at-most-once job keeps no checkpoint",
            where=f"job {job.name!r}, declared at {job.origin}",
            fix="leave the checkpoint away, or declare a stronger guarantee",
        )
    spark = open_session(
        SessionPlan(
            app=f"lockgate {job.name}",
            master=master,
            jars=connector_jars() if uses_kafka(planned) and not is_submitted() else (),
            log_file=log_file.resolve(),
            are_tasks_retried=is_tracked,
            is_real_time=job.mode is Mode.REAL_TIME,
            has_few_rows=stepper is not None,
            job_file=job_file or Path(job.origin.file),
            keep_epochs=keep_epochs,
        )
    )
    if not is_local(spark.sparkContext):
        _check_machines(planned, spark, checkpoint)
    past = Checkpoint(root=str(checkpoint or default_checkpoint(job.name)), spark=spark) if is_tracked else None
    held: Hold | None = None
    with reaching(past), ExitStack() as opened:
        if past is not None:
            refuse_other_job(open_tree(past.root, spark), job.name)
            if new_life:  # what is there is put aside
                refuse_unmarked(open_tree(past.root, spark), job.name)
        if past is not None and not new_life:
            # Before it is looked at: what is seen there stays so. A refused job leaves no directory behind.
            held = hold(past.local, job.name) if past.local is not None and past.local.exists() else None
            if held is not None:
                opened.callback(held.close)
            refuse_unfinished(past)
            planned = with_partitions(planned, kept_partitions(past))
        kept = {} if past is None or new_life else kept_states(spark, past, planned)
        initial = InitialStates(past, spark, is_new_life=new_life)
        tables = Tables(planned.logical.nodes, spark)
        crashes = CrashDesk(job.name, spark.sparkContext)
        opened.callback(tables.close)
        opened.callback(crashes.close)
        compile_from = partial(
            compile_plan,
            planned,
            spark,
            rows_per_epoch=rows_per_epoch,
            rows_first=ROWS_FIRST if is_paced else None,
            tables=tables.address,
            crashes=crashes.address,
            initial=initial.find,
            kept=frozenset(kept),
            checkpoint=None if past is None else past.root,
            is_counting=meter is not None and job.mode is Mode.MICRO_BATCH,
        )
        compiled = compile_from(start=start)
        native = None if past is None else NativeSteps(past, planned, compiled.parts)
        sources = None if past is None else SourceList(past, planned, compiled.parts)
        topics = None if past is None else _topic_ids(past, planned, compiled)
        files = None if past is None else _source_files(past, planned, compiled)
        gaps = None if past is None else _gaps(past, planned)
        missing: tuple[Gap, ...] = ()
        if past is not None and native is not None and sources is not None and topics is not None and not new_life:
            native.check()
            sources.check()
            topics.check(accepts_outputs=accept_outputs)
            if gaps is not None:
                missing = gaps.check(is_accepting=accept_gap)
            if files is not None:
                files.begin()
            check_state(past, planned, compiled.operators, kept)
        opened.pop_all()
    idle = _longest_idle(planned)
    silences = [] if idle is None else [idle]
    if meter is not None:
        silences.append(timedelta(seconds=meter.limit_seconds))  # a query that says nothing for so long is stuck
    if silences:
        interval_ms = report_interval(min(silences)) // timedelta(milliseconds=1)
        spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", f"{interval_ms}ms")
    forgetting = None if is_tracked else forget(planned, until_caught_up=until_caught_up)
    place = str(checkpoint or default_checkpoint(job.name)) if forgetting is None else str(forgetting.begin())
    with reaching(past), ExitStack() as opened:
        opened.callback(tables.close)
        opened.callback(crashes.close)
        if held is not None:
            opened.callback(held.close)
        if forgetting is not None:
            opened.callback(forgetting.close)
        for output in compiled.outputs:
            opened.callback(output.sink.close)
            if not output.is_exact:  # those are looked at by their transactional writer
                # Only now: it may make a topic, and a refused job leaves nothing behind.
                output.sink.check(output.where)
        if new_life and is_tracked:
            with alone(Checkpoint(root=place).local, job.name):  # not from under a driver that runs
                refuse_unmarked(open_tree(place, spark), job.name)
                put_aside(Checkpoint(root=place, spark=spark))
        if held is None and is_tracked:
            held = hold(Checkpoint(root=place).local, job.name)
            if held is not None:
                opened.callback(held.close)
        tree = open_tree(place, spark)
        is_marked = not is_tracked or mark_if_new(tree, job.name, datetime.now(UTC))
        initial.keep()
        if native is not None and sources is not None:
            native.keep()
            sources.keep()
        tables.open(Checkpoint(root=place, spark=spark))
        letters = _letter_box(planned, compiled, Checkpoint(root=place, spark=spark), spark)
        writer = _epoch_writer(planned, compiled, spark, tables, letters, new_life)
        if topics is not None:  # only now: outputs may have been created
            topics.keep()
        writer.topics, writer.gaps = topics, gaps
        if gaps is not None and missing:
            gaps.accept(missing, writer.commits)
        if files is not None:
            files.begin()
            writer.files = files
        writer.crashes, writer.meter, writer.tallies = crashes, meter, compiled.tallies
        if meter is not None:
            meter.begin(
                _names(planned, compiled),
                epoch_seconds=planned.physical.epoch.total_seconds(),
                open_seconds=writer.commits.open_seconds,
                jvm=_jvm(spark),
            )
        if not is_marked:
            writer.on_first = lambda: mark_if_missing(tree, job.name, datetime.now(UTC))
        if is_paced:
            target = planned.physical.epoch.total_seconds()
            writer.pacer = Pacer(spark, Pace(target, ROWS_FIRST, rows_per_epoch), job=job.name)
        writer.tries = Tries(None if past is None else past.local, planned=-1 if past is None else past.past().planned)

        clock = job_clock(spark) if stepper is None else stepper

        def begin(place: str = place, compiled: Compiled = compiled) -> StreamingQuery:
            tables.begin()
            with reaching(past):
                writer.past = Checkpoint(root=place, spark=spark).past()
                if letters is not None and letters.acker is not None:
                    letters.acker.begin(writer.past.planned, is_endless=not until_caught_up)
                if isinstance(clock, Stepper):
                    clock.begin(least_ms=writer.past.clock_ms)
                else:
                    clock.goOnFrom(writer.past.clock_ms)
                return _start(planned, compiled, place, until_caught_up, writer, clock)

        def begin_anew() -> StreamingQuery:
            assert forgetting is not None
            tables.keep_in(Checkpoint(root=str(forgetting.place), spark=spark))
            writer.begin_anew()
            # Wherever the run began, it goes on with what comes next.
            from_now = compiled if start is None else compile_from(start=None, before=compiled)
            return begin(str(forgetting.place), from_now)

        query = begin()
        opened.pop_all()
    started = Run(
        job=job,
        plan=planned,
        checkpoint=place,
        log_file=log_file,
        _query=query,
        _writer=writer,
        _start=begin if forgetting is None else begin_anew,
        _forgetting=forgetting,
        _has_end=until_caught_up,
        _ends_in_silence=until_caught_up and compiled.runs_without_rows,
        _dropped=compiled.count_dropped,
        _crashes=crashes,
        _held=held,
        _stepper=stepper,
        pulse=compiled.pulse,
        goes_by_clock=compiled.runs_without_rows,
        _meter=meter,
        _rows_per_epoch=rows_per_epoch,
        accepted=missing,
        _watcher=Watcher(steps=compiled.stateful),
    )
    if stepper is not None:
        return started
    if compiled.pulse is not None and idle is not None and not until_caught_up:
        started._heartbeat = Heartbeat(
            started._reports,
            past=lambda: writer.past,
            pulse=compiled.pulse,
            idle=idle,
            job=job.name,
        )
        started._heartbeat.start()
    if started._acker is not None:
        started._acker.start()
    if until_caught_up and wait:
        started.wait()
    return started


@contextmanager
def reaching(checkpoint: Checkpoint | None) -> Iterator[None]:
    """Say so where the file system of a checkpoint does not answer: it may later."""
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (OSError, Py4JError, PySparkException) as error:
        by_java = (Py4JJavaError, PySparkException)
        told = next((one for one in (error, error.__cause__) if isinstance(one, by_java)), None)
        text = "" if told is None else str(told)
        if checkpoint is None or checkpoint.local is not None or not any(mark in text for mark in _AWAY):
            raise
        raise Unreachable(
            f"the file system of the checkpoint does not answer: {first_cause(text)}",
            where=f"checkpoint {checkpoint.root}",
            fix="check its address, and whether it runs; the job goes on where it was when it is run again",
        ) from error


def _check_machines(planned: Plan, spark: SparkSession, checkpoint: str | None) -> None:
    """Look at the cluster before anything is read: tasks of a job with state write to its checkpoint."""
    nodes = planned.logical.nodes
    is_written_there = planned.job.guarantee is not Guarantee.AT_MOST_ONCE and any(
        has_state(node) or isinstance(node.step, Transform) for node in nodes
    )
    place = Checkpoint(root=str(checkpoint or default_checkpoint(planned.job.name))).local
    check_machines(
        spark.sparkContext,
        libraries=modules_of(planned),
        checkpoint=place.absolute() if place is not None and is_written_there else None,
    )


def default_checkpoint(name: str) -> Path:
    """Where a job of this name keeps its checkpoint unless told otherwise."""
    return Path(".lockgate").resolve() / "checkpoints" / name


def _epoch_writer(
    planned: Plan,
    compiled: Compiled,
    spark: SparkSession,
    tables: Tables,
    letters: LetterBox | None,
    new_life: bool,
) -> EpochWriter:
    """What writes the epochs: with one decision for the outputs that are written in transactions."""
    graph = planned.logical
    exact = [output for output in compiled.outputs if output.is_exact]
    sources = [node.step.source for node in graph.nodes if isinstance(node.step, Read)]
    where = f"job {planned.job.name!r}, declared at {planned.job.origin}"
    # Below end-to-end exactly-once only upserts are written in transactions. Such a job may have run before its table
    # had a ledger, and the epoch that it begins with replaces its own rows.
    declared = {declared_of(graph, node.step) for node in graph.nodes if isinstance(node.step, Write)}
    has_wild_steps = any(map(is_wild, graph.nodes))
    return EpochWriter(
        spark=spark,
        outputs=compiled.outputs,
        commits=open_commits(
            planned.job.name,
            exact,
            spark=spark,
            where=where,
            is_new_life=new_life,
            is_adopting=Guarantee.END_TO_END_EXACTLY_ONCE not in declared and not has_wild_steps,
        ),
        resources=group_outputs(exact),
        # A transform is a closed box, which may hold state. Rows that were kept are not computed again.
        can_repeat=letters is None
        and compiled.finish is None
        and not any(has_state(node) or isinstance(node.step, Transform) for node in graph.nodes),
        is_alike=any(is_partitioned_alike(graph, node) for node in graph.nodes),
        sources=tuple(source for source in sources if isinstance(source, KafkaSource)),
        tables=tables,
        tries_once=planned.job.guarantee is Guarantee.AT_MOST_ONCE and not is_local(spark.sparkContext),
        is_wild=has_wild_steps,
        where=where,
        finish=compiled.finish,
        has_late=MISSED in compiled.frame.columns,
        letters=letters,
    )


def _topic_ids(checkpoint: Checkpoint, planned: Plan, compiled: Compiled) -> TopicIds:
    """The ids of all topics that a job reads and writes, including the topic of dead letters."""
    read = [source for _, source in sources_in_order(planned, compiled.parts)]
    written = [output.sink for output in compiled.outputs]
    where = f"job {planned.job.name!r}, declared at {planned.job.origin}; checkpoint {checkpoint.root}"
    return TopicIds(checkpoint, used_topics([*read, *written]), where=where, accept="lockgate run --accept-outputs")


def _source_files(checkpoint: Checkpoint, planned: Plan, compiled: Compiled) -> SourceFiles | None:
    """The files that a job reads; None if it reads none."""
    read = [(node.where, node.step.source) for node in planned.logical.nodes if isinstance(node.step, Read)]
    found = [(where, source) for where, source in read if isinstance(source, FileSource)]
    if not found:
        return None
    logs = source_logs(compiled.frame)
    # Spark does not say which source of two with one path a log is of, so the first of them counts for both.
    first = {source.path: where for where, source in reversed(found)}
    directories = [
        ReadDirectory(
            source, where, passes=len({n for n, path in logs if path == source.path and first[path] == where})
        )
        for where, source in found
    ]
    return SourceFiles(
        checkpoint,
        directories,
        logs=[number if path in first else None for number, path in logs],
        is_exact=any(is_exact(planned.logical, node) for node in planned.logical.nodes),
        job=planned.job.name,
        now=time.time,
    )


def _gaps(checkpoint: Checkpoint, planned: Plan) -> Gaps:
    """What finds that records are gone before the job read them."""
    nodes = [(node.where, node.step.source) for node in planned.logical.nodes if isinstance(node.step, Read)]
    read = [(where, source) for where, source in nodes if isinstance(source, KafkaSource)]
    where = f"job {planned.job.name!r}, declared at {planned.job.origin}; checkpoint {checkpoint.root}"
    return Gaps(checkpoint, read, where=where)


def _names(planned: Plan, compiled: Compiled) -> Names:
    """What metrics call the parts of a query."""
    nodes = planned.logical.nodes
    reads = [(node.name, node.step.source) for node in nodes if isinstance(node.step, Read)]
    kafka = [(name, source) for name, source in reads if isinstance(source, KafkaSource)]
    sources = {f"[{source.topic}]] at {source.servers}": name for name, source in kafka}
    sources |= {f"[{source.topic}]": name for name, source in kafka}  # where a report does not say the servers
    # What Spark calls the others tells little; where there is one, it is all that is left.
    others = [name for name, source in reads if not isinstance(source, KafkaSource)]
    sources |= {"": others[0]} if len(others) == 1 else {f"[{name}]": name for name in others}
    topics = [
        (one.sink.topic, one.name)
        for one in compiled.outputs
        if one.is_exact and isinstance(one.sink, KafkaSink) and one.sink.topic is not None
    ]
    times = Counter(topic for topic, _ in topics)
    return Names(
        sources=sources,
        steps=compiled.stateful,
        # What comes to an output, and beside a step (late events, letters), is counted there.
        inputs={
            node.name: node.inputs
            for node in nodes
            if node.inputs and not isinstance(node.step, Write | Letters | LateEvents | TimedOut)
        },
        outputs={one.tag or 0: one.name for one in compiled.counted},
        topics={topic: name for topic, name in topics if times[topic] == 1},
    )


def _jvm(spark: SparkSession) -> int | None:
    """The process of Spark's driver, where we have started it."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    return None if process is None else int(process.pid)


def _tasks_done(spark: SparkSession) -> dict[int, int]:
    """The tasks that have ended, by stage that is being worked on."""
    tracker = spark.sparkContext.statusTracker()
    stages = {stage: tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()}
    return {stage: info.numCompletedTasks for stage, info in stages.items() if info is not None}


def _heap_bytes(spark: SparkSession) -> dict[str, int]:
    """The heap of Spark's driver, as its JVM tells it."""
    jvm: Any = spark.sparkContext._jvm
    heap = jvm.java.lang.Runtime.getRuntime()
    return {"used": int(heap.totalMemory() - heap.freeMemory()), "max": int(heap.maxMemory())}


def _letter_box(planned: Plan, compiled: Compiled, checkpoint: Checkpoint, spark: SparkSession) -> LetterBox | None:
    """What takes the events that cannot be used; with an acker, where they are tried again first."""
    job = planned.job
    if job.dead_letters is None or compiled.rejects is None or compiled.letters is None:
        return None
    where = f"job {job.name!r}, declared at {job.origin}"
    box = LetterBox(spark, job.name, where, job.dead_letters, compiled.rejects, compiled.letters, planned.logical)
    if job.tracking is not None:
        system = open_system(checkpoint.root, spark, where)
        box.acker = Acker(
            system,
            job.tracking,
            is_committed=checkpoint.is_committed,
            planned=lambda: max(checkpoint.epochs("offsets"), default=-1),
            job=job.name,
        )
    return box


def _longest_idle(planned: Plan) -> timedelta | None:
    """How long all inputs must be silent before time goes on without them; None where it never does."""
    asked = [node.step.time.idle for node in planned.logical.nodes if isinstance(node.step, Timed)]
    return max((idle for idle in asked if idle is not None), default=None)


def _start(
    planned: Plan,
    compiled: Compiled,
    checkpoint: str,
    until_caught_up: bool,
    epochs: EpochWriter,
    clock: Any,
) -> StreamingQuery:
    from pyspark.errors import PySparkException

    job = planned.job
    try:
        if job.mode is Mode.REAL_TIME:  # where no step goes by the clock
            return _start_real_time(planned, compiled, checkpoint)
        writer = compiled.frame.writeStream.option("checkpointLocation", checkpoint)
        writer = writer.foreachBatch(epochs.write).outputMode("append")
        if until_caught_up:
            writer = writer.trigger(availableNow=True)
        else:
            epoch = timedelta(milliseconds=1) if isinstance(clock, Stepper) else planned.physical.epoch
            writer = writer.trigger(processingTime=as_spark_text(epoch))
        return start_query(compiled.frame, writer, name=job.name, checkpoint=checkpoint, clock=clock)
    except PySparkException as error:
        raise BadJob(
            f"Spark refuses the query of job {job.name!r}: {str(error).splitlines()[0]}",
            where=f"job {job.name!r}, declared at {job.origin}",
            fix="split the job in two, with a topic in between",
        ) from error


def _start_real_time(planned: Plan, compiled: Compiled, checkpoint: str) -> StreamingQuery:
    sink: Any = compiled.outputs[0].sink
    rows = sink.encode(compiled.frame, where=compiled.outputs[0].where)
    writer: Any = rows.writeStream.queryName(planned.job.name).format("kafka").outputMode("update")
    for name, text in {**sink.options(), "checkpointLocation": checkpoint}.items():
        writer = writer.option(name, text)
    query: StreamingQuery = writer.trigger(realTime=as_spark_text(planned.physical.epoch)).start()
    return query


def _translate(error: Exception, cause: list[Exception], run: Run) -> LockgateError:
    """The failure of a query as the author can use it: a row with its place, or Spark's first line and the log."""
    for one in (*cause, error):
        if _is_damage(str(one)):
            return CheckpointDamaged(
                f"a file of the state in the checkpoint cannot be read: {first_cause(str(one))}",
                where=f"checkpoint {run.checkpoint}, state; which file: {run.log_file}",
                fix="put it back from a copy of the checkpoint, and look after its disk; nothing was delivered from it."
                " Without a copy, begin again with everything: lockgate run --new-life",
            )
        told = one if isinstance(one, LockgateError) else find_error(str(one))
        if told is not None:
            return told
        if any(mark in str(one) for mark in _OTHER_STEPS):
            return Refused(
                "steps with state were added to the job, or taken away from it, since its checkpoint was made",
                where=f"job {run.job.name!r}, declared at {run.job.origin}; checkpoint {run.checkpoint}",
                fix="bring the steps with state back to what they were; or begin again with everything:"
                " lockgate run --new-life",
            )
        if _OTHER_SOURCES in str(one):
            return Refused(
                "sources were added to the job, or taken away from it, since its checkpoint was made; dead_letters="
                " adds one too, of events that come once more",
                where=f"job {run.job.name!r}, declared at {run.job.origin}; checkpoint {run.checkpoint}",
                fix="bring the sources, and dead_letters=, back to what they were; or begin again with everything:"
                " lockgate run --new-life",
            )
    in_hand = run._crashes.told()
    return Failed(
        f"Job {run.job.name!r} stopped: {first_cause(str(cause[0] if cause else error))}"
        + (f"; Python workers died {in_hand}" if in_hand else ""),
        where=f"checkpoint {run.checkpoint}",
        fix=f"see {run.log_file}; when the cause is mended, run the job again: it goes on where it stopped",
    )


def _is_damage(message: str) -> bool:
    """Did Spark find a file of the state that is not as it was written? To try again would find the same."""
    return _NO_STATE in message and any(mark in message for mark in _DAMAGES)


def _check_sources(planned: Plan, start: str | None, rows_per_epoch: int) -> None:
    """Look at every source before Spark is started, which takes seconds."""
    for node in planned.logical.nodes:
        if isinstance(node.step, Read):
            node.step.source.check(read_from(planned, node, start, rows_per_epoch))


def _reads_topics(planned: Plan) -> bool:
    """Is there a source that says how much waits in it?"""
    sources = [node.step.source for node in planned.logical.nodes if isinstance(node.step, Read)]
    return any(isinstance(source, KafkaSource) for source in sources)


def uses_kafka(planned: Plan) -> bool:
    """Does a job need Kafka's connector?"""
    return any(
        isinstance(getattr(node.step, "source", None), KafkaSource)
        or isinstance(getattr(node.step, "sink", None), KafkaSink)
        for node in planned.logical.nodes
    )


def _read_start(start: str | None, job: Job) -> str | None:
    """The place to start from, a time in a form that every version of Python reads."""
    if start in (None, "earliest", "latest"):
        return start
    try:
        moment = datetime.fromisoformat(str(start).strip())
        if moment.tzinfo is not None:
            return moment.isoformat()
    except ValueError:
        pass
    raise Refused(
        f"{start!r} is not a place to start from",
        where=f"job {job.name!r}",
        fix="use earliest, latest, or a time with its zone, e.g. 2026-01-31T12:00:00Z",
    )


def _refuse_endless(planned: Plan, until_caught_up: bool) -> None:
    for node in planned.logical.nodes:
        source = node.step.source if isinstance(node.step, Read) else None
        if until_caught_up and isinstance(source, SocketSource | MqttSource):
            kind = "a socket" if isinstance(source, SocketSource) else "an MQTT broker"
            raise Refused(
                f"{kind} never says that all is read, so the job would never be caught up",
                where=node.where,
                fix="run it without --until-caught-up, and stop it with Ctrl-C",
            )
    if until_caught_up and planned.job.mode is Mode.REAL_TIME:
        raise Refused(
            "a real-time query has no end",
            where=f"job {planned.job.name!r}, declared at {planned.job.origin}",
            fix="run it without --until-caught-up, or declare mode=Mode.MICRO_BATCH",
        )


def _as_mapping(report: Any) -> dict[str, Any]:
    """Spark's report as plain data; its form differs between releases."""
    import json

    return dict(report) if isinstance(report, dict) else dict(json.loads(report.json))
