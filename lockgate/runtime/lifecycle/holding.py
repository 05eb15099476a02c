"""Who uses a checkpoint now: drivers hold its directory, and whoever changes it wants to be alone.

    a driver             holds it shared: two drivers of one job may meet, and the ledger settles that
    a command            takes it alone, and is refused while a driver holds it; a driver that starts meanwhile is, too

A lock on the directory itself ends with the process that holds it, however that dies, so nothing is left to be cleaned
up; children that are forked let it go. It is seen on this machine alone: Linux locks a directory of NFS, too, only for
the machine that asks. On Hadoop's file systems nobody can hold a directory: there `alone` knows nothing, and the ledger
is asked whether a driver runs.

A command ends in time. So a driver that finds one waits a little, and then fails in a way that may pass: its supervisor
starts it again.
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


class Hold:
    """A directory in the hands of this process."""

    def __init__(self, directory: Path, *, is_alone: bool) -> None:
        self._handle: int | None = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._handle, (fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(self._handle), directory.stat()):
                raise BlockingIOError(f"{directory} was put in place anew just now")
        except OSError:
            self.close()
            raise
        os.register_at_fork(after_in_child=self.close)

    def close(self) -> None:
        """Let it go."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def hold(directory: Path | None, job: str) -> Hold | None:
    """Hold a checkpoint for a driver, which makes it where it is not there; None where it lies elsewhere."""
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
            fix="name a directory that may be written to",
        ) from None


def _held(directory: Path) -> Hold:
    for pause in (*_PAUSES_SECONDS, None):
        make_private(directory)
        try:
            return Hold(directory, is_alone=False)
        except (BlockingIOError, FileNotFoundError):  # a command has it, or is putting another one in its place
            if pause is None:
                raise
            time.sleep(pause)
    raise AssertionError


@contextmanager
def alone(directory: Path | None, job: str) -> Iterator[None]:
    """Be the only one who uses a checkpoint; Refused where a driver does."""
    if directory is None or not directory.is_dir():
        yield
        return
    try:
        held = Hold(directory, is_alone=True)
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


def is_held(directory: Path) -> bool:
    """Does a driver use a checkpoint at this moment?"""
    try:
        Hold(directory, is_alone=True).close()
    except BlockingIOError:
        return True
    except (FileNotFoundError, NotADirectoryError):
        return False
    return False
