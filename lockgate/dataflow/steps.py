"""The steps of a dataflow: one frozen description each, linked to the steps that feed it.

Steps hold names, SQL text or functions, never a live `Column`. They are compared by identity: two steps that read
alike are still two steps, with state of their own. Users do not make steps, `Stream` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from lockgate.dataflow.endpoints import Sink, Source
from lockgate.dataflow.eventtime import EventTime
from lockgate.dataflow.exchange import Exchange
from lockgate.dataflow.origin import Origin
from lockgate.dataflow.windows import Window
from lockgate.guarantees import Guarantee

RowFunction = Callable[..., Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class Step:
    """A node of the graph; `name` is None until the planner names it, unless the author did."""

    inputs: tuple[Step, ...]
    origin: Origin
    name: str | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Read(Step):
    """Events from a source."""

    source: Source


@dataclass(frozen=True, eq=False, kw_only=True)
class Where(Step):
    """The events for which a condition holds."""

    condition: str | RowFunction
    is_deterministic: bool = True


@dataclass(frozen=True, eq=False, kw_only=True)
class Select(Step):
    """Named columns, and new ones from SQL."""

    columns: tuple[str, ...]
    expressions: Mapping[str, str]


@dataclass(frozen=True, eq=False, kw_only=True)
class Map(Step):
    """One row out for every row in, by a function."""

    function: RowFunction
    schema: str
    is_deterministic: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class FlatMap(Step):
    """Any number of rows out for every row in, by a function."""

    function: RowFunction
    schema: str
    is_deterministic: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class Transform(Step):
    """Whatever a function of the author's does to the DataFrame."""

    function: RowFunction
    is_deterministic: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class Part(Step):
    """One part of a split: the events for which its condition holds."""

    part: str
    condition: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Merge(Step):
    """The events of several streams in one."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Join(Step):
    """Pairs of events of two streams that agree in columns and are close in time."""

    on: tuple[str, ...]
    within: timedelta | None
    how: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Timed(Step):
    """The same events, with a column that tells their time."""

    time: EventTime


@dataclass(frozen=True, eq=False, kw_only=True)
class Exchanged(Step):
    """The same events, dealt out to tasks in a way that the author imposes."""

    exchange: Exchange | None
    tasks: int | None


@dataclass(frozen=True, eq=False, kw_only=True)
class Rolling(Step):
    """Every event, with aggregates over its key as of that event."""

    keys: tuple[str, ...]
    aggregates: Mapping[str, str]
    tasks: int | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowAggregate(Step):
    """One row for every key and window, when the window closes."""

    keys: tuple[str, ...]
    window: Window
    aggregates: Mapping[str, str]
    tasks: int | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class LateEvents(Step):
    """The events that came too late for the windows of the step before."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Write(Step):
    """Rows into a sink; the only step that a job is made of directly."""

    sink: Sink
    guarantee: Guarantee | None
