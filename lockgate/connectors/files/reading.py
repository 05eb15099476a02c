"""Read committed rows: the files that manifests name, and no others.

A reader sees every epoch whole or not at all, as of the moment when it looks. Files that a compaction replaces in the
meantime stay for its grace period.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from lockgate.connectors.files.filesystem import System, local_path, open_system
from lockgate.connectors.files.manifest import Group, History, merge_groups
from lockgate.connectors.files.manifestlog import logs_in
from lockgate.connectors.files.rows import read_rows
from lockgate.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_files(spark: SparkSession, path: str, *, job: str | None = None) -> DataFrame:
    """Read the committed rows of a directory that a FileSink writes.

    If columns were added over time, older rows have nulls in them.

    Args:
        spark: the session.
        path: the directory.
        job: the job that wrote them; default: all jobs.

    Raises:
        Refused: the directory has no committed epoch.

    >>> from pyspark.sql import SparkSession
    >>> numbers = stream("numbers", MemorySource([(1,), (2,)], value="n INT"))
    >>> job = Job("copy", numbers.to("out", FileSink("copied")), guarantee=Guarantee.END_TO_END_EXACTLY_ONCE)
    >>> done = run(job, until_caught_up=True)
    >>> sorted(row.n for row in read_files(SparkSession.active(), "copied").collect())
    [1, 2]
    """
    system = open_system(path, spark, _where(path))
    groups = _groups(system, path, job)
    if not groups:
        raise Refused(
            "the job has started, but no epoch of it is committed: its columns are not known yet",
            where=_where(path),
            fix="read again when an epoch is committed, even one without rows",
        )
    # The newest way of writing gives the columns their order.
    frames = [read_rows(spark, system, group) for group in reversed(groups)]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def committed_files(path: str, *, job: str | None = None) -> list[str]:
    """The committed files in a local directory, for readers without Spark.

    Files of a partitioned output hold its partition columns too, with two underscores before their names.
    """
    system = open_system(path, None, _where(path))
    root = local_path(path)
    return [f"{root}/{file.path}" for group in _groups(system, path, job) for file in group.files]


def _groups(system: System, path: str, job: str | None) -> tuple[Group, ...]:
    try:
        histories = {name: log.read() for name, log in logs_in(system).items()}
    except OSError as error:
        raise Refused(
            f"{path} cannot be read: {error}", where=_where(path), fix="name a directory that a FileSink wrote"
        ) from error
    begun = {name: history for name, history in histories.items() if history.entry is not None}
    if not begun or (job is not None and job not in begun):
        raise _nothing(path, job, begun)
    return merge_groups(group for name, history in begun.items() if job in (None, name) for group in history.groups)


def _nothing(path: str, job: str | None, begun: dict[str, History]) -> Refused:
    if begun:
        what = f"there are no manifests of job {job!r} in {path}, only of {', '.join(sorted(begun))}"
        return Refused(what, where=_where(path), fix="name one of these jobs, or none for all")
    return Refused(
        f"there are no manifests in {path}",
        where=_where(path),
        fix="name the path of a FileSink of a job that is declared END_TO_END_EXACTLY_ONCE and has run; for a weaker"
        " guarantee use spark.read",
    )


def _where(path: str) -> str:
    return f"files in {path}"
