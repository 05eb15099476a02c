"""What flows from one step to the next: its columns, as far as they are known, and which of them has the time.

Columns are followed as far as SQL can be parsed. After a `transform` they are unknown (None), and Spark's analyser
checks them. A column that does not exist is refused, and the error names the closest one that does.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lockgate.dataflow.endpoints import POSITION
from lockgate.dataflow.eventtime import EventTime
from lockgate.dataflow.origin import Origin
from lockgate.dataflow.schema import Column, Schema
from lockgate.errors import BadJob
from lockgate.planner.sql import find_bare, read_expression

MISSED = "__missed"
"""Hidden column of late events: the end of the window that they missed. After a native window, events that are in time
stay beside them until the end of the epoch, when the run cuts the stream at the watermark."""


@dataclass(frozen=True)
class Flow:
    """What leaves a step: the visible columns, the hidden ones, and the time that one of them has."""

    columns: Schema | None
    hidden: tuple[str, ...]
    time: EventTime | None
    timed_at: Origin | None = None  # where event time was declared, even if no column has it any more
    is_broadcast: bool = False  # does every event come several times, once for each task?
    fed_by: Flow | None = None  # of a window: what it takes, some of which may be late


def still_hidden(flow: Flow, columns: Schema) -> tuple[str, ...]:
    """The hidden columns that no visible one has replaced."""
    return tuple(name for name in flow.hidden if columns.find(name) is None)


def can_see(name: str, flow: Flow) -> bool:
    """Can SQL name this column?"""
    return name.lower() in flow.hidden or (flow.columns is not None and flow.columns.find(name) is not None)


def has_position(flow: Flow) -> bool:
    """Do rows still have their place in a source?"""
    return POSITION in flow.hidden


def extended(base: Iterable[Column], aggregates: Iterable[str], where: str) -> Schema:
    """Columns with more beside them; refused if a name would exist twice."""
    columns = [*base, *(Column(name=name) for name in aggregates)]
    names = [column.name.lower() for column in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadJob(f"column {', '.join(twice)} would exist twice", where=where, fix="give one of them another name")
    return Schema(columns=tuple(columns))


def may_be_aggregate(sql: str) -> bool:
    """May a function that sqlglot does not know be an aggregate? It may be one of Spark's, and Spark checks it."""
    facts = read_expression(sql)
    return facts is None or bool(facts.functions)


def require_columns(sql: str, flow: Flow, where: str, beside: Sequence[str] = ()) -> None:
    """Refuse SQL over columns that do not exist; `beside` are names that exist as well."""
    facts = read_expression(sql)
    others = {name.lower() for name in beside}
    for name in sorted(facts.columns) if facts else ():
        if name.lower() not in others:
            require_column(name, flow, where, sql=sql)
    for name in sorted(find_bare(sql)) if flow.columns is not None else ():
        if name.lower() not in others and not can_see(name, flow):
            raise BadJob(
                f"there is no column {name!r}, which {sql!r} names, so Spark would take it for a function",
                where=where,
                fix=f"name a column that exists; if you mean the function, write {name}()",
            )


def require_column(name: str, flow: Flow, where: str, sql: str | None = None) -> None:
    """Refuse a column that does not exist."""
    if flow.columns is None or flow.columns.find(name) or name.lower() in flow.hidden:
        return
    known = [*flow.columns.names, *flow.hidden]
    close = difflib.get_close_matches(name.lower(), [one.lower() for one in known], n=1)
    inside = f" in {sql!r}" if sql and sql != name else ""
    raise BadJob(
        f"column {name!r}{inside} does not exist",
        where=where,
        fix=(f"did you mean {close[0]!r}? " if close else "") + f"the columns here are {', '.join(flow.columns.names)}",
    )
