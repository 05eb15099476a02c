"""Lock a checkpoint: drivers share its directory, and a command that changes it needs it alone.

    a driver             takes a shared lock: two drivers of one job may meet, and the ledger decides between them
    a command            takes an exclusive lock; it is refused while a driver holds one, and a driver that starts
                         while it runs is refused, too

The lock is on the directory itself and ends with its process, however that dies, so there is nothing to clean up.
Forked children release it. Only this machine sees it: on NFS, too, Linux locks a directory only for the machine that
asks. On Hadoop file systems a directory cannot be locked. There `lock_exclusively` locks nothing, and commands ask the
ledger whether a driver runs.

A command ends soon. So a driver that finds one waits a little, and then fails with an error that may pass: its
supervisor restarts it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lockgate.errors import Refused, Unreachable
from lockgate.private import make_private, warn_if_open

_PAUSES_SECONDS = (0.1, 0.4, 1.5)


class CheckpointLock:
    """A directory that this process has locked."""

    def __init__(self, directory: Path, *, is_exclusive: bool) -> None:
        self._handle: int | None = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._handle, (fcntl.LOCK_EX if is_exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(self._handle), directory.stat()):
                raise BlockingIOError(f"{directory} was just replaced by another directory")
        except OSError:
            self.close()
            raise
        os.register_at_fork(after_in_child=self.close)

    def close(self) -> None:
        """Release the lock."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def lock_shared(directory: Path | None, job: str) -> CheckpointLock | None:
    """Hold a checkpoint for a driver, and create it if it is missing; None if it is not on this machine's disk."""
    if directory is None:
        return None
    try:
        held = _held(directory)
        warn_if_open(directory, f"the checkpoint of job {job!r}")
        return held
    except BlockingIOError:
        raise Unreachable(
            f"a command is changing the checkpoint of job {job!r}",
            where=f"checkpoint {directory}",
            fix="wait until the command has ended, then run the job again",
        ) from None
    except OSError as error:
        raise Refused(
            f"the checkpoint of job {job!r} cannot be used: {error}",
            where=f"checkpoint {directory}",
            fix="name a directory to which the job may write",
        ) from None


def _held(directory: Path) -> CheckpointLock:
    for pause in (*_PAUSES_SECONDS, None):
        make_private(directory)
        try:
            return CheckpointLock(directory, is_exclusive=False)
        except (BlockingIOError, FileNotFoundError):  # a command holds it, or is replacing it
            if pause is None:
                raise
            time.sleep(pause)
    raise AssertionError


@contextmanager
def lock_exclusively(directory: Path | None, job: str) -> Iterator[None]:
    """Hold a checkpoint alone; Refused if a driver uses it."""
    if directory is None or not directory.is_dir():
        yield
        return
    try:
        held = CheckpointLock(directory, is_exclusive=True)
    except BlockingIOError:
        raise Refused(
            f"a driver of job {job!r} runs: it holds the checkpoint",
            where=f"checkpoint {directory}",
            fix="stop the driver first; lockgate run --keep-epochs N cleans up while it runs",
        ) from None
    try:
        yield
    finally:
        held.close()


def is_locked(directory: Path) -> bool:
    """Does a driver use a checkpoint now?"""
    try:
        CheckpointLock(directory, is_exclusive=True).close()
    except BlockingIOError:
        return True
    except (FileNotFoundError, NotADirectoryError):
        return False
    return False
