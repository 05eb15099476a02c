"""Translate what Spark raises into errors that name the user's part, the place and the fix.

The classes of the exceptions, Spark's names for its errors and their order decide, never a text: texts quote events
(lockgate/throwables.py). The first row that matches counts:

    DAMAGE: a file of the state cannot be read    CheckpointDamaged; what else was raised is a consequence
    our own error, carried through Spark          that error
    records that a Kafka source misses            RecordsGone
    a right that a topic denies                   Denied
    a row of PATTERNS                             what the row says
    anything else                                 Failed, with the line of Spark's message that says what happened
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import Any

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.dataflow.job import Job
from lockgate.errors import BadJob, CheckpointDamaged, Failed, LockgateError, Refused, Unreachable
from lockgate.failures import find_error, find_gap, first_cause
from lockgate.planner.plan import Plan
from lockgate.runtime.denials import find_denial
from lockgate.throwables import Throwable

_DAMAGES = (
    "java.io.EOFException",
    "java.lang.NullPointerException",
    "java.util.zip.ZipException",
    "org.apache.hadoop.fs.ChecksumException",
)
_CORRUPTED = "Stream is corrupted"  # the message of the decompressor, which has no exception class of its own
# What Java reports if a file system does not answer, or not yet.
_AWAY = (
    "java.net.ConnectException",
    "java.net.NoRouteToHostException",
    "java.net.SocketTimeoutException",
    "java.net.UnknownHostException",
    "org.apache.hadoop.net.ConnectTimeoutException",
    "org.apache.hadoop.ipc.StandbyException",
    "SafeModeException",
)
_OTHER_STEPS = (
    "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA",
    "STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY",
)
_OTHER_SOURCES = re.compile(r"assertion failed: There are \[\d+\] sources in the checkpoint offsets")
_NO_STREAM = re.compile(r"^Expression\(s\): (.+) (?:is|are) not supported with streaming")


@dataclass(frozen=True)
class Pattern:
    """One of Spark's failures, and its meaning; the texts have {cause}, {job}, {checkpoint} and {log}."""

    matches: Callable[[Sequence[Throwable]], bool]
    error: type[LockgateError]
    what: str
    where: str
    fix: str


def is_damage(raised: Sequence[Throwable]) -> bool:
    """Did Spark find a damaged file of the state? A retry would find the same."""
    behind = list(dropwhile(lambda one: not one.condition.startswith("CANNOT_LOAD_STATE_STORE"), raised))
    return any(one.kind in _DAMAGES or one.message == _CORRUPTED for one in behind[1:])


def _has_other_steps(raised: Sequence[Throwable]) -> bool:
    return any(one.condition.startswith(_OTHER_STEPS) for one in raised)


def _has_other_sources(raised: Sequence[Throwable]) -> bool:
    return any(one.kind == "java.lang.AssertionError" and _OTHER_SOURCES.match(one.message) for one in raised)


DAMAGE = Pattern(
    is_damage,
    CheckpointDamaged,
    what="a file of the state in the checkpoint cannot be read: {cause}",
    where="checkpoint {checkpoint}, state; which file: {log}",
    fix="restore it from a copy of the checkpoint, and check its disk; nothing was delivered from it."
    " Without a copy, start from the beginning: lockgate run --new-life",
)
PATTERNS = (
    Pattern(
        _has_other_steps,
        Refused,
        what="steps with state were added to the job, or removed from it, since its checkpoint was created",
        where="{job}; checkpoint {checkpoint}",
        fix="restore the steps with state as they were; or start from the beginning: lockgate run --new-life",
    ),
    Pattern(
        _has_other_sources,
        Refused,
        what="sources were added to the job, or removed from it, since its checkpoint was created; dead_letters="
        " adds one, too, for events that come again",
        where="{job}; checkpoint {checkpoint}",
        fix="restore the sources, and dead_letters=, as they were; or start from the beginning:"
        " lockgate run --new-life",
    ),
)


def translate(
    causes: Sequence[tuple[BaseException, Sequence[Throwable]]],
    planned: Plan,
    *,
    checkpoint: str,
    log_file: Path,
    deaths: str | None,
) -> LockgateError:
    """The failure of a query in terms that help the user.

    Args:
        causes: what was raised, with the exceptions of the JVM behind each, the first cause first.
        planned: the plan of the job.
        checkpoint: the place that the query continues from.
        log_file: Spark's log.
        deaths: what Python workers died with; None if none did.
    """
    job = planned.job
    for error, raised in causes:
        facts = {
            "cause": first_cause(str(error)),
            "job": f"job {job.name!r}, declared at {job.origin}",
            "checkpoint": checkpoint,
            "log": log_file,
        }
        if is_damage(raised):
            return _error(DAMAGE, facts)
        known = error if isinstance(error, LockgateError) else find_error(str(error)) or find_gap(raised)
        known = known or find_denial(raised, planned)
        if known is not None:
            return known
        for pattern in PATTERNS:
            if pattern.matches(raised):
                return _error(pattern, facts)
    return Failed(
        f"Job {job.name!r} stopped: {first_cause(str(causes[0][0]))}"
        + (f"; Python workers died {deaths}" if deaths else ""),
        where=f"checkpoint {checkpoint}",
        fix=f"see {log_file}; fix the cause, then run the job again: it continues where it stopped",
    )


def _error(pattern: Pattern, facts: dict[str, Any]) -> LockgateError:
    where, fix = pattern.where.format_map(facts), pattern.fix.format_map(facts)
    return pattern.error(pattern.what.format_map(facts), where=where, fix=fix)


@contextmanager
def refusing(job: Job) -> Iterator[None]:
    """Report a query that Spark refuses to start as BadJob."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        why = str(error).splitlines()[0]
        expression = _NO_STREAM.search(why)
        raise BadJob(
            f"Spark refuses the query of job {job.name!r}: {why}",
            where=f"job {job.name!r}, declared at {job.origin}",
            fix=f"remove {expression[1]} from the steps of the job: Spark cannot compute it in a stream"
            if expression
            else "split the job into two, with a topic in between",
        ) from error


@contextmanager
def reaching(checkpoint: Checkpoint | None) -> Iterator[None]:
    """Report a file system of a checkpoint that does not answer as Unreachable, because it may answer later."""
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
            fix="check its address, and whether it runs; then run the job again: it continues where it stopped",
        ) from error
