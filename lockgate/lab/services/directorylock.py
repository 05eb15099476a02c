"""One process at a time in a directory: a lock that opens when its holder dies."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lockgate.errors import Refused


@contextmanager
def locked_directory(home: Path, *, what: str, fix: str) -> Iterator[None]:
    """Hold the directory, and create it if necessary; Refused, in these words, if another process holds it."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(what, where=str(home), fix=fix) from None
        yield
