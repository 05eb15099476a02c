"""What disks do to a checkpoint: they are full, or return less or something else than was written.

A job that cannot continue from what it finds has to say so and stop: then the file is restored, as from a copy, and the
job runs again. A job that continues is judged by what it delivers.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from lockgate.lab.rig.drivers import KILL_LIMIT
from lockgate.lab.rig.faults import Strike
from lockgate.lab.rig.troubles.processes import kill_driver
from lockgate.lab.rig.troubles.scene import Scene

_LIMIT_SECONDS = 180.0
_FULL_SECONDS = 20.0
_PIECE_BYTES = 1 << 16


def fill_disk(scene: Scene, strike: Strike) -> str | None:
    """Leave no byte free below the checkpoint until the job has given up, or has stood still for a while."""
    driver = scene.running
    if scene.drivers.checkpoint is None or driver is None:
        return None
    filler = scene.drivers.checkpoint.parent / "filler"
    try:
        size = _fill(filler)
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.process.wait(timeout=_FULL_SECONDS)
    finally:
        filler.unlink(missing_ok=True)
    return f"the checkpoint's disk, {size >> 10:,} KiB were free"


def truncate_checkpoint(scene: Scene, strike: Strike) -> str | None:
    """The newest file loses its second half."""
    return _damage(scene, strike, lambda data: data[: len(data) // 2])


def flip_checkpoint(scene: Scene, strike: Strike) -> str | None:
    """A bit of the newest file is another one."""

    def flip(data: bytes) -> bytes:
        place = scene.rng.randrange(len(data))
        return data[:place] + bytes([data[place] ^ 1 << scene.rng.randrange(8)]) + data[place + 1 :]

    return _damage(scene, strike, flip)


def _damage(scene: Scene, strike: Strike, change: Callable[[bytes], bytes]) -> str | None:
    if scene.drivers.checkpoint is None or kill_driver(scene, strike) is None:
        return None
    # The JVM of a driver that was killed may still write.
    scene.drivers.mark.kill(KILL_LIMIT)
    file = _newest(scene.drivers.checkpoint / strike.point.lower())
    if file is None:
        return None
    whole, epochs = file.read_bytes(), scene.drivers.epochs()
    file.write_bytes(change(whole))
    driver = scene.drivers.start({})
    try:
        scene.wait(
            lambda: not driver.is_running or scene.drivers.epochs() > epochs + 1,
            "that the job stops or goes on",
            seconds=_LIMIT_SECONDS,
        )
        end = "stopped" if not driver.is_running else "went on"
    finally:
        if not driver.is_running:
            file.write_bytes(whole)
    return f"{file.relative_to(scene.drivers.checkpoint)}; the job {end}"


def _newest(directory: Path) -> Path | None:
    """The file of a directory that was written last; those that only guard others are left alone."""
    files = [file for file in directory.rglob("*") if file.is_file() and not file.name.startswith(".")]
    whole = [file for file in files if file.stat().st_size > 1 and file.name != "metadata"]
    return max(whole, key=lambda file: (file.stat().st_mtime_ns, file.name), default=None)


def _fill(file: Path) -> int:
    """Write until nothing more fits; how much it was."""
    size, piece = 0, _PIECE_BYTES
    with file.open("wb", buffering=0) as out:
        while piece:
            try:
                size += os.write(out.fileno(), b"\0" * piece)
            except OSError:
                piece //= 2
    return size
