"""Harness: feed a job with rows, move its time, and read its results; in this process, without a broker or a cluster.

    from lockgate.testing import Harness

    with Harness(job) as harness:
        harness.feed("orders", {"id": 1, "amount": 5.0, "at": noon})
        harness.advance(timedelta(minutes=2))
        assert harness.rows("volume") == [...]

The job runs as it does in production: the same plan, operators, state and epochs, on a local Spark. The harness
replaces only three things:

    sources, tables   contain what the test gives them (inlets.py)
    sinks             keep their rows for the test (outlets.py)
    the clock         stops until the test moves it (lockgate/spark/stepping.py). Event time moves with it, as if every
                      source had got so far

A feed, or a move of time, returns when all its results are emitted. So results do not depend on the speed of a machine.
User functions that ask the machine for the time, or call another system, are not replaced.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.dataflow.endpoints import Sink
from lockgate.dataflow.fanout import FanOut
from lockgate.dataflow.job import Job
from lockgate.dataflow.rebuilding import rebuild
from lockgate.dataflow.steps import Exchanged, Keyed, Merge, Part, Read, Select, Step, TableJoin, Timed, Where, Write
from lockgate.dataflow.table import FileTable, ReadTable
from lockgate.errors import LockgateError, Refused
from lockgate.guarantees import Guarantee, Mode
from lockgate.operators.moments import EPOCH
from lockgate.planner.logical import LogicalGraph, Node
from lockgate.planner.plan import Plan, plan
from lockgate.runtime.assembly import make_topic_ids
from lockgate.runtime.options import Options
from lockgate.runtime.running import Run
from lockgate.runtime.starting import launch
from lockgate.runtime.state import get_state
from lockgate.runtime.stepped import SteppedRun
from lockgate.runtime.topicids import TopicIds
from lockgate.spark.compile import Compiled
from lockgate.spark.session import SessionPlan, is_local, open_session
from lockgate.spark.stepping import Stepper
from lockgate.spark.timing import write_pulse
from lockgate.testing.fitting import Row, as_arrow, as_ddl, as_struct, fitted
from lockgate.testing.inlets import Fed, Inlet, make_inlet
from lockgate.testing.outlets import KeptSink, Outlet

BEGIN = datetime(2000, 1, 1, tzinfo=UTC)
"""The time before the first row, unless the test sets it."""

_NEVER = timedelta(days=36_500)
_PATIENCE = timedelta(seconds=5)  # at least: a slow machine must not time out what answers in time elsewhere
_MILLISECOND = timedelta(milliseconds=1)


class Harness:
    """A job under test; use it in a `with` block, which removes everything at its end.

    Args:
        tables: the rows of the tables that the job joins with, by their names.
        now: the time. By default the time follows the rows: it is the greatest event time that was fed. If you give
            it, the clock stays there until you move it, so that rows can be ahead of it.
    """

    def __init__(
        self, job: Job, *, tables: Mapping[str, Sequence[Row]] | None = None, now: datetime | None = None
    ) -> None:
        self._where = f"harness of job {job.name!r}, declared at {job.origin}"
        if now is not None:
            _require_zone(now, self._where)
        self._follows_rows = now is None
        self._now = BEGIN if now is None else now
        self._stepper = Stepper(_as_ms(self._now))
        self._job = job
        self._tables = {name: list(rows) for name, rows in (tables or {}).items()}
        self._inlets: dict[str, Inlet] = {}
        self._outlets: dict[str, Outlet] = {}
        self._directory: Path | None = None
        self._lives = 0  # checkpoints that were started
        self._exchanged_job: Job | None = None  # None if it cannot run: before it is entered, after a failure
        self._run: SteppedRun | None = None
        self._has_begun = False
        self._times = _Times({}, are_seen=True, lateness=timedelta(0), has_max_ahead=False)

    # -- its life ------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="lockgate-harness-"))
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the job, and remove all its files. The Spark driver stays, for the next harness of this process."""
        try:
            self._stop()
        finally:
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)

    def restart(self, job: Job | None = None) -> None:
        """Stop the job and restart it from its checkpoint, as a deployment does; `job` is its new version, if any.

        An epoch that failed is repeated. An at-most-once job keeps no checkpoint, and starts with the next rows.
        """
        has_begun = self._has_begun
        self._stop()
        self._job = job or self._job
        if self._job.guarantee is Guarantee.AT_MOST_ONCE:
            self._lives += 1
            for inlet in self._inlets.values():
                inlet.forget()
            for outlet in self._outlets.values():
                outlet.reset()
        self._prepare()
        if has_begun:
            self._settle(self._running())

    # -- rows ----------------------------------------------------------------------------------------------------------

    def feed(self, stream: str, *rows: Fed) -> None:
        """Give rows to a stream, all in one epoch, and wait until all results are emitted.

        A row is a dict with all columns of the source. It may also have `_key`, `_partition`, `_timestamp` and
        `_headers` of a Kafka record, or `_topic`, `_timestamp` and `_retained` of an MQTT message. A text or bytes are
        a raw record of the topic or file, even if it cannot be parsed.
        """
        self.feed_all({stream: rows})

    def feed_all(self, rows: Mapping[str, Sequence[Fed]]) -> None:
        """Give rows to several streams, all in one epoch, as `feed` does."""
        self._require_entered()
        for stream, fed in rows.items():
            if stream not in self._inlets:
                raise Refused(
                    f"the job has no stream {stream!r}",
                    where=self._where,
                    fix=f"its streams are {', '.join(map(repr, self._inlets))}",
                )
            if not fed:
                raise Refused(f"no row is given to stream {stream!r}", where=self._where, fix="give at least one")
        times = [self._now]
        for stream, fed in rows.items():
            self._inlets[stream].put(fed, self._now)
            times += self._inlets[stream].times(fed, self._times.columns.get(stream, ()))
        if self._follows_rows:
            self._set_clock(max(times))
        self._settle(self._running())  # after the rows are in place: the first epoch takes them

    def set_table(self, table: str, *rows: Row) -> None:
        """Give a table other rows: the next epoch uses them."""
        self._require_entered()
        if table not in self._tables:
            raise Refused(
                f"the job has no table {table!r}",
                where=self._where,
                fix=f"its tables are {', '.join(map(repr, self._tables)) or 'none'}",
            )
        before, self._tables[table] = self._tables[table], list(rows)
        try:
            self._write_tables(plan(self._job).logical)
        except Refused:
            self._tables[table] = before
            raise
        if self._run is not None:
            self._run.read_tables_again()

    # -- time ----------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The time of the harness."""
        return self._now

    def advance(self, by: timedelta) -> None:
        """Let time pass, at once and not in steps: a timer that sets itself again fires once."""
        self.advance_to(self._now + by)

    def advance_to(self, moment: datetime) -> None:
        """Move the clock to this time, and event time too, as if every stream had received an event of this time.

        The watermark is then this time less the longest `lateness` of the job, unless it was further already.
        """
        self._require_entered()
        _require_zone(moment, self._where)
        if moment < self._now:
            raise Refused(
                f"time does not go back: it is {self._now.isoformat()}, and {moment.isoformat()} is before",
                where=self._where,
                fix="feed rows with their own times; late rows need no earlier clock",
            )
        self._set_clock(moment)
        running = self._running()
        if running.pulse is not None:
            write_pulse(running.pulse, _as_ms(moment - self._times.lateness))
        self._settle(running)

    # -- results -------------------------------------------------------------------------------------------------------

    def rows(self, output: str) -> list[dict[str, Any]]:
        """The rows of an output since the last call; dead letters are the output `dead-letters`."""
        return self._outlet(output).new_rows()

    def all_rows(self, output: str) -> list[dict[str, Any]]:
        """All rows of an output so far."""
        return self._outlet(output).all_rows()

    def state(self, step: str) -> dict[tuple[Any, ...], Any]:
        """The state of a step, by key, as `get_state` returns it."""
        return dict(get_state(self._running().job, step, checkpoint=str(self._checkpoint)))

    # -- how it is done ------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Refuse a job that cannot run here, and prepare all for the first epoch."""
        planned = plan(self._job)
        refusal = planned.refusal()
        if refusal is not None:
            raise refusal
        _open_driver(self._where)
        self._times = _times_of(planned.logical)
        self._exchanged_job = self._exchanged(planned.logical, planned.physical.state_partitions)
        self._write_tables(planned.logical)

    def _running(self) -> SteppedRun:
        """The running job. It starts with the first call that needs it, not with an empty epoch."""
        self._require_entered()
        if self._run is None:
            assert self._exchanged_job is not None
            self._has_begun = True
            checkpoint = str(self._checkpoint)
            options = Options(checkpoint=checkpoint, log_file=_log_file())
            started = launch(self._exchanged_job, options, stepper=self._stepper, topic_ids=self._make_topic_ids)
            assert isinstance(started, SteppedRun)
            self._run = started
            self._require_time(started)
        return self._run

    def _make_topic_ids(self, checkpoint: Checkpoint, planned: Plan, compiled: Compiled) -> TopicIds:
        """The comparison of topics: the harness reads files, and no topics."""
        return make_topic_ids(checkpoint, planned, compiled)

    def _require_time(self, running: Run) -> None:
        if self._follows_rows and not self._times.are_seen and (running.goes_by_clock or self._times.has_max_ahead):
            self._stop()
            raise Refused(
                "the job uses the clock, and its event time is not a column of a source: the harness cannot know the"
                " time",
                where=self._where,
                fix="set it: Harness(job, now=datetime(2026, 1, 1, 12, tzinfo=UTC))",
            )

    def _require_entered(self) -> None:
        if self._exchanged_job is None:
            raise Refused(
                "the job does not run: it has failed, or the harness was not entered",
                where=self._where,
                fix="use it as `with Harness(job) as harness:`; after a failure harness.restart() repeats the epoch",
            )

    def _exchanged(self, graph: LogicalGraph, tasks: int) -> Job:
        """The job with our own sources, tables and sinks, and with a time that only this harness moves."""
        steps = {id(node.step): self._exchanged_step(node, tasks) for node in graph.nodes}
        streams = {node.name for node in graph.nodes if isinstance(node.step, Read)}
        self._inlets = {name: inlet for name, inlet in self._inlets.items() if name in streams}
        sinks = {id(node.step.sink): steps[id(node.step)] for node in graph.nodes if isinstance(node.step, Write)}

        def dead_letter_sink(sink: Sink) -> Sink:
            write = sinks[id(sink)]
            assert isinstance(write, Write)
            return write.sink

        # The plan has checked the guarantee that the user declared. Here each epoch is seen once, under any guarantee.
        return rebuild(
            graph.job,
            name=graph.job.name,
            exchange=lambda step: steps[id(step)],
            letters=dead_letter_sink,
            guarantee=self._guarantee,
            mode=Mode.MICRO_BATCH,
        )

    def _exchanged_step(self, node: Node, tasks: int) -> Step:
        step = node.step
        if isinstance(step, Read):
            known = self._inlets.get(node.name)
            if known is None or known.source != step.source:
                known = make_inlet(node, step.source, self._place / "in" / f"{len(self._inlets)}-{uuid4().hex[:8]}")
                self._inlets[node.name] = known
            return replace(step, source=known.fed)
        if isinstance(step, ReadTable):
            path = str(self._table_file(node.name))
            rows = FileTable(path=path, format="parquet", schema=as_ddl(step.rows.columns(node.where)))
            return replace(step, rows=rows, refresh=_NEVER)
        if isinstance(step, Write):
            return self._exchanged_write(node.name, step)
        if isinstance(step, Timed):
            # Only the harness lets time pass without events; idle sources never do here.
            return replace(step, time=replace(step.time, idle=_NEVER))
        if isinstance(step, FanOut):
            return replace(step, deadline=max(step.deadline, _PATIENCE))
        if isinstance(step, Keyed):
            return replace(step, tasks=1)  # each task would open and close files of its own in every epoch
        if isinstance(step, Exchanged) and step.tasks is None and step.exchange is not None:
            return replace(step, tasks=tasks)  # as many copies of a broadcast as in production
        return step

    @property
    def _guarantee(self) -> Guarantee:
        """The guarantee under which the job runs here."""
        return Guarantee.AT_LEAST_ONCE

    def _exchanged_write(self, output: str, write: Write) -> Write:
        outlet = self._outlets.setdefault(output, Outlet())
        return replace(write, sink=KeptSink(write.sink, outlet), guarantee=None)

    def _write_tables(self, graph: LogicalGraph) -> None:
        from pyarrow import parquet

        tables = {node.name: node for node in graph.nodes if isinstance(node.step, ReadTable)}
        unknown = [name for name in self._tables if name not in tables]
        missing = [name for name in tables if name not in self._tables]
        if unknown or missing:
            told = (
                f"the job has no table {unknown[0]!r}" if unknown else f"the test gives no rows to table {missing[0]!r}"
            )
            example = ", ".join(f"{name!r}: [...]" for name in tables)
            raise Refused(told, where=self._where, fix=f"Harness(job, tables={{{example}}})")
        for name, node in tables.items():
            assert isinstance(node.step, ReadTable)
            columns = as_struct(as_ddl(node.step.rows.columns(node.where)))
            rows = [fitted(row, columns, where=node.where) for row in self._tables[name]]
            file = self._table_file(name)
            file.parent.mkdir(exist_ok=True)
            aside = file.with_name(f".{file.name}")
            parquet.write_table(as_arrow(rows, columns), aside)
            aside.replace(file)

    def _table_file(self, name: str) -> Path:
        return self._place / "tables" / f"{name}.parquet"

    def _settle(self, running: SteppedRun) -> None:
        try:
            running.settle()
        except LockgateError:
            # An epoch that failed is not committed: forget its rows. The next run repeats the whole epoch.
            self._run = self._exchanged_job = None
            _remove_pulse(running)
            done = max(Checkpoint(root=str(self._checkpoint)).epochs("commits"), default=-1)
            for outlet in self._outlets.values():
                outlet.drop_behind(done)
            raise
        if self._follows_rows:
            watermark_ms = Checkpoint(root=str(self._checkpoint)).past().watermark_ms
            self._set_clock(max(self._now, EPOCH + _MILLISECOND * watermark_ms + self._times.lateness))

    def _stop(self) -> None:
        running, self._run, self._exchanged_job = self._run, None, None
        if running is not None:
            running.stop()
            _remove_pulse(running)

    def _outlet(self, output: str) -> Outlet:
        if output not in self._outlets:
            raise Refused(
                f"the job has no output {output!r}",
                where=self._where,
                fix=f"its outputs are {', '.join(map(repr, self._outlets))}",
            )
        return self._outlets[output]

    def _set_clock(self, moment: datetime) -> None:
        self._now = moment
        # Epochs that follow each other automatically may have taken some milliseconds.
        self._stepper.now_ms = max(self._stepper.now_ms, _as_ms(moment))

    @property
    def _place(self) -> Path:
        assert self._directory is not None
        return self._directory

    @property
    def _checkpoint(self) -> Path:
        return self._place / f"checkpoint-{self._lives}"


# The times in rows


@dataclass(frozen=True)
class _Times:
    """The columns that have the event time of a job."""

    columns: Mapping[str, tuple[str, ...]]  # of the rows of a stream, by its name
    are_seen: bool  # do they include every event time of the job?
    lateness: timedelta  # the longest
    has_max_ahead: bool


def _times_of(graph: LogicalGraph) -> _Times:
    columns: dict[str, tuple[str, ...]] = {}
    names = {id(node.step): node.name for node in graph.nodes}
    times = [node.step for node in graph.nodes if isinstance(node.step, Timed) and not node.step.time.is_arrival]
    are_seen = True
    for step in times:
        for read, column in _columns_at_sources(step.inputs[0], step.time.column):
            if read is None:
                are_seen = False
            else:
                columns[names[id(read)]] = (*columns.get(names[id(read)], ()), column)
    return _Times(
        columns=columns,
        are_seen=are_seen,
        lateness=max((step.time.lateness for step in times), default=timedelta(0)),
        has_max_ahead=any(step.time.max_ahead is not None for step in times),
    )


def _columns_at_sources(step: Step, column: str) -> Iterator[tuple[Read | None, str]]:
    """The sources that have this column unchanged, each with its name there; None if a step computes it."""
    if isinstance(step, Read):
        yield step, column
    elif isinstance(step, Merge | Where | Part | Exchanged | Timed):
        for before in step.inputs:
            yield from _columns_at_sources(before, column)
    elif isinstance(step, TableJoin):
        yield from _columns_at_sources(step.inputs[0], column)
    elif isinstance(step, Select) and (column in step.columns or step.expressions.get(column, "").isidentifier()):
        yield from _columns_at_sources(step.inputs[0], step.expressions.get(column, column))
    else:
        yield None, column


# The machine


@lru_cache(maxsize=1)
def _log_file() -> Path:
    """The log of this process's Spark; it outlives a harness, and is removed when the process ends."""
    place = Path(tempfile.mkdtemp(prefix="lockgate-harness-log-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place / "spark.log"


def _open_driver(where: str) -> None:
    """Make sure that this process has a local Spark driver: tasks read files of this machine."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None:
        wanted = SessionPlan(app="lockgate harness", master=None, jars=(), log_file=_log_file())
        context = open_session(wanted).sparkContext
    if not is_local(context):
        raise Refused(
            f"the Spark session of this process runs on a cluster, {context.master}",
            where=where,
            fix="stop that session first, or run the test in a process of its own",
        )


def _remove_pulse(running: Run) -> None:
    if running.pulse is not None:
        running.pulse.unlink(missing_ok=True)


def _as_ms(moment: datetime) -> int:
    return (moment - EPOCH) // _MILLISECOND


def _require_zone(moment: datetime, where: str) -> None:
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise Refused(
            f"{moment!r} is not a time with its zone", where=where, fix="datetime(2026, 1, 1, 12, tzinfo=UTC)"
        )
