"""Find the Java that Spark and the broker run on, or refuse with the fix.

JAVA_HOME wins over PATH, as in Spark's own scripts. If PATH came first, we would check one Java and Spark would start
another.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lockgate.errors import BadMachine

NEEDED = 17
_FIX = (
    f"install a Java runtime, version {NEEDED} or newer (Debian and Ubuntu: apt install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17), then put it on PATH or set JAVA_HOME"
)


@dataclass(frozen=True)
class Java:
    """An installed Java: the path of its launcher, and its major version."""

    path: Path
    version: int


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The Java that Spark will use; BadMachine if it is missing or too old."""
    environ = os.environ if environ is None else environ
    home = environ.get("JAVA_HOME")
    if home:
        path = Path(home) / "bin" / "java"
        if not path.is_file():
            raise BadMachine(
                f"Spark and Kafka need Java {NEEDED} or newer, and JAVA_HOME holds none.", f"JAVA_HOME={home}", _FIX
            )
    else:
        found = shutil.which("java", path=environ.get("PATH", ""))
        if found is None:
            raise BadMachine(
                f"Spark and Kafka need Java {NEEDED} or newer, and there is none.",
                "no java on PATH, and JAVA_HOME is not set",
                _FIX,
            )
        path = Path(found)
    try:
        told = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=60, check=False)
        text = told.stderr + told.stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        text = str(error)
    version = re.search(r'version "(?:1\.)?(\d+)', text)  # "17.0.15", and older ones such as "1.8.0_392"
    if version is None:
        raise BadMachine(f"Java does not say its version: {text.strip()[:200]}", str(path), _FIX)
    if int(version[1]) < NEEDED:
        raise BadMachine(f"Spark and Kafka need Java {NEEDED} or newer, this is Java {version[1]}.", str(path), _FIX)
    return Java(path=path, version=int(version[1]))
