"""Compaction: many small committed files become few large ones, and readers never see both.

    1  expire    delete what earlier compactions replaced, after its grace period
    2  choose    several small files in the same partition
    3  merge     write their rows to a new directory that no manifest names, make it durable
    4  publish   one manifest, with the ledger unchanged, that names the new files in place of the old ones
    5  prune     remove manifests that no reader needs, and what dead compactions left behind

Step 4 creates the next manifest, as a job does with every epoch; only one writer can. If the job loses, it continues
after the compaction. If the compaction loses, it continues after the job, as long as the files that it merged still
count. A crash between any two steps leaves the old files visible, or the new ones. Replaced files stay for a while,
because a reader may be reading them.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from lockgate.connectors.files.filesystem import System, open_system
from lockgate.connectors.files.manifest import DATA, DataFile, Group, History, Manifest, Replaced
from lockgate.connectors.files.manifestlog import ManifestLog
from lockgate.connectors.files.rows import read_rows, write_rows
from lockgate.connectors.files.size import Size, as_bytes
from lockgate.connectors.files.store import COMPACTED, ROW_BYTES, remove_directory, rows_within, seal, unseal
from lockgate.dataflow.duration import Duration, as_duration
from lockgate.dataflow.schema import quote
from lockgate.errors import BadJob, Failed, InvariantBroken, Refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TRIES = 20
_PLANS = 3
_STAMP = "%Y%m%dT%H%M%SZ"
# A directory of this age belongs to a dead compaction: a living one does not publish after half of it.
_ABANDONED = timedelta(days=1)
_MOST_TASKS = 200
_TASKS_END_SECONDS = 30
_LOOK_EVERY_SECONDS = 0.05


@dataclass(frozen=True)
class Compaction:
    """What a compaction did, in files."""

    replaced: int = 0
    written: int = 0
    deleted: int = 0


@dataclass(frozen=True)
class Prospect:
    """What a compaction would do now: the small files, their bytes, about how many they become, what is deleted."""

    small: int
    small_bytes: int
    written: int
    deleted: int


@dataclass(frozen=True)
class Limits:
    """Which files are merged, into how large ones, and how long the old ones stay."""

    smaller_bytes: int
    roll_bytes: int
    grace: timedelta


@dataclass(frozen=True)
class Target:
    """The place of merged rows, and how they are cut into files."""

    directory: str
    tasks: int
    rows_per_file: int


Merge = Callable[[Group, Target], None]
"""Write the rows of these files to a new directory."""


def compact(
    spark: SparkSession,
    path: str,
    job: str,
    *,
    smaller_than: Size,
    roll: Size = "128 MB",
    grace: Duration = timedelta(hours=1),
) -> Compaction:
    """Merge the small files of a job, also while it runs; a later call deletes old files, after `grace`."""
    where = f"compaction of job {job!r} in {path}"
    limits = Limits(
        smaller_bytes=as_bytes(smaller_than, of="smaller_than"),
        roll_bytes=as_bytes(roll, of="roll"),
        grace=as_duration(grace, of="grace", is_zero_allowed=True),
    )
    if limits.smaller_bytes > limits.roll_bytes:
        raise BadJob(
            f"files smaller than {smaller_than} would be merged into files of {roll}, again and again",
            where=where,
            fix="give smaller_than a size up to that of roll",
        )
    return compact_in(spark, open_system(path, spark, where), job, limits)


def compact_in(spark: SparkSession, system: System, job: str, limits: Limits) -> Compaction:
    """Merge the small files of a job in a file system that is open."""
    where = f"compaction of job {job!r} in {system.root}"
    try:
        return run_compaction(system, job, limits, merge=_spark_merge(spark, system, where))
    except OSError as error:
        raise Failed(
            f"the file system failed: {error}",
            where=where,
            fix="see that the disk has room; committed rows are whole, in the old files or in the new ones",
        ) from error


def foresee(system: System, job: str, limits: Limits, *, now: datetime) -> Prospect:
    """What a compaction would do; changes nothing."""
    history = ManifestLog(system, job).read()
    chosen = _choose(history, limits)
    partitions: dict[tuple[int, str], int] = {}
    for at, group in enumerate(chosen):
        for file in group.files:
            partitions[at, file.partition] = partitions.get((at, file.partition), 0) + file.bytes
    return Prospect(
        small=sum(len(group.files) for group in chosen),
        small_bytes=sum(partitions.values()),
        written=sum(math.ceil(size / limits.roll_bytes) for size in partitions.values()),
        deleted=len(_expired(history, before=now - limits.grace)),
    )


def run_compaction(
    system: System,
    job: str,
    limits: Limits,
    *,
    merge: Merge,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Compaction:
    """The five steps; `merge` is what needs Spark."""
    log = ManifestLog(system, job)
    where = f"compaction, {log.where}"
    for _ in range(_PLANS):
        history = log.read()
        if history.entry is None:
            raise Refused("there are no manifests", where=where, fix="name a job that has run, and its FileSink's path")
        started = now()
        expired = _expire(system, history, before=started - limits.grace, where=where)
        merged = [
            (chosen, _merge(system, _target(job, chosen, history, limits, started), chosen, merge, where))
            for chosen in _choose(history, limits)
        ]
        if not merged and not expired:
            _clean(system, job, log, expired, now=now())
            return Compaction()
        if _publish(log, merged, expired, started=started, now=now, where=where):
            _clean(system, job, log, expired, now=now())
            return Compaction(
                replaced=sum(len(chosen.files) for chosen, _ in merged),
                written=sum(len(group.files) for _, group in merged),
                deleted=len(expired),
            )
        for _, group in merged:  # another compaction replaced the same files; ours were never named
            for directory in {file.directory for file in group.files}:
                remove_directory(system, directory)
    raise Failed(
        f"other compactions replaced the same files {_PLANS} times",
        where=where,
        fix="run one compaction of a directory at a time; nothing is lost",
    )


def _expire(system: System, history: History, *, before: datetime, where: str) -> frozenset[str]:
    """Step 1. They leave the list with the next manifest; until then another compaction tries again to delete them."""
    expired = _expired(history, before=before)
    if both := expired & {file.path for file in history.files}:
        raise InvariantBroken(
            f"{min(both)} counts, and is listed as replaced", where=where, fix="nothing was deleted; report this"
        )
    for path in sorted(expired):
        system.delete(path)
    return expired


def _expired(history: History, *, before: datetime) -> frozenset[str]:
    return frozenset(one.path for one in history.replaced if datetime.fromisoformat(one.since) <= before)


def _choose(history: History, limits: Limits) -> list[Group]:
    """Step 2. Files that would become just as many files stay as they are."""
    chosen = []
    for group in history.groups:
        partitions: dict[str, list[DataFile]] = {}
        for file in group.files:
            if file.bytes < limits.smaller_bytes:
                partitions.setdefault(file.partition, []).append(file)
        files = [
            file
            for small in partitions.values()
            if math.ceil(sum(file.bytes for file in small) / limits.roll_bytes) < len(small)
            for file in small
        ]
        if files:
            chosen.append(replace(group, files=tuple(files)))
    return chosen


def _target(job: str, chosen: Group, history: History, limits: Limits, started: datetime) -> Target:
    known = [file for file in chosen.files if file.rows]
    measured = sum(file.bytes for file in known) / sum(file.rows or 0 for file in known) if known else None
    return Target(
        directory=f"{DATA}/{job}/{COMPACTED}{started:{_STAMP}}-{secrets.token_hex(8)}",
        tasks=min(_MOST_TASKS, math.ceil(sum(file.bytes for file in chosen.files) / limits.roll_bytes)),
        rows_per_file=rows_within(limits.roll_bytes, measured or history.row_bytes or ROW_BYTES),
    )


def _merge(system: System, target: Target, chosen: Group, merge: Merge, where: str) -> Group:
    """Step 3."""
    merge(chosen, target)
    return unseal(system, seal(system, target.directory, chosen), where).group


def _publish(
    log: ManifestLog,
    merged: list[tuple[Group, Group]],
    expired: Collection[str],
    *,
    started: datetime,
    now: Callable[[], datetime],
    where: str,
) -> bool:
    """Step 4. False if files that were merged do not count any more."""
    gone = {file.path for chosen, _ in merged for file in chosen.files}
    new = {chosen.likeness: group.files for chosen, group in merged}
    for _ in range(_TRIES):
        history = log.read()
        if not gone <= {file.path for file in history.files}:
            return False
        moment = now()
        if moment - started > _ABANDONED / 2:
            raise Failed(
                f"the compaction took {moment - started}, and another one may soon treat it as dead",
                where=where,
                fix="nothing was changed; merge less at a time, with a smaller smaller_than",
            )
        if history.entry is None:
            return False
        groups = tuple(
            replace(
                group,
                files=(*(file for file in group.files if file.path not in gone), *new.get(group.likeness, ())),
            )
            for group in history.groups
        )
        since = moment.isoformat(timespec="milliseconds")
        waiting = (
            *(one for one in history.replaced if one.path not in expired),
            *(Replaced(path=path, since=since) for path in sorted(gone)),
        )
        manifest = Manifest(
            sequence=history.sequence + 1,
            entry=history.entry,
            groups=groups,
            is_snapshot=True,
            replaced=waiting,
            row_bytes=history.row_bytes,
        )
        if log.add(manifest):
            return True
    raise Failed(
        f"the next manifest was taken {_TRIES} times by the job",
        where=where,
        fix="run it while fewer epochs are committed; nothing was changed",
    )


def _clean(system: System, job: str, log: ManifestLog, expired: Collection[str], *, now: datetime) -> None:
    """Step 5."""
    log.prune()
    # The directories before the manifests: one that is named in between must not be treated as dead.
    names = [name for name in system.names(f"{DATA}/{job}") if name.startswith(COMPACTED)]
    dead = {f"{DATA}/{job}/{name}" for name in names if _is_dead(name, now)}
    emptied = {DataFile(path=path, bytes=0).directory for path in expired}
    for directory in sorted((dead | emptied) - log.read().directories):
        remove_directory(system, directory)


def _is_dead(name: str, now: datetime) -> bool:
    """Was this directory left by a compaction that died? A name that no compaction gives is ignored."""
    stamp = name.removeprefix(COMPACTED).partition("-")[0]
    try:
        return now - datetime.strptime(stamp, _STAMP).replace(tzinfo=UTC) > _ABANDONED
    except ValueError:
        return False


def _wait_for_tasks(spark: SparkSession) -> None:
    """Spark ends a cancelled job while its tasks still write, and a task creates its directory again.

    Only the scheduler knows such tasks: for Spark's status tracker they have ended with their job. Tasks of other jobs
    count too, so this gives up after a while; a later compaction then removes what was left.
    """
    scheduler = spark.sparkContext._jsc.sc().taskScheduler()
    give_up = time.monotonic() + _TASKS_END_SECONDS
    while time.monotonic() < give_up:
        counts = scheduler.runningTasksByExecutors().valuesIterator()
        running = 0
        while counts.hasNext():
            running += counts.next()
        if not running:
            return
        time.sleep(_LOOK_EVERY_SECONDS)


def _spark_merge(spark: SparkSession, system: System, where: str) -> Merge:
    def merge(chosen: Group, target: Target) -> None:
        try:
            merge_into(chosen, target)
        except BaseException:
            _wait_for_tasks(spark)
            remove_directory(system, target.directory)  # a stopped compaction leaves nothing behind, unlike a dead one
            raise

    def merge_into(chosen: Group, target: Target) -> None:
        from pyspark.sql import functions as F

        rows = read_rows(spark, system, chosen)
        # All rows of a partition in one task, so that they become one file.
        columns = [F.col(quote(name)) for name in chosen.partition_by]
        write_rows(
            rows.repartition(target.tasks, *columns) if columns else rows.coalesce(target.tasks),
            system.uri(target.directory),
            kind=chosen.kind,
            partition_by=chosen.partition_by,
            rows_per_file=target.rows_per_file,
        )
        # The old files will be deleted, so the rows of the new ones are counted.
        found = system.files(target.directory)
        made = replace(chosen, files=tuple(DataFile(path=path, bytes=size) for path, size in found.items()))
        before, after = rows.count(), read_rows(spark, system, made).count()
        if before != after:
            raise InvariantBroken(
                f"{before} rows were merged, {after} were written",
                where=where,
                fix="nothing was changed; report this",
            )

    return merge
