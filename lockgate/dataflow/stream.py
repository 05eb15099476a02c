"""Streams: how an author writes down a dataflow.

Each call returns a new value and nothing runs. A `Stream` is a handle on the step that was described last; the graph
is what can be reached from a job's outputs.

    stream(name, source) -> Stream -> key_by -> KeyedStream -> window -> WindowedStream -> aggregate -> Stream -> to
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lockgate.dataflow.aggregates import Aggregate
from lockgate.dataflow.duration import Duration, as_duration
from lockgate.dataflow.endpoints import Sink, Source
from lockgate.dataflow.eventtime import EventTime, Late, arrival_time
from lockgate.dataflow.exchange import Exchange
from lockgate.dataflow.fanout import IN_FLIGHT, Partial, describe_fan_out
from lockgate.dataflow.origin import caller
from lockgate.dataflow.patterns import Pattern, checked
from lockgate.dataflow.state import StatefulFunction, check_function
from lockgate.dataflow.steps import (
    Aggregates,
    Detect,
    Exchanged,
    FlatMap,
    Join,
    LateEvents,
    Map,
    Merge,
    Part,
    Process,
    Read,
    Rolling,
    RowFunction,
    Select,
    Step,
    TableJoin,
    Timed,
    TimedOut,
    Transform,
    Where,
    WindowAggregate,
    WindowApply,
    Windowed,
    Write,
)
from lockgate.dataflow.table import Table
from lockgate.dataflow.windows import TimeWindow, Trigger, Window
from lockgate.errors import BadJob
from lockgate.guarantees import Guarantee

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def stream(name: str, source: Source) -> Stream:
    """The events of a source, under a name that state, metrics and errors refer to."""
    _require(
        isinstance(name, str) and bool(name), what=f"a source needs a name, not {name!r}", fix='stream("orders", ...)'
    )
    _require(
        isinstance(source, Source),
        what=f"stream {name!r} has no source to read from: {source!r} is not one",
        fix="give it a KafkaSource, FileSource, SocketSource, SensorSource, MqttSource or MemorySource",
    )
    return Stream(step=Read(inputs=(), origin=caller(), name=name, source=source))


@dataclass(frozen=True)
class Stream:
    """Events, one at a time."""

    step: Step

    # One event at a time

    def where(self, condition: str | RowFunction, *, deterministic: bool = True) -> Stream:
        """The events for which a SQL condition, or a function of the row, holds."""
        _require(
            callable(condition) or (isinstance(condition, str) and bool(condition.strip())),
            what=f"a condition is SQL or a function of a row, not {condition!r}",
            fix='.where("amount > 10") or .where(lambda row: row.amount > 10)',
        )
        return Stream(
            step=Where(inputs=(self.step,), origin=caller(), condition=condition, is_deterministic=deterministic)
        )

    filter = where

    def select(self, *names: str, **expressions: str) -> Stream:
        """Some columns by name, and new ones from SQL: `.select("ip", host="lower(host)")`."""
        _require(
            bool(names or expressions) and all(isinstance(text, str) for text in (*names, *expressions.values())),
            what="a select holds column names and SQL text, at least one",
            fix='.select("ip", host="lower(host)")',
        )
        chosen = [name.lower() for name in (*names, *expressions)]
        twice = sorted({name for name in chosen if chosen.count(name) > 1})
        _require(not twice, what=f"column {', '.join(twice)} is selected twice", fix="give one of them another name")
        return Stream(
            step=Select(inputs=(self.step,), origin=caller(), columns=names, expressions=_frozen(expressions))
        )

    def map(self, function: RowFunction, schema: str, *, deterministic: bool = True) -> Stream:
        """One row out for every row in: `function(Row) -> dict | tuple` with the columns of `schema`."""
        _require_function(function, schema, step="map")
        return Stream(
            step=Map(
                inputs=(self.step,), origin=caller(), function=function, schema=schema, is_deterministic=deterministic
            )
        )

    def flat_map(self, function: RowFunction, schema: str, *, deterministic: bool = True) -> Stream:
        """Any number of rows out for every row in: `function(Row) -> iterable of dict | tuple`."""
        _require_function(function, schema, step="flat_map")
        return Stream(
            step=FlatMap(
                inputs=(self.step,), origin=caller(), function=function, schema=schema, is_deterministic=deterministic
            )
        )

    def transform(self, function: Callable[[DataFrame], DataFrame], *, deterministic: bool = True) -> Stream:
        """Whatever `function` does to the DataFrame; the planner cannot look inside and assumes the weakest."""
        _require(callable(function), what="transform takes a function of a DataFrame", fix=".transform(lambda df: ...)")
        return Stream(
            step=Transform(inputs=(self.step,), origin=caller(), function=function, is_deterministic=deterministic)
        )

    # Several streams

    def split(self, **conditions: str) -> Mapping[str, Stream]:
        """Named parts; an event goes to every part whose condition holds."""
        _require(
            bool(conditions) and all(isinstance(condition, str) for condition in conditions.values()),
            what="a split needs at least one part, each with a SQL condition",
            fix='parts = s.split(small="amount < 10", large="amount >= 10")',
        )
        origin = caller()
        return _frozen(
            {
                part: Stream(step=Part(inputs=(self.step,), origin=origin, part=part, condition=condition))
                for part, condition in conditions.items()
            }
        )

    def merge(self, *others: Stream) -> Stream:
        """The events of this stream and others; they must have the same columns."""
        _require(
            bool(others) and all(isinstance(other, Stream) for other in others),
            what="merge takes at least one other stream",
            fix="a.merge(b)",
        )
        return Stream(step=Merge(inputs=(self.step, *(other.step for other in others)), origin=caller()))

    def join(
        self,
        other: Stream | Table,
        *,
        on: str | tuple[str, ...] | list[str],
        within: Duration | None = None,
        how: str = "inner",
        name: str | None = None,
    ) -> Stream:
        """Pairs of events that agree in `on` and whose event times are at most `within` apart.

        With a table every event meets the rows of it that agree in `on`, and there is no `within`.
        """
        _require(
            isinstance(other, Stream | Table),
            what=f"join takes a stream or a table, not {other!r}",
            fix="a.join(b, on=..., within=...), or a.join(table(...), on=...)",
        )
        keys = (on,) if isinstance(on, str) else tuple(on) if isinstance(on, tuple | list) else ()
        _require(
            bool(keys) and all(isinstance(key, str) for key in keys),
            what=f"on= takes the names of columns that both sides have, at least one, not {on!r}",
            fix='a.join(b, on="order_id", within="10 minutes")',
        )
        if isinstance(other, Table):
            _require(
                within is None,
                what="within= bounds a join in time, and the rows of a table have none",
                fix="leave within= away",
            )
            return Stream(step=TableJoin(inputs=(self.step, other.step), origin=caller(), name=name, on=keys, how=how))
        return Stream(
            step=Join(
                inputs=(self.step, other.step),
                origin=caller(),
                name=name,
                on=keys,
                within=None if within is None else as_duration(within, of="the bound of a join", is_zero_allowed=True),
                how=how,
            )
        )

    def fan_out(
        self,
        *,
        deadline: Duration,
        schema: str | None = None,
        partial: Partial = Partial.PUBLISH,
        in_flight: int = IN_FLIGHT,
        **functions: RowFunction,
    ) -> Stream:
        """Every event with what several functions say of it, side by side: `function(Row) -> value`.

        Results carry the event's columns, one column for each function, null where it is missing, and `is_partial`,
        `missing` (names) and `why_missing` (reasons, in the same order).

        Args:
            deadline: how long the functions may take for an event, from the moment at which its task gives it to them.
            schema: the columns that the functions give, named as they are: `"amount DOUBLE, place DOUBLE"`. Without it
                a function says what it gives by its annotation (`-> int`), and one without gives a DOUBLE.
            partial: what becomes of an event for which a function is too slow, raises, or gives what its type is not.
            in_flight: how many events of a task the functions work on at the same time.
        """
        step = describe_fan_out(
            self.step, functions, deadline=deadline, schema=schema, partial=partial, in_flight=in_flight
        )
        return Stream(step=step)

    # Time

    def event_time(
        self,
        column: str,
        *,
        lateness: Duration,
        late: Late = Late.DROP,
        allowed: Duration | None = None,
        idle: Duration | None = None,
        max_ahead: Duration | None = None,
    ) -> Stream:
        """Tell the time by a column, and wait `lateness` for stragglers.

        Args:
            late: what becomes of events that come after that.
            allowed: how long results are corrected, with `late=Late.CORRECT`.
            idle: let time go on where all inputs are silent for so long, so that the last windows close.
            max_ahead: stop at an event that is further ahead of the clock, instead of closing all windows before it.
        """
        _require(
            isinstance(column, str),
            what=f"event_time takes the name of a column, not {column!r}",
            fix='.event_time("at", lateness="10 seconds")',
        )
        _require(isinstance(late, Late), what=f"late= takes a Late, not {late!r}", fix="late=Late.DROP")
        _require(
            allowed is None or late is Late.CORRECT,
            what=f"allowed= says how long results are corrected, but late=Late.{late.name} corrects none",
            fix="declare late=Late.CORRECT, or leave allowed= away; to wait longer for stragglers raise lateness=",
        )
        time = EventTime(
            column=column,
            lateness=as_duration(lateness, of="lateness", is_zero_allowed=True),
            late=late,
            allowed=_optional(allowed, of="allowed"),
            idle=_optional(idle, of="idle"),
            max_ahead=_optional(max_ahead, of="max_ahead"),
        )
        return Stream(step=Timed(inputs=(self.step,), origin=caller(), time=time))

    def processing_time(self) -> Stream:
        """Tell the time by the clock: an event belongs to the moment at which the epoch that reads it was planned.

        No event is late: the time of a job never goes back. While the clock of the machine is behind, it goes at
        half speed.
        """
        return Stream(step=Timed(inputs=(self.step,), origin=caller(), time=arrival_time()))

    # Placement

    def exchange(self, how: Exchange) -> Stream:
        """Impose how rows reach the tasks of the next step."""
        _require(
            isinstance(how, Exchange),
            what=f"exchange takes a strategy, not {how!r}",
            fix="exchange.forward(), .broadcast(), .by_key(...) or .random()",
        )
        return Stream(step=Exchanged(inputs=(self.step,), origin=caller(), exchange=how, tasks=None))

    def parallel(self, tasks: int) -> Stream:
        """From here on, this many tasks; right behind `.exchange(...)` it says how many that one feeds."""
        _require_tasks(tasks)
        if isinstance(self.step, Exchanged) and self.step.tasks is None:
            before = self.step
            return Stream(
                step=Exchanged(inputs=before.inputs, origin=before.origin, exchange=before.exchange, tasks=tasks)
            )
        return Stream(step=Exchanged(inputs=(self.step,), origin=caller(), exchange=None, tasks=tasks))

    # Keys and windows

    def key_by(self, *names: str) -> KeyedStream:
        """The same events, grouped by columns."""
        _require(
            bool(names) and all(isinstance(name, str) for name in names),
            what="key_by takes the names of columns, at least one",
            fix='.key_by("ip"); for a value that is computed, name it in a select first',
        )
        return KeyedStream(step=self.step, keys=names)

    def window(self, window: Window, *, name: str | None = None) -> WindowedStream:
        """Group all events by windows, without a key."""
        return _windowed(self.step, (), window, name, tasks=None)

    def process(
        self,
        function: StatefulFunction,
        *,
        name: str | None = None,
        initial: str | None = None,
        deterministic: bool = True,
    ) -> Stream:
        """What a function with state makes of all events, without a key: see `KeyedStream.process`."""
        return _processed(self.step, (), function, name, initial, deterministic, tasks=None)

    def detect(self, pattern: Pattern, *, name: str | None = None) -> Stream:
        """The matches of a pattern among all events, without a key."""
        step = Detect(inputs=(self.step,), origin=caller(), name=name, keys=(), pattern=checked(pattern))
        return Stream(step=step)

    @property
    def late(self) -> Stream:
        """The events that came too late for this step."""
        _require(
            isinstance(self.step, Windowed | Detect),
            what="only the result of a window or a pattern has late events",
            fix="take .late from the stream that .aggregate(...), .apply(...) or .detect(...) returned",
        )
        return Stream(step=LateEvents(inputs=(self.step,), origin=caller()))

    @property
    def timed_out(self) -> Stream:
        """The matches that had begun when their time was over, with the name of the last stage that they reached."""
        _require(
            isinstance(self.step, Detect),
            what="only a pattern has matches that time out",
            fix="take .timed_out from the stream that .detect(...) returned",
        )
        return Stream(step=TimedOut(inputs=(self.step,), origin=caller()))

    # The end

    def to(self, name: str, sink: Sink, *, guarantee: Guarantee | None = None) -> Output:
        """An output of a job, under a name; `guarantee` may be lower than the job's, for this output only."""
        _require(
            isinstance(name, str) and bool(name), what=f"an output needs a name, not {name!r}", fix='.to("counts", ...)'
        )
        _require(
            isinstance(sink, Sink),
            what=f"output {name!r} has no sink to write to: {sink!r} is not one",
            fix="give it a KafkaSink, FileSink, ConsoleSink or MemorySink",
        )
        _require(
            guarantee is None or isinstance(guarantee, Guarantee),
            what=f"output {name!r} declares {guarantee!r}, which is no guarantee",
            fix="guarantee=Guarantee.AT_LEAST_ONCE, or leave it away for the job's own",
        )
        return Output(step=Write(inputs=(self.step,), origin=caller(), name=name, sink=sink, guarantee=guarantee))


@dataclass(frozen=True)
class KeyedStream:
    """Events grouped by columns."""

    step: Step
    keys: tuple[str, ...]
    tasks: int | None = None

    def parallel(self, tasks: int) -> KeyedStream:
        """Keep the keys' state in this many partitions, one task each."""
        _require_tasks(tasks)
        return KeyedStream(step=self.step, keys=self.keys, tasks=tasks)

    def rolling(self, *, name: str | None = None, **aggregates: str | Aggregate) -> Stream:
        """Every event with its columns, plus aggregates over its key as of that event."""
        _require_aggregates(aggregates, step="rolling")
        return Stream(
            step=Rolling(
                inputs=(self.step,),
                origin=caller(),
                name=name,
                keys=self.keys,
                aggregates=_frozen(aggregates),
                tasks=self.tasks,
            )
        )

    def window(self, window: Window, *, name: str | None = None) -> WindowedStream:
        """Group the events of each key by windows."""
        return _windowed(self.step, self.keys, window, name, tasks=self.tasks)

    def process(
        self,
        function: StatefulFunction,
        *,
        name: str | None = None,
        initial: str | None = None,
        deterministic: bool = True,
    ) -> Stream:
        """What a function with state makes of the events of each key, in the order of the source.

        Args:
            initial: states to begin with, as `lockgate state ... --json` writes them; taken in the first epoch.
        """
        return _processed(self.step, self.keys, function, name, initial, deterministic, tasks=self.tasks)

    def detect(self, pattern: Pattern, *, name: str | None = None) -> Stream:
        """The matches of a pattern among the events of each key."""
        step = Detect(
            inputs=(self.step,), origin=caller(), name=name, keys=self.keys, tasks=self.tasks, pattern=checked(pattern)
        )
        return Stream(step=step)


@dataclass(frozen=True)
class WindowedStream:
    """Events grouped by windows, and by key if there is one."""

    step: Step
    keys: tuple[str, ...]
    window: Window
    name: str | None
    tasks: int | None
    told: Trigger | None = None

    def trigger(self, *, every: Duration | int | None = None, on_late: bool = False) -> WindowedStream:
        """Tell results early, `every` so much processing time or so many events, and with `on_late` every late event.

        Results then carry `revision`, counted from 0, and `is_final`, true from the watermark on.
        """
        _require(
            isinstance(self.window, TimeWindow),
            what="a window that ends by what comes is told when it ends, and never before",
            fix="leave the trigger away, or use a window by time",
        )
        _require(
            every is not None or on_late,
            what="the trigger says neither every= nor on_late=",
            fix='.trigger(every="10 seconds"), .trigger(every=100) or .trigger(on_late=True)',
        )
        _require(
            not isinstance(every, int) or (every > 0 and not isinstance(every, bool)),
            what=f"a result is asked for every {every!r} events",
            fix=".trigger(every=100)",
        )
        span = every if every is None or isinstance(every, int) else as_duration(every, of="every")
        return replace(self, told=Trigger(every=span, on_late=on_late))

    def aggregate(self, **aggregates: str | Aggregate) -> Stream:
        """One row for every key and window: the key, `window_start`, `window_end` and these aggregates."""
        _require_aggregates(aggregates, step="aggregate")
        return Stream(
            step=WindowAggregate(
                inputs=(self.step,),
                origin=caller(),
                name=self.name,
                keys=self.keys,
                window=self.window,
                trigger=self.told,
                aggregates=_frozen(aggregates),
                tasks=self.tasks,
            )
        )

    def apply(self, function: RowFunction, schema: str, *, deterministic: bool = True) -> Stream:
        """What a function makes of all events of a window: `function(key: Row, rows: list[Row]) -> iterable of rows`.

        Results carry the key, `window_start`, `window_end` and the columns of `schema`. All events are kept until then.
        """
        _require(
            callable(function) and isinstance(schema, str),
            what="apply takes a function of a key and the rows of a window, and the schema of what it returns",
            fix='.apply(lambda key, rows: [(median(row.price for row in rows),)], "price DOUBLE")',
        )
        return Stream(
            step=WindowApply(
                inputs=(self.step,),
                origin=caller(),
                name=self.name,
                keys=self.keys,
                window=self.window,
                trigger=self.told,
                function=function,
                schema=schema,
                is_deterministic=deterministic,
                tasks=self.tasks,
            )
        )


@dataclass(frozen=True)
class Output:
    """A stream that ends in a sink; what a job is made of."""

    step: Write


def _windowed(step: Step, keys: tuple[str, ...], window: Window, name: str | None, tasks: int | None) -> WindowedStream:
    _require(
        isinstance(window, Window),
        what=f"window takes a window, not {window!r}",
        fix="windows.tumbling(...), .sliding(..., every=...), .session(gap=...), .tumbling_count(...),"
        " .sliding_count(..., every=...) or .until(...)",
    )
    return WindowedStream(step=step, keys=keys, window=window, name=name, tasks=tasks)


def _processed(
    step: Step,
    keys: tuple[str, ...],
    function: StatefulFunction,
    name: str | None,
    initial: str | None,
    deterministic: bool,
    tasks: int | None,
) -> Stream:
    check_function(function)
    _require(
        initial is None or isinstance(initial, str),
        what=f"initial= takes the path of a file of states, not {initial!r}",
        fix='initial="states.json", as `lockgate state FILE STEP --json` writes it',
    )
    return Stream(
        step=Process(
            inputs=(step,),
            origin=caller(),
            name=name,
            keys=keys,
            tasks=tasks,
            function=function,
            initial=initial,
            is_deterministic=deterministic,
        )
    )


def _frozen(mapping: dict[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(mapping))


def _optional(value: Duration | None, of: str) -> timedelta | None:
    return None if value is None else as_duration(value, of=of)


def _require(holds: bool, *, what: str, fix: str) -> None:
    if not holds:
        raise BadJob(what, where=f"declared at {caller()}", fix=fix)


def _require_function(function: object, schema: object, step: str) -> None:
    _require(
        callable(function) and isinstance(schema, str),
        what=f"{step} takes a function of a row and the schema of what it returns",
        fix=f'.{step}(lambda row: {{"total": row.price * row.count}}, "total DOUBLE")',
    )


def _require_aggregates(aggregates: Aggregates, step: str) -> None:
    _require(
        bool(aggregates) and all(isinstance(one, str | Aggregate) for one in aggregates.values()),
        what=f"{step} takes at least one aggregate, as name=SQL or of lockgate.aggregates and lockgate.synopses",
        fix=f'.{step}(total="sum(amount)")',
    )


def _require_tasks(tasks: object) -> None:
    _require(
        isinstance(tasks, int) and not isinstance(tasks, bool) and tasks > 0,
        what=f"parallel takes a whole number of tasks above zero, not {tasks!r}",
        fix=".parallel(4)",
    )
