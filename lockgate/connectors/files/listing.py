"""The files that a FileSource reads, as one look finds them: a file is its path, its size and its modification time.

A look lists directories, and never asks for files one by one: on Hadoop's file systems each question is a round trip.
It finds what Spark's own listing finds, so it skips hidden files and folders (`.name`, `_name`).

Every function raises OSError if the file system does not do what it is asked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import normpath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from lockgate.connectors.files.confined import move_below, parts_of, remove_below
from lockgate.connectors.files.filesystem import HadoopSystem, as_os_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATTERN = "*?[{"
_SINK_LOG = "_spark_metadata"
_STATUS = re.compile(
    r"\{path=(.*?); isDirectory=(true|false)(?:; length=(\d+); replication=\d+; blocksize=\d+)?;"
    r" modification_time=(\d+);",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What distinguishes a file from another one under its path."""

    bytes: int
    modified_ms: int  # since 1970


@dataclass
class Look:
    """The files below some directories, by path."""

    files: dict[str, Facts] = field(default_factory=dict)
    with_log: set[str] = field(default_factory=set)  # directories in which Spark's file sink lists the files that count


def plain_path(url: str) -> str:
    """A path of Spark's log of read files, as a look names it.

    >>> plain_path("file:///in/a%20b.json"), plain_path("hdfs://host:9000/in/a%20b.json")
    ('/in/a b.json', 'hdfs://host:9000/in/a b.json')
    """
    return unquote(_without_scheme(url) if is_local(url) else url)


def is_local(path: str) -> bool:
    """Does a path lie on this machine's disk?

    >>> is_local("in"), is_local("file:///in"), is_local("hdfs://host/in")
    (True, True, False)
    """
    return path.startswith("file:") or "://" not in path


def plain_directory(path: str) -> str:
    """A directory as users write it, under the name that Spark's log has for it; links stay as they are.

    >>> plain_directory("file:///data/in/"), plain_directory("/data/old/../in"), plain_directory("hdfs://h:9000/in/")
    ('/data/in', '/data/in', 'hdfs://h:9000/in')
    """
    if not is_local(path):
        return path.rstrip("/")
    return os.path.abspath(_without_scheme(path))  # noqa: PTH100 - resolves "..", as Hadoop does, and no link


def _without_scheme(path: str) -> str:
    """A local path without `file:` and the host that may follow it."""
    named = path.removeprefix("file:")
    return "/" + named[2:].partition("/")[2] if named != path and named.startswith("//") else named


def root_of(path: str) -> str:
    """The directory below which all files of a path lie, which may be a pattern.

    >>> root_of("/in/20*/x"), root_of("/in")
    ('/in', '/in')
    """
    if not any(sign in path for sign in PATTERN):
        return plain_directory(path)
    fixed = _fixed(path)
    return plain_directory(fixed[:-1] or fixed or ".")


def names_below(path: str) -> re.Pattern[str]:
    """A pattern for the names of the files of a path, below `root_of(path)`.

    >>> names = names_below("/in/{20*,new}/x?")
    >>> [bool(names.match(name)) for name in ("2026/x1/a", "new/x1", "old/x1/a", "20/26/x1/a", "2026/x10/a")]
    [True, True, False, False, False]
    """
    if not any(sign in path for sign in PATTERN):
        return re.compile("")
    below = path[len(_fixed(path)) :]
    return re.compile(f"(?:{'|'.join(_as_regex(one) for one in _alternatives(normpath(below)))})(?:/|$)")


def may_overlap(path: str, other: str) -> bool:
    """Could a file belong to both paths, which may be patterns? If unsure, yes.

    >>> may_overlap("/in", "/in/sub"), may_overlap("/in", "/in2")
    (True, False)
    >>> may_overlap("/in/*/orders", "/in/*/pay"), may_overlap("/in/*/orders", "/in/a")
    (False, True)
    """
    return any(all(map(_may_be_same, one, two)) for one in _folders(path) for two in _folders(other))


def _folders(path: str) -> list[list[str]]:
    """The names of the folders of a path; several if it has alternatives."""
    if not is_local(path):
        path = path.replace(":///", "://*/", 1)  # the default file system may be any
        return [one.rstrip("/").split("/") for one in _alternatives(path)]
    below = normpath(path[len(_fixed(path)) :]) if any(sign in path for sign in PATTERN) else ""
    return [one.rstrip("/").split("/") for one in _alternatives(f"{root_of(path).rstrip('/')}/{below}")]


def _may_be_same(name: str, other: str) -> bool:
    has_signs = [any(sign in one for sign in PATTERN) for one in (name, other)]
    if name == other or all(has_signs):
        return True
    pattern, plain = (name, other) if has_signs[0] else (other, name)
    return re.fullmatch(_as_regex(pattern), plain) is not None


def _fixed(path: str) -> str:
    """The part of a pattern before the first folder with a wildcard."""
    before = re.split(r"[*?\[{]", path, maxsplit=1)[0]
    return before[: before.rfind("/") + 1]


def _alternatives(pattern: str) -> list[str]:
    """A pattern without braces, once for each choice: choices may contain a slash."""
    group = re.search(r"\{([^{}]*)\}", pattern)
    if group is None:
        return [pattern]
    before, after = pattern[: group.start()], pattern[group.end() :]
    return [one for choice in group[1].split(",") for one in _alternatives(f"{before}{choice}{after}")]


def _as_regex(pattern: str) -> str:
    """A pattern without braces, as Hadoop reads it: no wildcard matches a slash."""

    def translate(found: re.Match[str]) -> str:
        sign = found[0]
        if sign in ("*", "?"):
            return "[^/]*" if sign == "*" else "[^/]"
        if sign.startswith("[") and len(sign) > 1:
            inside = found[2].replace("[", r"\[")
            return f"(?!/)[{'^' if found[1] else ''}{inside}]"
        return re.escape(sign[1:] if sign.startswith("\\") and len(sign) > 1 else sign)

    return re.sub(r"\[([!^]?)([^\]]+)\]|\\.|.", translate, pattern, flags=re.DOTALL)


def look_below(paths: Iterable[str], spark: SparkSession) -> Look:
    """All files below these directories and patterns; a directory that does not exist has none."""
    found = Look()
    for path in paths:
        folders = _expand(path, spark) if any(sign in path for sign in PATTERN) else [plain_directory(path)]
        for folder in folders:
            if is_local(folder):
                _walk(folder, found)
            else:
                _walk_remote(folder, spark, found)
    return found


def look_at(paths: Iterable[str], spark: SparkSession) -> dict[str, Facts]:
    """The facts of these files, as far as they exist."""
    found, folders = {}, set()
    for path in paths:
        if is_local(path):
            try:
                found[path] = _facts(os.stat(path))  # noqa: PTH116 - an epoch may have thousands
            except FileNotFoundError:
                continue
        else:
            folders.add(path.rpartition("/")[0])
    for folder in folders:
        found |= {path: facts for path, is_folder, facts in _list_remote(folder, spark) if not is_folder}
    return found


def remove(root: str, name: str, spark: SparkSession) -> None:
    """Delete a file below a directory; if it is gone already, nothing.

    LeadsOutside if a link is on its way: others may write to the directory, and the target of a link is not in it.
    """
    if is_local(root):
        remove_below(Path(root), name, is_file=True)
        return
    parts_of(name)
    system = HadoopSystem(root, spark)
    with as_os_error():
        system._system.delete(system._path(name), False)


def move(root: str, name: str, archive: str, to: str, spark: SparkSession) -> bool:
    """Move a file below a directory under a name below `archive`; False if that name is taken.

    LeadsOutside if it is a link, or a link is on the way to it or to its new place.
    """
    if is_local(root):
        return move_below(Path(root), name, Path(archive), to)
    parts_of(name), parts_of(to)
    system = HadoopSystem("/".join(root.split("/", 3)[:3]) + "/", spark)
    source, target = (one.split("/", 3)[3] for one in (f"{root.rstrip('/')}/{name}", f"{archive}/{to}"))
    with as_os_error():
        system._system.mkdirs(system._path(target).getParent())
    return system.put(source, target)


def _is_hidden(name: str) -> bool:
    """As Spark's listing decides it."""
    is_meta = name.startswith(("_common_metadata", "_metadata"))
    return not is_meta and (
        (name.startswith("_") and "=" not in name) or name.startswith(".") or name.endswith("._COPYING_")
    )


def _facts(status: os.stat_result) -> Facts:
    return Facts(status.st_size, status.st_mtime_ns // 1_000_000)


def _walk(folder: str, found: Look) -> None:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name == _SINK_LOG:
                    found.with_log.add(folder)
                if _is_hidden(entry.name):
                    continue
                if entry.is_dir():
                    _walk(entry.path, found)
                    continue
                try:
                    found.files[entry.path] = _facts(entry.stat())
                except FileNotFoundError:  # it was removed after the listing
                    continue
    except FileNotFoundError:
        return
    except NotADirectoryError:  # a pattern may name files
        found.files[folder] = _facts(os.stat(folder))  # noqa: PTH116


def _walk_remote(folder: str, spark: SparkSession, found: Look) -> None:
    for path, is_folder, facts in _list_remote(folder, spark):
        name = path.rpartition("/")[2]
        if name == _SINK_LOG:
            found.with_log.add(folder)
        if _is_hidden(name):
            continue
        if is_folder:
            _walk_remote(path, spark, found)
        else:
            found.files[path] = facts


def _list_remote(folder: str, spark: SparkSession) -> list[tuple[str, bool, Facts]]:
    """The direct content of a folder. One call for all of it: to ask for each entry takes minutes."""
    jvm, system = _hadoop(folder, spark)
    try:
        with as_os_error():
            listed = system.listStatus(jvm.org.apache.hadoop.fs.Path(folder))
            told = str(jvm.org.apache.commons.lang3.ArrayUtils.toString(listed))
            found = parse_listing(told)
            if len(found) != len(listed):  # a name reads like the facts of another file, or Hadoop prints others
                found = [
                    (
                        str(one.getPath().toString()),
                        bool(one.isDirectory()),
                        Facts(one.getLen(), one.getModificationTime()),
                    )
                    for one in listed
                ]
            return found
    except FileNotFoundError:
        return []


def parse_listing(listed: str) -> list[tuple[str, bool, Facts]]:
    """The entries of a listing as Hadoop prints them: path, whether it is a folder, size and time.

    >>> parse_listing("[S{path=hdfs://h/a; b; isDirectory=false; length=3; replication=1; blocksize=9;"
    ...     " modification_time=7; x}, S{path=hdfs://h/c; isDirectory=true; modification_time=8; x}]")
    [('hdfs://h/a; b', False, Facts(bytes=3, modified_ms=7)), ('hdfs://h/c', True, Facts(bytes=0, modified_ms=8))]
    """
    return [
        (path, is_folder == "true", Facts(int(size or 0), int(modified)))
        for path, is_folder, size, modified in _STATUS.findall(listed)
    ]


def _expand(path: str, spark: SparkSession) -> list[str]:
    """The files and directories that a pattern names, as Spark finds them."""
    jvm, _ = _hadoop(path, spark)
    with as_os_error():
        found = jvm.org.apache.spark.deploy.SparkHadoopUtil.get().globPath(jvm.org.apache.hadoop.fs.Path(path))
        told = str(found.mkString("\n"))
    return [one.removeprefix("file:") for one in told.split("\n") if one]


def _hadoop(path: str, spark: SparkSession) -> tuple[Any, Any]:
    jvm: Any = spark.sparkContext._jvm
    with as_os_error():
        system = jvm.org.apache.hadoop.fs.Path(path).getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    return jvm, system
