"""Run a job: plan it, refuse what it cannot keep, start its query, watch it, end it cleanly.

    start          nothing yet, or "earliest" / "latest" / a time; counts only where there is no checkpoint
    every epoch    offsets logged -> rows computed and written -> commit logged
    the end        caught up, stopped by the author, or the first failure; the epoch in hand is repeated by the next run

An at-most-once run keeps nothing: its checkpoint is fresh each time and no task is tried twice, because a repeated row
is the one thing that it promises not to deliver.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockgate.dataflow.duration import as_spark_text
from lockgate.dataflow.job import Job
from lockgate.dataflow.steps import Read
from lockgate.errors import BadJob, Failed, LockgateError, Refused
from lockgate.failures import find_failure
from lockgate.guarantees import Guarantee, Mode
from lockgate.planner.plan import Plan, plan
from lockgate.runtime.epochs import write_epoch
from lockgate.runtime.progress import Progress, Watcher
from lockgate.sinks.kafka import KafkaSink
from lockgate.sources.kafka import KafkaSource
from lockgate.sources.socket import SocketSource
from lockgate.spark.compile import Compiled, compile_plan, read_from
from lockgate.spark.jars import connector_jars
from lockgate.spark.session import SessionPlan, open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

ROWS_PER_EPOCH = 500_000
"""The most rows that one epoch takes from one source, so that the first run over a long history is no giant."""

_POLL_SECONDS = 0.2


@dataclass
class Run:
    """A job that runs, or has run."""

    job: Job
    plan: Plan
    checkpoint: str
    log_file: Path
    _query: StreamingQuery
    _cause: list[Exception]
    _temporary: Path | None
    _watcher: Watcher = field(default_factory=Watcher)
    _is_stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def is_running(self) -> bool:
        """Has the query not ended yet?"""
        return bool(self._query.isActive)

    def progress(self) -> Progress | None:
        """The progress since the last look, or None where nothing is new."""
        last = self._query.lastProgress
        reports = [] if last is None else [_as_mapping(last)]
        if reports and self._watcher.has_missed(reports[0]):
            reports = [_as_mapping(report) for report in self._query.recentProgress]
        news = [self._watcher.take(report) for report in reports]
        return next((progress for progress in reversed(news) if progress is not None), None)

    def wait(self, on_progress: Callable[[Progress], None] | None = None, timeout: float | None = None) -> bool:
        """Wait for the end, telling the progress; False where `timeout` seconds passed first. Raises what failed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._query.isActive:
            news = self.progress()
            if news is not None and on_progress is not None:
                on_progress(news)
            if self._is_stopping.is_set():
                self._query.stop()
                break
            if deadline is not None and time.monotonic() >= deadline:
                return False
            self._is_stopping.wait(_POLL_SECONDS)
        news = self.progress()
        if news is not None and on_progress is not None:
            on_progress(news)
        self._finish()
        return True

    def stop(self) -> None:
        """End the run; the epoch in hand is given up and repeated by the next run."""
        self._is_stopping.set()
        self._query.stop()
        self._finish()

    def ask_to_stop(self) -> None:
        """Ask for the end from a signal handler or another thread; `wait` carries it out."""
        self._is_stopping.set()

    def _finish(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
        error = self._query.exception()
        if error is not None and not self._is_stopping.is_set():
            raise _translate(error, self._cause, self)


def run(
    job: Job,
    *,
    checkpoint: str | None = None,
    master: str | None = None,
    start: str | None = None,
    until_caught_up: bool = False,
    rows_per_epoch: int = ROWS_PER_EPOCH,
    log_file: Path | None = None,
    wait: bool = True,
) -> Run:
    """Run a job. With `until_caught_up` it returns when all that was there is processed (unless `wait=False`).

    `start` is earliest, latest or a time, and counts only without a checkpoint; without it nothing is skipped, but for
    an at-most-once job, which begins with what comes next. Raises BadJob or OverClaim before anything runs, and Failed
    for what happens while running.
    """
    planned = plan(job)
    refusal = planned.refusal()
    if refusal is not None:
        raise refusal
    start = _read_start(start, job)
    _refuse_endless(planned, until_caught_up)
    if rows_per_epoch < 1:
        raise Refused(
            f"rows_per_epoch is {rows_per_epoch}", where=f"job {job.name!r}", fix="take at least one row an epoch"
        )
    _check_sources(planned, start, rows_per_epoch)
    log_file = log_file or Path(".lockgate") / "logs" / f"{job.name}.spark.log"
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
            jars=connector_jars() if _uses_kafka(planned) else (),
            log_file=log_file.resolve(),
            are_tasks_retried=is_tracked,
            is_real_time=job.mode is Mode.REAL_TIME,
        )
    )
    compiled = compile_plan(planned, spark, start=start, rows_per_epoch=rows_per_epoch)
    for output in compiled.outputs:
        output.sink.check(output.where)  # only now: it may make a topic, and a refused job should leave nothing behind
    temporary = None if is_tracked else Path(tempfile.mkdtemp(prefix="lockgate-at-most-once-"))
    place = str(temporary or checkpoint or default_checkpoint(job))
    cause: list[Exception] = []
    try:
        query = _start(planned, compiled, place, until_caught_up, cause)
    except LockgateError:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    started = Run(
        job=job,
        plan=planned,
        checkpoint=place,
        log_file=log_file,
        _query=query,
        _cause=cause,
        _temporary=temporary,
    )
    if until_caught_up and wait:
        started.wait()
    return started


def default_checkpoint(job: Job) -> Path:
    """Where a job keeps its checkpoint unless told otherwise."""
    return Path(".lockgate").resolve() / "checkpoints" / job.name


def _start(
    planned: Plan, compiled: Compiled, checkpoint: str, until_caught_up: bool, cause: list[Exception]
) -> StreamingQuery:
    from pyspark.errors import PySparkException

    job = planned.job
    writer = compiled.frame.writeStream.queryName(job.name).option("checkpointLocation", checkpoint)
    if job.mode is Mode.REAL_TIME:
        sink = compiled.outputs[0].sink
        writer = _real_time_writer(compiled, sink, checkpoint, planned.physical.epoch).queryName(job.name)
    else:

        def on_epoch(rows: DataFrame, epoch: int) -> None:
            try:
                write_epoch(compiled.outputs, rows, epoch)
            except Exception as error:
                cause.append(error)  # the first error, before Spark wraps it
                raise

        writer = writer.foreachBatch(on_epoch).outputMode("append")
        if until_caught_up:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=as_spark_text(planned.physical.epoch))
    try:
        return writer.start()
    except PySparkException as error:
        raise BadJob(
            f"Spark refuses the query of job {job.name!r}: {str(error).splitlines()[0]}",
            where=f"job {job.name!r}, declared at {job.origin}",
            fix="split the job in two, with a topic in between",
        ) from error


def _real_time_writer(compiled: Compiled, sink: Any, checkpoint: str, epoch: timedelta) -> Any:
    rows = sink.encode(compiled.frame, where=compiled.outputs[0].where)
    writer = rows.writeStream.format("kafka").outputMode("update").option("checkpointLocation", checkpoint)
    for name, text in sink.options().items():
        writer = writer.option(name, text)
    return writer.trigger(realTime=as_spark_text(epoch))


def _translate(error: Exception, cause: list[Exception], run: Run) -> LockgateError:
    """The failure of a query as the author can use it: a row with its place, or Spark's first line and the log."""
    for one in (*cause, error):
        if isinstance(one, LockgateError):
            return one
        failure = find_failure(str(one))
        if failure is not None:
            return failure.as_error()
    return Failed(
        f"Job {run.job.name!r} stopped: {first_cause(str(cause[0] if cause else error))}",
        where=f"checkpoint {run.checkpoint}",
        fix=f"see {run.log_file}; when the cause is mended, run the job again: it goes on where it stopped",
    )


def first_cause(message: str) -> str:
    """The line of Spark's message that says what happened, and not which of its calls noticed.

    >>> first_cause("An error occurred while calling o1.save.\\n: java.lang.A: late\\nCaused by: java.net.B: no route")
    'java.net.B: no route'
    """
    lines = [line.strip().removeprefix(": ") for line in message.splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    told = [line for line in lines if not line.startswith(("An error occurred while calling", "at ", "==", "..."))]
    return (causes[-1:] or told or lines or ["it did not say why"])[0]


def _check_sources(planned: Plan, start: str | None, rows_per_epoch: int) -> None:
    """Look at every source before Spark is started, which takes seconds."""
    for node in planned.logical.nodes:
        if isinstance(node.step, Read):
            node.step.source.check(read_from(planned, node, start, rows_per_epoch))


def _uses_kafka(planned: Plan) -> bool:
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
        moment = datetime.fromisoformat(str(start).strip().replace("Z", "+00:00"))
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
        if until_caught_up and isinstance(node.step, Read) and isinstance(node.step.source, SocketSource):
            raise Refused(
                "a socket never says that all is read, so the job would never be caught up",
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
