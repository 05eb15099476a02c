"""What the entries of the catalogue give for rows: a plain value, an atom or a term; and how a column behaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockgate.lab.randomjobs import catalogue
from lockgate.lab.randomjobs.interpreter.rows import Effect, Flow, Row, Undetermined
from lockgate.lab.randomjobs.interpreter.symbols import Atom, applied, is_symbolic
from lockgate.lab.randomjobs.spec import Call, Made, WindowAggregate, WindowApply

_WHOLE_NUMBERS = (*range(-12, 13), 100_000, 100_001, 100_002)
_NATURAL_NUMBERS = tuple(one for one in _WHOLE_NUMBERS if one >= 0)
_SAMPLES: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("noise", "py_noise", "row_number", "place", "lottery"), _NATURAL_NUMBERS),
    **dict.fromkeys(("jitter", "sum_of_noise"), _WHOLE_NUMBERS),
    **dict.fromkeys(("fresh_id", "py_fresh_id", "sealed", "clock"), ("0",)),
}
"""Values that represent all results of an entry, as far as a condition of the catalogue can distinguish them."""

_NULL_FOR_NULL = ("jitter", "sealed", "coin_above")
_MORE = {"count": Effect.COUNT, "count_of": Effect.COUNT, "max": Effect.GROWS, "min": Effect.SHRINKS}


def arguments_of(row: Row, call: Call) -> tuple[Any, ...]:
    return tuple(row.values[column] for column in call.columns)


def value_in(row: Row, call: Call, name: str) -> Any:
    """What an entry gives for a row; an atom if it is not deterministic."""
    entry, arguments = catalogue.entry(call.entry), arguments_of(row, call)
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


def is_true(row: Row, condition: Call) -> bool:
    holds = value_in(row, condition, "until")
    require(not is_symbolic(holds), "random values say when a window ends")
    return holds is True


def aggregate(call: Call, rows: Sequence[Row]) -> Any:
    values = [row.values[call.columns[0]] if call.columns else None for row in rows]
    entry = catalogue.NATIVE_AGGREGATES[call.entry]
    if is_symbolic(values) and call.entry != "count":
        return anything("an aggregate of random values")
    if entry.meaning is None:
        return Atom(call.entry, tuple(values) if call.entry in ("first", "any_value") else (*_WHOLE_NUMBERS, None))
    return entry.meaning(values)


def over_rows(call: Call, rows: Sequence[Row]) -> Any:
    values = [row.values[call.columns[0]] for row in rows]
    entry = catalogue.OVER_ROWS[call.entry]
    if is_symbolic(values) or entry.meaning is None:
        return anything(call.entry)
    return entry.meaning(values)


def anything(name: str) -> Atom:
    return Atom(name, (*_WHOLE_NUMBERS, None))


def effect_of(call: Call, flow: Flow) -> Effect:
    entry = catalogue.entry(call.entry)
    is_event = entry.is_deterministic and all(flow.effects[name] is Effect.EVENT for name in call.columns)
    return Effect.EVENT if is_event else Effect.OTHER


def aggregate_effect(call: Call, flow: Flow) -> Effect:
    is_event = all(flow.effects[name] is Effect.EVENT for name in call.columns)
    return _MORE.get(call.entry, Effect.OTHER) if is_event else Effect.OTHER


def all_made(step: WindowAggregate | WindowApply) -> tuple[Made, ...]:
    return step.made if isinstance(step, WindowAggregate) else (step.made,)


def raises(function: Callable[..., Any], arguments: Sequence[Any]) -> bool:
    try:
        function(*arguments)
    except ZeroDivisionError:
        return True
    return False


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Undetermined(otherwise)
