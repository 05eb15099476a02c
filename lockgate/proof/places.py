"""Where the outputs of a redirected job are found, and the reader of each.

KafkaSink                  topics.py
PostgresSink, SqliteSink   tables.py
FileSink                   files.py
ConsoleSink, MonitorSink   none: they keep nothing that could be read, and are not compared
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lockgate.errors import Refused
from lockgate.kafka.ledgertopic import ledger_topic
from lockgate.lab.rig.judge.promises import Keeping
from lockgate.lab.rig.readers.files import Files
from lockgate.lab.rig.readers.group import Readers
from lockgate.lab.rig.readers.output import Output
from lockgate.lab.rig.readers.tables import PostgresRows, SqliteRows
from lockgate.lab.rig.readers.topics import Topics
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
    is_exact = any(isinstance(one.sink, KafkaSink) and one.is_exact for one in moved.results)
    ledger = ledger_topic(moved.job.name) if is_exact else None
    consumer = [Topics(servers, topics, inputs=inputs, ledger=ledger)] if topics else []
    return Readers((*consumer, *others.values()), frozenset(letters), {f"{moved.site.name}-": ""})
