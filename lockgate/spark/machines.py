"""Check whether the machines of a cluster can do a job's work, before anything is read or written.

One small task for every core that the cluster has given reports what its machine lacks. Without this check the lack
would appear later as an error from the depth of an epoch, or, worse, not at all: state that every machine writes to a
disk of its own looks well until another machine needs it.

    the Python          starts at all, and has the driver's version (Spark itself refuses another one)
    the libraries       those that tasks of this job import
    the checkpoint      if it is a directory of the driver's machine: this machine sees the same directory

Machines that join later are not checked; a task that fails there is retried elsewhere. A master without free workers
would let such a task wait forever, so the limit is five minutes.
"""

from __future__ import annotations

import importlib.util
import secrets
import socket
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lockgate.errors import BadMachine, Refused
from lockgate.failures import first_cause

if TYPE_CHECKING:
    from pyspark import SparkContext

ANSWER_SECONDS = 300.0


@dataclass(frozen=True)
class Lack:
    """What one machine lacks."""

    host: str
    libraries: tuple[str, ...]
    is_blind: bool  # does it not see the directory of the checkpoint?


def check_machines(context: SparkContext, *, libraries: Sequence[str], checkpoint: Path | None) -> None:
    """Refuse a cluster whose machines cannot do the work.

    Args:
        libraries: the names of the modules that tasks import.
        checkpoint: a directory of this machine that tasks write to; None if they write to none.
    """
    if checkpoint is None:
        lacks = _ask(context, libraries, None)
    else:
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        seen = checkpoint.parent / f".seen-{secrets.token_hex(8)}"
        seen.touch()
        try:
            lacks = _ask(context, libraries, seen)
        finally:
            seen.unlink(missing_ok=True)
    if lacks:
        raise refusal(lacks, master=str(context.master), checkpoint=checkpoint)


def refusal(lacks: Iterable[Lack], *, master: str, checkpoint: Path | None) -> Refused:
    """The error that says what each machine lacks, without repetition."""
    lacks = [*lacks]
    missing = sorted({name for lack in lacks for name in lack.libraries})
    if missing:
        hosts = sorted({lack.host for lack in lacks if lack.libraries})
        return BadMachine(
            f"the Python of the cluster's machines lacks {', '.join(missing)}",
            where=f"{', '.join(hosts)}; master {master}",
            fix="install what the job needs there, or send it along: `lockgate package` writes requirements.txt, and "
            "with --environment an archive of it; PYSPARK_PYTHON names another Python of those machines",
        )
    hosts = sorted({lack.host for lack in lacks})
    return Refused(
        f"the checkpoint {checkpoint} lies on a disk that other machines of the cluster do not see, and the job has "
        "state",
        where=f"{', '.join(hosts)}; master {master}",
        fix="put it where all of them see it: --checkpoint hdfs://... or a directory that all have mounted",
    )


def _ask(context: SparkContext, libraries: Sequence[str], seen: Path | None) -> list[Lack]:
    asked = (tuple(libraries), None if seen is None else str(seen))

    def look(_: Iterable[int]) -> Iterator[Lack]:
        yield look_here(*asked)

    count = max(2, context.defaultParallelism)
    tag, is_late = f"lockgate-machines-{secrets.token_hex(4)}", threading.Event()

    def give_up() -> None:
        is_late.set()
        context.cancelJobsWithTag(tag)

    limit = threading.Timer(ANSWER_SECONDS, give_up)
    limit.daemon = True
    context.addJobTag(tag)
    limit.start()
    try:
        found = context.parallelize(range(count), count).mapPartitions(look).collect()
    except Exception as error:
        if is_late.is_set():
            raise BadMachine(
                f"no machine of the cluster has answered within {ANSWER_SECONDS:.0f} s: the master has no free workers,"
                " or none with the requested cores and memory",
                where=f"master {context.master}",
                fix="see in the master's own pages whether workers are there, and what other applications use of them",
            ) from error
        raise BadMachine(
            f"the machines of the cluster cannot run Python for this job: {_cause(str(error))}",
            where=f"master {context.master}, Python {context.pythonExec}",
            fix="they need that Python, in the driver's version, with pandas and pyarrow; PYSPARK_PYTHON names another"
            " path on those machines",
        ) from error
    finally:
        limit.cancel()
        context.removeJobTag(tag)
    return [lack for lack in found if lack.libraries or lack.is_blind]


def _cause(message: str) -> str:
    """Python's last message before it died, if Spark has kept it; else Spark's message."""
    for line in reversed(message.splitlines()):
        if "Error: " in line and not line.lstrip().startswith(("at ", "org.", "java.", "py4j.", "Caused by")):
            return line.strip()
    return first_cause(message)


def look_here(libraries: Sequence[str], seen: str | None) -> Lack:
    """What the machine of this process lacks."""
    missing = tuple(name for name in libraries if not _is_there(name))
    return Lack(socket.gethostname(), missing, is_blind=seen is not None and not Path(seen).exists())


def _is_there(name: str) -> bool:
    with suppress(ImportError):
        return importlib.util.find_spec(name) is not None
    return False
