"""Make a spec smaller while it still shows what it shows.

Greedy: try every removal, keep the first one after which the spec still shows it, and try again, until no removal is
left. A removal that leaves a spec without sense (a column that is gone) does not show anything and is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from lockgate.lab.randomjobs.columns import is_sound
from lockgate.lab.randomjobs.spec import (
    Call,
    Event,
    EventTime,
    Join,
    Merge,
    Rolling,
    Sink,
    Spec,
    Step,
    WindowAggregate,
    inputs_of,
    used,
)


def shrink(spec: Spec, shows: Callable[[Spec], bool]) -> Spec:
    """The smallest spec that is found this way; `shows` says if a spec still shows it."""
    while True:
        smaller = next((one for one in _smaller(spec) if one != spec and _still(one, shows)), None)
        if smaller is None:
            return spec
        spec = smaller


def _still(spec: Spec, shows: Callable[[Spec], bool]) -> bool:
    try:
        return is_sound(spec) and shows(spec)
    except (LookupError, StopIteration):
        return False


def _smaller(spec: Spec) -> Iterator[Spec]:
    """Every removal, the large ones first."""
    yield _without_unused(spec)
    if len(spec.outputs) > 1:
        for output in spec.outputs:
            yield replace(spec, outputs=tuple(one for one in spec.outputs if one is not output))
    for step in reversed(spec.steps):
        for reference in inputs_of(step):
            yield _without_step(spec, step, reference)
    yield from _fewer_events(spec)
    yield replace(spec, dead_letters=None)
    yield replace(spec, letters_cluster=1)
    yield replace(spec, mode="MICRO_BATCH")
    for number, output in enumerate(spec.outputs):
        for one in (
            replace(output, guarantee=None),
            replace(output, sink=Sink("kafka")),
            replace(output, sink=replace(output.sink, deleted=None, route=None)),
            replace(output, sink=replace(output.sink, cluster=1)),
            replace(output, sink=replace(output.sink, key=output.sink.key[:1])),
        ):
            yield replace(spec, outputs=_with(spec.outputs, number, one))
    for number, source in enumerate(spec.sources):
        for other in (replace(source, change=None), replace(source, system="kafka", change=None)):
            yield replace(spec, sources=_with(spec.sources, number, other))
        if source.system == "sensors":
            continue  # its columns are what they are
        for column in range(len(source.columns)):
            events = tuple(replace(event, values=_without(event.values, column)) for event in source.events)
            narrower = replace(source, columns=_without(source.columns, column), events=events)
            yield replace(spec, sources=_with(spec.sources, number, narrower))
    for number, step in enumerate(spec.steps):
        for simpler in (*_simpler(step), *_keyed_by_first(spec, step)):
            yield replace(spec, steps=_with(spec.steps, number, simpler))


def _without_unused(spec: Spec) -> Spec:
    steps = used(spec)
    references = [one for step in steps for one in inputs_of(step)] + [output.input for output in spec.outputs]
    names = {reference.split(".")[0] for reference in references}
    return replace(spec, steps=steps, sources=tuple(source for source in spec.sources if source.name in names))


def _without_step(spec: Spec, step: Step, instead: str) -> Spec:
    """The spec in which everything that read a step reads `instead`."""

    def moved(reference: str) -> str:
        return instead if reference.split(".")[0] == step.name else reference

    def reading(other: Step) -> Step:
        if isinstance(other, Merge):
            return replace(other, inputs=tuple(map(moved, other.inputs)))
        if isinstance(other, Join):
            return replace(other, left=moved(other.left), right=moved(other.right))
        return replace(other, input=moved(other.input))

    return replace(
        spec,
        steps=tuple(reading(other) for other in spec.steps if other is not step),
        outputs=tuple(replace(output, input=moved(output.input)) for output in spec.outputs),
    )


def _fewer_events(spec: Spec) -> Iterator[Spec]:
    for number, source in enumerate(spec.sources):
        events = source.events
        for fewer in _fewer(events):
            yield replace(spec, sources=_with(spec.sources, number, replace(source, events=fewer)))


def _fewer(events: tuple[Event, ...]) -> Iterator[tuple[Event, ...]]:
    """Without all, a half, a quarter, ..., without one."""
    length = len(events)
    while length:
        for start in range(0, len(events), length):
            yield events[:start] + events[start + length :]
        length //= 2


def _keyed_by_first(spec: Spec, step: Step) -> Iterator[Step]:
    """With the first column of a source as its key, so that nothing has to make the key."""
    if isinstance(step, Rolling):
        for source in spec.sources:
            yield from (replace(step, keys=(column.name,)) for column in source.columns[:1])


def _simpler(step: Step) -> Iterator[Step]:
    """The same step with less in it."""
    for field in ("made", "keep", "keys", "parts"):
        values = getattr(step, field, ())
        if isinstance(values, tuple) and (len(values) > 1 or field == "keys"):
            for number in range(len(values)):
                fewer: Any = {field: _without(values, number)}
                yield replace(step, **fewer)
    if isinstance(step, WindowAggregate | Rolling):
        yield replace(step, made=tuple(replace(one, call=Call("count")) for one in step.made))
    if isinstance(step, EventTime):
        yield replace(step, late="DROP", allowed_seconds=None, idle_seconds=None, max_ahead_ms=None)
    if isinstance(step, Join):
        yield replace(step, how="inner")
    if isinstance(step, Merge) and len(step.inputs) > 2:
        for number in range(len(step.inputs)):
            yield replace(step, inputs=_without(step.inputs, number))


def _with(values: tuple[Any, ...], number: int, value: Any) -> tuple[Any, ...]:
    return (*values[:number], value, *values[number + 1 :])


def _without(values: tuple[Any, ...], number: int) -> tuple[Any, ...]:
    return values[:number] + values[number + 1 :]
