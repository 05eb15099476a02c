"""The tables of a run: read at its start and every now and then, and one snapshot of each for every epoch.

    at the start      a table that cannot be read stops the run
    every `refresh`   it is read again, in a thread of its own; where that fails the old snapshot stays, somebody is
                      told, and it is tried again soon
    every epoch       before its first row: which snapshot do its rows meet? (snapshots.py) The answer travels with the
                      tasks, and workers that do not hold that snapshot yet fetch it from the driver

What is read lies ready in memory; it gets into the checkpoint, and to the rows, with the next epoch that is new.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

from lockgate.dataflow.table import ReadTable
from lockgate.errors import EpochFailed, LockgateError, Refused
from lockgate.escaping import escape
from lockgate.files.system import System, is_known, open_system
from lockgate.planner.logical import Node
from lockgate.runtime.checkpoints import Checkpoint
from lockgate.runtime.snapshots import Snapshot, SnapshotLog
from lockgate.runtime.tablereading import read_snapshot
from lockgate.serving.door import Address
from lockgate.spark.door import hosts_of_driver
from lockgate.spark.tabledoor import TableDoor
from lockgate.spark.tables import SNAPSHOTS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_TRY_AGAIN = timedelta(seconds=10)
_END_SECONDS = 10.0


class Refresher:
    """Reads one table again and again; `newest` is what was read last."""

    def __init__(self, name: str, read: Callable[[], Snapshot], refresh: timedelta) -> None:
        self._name = name
        self._read = read
        self._refresh = refresh
        self._is_over = threading.Event()
        self.newest = read()
        self._thread = threading.Thread(target=self._work, name=f"lockgate-table-{name}", daemon=True)
        self._thread.start()

    def read_again(self) -> None:
        """Read it now, though it is not due."""
        self.newest = self._read()

    def stop(self) -> None:
        """Read no more."""
        self._is_over.set()
        self._thread.join(timeout=_END_SECONDS)

    def _work(self) -> None:
        pause = self._refresh
        while not self._is_over.wait(pause.total_seconds()):
            try:
                self.newest = self._read()
                pause = self._refresh
            except Exception as error:  # noqa: BLE001 - whatever it is, an older table is better than none
                if self._is_over.is_set():
                    return
                told = error.what if isinstance(error, LockgateError) else f"{type(error).__name__}: {error}"
                log.warning("table %s could not be read again, the snapshot before stays: %s", self._name, escape(told))
                pause = min(self._refresh, _TRY_AGAIN)


class Tables:
    """The tables of one job, if it has any."""

    def __init__(self, nodes: Iterable[Node], spark: SparkSession) -> None:
        self._nodes = {node.name: node for node in nodes if isinstance(node.step, ReadTable)}
        self._spark = spark
        self._refreshers: dict[str, Refresher] = {}
        self._logs: dict[str, SnapshotLog] = {}
        self._seen: dict[str, Snapshot] = {}  # by the last epoch
        self._planned = -1
        self._checkpoint: Checkpoint | None = None
        self._door = TableDoor(self._find, **hosts_of_driver(spark.sparkContext)) if self._nodes else None

    @property
    def address(self) -> Address | None:
        """Where workers ask for snapshots; None where there are no tables."""
        return None if self._door is None else self._door.address

    def open(self, checkpoint: Checkpoint) -> None:
        """Read every table for the first time, and let it be read again from now on."""
        self.keep_in(checkpoint)
        for name, node in self._nodes.items():
            step = node.step
            assert isinstance(step, ReadTable)
            self._refreshers[name] = Refresher(name, _reader(step, self._spark, node.where), step.refresh)

    def keep_in(self, checkpoint: Checkpoint) -> None:
        """Note there, from now on, which epoch sees which snapshot."""
        self._checkpoint = checkpoint
        for name, node in self._nodes.items():
            self._logs[name] = SnapshotLog(_system(checkpoint, self._spark, node.where), name, where=node.where)

    def begin(self) -> None:
        """Look, before the query is started, which epochs were planned before: these may be repeated."""
        if self._checkpoint is not None and self._nodes:
            self._planned = max(self._checkpoint.epochs("offsets"), default=-1)
            self._seen.clear()

    def choose(self, epoch: int) -> None:
        """Settle which snapshots the rows of an epoch meet; called in the thread that runs it, before it runs."""
        if not self._nodes:
            return
        for name, refresher in self._refreshers.items():
            newest = refresher.newest
            seen = self._seen.get(name)
            if epoch > self._planned and seen is not None and seen.digest == newest.digest:
                continue
            try:
                self._seen[name] = self._logs[name].choose(epoch, newest, is_repeat=epoch <= self._planned)
            except OSError as error:
                raise EpochFailed(
                    f"the snapshot of the table could not be kept in the checkpoint: {error}",
                    where=self._nodes[name].where,
                    fix="see that the checkpoint's disk has space and can be written to; the epoch is repeated",
                ) from error
            self._expire(name)
        chosen = {name: snapshot.digest for name, snapshot in self._seen.items()}
        self._spark.sparkContext.setLocalProperty(SNAPSHOTS, json.dumps(chosen))

    def read_again(self) -> None:
        """Read every table now, though it is not due."""
        for refresher in self._refreshers.values():
            refresher.read_again()

    def close(self) -> None:
        """Read no more, and let no worker in."""
        for refresher in self._refreshers.values():
            refresher.stop()
        if self._door is not None:
            self._door.close()

    def _expire(self, name: str) -> None:
        assert self._checkpoint is not None
        try:
            epochs = self._checkpoint.epochs("offsets")
            if epochs:
                self._logs[name].expire(epochs[0])
        except OSError as error:  # they only take space, and are removed the next time
            log.warning("table %s: old snapshots could not be removed: %s", name, error)

    def _find(self, table: str, digest: str) -> bytes:
        snapshot = self._seen.get(table)
        return snapshot.content if snapshot is not None and snapshot.digest == digest else b""


def _reader(step: ReadTable, spark: SparkSession, where: str) -> Callable[[], Snapshot]:
    return lambda: read_snapshot(step, spark, where)


def _system(checkpoint: Checkpoint, spark: SparkSession, where: str) -> System:
    if not is_known(checkpoint.root):
        raise Refused(
            f"the checkpoint {checkpoint.root} lies on a store whose rename is not known to be atomic and to leave"
            " alone what is there, so it cannot keep which epoch saw which snapshot of a table",
            where=where,
            fix="put the checkpoint into a local directory or on hdfs://",
        )
    return open_system(checkpoint.root, spark, where)
