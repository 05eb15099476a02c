"""The Python that Spark starts on this machine: this one, with its installed modules.

Spark puts an archive of PySpark first on the path of every Python process that it starts. Python keeps no byte code for
modules of an archive, so each process compiles PySpark again, and a query starts one for each Python source: about two
seconds of a processor. PySpark is also installed, with its byte code; a script removes the archive from the path.

Spark starts modules (`python -m`), and Python looks for them in the working directory first. If a job is started in a
directory that other users may write to, they could run code in it. So the script removes that directory, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import sys
import tempfile
from pathlib import Path

from lockgate.provision.jars import cache_directory, is_safe, make_cache

# The entries that Spark puts in front end with its own jar.
_SCRIPT = """#!/bin/sh
export PYTHONPATH="${{PYTHONPATH#*/spark-core_*.jar:}}"
exec {python} -P "$@"
"""


def local_python() -> str:
    """The path of an executable file for `PYSPARK_PYTHON`."""
    script = _SCRIPT.format(python=shlex.quote(sys.executable))
    path = cache_directory() / "python" / hashlib.sha256(script.encode()).hexdigest()[:12]
    try:
        if not path.exists():
            _write(path, script)
    except OSError:  # if the cache cannot be written, starts are only slower
        return sys.executable
    return str(path) if is_safe(path) else sys.executable


def _write(path: Path, script: str) -> None:
    """Write it whole or not at all: another driver may start at this moment."""
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
