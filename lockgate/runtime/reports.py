"""What Spark reports about the queries of a run, each report once, and as plain data."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from lockgate.dataflow.duration import as_people_text
from lockgate.runtime.progress import Watcher, behind_job, is_epoch
from lockgate.runtime.realtime import with_waiting
from lockgate.runtime.scans import Scans, count_once, scans_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

_CLOCK_TOLERANCE = timedelta(seconds=5)


class Reports:
    """The reports of one query after the other."""

    def __init__(
        self,
        query: StreamingQuery,
        *,
        observed: Callable[[int], Mapping[str, Any] | None],  # by steps outside the query, in an epoch
        is_real_time: bool,
    ) -> None:
        self._observed, self._is_real_time = observed, is_real_time
        self.follow(query)

    def follow(self, query: StreamingQuery) -> None:
        """Continue with the reports of the next query."""
        self._query = query
        self._scans: list[Scans] | None = None  # of its sources; known after its first report

    def since(self, watcher: Watcher) -> list[dict[str, Any]]:
        """The newest report of the query, and earlier ones if the watcher has missed some."""
        last = self._query.lastProgress
        if last is None:
            return []
        if self._scans is None:
            self._scans = scans_of(self._query._jsq)
        newest = _as_mapping(last)
        reports = map(_as_mapping, self._query.recentProgress) if watcher.has_missed(newest) else [newest]
        once = (self._with_observed(count_once(report, self._scans)) for report in reports)
        return [with_waiting(report) if self._is_real_time else report for report in once]

    def _with_observed(self, report: dict[str, Any]) -> dict[str, Any]:
        below = self._observed(int(report["batchId"])) if is_epoch(report) else None
        return {**report, "observedMetrics": {**(report.get("observedMetrics") or {}), **below}} if below else report


class ClockWatch:
    """Warns once when the machine's clock is behind the job's time, and again only after it was correct."""

    def __init__(self, job: str) -> None:
        self._job, self._is_behind = job, False

    def look(self, report: Mapping[str, Any]) -> None:
        """Compare the time of a report with the clock."""
        behind = timedelta(seconds=behind_job(report, datetime.now(UTC)) // timedelta(seconds=1))
        was_behind, self._is_behind = self._is_behind, behind >= _CLOCK_TOLERANCE
        if self._is_behind and not was_behind:
            log.warning(
                "job %s: the clock of this machine is %s behind the time of the last epoch. No event is lost, but the"
                " job's time goes at half speed for about %s: epochs, windows in processing time, timers, time to live"
                " and idle= take twice as long. Check the clock of this machine, and that of the machine on which the"
                " job ran before",
                self._job,
                as_people_text(behind),
                as_people_text(2 * behind),
            )


def _as_mapping(report: Any) -> dict[str, Any]:
    """Spark's report as plain data; its form differs between releases of Spark."""
    return dict(report) if isinstance(report, dict) else dict(json.loads(report.json))
