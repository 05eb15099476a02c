"""What travels to the Python of other machines: this package, and the modules that lie beside a job file.

The machines of a cluster have Spark, and a Python with pandas, Arrow and the client libraries that a job needs. They
have neither this package nor the author's own modules, and need not: both travel as archives, with every application.

    lockgate.zip            this package, the very version that the driver runs
    lockgate-job.zip        modules beside the job file, where it imports any
    lockgate-environment    the libraries, where somebody chose to send those too (`lockgate package --environment`)

Spark puts what it distributes into the working directory of an executor before the first task. The process that Python
workers are forked from is started there, and is ours: so all must be on its path, and not only on that of a worker,
where Spark puts it. The names are relative, because nobody knows the directories of another machine.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.metadata
import os
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from lockgate.errors import Refused

PACKAGE_ARCHIVE = "lockgate.zip"
JOB_ARCHIVE = "lockgate-job.zip"
ENVIRONMENT = "lockgate-environment"
PYTHON_PATH = os.pathsep.join((PACKAGE_ARCHIVE, JOB_ARCHIVE, ENVIRONMENT))
"""The path of Python on an executor, relative to its working directory; what was not sent is not missed."""

_TIME = (1980, 1, 1, 0, 0, 0)  # of every file in an archive, so that the same files make the same archive


def pack_package(into: Path) -> Path:
    """The archive of this package in a directory."""
    root = Path(__file__).parents[1]
    archive = into / PACKAGE_ARCHIVE
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in _files_below(root):
            _add(packed, f"{root.name}/{file.relative_to(root).as_posix()}", file.read_bytes())
        # Whoever asks which version this is asks the metadata.
        told = importlib.metadata.distribution("lockgate")
        _add(packed, f"lockgate-{told.version}.dist-info/METADATA", (told.read_text("METADATA") or "").encode())
    return archive


def pack_modules(job_file: Path, into: Path, *, with_job: bool = False) -> Path | None:
    """The archive of what a job file imports from beside it, with the file itself or without; None where it is empty.

    The job file is in it as it is, and not as a module: it is loaded from a file, wherever it came from.
    """
    home = job_file.resolve().parent
    files = [file for module in find_modules(job_file) for file in _files_below(module)]
    files += [job_file.resolve()] if with_job else []
    if not files:
        return None
    archive = into / JOB_ARCHIVE
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in sorted(set(files)):
            _add(packed, file.relative_to(home).as_posix(), file.read_bytes())
    return archive


def find_modules(job_file: Path) -> list[Path]:
    """The modules and packages beside a job file that it imports, itself or through another of them."""
    home = job_file.resolve().parent
    found: dict[str, Path] = {}
    unread = [job_file.resolve()]
    while unread:
        for name in top_level_imports(unread.pop()):
            place = None if name in found else _beside(home, name)
            if place is not None and place != job_file.resolve():
                found[name] = place
                unread += [file for file in _files_below(place) if file.suffix == ".py"]
    return sorted(found.values())


def top_level_imports(file: Path) -> set[str]:
    """The first part of the name of every module that a file imports, also from inside a function."""
    try:
        read = ast.parse(file.read_bytes())
    except SyntaxError as error:
        raise Refused(f"{file.name} cannot be read: {error.msg}", f"{file}:{error.lineno}", "mend the file") from None
    names: set[str] = set()
    for node in ast.walk(read):
        if isinstance(node, ast.Import):
            names |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def _beside(home: Path, name: str) -> Path | None:
    """A module or package of this name beside the job file, where that is the one which Python means."""
    for place in (home / name, home / f"{name}.py"):
        is_package = place.is_dir() and any(place.rglob("*.py"))
        if (is_package or place.is_file()) and _is_meant(home, name):
            return place
    return None


def _is_meant(home: Path, name: str) -> bool:
    """A job file's directory comes last on the path: a kafka.py beside it is not what anybody means by kafka."""
    if name in ("lockgate", "pyspark") or importlib.machinery.BuiltinImporter.find_spec(name) is not None:
        return False
    other = [place for place in sys.path if Path(place or ".").resolve() != home]
    found = importlib.machinery.PathFinder.find_spec(name, other)
    return found is None or found.origin is None  # a directory without __init__.py anywhere is no rival


def _files_below(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
        return
    for folder, folders, names in os.walk(place):
        folders[:] = sorted(one for one in folders if one != "__pycache__" and not one.startswith("."))
        # What is hidden is nobody's module: settings of editors, and secrets such as .env.
        yield from (Path(folder) / name for name in sorted(names) if not name.endswith(".pyc") and name[0] != ".")


def _add(packed: zipfile.ZipFile, name: str, content: bytes) -> None:
    facts = zipfile.ZipInfo(name, date_time=_TIME)
    facts.compress_type = zipfile.ZIP_DEFLATED
    facts.external_attr = 0o644 << 16
    packed.writestr(facts, content)
