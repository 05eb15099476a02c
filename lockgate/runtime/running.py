"""A job that runs: watch its query, restart it when that helps, end it cleanly.

    every epoch    offsets logged -> rows computed and written -> commit logged
    the end        caught up, stopped by the user, or the first failure; the next run repeats the current epoch

A try of an exactly-once epoch may end without a decision. That does not end the run. If the rows depend on state, the
query restarts from its checkpoint, a few times in a row (restartpolicy.py).

An at-most-once run keeps nothing: its checkpoint is new each time and no task runs twice, because it promises not to
deliver a row twice. After a failure it continues with new events (atmostonce.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.checkpoints.locking import CheckpointLock
from lockgate.commit.ledger import Gap
from lockgate.commit.resource import TransactionSink
from lockgate.dataflow.job import Job
from lockgate.errors import LockgateError, TooManyLetters
from lockgate.escaping import escape
from lockgate.failures import first_cause
from lockgate.guarantees import Mode
from lockgate.planner.plan import Plan
from lockgate.runtime.acker import Acker
from lockgate.runtime.atmostonce import AtMostOnceRestarts, as_forgotten
from lockgate.runtime.deliverycounts import DeliveryCounts, as_text
from lockgate.runtime.epochs import EpochWriter
from lockgate.runtime.heartbeat import Heartbeat
from lockgate.runtime.metrics.driver import heap_bytes, tasks_done
from lockgate.runtime.metrics.meter import Facts, Meter
from lockgate.runtime.options import ROWS_PER_EPOCH
from lockgate.runtime.progress import Progress, Watcher, is_epoch
from lockgate.runtime.realtime import unended_records
from lockgate.runtime.reports import ClockWatch, Reports
from lockgate.runtime.restartpolicy import RestartPolicy
from lockgate.runtime.translating import translate
from lockgate.spark.crashes import CrashRegistry
from lockgate.throwables import throwables, throwables_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.2
_QUIET_SECONDS = 5.0
_LAST_EPOCH_SECONDS = 60.0
_END_SECONDS = 60


@dataclass
class Run:
    """A job that runs, or has run. `run(job)` returns it.

    >>> numbers = stream("numbers", MemorySource([(1,), (2,), (3,)], value="n INT"))
    >>> sink = MemorySink()
    >>> started = run(Job("numbers", numbers.to("out", sink), guarantee=Guarantee.AT_LEAST_ONCE))
    >>> while len(sink.rows) < 3:
    ...     ended = started.wait(timeout=0.1)  # raises if the job fails
    >>> started.is_running
    True
    >>> started.stop()
    >>> sorted(row.n for row in sink.rows)
    [1, 2, 3]
    """

    job: Job
    plan: Plan
    checkpoint: str
    log_file: Path
    _query: StreamingQuery
    _writer: EpochWriter
    _start: Callable[[], StreamingQuery]
    _at_most_once: AtMostOnceRestarts | None  # of an at-most-once run
    _has_end: bool  # does the query end when everything is processed?
    _ends_in_silence: bool  # must the run stop it when it is caught up, because it runs epochs without events, too?
    _dropped: Callable[[], int]  # counts the late events that operators dropped, which Spark's reports do not have
    _crashes: CrashRegistry
    _held: CheckpointLock | None = None  # the lock on its checkpoint, if it can be locked
    _restart_policy: RestartPolicy = field(default_factory=RestartPolicy)
    _watcher: Watcher = field(default_factory=Watcher)
    _is_stopping: threading.Event = field(default_factory=threading.Event)
    _heartbeat: Heartbeat | None = None
    _times: DeliveryCounts = field(default_factory=DeliveryCounts)
    _newest: Progress | None = None  # not reported to the caller yet
    _meter: Meter | None = None
    _rows_per_epoch: int = ROWS_PER_EPOCH
    _query_starts: int = 1
    _heap: dict[str, int] = field(default_factory=dict)  # of Spark's driver, at its last report
    _reported_at: float = 0.0  # by the monotonic clock, when the query last reported
    pulse: Path | None = None  # the file through which event time advances without events; None if it never does
    unended: int | None = 0  # events, at most, of a real-time epoch that was stopped before its end; None if unknown
    epochs_done: int = 0  # epochs that were reported, at the last look
    goes_by_clock: bool = False  # does a step use the clock, so that epochs run even without events?
    accepted: tuple[Gap, ...] = ()  # records that the sources have lost, and that this start skipped
    query_run: str = ""  # Spark's id of this start of the query, as in its log

    def __post_init__(self) -> None:
        self._reports = Reports(
            self._query,
            observed=lambda epoch: self._writer.observed.get(epoch),
            is_real_time=self.job.mode is Mode.REAL_TIME,
        )
        self._clock_watch = ClockWatch(self.job.name)
        self._follow(self._query)

    def _follow(self, query: StreamingQuery) -> None:
        # Ask for the id now: every line of the log carries it, even after the JVM is gone.
        self._query, self.query_run = query, str(query.runId)
        self._reports.follow(query)

    @property
    def is_running(self) -> bool:
        """Whether the query has not ended yet."""
        return bool(self._query.isActive)

    @property
    def epoch(self) -> int | None:
        """The current epoch, or the newest one; None before the first."""
        return None if self._writer.newest < 0 else self._writer.newest

    @property
    def _acker(self) -> Acker | None:
        """The part that retries events, if the job has one."""
        return None if self._writer.letters is None else self._writer.letters.acker

    @property
    def goes_on(self) -> str:
        """Where another run would continue if this one died now."""
        if self._at_most_once is not None:
            return "with what comes next"
        return f"from epoch {max(self._watcher.upcoming, self._writer.past.upcoming)}"

    @property
    def final(self) -> str:
        """Why no other run can continue after this one dies; empty if one can."""
        if self._at_most_once is None or self._at_most_once.can_go_on:
            return ""
        return "another start of this at-most-once job would repeat events, or skip them in silence"

    def _beat(self, idle: timedelta, pulse: Path) -> None:
        """Let time advance without events, if none arrive for this long."""
        self._heartbeat = Heartbeat(
            self._reports.since, past=lambda: self._writer.past, pulse=pulse, idle=idle, job=self.job.name
        )
        self._heartbeat.start()

    def progress(self) -> Progress | None:
        """Return the progress since the last call; None if nothing is new."""
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
        letters = self._writer.letters
        reports = []
        for report in self._reports.since(self._watcher):
            before = self._watcher.events_total
            news = self._watcher.take(report)
            if news is None:
                continue
            reports.append(report)
            self._newest = news
            self._clock_watch.look(report)
            if is_epoch(report):
                self.epochs_done += 1
                done = {0: news.events_total - before} if letters is None else letters.done.pop(news.epoch, {})
                self._times.add(done, self._writer.tries.of(news.epoch))
        if self._meter is not None:
            if reports:
                self._heap, self._reported_at = heap_bytes(self._writer.spark), time.monotonic()
            self._meter.update(reports, self._facts())

    def _facts(self) -> Facts:
        """What the metrics need in addition to Spark's reports."""
        letters, backpressure = self._writer.letters, self._writer.backpressure
        output = None if letters is None else letters.output
        are_counted = output is not None and output.is_exact and isinstance(output.sink, TransactionSink)
        return Facts(
            query_restarts=self._query_starts - 1,
            skipped=sum(gap.count for gap in self.accepted),
            late=self._watcher.late_total + self._dropped(),
            letters={} if letters is None else letters.by_reason,
            letters_output=None if output is None or are_counted else output.name,
            waiting=0 if self._acker is None else self._acker.waiting,
            processed=as_text(self._times.processed),
            delivered=as_text(self._times.delivered),
            fan_outs={} if self._writer.tallies is None else self._writer.tallies.report(),
            rows_per_epoch=self._rows_per_epoch if backpressure is None else backpressure.rows,
            heap_bytes=self._heap,
            tasks_done=tasks_done(self._writer.spark) if self._is_quiet else {},
        )

    @property
    def _is_quiet(self) -> bool:
        """Has the query been silent for so long that metrics should show whether it works on an epoch?"""
        return time.monotonic() - self._reported_at > _QUIET_SECONDS

    def wait(self, on_progress: Callable[[Progress], None] | None = None, timeout: float | None = None) -> bool:
        """Wait for the end of the run.

        Args:
            on_progress: called with every new progress.
            timeout: seconds after which this returns False, although the run has not ended.

        Raises:
            Failed: something went wrong while the job ran. docs/ERRORS.md lists the kinds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._query.isActive or self._restart():
            news = self.progress()
            if news is not None:
                self._restart_policy.renew()
                if on_progress is not None:
                    on_progress(news)
            if self._is_stopping.is_set() or (news is not None and self._is_caught_up(news)):
                self._is_stopping.set()
                self._stop_query()
                break
            try:
                if self._writer.files is not None:
                    self._writer.files.watch()
                if self.job.mode is Mode.REAL_TIME and self._writer.topics is not None:
                    self._writer.topics.watch()  # elsewhere the writer watches in every epoch
            except LockgateError:
                self.stop()
                raise
            if deadline is not None and time.monotonic() >= deadline:  # a caller with timeout=0 gets the checks too
                return False
            self._is_stopping.wait(_POLL_SECONDS)
        news = self.progress()
        if news is not None and on_progress is not None:
            on_progress(news)
        try:
            if self._has_end and self._writer.files is not None and self._query.exception() is None:
                self._writer.files.look()  # are there files that no epoch has read, and none ever will?
        finally:
            self._finish()
        return True

    def _is_caught_up(self, news: Progress) -> bool:
        """Has a query that runs epochs forever read everything? An epoch that it repeats may have been empty before."""
        has_waiting = self._acker is not None and self._acker.waiting > 0
        is_silent = self._ends_in_silence and self._watcher.is_silent and not has_waiting
        return is_silent and news.epoch > self._writer.past.planned

    def _restart(self) -> bool:
        """Start the next query if the last one has ended and the run has not; False if the run is over."""
        if self._at_most_once is not None:
            return self._continue_with_new_events(self._at_most_once)
        return self._return_events() if self._query.exception() is None else self._repeat_epoch()

    def _repeat_epoch(self) -> bool:
        """Restart the query from its checkpoint after a failure that may pass."""
        errors = self._writer.first_error
        poison_event_count = 0 if self._writer.letters is None else len(self._crashes.poison_events)
        if (
            not errors
            or self._is_stopping.is_set()
            or not self._restart_policy.spend(errors[0], poison_event_count=poison_event_count)
        ):
            return False
        self._look()  # at its last epochs
        log.warning("job %s: the query restarts from its checkpoint: %s", self.job.name, first_cause(str(errors[0])))
        errors.clear()
        self._start_again()
        self._query_starts += 1
        return True

    def _return_events(self) -> bool:
        """Restart a query that has processed everything, while events wait for a retry."""
        acker = self._acker
        if acker is None or not self._has_end:
            return False
        self._look()  # at its last epochs
        while not self._is_stopping.is_set():
            waiting = acker.waiting  # first: an event that is released after this look still counts as waiting
            if acker.take_released():
                self._start_again()
                return True
            if not waiting:
                return False
            self._is_stopping.wait(_POLL_SECONDS)
        return False

    def _continue_with_new_events(self, at_most_once: AtMostOnceRestarts) -> bool:
        """Start a query with a new checkpoint; what the failed one had in hand is lost."""
        error: Exception | None = self._query.exception()
        if error is not None:
            self._look()  # at its last epochs
        while error is not None and not self._is_stopping.is_set():
            too_many = any(isinstance(one, TooManyLetters) for one in self._writer.first_error)
            if too_many or not at_most_once.count_failure(self._watcher.events_total):
                return False
            told = self._translate(error).what
            message = "job %s: an epoch failed; its events are not retried, the job continues with what comes next: %s"
            log.warning(message, self.job.name, escape(told.removeprefix(f"Job {self.job.name!r} stopped: ")))
            if self._is_stopping.wait(at_most_once.pause_seconds):
                return False
            try:
                self.checkpoint = str(at_most_once.begin())
                self._watcher.reset()
                self._start_again()
                self._query_starts += 1
                return True
            except Exception as failed:  # noqa: BLE001 - one more failure in a row, reported if it is the last
                error, self._writer.first_error = failed, [failed]
        return False

    def _start_again(self) -> None:
        """Start the next query of the job."""
        self._await_end()
        self._follow(self._start())

    def _await_end(self) -> None:
        """Wait until Spark frees the name of the query, a moment after its end: the next query needs the name."""
        from pyspark.errors import StreamingQueryException

        with suppress(StreamingQueryException):  # other code asks how it ended
            self._query.awaitTermination(_END_SECONDS)

    def read_tables_again(self) -> None:
        """Read the tables of the job now, before they are due. The next epoch sees them."""
        if self._writer.tables is not None:
            self._writer.tables.read_again()

    def stop(self) -> None:
        """End the run. The next run repeats the current epoch."""
        self._is_stopping.set()
        self._stop_query()
        self._finish()

    def ask_to_stop(self) -> None:
        """Request the end from a signal handler or another thread. `wait` carries it out."""
        self._is_stopping.set()

    def _stop_query(self) -> None:
        self._writer.commits.stop()
        self._query.stop()

    def _finish(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()
        if self._acker is not None:
            self._acker.stop()
        # If an epoch is being decided when the query stops, it ends first: committed, or aborted.
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
        if self._at_most_once is not None:
            self._at_most_once.close()
        if self._held is not None:
            self._held.close()
        self._await_end()
        error = self._query.exception()
        if error is not None and not self._is_stopping.is_set():
            told = self._translate(error)
            if self._at_most_once is not None:
                where = f"job {self.job.name!r}, declared at {self.job.origin}"
                told = as_forgotten(told, where=where, log_file=self.log_file)
            raise told

    def _translate(self, error: Exception) -> LockgateError:
        java = self._query._jsq.exception()
        raised = throwables(error)
        if not raised and java.isDefined():
            raised = throwables_of(java.get())  # PySpark keeps only its text
        causes = [(one, throwables(one)) for one in self._writer.first_error]
        return translate(
            [*causes, (error, raised)],
            self.plan,
            checkpoint=self.checkpoint,
            log_file=self.log_file,
            deaths=self._crashes.summary(),
        )
