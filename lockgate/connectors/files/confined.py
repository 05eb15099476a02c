"""Delete and move files below a directory that others may write to, and never outside of it.

A name that another user chose may lead outside in two ways: by its text (`../victim`, an absolute path), and by a link
on its way. A check of the path before the call is not enough, because a folder can become a link in between. So each
folder on the way is opened from the one above it, and links are not followed. The call then acts in the open folder.
The directory itself may be reached through links: its owner has named it.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class LeadsOutside(OSError):
    """A name does not lie in the directory in which it must lie."""


def parts_of(name: str) -> list[str]:
    """The folders and the file of a name below a directory; LeadsOutside if it can mean something else.

    >>> parts_of("data/job/part-0")
    ['data', 'job', 'part-0']
    >>> [is_inside(name) for name in ("../victim", "/etc/passwd", "a//b", "a/./b", "", "a\\0b", "a\\ud800b")]
    [False, False, False, False, False, False, False]
    """
    parts = name.split("/")
    if "\0" in name or not _is_encodable(name) or any(part in ("", ".", "..") for part in parts):
        raise LeadsOutside(f"{name!r} is not a name below a directory")
    return parts


def is_inside(name: str) -> bool:
    """Is this, as text, the name of something below a directory?"""
    try:
        return bool(parts_of(name))
    except LeadsOutside:
        return False


def _is_encodable(name: str) -> bool:
    """Can the system have a file of this name? It cannot if JSON gave half of a pair."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


def find_link(root: Path, names: Iterable[str]) -> str | None:
    """The first link on the way to one of these names; a missing file is no link."""
    seen: set[str] = set()
    for name in names:
        parts = parts_of(name)
        for length in range(len(parts), 0, -1):
            place = "/".join(parts[:length])
            if place in seen:
                break
            seen.add(place)
            if os.path.islink(f"{root}/{place}"):  # noqa: PTH114 - a snapshot may name a hundred thousand
                return place
    return None


@contextmanager
def folder_of(root: Path, name: str, *, is_made: bool = False) -> Iterator[tuple[int, str]]:
    """The open folder that a name lies in, and its name there; LeadsOutside if a link is on the way."""
    *folders, last = parts_of(name)
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            below = _open(handle, folder, name, is_made=is_made)
            os.close(handle)
            handle = below
        yield handle, last
    finally:
        os.close(handle)


def remove_below(root: Path, name: str, *, is_file: bool = False) -> None:
    """Remove a file, a link, or a folder with its content; nothing if it does not exist.

    Args:
        is_file: raise IsADirectoryError for a folder.
    """
    try:
        with folder_of(root, name) as (folder, last):
            is_folder = stat.S_ISDIR(os.stat(last, dir_fd=folder, follow_symlinks=False).st_mode)
            if not is_folder or is_file:
                os.unlink(last, dir_fd=folder)
                return
            try:
                shutil.rmtree(last, dir_fd=folder)  # follows no link either
            except FileNotFoundError as error:
                os.stat(last, dir_fd=folder, follow_symlinks=False)
                raise OSError(errno.ENOTEMPTY, "another process removes the same folder", name) from error
    except FileNotFoundError:
        return


def move_below(root: Path, name: str, to_root: Path, to: str) -> bool:
    """Move a file to a name below another directory, and make the folders; False if that name is taken."""
    to_root.mkdir(parents=True, exist_ok=True)
    with folder_of(root, name) as (folder, last), folder_of(to_root, to, is_made=True) as (target, new):
        if stat.S_ISLNK(os.stat(last, dir_fd=folder, follow_symlinks=False).st_mode):
            raise LeadsOutside(f"{root}/{name} is a link")
        try:
            os.link(last, new, src_dir_fd=folder, dst_dir_fd=target, follow_symlinks=False)
        except FileExistsError:
            # A network file system may have done it, lost the answer, and asked again.
            source, found = (
                os.stat(one, dir_fd=at, follow_symlinks=False) for one, at in ((last, folder), (new, target))
            )
            if not os.path.samestat(source, found):
                return False
        os.fsync(target)
        os.unlink(last, dir_fd=folder)
    return True


def _open(handle: int, folder: str, name: str, *, is_made: bool) -> int:
    if is_made:
        try:
            os.mkdir(folder, dir_fd=handle)
            os.fsync(handle)
        except FileExistsError:
            pass
    try:
        return os.open(folder, _FOLDER, dir_fd=handle)
    except OSError as error:
        is_link = error.errno in (errno.ELOOP, errno.ENOTDIR) and stat.S_ISLNK(
            os.stat(folder, dir_fd=handle, follow_symlinks=False).st_mode
        )
        if is_link:
            raise LeadsOutside(f"{name!r} leads outside: {folder!r} on its way is a link") from None
        raise
