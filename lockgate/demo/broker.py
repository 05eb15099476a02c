"""Services for as long as something is shown: those that run, or some that are stopped again afterwards.

What somebody else has started goes on. What was started here is stopped when the last one who uses it has ended, as two
examples may run at the same time. A file beside the services says so: every borrower holds a lock on it, and in it
stands what a borrower has started. Where nobody holds the lock, what it says is old: whatever runs belongs to somebody.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from typing import TextIO

from lockgate.services.stack import Stack

_KAFKA, _POSTGRES = "kafka", "postgres"


@contextlib.contextmanager
def borrow_services(stack: Stack, tell: Callable[[str], None], *, postgres: bool = False) -> Iterator[bool]:
    """Kafka, and PostgreSQL where it is asked for; whether Kafka belongs to somebody else and goes on afterwards."""
    stack.root.parent.mkdir(parents=True, exist_ok=True)
    with (stack.root.parent / "borrowed").open("a+") as file:
        if _is_alone(file):
            file.truncate(0)
        else:
            fcntl.flock(file, fcntl.LOCK_SH)  # waits while another one starts or stops them
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
                file.truncate(0)  # for one who waits for the lock


def _is_alone(file: TextIO) -> bool:
    """Take the lock where nobody else holds it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _written(file: TextIO) -> set[str]:
    file.seek(0)
    return set(file.read().split())


def _running(stack: Stack) -> set[str]:
    """What runs, if only in part."""
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
        stack.up(postgres=False, progress=tell)  # so that nobody misses it
    elif _KAFKA in running & started:
        tell("stopping Kafka ...")
        stack.kafka.stop()
