"""Where the outputs of a moved job are, and the reader of each.

Topic                      topics.py
ServerTable, SqliteTable   databases.py
Files                      files.py
OwnRows                    customsinks.py: the sink's own reader
any other, or none         none: nothing could be read, and nothing is compared
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lockgate.commit.resource import TransactionSink
from lockgate.connectors.kafka.ledgertopic import ledger_topic
from lockgate.dataflow.locations import Files, Location, OwnRows, ServerTable, SqliteTable, Topic
from lockgate.errors import Refused
from lockgate.lab.prove.redirect import Redirected, Result, Site
from lockgate.lab.rig.judge.promises import Keeping
from lockgate.lab.rig.readers.customsinks import CustomSinkRows
from lockgate.lab.rig.readers.databases import PostgresRows, SqliteRows
from lockgate.lab.rig.readers.files import Files as FileRows
from lockgate.lab.rig.readers.group import Readers
from lockgate.lab.rig.readers.output import Output
from lockgate.lab.rig.readers.topics import Topics


@dataclass(frozen=True)
class Place:
    """Where the rows of an output are found, and how they are kept there."""

    label: str  # the same in every run
    keeping: Keeping
    has_transactions: bool = True


def place_of(result: Result, site: Site) -> Place | None:
    """The place of an output; None where it keeps nothing that could be read."""
    match result.sink.location:
        case Topic() as topic:
            return Place(site.label_of(topic), Keeping.LOG)
        case Files() as files:
            return Place(site.label_of(files), Keeping.ADDED, has_transactions=False)
        case SqliteTable() as table:
            # One file may have tables of several outputs.
            return Place(f"{Path(table.path).stem}-{table.table}", _keeping(table))
        case ServerTable() as table:
            label = table.table.rpartition("_")[0].replace("_", "-")  # as Site.table made it
            return Place(label, _keeping(table))
        case OwnRows() as rows:
            # The sink's own reader tells nothing of what is staged.
            return Place(result.name, _keeping(rows), has_transactions=False)
    return None


def _keeping(location: Location) -> Keeping:
    return Keeping.REPLACED if location.replaced_by else Keeping.ADDED


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
        place = place_of(one, moved.site)
        if place is None:
            continue
        if one.is_letters:
            letters.add(place.label)
        match one.sink.location:
            case Topic() as topic:
                topics[place.label] = str(topic.name)
            case Files() as files:
                others[place.label] = FileRows(place.label, Path(files.path), files.format, is_exact=one.is_exact)
            case SqliteTable() as table:
                path = Path(table.path)
                others[place.label] = SqliteRows(place.label, path, table.table, key=table.replaced_by)
            case ServerTable() as table:
                address, job = table.dsn if dsn is None else dsn, moved.job.name
                others[place.label] = PostgresRows(place.label, address, table.table, job=job, key=table.replaced_by)
            case OwnRows() as rows:
                others[place.label] = CustomSinkRows(place.label, rows.look, key=rows.replaced_by)
    inputs = {one.place: one.label for one in moved.inputs if one.is_topic}
    is_exact = any(isinstance(one.sink, TransactionSink) and one.is_exact for one in moved.results)
    ledger = ledger_topic(moved.job.name) if is_exact else None
    consumer = [Topics(servers, topics, inputs=inputs, ledger=ledger)] if topics else []
    return Readers((*consumer, *others.values()), frozenset(letters), {f"{moved.site.name}-": ""})
