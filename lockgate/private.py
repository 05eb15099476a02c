"""Files for their owner alone: directories that hold a job's data, and a cache whose files are run.

    make_private      a directory that is created here is open to its owner alone (0700). An existing one stays as it
                      is, because its owner may share it on purpose. `warn_if_open` then says so, with the fix
    own_temporary     a directory of this user in the temporary directory, for names that others can guess
    who_may_change    a file that is run is only as safe as every directory that leads to it

Root is trusted, and so is a group without another member: on many systems each user has a group of the same name, and
creates files that it may write to.
"""

from __future__ import annotations

import grp
import logging
import os
import pwd
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from lockgate.errors import BadMachine

log = logging.getLogger(__name__)

FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700


def make_private(directory: Path) -> None:
    """Create a directory that only its owner may read; an existing one stays as it is."""
    if not directory.is_dir():
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=_DIRECTORY_MODE, exist_ok=True)


def own_temporary() -> Path:
    """A directory in the temporary directory in which only this user creates files; the same one for all processes."""
    place = Path(tempfile.gettempdir()) / f"lockgate-{os.getuid()}"
    with suppress(FileExistsError):
        place.mkdir(mode=_DIRECTORY_MODE)
    facts = place.lstat()  # a link could lead to files of this user that another one chose
    is_ours = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid()
    if not is_ours or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BadMachine(
            "another user can change the files of this user's temporary directory",
            where=str(place),
            fix="remove it, or set TMPDIR to a directory of your own",
        )
    return place


def private_opener(path: str, flags: int) -> int:
    """For `open`: a file that is created belongs to its owner alone."""
    return os.open(path, flags, FILE_MODE)


def warn_if_open(directory: Path, what: str) -> None:
    """Warn if every user of this machine may read a directory."""
    if is_open(directory):
        log.warning(
            "%s is in %s, where every user of this machine can read it; fix: chmod 700 %s", what, directory, directory
        )


def is_open(directory: Path) -> bool:
    """May every user of this machine open a file of a directory, if its name is known or easy to guess?"""
    try:
        here = directory.resolve()
        return all(place.stat().st_mode & stat.S_IXOTH for place in (here, *here.parents))
    except OSError:
        return False


def who_may_change(file: Path) -> str | None:
    """What lets another user change a file, or put another one in its place; None if nothing does."""
    for place in _way_to(file):
        facts = place.stat()
        if facts.st_uid not in (0, os.getuid()):
            return f"{place} belongs to user {_user(facts.st_uid)}"
        if stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_ISVTX:
            continue  # as in /tmp: there users may only replace their own files
        if facts.st_mode & stat.S_IWOTH:
            return f"every user may write to {place}"
        if facts.st_mode & stat.S_IWGRP and not _is_own_group(facts.st_gid):
            return f"group {_group(facts.st_gid)} may write to {place}"
    return None


def _way_to(file: Path) -> Iterator[Path]:
    """The directories that lead to a file, and those in which a link on the way could be put elsewhere."""
    # Without a link the two are the same, and each directory is looked at once.
    yield from dict.fromkeys(place for here in (file.resolve(), file.absolute()) for place in (here, *here.parents))


def _is_own_group(number: int) -> bool:
    if number == 0:
        return True
    try:
        me, group = pwd.getpwuid(os.getuid()), grp.getgrgid(number)
    except KeyError:
        return False
    return number == me.pw_gid and group.gr_name == me.pw_name and {*group.gr_mem} <= {me.pw_name}


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
