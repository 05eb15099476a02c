"""The readers of all outputs of a job at its site, as one.

    KafkaSink                  topics.py
    PostgresSink, SqliteSink   tables.py
    FileSink                   files.py
    ConsoleSink, MonitorSink   nobody: they keep nothing that could be read, and are left out of the comparison

That a reader has read all is said once, for all outputs together, and only where none of them has a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lockgate.errors import Refused
from lockgate.proof.history import Fact, Gap, Read, Reader, ReadToEnd, Standing
from lockgate.proof.outputs.files import Files
from lockgate.proof.outputs.letters import compared
from lockgate.proof.outputs.output import Clock, Output
from lockgate.proof.outputs.tables import PostgresRows, SqliteRows
from lockgate.proof.outputs.topics import Topics
from lockgate.proof.promises import Keeping
from lockgate.proof.redirect import Redirected, Result, Site
from lockgate.sinks.files import FileSink
from lockgate.sinks.kafka import KafkaSink
from lockgate.sinks.postgres import PostgresSink
from lockgate.sinks.sqlite import SqliteSink


@dataclass(frozen=True)
class Place:
    """Where the rows of an output are found, and how they are kept there."""

    label: str  # the same in every run
    keeping: Keeping
    has_transactions: bool = True


def place_of(result: Result, site: Site) -> Place | None:
    """The place of an output; None where it keeps nothing that could be read."""
    sink = result.sink
    if isinstance(sink, KafkaSink):
        return Place(str(sink.topic).removeprefix(f"{site.name}-"), Keeping.LOG)
    if isinstance(sink, FileSink):
        return Place(Path(sink.path).name, Keeping.ADDED, has_transactions=False)
    if isinstance(sink, SqliteSink):
        # One file may have tables of several outputs.
        return Place(f"{Path(sink.path).stem}-{sink.table}", Keeping.REPLACED if sink.key else Keeping.ADDED)
    if isinstance(sink, PostgresSink):
        label = sink.table.rpartition("_")[0].replace("_", "-")  # as Site.table made it
        return Place(label, Keeping.REPLACED if sink.key else Keeping.ADDED)
    return None


def unread(moved: Redirected) -> dict[str, str]:
    """The outputs of which nothing is compared, by name, and why; Refused where there is no other."""
    kinds = {one.name: type(one.sink).__name__ for one in moved.results if place_of(one, moved.site) is None}
    reasons = {name: f"a {kind} keeps nothing that could be read when all is over" for name, kind in kinds.items()}
    if reasons and len(reasons) == len(moved.results):
        name, reason = next(iter(reasons.items()))
        raise Refused(
            f"nothing of this job can be compared: output {name!r} goes into a sink of which nothing stays, {reason}",
            where=f"job {moved.job.name!r}, declared at {moved.job.origin}",
            fix="give it an output that stays, and prove that job: KafkaSink, FileSink, PostgresSink or SqliteSink",
        )
    return reasons


@dataclass(frozen=True)
class Readers:
    """All of them."""

    outputs: tuple[Output, ...]
    letters: frozenset[str] = frozenset()  # the labels of those that are dead letters
    run: str = ""  # its name

    @property
    def labels(self) -> tuple[str, ...]:
        """Of every output that is read."""
        return tuple(label for output in self.outputs for label in output.labels)

    def clear(self) -> None:
        """Remove what an earlier run of the same name left; also to be called when a run is over."""
        for output in self.outputs:
            output.clear()

    def start_along(self, clock: Clock) -> None:
        """Begin to read along."""
        for output in self.outputs:
            output.start_along(clock)

    def finish_along(self, clock: Clock) -> list[Fact]:
        """All is over: read to the end. Everything that was seen."""
        return self._ended(Reader.ALONG, [fact for output in self.outputs for fact in output.finish_along()], clock)

    def after(self, clock: Clock) -> list[Fact]:
        """Everything that is there."""
        return self._ended(Reader.AFTER, [fact for output in self.outputs for fact in output.after(clock)], clock)

    def log(self, clock: Clock) -> list[Fact]:
        """Everything that was ever written into outputs that have a log."""
        return self._ended(Reader.LOG, [fact for output in self.outputs for fact in output.log(clock)], clock)

    def standing(self, clock: Clock) -> list[Standing]:
        """What is left open."""
        return [one for output in self.outputs for one in output.standing(clock)]

    def _ended(self, reader: Reader, facts: Sequence[Fact], clock: Clock) -> list[Fact]:
        told = [
            compared(fact, self.run) if isinstance(fact, Read) and fact.output in self.letters else fact
            for fact in facts
        ]
        has_gap = any(isinstance(fact, Gap) for fact in told)
        return told if has_gap else [*told, ReadToEnd(reader, clock())]


def find_readers(moved: Redirected, *, servers: str, dsn: str | None = None) -> Readers:
    """The readers of a job's outputs; `servers` and `dsn` are the real addresses, past all proxies."""
    topics: dict[str, str] = {}
    others: dict[str, Output] = {}
    letters = set()
    for one in moved.results:
        place, sink = place_of(one, moved.site), one.sink
        if place is None:
            continue
        if one.is_letters:
            letters.add(place.label)
        if isinstance(sink, KafkaSink):
            topics[place.label] = str(sink.topic)
        elif isinstance(sink, FileSink):
            others[place.label] = Files(place.label, Path(sink.path), sink.format, is_exact=one.is_exact)
        elif isinstance(sink, SqliteSink):
            others[place.label] = SqliteRows(place.label, Path(sink.path), sink.table, key=sink.key)
        elif isinstance(sink, PostgresSink):
            address = sink.dsn if dsn is None else dsn
            job = moved.job.name
            others[place.label] = PostgresRows(place.label, address, sink.table, job=job, key=sink.key)
    inputs = {one.place: one.label for one in moved.inputs if one.is_topic}
    consumer = [Topics(servers, topics, inputs=inputs)] if topics else []
    return Readers((*consumer, *others.values()), frozenset(letters), moved.site.name)
