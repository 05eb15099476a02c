"""The progress of a running query, in one line: events per second, lag, watermark, epoch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from lockgate.spark.timing import UNTIL_MS


@dataclass(frozen=True)
class Progress:
    """The state of a run after an epoch."""

    epoch: int
    events_total: int
    events_per_second: float
    lag: int | None  # records that wait in the sources; None if they cannot be counted
    watermark: str | None
    epoch_ms: int
    letters_total: int = 0  # events of this run that became dead letters
    waiting: int = 0  # events that failed and will be retried
    processed: Mapping[str, int] = field(
        default_factory=dict
    )  # the number of events of this run, by how often they were processed
    delivered: Mapping[str, int] = field(default_factory=dict)
    late_total: int = 0  # late rows that were dropped; Spark counts those of native windows by key and window
    fan_outs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by step, as in `Tally.report`

    def line(self) -> str:
        """The progress as one line for users."""
        parts = [
            f"epoch {self.epoch}",
            f"{self.events_per_second:,.0f} events/s",
            f"{self.events_total:,} events",
            f"lag {'-' if self.lag is None else f'{self.lag:,}'}",
            f"watermark {self.watermark or '-'}",
            f"{self.epoch_ms} ms",
        ]
        beside = ((self.late_total, "late"), (self.letters_total, "dead letters"), (self.waiting, "to be tried again"))
        parts[3:3] = [f"{count:,} {what}" for count, what in beside if count]
        parts += [
            f"{name} p99 {told['latency_ms_p99']:g} ms, end to end {_end_to_end(told)},"
            f" {told['partial']:,} of {told['events']:,} partial"
            for name, told in self.fan_outs.items()
            if told["events"]
        ]
        return " | ".join(parts)


def _end_to_end(told: Mapping[str, Any]) -> str:
    """The time of a fan-out's events from their arrival to their results, if the source knows the arrival."""
    age = told["end_to_end_ms_p99"]
    return "-" if age is None else f"p99 {age:,.0f} ms"


@dataclass
class Watcher:
    """Adds up the reports of a query, each of them once."""

    events_total: int = 0
    steps: Sequence[str] = ()  # the steps with state, in the order in which Spark reports them
    late_total: int = 0
    is_silent: bool = False  # was the last report about an epoch without news?
    _last: tuple[str, int, bool] | None = None
    upcoming: int = 0  # the epoch of the next report, if none is missed

    def has_missed(self, report: Mapping[str, Any]) -> bool:
        """Were there epochs between the last report and this one? Short epochs end between two looks."""
        return bool(report["batchId"] > self.upcoming)

    def reset(self) -> None:
        """Continue with a query that has a new checkpoint: its epochs begin at 0."""
        self.upcoming = 0

    def take(self, report: Mapping[str, Any] | None) -> Progress | None:
        """The progress from a new report; None if the report is an old one."""
        if report is None or (self._last is not None and _place(report) <= self._last):
            return None
        self._last = _place(report)
        self.upcoming = report["batchId"] + is_epoch(report)
        events = count_events(report["sources"])
        self.events_total += events
        self.is_silent = is_epoch(report) and not has_news(report)
        self.late_total += count_late(report, self.steps)
        watermark = (report.get("eventTime") or {}).get("watermark")
        return Progress(
            epoch=report["batchId"],
            events_total=self.events_total,
            events_per_second=report.get("processedRowsPerSecond") or 0.0,
            lag=count_lag(report["sources"]),
            watermark=None if watermark is None or watermark.startswith("1970-01-01T00:00:00") else watermark,
            epoch_ms=(report.get("durationMs") or {}).get("triggerExecution", 0),
            late_total=self.late_total,
        )


def _place(report: Mapping[str, Any]) -> tuple[str, int, bool]:
    """The order of reports: Spark's times are ISO-8601 in UTC, so their text is in order.

    Two reports may have one time. Then the report of an epoch is newer than a report from before it had data.
    """
    return report["timestamp"], report["batchId"], is_epoch(report)


def behind_job(report: Mapping[str, Any], now: datetime) -> timedelta:
    """How far the machine's clock, at `now`, is behind the job's time, which never goes backwards (spark/clock.py)."""
    return max(datetime.fromisoformat(report["timestamp"]) - now, timedelta(0))


def is_epoch(report: Mapping[str, Any]) -> bool:
    """Is the report about an epoch that ran? Other reports say that there was no reason to run one."""
    return "durationMs" not in report or "addBatch" in report["durationMs"]


def is_beat(source: Mapping[str, Any]) -> bool:
    """Is this the source of beats, which has no events?"""
    offset = parse_offset(source.get("endOffset"))
    return isinstance(offset, dict) and UNTIL_MS in offset


def has_news(report: Mapping[str, Any]) -> bool:
    """Did an input advance? The marker of a transaction is not an event, but events may follow it."""
    inputs = [source for source in report["sources"] if not is_beat(source)]
    return any(source["numInputRows"] or source.get("startOffset") != source.get("endOffset") for source in inputs)


def count_late(report: Mapping[str, Any], steps: Sequence[str] = ()) -> int:
    """How many rows the steps with state dropped, because the rows came after the watermark.

    If several passes compute a step, each of them drops the same rows. They count once. Spark may remove rows before a
    pass if they do not meet its conditions, so the pass with the most rows counts.
    """
    operators = report.get("stateOperators") or [] if is_epoch(report) else []
    late: dict[str | int, int] = {}
    for place, operator in enumerate(operators):
        step = steps[place] if len(steps) == len(operators) else place
        late[step] = max(late.get(step, 0), operator.get("numRowsDroppedByWatermark", 0))
    return sum(late.values())


def count_events(sources: list[Mapping[str, Any]]) -> int:
    """How many events were read; a source that several branches read counts once."""
    events: dict[str, int] = {}
    for source in sources:
        if is_beat(source):
            continue
        events[source["description"]] = max(events.get(source["description"], 0), source["numInputRows"])
    return sum(events.values())


def count_lag(sources: list[Mapping[str, Any]]) -> int | None:
    """How many records wait, over all sources that report it, each source once; `waiting` comes from realtime.py."""
    once = {source.get("description"): source for source in sources if not is_beat(source)}.values()
    lags = [
        source["waiting"] if "waiting" in source else _lag(source.get("endOffset"), source.get("latestOffset"))
        for source in once
    ]
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known else None


def _lag(end: Any, latest: Any) -> int | None:
    end, latest = parse_offset(end), parse_offset(latest)
    if not isinstance(end, dict) or not isinstance(latest, dict):
        return None
    if isinstance(end.get("row"), int) and isinstance(latest.get("row"), int):
        return int(latest["row"] - end["row"])
    total = 0
    for topic, partitions in latest.items():
        if not isinstance(partitions, dict):
            return None
        for partition, offset in partitions.items():
            total += offset - (end.get(topic) or {}).get(partition, 0)
    return total


def parse_offset(offset: Any) -> Any:
    """An offset of Spark's as data; None if it is not JSON."""
    if not isinstance(offset, str):
        return offset
    try:
        return json.loads(offset)
    except ValueError:
        return None
