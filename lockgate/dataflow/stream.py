"""Streams: how a user describes a dataflow.

Each call returns a new value and nothing runs. A `Stream` refers to the step that was described last; the graph is
everything that a job's outputs depend on.

    stream(name, source) -> Stream -> key_by -> KeyedStream -> window -> WindowedStream -> aggregate -> Stream -> to

This is one story, although it is long: every method has its arguments and a runnable example in its docstring.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lockgate.dataflow.aggregates import Aggregate
from lockgate.dataflow.arguments import explain_wrong_calls
from lockgate.dataflow.duration import Duration, as_duration
from lockgate.dataflow.endpoints import Sink, Source
from lockgate.dataflow.eventtime import EventTime, Late, arrival_time
from lockgate.dataflow.exchange import Exchange
from lockgate.dataflow.fanout import IN_FLIGHT, Partial, describe_fan_out
from lockgate.dataflow.joinkind import JoinKind
from lockgate.dataflow.origin import caller
from lockgate.dataflow.patterns import Pattern, checked
from lockgate.dataflow.slips import explain_missing
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
    """Read the events of a source.

    Args:
        name: what state, metrics, plans and errors call this source.
        source: where the events come from.

    Raises:
        BadJob: the name is empty, or the source is not one.

    >>> lines = stream("lines", SocketSource(host="localhost", port=9999))
    """
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
    """Events, one at a time. `stream(...)` makes the first one; each step returns a new one.

    >>> large = orders.where("amount > 100").select("id", "amount", cents="amount * 100")
    >>> output = large.to("large", MemorySink())
    """

    step: Step

    if not TYPE_CHECKING:  # a type checker refuses what is missing

        def __getattr__(self, name: str) -> Any:
            raise explain_missing(type(self), name)

    # One event at a time

    def where(self, condition: str | RowFunction, *, deterministic: bool = True) -> Stream:
        """Keep the events for which a condition holds. `.filter` is the same.

        Args:
            condition: SQL, or a function of a row. An event is dropped if the condition is false or null.
            deterministic: False if the function can answer differently for the same row.

        >>> large = orders.where("amount > 100")
        >>> same = orders.filter(lambda row: row.amount is not None and row.amount > 100)
        """
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
        """Keep some columns, and compute new ones.

        Args:
            names: columns to keep.
            expressions: new columns, as SQL.

        >>> small = orders.select("ip", "at", cents="amount * 100")
        """
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
        """Make one row of every row.

        Args:
            function: takes a Row; returns a dict or a tuple with the columns of `schema`.
            schema: the columns of the result, as Spark DDL. They replace the columns of the event.
            deterministic: False if the function can return something else for the same row.

        >>> taxed = orders.map(lambda row: {"id": row.id, "total": row.amount * 1.2}, "id BIGINT, total DOUBLE")
        """
        _require_function(function, schema, step="map")
        return Stream(
            step=Map(
                inputs=(self.step,), origin=caller(), function=function, schema=schema, is_deterministic=deterministic
            )
        )

    def flat_map(self, function: RowFunction, schema: str, *, deterministic: bool = True) -> Stream:
        """Make any number of rows of every row.

        Args:
            function: takes a Row; returns an iterable of dicts or tuples with the columns of `schema`.
            schema: the columns of the result, as Spark DDL. They replace the columns of the event.
            deterministic: False if the function can return something else for the same row.

        >>> words = clicks.flat_map(lambda row: [(part,) for part in row.url.split("/")], "part STRING")
        """
        _require_function(function, schema, step="flat_map")
        return Stream(
            step=FlatMap(
                inputs=(self.step,), origin=caller(), function=function, schema=schema, is_deterministic=deterministic
            )
        )

    def transform(self, function: Callable[[DataFrame], DataFrame], *, deterministic: bool = True) -> Stream:
        """Apply a function to the DataFrame. The planner cannot look inside and assumes the weakest.

        Args:
            function: takes a streaming DataFrame and returns one.
            deterministic: False if the result can be another one for the same rows.

        >>> upper = orders.transform(lambda frame: frame.withColumnRenamed("ip", "host"))
        """
        _require(callable(function), what="transform takes a function of a DataFrame", fix=".transform(lambda df: ...)")
        return Stream(
            step=Transform(inputs=(self.step,), origin=caller(), function=function, is_deterministic=deterministic)
        )

    # Several streams

    @explain_wrong_calls('.split(small="amount < 10", large="amount >= 10")')
    def split(self, **conditions: str) -> Mapping[str, Stream]:
        """Make named parts of a stream. An event goes to every part whose condition holds.

        Args:
            conditions: SQL for each part.

        >>> parts = orders.split(small="amount < 10", large="amount >= 10")
        >>> sorted(parts)
        ['large', 'small']
        """
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
        """Put the events of several streams into one. All must have the same columns.

        Args:
            others: the other streams.

        >>> every = orders.where("amount < 10").merge(orders.where("amount > 1000"))
        """
        _require(
            bool(others) and all(isinstance(other, Stream) for other in others),
            what="merge takes at least one other stream",
            fix="a.merge(b)",
        )
        return Stream(step=Merge(inputs=(self.step, *(other.step for other in others)), origin=caller()))

    @explain_wrong_calls('.join(other, on="order_id", within="10 minutes")')
    def join(
        self,
        other: Stream | Table,
        *,
        on: str | tuple[str, ...] | list[str],
        within: Duration | None = None,
        how: JoinKind | str = JoinKind.INNER,
        name: str | None = None,
    ) -> Stream:
        """Pair the events of two streams, or give each event the matching rows of a table.

        Args:
            other: a stream, or a table.
            on: the column, or columns, in which a pair agrees. Both sides have them.
            within: how far apart the event times of a pair can be. A join with a table has no such bound.
            how: a JoinKind or its text.
            name: what state, metrics, plans and errors call this step.

        Raises:
            BadJob: an argument cannot be valid. The planner raises it if a column or the event time is missing.

        >>> visits = clicks.event_time("seen", lateness="10s")
        >>> pairs = orders.event_time("at", lateness="10s").join(visits, on="ip", within="5m", how=JoinKind.LEFT)
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
        _require(
            how in [*JoinKind],
            what=f"how={how!r} is not a join",
            fix=f"how= one of {', '.join(JoinKind)}",
        )
        how = JoinKind(how)
        if isinstance(other, Table):
            _require(
                within is None,
                what="within= bounds a join in time, and the rows of a table have none",
                fix="remove within=",
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

    @explain_wrong_calls('.fan_out(deadline="20 ms", score=score)')
    def fan_out(
        self,
        *,
        deadline: Duration,
        schema: str | None = None,
        partial: Partial = Partial.PUBLISH,
        in_flight: int = IN_FLIGHT,
        **functions: RowFunction,
    ) -> Stream:
        """Ask several functions about every event, side by side, and wait until a deadline.

        Results carry the event's columns, one column for each function (null if it is missing), and `is_partial`,
        `missing` (names) and `why_missing` (reasons, in the same order). docs/FAN_OUT.md.

        Args:
            deadline: how long the functions can take for an event, from the moment at which its task gives it to them.
            schema: the columns that the functions return, named after them: `"amount DOUBLE, place DOUBLE"`. By default
                the annotation of a function decides (`-> int`), and it is DOUBLE if there is none.
            partial: what happens to an event for which a function is late, raises or returns another type.
            in_flight: how many events of a task the functions work on at the same time.
            functions: each takes a Row and returns the value of the column with its name.

        >>> def by_amount(row) -> float:
        ...     return min(1.0, row.amount / 1000)
        >>> scored = orders.fan_out(deadline="20ms", by_amount=by_amount, partial=Partial.DEAD_LETTER)
        """
        step = describe_fan_out(
            self.step, functions, deadline=deadline, schema=schema, partial=partial, in_flight=in_flight
        )
        return Stream(step=step)

    # Time

    @explain_wrong_calls('.event_time("at", lateness="10 seconds")')
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
        """Use a column as the time of events, and wait for late ones. docs/TIME.md.

        Args:
            column: a TIMESTAMP column.
            lateness: how long to wait for events that are behind. The watermark is the greatest time minus this.
            late: what happens to events that come even later.
            allowed: how long results are corrected, with `late=Late.CORRECT`.
            idle: let time continue after all inputs are silent for this long, so that the last windows close.
            max_ahead: stop at an event that is further ahead of the clock, instead of closing all windows before it.

        Raises:
            BadJob: an argument cannot be valid.

        >>> timed = orders.event_time("at", lateness="10 seconds", late=Late.LOG, idle="1m")
        >>> counts = timed.window(windows.tumbling("1m")).aggregate(n="count(*)")
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
            fix="declare late=Late.CORRECT, or remove allowed=; to wait longer for late events raise lateness=",
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
        """Use the clock as the time of events: an event gets the time at which its epoch was planned.

        No event is late, because the time of a job never goes back. While the clock of the machine is behind, the job's
        time goes at half speed.

        >>> timed = orders.processing_time()
        """
        return Stream(step=Timed(inputs=(self.step,), origin=caller(), time=arrival_time()))

    # Placement

    def exchange(self, how: Exchange) -> Stream:
        """Choose how rows travel to the tasks of the next step. Without this, the planner chooses.

        Args:
            how: `exchange.forward()`, `.broadcast()`, `.by_key(...)` or `.random()`.

        >>> spread = orders.exchange(exchange.random()).parallel(4)
        """
        _require(
            isinstance(how, Exchange),
            what=f"exchange takes a strategy, not {how!r}",
            fix="exchange.forward(), .broadcast(), .by_key(...) or .random()",
        )
        return Stream(step=Exchanged(inputs=(self.step,), origin=caller(), exchange=how, tasks=None))

    def parallel(self, tasks: int) -> Stream:
        """Run the next steps in this many tasks. Right after `.exchange(...)` it sets the tasks of that exchange.

        Args:
            tasks: how many.

        >>> wide = orders.parallel(8)
        """
        _require_tasks(tasks)
        if isinstance(self.step, Exchanged) and self.step.tasks is None:
            before = self.step
            return Stream(
                step=Exchanged(inputs=before.inputs, origin=before.origin, exchange=before.exchange, tasks=tasks)
            )
        return Stream(step=Exchanged(inputs=(self.step,), origin=caller(), exchange=None, tasks=tasks))

    # Keys and windows

    def key_by(self, *names: str) -> KeyedStream:
        """Group the events by columns.

        Args:
            names: the columns.

        >>> per_ip = orders.key_by("ip")
        """
        _require(
            bool(names) and all(isinstance(name, str) for name in names),
            what="key_by takes the names of columns, at least one",
            fix='.key_by("ip"); for a value that is computed, name it in a select first',
        )
        return KeyedStream(step=self.step, keys=names)

    def window(self, window: Window, *, name: str | None = None) -> WindowedStream:
        """Group all events by windows, without a key.

        Args:
            window: one of `lockgate.windows`.
            name: what state, metrics, plans and errors call this step.

        >>> total = orders.window(windows.tumbling_count(100)).aggregate(total="sum(amount)")
        """
        return _windowed(self.step, (), window, name, tasks=None)

    def process(
        self,
        function: StatefulFunction,
        *,
        name: str | None = None,
        initial: str | None = None,
        deterministic: bool = True,
    ) -> Stream:
        """Process all events with a function that has state, without a key: see `KeyedStream.process`.

        Args:
            function: an object of your own class.
            name: what state, metrics, plans and errors call this step.
            initial: a file of states to start with, as `lockgate state ... --json` writes it.
            deterministic: False if the function can return something else for the same events.

        >>> class Total(StatefulFunction):
        ...     schema = "total DOUBLE"
        ...     total = value("DOUBLE")
        ...     def process(self, row, context):
        ...         self.total.set((self.total.get() or 0.0) + row.amount)
        ...         yield (self.total.get(),)
        >>> totals = orders.process(Total())
        """
        return _processed(self.step, (), function, name, initial, deterministic, tasks=None)

    def detect(self, pattern: Pattern, *, name: str | None = None) -> Stream:
        """Find the matches of a pattern among all events, without a key.

        Args:
            pattern: made with `lockgate.pattern`.
            name: what state, metrics, plans and errors call this step.

        >>> jumps = orders.detect(pattern.begin("low", "amount < 1").next("high", "amount > 1000"))
        """
        step = Detect(inputs=(self.step,), origin=caller(), name=name, keys=(), pattern=checked(pattern))
        return Stream(step=step)

    @property
    def late(self) -> Stream:
        """The events that came too late for this step, the result of a window or a pattern.

        >>> timed = orders.event_time("at", lateness="10s", late=Late.TO_SIDE_OUTPUT)
        >>> too_late = timed.window(windows.tumbling("1m")).aggregate(n="count(*)").late
        """
        _require(
            isinstance(self.step, Windowed | Detect),
            what="only the result of a window or a pattern has late events",
            fix="take .late from the stream that .aggregate(...), .apply(...) or .detect(...) returned",
        )
        return Stream(step=LateEvents(inputs=(self.step,), origin=caller()))

    @property
    def timed_out(self) -> Stream:
        """The partial matches of a pattern whose time is over, with the name of the last stage that each reached.

        >>> two = pattern.begin("low", "amount < 1").then("high", "amount > 1000").within("5m")
        >>> unfinished = orders.event_time("at", lateness="10s").key_by("ip").detect(two).timed_out
        """
        _require(
            isinstance(self.step, Detect),
            what="only a pattern has matches that time out",
            fix="take .timed_out from the stream that .detect(...) returned",
        )
        return Stream(step=TimedOut(inputs=(self.step,), origin=caller()))

    # The end

    def to(self, name: str, sink: Sink, *, guarantee: Guarantee | None = None) -> Output:
        """Write the stream to a sink. A job is made of such outputs.

        Args:
            name: what plans, metrics and errors call this output.
            sink: where the rows go.
            guarantee: a lower one than the job's, for this output only.

        >>> shown = orders.to("screen", ConsoleSink(), guarantee=Guarantee.AT_LEAST_ONCE)
        """
        _require(
            isinstance(name, str) and bool(name), what=f"an output needs a name, not {name!r}", fix='.to("counts", ...)'
        )
        _require(
            isinstance(sink, Sink),
            what=f"output {name!r} has no sink to write to: {sink!r} is not one",
            fix="give it a KafkaSink, PostgresSink, FileSink, SqliteSink, MonitorSink, ConsoleSink or MemorySink",
        )
        _require(
            guarantee is None or isinstance(guarantee, Guarantee),
            what=f"output {name!r} declares {guarantee!r}, which is no guarantee",
            fix="guarantee=Guarantee.AT_LEAST_ONCE, or remove it: then the job's guarantee holds",
        )
        return Output(step=Write(inputs=(self.step,), origin=caller(), name=name, sink=sink, guarantee=guarantee))


@dataclass(frozen=True)
class KeyedStream:
    """Events that are grouped by columns. `Stream.key_by` makes it; its steps keep state for every key.

    >>> per_ip = orders.key_by("ip")
    >>> totals = per_ip.rolling(total="sum(amount)")
    """

    step: Step
    keys: tuple[str, ...]
    tasks: int | None = None

    if not TYPE_CHECKING:  # a type checker refuses what is missing

        def __getattr__(self, name: str) -> Any:
            raise explain_missing(type(self), name)

    def parallel(self, tasks: int) -> KeyedStream:
        """Keep the state of the keys in this many partitions, one task each.

        Args:
            tasks: how many.

        >>> totals = orders.key_by("ip").parallel(4).rolling(total="sum(amount)")
        """
        _require_tasks(tasks)
        return KeyedStream(step=self.step, keys=self.keys, tasks=tasks)

    @explain_wrong_calls('.rolling(total="sum(amount)")')
    def rolling(self, *, name: str | None = None, **aggregates: str | Aggregate) -> Stream:
        """Give every event the aggregates over its key, up to and including that event.

        Args:
            name: what state, metrics, plans and errors call this step.
            aggregates: SQL for each new column, or one of `lockgate.aggregates` and `lockgate.synopses`.

        >>> totals = orders.key_by("ip").rolling(total="sum(amount)", n="count(*)")
        """
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
        """Group the events of each key by windows.

        Args:
            window: one of `lockgate.windows`.
            name: what state, metrics, plans and errors call this step.

        >>> timed = orders.event_time("at", lateness="10s")
        >>> counts = timed.key_by("ip").window(windows.tumbling("1m")).aggregate(n="count(*)")
        """
        return _windowed(self.step, self.keys, window, name, tasks=self.tasks)

    def process(
        self,
        function: StatefulFunction,
        *,
        name: str | None = None,
        initial: str | None = None,
        deterministic: bool = True,
    ) -> Stream:
        """Process the events of each key with a function that has state, in the order of the source.

        Args:
            function: an object of your own class.
            name: what state, metrics, plans and errors call this step.
            initial: a file of states for the first epoch, as `lockgate state ... --json` writes it.
            deterministic: False if the function can return something else for the same events.

        >>> class Total(StatefulFunction):
        ...     schema = "ip STRING, total DOUBLE"
        ...     total = value("DOUBLE", ttl="1d")
        ...     def process(self, row, context):
        ...         self.total.set((self.total.get() or 0.0) + row.amount)
        ...         yield {"ip": row.ip, "total": self.total.get()}
        >>> totals = orders.key_by("ip").process(Total())
        """
        return _processed(self.step, self.keys, function, name, initial, deterministic, tasks=self.tasks)

    def detect(self, pattern: Pattern, *, name: str | None = None) -> Stream:
        """Find the matches of a pattern among the events of each key.

        Args:
            pattern: made with `lockgate.pattern`.
            name: what state, metrics, plans and errors call this step.

        >>> two = pattern.begin("low", "amount < 1").then("high", "amount > 1000").within("5m")
        >>> matches = orders.event_time("at", lateness="10s").key_by("ip").detect(two)
        """
        step = Detect(
            inputs=(self.step,), origin=caller(), name=name, keys=self.keys, tasks=self.tasks, pattern=checked(pattern)
        )
        return Stream(step=step)


@dataclass(frozen=True)
class WindowedStream:
    """Events that are grouped by windows, and by key if there is one. `.window(...)` makes it.

    >>> per_minute = orders.event_time("at", lateness="10s").key_by("ip").window(windows.tumbling("1m"))
    >>> counts = per_minute.aggregate(n="count(*)")
    """

    step: Step
    keys: tuple[str, ...]
    window: Window
    name: str | None
    tasks: int | None
    told: Trigger | None = None

    if not TYPE_CHECKING:  # a type checker refuses what is missing

        def __getattr__(self, name: str) -> Any:
            raise explain_missing(type(self), name)

    def trigger(self, *, every: Duration | int | None = None, on_late: bool = False) -> WindowedStream:
        """Emit results before the window closes. Results then carry `revision`, from 0, and `is_final`.

        Args:
            every: emit after this much processing time, or after this many events.
            on_late: emit a corrected result for every late event.

        >>> per_hour = orders.event_time("at", lateness="10s").window(windows.tumbling("1h"))
        >>> early = per_hour.trigger(every="10s").aggregate(n="count(*)")
        """
        _require(
            isinstance(self.window, TimeWindow),
            what="a window that ends with an event gives its result then, and never before",
            fix="remove the trigger, or use a window by time",
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

    @explain_wrong_calls('name the column of each aggregate: .aggregate(requests="count(*)")')
    def aggregate(self, **aggregates: str | Aggregate) -> Stream:
        """Emit one row for every key and window: the key, `window_start`, `window_end` and these aggregates.

        Args:
            aggregates: SQL for each column, or one of `lockgate.aggregates` and `lockgate.synopses`.

        >>> per_minute = orders.event_time("at", lateness="10s").window(windows.tumbling("1m"))
        >>> counts = per_minute.aggregate(n="count(*)", total="sum(amount)", hosts=synopses.distinct("ip"))
        """
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
        """Emit what a function makes of all events of a window. The state keeps all of them until then.

        Results carry the key, `window_start`, `window_end` and the columns of `schema`.

        Args:
            function: takes the key as a Row and a list of Rows; returns an iterable of dicts or tuples.
            schema: the columns that the function returns, as Spark DDL.
            deterministic: False if the function can return something else for the same events.

        >>> from statistics import median
        >>> per_minute = orders.event_time("at", lateness="10s").key_by("ip").window(windows.tumbling("1m"))
        >>> medians = per_minute.apply(lambda key, rows: [(median(row.amount for row in rows),)], "median DOUBLE")
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
    """A stream that ends in a sink. `Stream.to` makes it, and `Job` takes it.

    >>> Job("orders", orders.to("out", MemorySink()), guarantee=Guarantee.AT_LEAST_ONCE).outputs[0].step.name
    'out'
    """

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
