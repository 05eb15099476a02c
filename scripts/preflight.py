"""Refuse a machine that lacks Python or Java, before anything is installed, and report the fix.

It needs only an interpreter, even a very old one: standard library only, no syntax newer than Python 3.6. It has the
same rule as lockgate/provision/java.py, which cannot be imported yet when this runs.
Exit status 0 = the machine is fine, 2 = it lacks something.
"""

import os
import re
import shutil
import subprocess
import sys

PYTHON_NEEDED = (3, 11)
JAVA_NEEDED = 17


def refuse(what, where, fix):
    sys.stderr.write(f"{what}\n  where: {where}\n  fix:   {fix}\n")
    sys.exit(2)


def check_python():
    found = "{}.{}.{}".format(*sys.version_info[:3])
    if sys.version_info[:2] < PYTHON_NEEDED:
        refuse(
            f"Lockgate needs Python 3.11 or newer, this is Python {found}.",
            sys.executable,
            "install a newer Python, or name one that is there: make PYTHON=python3.12 ...",
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError as missing:
        refuse(
            f"This Python {found} cannot make a virtual environment: {missing}.",
            sys.executable,
            "install its venv package (Debian and Ubuntu: apt install python3-venv), or name another Python: "
            "make PYTHON=python3.12 ...",
        )


def check_java():
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    where = f"JAVA_HOME={home}" if home else "no java on PATH, and JAVA_HOME is not set"
    fix = (
        f"install a Java runtime, version {JAVA_NEEDED} or newer (Debian and Ubuntu: apt install "
        "openjdk-17-jre-headless; macOS: brew install openjdk@17), then put it on PATH or set JAVA_HOME"
    )
    if java is None or not os.path.isfile(java):
        refuse(f"Spark and Kafka need Java {JAVA_NEEDED} or newer, and there is none.", where, fix)
    try:
        told = subprocess.run(
            [java, "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=60
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        told = str(error)
    version = re.search(r'version "(?:1\.)?(\d+)', told)
    if version is None:
        refuse(f"Java does not say its version: {told.strip()[:200]}", java, fix)
    if int(version.group(1)) < JAVA_NEEDED:
        found = version.group(1)
        refuse(f"Spark and Kafka need Java {JAVA_NEEDED} or newer, this is Java {found}.", java, fix)


if __name__ == "__main__":
    check_python()
    check_java()
