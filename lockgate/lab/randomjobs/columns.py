"""The columns of every reference of a spec, with their types."""

from __future__ import annotations

from lockgate.lab.randomjobs import catalogue
from lockgate.lab.randomjobs.spec import (
    Call,
    Detect,
    EventTime,
    FanOut,
    FlatMap,
    Join,
    Made,
    Map,
    Process,
    Rolling,
    Select,
    Source,
    Spec,
    Step,
    TableJoin,
    Transform,
    WindowAggregate,
    WindowApply,
    inputs_of,
)

Columns = dict[str, str]
"""The type of each column, in order."""


def columns_of(spec: Spec, reference: str) -> Columns:
    """The columns of a source, a step, a part or a side output."""
    step = spec.step(reference)
    side = reference.partition(".")[2]
    given = _inputs(spec, step)
    if side == "late":
        spans = {} if isinstance(step, Detect) else {"window_start": "TIMESTAMP", "window_end": "TIMESTAMP"}
        return {**given[0], **spans}
    match step:
        case Source():
            return {column.name: column.type for column in step.columns}
        case Select() | Map() | Transform():
            return {**{name: given[0][name] for name in step.keep}, **_made(step.made)}
        case FlatMap():
            return {**{name: given[0][name] for name in step.keep}, **_made((step.made,))}
        case FanOut():
            marks = {"is_partial": "BOOLEAN", "missing": "ARRAY", "why_missing": "ARRAY"}
            return {**given[0], **_made(step.made), **marks}
        case Rolling():
            return {**given[0], **_made(step.made)}
        case Join():
            left, right = given
            return {**{name: left[name] for name in step.on}, **left, **right}
        case WindowAggregate() | WindowApply():
            made = step.made if isinstance(step, WindowAggregate) else (step.made,)
            spans = {"window_start": "TIMESTAMP", "window_end": "TIMESTAMP"}
            marks = {"revision": "BIGINT", "is_final": "BOOLEAN"} if is_corrected(spec, step) else {}
            return {**{name: given[0][name] for name in step.keys}, **spans, **marks, **_made(made)}
        case TableJoin():
            return {**given[0], step.column: "STRING"}
        case Process():
            function = catalogue.FUNCTIONS[step.function.entry]
            return {**{name: given[0][name] for name in step.keys}, function.column: function.type}
        case Detect():
            stages = catalogue.PATTERNS[step.pattern.entry].stages
            structs = {stage.name: "STRUCT" for stage in stages if stage.how != "not_followed_by"}
            spans = {"match_start": "TIMESTAMP", "match_end": "TIMESTAMP"}
            reached = {"reached": "STRING"} if side == "timed_out" else {}
            return {**{name: given[0][name] for name in step.keys}, **spans, **reached, **structs}
        case _:
            return given[0]


def is_corrected(spec: Spec, step: WindowAggregate | WindowApply) -> bool:
    """Does the window tell revisions?"""
    if step.window.trigger is not None:
        return True
    time = time_of(spec, step.input)
    return time is not None and time.late == "CORRECT" and step.window.kind in ("tumbling", "sliding", "session")


def is_sound(spec: Spec) -> bool:
    """Does everything that a step or an output names exist?"""
    for step in spec.steps:
        given = _inputs(spec, step)
        calls = [*calls_of(step), *(call for name in ("function", "pattern") if (call := getattr(step, name, None)))]
        names = {name for call in calls for name in call.columns} | {*getattr(step, "keep", ())}
        names |= {*getattr(step, "keys", ()), *getattr(step, "on", ())}
        names |= {step.column} if isinstance(step, EventTime) else {"k"} if isinstance(step, TableJoin) else set()
        if any(not names <= set(columns) for columns in given) or (isinstance(step, Rolling) and not step.keys):
            return False
    for output in spec.outputs:
        sink = output.sink
        names = {*sink.key, *(() if sink.deleted is None else sink.deleted.columns)}
        names |= {name for name in (sink.value, sink.latest, sink.route) if name is not None}
        if not names <= set(columns_of(spec, output.input)):
            return False
    return True


def calls_of(step: Step) -> list[Call]:
    """The expressions of a step; a function with state and a pattern are none."""
    calls = [one.call for one in _made_by(step)]
    calls += [part.condition for part in getattr(step, "parts", ())]
    window = getattr(step, "window", None)
    calls += [call for one in (step, window) if (call := getattr(one, "condition", None)) is not None]
    return calls


def _made_by(step: Step) -> tuple[Made, ...]:
    made: Made | tuple[Made, ...] = getattr(step, "made", ())
    return (made,) if isinstance(made, Made) else made


def time_of(spec: Spec, reference: str) -> EventTime | None:
    """The event time that is nearest above a reference."""
    step = spec.step(reference)
    if isinstance(step, EventTime):
        return step
    above = [time_of(spec, one) for one in inputs_of(step)]
    return next((time for time in above if time is not None), None)


def _inputs(spec: Spec, step: Source | Step) -> list[Columns]:
    return [columns_of(spec, reference) for reference in inputs_of(step)]


def _made(made: tuple[Made, ...]) -> Columns:
    return {one.column: catalogue.entry(one.call.entry).type for one in made}
