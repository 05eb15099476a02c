"""Evaluate a spec, step by step, when every event takes effect exactly once.

Time: the watermark of an event time is its greatest time in the epochs before, less its lateness; the least of all of
them counts for the whole job. It acts in the epoch behind the one that moved it, also on an epoch without events in
between, so everything that it closes is closed before the next events come (docs/TIME.md).

With `everything=True` no event is late: the possible results if a failure had reset the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from lockgate.lab.randomjobs import catalogue
from lockgate.lab.randomjobs.columns import time_of
from lockgate.lab.randomjobs.interpreter.patterns import Match, matches_of
from lockgate.lab.randomjobs.interpreter.rows import Effect, Flow, Letter, Row, Undetermined, by_key
from lockgate.lab.randomjobs.interpreter.rowsteps import (
    fanned_out,
    filtered,
    flattened,
    made_of,
    merged,
    read,
    unparsable,
    with_table,
)
from lockgate.lab.randomjobs.interpreter.symbols import is_symbolic
from lockgate.lab.randomjobs.interpreter.values import (
    aggregate,
    aggregate_effect,
    all_made,
    anything,
    arguments_of,
    is_true,
    over_rows,
    raises,
    require,
)
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
            return filtered(self.flow(step.input), part.condition, reference)
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
                self.letters += unparsable(step)
                return read(step)
            case Where():
                flow = self._usable(self.flow(step.input), step.name, (step.condition,))
                return filtered(flow, step.condition, step.name)
            case Select() | Map() | Transform():
                flow = self._usable(self.flow(step.input), step.name, tuple(one.call for one in step.made))
                return made_of(flow, step.keep, step.made, step.name)
            case FlatMap():
                return flattened(self.flow(step.input), step)
            case FanOut():
                return fanned_out(self.flow(step.input), step)
            case Merge():
                return merged([self.flow(one) for one in step.inputs])
            case EventTime():
                return self._timed(step)
            case ProcessingTime():
                flow = self.flow(step.input)
                return replace(flow, rows=tuple(replace(row, time=None) for row in flow.rows))
            case Join():
                return self._join(step)
            case TableJoin():
                return with_table(self.flow(step.input), step)
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
            require(not is_symbolic(time), "the time of an event is random")
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
            arguments = [arguments_of(row, call) for call in fragile]
            require(not is_symbolic(arguments), "random values say which events a function raises on")
            if any(raises(catalogue.entry(call.entry).of, one) for call, one in zip(fragile, arguments, strict=True)):
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
            require(not (clock and times), "the watermark goes by the clock too")
            flows = [self.flow(step.name) for step in times]
            require(all(not row.guards for flow in flows for row in flow.rows), "the watermark is random")
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
        require(all(not row.guards for row in flow.rows), "random values say which rows the state counts")
        require(not any(is_symbolic(row.values[name]) for row in flow.rows for name in keys), "a key is random")
        return replace(flow, is_loose=flow.is_loose or any(flow.effects[name] is not Effect.EVENT for name in keys))

    def _window(self, step: WindowAggregate | WindowApply) -> Flow:
        require(step.window.trigger is None, "a trigger tells windows before their end")
        flow = self._keyed(step.input, step.keys)
        by_time = step.window.kind in BY_TIME
        time = time_of(self.spec, step.input)
        is_corrected = by_time and time is not None and time.late == "CORRECT"
        if is_corrected:
            require(
                time is not None and time.allowed_seconds is not None, "nothing says how long results are corrected"
            )
        allowed = time.allowed_seconds if is_corrected and time is not None else None
        condition = step.window.condition

        def ends(row: Row) -> bool:
            return condition is not None and is_true(row, condition)

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
        effects |= {one.column: aggregate_effect(one.call, flow) for one in all_made(step)}
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
        span = told.span or (anything("the clock"), anything("the clock"))
        values = dict(zip(step.keys, key, strict=True)) | {"window_start": span[0], "window_end": span[1]}
        if is_corrected:
            values |= {"revision": told.revision, "is_final": True}
        if not told.rows:
            return values | {one.column: None for one in all_made(step)}
        if isinstance(step, WindowAggregate):
            return values | {one.column: aggregate(one.call, told.rows) for one in step.made}
        rows = _in_time(told.rows) if step.window.kind in BY_TIME else told.rows
        return values | {step.made.column: over_rows(step.made.call, rows)}

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
                made = {one.column: aggregate(one.call, arrived[:number]) for one in step.made}
                rows.append(replace(row, values={**row.values, **made}))
        effects = dict(flow.effects) | {one.column: aggregate_effect(one.call, flow) for one in step.made}
        return replace(flow, rows=tuple(rows), effects=effects, is_stateful=True)

    def _process(self, step: Process) -> Flow:
        flow = self._keyed(step.input, step.keys)
        function = catalogue.FUNCTIONS[step.function.entry]
        rows = []
        for key, members in by_key(flow.rows, step.keys).items():
            kept: Any = None
            arrived = _arrived(members)
            values = [arguments_of(row, step.function) for row in arrived]
            is_plain = not any(is_symbolic(one) for one in values)
            for row, one in zip(arrived, values, strict=True):
                given: list[Any] = [anything(step.function.entry)]
                if function.meaning is not None:
                    require(is_plain or not function.can_raise, "random values say which events a function raises on")
                    arguments = (kept, *(one if is_plain else [0] * len(one)))
                    if raises(function.meaning, arguments):
                        self._put_aside(row, flow, step.name)
                        continue
                    kept, given = function.meaning(*arguments)
                for number, value in enumerate(given):
                    own = value if is_plain else anything("state over random values")
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
                require(pattern.within_seconds is None, "a pattern goes by the clock")
                ordered = _arrived(members)
            else:
                acting = self.acting()
                passed = [acting[row.epoch] for row in members]
                is_late = [mark is not None and row.time < mark for row, mark in zip(members, passed, strict=True)]  # type: ignore[operator]
                late += [row for row, one in zip(members, is_late, strict=True) if one]
                ordered = _in_time([row for row, one in zip(members, is_late, strict=True) if not one])
            arguments = [arguments_of(row, step.pattern) for row in ordered]
            require(not any(map(is_symbolic, arguments)), "a pattern looks at random values")
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
            require(not is_random, "a join goes by random values")
            require(all(row.time is not None for row in flow.rows), "a join goes by the clock")
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
        require(not outer or all(not row.guards for rows in in_time for row in rows), "an outer join of random rows")
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


# Order and time


def _arrived(rows: Iterable[Row]) -> list[Row]:
    """In the order of arrival: epoch by epoch, inside an epoch by source position."""
    return _ordered(rows, lambda row: (row.epoch, row.place))


def _in_time(rows: Iterable[Row]) -> list[Row]:
    """By event time; those of one time by their source position."""
    return _ordered(rows, lambda row: (row.time, row.place))


def _ordered(rows: Iterable[Row], order: Callable[[Row], Any]) -> list[Row]:
    given = list(rows)
    require(all(row.place is not None for row in given), "rows without a place in a source have no order")
    ordered = sorted(given, key=order)
    for one, other in pairwise(ordered):
        is_tie = one.place == other.place and (one.values != other.values or is_symbolic(one.values))
        require(not is_tie, "one event came several ways, and its rows have no order")
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
    clock = anything("the clock")
    values = dict(zip(keys, key, strict=True))
    values |= {"match_start": clock if match.start is None else match.start}
    values |= {"match_end": anything("the clock") if match.end is None else match.end}
    if match.reached is not None:
        values["reached"] = match.reached
    for stage in stages:
        taken: list[Any] = [dict(row.values) for row in match.taken.get(stage.name, ())]
        one = taken[0] if taken else None
        values[stage.name] = one if stage.times is None else (taken or None)
    return Row(values)
