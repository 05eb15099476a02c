"""A user's function with state and timers, called for every event of a key.

The function gets one event after the other, in the order of their source positions, and then the timers that are due.
In an epoch it may rely on this order:

    1. events            in order; late ones too, which `context.is_late` says
    2. event timers      due by the watermark that the epoch acts on, earliest first
    3. processing timers due by the time at which the epoch was planned, earliest first

A timer for a time that has passed is due at once, in the same epoch, even if another timer sets it. A repeated epoch
gives the same rows and the same state, if the function uses only its event, its state and its context.

State of a key: [what each state holds, when that was written, event timers, processing timers]. Most keys have only the
first. The first two are ordered by the names of the states, with None if there is nothing. A key with nothing is
forgotten.
"""

from __future__ import annotations

import copy
import dis
import inspect
import itertools
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from lockgate.operators.contract import Clock, Key, Operator, Outcome, Side, StepFailed, Time, Values, Watch
from lockgate.operators.deadline import TimedOut, deadline
from lockgate.operators.durationtext import ADVICE, read_duration
from lockgate.operators.keyedstate import Scope, as_kept, states_of
from lockgate.operators.moments import EPOCH, as_datetime
from lockgate.operators.rows import Given, Results, row_maker

if TYPE_CHECKING:
    from pyspark.sql import Row

CHAIN_MAX = 100_000
"""More timers than these, set by timers, in one epoch of one key: they would continue forever."""

_MICROSECOND = timedelta(microseconds=1)


class Timer(NamedTuple):
    """A time that has come."""

    at: datetime
    name: str  # empty if it was set without one
    is_event_time: bool


class Context:
    """What a stateful function knows beside its event, and how it asks to be called again."""

    __slots__ = (
        "_clock",
        "_event_timers",
        "_has_asked",
        "_has_clock",
        "_has_time",
        "_key",
        "_make_key",
        "_wall_timers",
        "_watermark",
        "is_late",
    )

    def __init__(self, keys: Sequence[str], *, has_time: bool, has_clock: bool) -> None:
        self._make_key = row_maker(keys)
        self._has_time, self._has_clock = has_time, has_clock
        self._clock = Clock(before=0, now=0, wall=0)
        self._key: Key = ()
        self._watermark = 0
        self._event_timers, self._wall_timers = _Timers(), _Timers()
        self._has_asked = False  # does this key have timers, or did it set one?
        self.is_late = False
        """Is the event behind the watermark? Always false in `on_timer`, and for a stream without event time."""

    @property
    def key(self) -> Row:
        """The key, with the names of its columns."""
        return self._make_key(self._key)

    @property
    def watermark(self) -> datetime | None:
        """No event before this is expected: the watermark of the epoch before; in a timer that of this epoch.

        None while the time is unknown.
        """
        return as_datetime(self._watermark) if self._watermark else None

    @property
    def processing_time(self) -> datetime:
        """When the epoch was planned; the same for all of its events, and when it is repeated."""
        return as_datetime(self._clock.wall)

    def at(self, when: datetime, name: str = "") -> None:
        """Call `on_timer` when the watermark has reached this event time.

        A timer with a name is set once: setting it again moves it. Without a name there is one for each time.
        """
        if not self._has_time:
            raise StepFailed("the stream has no event time: say .event_time(...) before key_by, or use context.after")
        if not isinstance(when, datetime):
            raise StepFailed(f"context.at takes a datetime, not {when!r}")
        told = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
        self._event_timers.set((told - EPOCH) // _MICROSECOND, name)
        self._has_asked = True

    def after(self, delay: timedelta | str, name: str = "") -> None:
        """Call `on_timer` when this long has passed in processing time: a timedelta, or text such as "5 minutes"."""
        delay_us = _read_delay(delay) // _MICROSECOND
        if not self._has_clock:
            raise StepFailed(
                "context.after is called where Lockgate does not look for it, so no epoch would come for it on a silent"
                " stream: call it in a method of the class, on the context that the method receives"
            )
        self._wall_timers.set(self._clock.wall + delay_us, name)
        self._has_asked = True

    def cancel(self, name: str) -> None:
        """Forget the timer of this name, in event time and in processing time; an empty name: all without a name."""
        self._event_timers.cancel(name)
        self._wall_timers.cancel(name)


def _read_delay(delay: object) -> timedelta:
    try:
        read = read_duration(delay) if isinstance(delay, str) else delay
    except ValueError as error:
        raise StepFailed(f"context.after takes {ADVICE}, not {delay!r}: {error}") from None
    if not isinstance(read, timedelta):
        raise StepFailed(f"context.after takes {ADVICE}, not {delay!r}")
    return read


class StatefulFunction:
    """A function with state: the user says what it returns, what it keeps, and what it does with an event.

    Declare states with `value`, `list_of` and `map_of`. One object serves many keys: what belongs to a key goes into
    its states, and nothing else in the object can change.

    >>> class Largest(StatefulFunction):
    ...     schema = "ip STRING, amount DOUBLE"
    ...     largest = value("DOUBLE")
    ...     def process(self, row, context):
    ...         if row.amount > (self.largest.get() or 0.0):
    ...             self.largest.set(row.amount)
    ...             yield {"ip": row.ip, "amount": row.amount}
    >>> records = orders.key_by("ip").process(Largest())
    """

    schema: str = ""
    """What it gives, as Spark DDL."""

    def process(self, row: Any, context: Context) -> Iterable[Any] | None:
        """Take one event. Return rows, as dicts or tuples, or nothing.

        Args:
            row: the event.
            context: the key, the time, and timers.
        """
        raise NotImplementedError

    def on_timer(self, timer: Timer, context: Context) -> Iterable[Any] | None:
        """Take a timer that `process` has set and whose time has come. Return rows, or nothing.

        Args:
            timer: when it was due, and its name.
            context: the key, the time, and timers.
        """
        return None

    def get_state(self) -> dict[str, Any]:
        """Return all that is kept for the key, as plain data, for `lockgate state` and `get_state`."""
        return {name: data for name, state in states_of(self).items() if (data := state.as_data()) is not None}

    def init_state(self, state: dict[str, Any]) -> None:
        """Start with given data. Called for each key that has an initial state, before its first event.

        Args:
            state: data as `get_state` returns it.
        """
        states = states_of(self)
        unknown = sorted(set(state) - set(states))
        if unknown:
            raise StepFailed(
                f"the initial state has {unknown}, which is not declared; declared is {', '.join(states) or 'nothing'}."
                " Override init_state(self, state) to convert it"
            )
        for name, data in state.items():
            states[name].take_data(data)


class ProcessOperator(Operator):
    """Runs a stateful function; its one side is what the function gives."""

    def __init__(
        self,
        function: StatefulFunction,
        *,
        gives: Sequence[Given],
        keys: Sequence[str],
        columns: Sequence[str],
        event_time: str | None = None,
    ) -> None:
        """Describe it.

        Args:
            gives: the columns of the function's schema.
            columns: those of the stream, which make the function's row.
            event_time: the name under which an event's time is read, in microseconds, if the stream has one.
        """
        self.function = function
        self.keys = tuple(keys)
        self.columns = tuple(columns)
        self.gives = tuple(gives)
        self.event_time = event_time
        self.reads = self.columns if event_time is None else (*self.columns, event_time)
        self.sides = (Side("rows", function.schema, adds_key=False),)
        self.time = _time_of(function, event_time)
        self.timeout_seconds: float | None = None
        """For one event."""
        self.watch: Watch | None = None
        self._run: _Run | None = None

    def watch_rows(self, watch: Watch | None) -> None:
        self.watch = watch

    @property
    def state_schema(self) -> dict[str, dict[str, Any]]:
        """What is declared, as plain data, to be kept beside the state: see `evolution.evolve`."""
        return {name: state.declaration() for name, state in states_of(self.function).items()}

    def step(self, key: Key, state: Any, rows: Sequence[Values], clock: Clock) -> Outcome:
        return (self._run or self._open()).step(key, state, rows, clock)

    def init_state(self, key: Key, given: dict[str, Any], clock: Clock) -> Outcome:
        """What a key starts with, from data as `get_state` gives it."""
        return (self._run or self._open()).init_state(key, given, clock)

    def get_state(self, key: Key, state: Any, clock: Clock) -> dict[str, Any]:
        """What a key's state shows outside."""
        return (self._run or self._open()).get_state(key, state, clock)

    def _open(self) -> _Run:
        self._run = _Run(self)
        return self._run

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_run": None, "watch": None}


class _Run:
    """A stateful function at work: bound to its states, and to one key after the other."""

    def __init__(self, operator: ProcessOperator) -> None:
        self._operator = operator
        declared = states_of(operator.function)
        self._scope = Scope(len(declared))
        self._nothing = [None] * len(declared)
        self._function = copy.copy(operator.function)
        states = [(name, one.bound(name, at, self._scope)) for at, (name, one) in enumerate(declared.items())]
        for name, state in states:
            object.__setattr__(self._function, name, state)  # even if the user's class is a frozen dataclass
        self._watched = [state for _, state in states if not state.is_plain]
        self._context = Context(
            operator.keys, has_time=operator.event_time is not None, has_clock=operator.time is not Time.EVENT
        )
        self._fires = _has_timers(operator.function)
        self._has_time = operator.event_time is not None
        name = type(operator.function).__name__
        self._timed = Results(operator.gives, f"{name}.on_timer")
        processed = Results(operator.gives, f"{name}.process")
        width = 1 + len(operator.columns)
        make_row = row_maker(operator.columns)
        process = _within(operator.timeout_seconds, self._function.process)
        self._tools = (process, self._context, make_row, width, processed.rows, processed.values)

    def step(self, key: Key, state: Any, rows: Sequence[Values], clock: Clock) -> Outcome:
        self._begin(key, state, clock)
        found: list[tuple[int, Values]] = []
        if rows:
            self._take(rows, clock, found)
        if self._context._has_asked:
            self._fire(clock, found)
        return self._end(found)

    def init_state(self, key: Key, given: dict[str, Any], clock: Clock) -> Outcome:
        self._begin(key, None, clock)
        try:
            self._function.init_state(given)
        except StepFailed:
            raise
        except Exception as error:
            raise StepFailed(f"init_state of key {key!r}: {_error_text(error)}") from error
        return self._end([])

    def get_state(self, key: Key, state: Any, clock: Clock) -> dict[str, Any]:
        self._begin(key, state, clock)
        try:
            return self._function.get_state()
        except Exception as error:
            raise StepFailed(f"get_state of key {key!r}: {_error_text(error)}") from error

    def _begin(self, key: Key, state: Any, clock: Clock) -> None:
        # There may be a million keys with an event or two each, so nothing is done for what a key does not have.
        scope, context = self._scope, self._context
        if context._clock is not clock:
            scope.wall, context._clock, context._watermark = clock.wall, clock, clock.before
        scope.values, context._key = [*(self._nothing if state is None else state[0])], key
        has_more = state is not None and len(state) > 1
        if self._watched:
            scope.written = [*(state[1] if has_more else self._nothing)]
            for watched in self._watched:
                watched.begin()
        if has_more or context._has_asked:
            event, wall = state[2:] if has_more else ((), ())
            context._event_timers.begin(event)
            context._wall_timers.begin(wall)
            context._has_asked = bool(event or wall)

    def _take(self, rows: Sequence[Values], clock: Clock, found: list[tuple[int, Values]]) -> None:
        process, context, make_row, width, as_rows, as_values = self._tools
        watch = self._operator.watch
        number = None
        try:
            for values in rows:
                number = values[0]
                if watch is not None:
                    watch(context._key, number)
                if self._has_time:
                    # The watermark is 0 while the time is unknown, and nothing is late then.
                    at = values[width]
                    context.is_late = at is not None and clock.before > 0 and at < clock.before
                made = process(make_row(values[1:width]), context)
                if made is not None:
                    for one in as_rows(made):
                        found.append((0, as_values(one)))
        except StepFailed as failed:
            raise StepFailed(failed.reason, number, is_final=failed.is_final) from failed
        except BaseException as error:  # sys.exit raises one that is no Exception
            raise StepFailed(_error_text(error), number) from error
        context.is_late = False

    def _fire(self, clock: Clock, found: list[tuple[int, Values]]) -> None:
        """Call the timers that are due, until none is left."""
        context = self._context
        if self._operator.watch is not None:
            self._operator.watch(context._key, None)  # no row is in hand any more
        event, wall = context._event_timers, context._wall_timers
        if not self._fires and (len(event) or len(wall)):
            name = type(self._function).__name__
            raise StepFailed(f"{name} has timers and no on_timer: write on_timer(self, timer, context)")
        context._watermark = clock.now
        left = len(event) + len(wall) + CHAIN_MAX
        while True:
            due, is_event = event.take(clock.now) if clock.now else None, True
            if due is None:
                due, is_event = wall.take(clock.wall), False
            if due is None:
                context._watermark = clock.before  # for the events of the next key
                return
            timer = Timer(as_datetime(due[0]), due[1], is_event)
            left -= 1
            if left < 0:
                raise StepFailed(
                    f"on_timer keeps setting timers that are due at once, the last for {timer.at}:"
                    " set the next one after context.watermark, or after context.processing_time"
                )
            try:
                for one in self._timed.rows(self._function.on_timer(timer, context)):
                    found.append((0, self._timed.values(one)))
            except BaseException as error:
                told = error.reason if isinstance(error, StepFailed) else _error_text(error)
                raise StepFailed(f"the timer {timer.name!r} of {timer.at}: {told}") from error

    def _end(self, found: list[tuple[int, Values]]) -> Outcome:
        scope, context = self._scope, self._context
        if not self._watched and not context._has_asked:
            return Outcome(None if scope.values == self._nothing else [scope.values], found)
        event, wall = context._event_timers.left(), context._wall_timers.left()
        wakes = [timer[0] for timer in wall[:1]]
        for watched in self._watched:
            expires = watched.end()
            if expires is not None:
                wakes.append(expires)
        kept = as_kept(scope.values, scope.written, event, wall)
        return Outcome(kept, found, event[0][0] if event else None, min(wakes, default=None))


Process = Callable[[Any, Context], Any]


def _within(seconds: float | None, process: Process) -> Process:
    """The function, cut off if it takes longer than this for an event, including the rows that it yields."""
    if seconds is None:
        return process

    def limited(row: Any, context: Context) -> Any:
        try:
            with deadline(seconds):
                made = process(row, context)
                return list(made) if isinstance(made, Iterator) else made
        except TimedOut:
            raise StepFailed(f"it took longer than {seconds:g} seconds") from None

    return limited


class _Timers:
    """The timers of a key in one kind of time, earliest first: (microseconds, name)."""

    __slots__ = ("_all", "_first")

    def __init__(self) -> None:
        self._all: list[tuple[int, str]] = []
        self._first = 0  # those before it were taken: cheaper than moving all others, for each

    def begin(self, kept: Sequence[Sequence[Any]]) -> None:
        """Hold the timers of another key."""
        self._all, self._first = [(at, name) for at, name in kept], 0

    def set(self, at: int, name: str) -> None:
        if name:
            self.cancel(name)
        place = bisect_left(self._all, (at, name), lo=self._first)
        if self._all[place : place + 1] != [(at, name)]:
            self._all.insert(place, (at, name))

    def cancel(self, name: str) -> None:
        self._all[self._first :] = [timer for timer in self._all[self._first :] if timer[1] != name]

    def take(self, until: int) -> tuple[int, str] | None:
        """The earliest, if it is due."""
        if self._first == len(self._all) or self._all[self._first][0] > until:
            return None
        self._first += 1
        return self._all[self._first - 1]

    def left(self) -> list[list[Any]]:
        """Those that are kept."""
        return [[at, name] for at, name in self._all[self._first :]]

    def __len__(self) -> int:
        return len(self._all) - self._first


def _has_timers(function: StatefulFunction) -> bool:
    return type(function).on_timer is not StatefulFunction.on_timer


def _asks_the_clock(function: StatefulFunction) -> bool:
    """Does its code call `after` of a context? Such a timer needs an epoch on a silent stream too."""
    methods = [inspect.unwrap(method) for above in type(function).__mro__ for method in vars(above).values()]
    codes = [method.__code__ for method in methods if isinstance(method, FunctionType)]
    contexts = {code.co_varnames[2] for code in codes if code.co_argcount > 2}  # self, the row or timer, the context
    return any(_calls_after(code, contexts) for code in codes)


def _calls_after(code: CodeType, contexts: set[str]) -> bool:
    """Is it called on a variable with one of these names, here or in a nested function?"""
    is_here = any(
        then.argval == "after" and then.opname.startswith("LOAD") and _variable(first) in contexts
        for first, then in itertools.pairwise(dis.get_instructions(code))
    )
    return is_here or any(_calls_after(one, contexts) for one in code.co_consts if isinstance(one, CodeType))


def _variable(instruction: dis.Instruction) -> str | None:
    """The variable that an instruction puts on top of the stack; some instructions of newer Pythons load two."""
    if not re.search("LOAD_(FAST|DEREF)", instruction.opname):
        return None
    told = instruction.argval
    return str(told[-1] if isinstance(told, tuple) else told)


def _time_of(function: StatefulFunction, event_time: str | None) -> Time:
    if event_time is not None:
        return Time.BOTH if _asks_the_clock(function) else Time.EVENT
    expires = any(state.ttl_us is not None for state in states_of(function).values())
    return Time.WALL if expires or _has_timers(function) else Time.NONE


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
