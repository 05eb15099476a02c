"""Count what a run reports, each epoch once, and keep the figures ready for servers and exporters.

The thread that watches the query brings reports. The thread that writes epochs brings what was written. Servers and
exporters ask for figures. One lock protects everything, and a question never waits for Spark. After a restart from its
checkpoint a query may report an epoch a second time; it does not count again.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from lockgate.runtime.metrics.figures import Figure, Label, Names, added_by, fan_out_figures, shown_by
from lockgate.runtime.metrics.health import PATIENCE_SECONDS, Seen, Verdict, judge
from lockgate.runtime.progress import is_epoch

_EPOCHS_SEEN = 10
_WATERMARK = "lockgate_watermark_seconds"


@dataclass(frozen=True)
class Facts:
    """What a run knows at a moment, in addition to Spark's reports."""

    query_restarts: int = 0
    skipped: int = 0  # records that the sources removed before they were read; the operator accepted the gap
    late: int = 0
    letters: Mapping[tuple[str, str], int] = field(default_factory=dict)  # by step and kind of reason
    letters_output: str | None = None  # the output they go to, if no other part counts its rows
    waiting: int = 0
    processed: Mapping[str, int] = field(default_factory=dict)
    delivered: Mapping[str, int] = field(default_factory=dict)
    fan_outs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by step, as in `Tally.report`
    rows_per_epoch: int = 0
    heap_bytes: Mapping[str, int] = field(default_factory=dict)  # used, max
    tasks_done: Mapping[int, int] = field(default_factory=dict)  # by stage, while the query does not report


class Meter:
    """The figures of one driver, from before Spark starts to its end."""

    def __init__(
        self,
        job: str,
        *,
        guarantee: str = "",
        restarts: int = 0,
        limit_seconds: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.job = job
        self.limit_seconds = limit_seconds
        self._guarantee, self._restarts = guarantee, restarts
        self._clock, self._wall = clock, wall
        self._lock = threading.RLock()
        self._names = Names()
        self._open_seconds: Callable[[], float | None] = lambda: None
        self._processes: dict[str, int] = {"python": os.getpid()}
        self._counters: defaultdict[Label, float] = defaultdict(float)
        self._shown: dict[Label, float] = {}  # from the last reports
        self._last: dict[Label, float] = {}  # of the newest commit, and of the newest epoch
        self._facts = Facts()
        self._seen = Seen(began_at=clock())
        self._took: deque[float] = deque(maxlen=_EPOCHS_SEEN)
        self._declared = 0.0
        self._newest: tuple[str, int] | None = None  # the query and epoch that counted last

    def begin(
        self, names: Names, *, epoch_seconds: float, open_seconds: Callable[[], float | None], jvm: int | None
    ) -> None:
        """Take the names of the query's parts and the declared length of its epochs, when the query exists.

        Args:
            open_seconds: how long a transaction has been open; None if there is none.
            jvm: the process of Spark's driver, if it is on this machine.
        """
        with self._lock:
            self._names, self._open_seconds, self._declared = names, open_seconds, epoch_seconds
            if jvm is not None:
                self._processes["jvm"] = jvm
            for name in {*names.topics.values(), *names.outputs.values()}:
                self._counters["lockgate_rows_out_total", (name,)] += 0

    def update(self, reports: Sequence[Mapping[str, Any]], facts: Facts) -> None:
        """Take new reports and what the run knows after them; no reader sees one without the other."""
        with self._lock:
            for report in reports:
                self.take(report)
            self.note(facts)

    def take(self, report: Mapping[str, Any]) -> None:
        """Take a report of the query; reports arrive in their order."""
        with self._lock:
            place = (str(report.get("id")), int(report["batchId"]))
            is_old = self._newest is not None and self._newest[0] == place[0] and place[1] <= self._newest[1]
            if is_epoch(report) and not is_old:
                self._newest = place
                for key, value in added_by(report, self._names).items():
                    self._counters[key] += value
                self._took.append((report.get("durationMs") or {}).get("triggerExecution", 0) / 1000)
                self._last["lockgate_last_epoch_end_seconds", ()] = self._wall()
            news = {(one.name, one.labels): one.value for one in shown_by(report, self._names)}
            # The report of an epoch has everything; another report has only sources and time.
            before = {key: value for key, value in self._shown.items() if key[0] == _WATERMARK or not is_epoch(report)}
            self._shown = {**before, **news}
            self._seen = replace(
                self._seen,
                heard_at=self._clock(),
                epoch=place[1] if is_epoch(report) else self._seen.epoch,
                epoch_seconds=max(self._declared, median(self._took or [0.0])),  # the first epochs are slow
            )

    def add_try(self) -> None:
        """Count a try of an epoch."""
        with self._lock:
            self._counters["lockgate_epoch_tries_total", ()] += 1

    def add_commit(self, seconds: Mapping[str, float], records: Mapping[tuple[str, int], int]) -> None:
        """Count a commit of an epoch in one system: its seconds by phase, and its records by partition."""
        with self._lock:
            for phase, took in seconds.items():
                self._counters["lockgate_commit_seconds_total", (phase,)] += took
                self._last["lockgate_last_commit_seconds", (phase,)] = took
            for (topic, partition), count in records.items():
                self._counters["lockgate_records_written_total", (topic, str(partition))] += count
                if topic in self._names.topics:
                    self._counters["lockgate_rows_out_total", (self._names.topics[topic],)] += count

    def note(self, facts: Facts) -> None:
        """Take what the run knows now."""
        with self._lock:
            before, self._facts = self._facts.tasks_done, facts
            is_ahead = any(count > before.get(stage, 0) for stage, count in facts.tasks_done.items())
            if is_ahead:  # a long epoch is not a stuck one, and a long first epoch is not a start that hangs
                seen, now = self._seen, self._clock()
                self._seen = replace(seen, began_at=now) if seen.heard_at is None else replace(seen, heard_at=now)

    def fail(self, why: str) -> None:
        """Note that the run ended with an error."""
        with self._lock:
            self._seen = replace(self._seen, failed=why)

    def verdict(self) -> Verdict:
        """Is the job healthy?"""
        with self._lock:
            return judge(self._seen, now=self._clock(), limit_seconds=self.limit_seconds)

    def figures(self) -> list[Figure]:
        """All figures, as of now."""
        verdict = self.verdict()
        open_seconds = self._open_seconds()
        with self._lock:
            counters, shown, facts = dict(self._counters), {**self._shown, **self._last}, self._facts
        now = [
            Figure("lockgate_info", 1, (self._guarantee, version("lockgate"))),
            Figure("lockgate_healthy", int(verdict.is_alive)),
            Figure("lockgate_ready", int(verdict.is_ready)),
            Figure("lockgate_restarts_total", self._restarts),
            Figure("lockgate_query_restarts_total", facts.query_restarts),
            Figure("lockgate_skipped_records_total", facts.skipped),
            Figure("lockgate_late_events_total", facts.late),
            Figure("lockgate_waiting_events", facts.waiting),
            Figure("lockgate_open_transactions", int(open_seconds is not None)),
            Figure("lockgate_open_transaction_age_seconds", open_seconds or 0.0),
            Figure("lockgate_rows_per_epoch_limit", facts.rows_per_epoch),
        ]
        if facts.letters_output is not None:
            now.append(Figure("lockgate_rows_out_total", sum(facts.letters.values()), (facts.letters_output,)))
        if (_WATERMARK, ()) in shown:
            now.append(Figure("lockgate_watermark_delay_seconds", self._wall() - shown[_WATERMARK, ()]))
        now += [Figure("lockgate_dead_letters_total", count, place) for place, count in facts.letters.items()]
        now += [Figure("lockgate_events_processed_total", count, (times,)) for times, count in facts.processed.items()]
        now += [Figure("lockgate_events_delivered_total", count, (times,)) for times, count in facts.delivered.items()]
        now += fan_out_figures(facts.fan_outs)
        now += [Figure("lockgate_jvm_heap_bytes", size, (area,)) for area, size in facts.heap_bytes.items()]
        now += [
            Figure("lockgate_memory_bytes", size, (process,))
            for process, number in self._processes.items()
            if (size := resident_bytes(number)) is not None
        ]
        for (step, _), count in facts.letters.items():
            if ("lockgate_events_in_total", (step,)) in counters:  # the source read the event, and put it aside itself
                counters["lockgate_events_in_total", (step,)] += count
        told = [Figure(name, value, labels) for (name, labels), value in {**shown, **counters}.items()]
        return [*now, *told]


def resident_bytes(process: int) -> int | None:
    """The memory that a process of this machine holds; None if the system does not say."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return None
    kilobytes = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(kilobytes[0]) * 1024 if kilobytes else None
