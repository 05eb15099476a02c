"""The steps of a dataflow: one frozen description each, linked to the steps that feed it.

Steps hold names, SQL text or functions, never a live `Column`. They are compared by identity: two steps that look the
same are still two steps, each with its own state. Users do not make steps, `Stream` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from lockgate.dataflow.aggregates import Aggregate
from lockgate.dataflow.endpoints import Sink, Source
from lockgate.dataflow.eventtime import EventTime
from lockgate.dataflow.exchange import Exchange
from lockgate.dataflow.joinkind import JoinKind
from lockgate.dataflow.origin import Origin
from lockgate.dataflow.patterns import Pattern
from lockgate.dataflow.windows import Trigger, Window
from lockgate.guarantees import Guarantee
from lockgate.operators.process import StatefulFunction

RowFunction = Callable[..., Any]
Aggregates = Mapping[str, str | Aggregate]
"""By the name of the column that each gives: SQL, or an aggregate that SQL does not have."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Step:
    """A node of the graph; `name` is None until the planner names it, unless the user did."""

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
    """The result of a user's function over the DataFrame."""

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
    how: JoinKind


@dataclass(frozen=True, eq=False, kw_only=True)
class TableJoin(Step):
    """Every event with the rows of a table that agree with it in columns."""

    on: tuple[str, ...]
    how: JoinKind


@dataclass(frozen=True, eq=False, kw_only=True)
class Timed(Step):
    """The same events, with a column that has their time."""

    time: EventTime


@dataclass(frozen=True, eq=False, kw_only=True)
class Exchanged(Step):
    """The same events, distributed over tasks as the user says."""

    exchange: Exchange | None
    tasks: int | None


@dataclass(frozen=True, eq=False, kw_only=True)
class Keyed(Step):
    """A step that keeps state for every key; without keys, one for all."""

    keys: tuple[str, ...]
    tasks: int | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Rolling(Keyed):
    """Every event, with aggregates over its key up to and including that event."""

    aggregates: Aggregates


@dataclass(frozen=True, eq=False, kw_only=True)
class Windowed(Keyed):
    """The events of a key, grouped by windows."""

    window: Window
    trigger: Trigger | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowAggregate(Windowed):
    """One row for every key and window, when the window closes."""

    aggregates: Aggregates


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowApply(Windowed):
    """What a function makes of all events of a window."""

    function: RowFunction
    schema: str
    is_deterministic: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class Process(Keyed):
    """What a function with state makes of the events of a key."""

    function: StatefulFunction
    initial: str | None  # a file of states to start with
    is_deterministic: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class Detect(Keyed):
    """The matches of a pattern among the events of a key."""

    pattern: Pattern


@dataclass(frozen=True, eq=False, kw_only=True)
class LateEvents(Step):
    """The events that came too late for the step before."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TimedOut(Step):
    """The partial matches of the step before whose time is over."""


@dataclass(frozen=True, eq=False, kw_only=True)
class DeadLetterStep(Step):
    """The events that its inputs could not use."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Write(Step):
    """Rows into a sink; the only step that a job is made of directly."""

    sink: Sink
    guarantee: Guarantee | None
