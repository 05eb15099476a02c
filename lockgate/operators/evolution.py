"""What becomes of state when the code that keeps it has changed.

State is stored with its declarations. At a start they are compared with those of the code, and every state that is
read from then on is converted, or the job is refused before it runs; state is never read as what it is not:

    a new state                                        begins empty
    a state that is not declared any more              is forgotten, and that is said
    INT -> BIGINT, FLOAT -> DOUBLE, also inside        taken
    a struct with more fields than before              taken, the new fields are null
    another time to live                               counts from the last write; from now, where there was none
    everything else                                    refused

That is for functions with state, whose states are declared one by one. What other steps keep (aggregates, windows,
patterns) is made by us; of those every change is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockgate.errors import BadJob
from lockgate.operators.states import as_kept
from lockgate.operators.statetypes import Convert, Type, read_type

_WIDER = {"INT": "BIGINT", "FLOAT": "DOUBLE"}

Declarations = Mapping[str, Mapping[str, Any]]

Declared = Mapping[str, Any]
"""What the state of a step is made of, as plain data: {"parts": what may not change, as texts by name, "states": the
declarations of a function with state}."""


@dataclass(frozen=True)
class Evolution:
    """How stored state becomes state of the new code: call it with the state of a key."""

    before: tuple[str, ...]  # the names of the states, in their order in the state of a key
    after: tuple[str, ...]
    changed: Mapping[str, Convert]  # by name of the state, for those whose data changes
    undated: frozenset[str]  # states that expire no more
    forgotten: tuple[str, ...]
    is_redated: bool = False  # does any state expire at another time than was planned for it?

    @property
    def is_needed(self) -> bool:
        """Is there anything to convert?"""
        return self.before != self.after or bool(self.changed or self.undated)

    def __call__(self, state: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
        if state is None:
            return None
        held, written, event, wall = state if len(state) > 1 else (*state, (None,) * len(self.before), [], [])
        values = dict(zip(self.before, held, strict=True))
        for name, convert in self.changed.items():
            values[name] = _nullable(convert)(values[name])
        dates = {name: at for name, at in zip(self.before, written, strict=True) if name not in self.undated}
        values_now, dates_now = ([kept.get(name) for name in self.after] for kept in (values, dates))
        return as_kept(values_now, dates_now, event, wall)


def adapt(old: Declared, new: Declared, *, where: str) -> Evolution:
    """How state kept as `old` says is read by a step that keeps it as `new` says; refused where nobody can."""
    before, after = old["parts"], new["parts"]
    changes = [
        f"{name} was {before.get(name, 'nothing')}, and is {after.get(name, 'nothing')} now"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]
    if changes:
        raise BadJob(
            f"the state in the checkpoint is that of another step: {'; '.join(changes)}",
            where=where,
            fix="bring the step back to what it was; or give it another name=, under which it begins with an empty"
            " state; or begin again with everything: lockgate run --new-life",
        )
    return evolve(old["states"], new["states"], where=where)


def evolve(old: Declarations, new: Declarations, *, where: str) -> Evolution:
    """How state declared as `old` is read by code that declares `new`; refused where that could go wrong."""
    changed: dict[str, Convert] = {}
    undated: set[str] = set()
    is_redated = False
    for name in sorted(old.keys() & new.keys()):
        before, after = old[name], new[name]
        value = _widen(read_type(before["type"]), read_type(after["type"])) if _has_keys_of(before, after) else None
        if value is None:
            raise BadJob(
                f"state {name!r} was kept as {_told(before)}, and is declared as {_told(after)} now",
                where=where,
                fix="declare it as it was, or declare the new one under another name, which begins empty; a type may"
                " become wider (INT to BIGINT, FLOAT to DOUBLE, more fields in a struct) and change in no other way",
            )
        if value is not _same:
            changed[name] = _inside(after["kind"], value)
        if before["ttl_us"] is not None and after["ttl_us"] is None:
            undated.add(name)
        is_redated = is_redated or before["ttl_us"] != after["ttl_us"]
    forgotten = tuple(sorted(old.keys() - new.keys()))
    return Evolution(
        before=tuple(sorted(old)),
        after=tuple(sorted(new)),
        changed=changed,
        undated=frozenset(undated),
        forgotten=forgotten,
        is_redated=is_redated,
    )


def _has_keys_of(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Is it the same kind of state, with the same keys or wider ones? Keys are plain: a wider one is the same data."""
    if before["kind"] != after["kind"]:
        return False
    return before["kind"] != "map" or _widen(read_type(before["key"]), read_type(after["key"])) is not None


def _widen(old: Type, new: Type) -> Convert | None:
    """What makes a value of the old type one of the new; None where nothing safely does."""
    if _WIDER.get(old.name) == new.name:
        return _same
    if old.name != new.name or old.digits != new.digits:
        return None
    if old.name == "STRUCT":
        return _widen_struct(old, new)
    inner = [_widen(one, other) for one, other in zip(old.inner, new.inner, strict=True)]
    if None in inner:
        return None
    if old.inner and inner[-1] is not None and inner[-1] is not _same:
        return _inside("list" if old.name == "ARRAY" else "map", inner[-1])
    return _same


def _widen_struct(old: Type, new: Type) -> Convert | None:
    before = dict(zip(old.fields, old.inner, strict=True))
    fields: dict[str, Convert] = {}
    for field, after in zip(new.fields, new.inner, strict=True):
        convert = _widen(before[field], after) if field in before else _same
        if convert is None:
            return None
        fields[field] = _nullable(convert)
    if not before.keys() <= fields.keys():
        return None
    if old == new:
        return _same
    return lambda value: {field: convert(value.get(field)) for field, convert in fields.items()}


def _inside(kind: str, convert: Convert) -> Convert:
    """The same for everything that a list or a map holds."""
    each = _nullable(convert)
    if kind == "list":
        return lambda values: [each(value) for value in values]
    if kind == "map":
        return lambda values: {key: each(value) for key, value in values.items()}
    return convert


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _same(value: Any) -> Any:
    return value


def _told(declaration: Mapping[str, Any]) -> str:
    kind, kept = declaration["kind"], declaration["type"]
    return f"a map of {declaration['key']} to {kept}" if kind == "map" else f"a {kind} of {kept}"
