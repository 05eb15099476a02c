"""Write checkpoints on this machine's disk without a process for every file.

Without its native library, Hadoop sets permissions with `chmod` and looks for links with `readlink`, each a process of
its own; and PySpark does not bring that library. Spark writes a checkpoint file aside and renames it: five processes
for each, about a hundred for an epoch with state. LocalFiles.java, beside this file, lets Java do both. Everything else
(what is written, in which order, checksums, how a rename replaces) stays with Hadoop's own code.

The class changes how fast an epoch is, never what it does. If it cannot be compiled or kept, Hadoop's own is used.
"""

from __future__ import annotations

import logging
from pathlib import Path

from lockgate.errors import BadMachine
from lockgate.provision.compiling import compiled
from lockgate.provision.java import Java

LOCAL_FILES = {"spark.hadoop.fs.AbstractFileSystem.file.impl": "lockgate.LocalFiles"}

log = logging.getLogger(__name__)


def local_files(java: Java) -> Path | None:
    """The jar with the class of LOCAL_FILES, or None if it cannot be compiled or kept."""
    try:
        return compiled(java, Path(__file__).with_name("LocalFiles.java"))
    except BadMachine as error:
        log.warning("checkpoints on this disk are written by Hadoop's own class, which takes longer: %s", error)
        return None
