"""The Python that Spark starts on this machine: this one, with the modules that are installed.

Spark puts an archive of PySpark first on the path of every Python process that it starts. Python keeps no byte code for
modules of an archive, so each process compiles PySpark again, and a query starts one for each Python source: about two
seconds of a processor. PySpark is installed as well, with its byte code; a script takes the archive off the path.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import sys
import tempfile
from pathlib import Path

from lockgate.spark.jars import cache_directory, is_safe, make_cache

# What Spark puts in front ends with its own jar.
_SCRIPT = """#!/bin/sh
export PYTHONPATH="${{PYTHONPATH#*/spark-core_*.jar:}}"
exec {python} "$@"
"""


def local_python() -> str:
    """The path of an executable file for `PYSPARK_PYTHON`."""
    script = _SCRIPT.format(python=shlex.quote(sys.executable))
    path = cache_directory() / "python" / hashlib.sha256(script.encode()).hexdigest()[:12]
    try:
        if not path.exists():
            _write(path, script)
    except OSError:  # a cache that cannot be written costs time, and nothing else
        return sys.executable
    return str(path) if is_safe(path) else sys.executable


def _write(path: Path, script: str) -> None:
    """Whole or not at all: another driver may start at this moment."""
    make_cache(path.parent)
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(script)
        Path(name).chmod(0o755)
        Path(name).rename(path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
