"""Set the size of the next epochs of a running query, from the time of the last ones (epochsize.py).

It runs in the thread that writes an epoch, after its rows are written: the newest report is that of the epoch before,
and the next epoch is not planned yet. It only improves speed. So an error here is logged once, and stops nothing.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from lockgate.checkpoints.checkpoint import query_of_epoch
from lockgate.runtime.epochsize import EpochSize, EpochTiming
from lockgate.runtime.progress import count_events, count_lag, is_epoch
from lockgate.runtime.scans import Scans, count_once, scans_of
from lockgate.spark.limits import Limits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


class Backpressure:
    """Keeps the epochs of a job near their declared length, over all starts of its query in this driver."""

    def __init__(self, spark: SparkSession, epoch_size: EpochSize, *, job: str) -> None:
        self._spark, self._epoch_size, self._job = spark, epoch_size, job
        self._run: str | None = None
        self._limits: Limits | None = None
        self._epoch = -1  # the newest epoch that was measured
        self._scans: list[Scans] = []
        self._has_failed = False

    @property
    def rows(self) -> int:
        """The most rows that the next epoch takes from a source."""
        return self._epoch_size.rows

    def look(self) -> None:
        """Take Spark's last report, and set the limits."""
        if self._has_failed:
            return
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - an epoch that is written must not fail for this
            self._has_failed = True
            log.warning(
                "job %s: epochs take %d rows of each source from now on, because their limits cannot be set (%s); "
                "--rows-per-epoch sets another number",
                self._job,
                self._epoch_size.rows,
                str(error).splitlines()[0],
            )

    def _look(self) -> None:
        query = query_of_epoch(self._spark)
        run = str(query.runId().toString())
        if run != self._run or self._limits is None:
            self._run, self._epoch = run, -1
            self._scans = scans_of(query)
            self._limits = Limits(self._spark, query.streamingQuery(), self._epoch_size.rows_first)
            self._epoch_size.reset()
        told = query.lastProgress()
        report = None if told is None else count_once(json.loads(told.json()), self._scans)
        if report is not None and is_epoch(report) and report["batchId"] > self._epoch:
            self._epoch = report["batchId"]
            seconds = report["durationMs"].get("triggerExecution", 0) / 1000
            rows, is_full = count_events(report["sources"]), bool(count_lag(report["sources"]))
            self._epoch_size.take(EpochTiming(rows, seconds, is_full))
        self._limits.set(self._epoch_size.rows)
