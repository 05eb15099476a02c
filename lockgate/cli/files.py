"""The commands about the files of a FileSink: compact.

`compact` merges many small files into few large ones, for all jobs that write to a directory, also while they run.
Readers that follow manifests see the same rows before, during and after. The old files stay for a while, for readers
that have started; a later compaction deletes them. You can stop it at any time: it removes what it had not published.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillRunning
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from lockgate.connectors.files.size import as_size
from lockgate.errors import BadJob, Failed, Refused
from lockgate.stopping import stoppable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lockgate.connectors.files.compaction import Compaction, Limits, Prospect
    from lockgate.connectors.files.filesystem import System

_TARGET_SIZE = "128 MB"
_LOG = Path(".lockgate") / "logs" / "files-compact.spark.log"
_LOOK_EVERY_SECONDS = 0.5
_WORD_EVERY_SECONDS = 5.0


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands of this group."""
    group = subparsers.add_parser(
        "files", help="the files of a FileSink", description="The directory that an exactly-once FileSink writes to."
    )
    commands = group.add_subparsers(title="commands", metavar="COMMAND", required=True)

    compact = commands.add_parser(
        "compact",
        help="merge small files into large ones",
        description="Merge the small files of a FileSink's directory, also while jobs write to it and readers read "
        "from it. Replaced files are deleted by a later compaction, when --grace is over.",
    )
    compact.add_argument("directory", metavar="DIR", help="the path of a FileSink, on a local disk or on hdfs://")
    compact.add_argument(
        "--target-size", default=_TARGET_SIZE, metavar="SIZE", help=f"about how large files become; {_TARGET_SIZE}"
    )
    compact.add_argument(
        "--smaller-than", metavar="SIZE", help="which files are small; default: half of the target size"
    )
    compact.add_argument(
        "--grace", default="1 hour", metavar="DURATION", help="how long replaced files stay for readers; 1 hour"
    )
    compact.add_argument("--dry-run", action="store_true", help="only say what would be done")
    compact.add_argument("--json", action="store_true", help="print facts for programs")
    compact.set_defaults(run=run_compact)


def run_compact(arguments: argparse.Namespace) -> int:
    """Merge the small files of every job in a directory."""
    from lockgate.connectors.files.compaction import foresee
    from lockgate.connectors.files.filesystem import open_system

    def tell(line: str) -> None:
        print(line, file=sys.stderr if arguments.json else sys.stdout, flush=True)

    limits = read_limits(arguments)
    where = f"directory {arguments.directory}"
    spark = None
    if arguments.directory.startswith("hdfs:"):  # a local one is read without Spark, others are refused
        tell("starting Spark")
        spark = _open_spark()
    system = open_system(arguments.directory, spark, where)
    prospects = {job: foresee(system, job, limits, now=_now()) for job in find_jobs(system, where)}
    for job, prospect in prospects.items():
        tell(f"job {job}: {describe(prospect)}")
    done: dict[str, Compaction] = {}
    if not arguments.dry_run:
        if spark is None:
            tell("starting Spark")
            spark = _open_spark()
        for job in prospects:
            done[job] = _compact(spark, system, job, limits, where, tell)
            tell(f"job {job}: {_outcome(done[job])}")
    if arguments.json:
        facts = {
            "directory": system.root,
            "dry_run": arguments.dry_run,
            "jobs": {
                job: {"foreseen": asdict(prospect), "done": asdict(done[job]) if job in done else None}
                for job, prospect in prospects.items()
            },
        }
        print(json.dumps(facts, indent=2))
    elif arguments.dry_run:
        tell("nothing was done; omit --dry-run")
    return 0


def read_limits(arguments: argparse.Namespace) -> Limits:
    """Which files are merged, the size of merged files, and how long the old ones stay."""
    from lockgate.connectors.files.compaction import Limits
    from lockgate.connectors.files.size import as_bytes
    from lockgate.dataflow.duration import as_duration

    try:
        roll_bytes = as_bytes(arguments.target_size, of="--target-size")
        given = arguments.smaller_than
        smaller_bytes = max(1, roll_bytes // 2) if given is None else as_bytes(given, of="--smaller-than")
        grace = as_duration(arguments.grace, of="--grace", is_zero_allowed=True)
    except BadJob as error:
        raise Refused(error.what, where="command line", fix=error.fix) from None
    if smaller_bytes > roll_bytes:
        raise Refused(
            f"files smaller than {given} would be merged into files of {arguments.target_size}, again and again",
            where="command line",
            fix="give --smaller-than a size up to --target-size",
        )
    return Limits(smaller_bytes=smaller_bytes, roll_bytes=roll_bytes, grace=grace)


def find_jobs(system: System, where: str) -> list[str]:
    """The jobs with files in a directory; Refused if it is not that of a FileSink."""
    from lockgate.connectors.files.manifestlog import logs_in

    try:
        is_there = system.exists("")
        jobs = [job for job, log in logs_in(system).items() if log.read().entry is not None]
    except OSError as error:
        raise Refused(f"it cannot be read: {error}", where=where, fix="name the directory of a FileSink") from None
    if not is_there:
        raise Refused("there is no such directory", where=where, fix="name the path of a FileSink")
    if not jobs:
        raise Refused(
            "there are no manifests in it, so it is unknown which files count",
            where=where,
            fix="name the path of a FileSink of a job that is declared END_TO_END_EXACTLY_ONCE and has run",
        )
    return jobs


def describe(prospect: Prospect) -> str:
    """The effect of a compaction, in words."""
    if not prospect.small:
        merging = "no small files to merge"
    else:
        size = as_size(prospect.small_bytes)
        merging = f"{prospect.small:,} small files, {size} in all, become about {prospect.written:,}"
    return f"{merging}; {prospect.deleted:,} files that were replaced before can be deleted"


def _compact(
    spark: SparkSession, system: System, job: str, limits: Limits, where: str, tell: Callable[[str], None]
) -> Compaction:
    """Let another thread work, so that this one can show the progress and be stopped."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from lockgate.connectors.files.compaction import compact_in
    from lockgate.failures import first_cause

    end: Future[Compaction] = Future()

    def work() -> None:
        try:
            end.set_result(compact_in(spark, system, job, limits))
        except BaseException as error:  # noqa: BLE001 - told by the other thread
            end.set_exception(error)

    began = told = time.monotonic()
    with stoppable() as go_on:
        threading.Thread(target=work, name="compaction", daemon=True).start()
        while True:
            try:
                return end.result(timeout=_LOOK_EVERY_SECONDS)
            except StillRunning:
                pass
            except (PySparkException, Py4JError) as error:
                raise Failed(
                    f"Spark could not merge the files: {first_cause(str(error))}",
                    where=f"job {job!r}, {where}",
                    fix=f"nothing was changed; see {_LOG}",
                ) from error
            try:
                go_on()
            except KeyboardInterrupt:
                while not end.done():  # repeatedly: between two of its Spark jobs there is nothing to cancel
                    spark.sparkContext.cancelAllJobs()
                    time.sleep(_LOOK_EVERY_SECONDS)
                raise
            if time.monotonic() - told >= _WORD_EVERY_SECONDS:
                told = time.monotonic()
                tell(f"job {job}: {_progress(spark)}{told - began:.0f} s")


def _progress(spark: SparkSession) -> str:
    """The progress of Spark's current jobs."""
    tracker = spark.sparkContext.statusTracker()
    stages = [stage for number in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(number)) is not None]
    if not stages:
        return "at work, "
    return f"{sum(stage.numCompletedTasks for stage in stages)} of {sum(stage.numTasks for stage in stages)} tasks, "


def _outcome(done: Compaction) -> str:
    return f"{done.replaced:,} files became {done.written:,}; {done.deleted:,} that were replaced before are deleted"


def _open_spark() -> SparkSession:
    from lockgate.spark.session import SessionPlan, open_session

    return open_session(SessionPlan(app="lockgate files compact", master=None, jars=(), log_file=_LOG.resolve()))


def _now() -> datetime:
    return datetime.now(UTC)
