"""The result of a comparison: facts for programs, a table for a terminal, and a page to show."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lockgate.columns import AFTER_FIRST, columns
from lockgate.guarantees import Guarantee
from lockgate.lab.compare.contenders import Contender, Tracking
from lockgate.lab.compare.counting import Tally
from lockgate.lab.templates import render

ASKS = {
    Guarantee.AT_MOST_ONCE: "nothing: any source, any sink, no checkpoint; begins with what comes next",
    Guarantee.AT_LEAST_ONCE: "a source that can be replayed; a checkpoint on storage that survives the driver;"
    " readers that tolerate copies",
    Guarantee.EXACTLY_ONCE: "as at-least-once, and deterministic functions before state, in micro-batch mode;"
    " readers that tolerate copies",
    Guarantee.END_TO_END_EXACTLY_ONCE: "as exactly-once (state), and a transactional sink (Kafka 3.6 or newer);"
    " readers with isolation.level=read_committed",
}
"""What each needs beside the one word in the code."""

ACKS_ASK = (
    "as by checkpoint, and a sink for dead letters; functions that may be called again for an event, and readers and"
    " state that tolerate another order: failed events come again after newer ones"
)
"""What at-least-once by acknowledgement needs."""

_COLUMNS = ("lost", "duplicated", "other", "event p50 / p99", "epoch p50 / p99", "events/s", "restart")


@dataclass(frozen=True)
class Result:
    """The result of one contender."""

    contender: Contender
    tally: Tally
    latency_ms_p50: int | None  # of events, before the first kill
    latency_ms_p99: int | None
    epoch_ms_p50: int | None
    epoch_ms_p99: int | None
    events_per_second: float
    restart_seconds: float | None  # the median
    restarts_seconds: tuple[float, ...]
    sent_at_kills: tuple[int, ...]

    def cells(self) -> tuple[str, ...]:
        """The numbers as text."""
        tally = self.tally
        return (
            f"{tally.lost_count:,}",
            f"{tally.duplicated_count:,}",
            f"{tally.other_count:,}",
            _pair(self.latency_ms_p50, self.latency_ms_p99),
            _pair(self.epoch_ms_p50, self.epoch_ms_p99),
            f"{self.events_per_second:,.0f}",
            "-" if self.restart_seconds is None else f"{self.restart_seconds:.1f} s",
        )


@dataclass(frozen=True)
class Refusal:
    """A refused contender, and why."""

    contender: Contender
    reason: str
    fix: str


@dataclass(frozen=True)
class Report:
    """The whole comparison."""

    job: str
    declared: Contender
    event_count: int
    events_origin: str
    row_count: int
    kills: int
    seconds: float
    rows_per_epoch: int
    is_by_number: bool
    results: tuple[Result, ...]
    refusals: tuple[Refusal, ...]

    def as_json(self) -> dict[str, Any]:
        """The facts as plain data."""
        return {
            **asdict(self),
            "declared": self.declared.as_json(),
            "results": [{**_flat(one), "asks": self.asks(one.contender)} for one in self.results],
            "refusals": [_flat(one) for one in self.refusals],
        }

    def lines(self, width: int) -> list[str]:
        """The table and the notes, for people."""
        lines = [f"job {self.job}: {self.event_count:,} events, {self.events_origin}; {self.row_count:,} expected rows"]
        lines += ["", *self._table(width), "", "what it needs"]
        asks = ((one.contender.label, self.asks(one.contender)) for one in self.results)
        lines += columns(asks, indent=2, width=width)
        return [*lines, "", "how it was measured", *columns(self.notes(), indent=2, width=width)]

    def _table(self, width: int) -> list[str]:
        results = [one.contender.label for one in self.results]
        room = max(map(len, [*results, *(one.contender.label for one in self.refusals)]))
        rows = ((one.contender.label.ljust(room), *one.cells()) for one in self.results)
        refused = ((one.contender.label.ljust(room), f"refused: {one.reason}") for one in self.refusals)
        return [*columns([("guarantee", *_COLUMNS), *rows], right=AFTER_FIRST), *columns(refused, width=width)]

    def asks(self, contender: Contender) -> str:
        """What a contender needs: in the code, and beside it."""
        is_by_acks = contender.tracking is Tracking.ACKS
        code = f"guarantee=Guarantee.{contender.guarantee.name}" + (", tracking=acks(...)" if is_by_acks else "")
        if contender == self.declared:
            code += " (as it is declared)"
        elif self.declared.tracking is not None:
            code += ", without tracking="
        return f"{code}; {ACKS_ASK if is_by_acks else ASKS[contender.guarantee]}"

    def notes(self) -> tuple[tuple[str, str], ...]:
        """What each number means, and how it was measured."""
        by = (
            "undisturbed runs of this job differ from each other, so rows are not compared, only their number is"
            if self.is_by_number
            else "compared with an undisturbed run, as a multiset of topic, key and value, dead letters"
            " without what names their run"
        )
        times = "once" if self.kills == 1 else f"{self.kills} times"
        return (
            ("faults", f"driver, JVM and workers are killed (SIGKILL) {times} while rows arrive, and restarted"),
            ("input", f"a few events for the first epoch, then a steady rate over {self.seconds:g} s, kills or not"),
            ("lost, duplicated", f"rows, counted by a reader of committed records without Spark; {by}"),
            ("other", "rows that the undisturbed run lacks, for example a count that restarted from zero"),
            ("event p50 / p99", "latency: from the sending of an event to the end of its epoch, before the first kill"),
            ("epoch p50 / p99", "how long an epoch took at that rate, without the first of each start"),
            ("events/s", f"undisturbed, all events sent before, {self.rows_per_epoch:,} an epoch, without the first"),
            ("restart", "from a kill to the first new row that the reader saw; the median"),
        )

    def plot(self) -> str:
        """The numbers as bars, an SVG document."""
        return render("compare/plot.svg.jinja", report=self, measures=self._measures())

    def page(self) -> str:
        """Table, plot and notes as one HTML document without other files."""
        return render("compare/page.html.jinja", report=self, columns=_COLUMNS, measures=self._measures())

    def _measures(self) -> dict[str, tuple[list[float | None], str]]:
        """What the plot shows: a value for each contender, and the format of the values."""
        results = self.results
        return {
            "rows lost": ([one.tally.lost_count for one in results], "{:,}"),
            "rows duplicated": ([one.tally.duplicated_count for one in results], "{:,}"),
            "latency of an event, p50, ms": ([one.latency_ms_p50 for one in results], "{:,}"),
            "latency of an event, p99, ms": ([one.latency_ms_p99 for one in results], "{:,}"),
            "length of an epoch, p99, ms": ([one.epoch_ms_p99 for one in results], "{:,}"),
            "events/s": ([one.events_per_second for one in results], "{:,.0f}"),
            "restart, seconds": ([one.restart_seconds for one in results], "{:.1f} s"),
        }


def _pair(p50: int | None, p99: int | None) -> str:
    return "-" if p50 is None else f"{p50:,} / {p99:,} ms"


def _flat(one: Result | Refusal) -> dict[str, Any]:
    """As plain data, with the facts of its contender."""
    facts = {name: told for name, told in asdict(one).items() if name != "contender"}
    return {**one.contender.as_json(), "label": one.contender.label, **facts}
