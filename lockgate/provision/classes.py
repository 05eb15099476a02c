"""Archives of loaded classes, with which a JVM starts in about half the time.

Spark loads many thousands of classes before it does anything, and reads, parses and verifies each of them at every
start. Java can write the loaded classes of a process into an archive, and the next process maps them instead. An
archive belongs to one class path on one Java. It is made once (`lockgate jars` does so), and is kept in the cache.

The law: an archive changes how fast a process starts, never what it does. Java compares it with its own build and with
the order, size and time of every jar, and ignores it if anything differs. Without an archive everything works, too.
Its bytes are code, and Java does not verify them, so one that others may change is not used (jars.py, `is_safe`).
The name of an archive depends on the same facts. So an archive that no longer fits (of an environment that was
re-created at the old path) is replaced.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockgate.provision.jars import cache_directory, is_safe, make_cache
from lockgate.provision.java import Java

_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")  # an archive that does not fit is nothing to report


@dataclass(frozen=True)
class ClassArchive:
    """The archive for a class path."""

    name: str
    class_path: tuple[Path, ...]

    def file(self, java: Java) -> Path:
        """Its path, whether or not it exists: named by the jars of the class path and by this Java."""
        told = [_facts(java.path.resolve()), *(fact for place in self.class_path for fact in _facts_of_all(place))]
        digest = hashlib.sha256("\n".join(told).encode()).hexdigest()[:12]
        return cache_directory() / "classes" / f"{self.name}-{digest}.jsa"

    def options(self, java: Java) -> list[str]:
        """Java's options for the archive; none if there is no archive."""
        file = self.file(java)
        if not file.is_file() or not is_safe(file):
            return []
        return [f"-XX:SharedArchiveFile={file}", *_QUIET]

    def make(self, java: Java, fill: Callable[[Path], None]) -> bool:
        """Put the archive in place, whole or not at all; returns whether there is one now.

        Args:
            fill: runs a process that loads the classes and writes them to the given file when it ends.
        """
        file = self.file(java)
        if file.is_file():
            return True
        _remove_orphans(file.parent)
        make_cache(file.parent)
        aside = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            fill(aside)
            if aside.is_file():
                _written_for(file).write_text("\n".join(map(str, self.class_path)))
                aside.replace(file)
        finally:
            aside.unlink(missing_ok=True)
        return file.is_file()


def spark_classes() -> ClassArchive:
    """For every JVM of the installed PySpark: drivers, executors, Master and Workers."""
    spec = importlib.util.find_spec("pyspark")
    places = (spec.submodule_search_locations if spec else None) or ()
    return ClassArchive("spark", tuple(Path(place, "jars") for place in places))


def broker_classes(jars: Sequence[Path]) -> ClassArchive:
    """For Kafka brokers with this class path."""
    return ClassArchive("broker", tuple(jars))


def _facts_of_all(place: Path) -> list[str]:
    """What Java checks of a jar, or of those in a directory: in the order in which the directory lists them."""
    if not place.is_dir():
        return [_facts(place)]
    with os.scandir(place) as entries:
        return [str(place), *(_facts(Path(entry.path)) for entry in entries if entry.name.endswith(".jar"))]


def _facts(file: Path) -> str:
    found = file.stat()
    return f"{file} {found.st_size} {found.st_mtime_ns}"


def _written_for(file: Path) -> Path:
    return file.with_suffix(".for")


def _remove_orphans(directory: Path) -> None:
    """Remove the archives of environments that are gone or were re-created: each has over a hundred megabytes."""
    for note in directory.glob("*.for"):
        with contextlib.suppress(OSError):
            made_for = [Path(line) for line in note.read_text().splitlines()]
            if any(not place.exists() or place.stat().st_mtime > note.stat().st_mtime for place in made_for):
                note.with_suffix(".jsa").unlink(missing_ok=True)
                note.unlink()
