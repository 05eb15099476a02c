"""What a comparison has found: as facts for programs, as a table for a terminal, and as a page to be shown."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from lockgate.compare.contenders import Contender, Tracking
from lockgate.compare.counting import Tally
from lockgate.compare.plot import Panel, draw
from lockgate.guarantees import Guarantee

ASKS = {
    Guarantee.AT_MOST_ONCE: "nothing: any source, any sink, no checkpoint; begins with what comes next",
    Guarantee.AT_LEAST_ONCE: "a source that can be replayed; a checkpoint on storage that survives the driver;"
    " readers that bear copies",
    Guarantee.EXACTLY_ONCE: "as at-least-once, and deterministic functions in front of state, in micro-batch mode;"
    " readers that bear copies",
    Guarantee.END_TO_END_EXACTLY_ONCE: "as exactly-once (state), and a transactional sink (Kafka 3.6 or newer);"
    " readers with isolation.level=read_committed",
}
"""What each asks of the author beside the one word in the code."""

ACKS_ASK = (
    "as by checkpoint, and a sink for dead letters; functions that may be called again for an event, and readers and"
    " state that bear another order: what failed comes again behind newer events"
)
"""What at-least-once asks by acknowledgement."""

_COLUMNS = ("lost", "duplicated", "other", "event p50 / p99", "epoch p50 / p99", "events/s", "restart")


@dataclass(frozen=True)
class Result:
    """What became of the job as one contender."""

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
        """The numbers as people read them."""
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
    """A contender that the job cannot be, and why."""

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
            "results": [{**_flat(one), "asks": self._asks(one.contender)} for one in self.results],
            "refusals": [_flat(one) for one in self.refusals],
        }

    def lines(self, width: int) -> list[str]:
        """The table and the notes, for people."""
        lines = [f"job {self.job}: {self.event_count:,} events, {self.events_origin}; {self.row_count:,} rows to come"]
        lines += ["", *self._table(), "", "what it asks of the author"]
        rooms = max(len(one) for one in (*_COLUMNS, *(each.contender.label for each in self.results)))
        for one in self.results:
            lines += _wrapped(f"  {one.contender.label:<{rooms}}  ", self._asks(one.contender), width)
        lines += ["", "how it was measured"]
        for name, text in self.notes():
            lines += _wrapped(f"  {name:<{rooms}}  ", text, width)
        return lines

    def _table(self) -> list[str]:
        rows = [("guarantee", _COLUMNS), *((one.contender.label, one.cells()) for one in self.results)]
        first = max(len(label) for label, _ in [*rows, *((one.contender.label, ()) for one in self.refusals)])
        widths = [max(len(row[index]) for _, row in rows) for index in range(len(_COLUMNS))]
        table = [
            f"{label:<{first}}" + "".join(f"  {text:>{each}}" for text, each in zip(row, widths, strict=True))
            for label, row in rows
        ]
        return [*table, *(f"{one.contender.label:<{first}}  refused: {one.reason}" for one in self.refusals)]

    def _asks(self, contender: Contender) -> str:
        is_by_acks = contender.tracking is Tracking.ACKS
        code = f"guarantee=Guarantee.{contender.guarantee.name}" + (", tracking=acks(...)" if is_by_acks else "")
        if contender == self.declared:
            code += " (as it is declared)"
        elif self.declared.tracking is not None:
            code += ", without tracking="
        return f"{code}; {ACKS_ASK if is_by_acks else ASKS[contender.guarantee]}"

    def notes(self) -> tuple[tuple[str, str], ...]:
        """What each number means, and how it came about."""
        by = (
            "undisturbed runs of this job differ from each other, so rows are not compared, only their number is"
            if self.is_by_number
            else "against the rows of an undisturbed run, as a multiset of topic, key and value, dead letters without"
            " what names their run"
        )
        times = "once" if self.kills == 1 else f"{self.kills} times"
        return (
            ("faults", f"driver, JVM and workers are killed (SIGKILL) {times} while rows come out, and started again"),
            ("input", f"a few events for the first epoch, then a steady rate over {self.seconds:g} s, kills or not"),
            ("lost, duplicated", f"rows, by a reader of committed records apart from Spark; {by}"),
            ("other", "rows that the undisturbed run has not: a count that began again from nothing, say"),
            ("event p50 / p99", "latency: from the sending of an event to the end of its epoch, before the first kill"),
            ("epoch p50 / p99", "how long an epoch took under that rate, the first of each start aside"),
            ("events/s", f"in peace, with all events there and {self.rows_per_epoch:,} in an epoch, the first aside"),
            ("restart", "from a kill to the first new row that the reader saw; the median"),
        )

    def plot(self) -> str:
        """The numbers as bars, an SVG document."""
        labels = tuple(one.contender.label for one in self.results)

        def panel(title: str, values: list[float | None], cells: list[str]) -> Panel:
            return Panel(title, tuple(zip(labels, values, cells, strict=True)))

        cells = [one.cells() for one in self.results]
        tallies = [one.tally for one in self.results]
        return draw(
            f"{self.job} under its guarantees, the same {self.event_count:,} events, killed {self.kills}x",
            (
                panel("rows lost", [float(one.lost_count) for one in tallies], [row[0] for row in cells]),
                panel("rows duplicated", [float(one.duplicated_count) for one in tallies], [row[1] for row in cells]),
                panel("latency of an event, p50, ms", *_bars([one.latency_ms_p50 for one in self.results])),
                panel("latency of an event, p99, ms", *_bars([one.latency_ms_p99 for one in self.results])),
                panel("length of an epoch, p99, ms", *_bars([one.epoch_ms_p99 for one in self.results])),
                panel("events/s, in peace", [one.events_per_second for one in self.results], [row[5] for row in cells]),
                panel("restart, seconds", [one.restart_seconds for one in self.results], [row[6] for row in cells]),
            ),
        )  # fmt: skip

    def page(self) -> str:
        """Table, plot and notes as one HTML document that needs nothing beside it."""
        head = "".join(f"<th>{escape(name)}</th>" for name in ("guarantee", *_COLUMNS, "asks of the author"))
        body = "".join(
            f"<tr><th>{escape(one.contender.label)}</th>"
            + "".join(f"<td class=number>{escape(text)}</td>" for text in one.cells())
            + f"<td>{escape(self._asks(one.contender))}</td></tr>\n"
            for one in self.results
        )
        body += "".join(
            f"<tr><th>{escape(one.contender.label)}</th><td colspan={len(_COLUMNS)}>refused: {escape(one.reason)}</td>"
            f"<td>{escape(one.fix)}</td></tr>\n"
            for one in self.refusals
        )
        notes = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>\n" for name, text in self.notes())
        title = escape(f"{self.job} under its guarantees")
        told = escape(f"{self.event_count:,} events, {self.events_origin}; {self.row_count:,} rows to come.")
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
            f"<style>{_STYLE}</style></head><body>\n<h1>{title}</h1>\n<p>{told}</p>\n"
            f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>\n{self.plot()}\n"
            f"<h2>How it was measured</h2>\n<dl>\n{notes}</dl>\n</body></html>\n"
        )


_STYLE = """
:root{color-scheme:light dark}
body{font-family:system-ui,sans-serif;max-width:1100px;margin:2rem auto;padding:0 1rem;line-height:1.4}
table{border-collapse:collapse;width:100%;margin:1rem 0 2rem;font-size:.9rem}
th,td{border-bottom:1px solid #8886;padding:.4rem .6rem;text-align:left;vertical-align:top}
td.number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
dt{font-weight:600}dd{margin:0 0 .5rem 1rem}svg{max-width:100%;height:auto}
"""


def _pair(p50: int | None, p99: int | None) -> str:
    return "-" if p50 is None else f"{p50:,} / {p99:,} ms"


def _bars(values: list[int | None]) -> tuple[list[float | None], list[str]]:
    return [*values], ["-" if value is None else f"{value:,}" for value in values]


def _flat(one: Result | Refusal) -> dict[str, Any]:
    """As plain data, with what its contender is beside its other facts."""
    facts = {name: told for name, told in asdict(one).items() if name != "contender"}
    return {**one.contender.as_json(), "label": one.contender.label, **facts}


def _wrapped(lead: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(width, len(lead) + 30), initial_indent=lead, subsequent_indent=" " * len(lead))
