"""The tables of a run: read at the start and at every refresh, with one snapshot of each for every epoch.

    at the start      a table that cannot be read stops the run
    every `refresh`   a separate thread reads the table again; if that fails, the old snapshot stays, a warning is
                      logged, and the thread retries soon
    every epoch       before its first row the run chooses the snapshot that its rows use (snapshots.py). The choice
                      travels with the tasks; workers that lack that snapshot fetch it from the driver

A new snapshot waits in memory. The next new epoch stores it in the checkpoint and uses it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

from lockgate.checkpoints.checkpoint import Checkpoint
from lockgate.connectors.files.filesystem import System, is_known, open_system
from lockgate.dataflow.table import ReadTable
from lockgate.errors import EpochFailed, LockgateError, Refused
from lockgate.escaping import escape
from lockgate.planner.logical import Node
from lockgate.runtime.snapshots import Snapshot, SnapshotLog
from lockgate.runtime.tablereading import read_snapshot
from lockgate.serving.rpc import Address
from lockgate.spark.driverhosts import hosts_of_driver
from lockgate.spark.tablejoin import SNAPSHOTS
from lockgate.spark.tableserver import TableServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_TRY_AGAIN = timedelta(seconds=10)
_END_SECONDS = 10.0


class Refresher:
    """Reads one table again and again; `newest` is the last snapshot."""

    def __init__(self, name: str, read: Callable[[], Snapshot], refresh: timedelta) -> None:
        self._name = name
        self._read = read
        self._refresh = refresh
        self._is_over = threading.Event()
        self.newest = read()
        self._thread = threading.Thread(target=self._work, name=f"lockgate-table-{name}", daemon=True)
        self._thread.start()

    def read_again(self) -> None:
        """Read the table now, before it is due."""
        self.newest = self._read()

    def stop(self) -> None:
        """Stop reading."""
        self._is_over.set()
        self._thread.join(timeout=_END_SECONDS)

    def _work(self) -> None:
        pause = self._refresh
        while not self._is_over.wait(pause.total_seconds()):
            try:
                self.newest = self._read()
                pause = self._refresh
            except Exception as error:  # noqa: BLE001 - whatever the error, an older table is better than none
                if self._is_over.is_set():
                    return
                told = error.what if isinstance(error, LockgateError) else f"{type(error).__name__}: {error}"
                log.warning("table %s could not be read again, the old snapshot stays: %s", self._name, escape(told))
                pause = min(self._refresh, _TRY_AGAIN)


class Tables:
    """The tables of one job, if it has any."""

    def __init__(self, nodes: Iterable[Node], spark: SparkSession) -> None:
        self._nodes = {node.name: node for node in nodes if isinstance(node.step, ReadTable)}
        self._spark = spark
        self._refreshers: dict[str, Refresher] = {}
        self._logs: dict[str, SnapshotLog] = {}
        self._seen: dict[str, Snapshot] = {}  # what the last epoch used
        self._planned = -1
        self._checkpoint: Checkpoint | None = None
        self._server = TableServer(self._find, **hosts_of_driver(spark.sparkContext)) if self._nodes else None

    @property
    def address(self) -> Address | None:
        """The address at which workers fetch snapshots; None if there are no tables."""
        return None if self._server is None else self._server.address

    def open(self, checkpoint: Checkpoint) -> None:
        """Read every table for the first time, and start to refresh it."""
        self.keep_in(checkpoint)
        for name, node in self._nodes.items():
            step = node.step
            assert isinstance(step, ReadTable)
            self._refreshers[name] = Refresher(name, _reader(step, self._spark, node.where), step.refresh)

    def keep_in(self, checkpoint: Checkpoint) -> None:
        """Use this checkpoint from now on for the notes about which epoch uses which snapshot."""
        self._checkpoint = checkpoint
        for name, node in self._nodes.items():
            self._logs[name] = SnapshotLog(_system(checkpoint, self._spark, node.where), name, where=node.where)

    def begin(self) -> None:
        """Find out, before the query starts, which epochs are planned already: the query may repeat them."""
        if self._checkpoint is not None and self._nodes:
            self._planned = max(self._checkpoint.epochs("offsets"), default=-1)
            self._seen.clear()

    def choose(self, epoch: int) -> None:
        """Choose the snapshots for the rows of an epoch; called in the thread that runs it, before it runs."""
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
                    fix="check that the checkpoint's disk has space and is writable; the epoch is repeated",
                ) from error
            self._expire(name)
        chosen = {name: snapshot.digest for name, snapshot in self._seen.items()}
        self._spark.sparkContext.setLocalProperty(SNAPSHOTS, json.dumps(chosen))

    def read_again(self) -> None:
        """Read every table now, before it is due."""
        for refresher in self._refreshers.values():
            refresher.read_again()

    def close(self) -> None:
        """Stop reading, and accept no more workers."""
        for refresher in self._refreshers.values():
            refresher.stop()
        if self._server is not None:
            self._server.close()

    def _expire(self, name: str) -> None:
        assert self._checkpoint is not None
        try:
            epochs = self._checkpoint.epochs("offsets")
            if epochs:
                self._logs[name].expire(epochs[0])
        except OSError as error:  # they only take space, and the next epoch tries again
            log.warning("table %s: old snapshots could not be removed: %s", name, error)

    def _find(self, table: str, digest: str) -> bytes:
        snapshot = self._seen.get(table)
        return snapshot.content if snapshot is not None and snapshot.digest == digest else b""


def _reader(step: ReadTable, spark: SparkSession, where: str) -> Callable[[], Snapshot]:
    return lambda: read_snapshot(step, spark, where)


def _system(checkpoint: Checkpoint, spark: SparkSession, where: str) -> System:
    if not is_known(checkpoint.root):
        raise Refused(
            f"the checkpoint {checkpoint.root} is on a store whose rename may not be atomic, or may replace existing"
            " files, so it cannot keep which epoch used which snapshot of a table",
            where=where,
            fix="put the checkpoint into a local directory or on hdfs://",
        )
    return open_system(checkpoint.root, spark, where)
