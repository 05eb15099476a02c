"""Checkpoints on this machine's disk without a process for every file.

Where its native library is missing, Hadoop sets permissions with `chmod` and looks for links with `readlink`, each a
process of its own; and PySpark does not bring that library. Spark writes a checkpoint file aside and renames it: five
processes for each, about a hundred for an epoch with state. LocalFiles.java, beside this file, lets Java do both. All
else (what is written, in which order, checksums, how a rename replaces) stays with Hadoop's own code.

Spark brings a compiler for Java, so the class is compiled when it is needed first, and lies in the cache. It changes
how fast an epoch is, never what it does. Where it cannot be compiled or kept, Hadoop's own class is used.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import logging
import os
import subprocess
import sys
import zipfile
from datetime import timedelta
from pathlib import Path

from lockgate.spark.jars import cache_directory, is_safe, make_cache
from lockgate.spark.java import Java

LOCAL_FILES = {"spark.hadoop.fs.AbstractFileSystem.file.impl": "lockgate.LocalFiles"}

_LIMIT = timedelta(minutes=2)
_SOURCE = Path(__file__).with_name("LocalFiles.java")

log = logging.getLogger(__name__)


def local_files(java: Java) -> Path | None:
    """The jar with the class of LOCAL_FILES, compiled now if there is none; None where that is not possible."""
    made_of = f"pyspark {importlib.metadata.version('pyspark')}\n{_SOURCE.read_text()}"
    jar = cache_directory() / "jars" / f"localfiles-{hashlib.sha256(made_of.encode()).hexdigest()[:12]}.jar"
    if jar.is_file():
        return jar if is_safe(jar) else None
    try:
        make_cache(jar.parent)
        # In a process of its own, with which its JVM ends.
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-m", __name__, str(java.path), str(jar)]
        subprocess.run(command, env=environ, capture_output=True, timeout=_LIMIT.total_seconds(), check=True)
    except (OSError, subprocess.SubprocessError) as error:
        why = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip() or error
        log.warning("checkpoints on this disk are written by Hadoop's own class, which takes longer: %s", why)
        return None
    return jar if is_safe(jar) else None


# -- in the process of its own ----------------------------------------------------------------------------------------


def _compile(source: str, java: str) -> dict[str, bytes]:
    """The classes of a Java source, by name."""
    import pyspark
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    jars = Path(pyspark.__file__).with_name("jars")
    options = ["-XX:TieredStopAtLevel=1"]
    port, token = launch_gateway(
        classpath=str(jars / "*"), javaopts=options, java_path=java, die_on_exit=True, enable_auth=True
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(source)
    return {str(name): bytes(code) for name, code in compiler.getBytecodes().items()}


def _write(jar: Path, classes: dict[str, bytes]) -> None:
    """Put the jar in place, whole; of several processes the last one wins, with the same."""
    aside = jar.with_name(f".{jar.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(aside, "w") as archive:
            for name, code in classes.items():
                archive.writestr(f"{name.replace('.', '/')}.class", code)
        aside.replace(jar)
    finally:
        aside.unlink(missing_ok=True)


if __name__ == "__main__":
    _write(Path(sys.argv[2]), _compile(_SOURCE.read_text(), sys.argv[1]))
