"""The few calls that Lockgate needs of a file system, on this machine's disk and on Hadoop's.

All names are relative to one root, and nothing outside of it is deleted (connectors/files/confined.py). Everything
above depends on `put`: a file that was written aside, complete and durable, appears in its place at once, and only if
nothing is there yet. Of two writers that try, one wins. On this machine's disk that is a hard link, on HDFS a rename
that does not overwrite. Object stores overwrite silently or copy byte by byte, so they are refused.

Every method raises OSError if the system does not do what it is asked.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockgate.connectors.files.confined import find_link, parts_of, remove_below
from lockgate.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ASIDE = ".aside-"
"""How the names of files begin that are not in place yet."""


class NotAFile(OSError):
    """There is something else under the name of a file."""


class System(ABC):
    """A directory on some file system."""

    root: str

    def uri(self, name: str) -> str:
        """A name as Spark takes it, so that the cluster's default file system does not matter."""
        return f"{self.root}/{name}"

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """The direct content of a folder; nothing if there is no folder."""

    @abstractmethod
    def files(self, folder: str) -> dict[str, int]:
        """The finished data files below a folder, by name, with their bytes; none if there is no folder."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Is there a file or folder?"""

    @abstractmethod
    def read(self, name: str, *, limit: int | None = None) -> bytes | None:
        """The bytes of a file, or the first of them; None if there is none.

        NotAFile for a link, a pipe or a device: it could lead elsewhere, never answer, or never end.
        """

    @abstractmethod
    def parquet_rows(self, name: str) -> int:
        """How many rows a Parquet file has, as it says at its end."""

    @abstractmethod
    def write(self, name: str, content: bytes) -> None:
        """Write a new file, durably; if that fails, nothing of it remains."""

    @abstractmethod
    def put(self, aside: str, place: str) -> bool:
        """Put a complete file in place; False if the place is taken, or another process removed the file."""

    @abstractmethod
    def sync(self, name: str) -> None:
        """Make a file, or all below a folder, survive a power cut, with the folders that lead there."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a file, a link, or a folder with its content; a missing one is fine.

        LeadsOutside, and nothing is removed, if the name does not lie below the root, or a link is on its way.
        """

    @abstractmethod
    def find_link(self, names: Iterable[str]) -> str | None:
        """The first link on the way to one of these names."""

    def publish(self, place: str, content: bytes) -> bool:
        """Write aside, put in place; False if another writer was first, and nothing was changed."""
        folder, _, name = place.rpartition("/")
        aside = f"{folder}/{ASIDE}{secrets.token_hex(8)}-{name}"
        self.write(aside, content)
        is_ours = self.put(aside, place)
        if not is_ours:
            with suppress(OSError):  # the leftovers have it
                self.delete(aside)
        return is_ours


class LocalSystem(System):
    """On this machine's disk, without Spark."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.root = f"file://{root}"  # not as_uri(): Hadoop takes percent signs for what they are

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self._root / folder))  # noqa: PTH208 - names, and a hundred thousand of them
        except FileNotFoundError:
            return []

    def files(self, folder: str) -> dict[str, int]:
        found = {}
        for place, folders, names in os.walk(self._root / folder, onerror=_raise):
            if "_temporary" in folders:  # a task that outlived its driver may still write there
                folders.remove("_temporary")
            for name in names:
                file = Path(place) / name
                if name.startswith("part-") and not file.is_symlink():
                    found[file.relative_to(self._root).as_posix()] = file.stat().st_size
        return found

    def exists(self, name: str) -> bool:
        return (self._root / name).exists()

    def read(self, name: str, *, limit: int | None = None) -> bytes | None:
        try:
            return read_file(self._root, name, limit=limit)
        except FileNotFoundError:
            return None

    def parquet_rows(self, name: str) -> int:
        from pyarrow import parquet

        return int(parquet.read_metadata(self._root / name).num_rows)

    def write(self, name: str, content: bytes) -> None:
        file = self._root / name
        self._make(file.parent)
        try:
            with file.open("xb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError:
            file.unlink(missing_ok=True)
            raise

    def put(self, aside: str, place: str) -> bool:
        source, target = self._root / aside, self._root / place
        try:
            os.link(source, target)
        except FileExistsError:
            # A network file system may have done it, lost the answer, and asked again.
            if not (source.exists() and source.samefile(target)):
                return False
        except FileNotFoundError:
            return False
        sync(target.parent)
        # From here on it is visible, whatever happens to the other name.
        with suppress(OSError):
            source.unlink()
        return True

    def sync(self, name: str) -> None:
        place = self._root / name
        for folder, _, names in os.walk(place, onerror=_raise) if place.is_dir() else ():
            for one in names:
                sync(Path(folder) / one)
            sync(Path(folder))
        if not place.is_dir():
            sync(place)
        for above in place.parents:
            if above.is_relative_to(self._root):
                sync(above)

    def delete(self, name: str) -> None:
        remove_below(self._root, name)
        folder, slash, last = name.rpartition("/")
        remove_below(self._root, f"{folder}{slash}.{last}.crc")  # Hadoop's checksum beside it

    def find_link(self, names: Iterable[str]) -> str | None:
        return find_link(self._root, names)

    def _make(self, folder: Path) -> None:
        """Make a folder and those that lead there, durably."""
        if folder.is_dir():
            return
        self._make(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


class HadoopSystem(System):
    """On a file system of Hadoop's, through Spark's JVM."""

    def __init__(self, root: str, spark: SparkSession) -> None:
        self._spark = spark
        self._jvm = _jvm_of(spark)
        self._hadoop = self._jvm.org.apache.hadoop.fs
        self._conf = spark.sparkContext._jsc.hadoopConfiguration()
        with as_os_error():
            path = self._hadoop.Path(root)
            self._system = path.getFileSystem(self._conf)
            self.root = str(self._system.makeQualified(path).toString()).rstrip("/")
            # Unlike FileSystem.rename, this one does not overwrite, by contract; on HDFS it is atomic.
            self._context = self._hadoop.FileContext.getFileContext(path.toUri(), self._conf)

    def names(self, folder: str) -> list[str]:
        try:
            with as_os_error():
                return sorted(str(one.getPath().getName()) for one in self._system.listStatus(self._path(folder)))
        except FileNotFoundError:
            return []

    def files(self, folder: str) -> dict[str, int]:
        found = {}
        with as_os_error():
            if not self._system.exists(self._path(folder)):
                return {}
            listed = self._system.listFiles(self._path(folder), True)
            while listed.hasNext():
                status = listed.next()
                name = str(status.getPath().toString()).removeprefix(f"{self.root}/")
                *folders, file = name.split("/")
                if file.startswith("part-") and "_temporary" not in folders:
                    found[name] = int(status.getLen())
        return found

    def exists(self, name: str) -> bool:
        with as_os_error():
            return bool(self._system.exists(self._path(name)))

    def read(self, name: str, *, limit: int | None = None) -> bytes | None:
        try:
            with as_os_error(), closing(self._system.open(self._path(name))) as stream:
                tools = self._jvm.org.apache.commons.io
                if limit is not None:
                    return bytes(tools.IOUtils.toByteArray(tools.input.BoundedInputStream(stream, limit)))
                return bytes(tools.IOUtils.toByteArray(stream))
        except FileNotFoundError:
            return None

    def parquet_rows(self, name: str) -> int:
        parquet = self._jvm.org.apache.parquet.hadoop
        with as_os_error():
            file = parquet.util.HadoopInputFile.fromPath(self._path(name), self._conf)
            with closing(parquet.ParquetFileReader.open(file)) as reader:
                return int(reader.getRecordCount())

    def write(self, name: str, content: bytes) -> None:
        with as_os_error():
            path = self._path(name)
            stream = self._system.create(path, False)
            try:
                with closing(stream):
                    stream.write(bytearray(content))
                    stream.hsync()
            except BaseException:
                with suppress(Exception):  # the first error is the one to show; the leftovers have the file
                    self._system.delete(path, False)
                raise

    def put(self, aside: str, place: str) -> bool:
        gateway = self._spark.sparkContext._gateway
        assert gateway is not None
        none = gateway.new_array(self._hadoop.Options.Rename, 0)
        try:
            with as_os_error():
                self._context.rename(self._path(aside), self._path(place), none)
        except (FileExistsError, FileNotFoundError):
            return False
        return True

    def sync(self, name: str) -> None:
        """HDFS has a closed file on several machines, and its folders in its journal."""

    def delete(self, name: str) -> None:
        parts_of(name)  # Hadoop resolves ".." before it asks the server
        with as_os_error():
            self._system.delete(self._path(name), True)

    def find_link(self, names: Iterable[str]) -> str | None:
        return None  # HDFS has none

    def _path(self, name: str) -> Any:
        return self._hadoop.Path(f"{self.root}/{name}")


def local_path(path: str) -> Path | None:
    """The directory of a path on this machine's disk; None if it lies elsewhere."""
    scheme = _scheme(path)
    if scheme == "file":
        rest = path.removeprefix("file:")
        return Path("/" + rest[2:].partition("/")[2] if rest.startswith("//") else rest).resolve()
    return Path(path).resolve() if scheme is None else None


def normalise(path: str) -> str:
    """One name for a directory, however its path is written."""
    local = local_path(path)
    return path.rstrip("/") if local is None else f"file:{local}"


def is_known(path: str) -> bool:
    """Does a path lie on this machine's disk or on HDFS? It is known that they put a file in place only once."""
    return local_path(path) is not None or _scheme(path) == "hdfs"


def open_system(path: str, spark: SparkSession | None, where: str) -> System:
    """The file system of a path; refused if it is not known to put files in place only once."""
    local = local_path(path)
    if local is not None:
        return LocalSystem(local)
    if not is_known(path):
        raise Refused(
            f"{path} lies on a store whose rename is not known to be atomic and never to overwrite, so two"
            " drivers could both commit an epoch",
            where=where,
            fix="name a local directory or one on hdfs://; or declare Guarantee.AT_LEAST_ONCE",
        )
    if spark is None:
        raise Refused(f"{path} can be read only with Spark", where=where, fix="use read_files(spark, path)")
    return HadoopSystem(path.rstrip("/"), spark)


def _scheme(path: str) -> str | None:
    """As Hadoop reads it: what stands before a colon, before the first slash; percent signs are not decoded."""
    head, colon, _ = path.partition("/")[0].partition(":")
    return head if colon else None


@contextmanager
def as_os_error() -> Iterator[None]:
    """Java's errors as Python's."""
    from py4j.protocol import Py4JError, Py4JJavaError

    try:
        yield
    except Py4JJavaError as error:
        name = str(error.java_exception.getClass().getSimpleName())
        told = f"{name}: {error.java_exception.getMessage()}".partition("\n")[0]  # a server's own stack may follow
        known = {"FileAlreadyExistsException": FileExistsError, "FileNotFoundException": FileNotFoundError}
        raise known.get(name, OSError)(told) from error
    except Py4JError as error:
        raise OSError(f"the JVM does not answer: {error}") from error


def _jvm_of(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm


def read_file(root: Path, name: str, *, limit: int | None = None) -> bytes:
    """The bytes of a file on this machine's disk, or the first of them; NotAFile for a link, a pipe or a device."""
    try:
        with open(root / name, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise NotAFile(f"{name} is not a file")
            return file.read(-1 if limit is None else limit)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotAFile(f"{name} is a link, and not a file") from None
        if error.errno in (errno.EISDIR, errno.ENXIO):
            raise NotAFile(f"{name} is not a file") from None
        raise


def _open_at_once(path: str, flags: int) -> int:
    """Follow no link, and do not wait for a writer, as a pipe would let us."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def sync(place: Path) -> None:
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
