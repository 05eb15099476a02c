"""The figures of a job: every metric with its kind and meaning, and the figures that one of Spark's reports gives.

A figure is a number with a name and labels, as in Prometheus and OpenTelemetry. A name ends with its unit; the name of
a counter ends in `_total`. A counter counts from the start of the driver; its readers expect that it restarts at 0.
All functions here are pure: a report, or another fact, in; figures out. Each epoch must be given once (meter.py).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from lockgate.runtime.progress import is_beat, is_epoch, parse_offset
from lockgate.spark.counting import OUTPUT_ROWS, STEP_ROWS

JOB_LABEL = "lockgate_job"
"""The label that names the job. Prometheus itself uses `job` for the target of the scrape."""

REASONS_MAX = 50
"""The largest number of different reasons for dead letters. Each is a time series that a server has to keep."""

OTHER_REASON = "other"

_QUANTILES = {"0.5": "p50", "0.99": "p99", "0.999": "p999"}


@dataclass(frozen=True)
class Metric:
    """The declaration of a figure: its name, its meaning, and the labels that distinguish its values."""

    name: str
    help: str
    labels: tuple[str, ...] = ()

    @property
    def is_counter(self) -> bool:
        """Can the value only grow?"""
        return self.name.endswith("_total")

    @property
    def unit(self) -> str:
        """The unit as OpenTelemetry writes it; empty for a plain count."""
        name = self.name.removesuffix("_total")
        return "s" if name.endswith("_seconds") else "By" if name.endswith("_bytes") else ""


METRICS = (
    Metric("lockgate_info", "1, with what runs.", ("guarantee", "version")),
    Metric("lockgate_healthy", "Is the job alive, as /health says: 1 or 0."),
    Metric("lockgate_ready", "Has the job done its first epoch, as /ready says: 1 or 0."),
    Metric("lockgate_restarts_total", "Starts of the driver after its first one, by the supervisor."),
    Metric("lockgate_query_restarts_total", "Starts of the query from its checkpoint inside of one driver."),
    Metric(
        "lockgate_skipped_records_total", "Records, at most, that sources lost before they were read (--accept-gap)."
    ),
    Metric("lockgate_events_in_total", "Events read.", ("source",)),
    Metric("lockgate_step_events_in_total", "Rows that came to a step.", ("step",)),
    Metric("lockgate_step_events_out_total", "Rows that left a step.", ("step",)),
    Metric("lockgate_rows_out_total", "Rows written to an output.", ("output",)),
    Metric("lockgate_records_written_total", "Records committed to Kafka in transactions.", ("topic", "partition")),
    Metric("lockgate_lag_records", "Records that wait.", ("source", "topic", "partition")),
    Metric("lockgate_watermark_seconds", "The watermark, in seconds since 1970."),
    Metric("lockgate_watermark_delay_seconds", "How far the watermark is behind the clock."),
    Metric("lockgate_state_rows", "Rows that a step keeps in its state.", ("step",)),
    Metric("lockgate_state_bytes", "Memory that the state of a step takes.", ("step",)),
    Metric("lockgate_state_rows_updated_total", "Rows of state that were written.", ("step",)),
    Metric("lockgate_epoch", "The number of the newest epoch that ended."),
    Metric("lockgate_epochs_total", "Epochs that ended."),
    Metric("lockgate_epoch_tries_total", "Tries of epochs; more of them than epochs means that some were repeated."),
    Metric("lockgate_epoch_seconds_total", "Time that epochs took."),
    Metric("lockgate_epoch_phase_seconds_total", "Time that the phases of epochs took.", ("phase",)),
    Metric("lockgate_last_epoch_seconds", "Time that the newest epoch took."),
    Metric("lockgate_last_epoch_phase_seconds", "Time that the phases of the newest epoch took.", ("phase",)),
    Metric("lockgate_last_epoch_end_seconds", "When the newest epoch ended, in seconds since 1970."),
    Metric("lockgate_commit_seconds_total", "Time that commits took.", ("phase",)),
    Metric("lockgate_last_commit_seconds", "Time that the newest commit took.", ("phase",)),
    Metric("lockgate_late_events_total", "Rows that came too late for a step, and were dropped by it."),
    Metric("lockgate_dead_letters_total", "Events that became dead letters.", ("step", "reason")),
    Metric("lockgate_waiting_events", "Events that failed and will be tried again."),
    Metric("lockgate_events_processed_total", "Events by how often each was processed.", ("times",)),
    Metric("lockgate_events_delivered_total", "Events by how often each was delivered.", ("times",)),
    Metric("lockgate_fan_out_events_total", "Events that a fan-out gave to its functions.", ("step",)),
    Metric("lockgate_fan_out_partial_total", "Events of a fan-out of which scores are missing.", ("step",)),
    Metric("lockgate_fan_out_calls_total", "Calls of functions by how they ended.", ("step", "function", "ending")),
    Metric("lockgate_fan_out_seconds", "Time that the functions took for an event.", ("step", "quantile")),
    Metric(
        "lockgate_fan_out_end_to_end_seconds",
        "Time from the arrival of an event until its results were written.",
        ("step", "quantile"),
    ),
    Metric("lockgate_open_transactions", "Transactions of the job that are open."),
    Metric("lockgate_open_transaction_age_seconds", "How long the oldest open transaction is open; 0 without one."),
    Metric("lockgate_rows_per_epoch_limit", "The most rows that an epoch takes of a source."),
    Metric("lockgate_memory_bytes", "Memory of the driver's processes.", ("process",)),
    Metric("lockgate_jvm_heap_bytes", "Heap of the driver's JVM: used, and the most it may be.", ("area",)),
)
"""Every metric; docs/METRICS.md says how to use them."""


Label = tuple[str, tuple[str, ...]]
"""What a number belongs to: the name of the metric and the values of its labels, in their order."""


@dataclass(frozen=True)
class Figure:
    """A number, and the metric and labels that it belongs to."""

    name: str
    value: float
    labels: tuple[str, ...] = ()  # in the order of the metric's


@dataclass(frozen=True)
class Names:
    """The names of a query's parts in its job."""

    sources: Mapping[str, str] = field(default_factory=dict)  # by a text in Spark's description of the source
    steps: Sequence[str] = ()  # those with state, in the order in which Spark reports them
    inputs: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of steps: the steps that feed them
    outputs: Mapping[int, str] = field(default_factory=dict)  # outputs that Spark counts, by their place in the count
    topics: Mapping[str, str] = field(default_factory=dict)  # outputs that alone write to a topic in transactions


def added_by(report: Mapping[str, Any], names: Names) -> dict[Label, float]:
    """What the report of an epoch adds to counters."""
    added: defaultdict[Label, float] = defaultdict(float)
    if not is_epoch(report):
        return added
    added["lockgate_epochs_total", ()] = 1
    left = _observed_steps(report)
    reads = {source: left[source] for source in names.sources.values() if source in left}
    for source, count in (reads or _rows_read(report, names)).items():
        added["lockgate_events_in_total", (source,)] += count
    took = report.get("durationMs") or {}
    added["lockgate_epoch_seconds_total", ()] = took.get("triggerExecution", 0) / 1000
    for phase, seconds in _phases(report).items():
        added["lockgate_epoch_phase_seconds_total", (phase,)] = seconds
    for step, operator in _operators(report, names):
        added["lockgate_state_rows_updated_total", (step,)] += operator.get("numRowsUpdated", 0)
    for step, count in left.items():
        if step not in reads:
            added["lockgate_step_events_out_total", (step,)] += count
    for step, feeding in names.inputs.items():
        if all(one in left for one in feeding):
            added["lockgate_step_events_in_total", (step,)] += sum(left[one] for one in feeding)
    counted = (report.get("observedMetrics") or {}).get(OUTPUT_ROWS)
    for tag, output in names.outputs.items():
        added["lockgate_rows_out_total", (output,)] += 0 if counted is None else counted[f"rows_{tag}"] or 0
    return added


def shown_by(report: Mapping[str, Any], names: Names) -> list[Figure]:
    """What a report says about the present; it is shown until the next report."""
    shown: list[Figure] = []
    for place, waiting in lags(report, names).items():
        shown.append(Figure("lockgate_lag_records", waiting, place))
    watermark = watermark_seconds(report)
    if watermark is not None:
        shown.append(Figure("lockgate_watermark_seconds", watermark))
    if not is_epoch(report):
        return shown
    shown.append(Figure("lockgate_epoch", report["batchId"]))
    shown.append(
        Figure("lockgate_last_epoch_seconds", (report.get("durationMs") or {}).get("triggerExecution", 0) / 1000)
    )
    for phase, seconds in _phases(report).items():
        shown.append(Figure("lockgate_last_epoch_phase_seconds", seconds, (phase,)))
    rows, sizes = Counter[str](), Counter[str]()
    for step, operator in _operators(report, names):
        rows[step] += operator.get("numRowsTotal", 0)
        sizes[step] += operator.get("memoryUsedBytes", 0)
    shown += [Figure("lockgate_state_rows", count, (step,)) for step, count in rows.items()]
    shown += [Figure("lockgate_state_bytes", size, (step,)) for step, size in sizes.items()]
    return shown


def lags(report: Mapping[str, Any], names: Names) -> dict[tuple[str, str, str], int]:
    """How many records wait, by source, topic and partition, for sources that report it."""
    found: dict[tuple[str, str, str], int] = {}
    for source in _sources(report):
        name = _name_source(source, names)
        if "waiting" in source:  # a real-time query does not report it by partition
            if source["waiting"] is not None:
                found[name, "", ""] = source["waiting"]
            continue
        end, latest = parse_offset(source.get("endOffset")), parse_offset(source.get("latestOffset"))
        if not isinstance(end, dict) or not isinstance(latest, dict):
            continue
        if isinstance(end.get("row"), int) and isinstance(latest.get("row"), int):
            found[name, "", ""] = latest["row"] - end["row"]
        for topic, partitions in latest.items():
            if isinstance(partitions, dict):
                for partition, offset in partitions.items():
                    found[name, topic, partition] = offset - (end.get(topic) or {}).get(partition, 0)
    return found


def watermark_seconds(report: Mapping[str, Any]) -> float | None:
    """The watermark in seconds since 1970; None if there is none, or no event has moved it yet."""
    told = (report.get("eventTime") or {}).get("watermark")
    if told is None:
        return None
    seconds = datetime.fromisoformat(told).timestamp()
    return seconds or None


def fan_out_figures(fan_outs: Mapping[str, Mapping[str, Any]]) -> list[Figure]:
    """What fan-outs have counted since the run began: `Tally.report` by step."""
    figures: list[Figure] = []
    for step, told in fan_outs.items():
        figures.append(Figure("lockgate_fan_out_events_total", told["events"], (step,)))
        figures.append(Figure("lockgate_fan_out_partial_total", told["partial"], (step,)))
        for function, endings in told["functions"].items():
            for ending, count in endings.items():
                figures.append(Figure("lockgate_fan_out_calls_total", count, (step, function, ending)))
        for name, kind in (
            ("lockgate_fan_out_seconds", "latency"),
            ("lockgate_fan_out_end_to_end_seconds", "end_to_end"),
        ):
            for quantile, part in _QUANTILES.items():
                if (took_ms := told[f"{kind}_ms_{part}"]) is not None:
                    figures.append(Figure(name, took_ms / 1000, (step, quantile)))
    return figures


def kind_of(reason: str) -> str:
    """The reason of a dead letter without the values of the event, so that there are few reasons.

    >>> kind_of("ValueError: 17 is not one of 'EUR', 'USD'")
    'ValueError: … is not one of …, …'
    """
    line = reason.strip().splitlines()[0] if reason.strip() else ""
    plain = re.sub(r"'[^']*'|\"[^\"]*\"|[-+]?\d(?:[\w.:+-]*\w)?", "…", line)
    return plain[:80].rstrip()


def add_reasons(before: Mapping[tuple[str, str], int], news: Mapping[tuple[str, str], int]) -> Counter[tuple[str, str]]:
    """Count dead letters by step and kind of reason; beyond the largest number of kinds a reason counts as `other`."""
    counted = Counter(before)
    for (step, reason), count in news.items():
        place = (step, kind_of(reason))
        is_new = place not in counted and len(counted) >= REASONS_MAX
        counted[(step, OTHER_REASON) if is_new else place] += count
    return counted


def _rows_read(report: Mapping[str, Any], names: Names) -> dict[str, int]:
    """The rows that Spark read from each source; if several branches read a row, each of them may count it."""
    rows: dict[str, int] = {}
    for source in _sources(report):
        name = _name_source(source, names)
        rows[name] = max(rows.get(name, 0), source["numInputRows"])
    return rows


def _sources(report: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return (source for source in report["sources"] if not is_beat(source))


def _name_source(source: Mapping[str, Any], names: Names) -> str:
    described = str(source.get("description"))
    return next((name for text, name in names.sources.items() if text in described), described)


def _phases(report: Mapping[str, Any]) -> dict[str, float]:
    took = report.get("durationMs") or {}
    return {phase: ms / 1000 for phase, ms in sorted(took.items()) if phase != "triggerExecution"}


def _operators(report: Mapping[str, Any], names: Names) -> list[tuple[str, Mapping[str, Any]]]:
    """The operators with state, each with its step; an operator inside a transform has Spark's name and its place."""
    operators = report.get("stateOperators") or []
    if len(operators) != len(names.steps):
        return [(f"{one.get('operatorName')} {place}", one) for place, one in enumerate(operators)]
    return list(zip(names.steps, operators, strict=True))


def _observed_steps(report: Mapping[str, Any]) -> dict[str, int]:
    observed = report.get("observedMetrics") or {}
    return {
        name.removeprefix(STEP_ROWS): row["rows"] or 0 for name, row in observed.items() if name.startswith(STEP_ROWS)
    }
