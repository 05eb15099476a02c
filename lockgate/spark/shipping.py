"""What travels to the Python of other machines: this package, and the modules beside a job file.

The machines of a cluster have Spark, and a Python with pandas, Arrow and the client libraries that a job needs. They
need neither this package nor the user's own modules: both travel as archives, with every application.

    lockgate-TOKEN.zip        this package, in exactly the version that the driver runs
    lockgate-job-TOKEN.zip    modules beside the job file, if it imports any
    lockgate-environment      the libraries, if the user sends those too (`lockgate package --environment`)

A driver of Spark sends a file to any process that names it, also to one without the secret that all its other ports ask
for. So a name holds a token that no such process can guess.

Spark puts what it distributes into the working directory of an executor before the first task. The process from which
Python workers are forked is started there, and is ours. So all must be on the path of that process, and not only on
that of a worker, where Spark puts it. The names are relative, because the directories of other machines are unknown.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.metadata
import os
import re
import secrets
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from lockgate.errors import Refused

ENVIRONMENT = "lockgate-environment"
_PACKAGE, _JOB = "lockgate", "lockgate-job"
_ARCHIVE = re.compile(r"(lockgate|lockgate-job)-[0-9a-f]{32}\.zip")

_TIME = (1980, 1, 1, 0, 0, 0)  # of every file in an archive, so that the same files make the same archive


def is_archive(name: str) -> bool:
    """Is this the name of an archive that travels?"""
    return _ARCHIVE.fullmatch(name) is not None


def is_job_archive(name: str) -> bool:
    """Is this the name of the archive with the modules of a job?"""
    return is_archive(name) and name.startswith(f"{_JOB}-")


def python_path(archives: Iterable[str]) -> str:
    """The path of Python on an executor, relative to its working directory; a part that was not sent does no harm."""
    return os.pathsep.join((*archives, ENVIRONMENT))


def sent_archives() -> list[str]:
    """The archives that spark-submit has sent to this driver, and sends to the executors."""
    return list(dict.fromkeys(filter(is_archive, (Path(place).name for place in sys.path))))


def pack_package(into: Path) -> Path:
    """The archive of this package in a directory."""
    root = Path(__file__).parents[1]
    archive = into / _new_name(_PACKAGE)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in _files_below(root):
            _add(packed, f"{root.name}/{file.relative_to(root).as_posix()}", file.read_bytes())
        # A lookup of the version reads the metadata.
        told = importlib.metadata.distribution("lockgate")
        _add(packed, f"lockgate-{told.version}.dist-info/METADATA", (told.read_text("METADATA") or "").encode())
    return archive


def pack_modules(job_file: Path, into: Path, *, with_job: bool = False) -> Path | None:
    """The archive of what a job file imports from beside it, with or without the file itself; None if it is empty.

    The job file is in it unchanged, and not as a module: it is loaded from a file, wherever it came from.
    """
    home = job_file.resolve().parent
    files = [file for module in find_modules(job_file) for file in _files_below(module)]
    files += [job_file.resolve()] if with_job else []
    if not files:
        return None
    archive = into / _new_name(_JOB)
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
        raise Refused(f"{file.name} cannot be read: {error.msg}", f"{file}:{error.lineno}", "fix the file") from None
    names: set[str] = set()
    for node in ast.walk(read):
        if isinstance(node, ast.Import):
            names |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def _new_name(kind: str) -> str:
    return f"{kind}-{secrets.token_hex(16)}.zip"


def _beside(home: Path, name: str) -> Path | None:
    """A module or package of this name beside the job file, if an import of the name would find it."""
    for place in (home / name, home / f"{name}.py"):
        is_package = place.is_dir() and any(place.rglob("*.py"))
        if (is_package or place.is_file()) and _is_meant(home, name):
            return place
    return None


def _is_meant(home: Path, name: str) -> bool:
    """Does the name mean the module beside the job file? That directory comes last on the path."""
    if name in ("lockgate", "pyspark") or importlib.machinery.BuiltinImporter.find_spec(name) is not None:
        return False
    other = [place for place in sys.path if Path(place or ".").resolve() != home]
    found = importlib.machinery.PathFinder.find_spec(name, other)
    return found is None or found.origin is None  # a directory without __init__.py elsewhere is no rival


def _files_below(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
        return
    for folder, folders, names in os.walk(place):
        folders[:] = sorted(one for one in folders if one != "__pycache__" and not one.startswith("."))
        # Hidden files are no modules: settings of editors, and secrets such as .env.
        yield from (Path(folder) / name for name in sorted(names) if not name.endswith(".pyc") and name[0] != ".")


def _add(packed: zipfile.ZipFile, name: str, content: bytes) -> None:
    facts = zipfile.ZipInfo(name, date_time=_TIME)
    facts.compress_type = zipfile.ZIP_DEFLATED
    facts.external_attr = 0o644 << 16
    packed.writestr(facts, content)
