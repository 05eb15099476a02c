"""Named places where a process may die: nothing happens there until a test or a proof arms one.

The environment of the driver arms a fault (`LOCKGATE_FAULTS`, a JSON list). The fault travels to the workers with the
work, because a worker inherits the environment of its cluster and not of the driver. An unarmed `reach` is one look at
an empty dictionary.

    action      what dies
    kill        this process, at once (SIGKILL): a driver, or the Python worker of a task
    stop        nothing: the process is stopped (SIGSTOP) and may wake up much later, as a zombie
    kill-jvm    the JVM above a Python worker: its executor, or the driver's JVM if tasks run inside it

`hit` is the number of the passing at which the fault happens. `mark` names a file, so that the fault happens only once
in all processes together: a task that died is retried, and would die forever. `gate` names a file, too: while that file
does not exist, nothing happens and no passing counts. So one process can be armed for several faults, one after the
other.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

VARIABLE = "LOCKGATE_FAULTS"


class FaultPoint(Enum):
    """The steps of an epoch, in their order; the first word names the side that passes them."""

    CLAIM = "driver: the claim is written, not yet committed"
    BEGIN = "driver: older writers are fenced"
    RECOVERY = "driver: older writers are fenced, in the first epoch of a run or a repeated try"
    LEDGER_READ = "driver: the ledger is read"
    STAGED = "driver: other systems have staged their rows"
    RECEIVE = "task: rows are in hand, and nothing is done with them: no state is touched, no permit is asked for"
    STATE_UPDATE = "task: state is updated, its rows are not yet out"
    ASIDE = "driver: rows that tasks put aside are counted, no row of the epoch is written"
    SENT = "driver: an output without a transaction has its rows, the epoch is not yet done"
    PERMIT = "task: the permit is given, partitions are not yet added"
    ADD = "task: partitions are added to the transaction, nothing is written"
    HALF = "task: some rows are written"
    EMIT = "task: all rows of the task are written, the vote is not yet cast"
    VOTES = "driver: all votes are in and add up"
    MARKER = "driver: the marker is written"
    BEFORE_END = "driver: just before the end of the transaction"
    AFTER_END = "driver: the transaction is committed"
    PUBLISH = "driver: it is decided; before each other system publishes, and when all have"
    BEFORE_SPARK_COMMIT = "driver: the epoch is done, Spark has not yet logged it"

    @property
    def is_in_task(self) -> bool:
        """Does a worker pass it?"""
        return self.value.startswith("task")


@dataclass(frozen=True)
class Fault:
    """What happens at a point."""

    point: str  # the name of a FaultPoint
    action: str  # kill, stop, kill-jvm
    hit: int = 1
    mark: str | None = None
    gate: str | None = None


_armed: dict[str, list[Fault]] = {}
_hits: dict[Fault, int] = {}


def arm(faults: Iterable[Fault]) -> None:
    """Arm these faults in this process, and no others."""
    wanted: dict[str, list[Fault]] = {}
    for fault in faults:
        wanted.setdefault(FaultPoint[fault.point].name, []).append(fault)
    if wanted != _armed:
        _armed.clear()
        _armed.update(wanted)
        _hits.clear()


def armed() -> tuple[Fault, ...]:
    """The faults that are armed here, to be sent along with work."""
    return tuple(fault for faults in _armed.values() for fault in faults)


def reach(point: FaultPoint) -> None:
    """Pass a point."""
    if _armed:
        for fault in _armed.get(point.name, ()):
            _pass(fault)


def as_environment(faults: Iterable[Fault]) -> dict[str, str]:
    """The variable that arms a driver before its start."""
    return {VARIABLE: json.dumps([asdict(fault) for fault in faults])}


def _pass(fault: Fault) -> None:
    if fault.gate is not None and not Path(fault.gate).exists():
        return
    _hits[fault] = _hits.get(fault, 0) + 1
    if _hits[fault] != fault.hit:
        return
    if fault.mark is not None:
        try:
            with Path(fault.mark).open("x", encoding="utf-8") as mark:
                mark.write(f"{os.getpid()}\n")
        except FileExistsError:
            return
    if fault.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.action == "stop":
        # To this thread: another thread could take a signal for the process, and this one would pass the point.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    elif fault.action == "kill-jvm":
        os.kill(_parent_of(os.getppid()), signal.SIGKILL)  # worker <- daemon <- JVM
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        raise ValueError(f"no such fault: {fault.action}")


def _parent_of(process: int) -> int:
    # The name of the command, between brackets, may contain anything; the parent is the second word after it.
    return int(Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])


if VARIABLE in os.environ:
    arm(Fault(**fault) for fault in json.loads(os.environ[VARIABLE]))
