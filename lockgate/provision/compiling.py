"""Compile our Java sources once, with the compiler that Spark brings, and keep the jar in the cache.

The name of a jar holds a digest of the sources and of PySpark's version, so a changed source is compiled again. A jar
that other users of the machine may write to is not used.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from lockgate.errors import BadMachine
from lockgate.modulepath import module_path
from lockgate.provision.jars import cache_directory, is_safe, make_cache
from lockgate.provision.java import Java

_LIMIT = timedelta(minutes=2)


def compiled(java: Java, source: Path, beside: Sequence[Path] = ()) -> Path:
    """The jar with the classes of a Java source, compiled now if the cache does not have it.

    Args:
        beside: jars that the source needs and Spark does not bring.

    Raises:
        BadMachine: the source cannot be compiled, or the jar cannot be kept.
    """
    names = " ".join(sorted(one.name for one in beside))
    made_of = f"pyspark {importlib.metadata.version('pyspark')}\n{names}\n{source.read_text()}"
    name = f"{source.stem.lower()}-{hashlib.sha256(made_of.encode()).hexdigest()[:12]}.jar"
    jar = cache_directory() / "jars" / name
    why: object = "other users of this machine may write to it"
    if not jar.is_file():
        try:
            make_cache(jar.parent)
            # A separate process, so that its JVM ends with it.
            environ = {**os.environ, "PYTHONPATH": module_path()}
            command = [sys.executable, "-P", "-m", __name__, str(java.path), str(source), str(jar)]
            command += map(str, beside)
            subprocess.run(command, env=environ, capture_output=True, timeout=_LIMIT.total_seconds(), check=True)
        except (OSError, subprocess.SubprocessError) as error:
            why = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip() or error
    if jar.is_file() and is_safe(jar):
        return jar
    raise BadMachine(
        f"{source.name} cannot be compiled and kept: {why}",
        where=str(jar),
        fix="set LOCKGATE_CACHE to a directory that you own, and JAVA_HOME to Java 17 or newer",
    )


# -- in the separate process ------------------------------------------------------------------------------------------


def _compile(source: str, java: str, beside: Sequence[str]) -> dict[str, bytes]:
    """The classes of a Java source, by name."""
    import pyspark
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    jars = Path(pyspark.__file__).with_name("jars")
    class_path = os.pathsep.join((str(jars / "*"), *beside))
    options = ["-XX:TieredStopAtLevel=1"]
    port, token = launch_gateway(
        classpath=class_path, javaopts=options, java_path=java, die_on_exit=True, enable_auth=True
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(source)
    return {str(name): bytes(code) for name, code in compiler.getBytecodes().items()}


def _write(jar: Path, classes: dict[str, bytes]) -> None:
    """Put the whole jar in place. If several processes do this, the last one wins, with the same bytes."""
    aside = jar.with_name(f".{jar.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(aside, "w") as archive:
            for name, code in classes.items():
                archive.writestr(f"{name.replace('.', '/')}.class", code)
        aside.replace(jar)
    finally:
        aside.unlink(missing_ok=True)


if __name__ == "__main__":
    _write(Path(sys.argv[3]), _compile(Path(sys.argv[2]).read_text(), sys.argv[1], sys.argv[4:]))
