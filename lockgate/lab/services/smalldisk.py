"""A disk to fill: a file system in memory, mounted for a while. Linux lets only root mount one."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lockgate.errors import BadMachine

_FIX = "run it as root, or omit the fault"


@contextmanager
def small_disk(directory: Path, *, size_mib: int) -> Iterator[None]:
    """Let a directory be a disk of its own of this size; what is in it is gone afterwards."""
    directory.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={size_mib}m,mode=700", "tmpfs", str(directory))
    try:
        yield
    finally:
        # Lazily: a process with an open file there keeps it, and no new process finds it.
        _run("umount", "--lazy", str(directory))


def remove_left_disks(below: Path) -> None:
    """Remove the disks of a killed process below a directory: otherwise the directory cannot be removed."""
    # A blank in a name is written as \\040 there.
    lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    places = [Path(line.split()[1].replace("\\040", " ")) for line in lines if line.startswith("tmpfs ")]
    for place in places:
        if below.resolve() in place.parents:
            _run("umount", "--lazy", str(place))


def why_no_small_disk() -> str:
    """Why there can be no such disk on this machine; empty where there can."""
    with tempfile.TemporaryDirectory() as place:
        try:
            with small_disk(Path(place), size_mib=1):
                return ""
        except BadMachine as error:
            return error.what


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise BadMachine(f"there is no {command[0]} on this machine", where=command[-1], fix=_FIX) from None
    if done.returncode != 0:
        said = " ".join(done.stderr.split()) or f"status {done.returncode}"
        raise BadMachine(f"no file system in memory can be mounted here: {said}", where=command[-1], fix=_FIX)
