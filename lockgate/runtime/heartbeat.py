"""Advance time while no events arrive, so that the last windows of a silent stream close.

A watermark moves only with events. `Heart` reads the reports of a query, and decides when and how far time may advance
without them:

    a report with rows, or a moved offset    the query reads history or new events: send no beat, restart the silence
    a repeated epoch                         it reads its old events, even if newer ones have arrived: the same
    nothing found for less than `idle`       wait
    nothing found for `idle` or longer       a beat: the watermark that the last events left, plus the silence since
    no state left                            nothing waits for time: send no beat

Only Spark's report that no input has events counts as silence. A clock alone would count a long epoch, in which the
query reads history, as silence. The heart sends no new beat before the last one has had its effect, so an epoch has at
most one beat.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from lockgate.checkpoints.checkpoint import Past
from lockgate.operators.moments import EPOCH
from lockgate.runtime.progress import Watcher, has_news
from lockgate.spark.timing import write_pulse

log = logging.getLogger(__name__)

Report = Mapping[str, Any]

_MILLISECOND = timedelta(milliseconds=1)
_REPORT_MIN, _REPORT_MAX = timedelta(milliseconds=200), timedelta(seconds=10)


def report_interval(idle: timedelta) -> timedelta:
    """How often Spark must report that it found nothing."""
    return min(max(idle / 4, _REPORT_MIN), _REPORT_MAX)


@dataclass
class Heart:
    """Decides from the reports of a query, and from nothing else."""

    idle: timedelta
    said_ms: int | None = None  # the requested watermark, in milliseconds since 1970; None while events arrive
    _silent_since: datetime | None = None
    _left_at_ms: int = 0  # the watermark that the last events left

    def take(self, report: Report, *, past: Past) -> None:
        """Take a report of a query that began with `past`, and set `said_ms`."""
        began = _parse(report["timestamp"])
        if has_news(report) or report["batchId"] <= past.planned:
            self._silent_since = began + _MILLISECOND * (report.get("durationMs") or {}).get("triggerExecution", 0)
            self.said_ms = None
            return
        if self._silent_since is None:
            self._silent_since = began
        watermark = _watermark_ms(report, past)
        if self.said_ms is None:
            self._left_at_ms = watermark
        silence = began - self._silent_since
        wanted = self._left_at_ms + silence // _MILLISECOND
        before = self._left_at_ms if self.said_ms is None else self.said_ms
        is_time = watermark > 0 and wanted - before >= self.idle // _MILLISECOND
        is_heard = self.said_ms is None or watermark >= self.said_ms
        if is_time and is_heard and _has_state(report):
            self.said_ms = wanted


class Heartbeat:
    """Reads the reports of a query in a thread, and advances time when the heart decides so."""

    def __init__(
        self,
        read: Callable[[Watcher], Sequence[Report]],
        *,
        past: Callable[[], Past],
        pulse: Path,
        idle: timedelta,
        job: str,
    ) -> None:
        self._read, self._past, self._pulse, self._job = read, past, pulse, job
        self._heart = Heart(idle)
        self._watcher = Watcher()
        self._every = (report_interval(idle) / 2).total_seconds()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lockgate-heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and remove the pulse file."""
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._pulse.unlink(missing_ok=True)

    def _beat(self) -> None:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        while not self._is_over.wait(self._every):
            try:
                reports = self._read(self._watcher)
            except (Py4JError, PySparkException, OSError) as error:
                # Between two queries of a run, or at its end, no query can report. A missing beat loses nothing.
                log.debug("job %s: no reports: %s", self._job, error)
                continue
            before = self._heart.said_ms
            for report in reports:
                if self._watcher.take(report) is not None:
                    self._heart.take(report, past=self._past())
            if self._heart.said_ms is not None and self._heart.said_ms != before:
                write_pulse(self._pulse, self._heart.said_ms)


def _has_state(report: Report) -> bool:
    """Does a step wait for time? Before the first epoch of a run this is unknown, and counts as yes."""
    operators = report.get("stateOperators") or []
    return not operators or any(operator["numRowsTotal"] for operator in operators)


def _watermark_ms(report: Report, past: Past) -> int:
    """The watermark. Before its first epoch a query does not report it, and uses the one in its checkpoint."""
    told = (report.get("eventTime") or {}).get("watermark")
    return past.watermark_ms if told is None else (_parse(told) - EPOCH) // _MILLISECOND


def _parse(moment: str) -> datetime:
    return datetime.fromisoformat(moment)
