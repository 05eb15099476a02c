"""Steps on single rows: what each makes of its input, whatever stood before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lockgate.lab.randomjobs import catalogue
from lockgate.lab.randomjobs.interpreter.rows import Effect, Flow, Letter, Place, Row
from lockgate.lab.randomjobs.interpreter.symbols import Atom, Term, is_symbolic
from lockgate.lab.randomjobs.interpreter.values import arguments_of, effect_of, require, value_in
from lockgate.lab.randomjobs.spec import Call, FanOut, FlatMap, Made, Source, TableJoin


def read(source: Source) -> Flow:
    rows = []
    for number, event in enumerate(source.events):
        if event.text is None:
            values = {column.name: value for column, value in zip(source.columns, event.values, strict=True)}
            rows.append(Row(values, epoch=event.epoch, place=_place(source, number)))
    return Flow(tuple(rows), {column.name: Effect.EVENT for column in source.columns})


def unparsable(source: Source) -> list[Letter]:
    """The records that do not parse."""
    return [
        Letter(source.name, _place(source, number))
        for number, event in enumerate(source.events)
        if event.text is not None
    ]


def _place(source: Source, number: int) -> Place:
    partition = source.events[number].partition if source.system == "kafka" else 0  # others are read in their own order
    return (source.name, partition, number)


def filtered(flow: Flow, condition: Call, name: str) -> Flow:
    rows = []
    for row in flow.rows:
        holds = value_in(row, condition, name)
        if isinstance(holds, Atom) and len(holds.samples) == 1:
            holds = holds.samples[0]
        if is_symbolic(holds):
            rows.append(replace(row, guards=(*row.guards, Term(_is, (holds,)))))
        elif holds is True:
            rows.append(row)
    changes = any(flow.effects[column] is not Effect.EVENT for column in condition.columns)
    return replace(flow, rows=tuple(rows), is_loose=flow.is_loose or changes)


def made_of(flow: Flow, keep: tuple[str, ...], made: tuple[Made, ...], name: str) -> Flow:
    rows = []
    for row in flow.rows:
        values = {column: row.values[column] for column in keep}
        rows.append(replace(row, values=values | {one.column: value_in(row, one.call, name) for one in made}))
    effects = {column: flow.effects[column] for column in keep}
    return replace(flow, rows=tuple(rows), effects=effects | {one.column: effect_of(one.call, flow) for one in made})


def flattened(flow: Flow, step: FlatMap) -> Flow:
    entry = catalogue.LISTS[step.made.call.entry]
    rows = []
    for row in flow.rows:
        arguments = arguments_of(row, step.made.call)
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


def with_table(flow: Flow, step: TableJoin) -> Flow:
    rows = []
    for row in flow.rows:
        key = row.values["k"]
        require(not is_symbolic(key), "random values say which rows of a table are met")
        met: list[str | None] = [title for name, title in catalogue.TABLE if name == key]
        for number, title in enumerate(met or ([None] if step.how == "left" else [])):
            place = None if row.place is None else (*row.place, number)
            rows.append(replace(row, values={**row.values, step.column: title}, place=place))
    effect = flow.effects["k"]
    effects = {**flow.effects, step.column: effect if effect is Effect.EVENT else Effect.OTHER}
    return replace(flow, rows=tuple(rows), effects=effects, is_loose=flow.is_loose or effect is not Effect.EVENT)


def fanned_out(flow: Flow, step: FanOut) -> Flow:
    made = made_of(flow, flow.columns, step.made, step.name)
    marks: dict[str, Any] = {"is_partial": False, "missing": [], "why_missing": []}
    rows = tuple(replace(row, values={**row.values, **marks}) for row in made.rows)
    return replace(made, rows=rows, effects=dict(made.effects) | dict.fromkeys(marks, Effect.EVENT))


def merged(flows: Sequence[Flow]) -> Flow:
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


def _is(holds: Any) -> bool:
    return holds is True


def _above(count: int, number: int) -> bool:
    return count > number


def _item(items: Sequence[Any], number: int) -> Any:
    return items[number] if len(items) > number else None


def _is_long(items: Sequence[Any], number: int) -> bool:
    return len(items) > number
