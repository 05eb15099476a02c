"""All files below a directory, on this machine's disk or on any Hadoop file system: look, copy, remove.

Names are relative to the root, with slashes. Unlike the commits of a FileSink (connectors/files/filesystem.py), nothing
here races with another writer: a command that changes a checkpoint first makes sure that no driver uses it. So any
Hadoop file system is enough.

Every method raises OSError if the file system fails.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lockgate.checkpoints.checksums import checksum_of
from lockgate.connectors.files.confined import parts_of, remove_below
from lockgate.connectors.files.filesystem import ASIDE, as_os_error, local_path, read_file, sync
from lockgate.errors import Refused
from lockgate.private import make_private

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Entry:
    """A file."""

    name: str
    bytes: int
    modified: datetime


class Tree(ABC):
    """A directory and everything below it."""

    root: str

    @abstractmethod
    def entries(self, folder: str = "") -> list[Entry]:
        """All files below a folder, hidden ones too, by name; none if there is no folder."""

    @abstractmethod
    def exists(self, name: str = "") -> bool:
        """Is there a file or folder?"""

    @abstractmethod
    def folders(self, folder: str = "") -> list[str]:
        """The names of the folders directly in a folder, without links."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """The bytes of a file; None if there is none.

        On this machine's disk a link, a pipe or a device is an OSError: it could lead elsewhere, or never end.
        """

    def read_through(self, name: str) -> int | None:
        """Read a file to its end and keep nothing of it. Returns its size in bytes; None if there is no file."""
        content = self.read(name)
        return None if content is None else len(content)

    @abstractmethod
    def write(self, name: str, content: bytes) -> None:
        """Write a file durably, over an older one if there is one; create the folders above it."""

    @abstractmethod
    def replace(self, name: str, content: bytes) -> None:
        """Write a file in place of one that Spark wrote; a process that dies leaves either the old or the new one."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, a link, or a folder with its contents, if there is one.

        Raises LeadsOutside, and removes nothing, if the name is not below the root, or if a link is on the way.
        """

    @abstractmethod
    def remove_empty(self, folder: str) -> None:
        """Remove an empty folder; OSError if it is not empty."""

    @abstractmethod
    def move(self, name: str, to: str) -> None:
        """Move a file or a folder to another name below the same root, which must be free."""

    @abstractmethod
    def below(self, folder: str) -> Tree:
        """The tree of a folder."""

    @abstractmethod
    def above(self) -> Tree:
        """The tree of the folder above this one."""

    def parent(self) -> tuple[Tree, str]:
        """The tree above this one, and its name there."""
        return self.above(), self.root.rstrip("/").rpartition("/")[2]


class LocalTree(Tree):
    """A tree on this machine's disk."""

    def __init__(self, root: Path) -> None:
        self.path = root
        self.root = str(root)

    def entries(self, folder: str = "") -> list[Entry]:
        found = []
        for file in (self.path / folder).rglob("*"):
            try:
                if file.is_symlink() or not file.is_file():
                    continue
                facts = file.stat()
            except FileNotFoundError:  # a running driver cleans up at the same time
                continue
            modified = datetime.fromtimestamp(facts.st_mtime, tz=UTC)
            found.append(Entry(file.relative_to(self.path).as_posix(), facts.st_size, modified))
        return sorted(found, key=lambda entry: entry.name)

    def exists(self, name: str = "") -> bool:
        return (self.path / name).exists()

    def folders(self, folder: str = "") -> list[str]:
        place = self.path / folder
        found = place.iterdir() if place.is_dir() else ()
        return sorted(one.name for one in found if one.is_dir() and not one.is_symlink())

    def read(self, name: str) -> bytes | None:
        try:
            return read_file(self.path, name)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, content: bytes) -> None:
        file = self.path / name
        make_private(self.path)
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = file.with_name(f"{ASIDE}{secrets.token_hex(8)}")
        try:
            aside.write_bytes(content)
            sync(aside)
            aside.replace(file)  # a process that dies before this leaves the old file
        except OSError:
            aside.unlink(missing_ok=True)
            raise
        sync(file.parent)

    def replace(self, name: str, content: bytes) -> None:
        self.remove(checksum_of(name))  # first: a file may lack its checksum, but may not have that of another file
        self.write(name, content)

    def remove(self, name: str) -> None:
        remove_below(self.path, name)

    def remove_empty(self, folder: str) -> None:
        (self.path / folder).rmdir()

    def move(self, name: str, to: str) -> None:
        target = self.path / to
        if target.exists():
            raise FileExistsError(f"{target} exists already")
        target.parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).rename(target)
        sync(target.parent)

    def below(self, folder: str) -> LocalTree:
        return LocalTree(self.path / folder)

    def above(self) -> LocalTree:
        return LocalTree(self.path.parent)


class HadoopTree(Tree):
    """A tree on a Hadoop file system, through Spark's JVM."""

    def __init__(self, root: str, spark: SparkSession) -> None:
        self._spark = spark
        jvm = cast(Any, spark.sparkContext._jvm)
        self._hadoop = jvm.org.apache.hadoop.fs
        self._tools = jvm.org.apache.commons.io.IOUtils
        with as_os_error():
            path = self._hadoop.Path(root)
            self._system = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
            self.root = str(self._system.makeQualified(path).toString()).rstrip("/")

    def entries(self, folder: str = "") -> list[Entry]:
        found: list[Entry] = []
        with as_os_error():
            place = self._path(folder)
            if not self._system.exists(place):
                return []
            listed = self._system.listFiles(place, True)
            while listed.hasNext():
                status = listed.next()
                name = str(status.getPath().toString()).removeprefix(f"{self.root}/")
                modified = datetime.fromtimestamp(status.getModificationTime() / 1000, tz=UTC)
                found.append(Entry(name, int(status.getLen()), modified))
        return sorted(found, key=lambda entry: entry.name)

    def exists(self, name: str = "") -> bool:
        with as_os_error():
            return bool(self._system.exists(self._path(name)))

    def folders(self, folder: str = "") -> list[str]:
        with as_os_error():
            place = self._path(folder)
            listed = self._system.listStatus(place) if self._system.exists(place) else []
            return sorted(str(one.getPath().getName()) for one in listed if one.isDirectory())

    def read(self, name: str) -> bytes | None:
        try:
            with as_os_error():
                stream = self._system.open(self._path(name))
                try:
                    return bytes(self._tools.toByteArray(stream))
                finally:
                    stream.close()
        except FileNotFoundError:
            return None

    def read_through(self, name: str) -> int | None:
        try:
            with as_os_error():
                stream = self._system.open(self._path(name))
                try:
                    return int(self._tools.consume(stream))
                finally:
                    stream.close()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        with as_os_error():
            stream = self._system.create(self._path(name), True)
            try:
                stream.write(bytearray(content))
                stream.hsync()
            finally:
                stream.close()

    def replace(self, name: str, content: bytes) -> None:
        aside = f"{ASIDE}{secrets.token_hex(8)}"
        self.write(aside, content)
        gateway = cast(Any, self._spark.sparkContext._gateway)
        overwriting = gateway.new_array(self._hadoop.Options.Rename, 1)
        with as_os_error():
            overwriting[0] = self._hadoop.Options.Rename.OVERWRITE
            context = self._hadoop.FileContext.getFileContext(self._path(name).toUri(), self._system.getConf())
            context.rename(self._path(aside), self._path(name), overwriting)

    def remove(self, name: str) -> None:
        parts_of(name)
        with as_os_error():
            self._system.delete(self._path(name), True)

    def remove_empty(self, folder: str) -> None:
        with as_os_error():
            self._system.delete(self._path(folder), False)  # HDFS refuses a folder that is not empty

    def move(self, name: str, to: str) -> None:
        with as_os_error():
            source, target = self._path(name), self._path(to)
            if self._system.exists(target):
                raise FileExistsError(f"{self.root}/{to} exists already")
            self._system.mkdirs(target.getParent())
            if not self._system.rename(source, target):
                raise OSError(f"{self.root}/{name} cannot be moved to {to}")

    def below(self, folder: str) -> HadoopTree:
        return HadoopTree(f"{self.root}/{folder}", self._spark)

    def above(self) -> HadoopTree:
        return HadoopTree(f"{self.root.rpartition('/')[0]}/", self._spark)

    def _path(self, name: str) -> Any:
        return self._hadoop.Path(f"{self.root}/{name}")


def open_tree(place: str, spark: SparkSession | None = None) -> Tree:
    """The tree at a place; Refused if it is not on this machine and there is no Spark to reach it."""
    local = as_named(place)
    if local is not None:
        return LocalTree(local)
    if spark is None:
        raise Refused(f"{place} can be read only with Spark", where=place, fix="name a local directory")
    return HadoopTree(place.rstrip("/"), spark)


def as_named(place: str) -> Path | None:
    """A directory on this machine's disk under its own name; None if the place is not on this disk.

    A link stays a link, so that a command that deletes can see it.
    """
    local = local_path(place)
    if local is None:
        return None
    named = place.removeprefix("file:")
    if named != place and named.startswith("//"):
        named = "/" + named[2:].partition("/")[2]
    given = Path(named).absolute()
    path = given.parent.resolve() / given.name
    return path if given.name != ".." and path.resolve() == local else local
