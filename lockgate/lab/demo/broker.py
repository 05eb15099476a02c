"""Borrow services for a show: use those that run, or start some and stop them afterwards.

Services that another command started continue. Services that a show started stop when their last borrower ends, because
two examples may run at the same time. A file beside the services coordinates this: every borrower holds a lock on it,
and it names what borrowers have started. If no borrower holds the lock, its content is old: the services that run
belong to another command.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from typing import TextIO

from lockgate.lab.services.stack import Stack

_KAFKA, _POSTGRES = "kafka", "postgres"


@contextlib.contextmanager
def borrow_services(stack: Stack, tell: Callable[[str], None], *, postgres: bool = False) -> Iterator[bool]:
    """Borrow Kafka, and PostgreSQL if asked for; yields whether Kafka continues to run afterwards."""
    stack.root.parent.mkdir(parents=True, exist_ok=True)
    with (stack.root.parent / "borrowed").open("a+") as file:
        if _is_alone(file):
            file.truncate(0)
        else:
            fcntl.flock(file, fcntl.LOCK_SH)  # waits while another borrower starts or stops them
        before = _running(stack)
        stack.up(postgres=postgres, progress=tell)
        file.write("".join(f"{part}\n" for part in sorted(_running(stack) - before)))
        file.flush()
        fcntl.flock(file, fcntl.LOCK_SH)
        try:
            yield _KAFKA not in _written(file)
        finally:
            if _is_alone(file):
                _stop(stack, _written(file), tell)
                file.truncate(0)  # for a borrower that waits for the lock


def _is_alone(file: TextIO) -> bool:
    """Take the lock if no other borrower holds it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _written(file: TextIO) -> set[str]:
    file.seek(0)
    return set(file.read().split())


def _running(stack: Stack) -> set[str]:
    """The services that run, at least in part."""
    status = stack.status()
    found = {_POSTGRES} if status.postgres.running else set()
    return found | ({_KAFKA} if any(broker.running for broker in status.kafka.brokers) else set())


def _stop(stack: Stack, started: set[str], tell: Callable[[str], None]) -> None:
    running = _running(stack)
    if running <= started:
        stack.down(progress=tell)
    elif _POSTGRES in running & started:
        tell("stopping PostgreSQL ...")
        stack.postgres.stop()
        stack.up(postgres=False, progress=tell)  # so that it runs for the next borrower
    elif _KAFKA in running & started:
        tell("stopping Kafka ...")
        stack.kafka.stop()
