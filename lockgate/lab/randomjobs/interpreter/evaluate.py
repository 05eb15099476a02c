"""Evaluate a spec, step by step, when every event takes effect exactly once.

Time: the watermark of an event time is its greatest time in the epochs before, less its lateness; the least of all of
them counts for the whole job. It acts in the epoch behind the one that moved it, also on an epoch without events in
between, so everything that it closes is closed before the next events come (docs/TIME.md).

With `everything=True` no event is late: what could come out if time had been forgotten in a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from lockgate.lab.randomjobs import catalogue
from lockgate.lab.randomjobs.columns import time_of
from lockgate.lab.randomjobs.interpreter.patterns import Match, matches_of
from lockgate.lab.randomjobs.interpreter.rows import Effect, Flow, Letter, Place, Row, Undetermined, by_key
from lockgate.lab.randomjobs.interpreter.symbols import Atom, Term, applied, is_symbolic
from lockgate.lab.randomjobs.interpreter.windows import (
    BY_TIME,
    Missed,
    Told,
    Watermarks,
    count_windows,
    spans_of,
    time_windows,
)
from lockgate.lab.randomjobs.spec import (
    Call,
    Detect,
    EventTime,
    FanOut,
    FlatMap,
    Join,
    Made,
    Map,
    Merge,
    Process,
    ProcessingTime,
    Rolling,
    Select,
    Source,
    Spec,
    Split,
    Step,
    TableJoin,
    Transform,
    Where,
    WindowAggregate,
    WindowApply,
    used,
)

_WHOLE_NUMBERS = (*range(-12, 13), 100_000, 100_001, 100_002)
_NATURAL_NUMBERS = tuple(one for one in _WHOLE_NUMBERS if one >= 0)
_SAMPLES: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("noise", "py_noise", "row_number", "place", "lottery"), _NATURAL_NUMBERS),
    **dict.fromkeys(("jitter", "sum_of_noise"), _WHOLE_NUMBERS),
    **dict.fromkeys(("fresh_id", "py_fresh_id", "sealed", "clock"), ("0",)),
}
"""Values that stand for all that an entry may give, as far as a condition of the catalogue can tell them apart."""

_NULL_FOR_NULL = ("jitter", "sealed", "coin_above")
_MORE = {"count": Effect.COUNT, "count_of": Effect.COUNT, "max": Effect.GROWS, "min": Effect.SHRINKS}


class Evaluation:
    """The flows of a spec; every step is evaluated once, so its branches see the same random values."""

    def __init__(self, spec: Spec, *, everything: bool = False) -> None:
        self.spec = spec
        self.everything = everything
        self.letters: list[Letter] = []
        self.has_unknown_letters = False
        self._flows: dict[str, Flow | Undetermined | None] = {}
        self._sides: dict[str, Callable[[], Flow]] = {}
        self._acting: Watermarks | None = None

    def flow(self, reference: str) -> Flow:
        """What a reference gives; Undetermined if that cannot be said."""
        if reference not in self._flows:
            self._flows[reference] = None
            try:
                self._flows[reference] = self._evaluated(reference)
            except Undetermined as reason:
                self._flows[reference] = reason
        known = self._flows[reference]
        if known is None:
            raise Undetermined("the watermark depends on results that depend on the watermark")
        if isinstance(known, Undetermined):
            raise known
        return known

    def _evaluated(self, reference: str) -> Flow:
        name, _, side = reference.partition(".")
        step = self.spec.step(name)
        if isinstance(step, Split):
            part = next(one for one in step.parts if one.name == side)
            return _filtered(self.flow(step.input), part.condition, reference)
        if side:
            self.flow(name)
            return self._sides[reference]()
        flow = self._step(step)
        return replace(flow, is_loose=flow.is_loose or self._hangs_on_epochs(step))

    def _hangs_on_epochs(self, step: Source | Step) -> bool:
        """May other epochs, as a replay in real-time mode has them, give other rows than more of the same?"""
        if self.spec.mode != "REAL_TIME":
            return False
        if isinstance(step, Join):
            return step.how != "inner"
        if isinstance(step, WindowAggregate | WindowApply):
            return step.window.kind not in ("tumbling", "sliding")
        return isinstance(step, Rolling | Process | Detect)

    def _step(self, step: Source | Step) -> Flow:
        match step:
            case Source():
                self.letters += _unparsable(step)
                return _source(step)
            case Where():
                flow = self._usable(self.flow(step.input), step.name, (step.condition,))
                return _filtered(flow, step.condition, step.name)
            case Select() | Map() | Transform():
                flow = self._usable(self.flow(step.input), step.name, tuple(one.call for one in step.made))
                return _made(flow, step.keep, step.made, step.name)
            case FlatMap():
                return _flattened(self.flow(step.input), step)
            case FanOut():
                return _fanned_out(self.flow(step.input), step)
            case Merge():
                return _merged([self.flow(one) for one in step.inputs])
            case EventTime():
                return self._timed(step)
            case ProcessingTime():
                flow = self.flow(step.input)
                return replace(flow, rows=tuple(replace(row, time=None) for row in flow.rows))
            case Join():
                return self._join(step)
            case TableJoin():
                return _with_table(self.flow(step.input), step)
            case WindowAggregate() | WindowApply():
                return self._window(step)
            case Rolling():
                return self._rolling(step)
            case Process():
                return self._process(step)
            case Detect():
                return self._detect(step)
        raise Undetermined(f"no rule for {step}")

    # Time

    def _timed(self, step: EventTime) -> Flow:
        flow = self.flow(step.input)
        rows = []
        for row in flow.rows:
            time = row.values[step.column]
            _require(not is_symbolic(time), "the time of an event is random")
            is_ahead = time is not None and step.max_ahead_ms is not None and time * 1000 > step.max_ahead_ms
            if time is None or is_ahead:
                self._put_aside(row, flow, step.name)
            else:
                rows.append(replace(row, time=time))
        return replace(flow, rows=tuple(rows), is_loose=flow.is_loose or flow.effects[step.column] is not Effect.EVENT)

    def _usable(self, flow: Flow, name: str, calls: Sequence[Call]) -> Flow:
        """The rows on which no function of a step raises; the others are dead letters."""
        fragile = [call for call in calls if catalogue.entry(call.entry).can_raise]
        if not fragile:
            return flow
        rows = []
        for row in flow.rows:
            arguments = [_arguments(row, call) for call in fragile]
            _require(not is_symbolic(arguments), "random values say which events a function raises on")
            if any(_raises(catalogue.entry(call.entry).of, one) for call, one in zip(fragile, arguments, strict=True)):
                self._put_aside(row, flow, name)
            else:
                rows.append(row)
        changes = any(flow.effects[column] is not Effect.EVENT for call in fragile for column in call.columns)
        return replace(flow, rows=tuple(rows), is_loose=flow.is_loose or changes)

    def _put_aside(self, row: Row, flow: Flow, name: str) -> None:
        self.letters.append(Letter(name, row.place, flow.is_stateful))
        self.has_unknown_letters = self.has_unknown_letters or bool(row.guards)

    def acting(self) -> Watermarks:
        """The watermark that acts in each epoch."""
        epochs = self._epochs
        if self.everything:
            return [None] * epochs
        if self._acting is None:
            steps = used(self.spec)
            clock = any(isinstance(step, ProcessingTime) for step in steps)
            times = [step for step in steps if isinstance(step, EventTime)]
            _require(not (clock and times), "the watermark goes by the clock too")
            flows = [self.flow(step.name) for step in times]
            _require(all(not row.guards for flow in flows for row in flow.rows), "the watermark is random")
            each = [_watermarks(flow, step, epochs) for flow, step in zip(flows, times, strict=True)]
            self._acting = [_least(moments) for moments in zip(*each, strict=True)] if each else [None] * epochs
        return self._acting

    @property
    def _epochs(self) -> int:
        return 1 + max((event.epoch for source in self.spec.sources for event in source.events), default=0)

    # Steps with state

    def _keyed(self, reference: str, keys: tuple[str, ...]) -> Flow:
        """The input of a step with state, which cannot be judged if random values say what the state holds."""
        flow = self.flow(reference)
        _require(all(not row.guards for row in flow.rows), "random values say which rows the state counts")
        _require(not any(is_symbolic(row.values[name]) for row in flow.rows for name in keys), "a key is random")
        return replace(flow, is_loose=flow.is_loose or any(flow.effects[name] is not Effect.EVENT for name in keys))

    def _window(self, step: WindowAggregate | WindowApply) -> Flow:
        _require(step.window.trigger is None, "a trigger tells windows before their end")
        flow = self._keyed(step.input, step.keys)
        by_time = step.window.kind in BY_TIME
        time = time_of(self.spec, step.input)
        is_corrected = by_time and time is not None and time.late == "CORRECT"
        if is_corrected:
            _require(
                time is not None and time.allowed_seconds is not None, "nothing says how long results are corrected"
            )
        allowed = time.allowed_seconds if is_corrected and time is not None else None
        condition = step.window.condition

        def ends(row: Row) -> bool:
            return condition is not None and _is_true(row, condition)

        missed: list[Missed] = []
        rows = []
        for key, members in by_key(flow.rows, step.keys).items():
            if by_time:
                told, late = time_windows(step.window, members, self.acting(), allowed)
                missed += late
            else:
                told = count_windows(step.window, _arrived(members), ends)
            rows += [Row(self._result(step, key, one, is_corrected), came=one.came) for one in told]
        self._sides[f"{step.name}.late"] = lambda: self._late(step, flow, missed)
        spans = Effect.SPAN if step.window.kind == "session" else Effect.EVENT if by_time else Effect.OTHER
        effects = dict.fromkeys(step.keys, Effect.EVENT) | {"window_start": spans, "window_end": spans}
        if is_corrected:
            effects |= {"revision": Effect.OTHER, "is_final": Effect.OTHER}
        effects |= {one.column: _aggregate_effect(one.call, flow) for one in _all_made(step)}
        return Flow(
            tuple(rows),
            effects,
            is_stateful=True,
            is_grouped=True,
            is_loose=flow.is_loose or not by_time or is_corrected,
        )

    def _result(
        self, step: WindowAggregate | WindowApply, key: tuple[Any, ...], told: Told, is_corrected: bool
    ) -> dict[str, Any]:
        span = told.span or (_any("the clock"), _any("the clock"))
        values = dict(zip(step.keys, key, strict=True)) | {"window_start": span[0], "window_end": span[1]}
        if is_corrected:
            values |= {"revision": told.revision, "is_final": True}
        if not told.rows:
            return values | {one.column: None for one in _all_made(step)}
        if isinstance(step, WindowAggregate):
            return values | {one.column: _aggregate(one.call, told.rows) for one in step.made}
        rows = _in_time(told.rows) if step.window.kind in BY_TIME else told.rows
        return values | {step.made.column: _over_rows(step.made.call, rows)}

    def _late(self, step: WindowAggregate | WindowApply, flow: Flow, missed: Sequence[Missed]) -> Flow:
        if self.everything:
            missed = [Missed(row, span) for row in flow.rows for span in spans_of(step.window, row.time or 0)]
        rows = [
            replace(
                one.row,
                values={**one.row.values, "window_start": one.span[0], "window_end": one.span[1]},
                place=None,
                came=one.row.epoch,
            )
            for one in missed
        ]
        effects = dict(flow.effects) | {"window_start": Effect.EVENT, "window_end": Effect.EVENT}
        is_loose = flow.is_loose or self.spec.mode == "REAL_TIME"  # in other epochs, others are late
        return replace(flow, rows=tuple(rows), effects=effects, is_stateful=True, is_loose=is_loose)

    def _rolling(self, step: Rolling) -> Flow:
        flow = self._keyed(step.input, step.keys)
        rows = []
        for members in by_key(flow.rows, step.keys).values():
            arrived = _arrived(members)
            for number, row in enumerate(arrived, start=1):
                made = {one.column: _aggregate(one.call, arrived[:number]) for one in step.made}
                rows.append(replace(row, values={**row.values, **made}))
        effects = dict(flow.effects) | {one.column: _aggregate_effect(one.call, flow) for one in step.made}
        return replace(flow, rows=tuple(rows), effects=effects, is_stateful=True)

    def _process(self, step: Process) -> Flow:
        flow = self._keyed(step.input, step.keys)
        function = catalogue.FUNCTIONS[step.function.entry]
        rows = []
        for key, members in by_key(flow.rows, step.keys).items():
            kept: Any = None
            arrived = _arrived(members)
            values = [_arguments(row, step.function) for row in arrived]
            is_plain = not any(is_symbolic(one) for one in values)
            for row, one in zip(arrived, values, strict=True):
                given: list[Any] = [_any(step.function.entry)]
                if function.meaning is not None:
                    _require(is_plain or not function.can_raise, "random values say which events a function raises on")
                    arguments = (kept, *(one if is_plain else [0] * len(one)))
                    if _raises(function.meaning, arguments):
                        self._put_aside(row, flow, step.name)
                        continue
                    kept, given = function.meaning(*arguments)
                for number, value in enumerate(given):
                    own = value if is_plain else _any("state over random values")
                    made = dict(zip(step.keys, key, strict=True)) | {function.column: own}
                    place = None if row.place is None else (*row.place, number)
                    rows.append(replace(row, values=made, place=place, time=None))
            if function.ring is not None and kept is not None:
                made = dict(zip(step.keys, key, strict=True))
                rows += [Row(made | {function.column: one}, came=self._epochs) for one in function.ring(kept)]
        effects = dict.fromkeys(step.keys, Effect.EVENT) | {function.column: Effect.OTHER}
        is_one_each = step.function.entry not in ("every_third", "rings")
        return replace(
            flow, rows=tuple(rows), effects=effects, is_stateful=True, is_loose=flow.is_loose or not is_one_each
        )

    def _detect(self, step: Detect) -> Flow:
        flow = self._keyed(step.input, step.keys)
        pattern = catalogue.PATTERNS[step.pattern.entry]
        found: list[tuple[tuple[Any, ...], Match]] = []
        out: list[tuple[tuple[Any, ...], Match]] = []
        late = []
        for key, members in by_key(flow.rows, step.keys).items():
            if any(row.time is None for row in members):
                _require(pattern.within_seconds is None, "a pattern goes by the clock")
                ordered = _arrived(members)
            else:
                acting = self.acting()
                passed = [acting[row.epoch] for row in members]
                is_late = [mark is not None and row.time < mark for row, mark in zip(members, passed, strict=True)]  # type: ignore[operator]
                late += [row for row, one in zip(members, is_late, strict=True) if one]
                ordered = _in_time([row for row, one in zip(members, is_late, strict=True) if not one])
            arguments = [_arguments(row, step.pattern) for row in ordered]
            _require(not any(map(is_symbolic, arguments)), "a pattern looks at random values")
            matches, timed_out = matches_of(pattern, ordered, [one[0] for one in arguments])
            found += [(key, one) for one in matches]
            out += [(key, one) for one in timed_out]
        if self.everything:
            late = list(flow.rows)
        plain = [stage for stage in pattern.stages if stage.how != "not_followed_by"]
        effects = dict.fromkeys(step.keys, Effect.EVENT)
        columns = ("match_start", "match_end", *(stage.name for stage in plain))
        self._sides[f"{step.name}.late"] = lambda: replace(
            flow,
            rows=tuple(replace(row, place=None, came=row.epoch) for row in late),
            is_stateful=True,
            is_loose=flow.is_loose or self.spec.mode == "REAL_TIME",
        )
        self._sides[f"{step.name}.timed_out"] = lambda: Flow(
            tuple(_match_row(step.keys, key, one, plain) for key, one in out),
            effects | dict.fromkeys(("match_start", "match_end", "reached", *columns[2:]), Effect.OTHER),
            is_stateful=True,
            is_grouped=True,
            is_loose=True,
        )
        return Flow(
            tuple(_match_row(step.keys, key, one, plain) for key, one in found),
            effects | dict.fromkeys(columns, Effect.OTHER),
            is_stateful=True,
            is_grouped=True,
            is_loose=True,
        )

    def _join(self, step: Join) -> Flow:
        sides = [self.flow(step.left), self.flow(step.right)]
        acting = self.acting()
        in_time: list[list[Row]] = []
        for flow in sides:
            is_random = any(is_symbolic(row.values[name]) for row in flow.rows for name in step.on)
            _require(not is_random, "a join goes by random values")
            _require(all(row.time is not None for row in flow.rows), "a join goes by the clock")
            in_time.append([row for row in flow.rows if not _is_behind(row, acting)])
        left, right = in_time
        columns = [[name for name in flow.columns if name not in step.on] for flow in sides]
        pairs: list[Row] = []
        met: set[Row] = set()
        for one in left:
            for other in right:
                if _agree(one, other, step):
                    met |= {one, other}
                    values = {name: one.values[name] for name in step.on}
                    values |= {name: one.values[name] for name in columns[0]}
                    values |= {name: other.values[name] for name in columns[1]}
                    guards, came = one.guards + other.guards, max(one.epoch, other.epoch)
                    pairs.append(Row(values, time=one.time, guards=guards, can_be_late=False, came=came))
        outer = {"inner": [], "left": [0], "right": [1], "full": [0, 1]}[step.how]
        _require(not outer or all(not row.guards for rows in in_time for row in rows), "an outer join of random rows")
        for number in outer:
            empty = dict.fromkeys(columns[1 - number])
            for row in in_time[number]:
                if row not in met:
                    values = {name: row.values[name] for name in step.on}
                    values |= {name: row.values[name] for name in columns[number]} | empty
                    pairs.append(Row(values, time=row.time if number == 0 else None, can_be_late=False))
        effects = dict.fromkeys(step.on, Effect.EVENT)
        for flow, names in zip(sides, columns, strict=True):
            effects |= {name: flow.effects[name] for name in names}
        return Flow(
            tuple(pairs),
            effects,
            is_stateful=True,
            is_grouped=any(flow.is_grouped for flow in sides),
            is_loose=any(flow.is_loose or flow.effects[name] is not Effect.EVENT for flow in sides for name in step.on),
            is_loose_if_lost=bool(outer) or any(flow.is_loose_if_lost for flow in sides),
        )


# Steps on single rows


def _source(source: Source) -> Flow:
    rows = []
    for number, event in enumerate(source.events):
        if event.text is None:
            values = {column.name: value for column, value in zip(source.columns, event.values, strict=True)}
            rows.append(Row(values, epoch=event.epoch, place=_place(source, number)))
    return Flow(tuple(rows), {column.name: Effect.EVENT for column in source.columns})


def _unparsable(source: Source) -> list[Letter]:
    """The records that do not parse."""
    return [
        Letter(source.name, _place(source, number))
        for number, event in enumerate(source.events)
        if event.text is not None
    ]


def _place(source: Source, number: int) -> Place:
    partition = source.events[number].partition if source.system == "kafka" else 0  # others are read in their own order
    return (source.name, partition, number)


def _filtered(flow: Flow, condition: Call, name: str) -> Flow:
    rows = []
    for row in flow.rows:
        holds = _value(row, condition, name)
        if isinstance(holds, Atom) and len(holds.samples) == 1:
            holds = holds.samples[0]
        if is_symbolic(holds):
            rows.append(replace(row, guards=(*row.guards, Term(_is, (holds,)))))
        elif holds is True:
            rows.append(row)
    changes = any(flow.effects[column] is not Effect.EVENT for column in condition.columns)
    return replace(flow, rows=tuple(rows), is_loose=flow.is_loose or changes)


def _made(flow: Flow, keep: tuple[str, ...], made: tuple[Made, ...], name: str) -> Flow:
    rows = []
    for row in flow.rows:
        values = {column: row.values[column] for column in keep}
        rows.append(replace(row, values=values | {one.column: _value(row, one.call, name) for one in made}))
    effects = {column: flow.effects[column] for column in keep}
    return replace(flow, rows=tuple(rows), effects=effects | {one.column: _effect(one.call, flow) for one in made})


def _flattened(flow: Flow, step: FlatMap) -> Flow:
    entry = catalogue.LISTS[step.made.call.entry]
    rows = []
    for row in flow.rows:
        arguments = _arguments(row, step.made.call)
        kept = {column: row.values[column] for column in step.keep}
        items: list[tuple[Any, tuple[Any, ...]]]  # an item, and the guards under which there is one
        if entry.meaning is None:
            count = Atom(step.name, (0, 1, 2))
            items = [(arguments[0], (Term(_above, (count, number)),)) for number in range(2)]
        elif is_symbolic(arguments):
            whole = Term(entry.of, arguments)
            items = [(Term(_item, (whole, number)), (Term(_is_long, (whole, number)),)) for number in range(2)]
        else:
            items = [(item, ()) for item in entry.of(*arguments)]
        for number, (item, guards) in enumerate(items):
            place = None if row.place is None else (*row.place, number)
            values = {**kept, step.made.column: item}
            rows.append(replace(row, values=values, guards=row.guards + guards, place=place))
    effects = {column: flow.effects[column] for column in step.keep}
    is_event = all(flow.effects[column] is Effect.EVENT for column in step.made.call.columns)
    effects[step.made.column] = Effect.EVENT if is_event else Effect.OTHER
    return replace(flow, rows=tuple(rows), effects=effects, is_loose=flow.is_loose or not is_event)


def _with_table(flow: Flow, step: TableJoin) -> Flow:
    rows = []
    for row in flow.rows:
        key = row.values["k"]
        _require(not is_symbolic(key), "random values say which rows of a table are met")
        met: list[str | None] = [title for name, title in catalogue.TABLE if name == key]
        for number, title in enumerate(met or ([None] if step.how == "left" else [])):
            place = None if row.place is None else (*row.place, number)
            rows.append(replace(row, values={**row.values, step.column: title}, place=place))
    effect = flow.effects["k"]
    effects = {**flow.effects, step.column: effect if effect is Effect.EVENT else Effect.OTHER}
    return replace(flow, rows=tuple(rows), effects=effects, is_loose=flow.is_loose or effect is not Effect.EVENT)


def _fanned_out(flow: Flow, step: FanOut) -> Flow:
    made = _made(flow, flow.columns, step.made, step.name)
    marks: dict[str, Any] = {"is_partial": False, "missing": [], "why_missing": []}
    rows = tuple(replace(row, values={**row.values, **marks}) for row in made.rows)
    return replace(made, rows=rows, effects=dict(made.effects) | dict.fromkeys(marks, Effect.EVENT))


def _merged(flows: Sequence[Flow]) -> Flow:
    first = flows[0]
    effects = {
        name: next((flow.effects[name] for flow in flows if flow.effects[name] is not Effect.EVENT), Effect.EVENT)
        for name in first.columns
    }
    for name, effect in effects.items():
        if any(flow.effects[name] is not effect for flow in flows):
            effects[name] = Effect.OTHER
    return Flow(
        tuple(row for flow in flows for row in flow.rows),
        effects,
        is_stateful=any(flow.is_stateful for flow in flows),
        is_grouped=any(flow.is_grouped for flow in flows),
        is_loose=any(flow.is_loose for flow in flows),
        is_loose_if_lost=any(flow.is_loose_if_lost for flow in flows),
    )


# Values


def _arguments(row: Row, call: Call) -> tuple[Any, ...]:
    return tuple(row.values[column] for column in call.columns)


def _value(row: Row, call: Call, name: str) -> Any:
    """What an entry gives for a row; an atom if it is not deterministic."""
    entry, arguments = catalogue.entry(call.entry), _arguments(row, call)
    if entry.meaning is not None:
        return applied(entry.of, arguments)
    if call.entry in _NULL_FOR_NULL and None in arguments:
        return None
    return Atom(f"{name}: {call.entry}", _samples(call.entry, entry, arguments))


def _samples(name: str, entry: catalogue.Entry, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    if name == "coin_above" and not is_symbolic(arguments):
        return (False,) if arguments[0] <= -2 else (True,) if arguments[0] > 8 else (False, True)
    samples = (False, True) if entry.type == "BOOLEAN" else _SAMPLES.get(name, (*_WHOLE_NUMBERS, None))
    return (*samples, None) if name in _NULL_FOR_NULL and is_symbolic(arguments) else samples


def _is_true(row: Row, condition: Call) -> bool:
    holds = _value(row, condition, "until")
    _require(not is_symbolic(holds), "random values say when a window ends")
    return holds is True


def _aggregate(call: Call, rows: Sequence[Row]) -> Any:
    values = [row.values[call.columns[0]] if call.columns else None for row in rows]
    entry = catalogue.NATIVE_AGGREGATES[call.entry]
    if is_symbolic(values) and call.entry != "count":
        return _any("an aggregate of random values")
    if entry.meaning is None:
        return Atom(call.entry, tuple(values) if call.entry in ("first", "any_value") else (*_WHOLE_NUMBERS, None))
    return entry.meaning(values)


def _over_rows(call: Call, rows: Sequence[Row]) -> Any:
    values = [row.values[call.columns[0]] for row in rows]
    entry = catalogue.OVER_ROWS[call.entry]
    if is_symbolic(values) or entry.meaning is None:
        return _any(call.entry)
    return entry.meaning(values)


def _any(name: str) -> Atom:
    return Atom(name, (*_WHOLE_NUMBERS, None))


def _effect(call: Call, flow: Flow) -> Effect:
    entry = catalogue.entry(call.entry)
    is_event = entry.is_deterministic and all(flow.effects[name] is Effect.EVENT for name in call.columns)
    return Effect.EVENT if is_event else Effect.OTHER


def _aggregate_effect(call: Call, flow: Flow) -> Effect:
    is_event = all(flow.effects[name] is Effect.EVENT for name in call.columns)
    return _MORE.get(call.entry, Effect.OTHER) if is_event else Effect.OTHER


def _all_made(step: WindowAggregate | WindowApply) -> tuple[Made, ...]:
    return step.made if isinstance(step, WindowAggregate) else (step.made,)


def _raises(function: Callable[..., Any], arguments: Sequence[Any]) -> bool:
    try:
        function(*arguments)
    except ZeroDivisionError:
        return True
    return False


def _is(holds: Any) -> bool:
    return holds is True


def _above(count: int, number: int) -> bool:
    return count > number


def _item(items: Sequence[Any], number: int) -> Any:
    return items[number] if len(items) > number else None


def _is_long(items: Sequence[Any], number: int) -> bool:
    return len(items) > number


# Order and time


def _arrived(rows: Iterable[Row]) -> list[Row]:
    """In the order of arrival: epoch by epoch, inside an epoch by source position."""
    return _ordered(rows, lambda row: (row.epoch, row.place))


def _in_time(rows: Iterable[Row]) -> list[Row]:
    """By event time; those of one time by their source position."""
    return _ordered(rows, lambda row: (row.time, row.place))


def _ordered(rows: Iterable[Row], order: Callable[[Row], Any]) -> list[Row]:
    given = list(rows)
    _require(all(row.place is not None for row in given), "rows without a place in a source have no order")
    ordered = sorted(given, key=order)
    for one, other in pairwise(ordered):
        is_tie = one.place == other.place and (one.values != other.values or is_symbolic(one.values))
        _require(not is_tie, "one event came several ways, and its rows have no order")
    return ordered


def _watermarks(flow: Flow, step: EventTime, epochs: int) -> list[int | None]:
    greatest: int | None = None
    acting: list[int | None] = []
    for epoch in range(epochs):
        acting.append(None if greatest is None else greatest - step.lateness_seconds)
        for row in flow.rows:
            if row.epoch == epoch and row.time is not None:
                greatest = row.time if greatest is None else max(greatest, row.time)
    return acting


def _least(moments: Sequence[int | None]) -> int | None:
    known = [moment for moment in moments if moment is not None]
    return min(known) if len(known) == len(moments) else None


def _is_behind(row: Row, acting: Watermarks) -> bool:
    watermark = acting[row.epoch]
    return watermark is not None and row.time is not None and row.time <= watermark


def _agree(one: Row, other: Row, step: Join) -> bool:
    apart = abs((one.time or 0) - (other.time or 0))
    return apart <= step.within_seconds and all(
        one.values[name] is not None and one.values[name] == other.values[name] for name in step.on
    )


def _match_row(keys: tuple[str, ...], key: tuple[Any, ...], match: Match, stages: Sequence[catalogue.Stage]) -> Row:
    clock = _any("the clock")
    values = dict(zip(keys, key, strict=True))
    values |= {"match_start": clock if match.start is None else match.start}
    values |= {"match_end": _any("the clock") if match.end is None else match.end}
    if match.reached is not None:
        values["reached"] = match.reached
    for stage in stages:
        taken: list[Any] = [dict(row.values) for row in match.taken.get(stage.name, ())]
        one = taken[0] if taken else None
        values[stage.name] = one if stage.times is None else (taken or None)
    return Row(values)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Undetermined(otherwise)
