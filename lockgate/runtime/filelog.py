"""Spark's own log of the files that a query has read: which files, and in which epoch.

    sources/S/B             entry B of the log of source S: a line of JSON for each file
    sources/S/B.compact     the entries up to B in one; Spark writes every tenth like this
    offsets/N               the last entry of each log that belongs to epoch N

The log knows a file by its path and time, and not its size (filenotes.py).
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.checkpoints.logs import read_offsets, read_source_log
from lockgate.checkpoints.tree import open_tree
from lockgate.connectors.files.filesystem import as_os_error
from lockgate.connectors.files.listing import plain_path
from lockgate.connectors.returned import FOLDER
from lockgate.errors import Failed
from lockgate.untrusted import read_object


@dataclass(frozen=True, slots=True)
class Logged:
    """An entry of Spark's log."""

    modified_ms: int
    batch: int


class FileLogs:
    """The logs of the sources of a query."""

    def __init__(self, checkpoint: Checkpoint, logs: Sequence[int | None]) -> None:
        """Read nothing yet.

        Args:
            logs: for each line of the offsets the number of Spark's log of its source; None for other sources.
        """
        assert checkpoint.spark is not None
        self._spark = checkpoint.spark
        self._checkpoint = checkpoint
        self._tree = open_tree(checkpoint.root, checkpoint.spark)
        self._log_of = logs

    def numbers(self) -> list[int]:
        """The numbers of all sources that have a log."""
        return [int(name) for name in self._tree.folders("sources") if name.isdecimal()]

    def ends(self, epoch: int) -> dict[int, int]:
        """The last entry of each source's log that belongs to an epoch or to one before it."""
        content = self._checkpoint.read(f"offsets/{epoch}") if epoch >= 0 else None
        offsets = () if content is None else read_offsets(content).offsets
        places = [(self._log_of[int(one.source)], one.told) for one in offsets if isinstance(one.told, dict)]
        ends = [(log, place.get("logOffset")) for log, place in places if log is not None]
        return {log: end for log, end in ends if isinstance(end, int)}

    def ranges(self, epoch: int) -> dict[int, tuple[int, int]]:
        """The entries of each source's log that belong to an epoch: the first and the last."""
        before = self.ends(epoch - 1)
        return {number: (before.get(number, -1) + 1, end) for number, end in self.ends(epoch).items()}

    def files_of(self, epoch: int) -> dict[int, dict[str, Logged]]:
        """The files of an epoch, by the number of their source."""
        found: dict[int, dict[str, Logged]] = {}
        for number, (first, last) in self.ranges(epoch).items():
            found[number] = {}
            for batch in range(first, last + 1):
                content = self._read_batch(number, batch)
                if content is None:
                    raise Failed(
                        f"sources/{number}/{batch} is missing: the files of epoch {epoch} are unknown",
                        where=f"checkpoint {self._checkpoint.root}",
                        fix="restore it from a copy; find out what else is wrong: lockgate checkpoints verify",
                    )
                found[number] |= {path: one for path, one in read_entries(content).items() if one.batch == batch}
        return found

    def _read_batch(self, number: int, batch: int) -> bytes | None:
        name = f"sources/{number}/{batch}"
        summary = self._checkpoint.read(f"{name}.compact")
        return self._checkpoint.read(name) if summary is None else summary

    def read(self, number: int) -> dict[str, Logged]:
        """The whole log of a source: its newest summary, and the later entries."""
        folder = f"sources/{number}"
        names = [one.name.removeprefix(f"{folder}/") for one in self._tree.entries(folder)]
        summaries = [int(name.removesuffix(".compact")) for name in names if re.fullmatch(r"\d+\.compact", name)]
        base = max(summaries, default=-1)
        later = [int(name) for name in names if name.isdecimal() and int(name) > base]
        found: dict[str, Logged] = {}
        for batch in [*([base] if summaries else []), *sorted(later)]:
            found |= read_entries(self._read_batch(number, batch) or b"v1")
        return found

    def trim(self, epoch: int, paths: Mapping[int, Container[str]]) -> None:
        """Remove forgotten files from the newest summaries of the logs, which otherwise keep every path forever.

        Spark reads a summary when it writes the next one, and when a query starts; never while it runs an epoch.
        """
        for number, (first, last) in self.ranges(epoch).items():
            for batch in range(first, last + 1) if number in paths else ():
                name = f"sources/{number}/{batch}.compact"
                content = self._checkpoint.read(name)
                if content is None:
                    continue
                head, *lines = content.decode().split("\n")
                own = paths[number]
                kept = [line for line in lines if not line or plain_path(str(read_object(line)["path"])) in own]
                if len(kept) < len(lines):
                    self._replace(name, "\n".join([head, *kept]).encode())

    def _replace(self, name: str, content: bytes) -> None:
        """Replace a file in Spark's own way, so that a crash leaves either the old one or the new one."""
        jvm: Any = self._spark.sparkContext._jvm
        with as_os_error():
            path = jvm.org.apache.hadoop.fs.Path(f"{self._checkpoint.root}/{name}")
            made = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
            manager = made.create(path.getParent(), self._spark.sparkContext._jsc.hadoopConfiguration())
            stream = manager.createAtomic(path, True)
            try:
                stream.write(bytearray(content))
                stream.close()
            except BaseException:
                stream.cancel()
                raise


def read_entries(content: bytes) -> dict[str, Logged]:
    """The files in a part of Spark's log, without those of returned events."""
    try:
        logged = read_source_log(content)
    except ValueError:  # the log of another kind of source; `lockgate checkpoints verify` finds damage
        logged = []
    files = (one for one in logged if isinstance(one, dict) and "path" in one and "batchId" in one)
    entries = ((plain_path(str(one["path"])), one) for one in files)
    return {
        path: Logged(int(one["timestamp"]), int(one["batchId"])) for path, one in entries if f"/{FOLDER}/" not in path
    }
