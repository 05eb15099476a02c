"""Keyed steps as operators: what a user described becomes what runs in Python workers.

Spark evaluates SQL before rows are packed, and an operator reads its results. Types are those of Spark's analyser. From
there on the operator decides what happens to the rows of a key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, get_type_hints

from lockgate.dataflow.aggregates import Aggregate
from lockgate.dataflow.endpoints import POSITION
from lockgate.dataflow.eventtime import EventTime
from lockgate.dataflow.schema import parse_ddl, quote
from lockgate.dataflow.state import make_operator
from lockgate.dataflow.steps import (
    Detect,
    Keyed,
    LateEvents,
    Process,
    Rolling,
    RowFunction,
    TimedOut,
    WindowAggregate,
    WindowApply,
    Windowed,
)
from lockgate.dataflow.windows import CountWindow, SessionWindow, SlidingWindow, TimeWindow, Trigger, UntilWindow
from lockgate.errors import BadJob, InvariantBroken
from lockgate.operators import evaluation, patternmatching
from lockgate.operators.aggregatefolds import Combine, fold_of
from lockgate.operators.contract import Key, Operator, StepFailed, Values
from lockgate.operators.countwindows import CountWindows, UntilWindows
from lockgate.operators.encoding import PLAIN, Encoding
from lockgate.operators.evolution import Declarations, Declared
from lockgate.operators.fold import Fold
from lockgate.operators.openwindows import Triggers
from lockgate.operators.rolling import Rolled, RollingOperator
from lockgate.operators.rows import Given, Results, row_maker
from lockgate.operators.windows import Aligned, Sessions, TimeWindows
from lockgate.planner.sql import read_fold

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TIME = "time"
_IDENTITY = "identity"
_IDENTITY_SQL = f"xxhash64({POSITION}.source, {POSITION}.part, {POSITION}.at, {POSITION}.child)"
_CONDITION = "condition"

# One text, because it is read and kept with every event that waits. It sorts as positions do: numbers have all their
# digits, and the separator is less than every character.
_PLACE = "place"
_PLACE_SQL = (
    f"concat_ws(char(0), {POSITION}.source, {POSITION}.part, lpad({POSITION}.at, 19, '0'),"
    f" transform({POSITION}.child, number -> lpad(number, 10, '0')))"
)
_SPACE = re.compile(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`)|\s+""", re.DOTALL)


@dataclass(frozen=True)
class Described:
    """An operator, the SQL for what it reads, and the contents of its state beside the key."""

    operator: Operator
    reads: Mapping[str, str]
    parts: Mapping[str, str]
    states: Declarations = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)  # the types of the key's columns
    encoding: Encoding = PLAIN  # with the classes that the step's functions declare

    @property
    def declared(self) -> Declared:
        """The description that is kept beside the state, to notice that the code has changed."""
        key = ", ".join(f"{name} {kind}" for name, kind in self.keys.items())
        return {"parts": {**self.parts, "the key": key or "one for all"}, "states": self.states}


def describe(step: Keyed, frame: DataFrame, *, columns: Sequence[str], time: EventTime | None) -> Described:
    """The operator of a step over the rows of a frame, of which the user sees these columns."""
    encoding = Encoding([one for function in _combining(step) for one in _named_tuples(function)])
    return replace(_described(step, frame, columns, time), keys=_types_of(frame, step.keys), encoding=encoding)


def _combining(step: Keyed) -> list[Callable[..., Any]]:
    """The user's functions whose results are kept unchanged."""
    return [fold.function for fold in folds_of(step) if isinstance(fold, Combine)]


def folds_of(step: Keyed) -> list[Fold]:
    """The folds that the user chose, beside those that SQL names."""
    aggregates = step.aggregates.values() if isinstance(step, Rolling | WindowAggregate) else ()
    return [one.fold for one in aggregates if isinstance(one, Aggregate)]


def _named_tuples(function: Callable[..., Any]) -> list[type]:
    """The return type of a function, if it is a named tuple.

    Annotations are read here, in the driver: workers do not have all names that an annotation may use.
    """
    try:
        given = get_type_hints(function).get("return")
    except (AttributeError, NameError, TypeError):
        return []
    return [given] if isinstance(given, type) and issubclass(given, tuple) and hasattr(given, "_fields") else []


def _described(step: Keyed, frame: DataFrame, columns: Sequence[str], time: EventTime | None) -> Described:
    if isinstance(step, Rolling):
        return _rolling(step, frame)
    if isinstance(step, Windowed):
        return _windows(step, frame, columns, time)
    if isinstance(step, Process):
        return _process(step, columns, time)
    if isinstance(step, Detect):
        return _detect(step, frame, columns, time)
    raise InvariantBroken(
        f"no operator for {type(step).__name__}", where=f"declared at {step.origin}", fix="report this"
    )


def side_of(step: Keyed, side: LateEvents | TimedOut) -> int:
    """The number of the side by which rows leave that are no results of a step."""
    if isinstance(step, Detect):
        return patternmatching.LATE if isinstance(side, LateEvents) else patternmatching.TIMED_OUT
    return 1


# Aggregates


@dataclass(frozen=True)
class _Kept:
    """An aggregate as it is kept: its type, its fold, and the SQL of its input, also as the user wrote it."""

    name: str
    type: str
    fold: Fold
    argument: str
    written: str


def _kept(aggregates: Mapping[str, str | Aggregate], frame: DataFrame) -> list[_Kept]:
    return [_kept_one(name, one, frame) for name, one in aggregates.items()]


def _kept_one(name: str, aggregate: str | Aggregate, frame: DataFrame) -> _Kept:
    if isinstance(aggregate, Aggregate) and aggregate.is_native and aggregate.typed_by is not None:
        return _kept_one(name, aggregate.typed_by, frame)
    if isinstance(aggregate, Aggregate):
        kind = aggregate.type or _type_of(aggregate.typed_by or "", frame)
        argument = aggregate.argument or "1"
        fed = _cast(argument, aggregate.takes) if aggregate.takes else argument
        return _Kept(name, kind, aggregate.fold, fed, aggregate.argument or "every event")
    fold = read_fold(aggregate)
    if fold is None:
        raise InvariantBroken(
            f"{aggregate!r} is no fold", where=f"aggregate {name!r}", fix="report this: the planner let it pass"
        )
    kind = _type_of(aggregate, frame)
    if fold.function in ("min", "max") and "<" in kind:
        raise BadJob(
            f"the least or greatest {kind} is asked for with {name}={aggregate!r}",
            where=f"aggregate {name!r}",
            fix="ask for that of one of its fields, or use lockgate.aggregates.combine with a function of yours",
        )
    made = fold_of(fold.function, kind)
    if fold.argument is None:
        return _Kept(name, kind, made, "1", "every event")
    if fold.function == "count":
        return _Kept(name, kind, made, f"if(({fold.argument}) IS NULL, NULL, 1)", fold.argument)
    # An average is kept as its sum, which needs more room than the average itself.
    wide = _type_of(f"sum({fold.argument})", frame) if fold.function == "avg" else kind
    return _Kept(name, kind, made, _cast(fold.argument, wide), fold.argument)


def _type_of(sql: str, frame: DataFrame) -> str:
    """The type of a SQL aggregate, by Spark's own analyser."""
    from pyspark.sql import functions as F

    return frame.groupBy().agg(F.expr(sql).alias("one")).schema["one"].dataType.simpleString()


def _cast(sql: str, kind: str) -> str:
    return f"CAST(({sql}) AS {kind})"


def _rolling(step: Rolling, frame: DataFrame) -> Described:
    kept = _kept(step.aggregates, frame)
    names = [f"fold_{place}" for place in range(len(kept))]
    rolled = [Rolled(one.name, one.type, name, one.fold) for name, one in zip(names, kept, strict=True)]
    reads = {name: one.argument for name, one in zip(names, kept, strict=True)}
    identity = _IDENTITY if any(one.fold.needs_identity for one in kept) else None
    operator = RollingOperator(rolled, identity)
    return Described(operator, {**reads, _IDENTITY: _IDENTITY_SQL}, {"the step": "rolling", **_kept_parts(kept)})


def _kept_parts(kept: Sequence[_Kept]) -> dict[str, str]:
    """The types and arguments of the kept aggregates, one by one in the order of the state."""
    parts = {}
    for number, one in enumerate(kept, 1):
        parts[f"aggregate {number}"] = f"{one.name} {one.type} by {_fold_text(one.fold)}"
        parts[f"what aggregate {number} is of"] = _spaced_once(one.written)
    return parts


def _spaced_once(sql: str) -> str:
    """SQL without the white space that means nothing: text in quotes stays as it is."""
    return _SPACE.sub(lambda found: found[1] or " ", sql).strip()


def _fold_text(fold: Fold) -> str:
    """A fold in words, without the user's functions: those may change, as long as they keep the same."""
    shown: dict[str, Any] = {one.name: getattr(fold, one.name) for one in fields(fold)} if is_dataclass(fold) else {}
    settings = ", ".join(f"{name}={value!r}" for name, value in shown.items() if not callable(value))
    return f"{type(fold).__name__}({settings})"


def _row_parts(columns: Sequence[str], frame: DataFrame) -> dict[str, str]:
    """The columns and types of kept rows."""
    kinds = _types_of(frame, columns)
    return {"a row that is kept": ", ".join(f"{name} {kind}" for name, kind in kinds.items())}


def _types_of(frame: DataFrame, columns: Sequence[str]) -> dict[str, str]:
    shown = frame.select(*map(quote, columns)).schema
    return {name: one.dataType.simpleString() for name, one in zip(columns, shown, strict=True)}


# Windows


def _windows(step: Windowed, frame: DataFrame, columns: Sequence[str], time: EventTime | None) -> Described:
    told, reads, parts = _evaluation(step, frame, columns)
    # Without a time of their own, events have the time of their arrival.
    clock = "current_timestamp()" if time is None else quote(time.column)
    reads = {**reads, _TIME: f"unix_micros({clock})", _PLACE: _PLACE_SQL, _IDENTITY: _IDENTITY_SQL}
    window = step.window
    # A condition is not part of the state: it may change.
    kept = {"the window": "until" if isinstance(window, UntilWindow) else str(window), **parts}
    if isinstance(window, CountWindow):
        return Described(CountWindows(_TIME, window.size, window.every, told), reads, kept)
    if isinstance(window, UntilWindow):
        return Described(
            UntilWindows(_TIME, _CONDITION, told), {**reads, _CONDITION: f"if(({window.condition}), true, false)"}, kept
        )
    if time is not None and time.allowed is not None:
        # With a longer time, windows that are already forgotten would be corrected. Triggers may change: they only
        # change when results are emitted.
        kept["the time of corrections"] = str(time.allowed)
    return Described(TimeWindows(_TIME, _shape(window), told, _triggers(step.trigger, time)), reads, kept)


def _shape(window: TimeWindow) -> Aligned | Sessions:
    if isinstance(window, SessionWindow):
        return Sessions(_micros(window.gap))
    every = window.every if isinstance(window, SlidingWindow) else window.size
    return Aligned(_micros(window.size), _micros(every))


def _triggers(trigger: Trigger | None, time: EventTime | None) -> Triggers:
    allowed = None if time is None or time.allowed is None else _micros(time.allowed)
    every = None if trigger is None else trigger.every
    return Triggers(
        allowed=allowed,
        is_on_late=trigger is not None and trigger.on_late,
        early_every=_micros(every) if isinstance(every, timedelta) else None,
        early_events=every if isinstance(every, int) else None,
    )


def _evaluation(
    step: Windowed, frame: DataFrame, columns: Sequence[str]
) -> tuple[evaluation.Evaluation, dict[str, str], dict[str, str]]:
    """How the rows of a window become results: the evaluation, what it reads, and what it keeps."""
    if isinstance(step, WindowApply):
        given = [Given(one.name, one.type or "", one.is_nullable) for one in parse_ddl(step.schema, "apply").columns]
        ddl = tuple(f"{quote(one.name)} {one.type}" for one in given)
        reads = tuple(f"column_{place}" for place in range(len(columns)))
        function = _WholeWindow(step.function, step.keys, tuple(columns), tuple(given))
        sql = dict(zip(reads, map(_bare, columns), strict=True))
        place = _PLACE if isinstance(step.window, TimeWindow) else None
        return evaluation.Whole(function, reads, ddl, place), sql, _row_parts(columns, frame)
    if not isinstance(step, WindowAggregate):
        raise InvariantBroken("a window of no kind", where=f"declared at {step.origin}", fix="report this")
    kept = _kept(step.aggregates, frame)
    folds = tuple(
        evaluation.Aggregate(f"{quote(one.name)} {one.type}", one.fold, f"fold_{place}")
        for place, one in enumerate(kept)
    )
    identity = _IDENTITY if any(one.fold.needs_identity for one in kept) else None
    sql = {f"fold_{place}": one.argument for place, one in enumerate(kept)}
    return evaluation.Folds(folds, identity), sql, _kept_parts(kept)


class _WholeWindow:
    """A user's function over the rows of a window, as an evaluation calls it."""

    def __init__(
        self, function: RowFunction, keys: tuple[str, ...], columns: tuple[str, ...], given: tuple[Given, ...]
    ) -> None:
        self.function, self.keys, self.columns, self.given = function, keys, columns, given
        self._made: tuple[Any, Any, Results] | None = None

    def __call__(self, key: Key, rows: list[Values]) -> list[Values]:
        if self._made is None:
            results = Results(self.given, "the function of a window")
            self._made = (row_maker(self.keys), row_maker(self.columns), results)
        make_key, make_row, results = self._made
        try:
            made = self.function(make_key(key), [make_row(row) for row in rows])
            return [results.values(one) for one in results.rows(made)]
        except StepFailed:
            raise
        except Exception as error:
            raise StepFailed(f"{type(error).__name__}: {error}, in the window of {key!r}") from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}  # classes that are made at run time do not travel


# Functions with state, patterns


def _process(step: Process, columns: Sequence[str], time: EventTime | None) -> Described:
    clock = None if time is None else "__time"
    operator = make_operator(step.function, keys=step.keys, columns=columns, event_time=clock)
    reads = {name: _bare(name) for name in columns}
    if time is not None:
        reads["__time"] = f"unix_micros({quote(time.column)})"
    return Described(operator, reads, {"the step": "a function with state"}, operator.state_schema)


def _detect(step: Detect, frame: DataFrame, columns: Sequence[str], time: EventTime | None) -> Described:
    shows = _types_of(frame, columns)
    operator = patternmatching.Detect(
        step.pattern.stages,
        shows=shows,
        within_us=None if step.pattern.bound is None else _micros(step.pattern.bound),
        skip=step.pattern.skip,
        has_event_time=time is not None,
    )
    reads = {patternmatching.FITS: step.pattern.fits, **{patternmatching.shown(name): _bare(name) for name in columns}}
    if time is not None:
        reads[patternmatching.TIME] = f"unix_micros({quote(time.column)})"
        reads[patternmatching.PLACE] = _PLACE_SQL
    stages = {f"stage {number}": _stage_text(stage) for number, stage in enumerate(step.pattern.stages, 1)}
    return Described(operator, reads, {"the step": "a pattern", **stages, **_row_parts(columns, frame)})


def _stage_text(stage: patternmatching.Stage) -> str:
    settings = ", ".join(f"{name}={value!r}" for name, value in vars(stage).items() if name != "name")
    return f"{stage.name} ({settings})"


def _bare(name: str) -> str:
    """A column by its own name, which travels once for all that read it."""
    return name if name.isidentifier() else quote(name)


def _micros(span: timedelta) -> int:
    return span // timedelta(microseconds=1)
